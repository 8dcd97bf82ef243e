// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The processes of Holdfast. Tests that end them must not run in parallel.
const (
	APIServer  = "apiserver"
	Controller = "controller"
	Agent      = "agent-0"
)

// Kill ends a process with SIGKILL and leaves it so until Start, or until the
// test ends.
func (l *Lab) Kill(t *testing.T, role string) {
	t.Helper()
	pid := l.pid(t, role)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("killing the %s: %v", role, err)
	}
	Eventually(t, fmt.Sprintf("the end of the %s", role), func() error {
		if !ended(pid) {
			return fmt.Errorf("process %d still runs", pid)
		}
		return nil
	})
	t.Logf("killed the %s", role)
	t.Cleanup(func() {
		if !ended(l.pid(t, role)) {
			return
		}
		// The tests that follow need it.
		if err := l.lab(context.Background(), "holdfast", "restart", role); err != nil {
			t.Error(err)
		}
	})
}

// Start starts a process that was killed, with the arguments that it had.
func (l *Lab) Start(t *testing.T, role string) {
	t.Helper()
	if err := l.lab(t.Context(), "holdfast", "restart", role); err != nil {
		t.Fatal(err)
	}
	t.Logf("started the %s", role)
}

func (l *Lab) pid(t *testing.T, role string) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(l.Dir, "run", "holdfast-"+role+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var process struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(raw, &process); err != nil {
		t.Fatal(err)
	}
	return process.PID
}

func ended(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// Reconfigure starts Holdfast again with flags added to the controller's, until
// the test ends. The test must not be parallel.
func (l *Lab) Reconfigure(t *testing.T, controllerFlags string) {
	t.Helper()
	before := l.options
	l.options.ControllerFlags += " " + controllerFlags
	t.Cleanup(func() {
		l.options = before
		if err := l.up(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := l.up(t.Context()); err != nil {
		t.Fatal(err)
	}
}
