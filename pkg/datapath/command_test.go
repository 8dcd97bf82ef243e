// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/snapshot"
)

// Kopia's own command lists, verifies and restores what we have stored: contents, modes, owners,
// links, and the times of files. HOLDFAST_KOPIA is the command; hack/soak.sh builds it.
func TestKopiaCommand(t *testing.T) {
	kopia := os.Getenv("HOLDFAST_KOPIA")
	if kopia == "" {
		t.Skip("there is no HOLDFAST_KOPIA")
	}
	s, dir, target, config := newStore(t), t.TempDir(), t.TempDir(), t.TempDir()
	richTree(t, dir)
	large := make([]byte, 20<<20) // of several chunks
	_, _ = rand.NewChaCha8([32]byte{4}).Read(large)
	must(t, os.WriteFile(filepath.Join(dir, "large"), large, 0o600))
	must(t, os.Link(filepath.Join(dir, "plain"), filepath.Join(dir, "deep/other name")))
	id := s.upload(t, dir, web).SnapshotID
	run := func(args ...string) []byte {
		t.Helper()
		command := exec.CommandContext(t.Context(), kopia, append(args, "--config-file="+filepath.Join(config, "config"), "--log-dir="+filepath.Join(config, "logs"))...)
		command.Env = append(os.Environ(), "KOPIA_PASSWORD="+string(s.key), "KOPIA_CHECK_FOR_UPDATES=false")
		out, err := command.Output()
		if err != nil {
			t.Fatalf("kopia %v: %v\n%s", args, err, out)
		}
		return out
	}
	run("repository", "connect", "filesystem", "--path="+filepath.Join(s.location.Spec.Filesystem.Path, "kopia", namespace), "--readonly", "--cache-directory="+filepath.Join(config, "cache"))
	var listed []snapshot.Manifest
	must(t, json.Unmarshal(run("snapshot", "list", "--all", "--json"), &listed))
	if !slices.ContainsFunc(listed, func(m snapshot.Manifest) bool { return string(m.ID) == id }) {
		t.Errorf("snapshot %s is not among %v", id, listed)
	}
	run("snapshot", "verify", "--verify-files-percent=100", id)
	run("snapshot", "restore", id, target)

	got, want := tree(t, target), tree(t, dir)
	for _, all := range []map[string]made{got, want} {
		for path, m := range all {
			if !m.Mode.IsRegular() {
				m.ModTime = time.Time{} // Kopia gives folders those of what is in them, and links in microseconds
			}
			all[path] = m
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what Kopia restored differs (-want +got):\n%s", diff)
	}
}
