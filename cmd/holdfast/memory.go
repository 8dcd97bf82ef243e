// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

const leastMemory = 256 << 20 // the least that an agent can keep

const cgroups = "/sys/fs/cgroup"

// memoryLimit returns a process's memory: GOMEMLIMIT, else the flag, else 90 % of the container's limit, else
// zero.
func memoryLimit(flag, cgroups string) (int64, error) {
	if limit := debug.SetMemoryLimit(-1); os.Getenv("GOMEMLIMIT") != "" && limit != math.MaxInt64 {
		return limit, nil
	}
	if flag != "" {
		quantity, err := resource.ParseQuantity(flag)
		if err != nil || quantity.Value() < leastMemory {
			return 0, fmt.Errorf("--memory-limit must be a quantity of at least %dMi, but is %q", leastMemory>>20, flag)
		}
		return quantity.Value(), nil
	}
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} { // version 2, and 1
		content, err := os.ReadFile(filepath.Join(cgroups, file))
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
		if err != nil || limit >= math.MaxInt64/2 {
			return 0, nil
		}
		return limit / 10 * 9, nil
	}
	return 0, nil
}
