// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Program is the program of the image for one architecture.
type Program struct {
	Architecture string
	Content      []byte
}

// Labels say of an image which one it is.
type Labels struct {
	Version, Revision string
	Created           time.Time
}

const (
	// user is who the program runs as, unless a pod says otherwise. The number has no name
	// outside of the image, and kubelet needs a number for runAsNonRoot.
	user = "65532:65532"
	// certificates is where Go's programs look for authorities.
	certificates = "etc/ssl/certs/ca-certificates.crt"
)

// Build makes an image for several architectures. Its layers hold a program, the
// certificates of public authorities, and names for the users; there is nothing below them.
func Build(programs []Program, labels Labels) (v1.ImageIndex, error) {
	if len(programs) == 0 {
		return nil, errors.New("an image needs a program: give --program=amd64=FILE")
	}
	annotations := map[string]string{
		"org.opencontainers.image.title":       "holdfast",
		"org.opencontainers.image.description": "Backs up Kubernetes: objects and volume data, with a queue that everyone can see",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/holdfast-io/holdfast",
		"org.opencontainers.image.version":     labels.Version,
		"org.opencontainers.image.revision":    labels.Revision,
		"org.opencontainers.image.created":     labels.Created.Format(time.RFC3339),
	}
	base, err := layer(labels.Created, baseFiles())
	if err != nil {
		return nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, program := range programs {
		image, err := build(program, base, annotations, labels.Created)
		if err != nil {
			return nil, fmt.Errorf("the image for %s: %w", program.Architecture, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: program.Architecture}},
		})
	}
	return mutate.Annotations(index, annotations).(v1.ImageIndex), nil
}

func build(program Program, base v1.Layer, annotations map[string]string, created time.Time) (v1.Image, error) {
	own, err := layer(created, []file{{name: "holdfast", mode: 0o755, content: program.Content}})
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: base, History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "certificates of public authorities, and users"}},
		mutate.Addendum{Layer: own, History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "holdfast"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", program.Architecture, v1.Time{Time: created}
	config.Config = v1.Config{Entrypoint: []string{"/holdfast"}, User: user, WorkingDir: "/", Labels: annotations}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, annotations).(v1.Image), nil
}

// Save writes an image as an OCI archive, under its name.
func Save(path string, tag name.Tag, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	folder := filepath.Join(dir, "layout")
	written, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	// Who reads the archive takes the name from here.
	err = written.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          tag.Name(),
		"org.opencontainers.image.ref.name": tag.TagStr(),
	}))
	if err != nil {
		return err
	}
	archive, err := os.Create(filepath.Join(dir, "archive"))
	if err != nil {
		return err
	}
	err = writeFolder(archive, folder)
	if err := errors.Join(err, archive.Close()); err != nil {
		return err
	}
	return os.Rename(archive.Name(), path)
}

// writeFolder writes the files of a folder in their order, without what differs from one
// machine to the next.
func writeFolder(w io.Writer, folder string) error {
	archive := tar.NewWriter(w)
	err := fs.WalkDir(os.DirFS(folder), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(folder, path))
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = archive.Write(content)
		return err
	})
	return errors.Join(err, archive.Close())
}

// file is an entry of a layer: a folder if its name ends with a slash.
type file struct {
	name    string
	mode    int64
	content []byte
}

// baseFiles are what a program may expect anywhere: authorities to trust, a folder for temporary
// files, and names for the users that it may run as.
func baseFiles() []file {
	return []file{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nholdfast:x:65532:\n")},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\nholdfast:x:65532:65532:holdfast:/:/sbin/nologin\n")},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: certificates, mode: 0o644, content: authorities()},
		{name: "tmp/", mode: 0o1777},
	}
}

// authorities returns the certificates of Mozilla's list in PEM form. An authority that is
// trusted for some certificates only is left out, since a file can't say for which.
func authorities() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// A buffer takes everything.
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return text.Bytes()
}

// layer makes a layer whose files all have the same time.
func layer(created time.Time, files []file) (v1.Layer, error) {
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg, ModTime: created}
		if f.name[len(f.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	// The layer is compressed once, and kept.
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}
