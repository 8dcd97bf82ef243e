// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package s3 runs an S3 server in a lab: versitygw, which keeps buckets as
// folders.
package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/hack/lab/binaries"
	"github.com/holdfast-io/holdfast/hack/lab/controlplane"
	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// Server says how to reach the S3 server of a lab.
type Server struct {
	// Endpoint is its URL. Its region is us-east-1, buckets are in the path.
	Endpoint string
	// Credentials is a file in the format of the AWS tools, profile default.
	Credentials string
	// Buckets is the folder whose folders are the buckets.
	Buckets string
}

const (
	name    = "s3"
	program = "versitygw"
)

// Up starts the server, unless it runs, and returns once it takes connections.
// The lab's nodes reach it too. Its data goes with the lab.
func Up(ctx context.Context, dir workdir.Dir) (Server, error) {
	state, err := dir.Running()
	if err != nil {
		return Server{}, err
	}
	if err := binaries.Missing(state.Bin, program); err != nil {
		return Server{}, err
	}
	p, err := process.Load(dir.Run(), name)
	if err == nil && p.Running() {
		return server(dir, p), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Server{}, err
	}
	ports, err := controlplane.FreePorts(state.Address, 1)
	if err != nil {
		return Server{}, err
	}
	address := net.JoinHostPort(state.Address, strconv.Itoa(ports[0]))
	access, secret := rand.Text(), rand.Text()
	// A bucket has versions only if a client puts versioning or object lock on.
	versions := dir.Path("s3", "versions")
	for _, d := range []string{buckets(dir), versions} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return Server{}, err
		}
	}
	backend := []string{"posix", "--versioning-dir", versions}
	if unix.Setxattr(versions, "user.holdfast", nil, 0) != nil {
		// The file system has no extended attributes. In files beside the objects, versitygw 1.8
		// keeps the mark of a deletion when the object is written again.
		metadata := dir.Path("s3", "metadata")
		if err := os.MkdirAll(metadata, 0o755); err != nil {
			return Server{}, err
		}
		backend = append(backend, "--sidecar", metadata)
	}
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", access, secret)
	if err := os.WriteFile(credentials(dir), []byte(text), 0o600); err != nil {
		return Server{}, err
	}
	p, err = process.Start(dir.Run(), process.Spec{
		Name: name,
		Path: filepath.Join(state.Bin, program),
		Args: append(append([]string{"--port", address, "--quiet"}, backend...), buckets(dir)),
		// Not as arguments, which every user of the machine can read.
		Env: []string{"ROOT_ACCESS_KEY=" + access, "ROOT_SECRET_KEY=" + secret},
		Log: dir.Log(name),
	})
	if err != nil {
		return Server{}, err
	}
	return server(dir, p), p.AwaitConnection(ctx, "tcp", address)
}

// Down stops the server; the buckets stay until the lab goes.
func Down(ctx context.Context, dir workdir.Dir) error {
	return process.StopNamed(ctx, dir.Run(), name, 10*time.Second)
}

func server(dir workdir.Dir, p *process.Process) Server {
	return Server{Endpoint: "http://" + p.Args[1], Credentials: credentials(dir), Buckets: buckets(dir)}
}

func credentials(dir workdir.Dir) string { return dir.Path("s3", "credentials") }

func buckets(dir workdir.Dir) string { return dir.Path("s3", "buckets") }
