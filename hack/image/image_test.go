// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// makeImage runs the command for two programs, and returns what it prints.
func makeImage(t *testing.T, image string, more ...string) string {
	t.Helper()
	args := []string{"-name=" + image, "-revision=abc", "-created=1790000000"}
	for _, architecture := range []string{"arm64", "amd64"} {
		path := filepath.Join(t.TempDir(), architecture)
		if err := os.WriteFile(path, []byte("program for "+architecture), 0o755); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-program="+architecture+"="+path)
	}
	var out bytes.Buffer
	if err := run(t.Context(), append(args, more...), &out); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

// TestTheSameProgramsMakeTheSameImage makes an image twice: digest and archive are equal.
func TestTheSameProgramsMakeTheSameImage(t *testing.T) {
	var printed []string
	var archives [][]byte
	for range 2 {
		path := filepath.Join(t.TempDir(), "image.tar")
		printed = append(printed, makeImage(t, "ghcr.io/holdfast-io/holdfast:v1.0.0", "-archive="+path))
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, content)
	}
	if printed[0] != printed[1] || !strings.HasPrefix(printed[0], "ghcr.io/holdfast-io/holdfast:v1.0.0@sha256:") {
		t.Errorf("got %q, and again %q", printed[0], printed[1])
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of one image differ")
	}
}

// TestAnImageIsPushed reads an image back from a registry, as a node does: for each
// architecture its program, run by a user without rights, with authorities to trust.
func TestAnImageIsPushed(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	printed := makeImage(t, strings.TrimPrefix(server.URL, "http://")+"/holdfast-io/holdfast:v1.0.0", "-push")
	reference, err := name.ParseReference(printed)
	if err != nil {
		t.Fatal(err)
	}
	for _, architecture := range []string{"amd64", "arm64"} {
		image, err := remote.Image(reference, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(config.OS, config.Architecture, config.Config.User, config.Config.Entrypoint); got != "linux"+architecture+"65532:65532[/holdfast]" {
			t.Errorf("%s: got %s", architecture, got)
		}
		for label, want := range map[string]string{"version": "v1.0.0", "revision": "abc", "created": "2026-09-21T14:13:20Z", "licenses": "Apache-2.0", "source": "https://github.com/holdfast-io/holdfast"} {
			if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
				t.Errorf("%s: the label %s is %q, want %q", architecture, label, got, want)
			}
		}
		files := contents(t, image)
		if got := string(files["holdfast"]); got != "program for "+architecture {
			t.Errorf("%s: the program is %q", architecture, got)
		}
		trusted := x509.NewCertPool()
		if !trusted.AppendCertsFromPEM(files[certificates]) {
			t.Errorf("%s: no certificates in %s", architecture, certificates)
		}
		// The authorities of the largest stores, which are far from all.
		for _, authority := range []string{"Amazon Root CA 1", "GTS Root R1", "DigiCert Global Root G2", "ISRG Root X1"} {
			if !bytes.Contains(bytes.Join(subjects(trusted), nil), []byte(authority)) {
				t.Errorf("%s: %s is not trusted", architecture, authority)
			}
		}
	}
}

// TestWhatMakesNoImage: wrong flags are refused before anything is made.
func TestWhatMakesNoImage(t *testing.T) {
	for says, args := range map[string][]string{
		"give one like":       {"-name=holdfast", "-push"},
		"--archive or --push": {"-name=ghcr.io/holdfast-io/holdfast:v1"},
		"needs a program":     {"-name=ghcr.io/holdfast-io/holdfast:v1", "-archive=" + filepath.Join(t.TempDir(), "x")},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: got %v, want an error that says %q", args, err, says)
		}
	}
}

// contents returns the files of an image.
func contents(t *testing.T, image v1.Image) map[string][]byte {
	t.Helper()
	r := mutate.Extract(image)
	defer r.Close()
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// subjects are the names of the authorities of a pool.
func subjects(pool *x509.CertPool) [][]byte {
	//lint:ignore SA1019 The pool has no authorities of the system, which this would leave out.
	return pool.Subjects()
}
