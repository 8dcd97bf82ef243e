// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule says when a schedule's backups are due, what is to be done about
// it, and which of them are kept. It is pure: instants and what is known go in, decisions
// come out.
//
// A time of day is due once a day, also when the clocks change: one that does not exist
// is due at the moment when the clocks are put forward, and one that exists twice when it
// comes first. A schedule of every hour, whose field of hours begins with a star, follows
// the time that passes: it is due in each of the two hours that have the same name, and in
// no hour that does not exist.
package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // whatever the machine knows of time zones

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/types"
)

// MaxNameLength is that of a schedule's name: it is the beginning of its backups'.
const MaxNameLength = 63 - 1 - len(dueFormat)

// dueFormat is Velero's, for the names of scheduled backups.
const dueFormat = "20060102150405"

// BackupName is the name of a schedule's backup that is due at an instant. It follows
// from these, so that whoever asks for it again asks for the same one.
func BackupName(schedule string, due time.Time) string {
	return schedule + "-" + due.UTC().Format(dueFormat)
}

// DueOf is the time that the name of a schedule's backup says; zero if it says none.
func DueOf(schedule, backup string) time.Time {
	due, err := time.Parse(dueFormat, strings.TrimPrefix(backup, schedule+"-"))
	if err != nil {
		return time.Time{}
	}
	return due
}

// standard are the words that stand for fields.
var standard = map[string]string{
	"@hourly":   "0 * * * *",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@weekly":   "0 0 * * 0",
	"@monthly":  "0 0 1 * *",
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
}

// spread are the words for a time that differs from schedule to schedule, with the
// number of values of each field, and the first: day and month count from one, and a day
// that not every month has is none.
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
	// spec has the times that a clock on the wall shows, as if these were UTC: what cron
	// itself makes of a change of the clocks is not always what it promises.
	spec cron.Schedule
	// daily is whether it is due at times of the day, and not every so many hours.
	daily    bool
	location *time.Location
}

// Parse reads a schedule. The uid gives those that are spread their times.
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

// spreadOver gives each letter of a word a value that follows from the uid.
func spreadOver(word string, uid types.UID) string {
	value := func(letter string, first, n uint64) string {
		sum := sha256.Sum256([]byte(letter + "/" + string(uid)))
		return fmt.Sprint(first + binary.BigEndian.Uint64(sum[:])%n)
	}
	return strings.NewReplacer("M", value("M", 0, 60), "H", value("H", 0, 24), "W", value("W", 0, 7),
		"D", value("D", 1, 28), "N", value("N", 1, 12)).Replace(word)
}

// Location is the time zone.
func (t *Timing) Location() *time.Location { return t.location }

// span is more than any clock was ever put forward or back at once: a day, by islands
// that changed the side of the date line.
const span = 25 * time.Hour

// Next is the first instant after one at which something is due; zero if nothing is within
// five years.
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

// onTheWall is what a clock shows at an instant, as if it was UTC.
func onTheWall(at time.Time, location *time.Location) time.Time {
	at = at.In(location)
	_, offset := at.Zone()
	return at.Add(time.Duration(offset) * time.Second).UTC()
}

// firstShown is the first instant at which a clock shows a time of the wall, or a later one
// because it is put forward past it.
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
	// By the time that held before, it would be now: the clocks have been put forward.
	if start, _ := after.In(location).ZoneBounds(); !start.IsZero() {
		return start.UTC()
	}
	return after
}

// Last is the last instant in (after, until] at which something is due, and how many there
// are up to the first thousand; zero and none if there is none.
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
	// There may be many more, of which only the last one matters.
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

// Interval is the longest time between two of the next times after an instant.
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
