// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package longhorntest gives tests stores of Longhorn's format: one by its own library, with the
// library's view of it, and generated ones. Their generator is tested against the first.
package longhorntest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/store"
)

//go:embed testdata/store.tar.gz
var fixture []byte

//go:embed testdata/expected.json
var expected []byte

// File is an object of a store.
type File struct {
	Key     string
	Content []byte
	ModTime time.Time
}

// Fixture returns a store by Longhorn's library. db-data has a failed backup and a running one with its
// lock; ghost-vol is only a lock.
func Fixture(t testing.TB) []File {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(fixture))
	if err != nil {
		t.Fatal(err)
	}
	var files []File
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, File{Key: strings.TrimPrefix(header.Name, "./"), Content: content, ModTime: header.ModTime})
	}
}

// Volume is a volume in the library's view.
type Volume struct {
	Name                 string
	Size                 string
	Labels               map[string]string
	Created              string
	LastBackupName       string
	LastBackupAt         string
	DataStored           string
	Messages             map[string]string
	Backups              map[string]Backup
	BackingImageName     string
	BackingImageChecksum string
	StorageClassname     string
	DataEngine           string
	// Error is set instead if it can't be inspected.
	Error string `json:"error"`
}

// Backup is a backup in the library's view.
type Backup struct {
	Name, URL                                 string
	SnapshotName, SnapshotCreated, Created    string
	Size                                      string
	Labels, Parameters                        map[string]string
	IsIncremental                             bool
	CompressionMethod                         string
	NewlyUploadedDataSize, ReUploadedDataSize string
	VolumeName, VolumeSize, VolumeCreated     string
	VolumeBackingImageName                    string
	// Error is set instead if it can't be inspected.
	Error string `json:"error"`
}

// Deletion is the library's deletion in a fresh copy of the store.
type Deletion struct {
	What           string   `json:"what"`
	Commands       []string `json:"commands"`
	Error          string   `json:"error"`
	Removed, Added []string
	Rewritten      map[string]json.RawMessage `json:"rewritten"`
}

// Expected is the library's view of the fixture.
type Expected struct {
	Target        string                       `json:"target"`
	Volumes       map[string]Volume            `json:"backup ls"`
	InspectVolume map[string]Volume            `json:"backup inspect-volume"`
	Inspect       map[string]map[string]Backup `json:"backup inspect"`
	Images        []string                     `json:"backup ls-backing-image"`
	Deletions     []Deletion                   `json:"deletions"`
}

// Expect returns the library's view of the fixture.
func Expect(t testing.TB) *Expected {
	t.Helper()
	var e Expected
	if err := json.Unmarshal(expected, &e); err != nil {
		t.Fatal(err)
	}
	return &e
}

// Put writes files into a store.
func Put(t testing.TB, to store.Writer, files []File) {
	t.Helper()
	for _, file := range files {
		if err := to.Put(context.Background(), file.Key, file.Content); err != nil {
			t.Fatal(err)
		}
	}
}
