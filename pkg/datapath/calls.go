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

// calls counts the kernel's calls for a volume's files, since on a hanging disk or server they
// never return. A network file system answers statfs from its server, which shows that a long call
// is served; a disk's answers from memory, which proves nothing.
type calls struct {
	begun, returned atomic.Int64
	syncing         atomic.Uint64
	// served is the volume's folder if its file system has a server.
	served atomic.Pointer[os.File]
	asking atomic.Bool
}

// begin counts a call, end its return. Between them nothing may wait for a store or other work.
func (c *calls) begin() *calls {
	c.begun.Add(1)
	return c
}

func (c *calls) end() { c.returned.Add(1) }

// Call counts do as one of the kernel's calls.
func (p *Progress) Call(do func()) {
	defer p.calls.begin().end()
	do()
}

// Calls reports whether a call is pending, and returns a counter of returned calls and answers. If
// it is unchanged while a call is pending, none has returned. Meanwhile Calls also asks the server.
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

// ask asks the files' server, counted as a call, unless an answer is outstanding.
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

func hasServer(folder *os.File) bool {
	stat, err := filesystem(folder)
	if err != nil {
		return true // unknown drivers count as a server's; a disk's never fails here
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

// Tests replace both.
var (
	devices = "/sys/dev/block"
	syncfs  = unix.Syncfs
)

// completed returns a device's finished reads, writes and flushes; false without statistics.
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

// sync writes the whole file system to its disk, however long that takes. It counts as hanging
// while neither the device works nor the server answers, but not if both are unknown.
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
