// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"
)

// packs are the files of the packs with a prefix, in the folder of a store.
func (s store) packs(t *testing.T, prefix string) (paths []string) {
	t.Helper()
	root := filepath.Join(s.location.Spec.Filesystem.Path, "kopia", namespace)
	must(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		name := strings.ReplaceAll(strings.TrimPrefix(path, root+"/"), "/", "")
		if err == nil && !entry.IsDir() && strings.HasPrefix(name, prefix) && strings.HasSuffix(name, ".f") {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// verify reads all of a snapshot as Kopia does.
func (s store) verify(t *testing.T, id string) {
	t.Helper()
	r := s.open(t).Kopia()
	man, err := snapshot.LoadSnapshot(t.Context(), r, manifest.ID(id))
	must(t, err)
	root, err := snapshotfs.SnapshotRoot(r, man)
	must(t, err)
	blobs, err := blob.ReadBlobMap(t.Context(), r.BlobReader())
	must(t, err)
	verifier := snapshotfs.NewVerifier(t.Context(), r, snapshotfs.VerifierOptions{VerifyFilesPercent: 100, Parallelism: 2, BlobMap: blobs})
	result, err := verifier.InParallel(t.Context(), func(walker *snapshotfs.TreeWalker) error {
		return walker.Process(t.Context(), root, "/")
	})
	if err != nil || result.ErrorCount > 0 {
		t.Errorf("Kopia does not verify snapshot %s: %v, %v", id, err, result.ErrorStrings)
	}
}

// An upload stores anew what the packs held that the store has lost, or has only a part of,
// whether the files have changed or not. The snapshot of before is whole again, too.
func TestUploadStoresAnewWhatIsMissing(t *testing.T) {
	settled(t)
	for name, lose := range map[string]func(t *testing.T, s store){
		"all packs": func(t *testing.T, s store) {
			for _, path := range s.packs(t, "p") {
				must(t, os.Remove(path))
			}
		},
		"one pack": func(t *testing.T, s store) { must(t, os.Remove(s.packs(t, "p")[0])) },
		"the end of a pack": func(t *testing.T, s store) {
			must(t, os.Truncate(s.packs(t, "p")[0], 1000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newStore(t), t.TempDir()
			richTree(t, dir)
			large := make([]byte, 30<<20) // of several packs
			_, _ = rand.NewChaCha8([32]byte{4}).Read(large)
			must(t, os.WriteFile(filepath.Join(dir, "deep/large"), large, 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "image.img"), large[:3<<20], 0o600))
			want := tree(t, dir)
			first := s.upload(t, dir, web).SnapshotID
			lose(t, s)
			agent := s
			agent.shared = nil // another one
			second := agent.upload(t, dir, web)
			if second.Warnings.Count > 0 {
				t.Errorf("the upload warns: %v", second.Warnings)
			}
			third := agent.upload(t, dir, web) // which relies on the second one
			if third.IncrementalBytes != 0 {
				t.Errorf("%d bytes are read again though all is there", third.IncrementalBytes)
			}
			for _, id := range []string{first, second.SnapshotID, third.SnapshotID} {
				target := t.TempDir()
				agent.restore(t, id, target)
				expectSameTree(t, tree(t, target), want)
				s.verify(t, id)
			}
			if kopia := os.Getenv("HOLDFAST_KOPIA"); kopia != "" {
				k := kopiaCommand{t, kopia, t.TempDir(), string(s.key)}
				k.run("repository", "connect", "filesystem", "--path="+filepath.Join(s.location.Spec.Filesystem.Path, "kopia", namespace), "--readonly")
				k.run("snapshot", "verify", "--verify-files-percent=100", first, second.SnapshotID)
			}
		})
	}
}

// Of a repository whose manifests are lost no upload succeeds.
func TestUploadAfterTheLossOfMetadata(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "deep/file"), strings.Repeat("data", 1000))
	s.upload(t, dir, web)
	for _, path := range s.packs(t, "q") {
		must(t, os.Remove(path))
	}
	if _, err := Upload(t.Context(), s.open(t), UploadRequest{Path: dir, Source: web}, new(Progress)); err == nil {
		t.Error("an upload succeeds whose repository has lost its manifests")
	}
}

// Of a repository with a lost index no upload relies on what only that index names.
func TestUploadAfterTheLossOfAnIndex(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "deep/file"), strings.Repeat("data", 1000))
	s.upload(t, dir, web)
	for _, path := range s.packs(t, "xn") {
		must(t, os.Remove(path))
	}
	agent := s
	agent.shared = nil
	uploaded, err := Upload(t.Context(), agent.open(t), UploadRequest{Path: dir, Source: web}, new(Progress))
	if err != nil {
		t.Log(err)
		return
	}
	agent.restore(t, uploaded.SnapshotID, target)
	expectSameTree(t, tree(t, target), tree(t, dir))
	s.verify(t, uploaded.SnapshotID)
}
