// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	slash "path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	// copyPage bounds a folder's entries in memory, copyDepth the nested folders.
	copyPage, copyDepth = 200, 256
	unfinished          = ".holdfast-cp-" // begins the name of an unfinished file
	mostNotes           = 10              // of omitted files
)

func (t *tool) filesCopyCommand() *cobra.Command {
	var overwrite bool
	command := &cobra.Command{
		Use: "cp VOLUMEBACKUP:PATH LOCAL", Short: "Copy a file or a folder out of a volume backup",
		Long: `Copy a file or a folder out of a volume backup. LOCAL is the copy, or an existing folder
for it. Permissions and times are kept; owners, setuid bits and extended attributes are
not. Nothing is written outside of LOCAL: a symbolic link that leads out of the copied
folder is left out, and the exit code is then 3.`,
		Example: `  kubectl holdfast files cp nightly:data:/etc/app.conf . -n shop
  kubectl holdfast files cp nightly:data:/uploads ./uploads -n shop`,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) != 2 || args[1] == "" {
				return usage("got %d arguments, want two: %s", len(args), command.UseLine())
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			files, at, err := t.filesAt(args[0])
			if err != nil {
				return err
			}
			c := &copying{tool: t, files: files, overwrite: overwrite}
			if err := c.run(command.Context(), slash.Clean(at), args[1]); err != nil {
				return err
			}
			fmt.Fprintf(t.ErrOut, "%d files with %d bytes were copied.\n", c.copied, c.bytes)
			if c.leftOut > 0 {
				return &exitError{ExitPartial, fmt.Errorf("%d links or special files were left out", c.leftOut)}
			}
			return nil
		},
	}
	command.Flags().BoolVar(&overwrite, "overwrite", false, "Replace files that exist.")
	return command
}

// copying writes files below one local folder. The volume backup may be hostile: an os.Root keeps writes in the
// folder, and names or links that could leave it are refused.
type copying struct {
	*tool
	files     *volumeFiles
	overwrite bool

	root          *os.Root
	copied, bytes int64
	leftOut       int
}

func (c *copying) run(ctx context.Context, at, local string) error {
	of, err := c.files.stat(ctx, at)
	if err != nil {
		return err
	}
	if of.Type != v1alpha1.VolumeFileTypeFolder {
		if of, err = c.files.file(ctx, at); err != nil {
			return err
		}
	}
	isRoot := at == "/"
	info, err := os.Stat(local)
	exists := err == nil && info.IsDir()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	name := slash.Base(at)
	if !exists {
		if of.Type == v1alpha1.VolumeFileTypeFolder && err == nil {
			return fmt.Errorf("%s exists, and is no folder", local)
		}
		local, name = filepath.Dir(filepath.Clean(local)), filepath.Base(filepath.Clean(local))
	} else if !isRoot && !isName(name) {
		return badName(name)
	}
	if c.root, err = os.OpenRoot(local); err != nil {
		return err
	}
	defer func() { _ = c.root.Close() }()
	if of.Type != v1alpha1.VolumeFileTypeFolder {
		return c.file(ctx, of, at, name)
	}
	if isRoot && exists {
		return c.entries(ctx, at, ".", 0)
	}
	if err := c.makeFolder(name); err != nil {
		return err
	}
	outer := c.root
	if c.root, err = outer.OpenRoot(name); err != nil {
		c.root = outer
		return err
	}
	defer func() { _ = outer.Close() }()
	if err := c.entries(ctx, at, ".", 0); err != nil {
		return err
	}
	return finishFile(c.root, ".", of)
}

// isName reports whether a name can be exactly one element of a local path.
func isName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00") && filepath.Base(name) == name && filepath.IsLocal(name)
}

func badName(name string) error {
	return fmt.Errorf("%q can't be the name of a file here, so the copy has stopped", name)
}

func (c *copying) makeFolder(rel string) error {
	err := c.root.Mkdir(rel, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := c.root.Lstat(rel)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s exists, and is no folder", printable(rel))
	}
	return nil
}

