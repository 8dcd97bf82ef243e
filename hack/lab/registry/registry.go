// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registry runs a registry of container images in a lab, from which its nodes pull every
// image by its name. It keeps them in memory.
package registry

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
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/holdfast-io/holdfast/hack/lab/controlplane"
	"github.com/holdfast-io/holdfast/hack/lab/process"
	"github.com/holdfast-io/holdfast/hack/lab/workdir"
)

// ServeCommand is the subcommand of `lab registry` that calls Serve.
const ServeCommand = "serve"

// Name is the name of its process.
const Name = "registry"

// Up starts the registry, and returns its address once it takes connections.
func Up(ctx context.Context, dir workdir.Dir, host string) (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	ports, err := controlplane.FreePorts(host, 1)
	if err != nil {
		return "", err
	}
	address := net.JoinHostPort(host, strconv.Itoa(ports[0]))
	p, err := process.Start(dir.Run(), process.Spec{
		Name: Name,
		Path: own,
		Args: []string{"registry", ServeCommand, "--port", address},
		Log:  dir.Log(Name),
	})
	if err != nil {
		return "", err
	}
	return address, p.AwaitConnection(ctx, "tcp", address)
}

// Running returns the address of the registry that Up has started.
func Running(dir workdir.Dir) (string, error) {
	p, err := process.Load(dir.Run(), Name)
	if err != nil {
		return "", err
	}
	if !p.Running() {
		return "", p.Ended()
	}
	return p.Args[len(p.Args)-1], nil
}

// Down stops the registry; its images are gone.
func Down(ctx context.Context, dir workdir.Dir) error {
	return process.StopNamed(ctx, dir.Run(), Name, 10*time.Second)
}

// Serve runs a registry at an address until the context ends.
func Serve(ctx context.Context, address string) error {
	server := &http.Server{Addr: address, Handler: registry.New(), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Push gives an image to a registry, under a name whose host does not matter.
func Push(ctx context.Context, address, tag string, image v1.Image) error {
	if err := push(ctx, address, tag, image); err != nil {
		return fmt.Errorf("push %s to the registry at %s: %w", tag, address, err)
	}
	return nil
}

func push(ctx context.Context, address, tag string, image v1.Image) error {
	t, err := name.NewTag(tag, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("%w; give a name like ghcr.io/holdfast-io/holdfast:dev", err)
	}
	repository := "http://" + address + "/v2/" + t.RepositoryStr()
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		return err
	}
	for _, layer := range append(layers, config) {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		content, err := layer.Compressed()
		if err != nil {
			return err
		}
		if err := send(ctx, http.MethodPost, repository+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", content); err != nil {
			return err
		}
	}
	manifest, err := image.RawManifest()
	if err != nil {
		return err
	}
	kind, err := image.MediaType()
	if err != nil {
		return err
	}
	return send(ctx, http.MethodPut, repository+"/manifests/"+t.TagStr(), string(kind), io.NopCloser(bytes.NewReader(manifest)))
}

// send sends what the registry keeps, and closes it.
func send(ctx context.Context, method, url, kind string, body io.ReadCloser) error {
	content, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(content))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		answer, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s %s: status %s, want 201: %s", method, url, response.Status, answer)
	}
	return nil
}
