// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image makes container images out of static programs, without a
// container engine.
package image

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The lab's own images. PublicBusybox is the name that pages for readers use.
const (
	Pause         = "holdfast.io/lab-pause:dev"
	Busybox       = "holdfast.io/lab-busybox:dev"
	PublicBusybox = "docker.io/library/busybox:latest"
)

// Program is the image of one static program, its entry point, in /.
func Program(path string) (v1.Image, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	entry := "/" + filepath.Base(path)
	return build(v1.Config{Entrypoint: []string{entry}, WorkingDir: "/"}, append(base(), file{name: entry[1:], mode: 0o755, content: content}))
}

// Shell is the image of a static busybox and its applets.
func Shell(path string, applets []string) (v1.Image, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	files := append(base(),
		file{name: "bin/", mode: 0o755},
		file{name: "bin/busybox", mode: 0o755, content: content})
	for _, a := range applets {
		if a != "busybox" {
			files = append(files, file{name: "bin/" + a, link: "busybox"})
		}
	}
	return build(v1.Config{Cmd: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}, WorkingDir: "/"}, files)
}

// file is an entry of a layer: a folder if its name ends with a slash, a
// symbolic link if link is set.
type file struct {
	name    string
	mode    int64
	content []byte
	link    string
}

// base is what a program may expect anywhere: a folder for temporary files,
// and names for the users that it may run as.
func base() []file {
	return []file{
		{name: "tmp/", mode: 0o1777},
		{name: "etc/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnobody:x:65534:\n")},
	}
}

func build(config v1.Config, files []file) (v1.Image, error) {
	var layer bytes.Buffer
	if err := writeLayer(&layer, files); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(img, cf)
}

// writeLayer leaves all times zero, so the same files make the same image.
func writeLayer(w io.Writer, files []file) error {
	tw := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		switch {
		case f.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		case f.name[len(f.name)-1] == '/':
			h.Typeflag = tar.TypeDir
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(f.content); err != nil {
			return err
		}
	}
	return tw.Close()
}