func (c *copying) entries(ctx context.Context, at, rel string, depth int) error {
	if depth > copyDepth {
		return fmt.Errorf("%s is in more than %d folders: copy it by itself", printable(at), copyDepth)
	}
	return c.files.each(ctx, at, copyPage, func(f *v1alpha1.VolumeFile) error {
		if !isName(f.Name) {
			return badName(f.Name)
		}
		from, to := slash.Join(at, f.Name), filepath.Join(rel, f.Name)
		switch f.Type {
		case v1alpha1.VolumeFileTypeFolder:
			if err := c.makeFolder(to); err != nil {
				return err
			}
			if err := c.entries(ctx, from, to, depth+1); err != nil {
				return err
			}
			return finishFile(c.root, to, f)
		case v1alpha1.VolumeFileTypeFile:
			return c.file(ctx, f, from, to)
		case v1alpha1.VolumeFileTypeLink:
			return c.link(ctx, from, to)
		}
		c.leaveOut(from, "it is neither a file, a folder nor a link")
		return nil
	})
}

func (c *copying) leaveOut(at, why string) {
	if c.leftOut++; c.leftOut <= mostNotes {
		fmt.Fprintf(c.ErrOut, "%s is left out: %s\n", printable(at), why)
	}
}

func (c *copying) mayWrite(rel string) error {
	info, err := c.root.Lstat(rel)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s exists, and is a folder", printable(rel))
	case !c.overwrite:
		return fmt.Errorf("%s exists: remove it, or use --overwrite", printable(rel))
	}
	return nil
}

// file copies a file, and names it when it is complete.
func (c *copying) file(ctx context.Context, f *v1alpha1.VolumeFile, from, to string) (err error) {
	if err := c.mayWrite(to); err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(to), fmt.Sprintf("%s%d-%d", unfinished, os.Getpid(), time.Now().UnixNano()))
	out, err := c.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = c.root.Remove(temporary)
		}
	}()
	if err := errors.Join(c.files.content(ctx, from, f.SizeBytes, out), out.Close()); err != nil {
		return err
	}
	if err := finishFile(c.root, temporary, f); err != nil {
		return err
	}
	if err := c.root.Rename(temporary, to); err != nil {
		return err
	}
	c.copied, c.bytes = c.copied+1, c.bytes+f.SizeBytes
	return nil
}

// finishFile sets the permissions and the time, without setuid: it would give the owner's rights to the content.
func finishFile(root *os.Root, rel string, f *v1alpha1.VolumeFile) error {
	mode, err := strconv.ParseUint(f.Mode, 8, 32)
	if err != nil {
		return fmt.Errorf("the mode %q of %s can't be read: %w", f.Mode, printable(rel), err)
	}
	modified, err := time.Parse(time.RFC3339Nano, f.ModificationTime)
	if err != nil {
		return fmt.Errorf("the time %q of %s can't be read: %w", f.ModificationTime, printable(rel), err)
	}
	if err := root.Chmod(rel, os.FileMode(mode).Perm()); err != nil {
		return err
	}
	return root.Chtimes(rel, modified, modified)
}

func (c *copying) link(ctx context.Context, from, to string) error {
	target, err := c.files.link(ctx, from)
	if err != nil {
		return err
	}
	if !staysInside(filepath.ToSlash(to), target) {
		c.leaveOut(from, fmt.Sprintf("it is a link to %q, which leads out of the copied folder", target))
		return nil
	}
	if err := c.mayWrite(to); err != nil {
		return err
	}
	if c.overwrite {
		if err := c.root.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return c.root.Symlink(target, to)
}

// staysInside reports whether a link leads to a place in the copied folder, also through other such links. So ".."
// may only be at its beginning, where the folders above it are known.
func staysInside(link, target string) bool {
	if target == "" || slash.IsAbs(target) || filepath.IsAbs(target) || strings.ContainsAny(target, "\\\x00") {
		return false
	}
	down := false
	for element := range strings.SplitSeq(target, "/") {
		switch element {
		case "", ".":
		case "..":
			if down {
				return false
			}
		default:
			down = true
		}
	}
	return filepath.IsLocal(slash.Join(slash.Dir(link), target))
}
