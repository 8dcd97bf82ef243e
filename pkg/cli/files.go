// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	slash "path"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

func (t *tool) filesCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "files", Short: "Look inside a volume backup, and take files out of it",
		Long: `Look inside a volume backup, and take files out of it. A file is named as
VOLUMEBACKUP:PATH, with a path from the root of the volume. The volume backups are
listed by kubectl get volumebackups.`,
	}
	command.AddCommand(t.filesListCommand(), t.filesCatCommand(), t.filesCopyCommand())
	return command
}

type volumeFiles struct {
	client          rest.Interface
	namespace, name string
}

// filesAt returns the files of VOLUMEBACKUP:PATH, and the path. A name has colons, and no slash.
func (t *tool) filesAt(argument string) (*volumeFiles, string, error) {
	name, below, found := strings.Cut(argument, ":/")
	if !found {
		if name = strings.TrimSuffix(argument, ":"); strings.Contains(name, "/") {
			return nil, "", usage("%q: want VOLUMEBACKUP:/PATH, with a path from the root of the volume", argument)
		}
	}
	if name == "" {
		return nil, "", usage("%q: want VOLUMEBACKUP:/PATH; kubectl get volumebackups lists the names", argument)
	}
	client, namespace, err := t.client()
	if err != nil {
		return nil, "", err
	}
	return &volumeFiles{client.HoldfastV1alpha1().RESTClient(), namespace, name}, "/" + below, nil
}

func (v *volumeFiles) get(subresource, path string) *rest.Request {
	return v.client.Get().Namespace(v.namespace).Resource("volumebackups").Name(v.name).SubResource(subresource).Param("path", path)
}

// page reads a file, and a page of its entries.
func (v *volumeFiles) page(ctx context.Context, path, next string, limit int) (*v1alpha1.VolumeFileList, error) {
	request := v.get("files", path).Param("limit", strconv.Itoa(limit))
	if next != "" {
		request = request.Param("continue", next)
	}
	raw, err := answer(ctx, request)
	if err != nil {
		return nil, err
	}
	list := &v1alpha1.VolumeFileList{}
	if err := json.Unmarshal(raw, list); err != nil {
		return nil, fmt.Errorf("the list of files can't be read: %w", err)
	}
	return list, nil
}

func (v *volumeFiles) stat(ctx context.Context, path string) (*v1alpha1.VolumeFile, error) {
	list, err := v.page(ctx, path, "", 1)
	if err != nil {
		return nil, err
	}
	return &list.File, nil
}

