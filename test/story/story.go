// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package story says which of all its random stories a test tells.
package story

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seed is what the random choices of a test follow from. It is the one of the variable RAPID_SEED,
// from which the tests that are written with rapid take theirs, or a new one where that is not
// set or zero. The test's log says which.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(0)
	if text := os.Getenv("RAPID_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("RAPID_SEED: %v", err)
		}
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("to tell this story again: RAPID_SEED=%d", seed)
	return seed
}
