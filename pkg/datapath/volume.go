// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"unicode/utf8"

	"github.com/kopia/kopia/fs"
	"golang.org/x/sys/unix"
)

// volume presents a folder to Kopia's uploader. It differs from Kopia's own
// localfs in that
//   - it never leaves the folder: the pod that writes to it could put a link to
//     a file of the node in the place of a folder that is being read;
//   - it has no special names: localfs takes NAME.kopia-entry as an instruction;
//   - it refuses names that are not UTF-8, which Kopia would store garbled, and folders
//     in folders without end;
//   - it notices what changes while it is read, and what Kopia has no place for.
type volume struct {
	root   *confined
	notes  *notes
	extras *extras      // nil if nobody wants them
	read   atomic.Int64 // bytes of files
}

func openVolume(folder Folder, notes *notes) (*volume, error) {
	root, err := openConfined(folder)
	if err != nil {
		return nil, err
	}
	return &volume{root: root, notes: notes, extras: newExtras(notes)}, nil
}

// close ends the reading of a volume, of which nothing is open any more.
func (v *volume) close() { _ = v.root.Close() }

// folder returns the volume's root.
func (v *volume) folder() (fs.Directory, error) {
	info, err := v.root.Stat(".")
	if err != nil {
		return nil, fmt.Errorf("read the volume's folder: %w", err)
	}
	if err := v.extras.observe(v.root.top, ".", ".", info); err != nil {
		return nil, err
	}
	return &volumeDir{volumeEntry{FileInfo: info, volume: v, path: "."}}, nil
}

// stillThere fails if the volume has gone: what was read of it is then what its removal
// had left.
func (v *volume) stillThere() error {
	if err := v.root.stillThere(); err != nil {
		return fmt.Errorf("the volume went away while it was read: %w", err)
	}
	return nil
}

// size adds up the sizes of the files, as far as they can be seen, and counts them.
func (v *volume) size(ctx context.Context, dir fs.Directory) (bytes, files int64) {
	_ = fs.IterateEntries(ctx, dir, func(ctx context.Context, e fs.Entry) error {
		switch e := e.(type) {
		case fs.Directory:
			below, filesBelow := v.size(ctx, e)
			bytes, files = bytes+below, files+filesBelow
		case fs.File:
			bytes, files = bytes+e.Size(), files+1
		}
		return ctx.Err()
	})
	return bytes, files
}

// volumeEntry is what files, folders and links have in common.
type volumeEntry struct {
	os.FileInfo
	volume *volume
	path   string // from the volume's root, which is "."
}

func (e *volumeEntry) Owner() fs.OwnerInfo {
	if stat, ok := e.Sys().(*syscall.Stat_t); ok {
		return fs.OwnerInfo{UserID: stat.Uid, GroupID: stat.Gid}
	}
	return fs.OwnerInfo{}
}

func (e *volumeEntry) Device() fs.DeviceInfo       { return fs.DeviceInfo{} }
func (e *volumeEntry) LocalFilesystemPath() string { return "" }
func (e *volumeEntry) Close()                      {}

type volumeDir struct{ volumeEntry }

// Size of a folder is nothing that a snapshot should depend on.
func (d *volumeDir) Size() int64                      { return 0 }
func (d *volumeDir) SupportsMultipleIterations() bool { return true }

func (d *volumeDir) Child(ctx context.Context, name string) (fs.Entry, error) {
	return fs.IterateEntriesAndFindChild(ctx, d, name)
}

func (d *volumeDir) Iterate(context.Context) (fs.DirectoryIterator, error) {
	// Without O_NONBLOCK a pipe in the place of the folder would hold us up.
	f, err := d.volume.root.OpenFile(d.path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, markVanished(err)
	}
	return &volumeIterator{dir: d, file: f}, nil
}

// below is the path of what a folder holds, which the name of an entry makes without more.
func (d *volumeDir) below(name string) string {
	if d.path == "." {
		return name
	}
	return d.path + "/" + name
}

// longestPath is how many bytes a path in a volume has at most: twice what a program can name
// at once. Each folder that is being read or written holds the paths of what it has, so that
// folders in folders without end would take all memory.
const longestPath = 8 << 10

var errTooLong = fmt.Errorf("the path has more than %d bytes; move what lies so deep, or give its folders shorter names", longestPath)

// entry returns what Kopia is to see of a directory entry, or nil for what it is
// not to see.
func (d *volumeDir) entry(path string, info os.FileInfo) fs.Entry {
	e := volumeEntry{FileInfo: info, volume: d.volume, path: path}
	if !utf8.ValidString(info.Name()) {
		return &volumeError{e, errors.New("the name is not UTF-8, and would not be restored as it is; rename the file")}
	}
	if len(path) > longestPath {
		return &volumeError{e, errTooLong}
	}
	switch info.Mode().Type() {
	case os.ModeDir:
		return &volumeDir{e}
	case os.ModeSymlink:
		return &volumeLink{e}
	case 0:
		return &volumeFile{e}
	default:
		d.volume.notes.add(e.path, "is not a file, a folder or a link, and was left out")
		return nil
	}
}

