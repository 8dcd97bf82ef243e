// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

// The environment goes before the flag, and that before the container's limit.
func TestMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	for _, test := range []struct {
		flag, file, content, env string
		want                     int64
		bad                      bool
	}{
		{},
		{file: "memory.max", content: "max\n"},
		{file: "memory.max", content: "1000000000\n", want: 900_000_000},
		{file: "memory/memory.limit_in_bytes", content: "1000000000\n", want: 900_000_000},
		{file: "memory/memory.limit_in_bytes", content: "9223372036854771712\n"},
		{file: "memory.max", content: "1000000000\n", flag: "512Mi", want: 512 << 20},
		{flag: "512Mi", env: "400MiB", want: 400 << 20},
		{flag: "512Mi", env: "off", want: 512 << 20},
		{flag: "255Mi", bad: true},
		{flag: "much", bad: true},
	} {
		cgroups := t.TempDir()
		if test.file != "" {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(cgroups, test.file)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(cgroups, test.file), []byte(test.content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("GOMEMLIMIT", test.env)
		debug.SetMemoryLimit(1<<63 - 1)
		if test.env == "400MiB" {
			debug.SetMemoryLimit(400 << 20) // as the runtime does when it starts
		}
		got, err := memoryLimit(test.flag, cgroups)
		if got != test.want || (err != nil) != test.bad {
			t.Errorf("%+v: %d, %v", test, got, err)
		}
	}
}
