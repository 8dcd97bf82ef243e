// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/sharded"
)

// shards is how names are cut into folders: as Kopia does in a new repository.
// That of an existing one is written in it.
var shards = []int{1, 3}

// folderStorage keeps a repository in a folder, in the layout of Kopia. It differs
// from Kopia's own in that
//   - it never leaves the storage location, even if somebody puts links there;
//   - a name is on the disk when its blob is written, not only the content;
//   - it stays in the folder that it has opened: what is mounted over it, or no
//     longer, is another one.
type folderStorage struct {
	sharded.Storage
	blob.DefaultProviderImplementation
	root *os.Root
}

func connectFolder(location, folder string) (blob.Storage, error) {
	outer, err := os.OpenRoot(location)
	if err != nil {
		// A root that is gone is a volume that isn't mounted, not an empty store.
		return nil, fmt.Errorf("the folder of the storage location: %w", err)
	}
	defer outer.Close()
	root, err := outer.OpenRoot(path.Clean(folder))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: no folder %s", ErrNotInitialized, path.Join(location, folder))
	case err != nil:
		return nil, fmt.Errorf("open the repository's folder: %w", err)
	}
	return &folderStorage{
		Storage: sharded.New(folderImpl{root}, ".", sharded.Options{DirectoryShards: shards}, false),
		root:    root,
	}, nil
}

// ConnectionInfo implements blob.Storage. Nobody connects by it: see lend.
func (s *folderStorage) ConnectionInfo() blob.ConnectionInfo {
	return blob.ConnectionInfo{Type: storageType}
}

// DisplayName implements blob.Storage.
func (s *folderStorage) DisplayName() string { return "folder " + s.root.Name() }

// Close implements blob.Storage.
func (s *folderStorage) Close(context.Context) error { return s.root.Close() }

const (
	blobMode   = 0o600
	folderMode = 0o700
)

// folderImpl is what folderStorage does with files.
type folderImpl struct{ root *os.Root }

// GetBlobFromPath implements sharded.Impl.
func (f folderImpl) GetBlobFromPath(_ context.Context, _, name string, offset, length int64, output blob.OutputBuffer) error {
	output.Reset()
	// The opening of a pipe might never end.
	file, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return notFound(err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, blob.ErrBlobNotFound)
	}
	var content io.Reader = file
	if length >= 0 {
		content = io.NewSectionReader(file, offset, length)
	}
	if _, err := io.Copy(output, content); err != nil {
		return err
	}
	return blob.EnsureLengthExactly(output.Length(), length)
}

// GetMetadataFromPath implements sharded.Impl.
func (f folderImpl) GetMetadataFromPath(_ context.Context, _, name string) (blob.Metadata, error) {
	info, err := f.root.Stat(name)
	if err != nil {
		return blob.Metadata{}, notFound(err)
	}
	return blob.Metadata{Length: info.Size(), Timestamp: info.ModTime()}, nil
}

// PutBlobInPath implements sharded.Impl. It replaces what is there.
func (f folderImpl) PutBlobInPath(_ context.Context, folder, name string, data blob.Bytes, opts blob.PutOptions) (err error) {
	if opts.HasRetentionOptions() || opts.DoNotRecreate {
		return blob.ErrUnsupportedPutBlobOption
	}
	temporary := name + ".tmp." + rand.Text()
	file, err := f.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, blobMode)
	isNew := errors.Is(err, fs.ErrNotExist)
	if isNew {
		if err = f.root.MkdirAll(folder, folderMode); err == nil {
			file, err = f.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, blobMode)
		}
	}
	if err != nil {
		return err
	}
	_, err = data.WriteTo(file)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if t := opts.SetModTime; err == nil && !t.IsZero() {
		err = f.root.Chtimes(temporary, t, t)
	}
	if err == nil {
		err = f.root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, f.root.Remove(temporary))
	}
	if opts.GetModTime != nil {
		info, err := f.root.Stat(name)
		if err != nil {
			return err
		}
		*opts.GetModTime = info.ModTime()
	}
	for {
		if err := f.sync(folder); err != nil || !isNew || path.Clean(folder) == "." {
			return err
		}
		folder = path.Dir(folder)
	}
}

func (f folderImpl) sync(folder string) error {
	directory, err := f.root.Open(folder)
	if err != nil {
		return err
	}
	defer directory.Close()
	if err := directory.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // a file system without it
		return err
	}
	return nil
}

// DeleteBlobInPath implements sharded.Impl.
func (f folderImpl) DeleteBlobInPath(_ context.Context, _, name string) error {
	if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ReadDir implements sharded.Impl.
func (f folderImpl) ReadDir(_ context.Context, folder string) ([]os.FileInfo, error) {
	directory, err := f.root.Open(folder)
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	entries, err := directory.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	infos := make([]os.FileInfo, 0, len(entries))
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return blob.ErrBlobNotFound
	}
	return err
}
