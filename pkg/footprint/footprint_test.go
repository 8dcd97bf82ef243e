// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package footprint

import (
	"strings"
	"testing"
	"time"
)

// A value counts what it refers to, at whatever depth, and not itself.
func TestOf(t *testing.T) {
	type inner struct{ text string }
	type outer struct {
		list []string
		of   map[string]*inner
		at   time.Time
	}
	long := strings.Repeat("x", 1000)
	for name, test := range map[string]struct {
		value any
		want  int
	}{
		"a number":        {7, 0},
		"a text":          {long, 1000},
		"a list":          {[]string{long, long}, 2 * (1000 + 16)},
		"numbers":         {make([]int32, 100), 400},
		"nothing":         {(*inner)(nil), 0},
		"a pointer":       {&inner{long}, 16 + 1000},
		"a map":           {map[string]*inner{"a": {long}}, 16 + 8 + 1 + 16 + 1000},
		"a structure":     {outer{list: []string{"a"}, of: map[string]*inner{"b": nil}, at: time.Now()}, 16 + 1 + 24 + 1},
		"a list of lists": {[][]byte{[]byte(long)}, 24 + 1000},
	} {
		if got := Of(test.value); got != test.want {
			t.Errorf("%s refers to %d bytes, want %d", name, got, test.want)
		}
	}
}
