// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/pkg/format"
)

const (
	// Backups have Secrets.
	fileMode   = 0o600
	folderMode = 0o700

	// folderTries bounds how often a writer creates its folder while removers remove it.
	folderTries = 1000

	temporaryPrefix = ".holdfast-"
	temporarySuffix = ".tmp"
)

// filesystemBackend keeps each object in a file. It opens the folder for each operation, since it may
// be mounted at any time; only Bucket.Folder's stays open. No symbolic link leads out.
//
// The store of gocloud.dev lists incompletely, shows unfinished files, races, and does not sync.
type filesystemBackend struct {
	path     string
	open     *os.Root // of a Folder
	expected *expectedFolder
}

type opened struct {
	*os.Root
	stays bool
}

func (r opened) Close() error {
	if r.stays {
		return nil
	}
	return r.Root.Close()
}

func openFilesystem(folder string) (*filesystemBackend, error) {
	if !filepath.IsAbs(folder) {
		return nil, errors.New("the storage location's spec.filesystem.path must be absolute")
	}
	f := &filesystemBackend{path: folder}
	root, err := f.root()
	if err != nil {
		return nil, explain("open", "", err)
	}
	return f, root.Close()
}

// root omits the path from its error, since tenants read it.
func (f *filesystemBackend) root() (opened, error) {
	if f.open != nil {
		return opened{f.open, true}, nil
	}
	info, err := os.Stat(f.path)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(f.path)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return opened{}, &opError{operation: "open", reason: "the folder of the storage location does not exist: make or mount it", kind: ErrUnavailable, cause: err}
	}
	if err == nil && f.expected != nil {
		if err = f.expected.verify(root); err != nil {
			return opened{}, errors.Join(err, root.Close())
		}
	}
	return opened{Root: root}, err
}

func (f *filesystemBackend) folder(key string) (backend, string, error) {
	root, err := f.root()
	if err != nil {
		return nil, "", err
	}
	defer root.Close()
	folder, err := root.OpenRoot(path.Clean(key))
	if err != nil {
		return nil, "", err
	}
	return &filesystemBackend{path: f.path, open: folder}, "", nil
}

func (f *filesystemBackend) list(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		root, err := f.root()
		if err != nil {
			yield(Object{}, err)
			return
		}
		defer root.Close()
		listing := &fileListing{ctx: ctx, root: root, options: options, beginning: folder + options.Beginning, yield: yield}
		if err := listing.folder(folder); err != nil && !errors.Is(err, errStopped) {
			yield(Object{}, err)
		}
	}
}

var errStopped = errors.New("the caller has seen enough")

type fileListing struct {
	ctx       context.Context
	root      opened
	options   ListOptions
	beginning string
	yield     func(Object, error) bool
}

// folder yields a folder's content. Folders sort with their slash.
func (l *fileListing) folder(folder string) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	entries, err := readFolder(l.root, folder, l.options.Unfinished)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, entry := range entries {
		after := l.options.StartAfter
		switch {
		case !strings.HasPrefix(entry.Key, l.beginning) && !(entry.IsFolder && l.options.Recursive && strings.HasPrefix(l.beginning, entry.Key)):
		case entry.IsFolder && l.options.Recursive:
			if entry.Key < after && !strings.HasPrefix(after, entry.Key) {
				continue
			}
			if err := l.folder(entry.Key); err != nil {
				return err
			}
		case entry.Key <= after:
		case !l.yield(entry, nil):
			return errStopped
		}
	}
	return nil
}

func readFolder(root opened, folder string, unfinished bool) ([]Object, error) {
	directory, err := root.Open(path.Join(".", folder))
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	files, err := directory.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var entries []Object
	for _, file := range files {
		key := folder + file.Name()
		switch {
		case file.IsDir():
			entries = append(entries, Object{Key: key + "/", IsFolder: true})
		case file.Type().IsRegular() && (unfinished || !isTemporary(file.Name())):
			info, err := file.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			entries = append(entries, Object{Key: key, Size: info.Size(), ModTime: info.ModTime(), Version: fileVersion(info)})
		}
	}
	slices.SortFunc(entries, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
	return entries, nil
}

func (f *filesystemBackend) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	root, err := f.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// Only files are objects, and opening a pipe might block.
	file, err := root.OpenFile(key, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		_ = file.Close()
		return nil, errors.Join(err, fs.ErrNotExist)
	}
	if length < 0 {
		length = math.MaxInt64 - offset
	}
	return &fileReader{part: io.NewSectionReader(file, offset, length), file: file, ctx: ctx, version: fileVersion(info)}, nil
}

