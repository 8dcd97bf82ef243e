// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/lease"
)

// TestActivity: an agent is busy while some of its records is in progress, and idle since
// something began or ended the last time. What only waits is neither.
func TestActivity(t *testing.T) {
	begin := time.Now()
	at := func(minutes int) time.Time { return begin.Add(time.Duration(minutes) * time.Minute) }
	var activity lease.Activity
	for minute, step := range []struct {
		see  func(now time.Time)
		idle int // minutes
		busy bool
	}{
		{func(time.Time) {}, 0, false},
		{func(now time.Time) { activity.Saw(node, "waits", false, false, now) }, 1, false},
		{func(now time.Time) { activity.Saw(node, "a", true, true, now) }, 0, true},
		{func(now time.Time) { activity.Saw(node, "a", true, false, now) }, 1, true},
		{func(now time.Time) { activity.Saw(node, "b", true, false, now) }, 0, true},
		{func(now time.Time) { activity.Saw(node, "a", false, true, now) }, 0, true},
		{func(now time.Time) { activity.Saw("another", "c", true, true, now) }, 1, true},
		{func(now time.Time) { activity.Saw(node, "b", false, false, now) }, 0, false}, // its record is gone
		{func(now time.Time) { activity.Saw(node, "waits", false, false, now) }, 1, false},
		{func(now time.Time) { activity.Saw(node, "waits", false, true, now) }, 0, false}, // it failed before it began
	} {
		step.see(at(minute))
		if idle, busy := activity.Idle(node, begin, at(minute)); idle != time.Duration(step.idle)*time.Minute || busy != step.busy {
			t.Errorf("in minute %d: idle for %s, busy %t, want %d minutes, %t", minute, idle, busy, step.idle, step.busy)
		}
	}
	if idle, _ := activity.Idle(node, at(20), at(21)); idle != time.Minute {
		t.Errorf("since minute 20: %s", idle)
	}
}
