// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// expectWaiting waits until a call waits for an answer, or none does, and returns the answers.
func expectWaiting(t *testing.T, p *Progress, want bool) int64 {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		waiting, answers := p.Calls()
		if waiting == want {
			return answers
		}
		select {
		case <-deadline:
			t.Fatalf("a call waits: %v, want %v", waiting, want)
		case <-time.After(time.Millisecond):
		}
	}
}

// TestCallsThatDoNotReturn: a call is seen while it has not returned. A pipe without anyone at its
// other end is what a file is on a disk that hangs.
func TestCallsThatDoNotReturn(t *testing.T) {
	dir, p := t.TempDir(), new(Progress)
	path := filepath.Join(dir, "pipe")
	must(t, syscall.Mkfifo(path, 0o600))
	root, err := openConfined(Folder{Path: dir}, &p.calls)
	must(t, err)
	defer root.Close()

	opened := make(chan handle)
	go func() {
		h, err := root.handle("pipe", unix.O_RDONLY)
		if err != nil {
			t.Error(err)
		}
		opened <- h
	}()
	before := expectWaiting(t, p, true)
	other, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	defer other.Close()
	pipe := <-opened
	if after := expectWaiting(t, p, false); after <= before {
		t.Errorf("%d answers before, and %d after the file was opened", before, after)
	}

	// What the uploader reads of a file.
	reader := &volumeReader{handle: pipe, entry: &volumeFile{volumeEntry{volume: &volume{root: root, notes: new(notes)}}}, done: func() {}}
	read := make(chan error)
	go func() {
		_, err := reader.Read(make([]byte, 10))
		read <- err
	}()
	expectWaiting(t, p, true)
	_, err = other.WriteString("content")
	must(t, err)
	must(t, <-read)
	expectWaiting(t, p, false)
	must(t, reader.Close())

	p.Call(func() { expectWaiting(t, p, true) })
	expectWaiting(t, p, false)
}

// TestCallsAreCounted: an upload and a restore count what they ask of the kernel for each file, and
// all of it has returned when they have.
func TestCallsAreCounted(t *testing.T) {
	s := newStore(t)
	count := func(files int) (upload, restore int64) {
		dir, target := t.TempDir(), t.TempDir()
		for i := range files {
			name := filepath.Join(dir, fmt.Sprint("folder-", i), "file")
			write(t, name, fmt.Sprint("content ", i))
			must(t, os.Symlink("file", filepath.Join(filepath.Dir(name), "link")))
			must(t, os.Link(name, filepath.Join(dir, fmt.Sprint("name-", i))))
			must(t, unix.Setxattr(name, "user.name", []byte("value"), 0))
		}
		up, down := new(Progress), new(Progress)
		uploaded, err := Upload(t.Context(), s.open(t), UploadRequest{Path: dir, Source: Source{Namespace: "app", Pod: fmt.Sprint("pod-", files), Volume: "data"}}, up)
		must(t, err)
		_, err = Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: uploaded.SnapshotID, Path: target}, down)
		must(t, err)
		return expectWaiting(t, up, false), expectWaiting(t, down, false)
	}
	fewUp, fewDown := count(1)
	moreUp, moreDown := count(11)
	// Each of the four is looked at, and its attributes are. Each name is opened, looked at, read,
	// looked at and closed; the link is read; the folder is opened, listed until there is no more,
	// and closed.
	if got := (moreUp - fewUp) / 10; got < 23 {
		t.Errorf("an upload has counted %d calls for a folder with a file, a link and another name", got)
	}
	// The folder is made, opened, its attributes are looked at, and it is closed. The file is made,
	// written and closed, and gets an attribute. Both get their owner, mode and time. The link
	// is made, and gets its owner and, in its folder, its time. The other name is made.
	if got := (moreDown - fewDown) / 10; got < 20 {
		t.Errorf("a restore has counted %d calls for a folder with a file, a link and another name", got)
	}
}

// TestSyncOfABusyDisk: to write a file system to its disk may take long: what the disk does meanwhile
// are answers, and so are those of a server. Where that is not known, nobody waits for one.
func TestSyncOfABusyDisk(t *testing.T) {
	defer func(at string, call func(int) error) { devices, syncfs = at, call }(devices, syncfs)
	devices = t.TempDir()
	p := new(Progress)
	during := uint64(0)
	syncfs = func(int) error { during = p.calls.syncing.Load(); return nil }
	device := filepath.Join(devices, "253:7", "stat")
	does := func(reads, writes, flushes, inFlight int) (answers int64) {
		fields := strings.Fields(strings.Repeat("1000 ", 17))
		for i, n := range map[int]int{0: reads, 4: writes, 15: flushes, 8: inFlight} {
			fields[i] = fmt.Sprint(n)
		}
		write(t, device, "  "+strings.Join(fields, "  ")+"\n")
		p.Call(func() { _, answers = p.Calls() })
		return answers - p.calls.returned.Load() + 1 // without this call itself
	}
	must(t, os.MkdirAll(filepath.Dir(device), 0o755))
	p.calls.syncing.Store(unix.Mkdev(253, 7))
	quiet := does(1, 2, 3, 4)
	if got := does(1, 2, 3, 5); got != quiet {
		t.Error("requests that wait are answers")
	}
	for name, got := range map[string]int64{"read": does(2, 2, 3, 4), "write": does(1, 3, 3, 4), "flush": does(1, 2, 4, 4)} {
		if got == quiet {
			t.Errorf("a %s is no answer", name)
		}
	}
	p.calls.syncing.Store(0)
	if got := does(9, 9, 9, 9); got != 0 {
		t.Errorf("what a disk does is an answer when nothing is written to it: %d", got)
	}

	dir := t.TempDir()
	root, err := openConfined(Folder{Path: dir}, &p.calls)
	must(t, err)
	defer root.Close()
	folder, err := root.handle(".", unix.O_RDONLY)
	must(t, err)
	defer folder.close()
	stat, err := folder.stat()
	must(t, err)
	sync := func() int64 {
		_, before := p.Calls()
		must(t, folder.sync())
		_, after := p.Calls()
		return after - before
	}
	if got := sync(); got != 1 || during != 0 { // that which finds the device
		t.Errorf("a device that nobody knows: %d calls", got)
	}
	known := filepath.Join(devices, fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev)), "stat")
	write(t, known, "0 0 0 0 0")
	if got := sync(); got != 1 || during != 0 {
		t.Errorf("a device of which no statistics are kept: %d calls", got)
	}
	write(t, known, "1 1 1 1 1")
	if got := sync(); got != 2 || during != stat.Dev || p.calls.syncing.Load() != 0 {
		t.Errorf("a device that is known: %d calls, of device %d while it is written to, and %d after", got, during, p.calls.syncing.Load())
	}
	p.calls.served.Store(root.top)
	if got := sync(); got != 2 || during != 0 {
		t.Errorf("a server: %d calls, of device %d while it is written to", got, during)
	}
}
