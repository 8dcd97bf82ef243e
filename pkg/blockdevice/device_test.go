// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package blockdevice

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve serves a file in place of a device.
func serve(t *testing.T, content []byte, writable bool) (folder, path string) {
	t.Helper()
	folder, path = t.TempDir(), filepath.Join(t.TempDir(), "device")
	if content != nil {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- Serve(ctx, folder, path, writable) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return folder, path
}

func open(t *testing.T, folder string) *Device {
	t.Helper()
	d, err := Open(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestDevice: ranges are read, written and cleared, and none beyond the device.
func TestDevice(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	folder, path := serve(t, content, true)
	d := open(t, folder)
	if d.Size() != int64(len(content)) {
		t.Fatalf("it has %d bytes", d.Size())
	}
	for _, offset := range []int64{0, 1, 1000, d.Size() - 1, d.Size(), d.Size() + 1} {
		body, err := d.Read(t.Context(), offset)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		if want := content[min(offset, d.Size()):]; err != nil || body.Close() != nil || !bytes.Equal(got, want) {
			t.Errorf("from %d there are %d bytes, want %d: %v", offset, len(got), len(want), err)
		}
	}
	if err := d.Write(t.Context(), []byte("new"), 5); err != nil {
		t.Fatal(err)
	}
	if err := d.Write(t.Context(), []byte("end"), d.Size()-3); err != nil {
		t.Fatal(err)
	}
	copy(content[5:], "new")
	copy(content[len(content)-3:], "end")
	if err := d.Write(t.Context(), []byte("beyond"), d.Size()-5); err == nil || !strings.Contains(err.Error(), "exceeds the device") {
		t.Errorf("a write beyond the end: %v", err)
	}
	if err := d.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the device has something else: %v", err)
	}
	cleared, err := d.Clear(t.Context(), 0, d.Size())
	if got, _ := os.ReadFile(path); err != nil || cleared && !bytes.Equal(got, make([]byte, len(content))) || !cleared && !bytes.Equal(got, content) {
		t.Errorf("cleared is %t, %v", cleared, err)
	}
}

// TestReadOnly: a device of a backup is not written.
func TestReadOnly(t *testing.T) {
	folder, path := serve(t, []byte("content"), false)
	d := open(t, folder)
	if err := d.Write(t.Context(), []byte("x"), 0); err == nil {
		t.Error("it was written")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "content" {
		t.Errorf("it has %q, %v", got, err)
	}
}

// TestOpenWaits: a device may come after its client.
func TestOpenWaits(t *testing.T) {
	folder, path := serve(t, nil, false)
	time.AfterFunc(2*startLook, func() {
		if err := os.WriteFile(path, []byte("late"), 0o600); err != nil {
			t.Error(err)
		}
	})
	if d := open(t, folder); d.Size() != 4 {
		t.Errorf("it has %d bytes", d.Size())
	}
}

// TestReason: the server's words say why a device can't be opened, and the next request tries again.
func TestReason(t *testing.T) {
	s := &server{path: filepath.Join(t.TempDir(), "device")}
	defer s.close()
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		answer := httptest.NewRecorder()
		s.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, address, nil))
		if words := answer.Body.String(); answer.Code != want || want != http.StatusOK && !strings.Contains(words, s.path) {
			t.Errorf("the answer is %d with %q, want %d", answer.Code, words, want)
		}
		if err := os.WriteFile(s.path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLinksAreNotFollowed: the folder's owner can't lead the agent to another socket.
func TestLinksAreNotFollowed(t *testing.T) {
	folder, _ := serve(t, []byte("secret"), false)
	open(t, folder)
	other := t.TempDir()
	if err := os.Symlink(filepath.Join(folder, socketName), filepath.Join(other, socketName)); err != nil {
		t.Fatal(err)
	}
	if conn, err := dial(t.Context(), other); err == nil {
		conn.Close()
		t.Error("a link was followed")
	}
	plain := t.TempDir()
	if err := os.WriteFile(filepath.Join(plain, socketName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if conn, err := dial(t.Context(), plain); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file is used as a socket: %v %v", conn, err)
	}
}
