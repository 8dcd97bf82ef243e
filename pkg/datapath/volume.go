// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sys/unix"
)

// volume presents a folder to Kopia's uploader. Unlike Kopia's localfs,
//   - it never leaves the folder: a pod could replace a folder by a link to a file of the node;
//   - it has no special names: localfs takes NAME.kopia-entry as an instruction;
//   - it refuses endlessly nested folders, and names that are not UTF-8, which Kopia would garble;
//   - it notes files that change while read, and collects extras.
type volume struct {
	root   *confined
	notes  *notes
	extras *extras       // may be nil
	last   *lastSnapshot // may be nil
	read   atomic.Int64  // bytes of files that are new or may have changed
	// since is the second from which on a changed file is read again; math.MaxInt64 for none. With
	// isFullRead every file is read, and files unchanged since don't count in read.
	since      int64
	isFullRead bool
	outOfRange outOfRange
}

type outOfRange struct {
	mu    sync.Mutex
	count int
	first string
}

func (o *outOfRange) add(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count++; o.count == 1 {
		o.first = path
	}
}

func (o *outOfRange) tell(notes *notes) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count > 0 {
		notes.addFirst(o.first, fmt.Sprintf("is the first of %d whose modification time is before 1677 or after 2262: a snapshot can't hold it, and has the nearest one that it can", o.count))
	}
}

func openVolume(folder Folder, notes *notes, p *Progress) (*volume, error) {
	root, err := openConfined(folder, &p.calls)
	if err != nil {
		return nil, err
	}
	return &volume{root: root, notes: notes, extras: newExtras(notes), since: math.MaxInt64}, nil
}

func (v *volume) close() { _ = v.root.Close() }

func (v *volume) folder() (*volumeDir, error) {
	top := handle{int(v.root.top.Fd()), ".", v.root.calls}
	stat, err := top.stat()
	if err != nil {
		return nil, fmt.Errorf("read the volume's folder: %w", err)
	}
	root := &volumeDir{volumeEntry: newVolumeEntry(v, nil, ".", &stat), path: "."}
	if err := v.observe(top, ".", root.path, make([]byte, namesSpace), &stat); err != nil {
		return nil, err
	}
	return root, nil
}

func (v *volume) observe(folder handle, name, in string, space []byte, stat *unix.Stat_t) error {
	defer v.root.calls.begin().end()
	if _, exact := timeOf(stat.Mtim); !exact {
		v.outOfRange.add(path.Join(in, name))
	}
	return v.extras.observe(folder.fd, name, in, space, stat)
}

func (v *volume) stillThere() error {
	if err := v.root.stillThere(); err != nil {
		return fmt.Errorf("the volume went away while it was read: %w", err)
	}
	return nil
}

func (v *volume) size(ctx context.Context, path string) (bytes, files int64) {
	it, err := (&volumeDir{volumeEntry: volumeEntry{volume: v}, path: path}).open()
	if err != nil {
		return 0, 0
	}
	defer it.Close()
	for ctx.Err() == nil {
		name, stat, err := it.listed()
		if err != nil || name == "" {
			break
		}
		switch stat.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if path := it.dir.below(name); len(path) <= longestPath {
				below, filesBelow := v.size(ctx, path)
				bytes, files = bytes+below, files+filesBelow
			}
		case unix.S_IFREG:
			bytes, files = bytes+stat.Size, files+1
		}
	}
	return bytes, files
}

// volumeEntry is small: a volume may have millions.
type volumeEntry struct {
	volume *volume
	in     *volumeDir
	name   string
	mode   os.FileMode
	owner  fs.OwnerInfo
	// recent files are read again though they look unchanged: a change within the file system's
	// unit of time is invisible.
	recent bool
	size   int64
	mtime  unix.Timespec
}

func newVolumeEntry(v *volume, in *volumeDir, name string, stat *unix.Stat_t) volumeEntry {
	// Setting an old mtime does not set back the ctime.
	recent := stat.Mode&unix.S_IFMT != unix.S_IFDIR && max(int64(stat.Mtim.Sec), int64(stat.Ctim.Sec)) >= v.since
	return volumeEntry{v, in, name, modeOf(stat.Mode), fs.OwnerInfo{UserID: stat.Uid, GroupID: stat.Gid}, recent, stat.Size, stat.Mtim}
}

var earliest, latest = time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)

// timeOf returns the time of a file, or the nearest that a snapshot can hold.
func timeOf(mtime unix.Timespec) (at time.Time, exact bool) {
	switch at = time.Unix(mtime.Unix()); {
	case at.Before(earliest):
		return earliest, false
	case at.After(latest):
		return latest, false
	}
	return at, true
}

