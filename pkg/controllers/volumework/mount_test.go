// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"testing"
	"time"
)

// TestMountHangs: a mount hangs when for five minutes no call has returned while there is one. What
// takes long, on the volume or elsewhere, does not.
func TestMountHangs(t *testing.T) {
	type seen struct {
		waiting bool
		answers int64
	}
	for name, test := range map[string]struct {
		see  func(look int64) seen
		want int64 // the look that finds that it hangs; 0 for none
	}{
		"from the first call on":            {func(int64) seen { return seen{true, 0} }, 10},
		"after many calls":                  {func(look int64) seen { return seen{true, min(look, 30)} }, 40},
		"a store that takes long":           {func(int64) seen { return seen{false, 7} }, 0},
		"a file that hangs, others do not":  {func(look int64) seen { return seen{true, look} }, 0},
		"a call of just under 5 minutes":    {func(look int64) seen { return seen{true, look / 10} }, 0},
		"a call at every other look":        {func(look int64) seen { return seen{look%2 == 0, (look + 1) / 2} }, 0},
		"a call after a wait for the store": {func(look int64) seen { return seen{look >= 30, 7} }, 40},
	} {
		t.Run(name, func(t *testing.T) {
			look := int64(0)
			m := mount{calls: func() (bool, int64) {
				s := test.see(look)
				return s.waiting, s.answers
			}}
			for ; look < 100; look++ {
				if m.hangs() {
					break
				}
			}
			if look != test.want && !(test.want == 0 && look == 100) {
				t.Errorf("it hangs at look %d (%s), want %d", look, time.Duration(look)*mountInterval, test.want)
			}
		})
	}
}
