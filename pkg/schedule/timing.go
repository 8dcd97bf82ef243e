// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule decides when a schedule's backups are due, what to do, and which are kept. It has no clock and
// no client.
//
// A time of day is due once a day, also when clocks change: a missing time when clocks are put forward, a double
// one at its first. An hourly schedule, whose hours begin with a star, follows elapsed time: it is due in both
// hours of a name, and in no missing hour.
package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // independent of the machine's time zones

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/types"
)

// MaxNameLength bounds a schedule's name, which begins its backups' names.
const MaxNameLength = 63 - 1 - len(dueFormat)

// dueFormat is Velero's, for the names of scheduled backups.
const dueFormat = "20060102150405"

// BackupName returns the name of the backup due at an instant: a repeated request is the same backup.
func BackupName(schedule string, due time.Time) string {
	return schedule + "-" + due.UTC().Format(dueFormat)
}

// DueOf returns the time in a backup's name, or zero.
func DueOf(schedule, backup string) time.Time {
	due, err := time.Parse(dueFormat, strings.TrimPrefix(backup, schedule+"-"))
	if err != nil {
		return time.Time{}
	}
	return due
}

var standard = map[string]string{
	"@hourly":   "0 * * * *",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@weekly":   "0 0 * * 0",
	"@monthly":  "0 0 1 * *",
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
}

// spread are words for times that differ between schedules. Each letter is a field with values by number and first
// value: day and month begin at one, and days end at 28.
var spread = map[string]string{
	"@hourly-random":   "M * * * *",
	"@daily-random":    "M H * * *",
	"@weekly-random":   "M H * * W",
	"@monthly-random":  "M H D * *",
	"@yearly-random":   "M H D N *",
	"@annually-random": "M H D N *",
}

// Timing says when something is due.
type Timing struct {
	// spec has wall clock times as if in UTC: cron's own treatment of clock changes is unreliable.
	spec     cron.Schedule
	daily    bool // times of day, not intervals of hours
	location *time.Location
}

// Parse reads a schedule. The uid determines spread times.
func Parse(text, timeZone string, uid types.UID) (*Timing, error) {
	location, err := ParseZone(timeZone)
	if err != nil {
		return nil, err
	}
	fields := strings.TrimSpace(text)
	if word, ok := standard[fields]; ok {
		fields = word
	} else if word, ok := spread[fields]; ok {
		fields = spreadOver(word, uid)
	}
	switch {
	case fields == "":
		return nil, errors.New("say when a backup is due, as in \"30 2 * * *\" or @daily")
	case strings.HasPrefix(fields, "@"):
		return nil, errors.New("no such word: use @hourly, @daily, @weekly, @monthly or @yearly, one of these with -random, or five fields as in \"30 2 * * *\"")
	case strings.Contains(fields, "="):
		return nil, errors.New("a time zone goes into spec.timeZone")
	}
	parsed, err := cron.ParseStandard(fields)
	if err != nil {
		return nil, err
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("not a schedule of five fields: %q", text)
	}
	spec.Location = time.UTC
	return &Timing{spec: spec, daily: !strings.HasPrefix(strings.Fields(fields)[1], "*"), location: location}, nil
}

// ParseZone reads the name of a time zone.
func ParseZone(name string) (*time.Location, error) {
	switch name {
	case "":
		return time.UTC, nil
	case "Local":
		return nil, errors.New("name the time zone, as in Europe/Berlin: where the server runs says nothing")
	}
	return time.LoadLocation(name)
}

// spreadOver replaces each letter of a word by a value from the uid.
func spreadOver(word string, uid types.UID) string {
	value := func(letter string, first, n uint64) string {
		sum := sha256.Sum256([]byte(letter + "/" + string(uid)))
		return fmt.Sprint(first + binary.BigEndian.Uint64(sum[:])%n)
	}
	return strings.NewReplacer("M", value("M", 0, 60), "H", value("H", 0, 24), "W", value("W", 0, 7),
		"D", value("D", 1, 28), "N", value("N", 1, 12)).Replace(word)
}

// Location returns the time zone.
func (t *Timing) Location() *time.Location { return t.location }

// span exceeds any change of a clock: islands at the date line changed a day.
const span = 25 * time.Hour

// Next returns the first due instant after another, or zero if there is none in five years.
func (t *Timing) Next(after time.Time) time.Time {
	after = after.UTC()
	if t.daily {
		for wall := onTheWall(after, t.location).Add(-span); ; {
			if wall = t.spec.Next(wall); wall.IsZero() {
				return wall
			}
			if due := firstShown(wall, t.location); due.After(after) {
				return due
			}
		}
	}
	for from := after; ; {
		_, offset := from.In(t.location).Zone()
		_, changed := from.In(t.location).ZoneBounds()
		wall := t.spec.Next(after.Add(time.Duration(offset) * time.Second))
		if wall.IsZero() {
			return wall
		}
		if due := wall.Add(-time.Duration(offset) * time.Second); changed.IsZero() || due.Before(changed) {
			return due
		}
		from, after = changed.UTC(), changed.UTC().Add(-1) // that moment included
	}
}

// onTheWall returns the wall clock's time as if in UTC.
func onTheWall(at time.Time, location *time.Location) time.Time {
	at = at.In(location)
	_, offset := at.Zone()
	return at.Add(time.Duration(offset) * time.Second).UTC()
}

// firstShown returns the first instant at which a clock shows a time, or is put forward past it.
func firstShown(wall time.Time, location *time.Location) time.Time {
	var first, after time.Time
	for _, around := range []time.Duration{-span, 0, span} {
		_, offset := wall.Add(around).In(location).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		switch shown := onTheWall(at, location); {
		case shown.Equal(wall):
			if first.IsZero() || at.Before(first) {
				first = at
			}
		case shown.After(wall) && (after.IsZero() || at.Before(after)):
			after = at
		}
	}
	if !first.IsZero() {
		return first
	}
	// The clocks have been put forward.
	if start, _ := after.In(location).ZoneBounds(); !start.IsZero() {
		return start.UTC()
	}
	return after
}

// Last returns the last due instant in (after, until], and their number up to a thousand; zero if there is none.
func (t *Timing) Last(after, until time.Time) (last time.Time, n int64) {
	const counted = 1000
	for next := t.Next(after); !next.IsZero() && !next.After(until); next = t.Next(next) {
		last = next
		if n++; n == counted {
			break
		}
	}
	if n < counted {
		return last, n
	}
	// There may be many more; only the last matters.
	for _, back := range []time.Duration{time.Hour, 32 * 24 * time.Hour, 366 * 24 * time.Hour} {
		from, found := until.Add(-back), time.Time{}
		if !from.After(last) {
			from = last
		}
		for next := t.Next(from); !next.IsZero() && !next.After(until); next = t.Next(next) {
			found = next
		}
		if !found.IsZero() || from.Equal(last) {
			if !found.IsZero() {
				last = found
			}
			return last, n
		}
	}
	return last, n
}

// Interval returns the longest time between the next due times.
func (t *Timing) Interval(after time.Time) time.Duration {
	const looked = 10
	var longest time.Duration
	for last, i := t.Next(after), 0; i < looked && !last.IsZero(); i++ {
		next := t.Next(last)
		if next.IsZero() {
			break
		}
		longest, last = max(longest, next.Sub(last)), next
	}
	return longest
}