func modeOf(bits uint32) os.FileMode {
	mode := os.FileMode(bits & 0o777)
	switch bits & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		mode |= os.ModeDir
	case unix.S_IFLNK:
		mode |= os.ModeSymlink
	case unix.S_IFIFO:
		mode |= os.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= os.ModeSocket
	case unix.S_IFBLK:
		mode |= os.ModeDevice
	case unix.S_IFCHR:
		mode |= os.ModeDevice | os.ModeCharDevice
	default:
		mode |= os.ModeIrregular
	}
	if bits&unix.S_ISUID != 0 {
		mode |= os.ModeSetuid
	}
	if bits&unix.S_ISGID != 0 {
		mode |= os.ModeSetgid
	}
	if bits&unix.S_ISVTX != 0 {
		mode |= os.ModeSticky
	}
	return mode
}

// isStill reports whether mode, owner, size and time are unchanged since the listing. The inode
// does not count: some file systems give a file several.
func (e *volumeEntry) isStill(read *unix.Stat_t) bool {
	now := newVolumeEntry(e.volume, e.in, e.name, read)
	now.recent = e.recent // a new hard link is no change
	return now == *e
}

const changed = "changed while it was read"

// path is relative to the volume's root, which is ".".
func (e *volumeEntry) path() string {
	if e.in == nil {
		return e.name
	}
	return e.in.below(e.name)
}

// Mode sets a bit that no snapshot has if the file must be read again: Kopia's uploader compares
// modes, and stores only fs.ModBits.
func (e *volumeEntry) Mode() os.FileMode {
	if e.recent {
		return e.mode | os.ModeTemporary
	}
	return e.mode
}

func (e *volumeEntry) ModTime() time.Time {
	at, _ := timeOf(e.mtime)
	return at
}

func (e *volumeEntry) Name() string                { return e.name }
func (e *volumeEntry) Size() int64                 { return e.size }
func (e *volumeEntry) IsDir() bool                 { return e.mode.IsDir() }
func (e *volumeEntry) Sys() any                    { return nil }
func (e *volumeEntry) Owner() fs.OwnerInfo         { return e.owner }
func (e *volumeEntry) Device() fs.DeviceInfo       { return fs.DeviceInfo{} }
func (e *volumeEntry) LocalFilesystemPath() string { return "" }
func (e *volumeEntry) Close()                      {}

type volumeDir struct {
	volumeEntry
	path string
	// stored is its listing in the last snapshot, folders its subfolders' listings. DirEntryOrNil
	// sets them.
	stored  object.ID
	folders map[string]object.ID
	begun   *volumeIterator // by DirEntryOrNil; Iterate goes on with it
}

// Size is 0: a snapshot should not depend on a folder's size.
func (d *volumeDir) Size() int64                      { return 0 }
func (d *volumeDir) SupportsMultipleIterations() bool { return true }

func (d *volumeDir) Child(ctx context.Context, name string) (fs.Entry, error) {
	return fs.IterateEntriesAndFindChild(ctx, d, name)
}

func (d *volumeDir) Iterate(context.Context) (fs.DirectoryIterator, error) {
	if it := d.begun; it != nil {
		d.begun = nil
		return it, nil
	}
	return d.open()
}

func (d *volumeDir) Close() {
	if d.begun != nil {
		d.begun.Close()
		d.begun = nil
	}
}

func (d *volumeDir) open() (*volumeIterator, error) {
	// Without O_NONBLOCK a pipe in the folder's place would block.
	h, err := d.volume.root.handle(d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, markVanished(err)
	}
	return &volumeIterator{handle: h, dir: d, space: listings.Get().(*listing)}, nil
}

func (d *volumeDir) below(name string) string {
	if d.path == "." {
		return name
	}
	return d.path + "/" + name
}

// longestPath bounds a path, at twice Linux's PATH_MAX. Each folder in work holds its entries'
// paths, so endlessly nested folders would exhaust the memory.
const longestPath = 8 << 10

var errTooLong = fmt.Errorf("the path has more than %d bytes; move what lies so deep, or give its folders shorter names", longestPath)

// entry returns Kopia's view of a directory entry, or nil to hide it.
func (d *volumeDir) entry(name string, stat *unix.Stat_t) fs.Entry {
	return d.present(newVolumeEntry(d.volume, d, name, stat))
}

func (d *volumeDir) present(e volumeEntry) fs.Entry {
	if !utf8.ValidString(e.name) {
		return &volumeError{e, errors.New("the name is not UTF-8, and would not be restored as it is; rename the file")}
	}
	if len(d.path)+1+len(e.name) > longestPath {
		return &volumeError{e, errTooLong}
	}
	switch e.mode.Type() {
	case os.ModeDir:
		return &volumeDir{volumeEntry: e, path: e.path()}
	case os.ModeSymlink:
		return &volumeLink{e}
	case 0:
		return &volumeFile{e}
	default:
		d.volume.notes.add(e.path(), "is not a file, a folder or a link, and was left out")
		return nil
	}
}

