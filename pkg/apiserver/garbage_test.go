// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import "testing"

// The room for garbage follows from what a collection looks at, and not from the rows.
func TestTheRoomForGarbage(t *testing.T) {
	for _, test := range []struct {
		live, resting int64
		want          int
	}{
		{live: 0, want: 40},
		{live: 30 << 20, want: 40},
		{live: 90 << 20, resting: 40 << 20, want: 22},
		{live: 430 << 20, resting: 400 << 20, want: 10},
		{live: 30 << 20, resting: 40 << 20, want: 10}, // rows that came after the last collection
	} {
		if got := percentOf(test.live, test.resting); got != test.want {
			t.Errorf("%d MiB live, and %d MiB of them rest: %d %%, not %d", test.live>>20, test.resting>>20, got, test.want)
		}
	}
}
