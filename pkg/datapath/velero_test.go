// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"

	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// What Velero 1.18.1 stored of the claim shop/data, mounted by the pod files. The
// archive has its Kopia repository, and volume.checks: lines with the path, type, mode and
// target of all that is in the volume, and with the checksum and path of each file.
const (
	veleroArchive  = "testdata/velero-1.18.1.tar.gz"
	veleroPassword = "static-passw0rd" // of all installations that did not choose one
	veleroSnapshot = "2faa98bf6d4a1b604eebf11e8943e9e0"
	movedSnapshot  = "4fa5135b7bfa20643d1a61139067fe10"
	movedDevice    = "30ecfb803947a2d6c20a9a203cea30f4"
)

var veleroSource = Source{Namespace: "shop", Pod: "files", Volume: "content", ClaimName: "data", ClaimUID: "uid"}

// veleroStore puts Velero's repository into a bucket, and returns it with the lines of
// volume.checks.
func veleroStore(t *testing.T) (repository.Location, []string) {
	t.Helper()
	return storeOf(t, veleroArchive)
}

func storeOf(t *testing.T, archive string) (repository.Location, []string) {
	t.Helper()
	spec, secret := storetest.FakeS3(t, nil)
	bucket := storetest.Open(t, spec, secret)
	packed, err := os.Open(archive)
	must(t, err)
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	must(t, err)
	var checks []string
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		content, err := io.ReadAll(archive)
		must(t, err)
		switch {
		case header.Typeflag != tar.TypeReg:
		case header.Name == "volume.checks":
			for lines := bufio.NewScanner(strings.NewReader(string(content))); lines.Scan(); {
				checks = append(checks, lines.Text())
			}
		default:
			must(t, bucket.Put(t.Context(), header.Name, content))
		}
	}
	return repository.Location{Spec: spec, Secret: secret}, checks
}

// The first backup of a volume that Velero has backed up into the same repository reads
// only what has changed since, and the next one goes on from there.
func TestGoesOnFromVelero(t *testing.T) {
	settled(t)
	location, checks := veleroStore(t)
	r, err := repository.Open(t.Context(), location, "shop", veleroPassword, repository.Options{})
	must(t, err)
	defer r.Close(context.WithoutCancel(t.Context()))
	volume := t.TempDir()
	restored, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: veleroSnapshot, Path: volume}, new(Progress))
	must(t, err)
	expectChecks(t, volume, checks)

	// Without root, no file gets its owner, which makes each a changed one.
	unread := int64(0)
	if restored.Warnings.Count > 0 {
		unread = restored.TotalBytes
	}
	first, err := Upload(t.Context(), r, UploadRequest{Path: volume, Source: veleroSource}, new(Progress))
	must(t, err)
	if first.IncrementalBytes != unread || first.TotalBytes != restored.TotalBytes {
		t.Errorf("read %d of %d bytes, want %d of %d", first.IncrementalBytes, first.TotalBytes, unread, restored.TotalBytes)
	}
	write(t, filepath.Join(volume, "new"), "new")
	second, err := Upload(t.Context(), r, UploadRequest{Path: volume, Source: veleroSource}, new(Progress))
	must(t, err)
	if second.IncrementalBytes != 3 {
		t.Errorf("read %d bytes, want 3", second.IncrementalBytes)
	}
}

// TestRestoreOfMoved: what Velero's data mover has uploaded from a snapshot of a claim comes back with
// its files, modes and links, and its files are listed.
func TestRestoreOfMoved(t *testing.T) {
	location, checks := storeOf(t, "../restore/source/testdata/velero-moved.tar.gz")
	r, err := repository.Open(t.Context(), location, "ware", veleroPassword, repository.Options{})
	must(t, err)
	defer r.Close(context.WithoutCancel(t.Context()))
	volume := t.TempDir()
	restored, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: movedSnapshot, Path: volume}, new(Progress))
	must(t, err)
	expectChecks(t, volume, checks)
	if restored.Files == 0 || restored.TotalBytes == 0 {
		t.Errorf("restored %+v", restored)
	}
	man, err := snapshot.LoadSnapshot(t.Context(), r.Kopia(), movedSnapshot)
	must(t, err)
	if man.Source.Path != "snapshot-data-upload-download/kopia/ware/data" || man.Tags["snapshot-requester"] != "snapshot-data-upload-download" {
		t.Errorf("the snapshot is of %s, with the tags %v", man.Source, man.Tags)
	}
	_, err = OpenFiles(t.Context(), r, movedSnapshot)
	must(t, err)
}