func (f *filesystemBackend) attributes(_ context.Context, key string) (Object, error) {
	root, err := f.root()
	if err != nil {
		return Object{}, err
	}
	defer root.Close()
	info, err := root.Stat(key)
	if err != nil {
		return Object{}, err
	}
	if !info.Mode().IsRegular() {
		return Object{}, fs.ErrNotExist
	}
	return Object{Size: info.Size(), ModTime: info.ModTime(), Version: fileVersion(info)}, nil
}

func (f *filesystemBackend) write(ctx context.Context, key string, content Content, options writeOptions) error {
	if options.retention.Mode != "" {
		return &opError{operation: "write", key: key, reason: "a folder can't retain objects", cause: errors.ErrUnsupported}
	}
	w, err := f.newFileWriter(ctx, key)
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := content.WriteTo(w); err != nil {
		return err
	}
	if options.exclusive {
		return w.Commit()
	}
	return w.commitOver()
}

func (f *filesystemBackend) newWriter(ctx context.Context, key string) (ObjectWriter, error) {
	return f.newFileWriter(ctx, key)
}

func (f *filesystemBackend) newFileWriter(ctx context.Context, key string) (*fileWriter, error) {
	root, err := f.root()
	if err != nil {
		return nil, err
	}
	folder := path.Dir(key)
	w := &fileWriter{ctx: ctx, root: root, key: key, temporary: path.Join(folder, temporaryPrefix+rand.Text()+temporarySuffix)}
	for range folderTries {
		w.file, err = root.OpenFile(w.temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
		if !errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			break
		}
		// A remover may remove any folder above.
		w.newFolder = true
		if made := root.MkdirAll(folder, folderMode); made != nil && !errors.Is(made, fs.ErrNotExist) {
			err = made
			break
		}
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return w, nil
}

func (f *filesystemBackend) delete(_ context.Context, key, version string) error {
	root, err := f.root()
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(key)
	if err != nil {
		return err
	}
	if fileVersion(info) != version {
		return ErrChanged
	}
	folder := path.Dir(key)
	// It may have been replaced: move it aside, and compare.
	aside := path.Join(folder, temporaryPrefix+rand.Text()+temporarySuffix)
	if err := root.Rename(key, aside); err != nil {
		return err
	}
	var other error
	if info, err := root.Lstat(aside); err != nil {
		return err
	} else if fileVersion(info) != version {
		if err := root.Link(aside, key); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		other = ErrChanged
	}
	if err := root.Remove(aside); err != nil {
		return err
	}
	removeEmptyFolders(root, folder)
	return other
}

// fileVersion includes the time, since inodes are reused.
func fileVersion(info fs.FileInfo) string {
	var inode uint64
	if status, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = status.Ino
	}
	return fmt.Sprintf("%x-%x-%x", inode, info.ModTime().UnixNano(), info.Size())
}

func (f *filesystemBackend) remove(_ context.Context, key string) error {
	root, err := f.root()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(key); err != nil {
		return err
	}
	removeEmptyFolders(root, path.Dir(key))
	return nil
}

func (f *filesystemBackend) check(_ context.Context, _ string) error {
	root, err := f.root()
	if err != nil {
		return err
	}
	defer root.Close()
	directory, err := root.Open(".")
	if err != nil {
		return err
	}
	defer directory.Close()
	if _, err := directory.ReadDir(1); err != nil && err != io.EOF {
		return err
	}
	return nil
}

