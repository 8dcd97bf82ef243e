// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package workdir

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func touch(t *testing.T, dir Dir, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := os.MkdirAll(filepath.Dir(dir.Path(n)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir.Path(n), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func exists(dir Dir, name string) bool {
	_, err := os.Lstat(dir.Path(name))
	return err == nil
}

func TestClearRemovesWhatALabMade(t *testing.T) {
	dir := Dir(t.TempDir())
	gone := []string{"etcd/member", "pki/ca.key", "run/etcd.json", "kubeconfig", "kubeconfig-kube-scheduler", "store/x"}
	stay := []string{"bin/kube", "logs/etcd.log", "notes.txt"}
	touch(t, dir, append(gone, stay...)...)
	if err := dir.Save(State{}); err != nil {
		t.Fatal(err)
	}
	if err := dir.Clear(); err != nil {
		t.Fatal(err)
	}
	for _, n := range append(gone, "lab.json") {
		if exists(dir, n) {
			t.Errorf("%s stays", n)
		}
	}
	for _, n := range stay {
		if !exists(dir, n) {
			t.Errorf("%s was removed", n)
		}
	}
}

func TestClearLeavesAFolderThatIsNoLab(t *testing.T) {
	dir := Dir(t.TempDir())
	touch(t, dir, "store/precious", "pki/ca.key")
	if err := dir.Clear(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"store/precious", "pki/ca.key"} {
		if !exists(dir, n) {
			t.Errorf("%s was removed", n)
		}
	}
}

func TestLockIsExclusive(t *testing.T) {
	dir := Dir(t.TempDir())
	unlock, err := dir.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !dir.Locked() {
		t.Error("not locked for others to see")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dir.Lock(over); err == nil {
		t.Error("locked twice")
	}
	second := make(chan error)
	go func() {
		unlock, err := dir.Lock(t.Context())
		if err == nil {
			unlock()
		}
		second <- err
	}()
	unlock()
	if err := <-second; err != nil {
		t.Errorf("who waited for the lock didn't get it: %v", err)
	}
	if dir.Locked() {
		t.Error("locked after all have gone")
	}
}
