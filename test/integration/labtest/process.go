// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
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
	// AnotherController is none of them, until StartAnother.
	AnotherController = "controller-1"
)

// Kill ends a process with SIGKILL and leaves it so until Start, or until the
// test ends.
func (l *Lab) Kill(t *testing.T, role string) {
	t.Helper()
	if err := l.Signal(role, syscall.SIGKILL); err != nil {
		t.Fatalf("killing the %s: %v", role, err)
	}
	l.AwaitKilled(t, role)
}

// Signal sends a signal to a process, from any goroutine.
func (l *Lab) Signal(role string, signal syscall.Signal) error {
	p, err := l.process(role)
	if err != nil {
		return err
	}
	return syscall.Kill(p.PID, signal)
}

// AwaitKilled waits for the end of a process that was sent SIGKILL. It stays so
// until Start, or until the test ends.
func (l *Lab) AwaitKilled(t *testing.T, role string) {
	t.Helper()
	pid := l.pid(t, role)
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

// StartAnother starts AnotherController with the arguments of the first one. It runs
// until Holdfast is configured again: a test must have called Reconfigure before.
func (l *Lab) StartAnother(t *testing.T) {
	t.Helper()
	p, err := l.process(Controller)
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.Args = append(p.Args, fmt.Sprintf("--secure-port=%d", free.Addr().(*net.TCPAddr).Port))
	p.Name, p.PID, p.Log = "holdfast-"+AnotherController, 0, filepath.Join(l.Dir, "logs", "holdfast-"+AnotherController+".log")
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	// To the lab it is a process that has ended.
	if err := errors.Join(os.WriteFile(l.processFile(AnotherController), raw, 0o600), free.Close()); err != nil {
		t.Fatal(err)
	}
	l.Start(t, AnotherController)
}

// process is what the lab keeps of a process.
type process struct {
	Name string   `json:"name"`
	Path string   `json:"path"`
	Args []string `json:"args"`
	Log  string   `json:"log"`
	PID  int      `json:"pid"`
}

func (l *Lab) process(role string) (process, error) {
	var p process
	raw, err := os.ReadFile(l.processFile(role))
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(raw, &p)
}

func (l *Lab) processFile(role string) string {
	return filepath.Join(l.Dir, "run", "holdfast-"+role+".json")
}

func (l *Lab) pid(t *testing.T, role string) int {
	t.Helper()
	p, err := l.process(role)
	if err != nil {
		t.Fatal(err)
	}
	return p.PID
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