// volumeIterator lists a folder in pieces, so that memory doesn't follow its size.
type volumeIterator struct {
	dir   *volumeDir
	file  *os.File
	batch []os.DirEntry
}

const entriesPerBatch = 256

func (it *volumeIterator) Next(context.Context) (fs.Entry, error) {
	for {
		if len(it.batch) == 0 {
			batch, err := it.file.ReadDir(entriesPerBatch)
			if errors.Is(err, io.EOF) {
				return nil, nil
			}
			if err != nil {
				return nil, markVanished(err)
			}
			it.batch = batch
		}
		listed := it.batch[0]
		it.batch = it.batch[1:]

		info, err := listed.Info()
		switch err = markVanished(err); {
		case errors.Is(err, errVanished):
			it.dir.volume.notes.vanished(it.dir.below(listed.Name()))
		case err != nil:
			return nil, err
		default:
			path := it.dir.below(info.Name())
			e := it.dir.entry(path, info)
			if e == nil {
				continue
			}
			if err := it.dir.volume.extras.observe(it.file, info.Name(), path, info); err != nil {
				return nil, err
			}
			return e, nil
		}
	}
}

func (it *volumeIterator) Close() { it.file.Close() }

type volumeLink struct{ volumeEntry }

func (l *volumeLink) Readlink(context.Context) (string, error) {
	target, err := l.volume.root.Readlink(l.path)
	return target, markVanished(err)
}

func (l *volumeLink) Resolve(context.Context) (fs.Entry, error) {
	return nil, errors.New("links are stored, not followed")
}

// volumeError is an entry that can't be stored.
type volumeError struct {
	volumeEntry
	err error
}

func (e *volumeError) ErrorInfo() error { return e.err }

type volumeFile struct{ volumeEntry }

func (f *volumeFile) Open(ctx context.Context) (_ fs.Reader, err error) {
	done, err := MemoryOf(ctx).file(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	r := &volumeReader{entry: f, done: done}
	// Without O_NONBLOCK a pipe in its place would hold us up.
	if r.handle, err = f.volume.root.handle(f.path, unix.O_RDONLY|unix.O_NONBLOCK); err != nil {
		return nil, markVanished(err)
	}
	r.opened, err = r.stat()
	if err == nil && r.opened.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("%w: something else took its place", errVanished)
	}
	if err != nil {
		return nil, errors.Join(err, r.handle.close())
	}
	return r, nil
}

// isStill reports whether a file that was read is what was listed, of which its mode, owner
// and time are stored. A large file is read in parts, each of which opens it. That it may be
// another one does not matter then, and some file systems give a file several numbers.
func (f *volumeFile) isStill(read *unix.Stat_t) bool {
	listed, ok := f.Sys().(*syscall.Stat_t)
	return ok && read.Size == listed.Size && read.Mtim == unix.Timespec(listed.Mtim) &&
		read.Mode == listed.Mode && read.Uid == listed.Uid && read.Gid == listed.Gid
}

// volumeReader reads a file.
type volumeReader struct {
	handle
	entry  *volumeFile
	opened unix.Stat_t
	at     int64 // where the next byte is read
	done   func()
}

func (r *volumeReader) Read(b []byte) (n int, err error) {
	if r.at > 0 && r.at == r.opened.Size {
		return 0, io.EOF // what was added since is noted by Close, without another call
	}
	err = r.do("read", func() (err error) {
		n, err = unix.Read(r.fd, b)
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	r.at += int64(n)
	r.entry.volume.read.Add(int64(n))
	return n, nil
}

func (r *volumeReader) Seek(offset int64, whence int) (int64, error) {
	at, err := unix.Seek(r.fd, offset, whence)
	if err == nil {
		r.at = at
	}
	return at, r.failed("seek", err)
}

func (r *volumeReader) Entry() (fs.Entry, error) { return r.entry, nil }

// Close notes a file that was written to, or replaced, since it was listed: its bytes may be of
// different moments.
func (r *volumeReader) Close() error {
	defer r.done()
	closed, err := r.stat()
	if err == nil && !r.entry.isStill(&closed) {
		r.entry.volume.notes.add(r.entry.path, "changed while it was read")
	}
	err = errors.Join(err, r.handle.close())
	r.fd = -1 // whoever closes it twice closes no other's
	return err
}

// errVanished says that something was removed, or replaced by something else, after
// it was listed. Only who reads the volume can say so: where the repository's own
// folder went away, a file that can't be stored fails with the same errors.
var errVanished = errors.New("vanished from the volume")

func markVanished(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%w: %w", errVanished, err)
	}
	return err
}

var (
	_ fs.Directory  = (*volumeDir)(nil)
	_ fs.File       = (*volumeFile)(nil)
	_ fs.Symlink    = (*volumeLink)(nil)
	_ fs.ErrorEntry = (*volumeError)(nil)
)
