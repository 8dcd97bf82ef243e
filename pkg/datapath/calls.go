// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// calls counts the kernel's calls for the files of a volume. On a hanging disk or server they never
// return, and can only be noticed. A disk's file system answers statfs from memory, so that proves
// nothing. A network file system asks its server: the answer shows that a long call is still
// served.
type calls struct {
	begun, returned atomic.Int64
	syncing         atomic.Uint64
	// served is the volume's folder if its file system has a server; asking is true during a
	// question.
	served atomic.Pointer[os.File]
	asking atomic.Bool
}

// begin counts a call, end its return. Between them nothing may wait for a store or for other work.
func (c *calls) begin() *calls {
	c.begun.Add(1)
	return c
}

func (c *calls) end() { c.returned.Add(1) }

// Call counts do among the kernel's calls for the volume's files.
func (p *Progress) Call(do func()) {
	defer p.calls.begin().end()
	do()
}

// Calls reports whether a call is pending, and returns a counter of returned calls and answers. If
// it is unchanged while a call is pending, none has returned. While one is pending, Calls also asks
// the files' server.
func (p *Progress) Calls() (waiting bool, answers int64) {
	answers = p.calls.returned.Load()
	waiting = p.calls.begun.Load() > answers
	if device := p.calls.syncing.Load(); device != 0 {
		done, _ := completed(device)
		answers += done
	}
	if waiting {
		p.calls.ask()
	}
	return waiting, answers
}

// ask asks the files' server, unless its last answer is outstanding. The question counts as a call.
func (c *calls) ask() {
	folder := c.served.Load()
	if folder == nil || !c.asking.CompareAndSwap(false, true) {
		return
	}
	c.begin()
	go func() {
		defer c.asking.Store(false)
		defer c.end()
		_, _ = filesystem(folder) // an error is an answer, too
	}()
}

// hasServer reports whether statfs of the folder asks a server.
func hasServer(folder *os.File) bool {
	stat, err := filesystem(folder)
	if err != nil {
		return true // unknown drivers are taken for a server's; a disk's never fails here
	}
	switch uint32(stat.Type) { // the type is signed on some machines
	case unix.FUSE_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.V9FS_MAGIC:
		return true
	}
	return false
}

func filesystem(folder *os.File) (stat unix.Statfs_t, err error) {
	conn, err := folder.SyscallConn()
	if err != nil {
		return stat, err
	}
	controlled := conn.Control(func(fd uintptr) {
		err = again(func() error { return unix.Fstatfs(int(fd), &stat) })
	})
	return stat, errors.Join(err, controlled)
}

// devices is where the kernel lists block devices. Tests replace both.
var (
	devices = "/sys/dev/block"
	syncfs  = unix.Syncfs
)

// completed returns how many reads, writes and flushes a device has done; 0 and false without
// statistics.
func completed(device uint64) (sum int64, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("%s/%d:%d/stat", devices, unix.Major(device), unix.Minor(device)))
	if err != nil {
		return 0, false
	}
	for i, field := range strings.Fields(string(text)) {
		if i == 0 || i == 4 || i == 15 {
			n, _ := strconv.ParseInt(field, 10, 64)
			sum += n
		}
	}
	return sum, sum > 0
}

// sync writes the whole file system to its disk, other files included, however long that takes. It
// does not count as hanging while the device works or the server answers. Without a way to tell, it
// is not counted.
func (h handle) sync() error {
	stat, err := h.stat()
	if err != nil {
		return err
	}
	sync := func() error { return syncfs(h.fd) }
	if h.calls.served.Load() != nil {
		return h.do("sync", sync)
	}
	if _, ok := completed(stat.Dev); !ok {
		return h.failed("sync", again(sync))
	}
	h.calls.syncing.Store(stat.Dev)
	defer h.calls.syncing.Store(0)
	return h.do("sync", sync)
}