// now returns the time of a new file, by a file server's clock if there is one.
func (f *filesystemBackend) now(ctx context.Context, folder string) (time.Time, error) {
	w, err := f.newFileWriter(ctx, folder+format.HoldfastPrefix+"clock")
	if err != nil {
		return time.Time{}, err
	}
	defer w.Abort()
	if _, err := w.Write([]byte("?")); err != nil {
		return time.Time{}, err
	}
	if err := w.file.Sync(); err != nil {
		return time.Time{}, err
	}
	info, err := w.file.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

func (f *filesystemBackend) close() error {
	if f.open == nil {
		return nil
	}
	return f.open.Close()
}

// removeEmptyFolders makes folders end with their last object, as elsewhere.
func removeEmptyFolders(root opened, folder string) {
	for folder != "." && root.Remove(folder) == nil {
		folder = path.Dir(folder)
	}
}

func (f *filesystemBackend) removeUnfinished(ctx context.Context, folder string, before time.Time, dryRun bool) (keys []string, err error) {
	for object, err := range f.list(ctx, folder, ListOptions{Recursive: true, Unfinished: true}) {
		if err != nil {
			return keys, err
		}
		if !isTemporary(path.Base(object.Key)) || !object.ModTime.Before(before) {
			continue
		}
		if !dryRun {
			err := f.delete(ctx, object.Key, object.Version)
			switch {
			case errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrChanged):
				continue // its writer is alive
			case err != nil:
				return keys, err
			}
		}
		keys = append(keys, object.Key)
	}
	return keys, nil
}

func isTemporary(name string) bool {
	return strings.HasPrefix(name, temporaryPrefix) && strings.HasSuffix(name, temporarySuffix)
}

// IsUnfinished reports whether a key is of an unfinished write.
func IsUnfinished(key string) bool { return isTemporary(path.Base(key)) }

type fileReader struct {
	part    *io.SectionReader
	file    *os.File
	ctx     context.Context
	version string
}

func (r *fileReader) Version() string { return r.version }

func (r *fileReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.part.Read(p)
}

func (r *fileReader) Close() error { return r.file.Close() }

type fileWriter struct {
	file           *os.File
	ctx            context.Context
	root           opened
	key, temporary string
	newFolder      bool
	ended          bool
}

func (w *fileWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.file.Write(p)
}

func (w *fileWriter) commitOver() error {
	return w.end(func() error {
		if err := w.root.Rename(w.temporary, w.key); err != nil {
			return err
		}
		return w.syncFolders(w.newFolder)
	})
}

// Commit fails for an existing object. It makes the folder's objects durable.
func (w *fileWriter) Commit() error {
	return w.end(func() error {
		err := w.root.Link(w.temporary, w.key)
		if errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
			return &opError{operation: "create", key: w.key, kind: ErrDenied, cause: err,
				reason: "the folder's file system has no hard links, which tell whether an object exists already: use another one"}
		}
		if err != nil {
			return err
		}
		return w.syncFolders(true)
	})
}

// syncFolders syncs the object's folder, or all above, too, which may be new.
func (w *fileWriter) syncFolders(all bool) error {
	for folder := path.Dir(w.key); ; folder = path.Dir(folder) {
		if err := syncFolder(w.root, folder); err != nil || !all || folder == "." {
			return err
		}
	}
}

func (w *fileWriter) end(publish func() error) error {
	if w.ended {
		return errors.New("the write has already ended")
	}
	if err := w.ctx.Err(); err != nil {
		w.Abort()
		return err
	}
	err := w.file.Sync()
	if err == nil {
		err = publish()
	}
	w.Abort()
	return err
}

// Abort also cleans up after a Commit.
func (w *fileWriter) Abort() {
	if w.ended {
		return
	}
	w.ended = true
	_ = w.file.Close()
	_ = w.root.Remove(w.temporary)
	removeEmptyFolders(w.root, path.Dir(w.key))
	_ = w.root.Close()
}

func syncFolder(root opened, folder string) error {
	directory, err := root.Open(folder)
	if err != nil {
		return err
	}
	defer directory.Close()
	err = directory.Sync()
	if errors.Is(err, syscall.EINVAL) {
		return nil // a file system without it
	}
	return err
}
