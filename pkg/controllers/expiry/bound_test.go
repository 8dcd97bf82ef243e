// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// Who makes all backups at one time of the day, and keeps them for three days, is not held
// up: as many may go as have come, if those that go are older than a day. Nothing that a
// clock makes old has come in the last day by that clock.
func TestAsManyMayGoAsHaveCome(t *testing.T) {
	now := time.Date(2026, 5, 6, 2, 0, 0, 0, time.UTC)
	batch := func(age, keep time.Duration) (made []backup) {
		for range 50 {
			made = append(made, backup{location: "default", good: true, started: now.Add(-age), expiration: now.Add(keep - age)})
		}
		return made
	}
	const days = 24 * time.Hour
	for name, test := range map[string]struct {
		listed []backup
		due    []backup
		ahead  time.Duration
		free   int
	}{
		"the new ones are there":      {append(batch(1*days, 3*days), batch(0, 3*days)...), batch(3*days, 3*days), 0, 50},
		"one of them is not":          {append(batch(2*days, 3*days), batch(0, 3*days)[1:]...), batch(3*days, 3*days), 0, 0},
		"those that go are new":       {append(batch(1*days, 3*days), batch(0, 3*days)...), batch(0, -time.Hour), 0, 0},
		"the clock is a year ahead":   {append(batch(1*days, 3*days), batch(0, 3*days)...), batch(3*days, 3*days), 365 * days, 0},
		"the clock is two days ahead": {append(batch(1*days, 3*days), batch(0, 3*days)...), batch(3*days, 3*days), 2 * days, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Controller{Config: Config{Percent: 25}, gone: map[string][]departure{}}
			location := &enginev1alpha1.StorageLocation{}
			location.Name = "default"
			at := now.Add(test.ahead)
			all := append(test.listed, test.due...)
			counted, in, _ := tally(all, "default", at)
			due := expired(all, at)
			if free, _ := c.bound(t.Context(), location, due, counted, in, at); len(free) != test.free {
				t.Errorf("%d of %d may go, with %d made, want %d", len(free), len(due), counted.made, test.free)
			}
		})
	}
}

// TestOneNamespaceHoldsUpNoOther: a tenant whose backups expire all at once, or who makes many that live for
// seconds, has nobody's backups stay. A clock that is ahead has all of them stay.
func TestOneNamespaceHoldsUpNoOther(t *testing.T) {
	now := time.Date(2026, 5, 6, 2, 0, 0, 0, time.UTC)
	const days = 24 * time.Hour
	of := func(namespace string, n int, age, keep time.Duration) (made []backup) {
		for range n {
			b := backup{location: "default", good: true, started: now.Add(-age), expiration: now.Add(keep - age)}
			b.Namespace = namespace
			made = append(made, b)
		}
		return made
	}
	honest := func() []backup { return append(of("b", 2, 40*days, 30*days), of("b", 26, days, 30*days)...) }
	for name, test := range map[string]struct {
		listed []backup
		ahead  time.Duration
		free   map[string]int
		held   map[string]int
	}{
		"honest":                {honest(), 0, map[string]int{"b": 2}, nil},
		"many that live short":  {append(honest(), of("a", 300, time.Minute, 20*time.Second)...), 0, map[string]int{"a": 300, "b": 2}, nil},
		"many that live a week": {append(honest(), of("a", 300, 8*days, 7*days)...), 0, map[string]int{"b": 2}, map[string]int{"a": 300}},
		"a clock that is ahead": {append(honest(), of("a", 300, 8*days, 70*days)...), 365 * days, nil, map[string]int{"a": 300, "b": 28}},
		"small namespaces, and a clock that is ahead": {slices.Concat(of("a", 6, days, 30*days), of("b", 6, days, 30*days), of("c", 6, days, 30*days)),
			365 * days, nil, map[string]int{"a": 6, "b": 6, "c": 6}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Controller{Config: Config{Percent: 25}, gone: map[string][]departure{}}
			location := &enginev1alpha1.StorageLocation{}
			location.Name = "default"
			at := now.Add(test.ahead)
			all, in, _ := tally(test.listed, "default", at)
			free, held := c.bound(t.Context(), location, expired(test.listed, at), all, in, at)
			count := func(backups []backup) map[string]int {
				var n map[string]int
				for _, b := range backups {
					if n == nil {
						n = map[string]int{}
					}
					n[b.Namespace]++
				}
				return n
			}
			if diff := gocmp.Diff(test.free, count(free)); diff != "" {
				t.Errorf("may go: %s", diff)
			}
			if diff := gocmp.Diff(test.held, count(held)); diff != "" {
				t.Errorf("stay: %s", diff)
			}
		})
	}
}
