// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Identity tells one process from every other that had or will have its pid.
type Identity struct {
	PID int `json:"pid"`
	// StartTicks is when the process started, in clock ticks since the boot.
	StartTicks uint64 `json:"startTicks"`
	// BootID is the kernel's random name for this boot: ticks start anew with each.
	BootID string `json:"bootID"`
}

var errEnded = errors.New("the process has ended")

// Identify reads the identity of a running process. A zombie counts as ended:
// in a container nobody may ever reap it. One with other threads left does not, as
// those keep its ports.
func Identify(pid int) (Identity, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Identity{}, err
	}
	state, threads, ticks, err := parseStat(string(stat))
	if err != nil {
		return Identity{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	if state == "Z" && threads <= 1 || state == "X" {
		return Identity{}, errEnded
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: ticks, BootID: strings.TrimSpace(string(boot))}, nil
}

// parseStat takes the state (field 3), the number of threads (field 20) and the
// start time (field 22) from a line of /proc/PID/stat, see proc_pid_stat(5). The
// second field is the program's name in parentheses and may hold any character, so
// fields are counted from the last closing one.
func parseStat(line string) (state string, threads, startTicks uint64, err error) {
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return "", 0, 0, errors.New("no program name in parentheses")
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 20 {
		return "", 0, 0, fmt.Errorf("%d fields after the program name, want 20 or more", len(fields))
	}
	threads, threadsErr := strconv.ParseUint(fields[17], 10, 64)
	startTicks, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0], threads, startTicks, errors.Join(threadsErr, err)
}
