// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package process runs programs that outlive the command that started them,
// and finds them again. What it knows of a process is one file in a run
// folder; a process is only ever signalled when its boot and its start time
// are those in the file, so a pid that the kernel gave to a stranger since
// then is left alone. Linux only: it reads /proc.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Spec says how to start one program.
type Spec struct {
	Name string   `json:"name"` // unique in its run folder
	Path string   `json:"path"`
	Args []string `json:"args"`          // without the program's name
	Env  []string `json:"env,omitempty"` // beside the environment of the lab command
	Log  string   `json:"log"`           // file that stdout and stderr are appended to
}

// Process is a program that was started, as its file in the run folder has it.
type Process struct {
	Spec
	Identity

	file string
	// exited is closed when a process of this very command ends; nil otherwise.
	exited chan struct{}
}

// Start runs the program in a session of its own, without a terminal, and
// writes its file into the run folder dir.
func Start(dir string, s Spec) (*Process, error) {
	if old, err := Load(dir, s.Name); err == nil && old.Running() {
		return nil, fmt.Errorf("%s is running already as process %d; stop it first", s.Name, old.PID)
	}
	temporary := filepath.Join(dir, "tmp") // what is killed leaves files there
	for _, d := range []string{dir, temporary, filepath.Dir(s.Log)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env = append(append(os.Environ(), "TMPDIR="+temporary), s.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	p := &Process{Spec: s, file: file(dir, s.Name), exited: make(chan struct{})}
	// Identify before Wait: until it is reaped the pid can't be given away.
	id, idErr := Identify(cmd.Process.Pid)
	go func() { _ = cmd.Wait(); close(p.exited) }()
	p.Identity = id
	if err := errors.Join(idErr, p.save()); err != nil {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("record %s: %w", s.Name, err)
	}
	return p, nil
}

// Load reads the file of one process; the error is fs.ErrNotExist when there
// is none.
func Load(dir, name string) (*Process, error) {
	p := &Process{file: file(dir, name)}
	raw, err := os.ReadFile(p.file)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, p); err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	return p, nil
}

// List returns every process of a run folder, by name. A folder that does not
// exist has none.
func List(dir string) ([]*Process, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*Process
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		p, err := Load(dir, name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *Process) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Running says whether the very process that was started still runs.
func (p *Process) Running() bool {
	now, err := Identify(p.PID)
	return err == nil && now == p.Identity
}

// Address is where the process serves, as its arguments say in the words of
// Kubernetes programs; empty for other programs.
func (s Spec) Address() string {
	var host, port string
	for _, a := range s.Args { // of flags given twice the last one counts
		if v, ok := strings.CutPrefix(a, "--bind-address="); ok {
			host = v
		}
		if v, ok := strings.CutPrefix(a, "--secure-port="); ok {
			port = v
		}
	}
	if port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// Exited is closed when the process ends. It is nil, and so never closed, for
// a process that an earlier command started.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Signal sends s if the process still runs.
func (p *Process) Signal(s syscall.Signal) error {
	// FindProcess holds a pidfd, so the process that Running looks at and the
	// one that gets the signal are the same.
	proc, err := os.FindProcess(p.PID)
	if err != nil {
		return err
	}
	defer func() { _ = proc.Release() }()
	if !p.Running() {
		return nil
	}
	if err := proc.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s (process %d): %w", p.Name, p.PID, err)
	}
	return nil
}

// Stop sends SIGTERM, after grace SIGKILL, waits for the end, and removes the
// file. A grace of zero kills at once.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		if err := p.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if p.gone(ctx, grace) {
			return p.forget()
		}
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	if !p.gone(ctx, 10*time.Second) {
		return fmt.Errorf("%s (process %d) survived SIGKILL; see its log %s", p.Name, p.PID, p.Log)
	}
	return p.forget()
}

// StopNamed stops a process of a run folder. One that was never started there,
// or was stopped, is no error.
func StopNamed(ctx context.Context, dir, name string, grace time.Duration) error {
	p, err := Load(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.Stop(ctx, grace)
}

// gone waits until the process runs no more. Most of them are no children of
// this command, so there is nothing to wait on but /proc.
func (p *Process) gone(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.Running() {
		select {
		case <-ctx.Done():
			return !p.Running()
		case <-tick.C:
		}
	}
	return true
}

func (p *Process) save() error {
	raw, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	// 0600: an environment may hold keys.
	return os.WriteFile(p.file, raw, 0o600)
}

func (p *Process) forget() error {
	if err := os.Remove(p.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func file(dir, name string) string { return filepath.Join(dir, name+".json") }
