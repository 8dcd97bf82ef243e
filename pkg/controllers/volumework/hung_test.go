// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"testing"
	"time"
)

// TestHung: a volume hangs until all work on it has returned, and since the first has not.
func TestHung(t *testing.T) {
	hung, at := new(Hung), time.Unix(1000, 0)
	data := Target{Pod: "pod", Volume: "data"}.volume()
	first := hung.add(data, at)
	second := hung.add(data, at.Add(time.Hour))
	if _, hangs := hung.since(Target{Pod: "another", Volume: "data"}.volume()); hangs {
		t.Error("the volume of another pod hangs")
	}
	for _, returned := range []func(){first, second} {
		if since, hangs := hung.since(data); !hangs || !since.Equal(at) {
			t.Errorf("it hangs: %v, since %s", hangs, since)
		}
		returned()
	}
	if _, hangs := hung.since(data); hangs || len(hung.volumes) != 0 {
		t.Error("it hangs still")
	}
}
