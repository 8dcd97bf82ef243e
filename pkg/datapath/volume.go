// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
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
//   - it refuses names that are not UTF-8, which Kopia would store garbled;
//   - it notices what changes while it is read, and what Kopia has no place for.
type volume struct {
	root   *os.Root
	top    *os.File // root, opened
	notes  *notes
	extras *extras      // nil if nobody wants them
	read   atomic.Int64 // bytes of files
}

func openVolume(dir string, notes *notes) (*volume, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the volume's folder: %w", err)
	}
	top, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the volume's folder: %w", err), root.Close())
	}
	return &volume{root: root, top: top, notes: notes, extras: newExtras(notes)}, nil
}

// close ends the reading of a volume, of which nothing is open any more.
func (v *volume) close() { _ = errors.Join(v.top.Close(), v.root.Close()) }

// folder returns the volume's root.
func (v *volume) folder() (fs.Directory, error) {
	info, err := v.root.Stat(".")
	if err != nil {
		return nil, fmt.Errorf("read the volume's folder: %w", err)
	}
	if v.extras != nil {
		folder, err := v.root.Open(".")
		if err != nil {
			return nil, fmt.Errorf("open the volume's folder: %w", err)
		}
		defer folder.Close()
		if err := v.extras.observe(folder, ".", ".", info); err != nil {
			return nil, err
		}
	}
	return &volumeDir{volumeEntry{FileInfo: info, volume: v, path: "."}}, nil
}

// stillThere fails if the volume has gone: what was read of it is then what its removal
// had left.
func (v *volume) stillThere() error {
	if err := stillThere(v.root); err != nil {
		return fmt.Errorf("the volume went away while it was read: %w", err)
	}
	return nil
}

// stillThere fails if the folder that was opened is no longer at its path.
func stillThere(root *os.Root) error {
	opened, err := root.Stat(".")
	if err != nil {
		return err
	}
	now, err := os.Stat(root.Name())
	if err == nil && !os.SameFile(opened, now) {
		err = errors.New("another folder took its place")
	}
	return err
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

// entry returns what Kopia is to see of a directory entry, or nil for what it is
// not to see.
func (d *volumeDir) entry(info os.FileInfo) fs.Entry {
	e := volumeEntry{FileInfo: info, volume: d.volume, path: path.Join(d.path, info.Name())}
	if !utf8.ValidString(info.Name()) {
		return &volumeError{e, errors.New("the name is not UTF-8, and would not be restored as it is; rename the file")}
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
			it.dir.volume.notes.vanished(path.Join(it.dir.path, listed.Name()))
		case err != nil:
			return nil, err
		default:
			e := it.dir.entry(info)
			if e == nil {
				continue
			}
			if err := it.dir.volume.extras.observe(it.file, info.Name(), path.Join(it.dir.path, info.Name()), info); err != nil {
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
	done, err := memoryOf(ctx).file(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	r := &volumeReader{entry: f, done: done}
	if r.fd, err = f.volume.openFile(f.path); err != nil {
		return nil, markVanished(err)
	}
	r.opened, err = r.stat()
	if err == nil && r.opened.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("%w: something else took its place", errVanished)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(r.fd))
	}
	return r, nil
}

// openFile opens a file of the volume for reading, by one call of the kernel where that
// knows how to stay inside of a folder. Where it doesn't, or there are links on the way, it
// is as os.Root does it. Without O_NONBLOCK a pipe in its place would hold us up.
func (v *volume) openFile(path string) (int, error) {
	fd, err := unix.Openat2(int(v.top.Fd()), path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err == nil {
		return fd, nil
	}
	file, err := v.root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	defer file.Close()
	return unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// volumeReader reads a file. It has no os.File, which costs as much as a small file.
type volumeReader struct {
	fd     int
	entry  *volumeFile
	opened unix.Stat_t
	done   func()
}

func (r *volumeReader) stat() (stat unix.Stat_t, err error) {
	err = again(func() error { return unix.Fstat(r.fd, &stat) })
	return stat, r.failed("stat", err)
}

// again makes a call of the kernel until no signal interrupts it, as os does for its own:
// file systems of the network and of FUSE let signals in, and the scheduler sends some.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (r *volumeReader) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: what, Path: r.entry.path, Err: err}
}

func (r *volumeReader) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(r.fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, r.failed("read", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		}
		r.entry.volume.read.Add(int64(n))
		return n, nil
	}
}

func (r *volumeReader) Seek(offset int64, whence int) (int64, error) {
	at, err := unix.Seek(r.fd, offset, whence)
	return at, r.failed("seek", err)
}

func (r *volumeReader) Entry() (fs.Entry, error) { return r.entry, nil }

// Close notes a file that was written to since it was opened: its bytes may be
// of different moments.
func (r *volumeReader) Close() error {
	defer r.done()
	closed, err := r.stat()
	if err == nil && (closed.Size != r.opened.Size || closed.Mtim != r.opened.Mtim) {
		r.entry.volume.notes.add(r.entry.path, "changed while it was read")
	}
	fd := r.fd
	r.fd = -1 // whoever closes it twice closes no other's
	return errors.Join(err, r.failed("close", unix.Close(fd)))
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
