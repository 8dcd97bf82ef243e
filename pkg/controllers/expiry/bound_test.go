// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"testing"
	"time"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
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
			c := &Controller{Config: Config{Percent: 25}, gone: map[string][]time.Time{}}
			location := &engine.StorageLocation{}
			location.Name = "default"
			at := now.Add(test.ahead)
			all := append(test.listed, test.due...)
			present, _, made := tally(all, "default", at)
			due := expired(all, at)
			if free, _ := c.bound(t.Context(), location, due, present, made, at); len(free) != test.free {
				t.Errorf("%d of %d may go, with %d made, want %d", len(free), len(due), made, test.free)
			}
		})
	}
}
