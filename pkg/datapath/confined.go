// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confined is a folder that is never left, not even by a pod's links. All calls are counted.
type confined struct {
	root   *os.Root
	top    *os.File
	folder Folder
	calls  *calls
}

func openConfined(folder Folder, calls *calls) (*confined, error) {
	defer calls.begin().end()
	top, err := folder.open()
	if err != nil {
		return nil, fmt.Errorf("open the volume's folder: %w", err)
	}
	if err := folder.checkMount(top); err != nil {
		return nil, errors.Join(err, top.Close())
	}
	// Opens the checked folder: its path may name another by now.
	root, err := os.OpenRoot(folderPath(int(top.Fd())))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the volume's folder: %w", err), top.Close())
	}
	if hasServer(top) {
		calls.served.Store(top)
	}
	return &confined{root: root, top: top, folder: folder, calls: calls}, nil
}

func (c *confined) stillThere() error {
	defer c.calls.begin().end()
	opened, err := c.top.Stat()
	if err != nil {
		return err
	}
	there, err := c.folder.open()
	if err != nil {
		return err
	}
	defer there.Close()
	now, err := there.Stat()
	if err == nil && !os.SameFile(opened, now) {
		err = errors.New("another folder took its place")
	}
	return err
}

func (c *confined) Close() error { return errors.Join(c.top.Close(), c.root.Close()) }

func (c *confined) Lstat(path string) (os.FileInfo, error) {
	defer c.calls.begin().end()
	return c.root.Lstat(path)
}

func (c *confined) Stat(path string) (os.FileInfo, error) {
	defer c.calls.begin().end()
	return c.root.Stat(path)
}

func (c *confined) Readlink(path string) (string, error) {
	defer c.calls.begin().end()
	return c.root.Readlink(path)
}

func (c *confined) Mkdir(path string, mode os.FileMode) error {
	defer c.calls.begin().end()
	return c.root.Mkdir(path, mode)
}

func (c *confined) Symlink(target, path string) error {
	defer c.calls.begin().end()
	return c.root.Symlink(target, path)
}

func (c *confined) Link(from, to string) error {
	defer c.calls.begin().end()
	return c.root.Link(from, to)
}

func (c *confined) Rename(from, to string) error {
	defer c.calls.begin().end()
	return c.root.Rename(from, to)
}

func (c *confined) Remove(path string) error {
	defer c.calls.begin().end()
	return c.root.Remove(path)
}

func (c *confined) Lchown(path string, user, group int) error {
	defer c.calls.begin().end()
	return c.root.Lchown(path, user, group)
}

func (c *confined) Chtimes(path string, accessed, modified time.Time) error {
	defer c.calls.begin().end()
	return c.root.Chtimes(path, accessed, modified)
}

// handle opens a file or folder in one call if the kernel can confine it; otherwise, or with links
// on the way, by os.Root. Only the owner may read a new file.
func (c *confined) handle(path string, flags int) (handle, error) {
	defer c.calls.begin().end()
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = newFileMode
	}
	fd, err := unix.Openat2(int(c.top.Fd()), path, &how)
	if err == nil {
		return handle{fd, path, c.calls}, nil
	}
	file, err := c.root.OpenFile(path, flags, newFileMode)
	if err != nil {
		return handle{}, err
	}
	defer file.Close()
	fd, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return handle{fd, path, c.calls}, err
}

const newFileMode = 0o600

// handle is an open file or folder, cheaper than an os.File, which costs as much as a small file.
// It is closed once, when no goroutine uses it.
type handle struct {
	fd    int
	path  string
	calls *calls
}

func (h handle) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: what, Path: h.path, Err: err}
}

// do repeats interrupted calls, as package os does: network file systems and FUSE let signals in,
// and Go's scheduler sends some.
func (h handle) do(what string, call func() error) error {
	return h.failed(what, h.again(call))
}

func (h handle) again(call func() error) error {
	defer h.calls.begin().end()
	return again(call)
}

func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (h handle) stat() (stat unix.Stat_t, err error) {
	err = h.do("stat", func() error { return unix.Fstat(h.fd, &stat) })
	return stat, err
}

func (h handle) WriteAt(b []byte, offset int64) (written int, err error) {
	for written < len(b) && err == nil {
		err = h.do("write", func() error {
			n, err := unix.Pwrite(h.fd, b[written:], offset+int64(written))
			written += max(n, 0)
			if n == 0 && err == nil {
				return io.ErrUnexpectedEOF // as in package os: a repetition need not progress either
			}
			return err
		})
	}
	return written, err
}

func (h handle) Truncate(size int64) error {
	return h.do("truncate", func() error { return unix.Ftruncate(h.fd, size) })
}

func (h handle) chown(user, group uint32) error {
	return h.do("chown", func() error { return unix.Fchown(h.fd, int(user), int(group)) })
}

func (h handle) chmod(mode fs.FileMode) error {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		bits |= unix.S_ISUID
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= unix.S_ISGID
	}
	if mode&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return h.do("chmod", func() error { return unix.Fchmod(h.fd, bits) })
}

// setTime sets the times of an open file or folder. File systems have then written all its earlier
// data; cp and tar rely on it, too.
func (h handle) setTime(t time.Time) error {
	at := unix.NsecToTimespec(t.UnixNano())
	times := [2]unix.Timespec{at, at}
	return h.do("chtimes", func() error {
		// Without a path the call is about the file descriptor.
		if _, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(h.fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0); errno != 0 {
			return errno
		}
		return nil
	})
}

// close is not repeated: Linux closes the file even after a signal.
func (h handle) close() error {
	defer h.calls.begin().end()
	err := unix.Close(h.fd)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return h.failed("close", err)
}
