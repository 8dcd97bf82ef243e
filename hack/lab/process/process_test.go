// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	tail := "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21"
	tests := map[string]struct {
		line  string
		state string
		ticks uint64
		fails bool
	}{
		"plain name":                  {line: "12 (etcd) " + tail, state: "S", ticks: 4242},
		"name with spaces and braces": {line: "12 (a ) R (b) " + tail, state: "S", ticks: 4242},
		"no name":                     {line: "12 etcd S", fails: true},
		"cut short":                   {line: "12 (etcd) S 1 2 3", fails: true},
		"threads are no number":       {line: strings.Replace("12 (etcd) "+tail, " 17 ", " - ", 1), fails: true},
		"start time is no number":     {line: strings.Replace("12 (etcd) "+tail, "4242", "-1", 1), fails: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			state, threads, ticks, err := parseStat(tc.line)
			if (err != nil) != tc.fails {
				t.Fatalf("error %v, want one: %v", err, tc.fails)
			}
			if !tc.fails && (state != tc.state || threads != 17 || ticks != tc.ticks) {
				t.Errorf("got %s %d %d, want %s 17 %d", state, threads, ticks, tc.state, tc.ticks)
			}
		})
	}
}

func TestAddress(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"the last flag counts": {[]string{"--secure-port=1", "--bind-address=127.0.0.1", "--secure-port=2"}, "127.0.0.1:2"},
		"no port":              {[]string{"--bind-address=127.0.0.1"}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := (Spec{Args: tc.args}).Address(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// start runs a shell script and makes sure that it ends with the test.
func start(t *testing.T, dir, name, script string) *Process {
	t.Helper()
	p, err := Start(dir, Spec{Name: name, Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(dir, "logs", name)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.Background(), 0); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestAnotherCommandFindsAndStopsAProcess(t *testing.T) {
	dir := t.TempDir()
	started := start(t, dir, "server", "exec sleep 1000")
	found, err := Load(dir, "server")
	if err != nil {
		t.Fatal(err)
	}
	if found.Identity != started.Identity || !found.Running() {
		t.Fatalf("found %+v, running %v; started %+v", found.Identity, found.Running(), started.Identity)
	}
	if sid := session(t, found.PID); sid != found.PID {
		t.Errorf("session %d, want one of its own, %d", sid, found.PID)
	}
	if _, err := Start(dir, found.Spec); err == nil {
		t.Error("a second start of the same name must be refused")
	}
	if err := found.Stop(context.Background(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if started.Running() {
		t.Error("runs after Stop")
	}
	<-started.Exited()
	if all, err := List(dir); err != nil || len(all) != 0 {
		t.Errorf("after Stop the run folder lists %v, error %v", all, err)
	}
}

func TestStopKillsWhatIgnoresSIGTERM(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "logs", "deaf")
	p := start(t, dir, "deaf", "trap '' TERM; echo deaf; while :; do sleep 1000; done")
	for {
		if raw, err := os.ReadFile(log); err == nil && strings.Contains(string(raw), "deaf") {
			break
		}
	}
	if err := p.Stop(context.Background(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if p.Running() {
		t.Error("runs after Stop")
	}
}

// A file whose pid now belongs to another process must never lead to a signal.
func TestStopLeavesAStrangerAlone(t *testing.T) {
	dir := t.TempDir()
	stranger := start(t, dir, "stranger", "exec sleep 1000")
	for name, change := range map[string]func(*Identity){
		"other start time": func(i *Identity) { i.StartTicks-- },
		"other boot":       func(i *Identity) { i.BootID = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			ours := &Process{Spec: Spec{Name: "ours"}, Identity: stranger.Identity, file: file(dir, "ours")}
			change(&ours.Identity)
			if err := ours.save(); err != nil {
				t.Fatal(err)
			}
			if ours.Running() {
				t.Error("a stranger's pid counts as running")
			}
			if err := ours.Stop(context.Background(), time.Second); err != nil {
				t.Fatal(err)
			}
			if !stranger.Running() {
				t.Error("the stranger was stopped")
			}
			if _, err := os.Stat(ours.file); !os.IsNotExist(err) {
				t.Errorf("the stale file stays: %v", err)
			}
		})
	}
}

func TestAZombieHasEnded(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "read line")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := Process{Identity: id}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	for p.Running() { // it is not waited for, so it stays a zombie
	}
	_ = cmd.Wait()
}

func session(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	line := string(raw)
	sid, err := strconv.Atoi(strings.Fields(line[strings.LastIndexByte(line, ')')+1:])[3])
	if err != nil {
		t.Fatal(err)
	}
	return sid
}
