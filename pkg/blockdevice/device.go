// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package blockdevice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startTimeout = time.Minute
	startLook    = 200 * time.Millisecond
	mostWords    = 1000
	connections  = 32
	address      = "http://device/"
)

// Device is a block device that a pod serves. It is safe for concurrent use.
type Device struct {
	client *http.Client
	size   int64
}

// Open connects to the server in a folder, which may be starting. It follows no link from the
// folder, whose owner is not trusted.
func Open(ctx context.Context, folder string) (*Device, error) {
	d := &Device{client: clientOf(folder)}
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		response, err := d.do(limited, http.MethodGet, nil, nil)
		if err == nil {
			d.size = response.ContentLength
			return d, response.Body.Close()
		}
		select {
		case <-time.After(startLook):
		case <-limited.Done():
			d.Close()
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("the pod that holds the block device did not serve it within %s: %w", startTimeout, err)
		}
	}
}

func clientOf(folder string) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial(ctx, folder)
	}}}
}

func dial(ctx context.Context, folder string) (net.Conn, error) {
	in, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: folder, Err: err}
	}
	defer unix.Close(in)
	socket, err := unix.Openat2(in, socketName, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: folder + "/" + socketName, Err: err}
	}
	defer unix.Close(socket)
	var stat unix.Stat_t
	if err := unix.Fstat(socket, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s/%s is no socket", folder, socketName)
	}
	// By the open socket, not its path, which may name another by now.
	return new(net.Dialer).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(socket))
}

func (d *Device) do(ctx context.Context, method string, headers map[string]string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for key, value := range headers {
		request.Header.Set(key, value)
	}
	response, err := d.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < 300 {
		return response, nil
	}
	defer response.Body.Close()
	words, _ := io.ReadAll(io.LimitReader(response.Body, mostWords))
	return nil, &failure{response.StatusCode, strings.TrimSpace(string(words))}
}

type failure struct {
	code  int
	words string
}

func (f *failure) Error() string {
	if f.words == "" {
		return http.StatusText(f.code)
	}
	return f.words
}

func (d *Device) write(ctx context.Context, method string, offset, length int64, body []byte) error {
	headers := map[string]string{}
	if length > 0 {
		headers[contentRange] = fmt.Sprintf("bytes %d-%d/*", offset, offset+length-1)
	}
	response, err := d.do(ctx, method, headers, body)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body) // so that the connection is used again
	return errors.Join(err, response.Body.Close())
}

// Size returns the device's bytes.
func (d *Device) Size() int64 { return d.size }

// Read returns the bytes from an offset on. The caller closes them.
func (d *Device) Read(ctx context.Context, offset int64) (io.ReadCloser, error) {
	if offset >= d.size {
		return io.NopCloser(strings.NewReader("")), nil
	}
	response, err := d.do(ctx, http.MethodGet, map[string]string{"Range": fmt.Sprintf("bytes=%d-", offset)}, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusPartialContent || response.ContentLength != d.size-offset {
		return nil, errors.Join(fmt.Errorf("the device gave %d bytes from byte %d, want %d", response.ContentLength, offset, d.size-offset), response.Body.Close())
	}
	return response.Body, nil
}

// Write writes at an offset.
func (d *Device) Write(ctx context.Context, b []byte, offset int64) error {
	if len(b) == 0 {
		return nil
	}
	return d.write(ctx, http.MethodPut, offset, int64(len(b)), b)
}

// Clear makes a range zeros without writing them. It returns false if the device can't.
func (d *Device) Clear(ctx context.Context, offset, length int64) (bool, error) {
	err := d.write(ctx, http.MethodDelete, offset, length, nil)
	if of, ok := errors.AsType[*failure](err); ok && of.code == http.StatusNotImplemented {
		return false, nil
	}
	return err == nil, err
}

// Sync writes all to the disk.
func (d *Device) Sync(ctx context.Context) error {
	return d.write(ctx, http.MethodPost, 0, 0, nil)
}

// Close ends the idle connections.
func (d *Device) Close() { d.client.CloseIdleConnections() }