func (v *volumeFiles) each(ctx context.Context, path string, limit int, do func(*v1alpha1.VolumeFile) error) error {
	for next := ""; ; {
		list, err := v.page(ctx, path, next, limit)
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := do(&list.Items[i]); err != nil {
				return err
			}
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

func (v *volumeFiles) link(ctx context.Context, path string) (string, error) {
	raw, err := answer(ctx, v.get("content", path).Param("link", "true"))
	return string(raw), err
}

// contentPatience bounds the requests, one each contentRetry, for the rest of a file without progress. Tests
// shorten both.
var contentPatience, contentRetry = 30 * time.Second, time.Second

// content copies a file of a known size. kube-apiserver ends each request after a minute, so it requests the rest
// again. Without an error the content is complete.
func (v *volumeFiles) content(ctx context.Context, path string, size int64, to io.Writer) error {
	written, failing := int64(0), time.Time{}
	for {
		n, err := v.rest(ctx, path, written, to)
		if written += n; err == nil && written == size {
			return nil
		}
		if err == nil || written > size {
			return fmt.Errorf("%s: got %d bytes, want %d: the content is not complete", printable(path), written, size)
		}
		if n > 0 || failing.IsZero() {
			failing = time.Now()
		}
		failed, local := errors.AsType[*writeError](err)
		switch {
		case local:
			return failed.error
		case ctx.Err() != nil, isRefusal(err), n == 0 && time.Since(failing) > contentPatience:
			return fmt.Errorf("%s broke off after %d of %d bytes, and is not complete: %w", printable(path), written, size, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(contentRetry):
		}
	}
}

func isRefusal(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code < 500 && !apierrors.IsTooManyRequests(err)
}

type writeError struct{ error }

// checkedWriter tells errors of the output from errors of the input.
type checkedWriter struct{ io.Writer }

func (w checkedWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if err != nil {
		err = &writeError{err}
	}
	return n, err
}

func (v *volumeFiles) rest(ctx context.Context, path string, offset int64, to io.Writer) (int64, error) {
	body, err := v.get("content", path).Param("offset", strconv.FormatInt(offset, 10)).Stream(ctx)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	return io.Copy(checkedWriter{to}, body)
}

// printable returns a name for a terminal: control characters could write anything there.
func printable(name string) string {
	for _, r := range name {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return strconv.Quote(name)
		}
	}
	return name
}

func (t *tool) filesListCommand() *cobra.Command {
	var format string
	command := &cobra.Command{
		Use: "ls VOLUMEBACKUP[:PATH]", Short: "List a folder of a volume backup, or show a file",
		Example: `  kubectl holdfast files ls nightly:data:/etc -n shop`,
		Args:    oneFile,
		RunE: func(command *cobra.Command, args []string) error {
			switch format {
			case "", "name", "json":
			default:
				return usage("output %q is unknown: use name or json", format)
			}
			files, at, err := t.filesAt(args[0])
			if err != nil {
				return err
			}
			ctx := command.Context()
			of, err := files.stat(ctx, at)
			if err != nil {
				return err
			}
			if of.Type == v1alpha1.VolumeFileTypeFolder {
				return files.each(ctx, at, 1000, func(f *v1alpha1.VolumeFile) error { return t.printFile(f, slash.Join(at, f.Name), format) })
			}
			return t.printFile(of, slash.Clean(at), format)
		},
	}
	command.Flags().StringVarP(&format, "output", "o", "", "Output format: name for paths, json for an object in each line. Default: lines as ls -l prints them.")
	return command
}

func oneFile(command *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage("got %d arguments, want one: %s", len(args), command.UseLine())
	}
	return nil
}

var kinds = map[v1alpha1.VolumeFileType]string{
	v1alpha1.VolumeFileTypeFile: "-", v1alpha1.VolumeFileTypeFolder: "d", v1alpha1.VolumeFileTypeLink: "l", v1alpha1.VolumeFileTypeOther: "?",
}

func (t *tool) printFile(f *v1alpha1.VolumeFile, at, format string) error {
	switch format {
	case "name":
		_, err := fmt.Fprintln(t.Out, printable(at))
		return err
	case "json":
		encoded, err := json.Marshal(f)
		if err == nil {
			_, err = fmt.Fprintf(t.Out, "%s\n", encoded)
		}
		return err
	}
	name := printable(f.Name)
	if f.Type == v1alpha1.VolumeFileTypeFolder {
		name += "/"
	}
	modified, err := time.Parse(time.RFC3339Nano, f.ModificationTime)
	if err != nil {
		return fmt.Errorf("the time %q of %s can't be read: %w", f.ModificationTime, name, err)
	}
	kind := kinds[f.Type]
	if kind == "" {
		kind = "?"
	}
	_, err = fmt.Fprintf(t.Out, "%s%s %5d %5d %12d %s %s\n", kind, printable(f.Mode), f.UserID, f.GroupID, f.SizeBytes, modified.UTC().Format(time.RFC3339), name)
	return err
}

func (t *tool) filesCatCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cat VOLUMEBACKUP:PATH", Short: "Print a file of a volume backup",
		Example: `  kubectl holdfast files cat nightly:data:/etc/app.conf -n shop`,
		Args:    oneFile,
		RunE: func(command *cobra.Command, args []string) error {
			files, at, err := t.filesAt(args[0])
			if err != nil {
				return err
			}
			of, err := files.file(command.Context(), at)
			if err != nil {
				return err
			}
			return files.content(command.Context(), at, of.SizeBytes, t.Out)
		},
	}
}

func (v *volumeFiles) file(ctx context.Context, at string) (*v1alpha1.VolumeFile, error) {
	of, err := v.stat(ctx, at)
	if err != nil {
		return nil, err
	}
	switch of.Type {
	case v1alpha1.VolumeFileTypeFile:
		return of, nil
	case v1alpha1.VolumeFileTypeFolder:
		return nil, fmt.Errorf("%s is a folder: list it with ls, or copy it with cp", printable(at))
	case v1alpha1.VolumeFileTypeLink:
		target, err := v.link(ctx, at)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s is a symbolic link to %q, and links are not followed: name its target", printable(at), target)
	}
	return nil, fmt.Errorf("%s is neither a file nor a folder", printable(at))
}
