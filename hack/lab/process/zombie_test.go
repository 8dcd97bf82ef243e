// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// headless makes the test binary a process whose first thread has ended, until its
// input does.
const headless = "LAB_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) == "" {
		return
	}
	runtime.LockOSThread() // init runs on the first thread
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	_, _ = os.Stdout.WriteString("begun\n")
	_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
}

// TestAZombieWithThreadsRuns: the files and ports of a process are closed by the end
// of its last thread, and the first one may be a zombie before.
func TestAZombieWithThreadsRuns(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), headless+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for state := ""; state != "Z"; {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if state, _, _, err = parseStat(string(raw)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Identify(cmd.Process.Pid); err != nil {
		t.Errorf("its first thread has ended, and others have not: %v", err)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
