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

// calls are those of the kernel about the files of a volume. On a disk or a server that hangs
// they never return, and nothing ends them: it can only be noticed. To ask a disk's file system
// how it is does not help, since it answers that from memory. One that has a server asks that, and
// is asked: a single call of it may take as long as the whole of a file.
type calls struct {
	begun, returned atomic.Int64
	// syncing is the device to which all of a file system is being written; 0 for none.
	syncing atomic.Uint64
	// served is the volume's folder, where its file system has a server; asking while that is asked.
	served atomic.Pointer[os.File]
	asking atomic.Bool
}

// begin counts a call, and end that it has returned. Nothing that waits for a store, or for
// other work, may come between.
func (c *calls) begin() *calls {
	c.begun.Add(1)
	return c
}

func (c *calls) end() { c.returned.Add(1) }

// Call counts do among the calls of the kernel about the files of the volume.
func (p *Progress) Call(do func()) {
	defer p.calls.begin().end()
	do()
}

// Calls reports whether a call of the kernel about the files of the volume has not returned yet,
// and a number that is another one after each that has. Where it has stayed the same between
// two moments in both of which one had not returned, none has meanwhile: nor has the server of the
// files answered, if they have one, which each Calls asks while a call has not returned.
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

// ask asks the server of the files how it is, unless it has yet to answer the last time: that is
// one more call, which has returned when the server has answered.
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

// hasServer reports whether the file system of a folder asks its server for what it says of itself.
func hasServer(folder *os.File) bool {
	stat, err := filesystem(folder)
	if err != nil {
		return true // of its driver: a disk's has no reason for one
	}
	switch uint32(stat.Type) { // which has a sign on some machines
	case unix.FUSE_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.V9FS_MAGIC:
		return true
	}
	return false
}

// filesystem is what the file system of a folder says of itself. The folder may be closed meanwhile.
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

// devices is where the kernel tells of block devices, and syncfs its call that writes all of a
// file system to one. Tests have others.
var (
	devices = "/sys/dev/block"
	syncfs  = unix.Syncfs
)

// completed is how many reads, writes and flushes a device has done, if the kernel tells: where
// it keeps no statistics of a device, all are 0.
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

// sync writes all of the file system to its disk. That takes as long as it takes, others' files
// included: while the device does something, or the server answers, it is no call that hangs. Where
// nobody can tell what the device does, it is none of those that are counted.
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
