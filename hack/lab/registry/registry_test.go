// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

// TestPush gives an image to a registry, and asks for it as a node does.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	image, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(server.URL, "http://")
	if err := Push(t.Context(), address, "ghcr.io/holdfast-io/holdfast:dev", image); err != nil {
		t.Fatal(err)
	}
	// Containerd says for which host it asks.
	response, err := http.Get(server.URL + "/v2/holdfast-io/holdfast/manifests/dev?ns=ghcr.io")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	want, err := image.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) || response.Header.Get("Docker-Content-Digest") == "" {
		t.Errorf("got %s, %s", response.Status, got)
	}
	for tag, says := range map[string]string{"holdfast": "give a name like", "docker.io/library/busybox:x@y": "give a name like"} {
		if err := Push(t.Context(), address, tag, image); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want an error that says %q", tag, err, says)
		}
	}
	server.Close()
	if err := Push(t.Context(), address, "ghcr.io/holdfast-io/holdfast:dev", image); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("without a registry: got %v, want an error with its address", err)
	}
}

// TestServe: the registry ends with its context, without an error.
func TestServe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Serve(ctx, "127.0.0.1:0") }()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := Serve(t.Context(), "nowhere:x"); err == nil {
		t.Error("an address that is none was accepted")
	}
}
