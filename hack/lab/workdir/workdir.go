// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workdir knows where a lab keeps what: everything that a lab writes
// is in one folder, and removing a lab removes from that folder only what a
// lab put there.
package workdir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Dir is the absolute path of a lab's folder.
type Dir string

// Open makes the path absolute. The folder need not exist.
func Open(path string) (Dir, error) {
	abs, err := filepath.Abs(path)
	return Dir(abs), err
}

// Path joins names to the folder.
func (d Dir) Path(names ...string) string {
	return filepath.Join(append([]string{string(d)}, names...)...)
}

// Run holds one file per process.
func (d Dir) Run() string { return d.Path("run") }

// PKI holds certificates and keys.
func (d Dir) PKI(names ...string) string { return d.Path(append([]string{"pki"}, names...)...) }

// Log is the file that a process writes to.
func (d Dir) Log(name string) string { return d.Path("logs", name+".log") }

// AuditLog is where kube-apiserver counts writes.
func (d Dir) AuditLog() string { return d.Path("logs", "audit.log") }

// Kubeconfig is the administrator's.
func (d Dir) Kubeconfig() string { return d.Path("kubeconfig") }

// KubeconfigOf is that of a program.
func (d Dir) KubeconfigOf(name string) string { return d.Path("kubeconfig-" + name) }

// State is what commands need to know of a lab that an earlier one started.
// Its file is also the mark of a lab's folder.
type State struct {
	// Ready is set once the control plane answered.
	Ready bool `json:"ready"`
	// Server is kube-apiserver's URL.
	Server string `json:"server,omitempty"`
	// Bin is the folder of the Kubernetes programs.
	Bin string `json:"bin"`
	// Address is where servers of the lab listen: loopback, or the bridge's
	// address in a lab with nodes.
	Address string `json:"address"`
	// Processes are those without which the lab is broken.
	Processes []string `json:"processes,omitempty"`
	// Nodes are the names of the real nodes, none on loopback.
	Nodes []string `json:"nodes,omitempty"`
}

func (d Dir) stateFile() string { return d.Path("lab.json") }

// State reads the state; the error is fs.ErrNotExist where no lab is.
func (d Dir) State() (State, error) {
	var s State
	raw, err := os.ReadFile(d.stateFile())
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("%s: %w", d.stateFile(), err)
	}
	return s, nil
}

// Running reads the state of a lab that has been started.
func (d Dir) Running() (State, error) {
	s, err := d.State()
	if errors.Is(err, fs.ErrNotExist) || err == nil && !s.Ready {
		return s, fmt.Errorf("no lab runs in %s; start one with `lab up --dir %s`", d, d)
	}
	return s, err
}

// Save writes the state.
func (d Dir) Save(s State) error {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(d.stateFile(), append(raw, '\n'), 0o644)
}

// made are the patterns of what a lab makes and takes along when it goes. bin
// and logs are not among them: programs are dear to build, and logs are wanted
// most when a lab is gone.
var made = []string{"etcd", "pki", "run", "kubeconfig*", "holdfast", "pods", "cache-*", "store", "s3", "nodes", "audit-policy.yaml", "holdfast-*.yaml", "volume-plugins", "csi", "kubectl-cache", "lab.json"}

// Clear removes all that a lab made, except programs and logs. It does
// nothing in a folder that is not a lab's.
func (d Dir) Clear() error {
	if _, err := d.State(); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, pattern := range made {
		paths, err := filepath.Glob(d.Path(pattern))
		if err != nil {
			return err
		}
		for _, p := range paths {
			if err := os.RemoveAll(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// ClearLogs removes the logs of the lab before.
func (d Dir) ClearLogs() error { return os.RemoveAll(d.Path("logs")) }

// lockLimit is longer than any command of a lab takes, builds aside.
const lockLimit = 5 * time.Minute

// Lock waits until no other lab command works in the folder, and keeps others
// out until unlock is called or this process ends.
func (d Dir) Lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(d.Path("lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockLimit)
	defer cancel()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("another lab command works in %s (%w); wait for it to end", d, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Locked says whether a lab command works in the folder.
func (d Dir) Locked() bool {
	f, err := os.Open(d.Path("lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
