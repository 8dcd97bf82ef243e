// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package blockdevice serves a block device over a socket, and reads and writes it there. An
// unprivileged pod serves its own volume's device, the only one that the kubelet lets it open. The
// node agent may open no devices, and finds the socket in the pod's emptyDir.
//
// The protocol is HTTP: GET reads a range, PUT writes one, DELETE makes one zeros, POST writes all
// to the disk.
package blockdevice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	socketName   = "device.sock"
	closeTimeout = 5 * time.Second
	contentRange = "Content-Range"
)

// Serve serves a device at a socket in a folder until ctx ends. If the device can't be opened, a
// request gets the reason, and the next tries again.
func Serve(ctx context.Context, folder, device string, writable bool) error {
	path := filepath.Join(folder, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier server: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("serve the device %s: %w", device, err)
	}
	// The agent may lack the right to use other users' files. The folder is the pod's own.
	if err := os.Chmod(path, 0o666); err != nil {
		return errors.Join(fmt.Errorf("serve the device %s: %w", device, err), listener.Close())
	}
	s := &server{path: device, writable: writable}
	defer s.close()
	served := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if served.Shutdown(ending) != nil {
			_ = served.Close()
		}
	})
	defer stop()
	if err := served.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the device %s: %w", device, err)
	}
	return nil
}

type server struct {
	path     string
	writable bool

	mu   sync.Mutex
	file *os.File
}

func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close()
	}
}

func (s *server) open() (*os.File, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		flags := os.O_RDONLY
		if s.writable {
			flags = os.O_RDWR
		}
		file, err := os.OpenFile(s.path, flags, 0)
		if errors.Is(err, os.ErrPermission) {
			return nil, 0, fmt.Errorf("%w: the user %d may not open it: allow the pod to run as root, or set device_ownership_from_security_context of the nodes' container runtime", err, os.Getuid())
		}
		if err != nil {
			return nil, 0, err
		}
		s.file = file
	}
	size, err := s.file.Seek(0, io.SeekEnd)
	return s.file, size, err
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	file, size, err := s.open()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(file, 0, size))
		return
	case http.MethodPost:
		err = file.Sync()
	case http.MethodPut, http.MethodDelete:
		var offset, length int64
		if offset, length, err = rangeOf(r, size); err != nil {
			http.Error(w, err.Error(), http.StatusRequestedRangeNotSatisfiable)
			return
		}
		if r.Method == http.MethodDelete {
			err = zero(file, offset, length)
			break
		}
		var n int64
		if n, err = io.Copy(io.NewOffsetWriter(file, offset), io.LimitReader(r.Body, length)); err == nil && n < length {
			err = io.ErrUnexpectedEOF
		}
	default:
		http.Error(w, "no such method", http.StatusMethodNotAllowed)
		return
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		http.Error(w, err.Error(), http.StatusNotImplemented)
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func rangeOf(r *http.Request, size int64) (offset, length int64, err error) {
	var last int64
	text := r.Header.Get(contentRange)
	if _, err := fmt.Sscanf(text, "bytes %d-%d/*", &offset, &last); err != nil || offset < 0 || last < offset {
		return 0, 0, fmt.Errorf("the range is %q, want bytes FIRST-LAST/*", text)
	}
	if last >= size {
		return 0, 0, fmt.Errorf("the range %q exceeds the device, which has %d bytes", text, size)
	}
	return offset, last - offset + 1, nil
}

// zero makes a range zeros without writing them. It fails with EOPNOTSUPP if the device can't.
func zero(file *os.File, offset, length int64) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	controlled := conn.Control(func(fd uintptr) {
		for {
			if err = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(controlled, err)
}
