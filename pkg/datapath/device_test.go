// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/blockdevice"
)

// serveDevice serves a file in place of a device, and returns the folder of the socket.
func serveDevice(t *testing.T, content []byte) (folder, path string) {
	t.Helper()
	folder, path = t.TempDir(), filepath.Join(t.TempDir(), "device")
	write(t, path, string(content))
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- blockdevice.Serve(ctx, folder, path, true) }()
	t.Cleanup(func() {
		stop()
		must(t, <-served)
	})
	return folder, path
}

// withoutHoles serves what another folder serves, as a device that can't discard. It returns its folder.
func withoutHoles(t *testing.T, of string) string {
	t.Helper()
	folder := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(folder, "device.sock"))
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "device"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(of, "device.sock"))
	}}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			http.Error(w, "operation not supported", http.StatusNotImplemented)
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return folder
}

func (s store) uploadDevice(t *testing.T, content []byte) UploadResult {
	t.Helper()
	folder, _ := serveDevice(t, content)
	var p Progress
	result, err := Upload(t.Context(), s.client(t), UploadRequest{Path: folder, Device: true, Source: web}, &p)
	must(t, err)
	if result.TotalBytes != int64(len(content)) || result.Files != 1 || p.Done() != result.TotalBytes {
		t.Errorf("uploaded %+v, %d bytes are done, want %d", result, p.Done(), len(content))
	}
	return result
}

// image is the content of a device with data, zeros and parts that are uploaded in parallel.
func image() []byte {
	content := make([]byte, partsAbove+2<<20+512)
	random := rand.NewChaCha8([32]byte{1})
	for _, at := range []int{0, 5 << 20, partSize + 17, partsAbove - 100, len(content) - 1000} {
		_, _ = random.Read(content[at : at+1000])
	}
	return content
}

// TestDeviceRoundTrip: a device gets each byte back, also over other content, and in a larger device. Only what
// the repository lacks is stored.
func TestDeviceRoundTrip(t *testing.T) {
	s, content := newStore(t), image()
	first := s.uploadDevice(t, content)
	content[7<<20] = 1
	second := s.uploadDevice(t, content)
	if second.IncrementalBytes == 0 || second.IncrementalBytes > 2<<20 {
		t.Errorf("%d bytes were stored for a change of one", second.IncrementalBytes)
	}
	if first.SnapshotID == second.SnapshotID {
		t.Error("the snapshots are one")
	}
	for name, test := range map[string]struct {
		larger int
		full   bool // no bytes can be discarded
	}{
		"used": {}, "larger": {larger: 8<<20 + 17}, "used, and full": {full: true}, "larger, and full": {8<<20 + 17, true},
	} {
		size, moved := len(content)+test.larger, int64(len(content))
		folder, path := serveDevice(t, bytes.Repeat([]byte{7}, size))
		if test.full {
			folder, moved = withoutHoles(t, folder), int64(size)
		}
		var p Progress
		restored, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: second.SnapshotID, Path: folder, Device: true}, &p)
		must(t, err)
		got, err := os.ReadFile(path)
		must(t, err)
		if want := append(slices.Clone(content), make([]byte, test.larger)...); !bytes.Equal(got, want) {
			t.Errorf("%s: the device has something else", name)
		}
		if restored.TotalBytes != int64(len(content)) || restored.Files != 1 || p.Done() != moved || p.Total() != moved {
			t.Errorf("%s: restored %+v, %d of %d bytes are done, want %d", name, restored, p.Done(), p.Total(), moved)
		}
	}
}

// TestDeviceOverOldBytes: a device that can't be cleared at once gets its zeros too.
func TestDeviceOverOldBytes(t *testing.T) {
	content := make([]byte, 3*sparseBlock)
	content[5] = 1
	folder, path := serveDevice(t, bytes.Repeat([]byte{7}, len(content)))
	device, err := blockdevice.Open(t.Context(), folder)
	must(t, err)
	defer device.Close()
	var p Progress
	for _, used := range []bool{false, true} {
		must(t, copySparse(t.Context(), &deviceTarget{t.Context(), device, &p, used}, bytes.NewReader(content), 0, int64(len(content)), int64(len(content)), &p))
		got, err := os.ReadFile(path)
		must(t, err)
		if bytes.Equal(got, content) != used {
			t.Errorf("used %t: the zeros are written: %t", used, !used)
		}
	}
}

// TestDeviceRefused: what is not of a device, and devices that are too small, are errors.
func TestDeviceRefused(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	device := s.uploadDevice(t, make([]byte, 1<<20)).SnapshotID
	write(t, filepath.Join(dir, "a"), "a")
	write(t, filepath.Join(dir, "b"), "b")
	files := s.upload(t, dir, web).SnapshotID
	for name, test := range map[string]struct {
		id   string
		only []string
		size int
		want string
	}{
		"a snapshot of files": {id: files, size: 1 << 20, want: "of a block device it would have one file"},
		"a device too small":  {id: device, size: 1<<20 - 1, want: "make its claim larger"},
		"a part":              {id: device, only: []string{deviceName}, size: 1 << 20, want: "leave out the paths"},
	} {
		folder, _ := serveDevice(t, make([]byte, test.size))
		_, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: test.id, Path: folder, Device: true, Only: test.only}, new(Progress))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestShortDevice: a device that ends early is an error, not a small one.
func TestShortDevice(t *testing.T) {
	folder, path := serveDevice(t, make([]byte, 1<<20))
	device, err := blockdevice.Open(t.Context(), folder)
	must(t, err)
	defer device.Close()
	must(t, os.Truncate(path, 1000))
	reader, err := (&deviceFile{device: device, progress: new(Progress)}).Open(t.Context())
	must(t, err)
	defer reader.Close()
	if _, err := io.Copy(io.Discard, reader); err == nil {
		t.Error("it was read as a whole one")
	}
}
