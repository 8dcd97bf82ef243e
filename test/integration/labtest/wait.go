// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package labtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// limit is how long Eventually waits. Nothing takes as long: it is for machines
// that are busy with other things.
const limit = 2 * time.Minute

// Eventually waits until the condition returns nil, and fails the test with its
// last error if it never does.
func Eventually(t testing.TB, what string, condition func() error) {
	t.Helper()
	if err := Await(t.Context(), what, condition); err != nil {
		t.Fatal(err)
	}
}

// Await is Eventually for those that clean up, when the test's context has ended, or
// go on after an error.
func Await(ctx context.Context, what string, condition func() error) error {
	return AwaitFor(ctx, limit, what, condition)
}

// AwaitFor is Await with another limit.
func AwaitFor(ctx context.Context, limit time.Duration, what string, condition func() error) error {
	last := fmt.Errorf("it was never looked at")
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		last = condition()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("gave up waiting for %s: %w", what, last)
	}
	return nil
}

var names atomic.Int64

// Name gives a name that nothing else in this lab has.
func Name(prefix string) string { return fmt.Sprintf("%s-%d", prefix, names.Add(1)) }
