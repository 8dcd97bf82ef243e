// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

func program(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holdfast")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// entries returns what the image's file system holds: content, or "-> target".
func entries(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	found := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = string(content)
		if h.Typeflag == tar.TypeSymlink {
			found[h.Name] = "-> " + h.Linkname
		}
		if h.Name == "holdfast" && h.Mode != 0o755 {
			t.Errorf("mode of the program is %o", h.Mode)
		}
	}
}

func TestAProgramIsTheEntryPoint(t *testing.T) {
	img, err := Program(program(t, "ELF"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/holdfast"}, config.Config.Entrypoint); diff != "" {
		t.Errorf("entry point (-want +got):\n%s", diff)
	}
	if got := entries(t, img)["holdfast"]; got != "ELF" {
		t.Errorf("the program is %q", got)
	}
}

func TestTheSameProgramMakesTheSameImage(t *testing.T) {
	digest := func(content string) string {
		t.Helper()
		img, err := Program(program(t, content))
		if err != nil {
			t.Fatal(err)
		}
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	first, again, other := digest("a"), digest("a"), digest("b")
	if first != again {
		t.Error("two images of one program differ")
	}
	if first == other {
		t.Error("images of two programs are the same")
	}
}

func TestShellHasItsApplets(t *testing.T) {
	img, err := Shell(program(t, "ELF"), []string{"busybox", "sh", "cat"})
	if err != nil {
		t.Fatal(err)
	}
	found := entries(t, img)
	for path, want := range map[string]string{"bin/busybox": "ELF", "bin/sh": "-> busybox", "bin/cat": "-> busybox"} {
		if found[path] != want {
			t.Errorf("%s is %q, want %q", path, found[path], want)
		}
	}
}