// listing is a reused buffer: package os allocates several objects a file, the main cost of small
// or unchanged files. It is small, since each folder on the current path has one.
type listing struct {
	entries [8 << 10]byte
	names   [namesSpace]byte
}

var listings = sync.Pool{New: func() any { return new(listing) }}

type volumeIterator struct {
	handle
	dir   *volumeDir
	space *listing
	rest  []byte
	// Next returns seen first, then ahead, then failure.
	seen      []volumeEntry
	ahead     string
	aheadStat unix.Stat_t
	failure   error
}

func (it *volumeIterator) Next(context.Context) (fs.Entry, error) {
	if len(it.seen) > 0 {
		e := it.dir.present(it.seen[0])
		it.seen = it.seen[1:]
		return e, nil
	}
	for {
		name, stat, err := it.listed()
		if err == nil && name == "" {
			err = it.ended()
		}
		if err != nil || name == "" {
			return nil, err
		}
		e := it.dir.entry(name, &stat)
		if e == nil {
			continue
		}
		if err := it.dir.volume.observe(it.handle, name, it.dir.path, it.space.names[:], &stat); err != nil {
			return nil, err
		}
		return e, nil
	}
}

// ended notes a folder that changed since its parent was listed: an entry moved meanwhile may be in
// neither listing.
func (it *volumeIterator) ended() error {
	stat, err := it.stat()
	if err == nil && !it.dir.isStill(&stat) {
		it.dir.volume.notes.add(it.dir.path, changed)
	}
	return err
}

func (it *volumeIterator) listed() (name string, stat unix.Stat_t, err error) {
	if it.failure != nil {
		return "", stat, it.failure
	}
	if name, it.ahead = it.ahead, ""; name != "" {
		return name, it.aheadStat, nil
	}
	for {
		if name, err = it.name(); err != nil || name == "" {
			return "", stat, err
		}
		err = it.again(func() error { return unix.Fstatat(it.fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW) })
		if err == nil {
			return name, stat, nil
		}
		path := it.dir.below(name)
		if err = markVanished(err); !errors.Is(err, errVanished) {
			return "", stat, &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		it.dir.volume.notes.vanished(path)
	}
}

// The kernel's entry: inode, offset, length of the entry, type, and the name, zero-terminated.
const (
	listedLength = 16
	listedName   = 19
)

func (it *volumeIterator) name() (string, error) {
	if it.space == nil {
		return "", it.failed("readdirent", os.ErrClosed)
	}
	for {
		if len(it.rest) == 0 {
			n := 0
			err := it.do("readdirent", func() (err error) {
				n, err = unix.ReadDirent(it.fd, it.space.entries[:])
				return err
			})
			if err != nil || n <= 0 {
				return "", markVanished(err)
			}
			it.rest = it.space.entries[:n]
		}
		entry := it.rest[:binary.NativeEndian.Uint16(it.rest[listedLength:])]
		it.rest = it.rest[len(entry):]
		name, _, _ := bytes.Cut(entry[listedName:], []byte{0})
		// Inode 0 is valid: FUSE and other file systems use it.
		if string(name) != "." && string(name) != ".." {
			return string(name), nil
		}
	}
}

func (it *volumeIterator) Close() {
	if it.space == nil {
		return // closed before
	}
	_ = it.close()
	listings.Put(it.space)
	it.space, it.rest, it.fd = nil, nil, -1
}

type volumeLink struct{ volumeEntry }

func (l *volumeLink) Readlink(context.Context) (string, error) {
	target, err := l.volume.root.Readlink(l.path())
	return target, markVanished(err)
}

func (l *volumeLink) Resolve(context.Context) (fs.Entry, error) {
	return nil, errors.New("links are stored, not followed")
}

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
	// Without O_NONBLOCK a pipe in its place would block.
	if r.handle, err = f.volume.root.handle(f.path(), unix.O_RDONLY|unix.O_NONBLOCK); err != nil {
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

type volumeReader struct {
	handle
	entry  *volumeFile
	opened unix.Stat_t
	at     int64
	done   func()
}

func (r *volumeReader) Read(b []byte) (n int, err error) {
	if r.at > 0 && r.at == r.opened.Size {
		return 0, io.EOF // Close notes added bytes; saves a call
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
	if r.entry.recent || !r.entry.volume.isFullRead {
		r.entry.volume.read.Add(int64(n))
	}
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

// Close notes a file that was written or replaced since it was listed: its bytes may be of
// different moments.
func (r *volumeReader) Close() error {
	defer r.done()
	closed, err := r.stat()
	if err == nil && !r.entry.isStill(&closed) {
		r.entry.volume.notes.add(r.path, changed)
	}
	err = errors.Join(err, r.handle.close())
	r.fd = -1 // a second close closes no other file
	return err
}

// errVanished means that an entry was removed or replaced after it was listed. Only the volume's
// reader returns it: a missing folder of the repository fails with the same errors.
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
