// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
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

// kopiaCommand is Kopia's own command, with settings, a cache and logs of its own.
type kopiaCommand struct {
	t        testing.TB
	program  string
	home     string // folder of all that it keeps besides the repository
	password string // of the repository
}

// run returns what the command prints, and the CPU time that it takes.
func (k kopiaCommand) run(args ...string) (printed []byte, busy time.Duration) {
	k.t.Helper()
	command := exec.CommandContext(k.t.Context(), k.program, append(args, "--no-progress", "--no-auto-maintenance")...)
	command.Env = append(os.Environ(),
		"KOPIA_CONFIG_PATH="+filepath.Join(k.home, "config"),
		"KOPIA_CACHE_DIRECTORY="+filepath.Join(k.home, "cache"),
		"KOPIA_LOG_DIR="+filepath.Join(k.home, "logs"),
		"KOPIA_PASSWORD="+k.password, "KOPIA_CHECK_FOR_UPDATES=false")
	var complaints bytes.Buffer
	command.Stderr = &complaints
	printed, err := command.Output()
	if err != nil {
		k.t.Fatalf("kopia %v: %v\n%s", args, err, &complaints)
	}
	return printed, command.ProcessState.UserTime() + command.ProcessState.SystemTime()
}

// upload returns the snapshot that it takes of a folder.
func (k kopiaCommand) upload(dir string) (man snapshot.Manifest, busy time.Duration) {
	k.t.Helper()
	printed, busy := k.run("snapshot", "create", "--json", dir)
	must(k.t, json.Unmarshal(printed, &man))
	return man, busy
}

func (k kopiaCommand) restore(man snapshot.Manifest, dir string) (busy time.Duration) {
	k.t.Helper()
	_, busy = k.run("snapshot", "restore", string(man.ID), dir)
	return busy
}

// Kopia's own command lists, verifies and restores what we have stored: contents, modes, owners,
// links, and the times of files. HOLDFAST_KOPIA is the command; hack/test.sh builds it.
func TestKopiaCommand(t *testing.T) {
	kopia := os.Getenv("HOLDFAST_KOPIA")
	if kopia == "" {
		t.Skip("there is no HOLDFAST_KOPIA")
	}
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	richTree(t, dir)
	large := make([]byte, 20<<20) // of several chunks
	_, _ = rand.NewChaCha8([32]byte{4}).Read(large)
	must(t, os.WriteFile(filepath.Join(dir, "large"), large, 0o600))
	must(t, os.Link(filepath.Join(dir, "plain"), filepath.Join(dir, "deep/other name")))
	id := s.upload(t, dir, web).SnapshotID
	k := kopiaCommand{t, kopia, t.TempDir(), string(s.key)}
	k.run("repository", "connect", "filesystem", "--path="+filepath.Join(s.location.Spec.Filesystem.Path, "kopia", namespace), "--readonly")
	printed, _ := k.run("snapshot", "list", "--all", "--json")
	var listed []snapshot.Manifest
	must(t, json.Unmarshal(printed, &listed))
	if !slices.ContainsFunc(listed, func(m snapshot.Manifest) bool { return string(m.ID) == id }) {
		t.Errorf("snapshot %s is not among %v", id, listed)
	}
	k.run("snapshot", "verify", "--verify-files-percent=100", id)
	k.run("snapshot", "restore", id, target)

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