// expectChecks compares a folder with lines of volume.checks.
func expectChecks(t *testing.T, dir string, want []string) {
	t.Helper()
	got := map[string]bool{}
	for path, m := range tree(t, dir) {
		kind, target := "f", ""
		switch {
		case path == ".":
			continue
		case m.Mode.IsDir():
			kind = "d"
		case m.Mode&os.ModeSymlink != 0:
			kind, target = "l", m.Content
		default:
			got[fmt.Sprintf("%s  ./%s", m.Content, path)] = true
		}
		got[strings.TrimSpace(fmt.Sprintf("%s %s %o %s", path, kind, m.Mode.Perm(), target))] = true
	}
	for _, line := range want {
		line = strings.TrimSpace(line)
		if !got[line] {
			t.Errorf("there is no %q", line)
		}
		delete(got, line)
	}
	for line := range got {
		t.Errorf("%q was not in the volume", line)
	}
}

// TestRestoreOfMovedDevice: a block device that Velero's data mover has uploaded comes back with its bytes.
func TestRestoreOfMovedDevice(t *testing.T) {
	location, _ := storeOf(t, "../restore/source/testdata/velero-moved.tar.gz")
	r, err := repository.Open(t.Context(), location, "ware", veleroPassword, repository.Options{})
	must(t, err)
	defer r.Close(context.WithoutCancel(t.Context()))
	folder, path := serveDevice(t, bytes.Repeat([]byte{7}, 64<<10))
	restored, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: movedDevice, Path: folder, Device: true}, new(Progress))
	must(t, err)
	man, err := snapshot.LoadSnapshot(t.Context(), r.Kopia(), movedDevice)
	must(t, err)
	entries, err := readFolder(t.Context(), r.Kopia(), man.RootEntry)
	must(t, err)
	content, err := r.Kopia().OpenObject(t.Context(), entries[0].ObjectID)
	must(t, err)
	defer content.Close()
	want, err := io.ReadAll(content)
	must(t, err)
	got, err := os.ReadFile(path)
	must(t, err)
	if restored.TotalBytes != 30000 || len(want) != 30000 || !bytes.Equal(got[:30000], want) {
		t.Errorf("restored %+v of %d bytes", restored, len(want))
	}
}

// Snapshots of Holdfast's first versions have another source and requester.
func TestGoesOnFromFormerVersions(t *testing.T) {
	settled(t)
	for name, test := range map[string]struct{ former, source Source }{
		"of the claim": {
			Source{Namespace: namespace, Pod: "web-0", Volume: "data", ClaimName: "claim", ClaimUID: "uid"},
			Source{Namespace: namespace, Pod: "another", Volume: "data", ClaimName: "claim", ClaimUID: "uid"},
		},
		"of the source": {web, web},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newStore(t), t.TempDir()
			write(t, filepath.Join(dir, "a"), "content")
			r := s.client(t)
			earlier, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: test.former}, new(Progress))
			must(t, err)
			makeFormer(t, r, earlier.SnapshotID)

			got, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: test.source}, new(Progress))
			must(t, err)
			if got.IncrementalBytes != 0 {
				t.Errorf("read %d bytes", got.IncrementalBytes)
			}
		})
	}
}

// makeFormer gives a snapshot the names that it would have had.
func makeFormer(t *testing.T, r *repository.Repository, id string) {
	t.Helper()
	must(t, repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		man, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(id))
		if err != nil {
			return err
		}
		man.Source.Path = strings.Replace(man.Source.Path, requester, formerRequester, 1)
		man.Tags[tagRequester] = formerRequester
		if err := w.DeleteManifest(ctx, man.ID); err != nil {
			return err
		}
		_, err = snapshot.SaveSnapshot(ctx, w, man)
		return err
	}))
}
