// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// zones have changes of an hour, of half an hour, by night and at midnight, twice in a
// year for a month, a day that never was, and none.
var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Casablanca", "Asia/Beirut", "Pacific/Apia", "Asia/Kathmandu"}

// field is one of a schedule, and what the oracle knows of it.
type field struct {
	text string
	has  func(int) bool
}

func drawField(t *rapid.T, name string, first, last int) field {
	switch rapid.IntRange(0, 4).Draw(t, name+"-form") {
	case 0, 1:
		n := rapid.IntRange(first, last).Draw(t, name)
		return field{fmt.Sprint(n), func(v int) bool { return v == n }}
	case 2:
		a, b := rapid.IntRange(first, last).Draw(t, name), rapid.IntRange(first, last).Draw(t, name+"-other")
		return field{fmt.Sprintf("%d,%d", a, b), func(v int) bool { return v == a || v == b }}
	case 3:
		step := rapid.IntRange(1, last).Draw(t, name+"-step")
		return field{fmt.Sprintf("*/%d", step), func(v int) bool { return (v-first)%step == 0 }}
	}
	return field{"*", func(int) bool { return true }}
}

// TestDueTimes compares the times with those that a clock on the wall shows, minute by
// minute, over the days around a change of the clocks.
func TestDueTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		location, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		minute, hour := drawField(t, "minute", 0, 59), drawField(t, "hour", 0, 23)
		text := minute.text + " " + hour.text + " * * *"
		timing, err := Parse(text, zone, "")
		if err != nil {
			t.Fatal(err)
		}
		// From a day before a change, if there is one in the year.
		year := rapid.IntRange(2000, 2030).Draw(t, "year")
		begin := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			if _, end := begin.In(location).ZoneBounds(); !end.IsZero() && end.Year() < 2038 {
				begin = end.UTC()
			}
		}
		begin = begin.Add(-30 * time.Hour).Truncate(time.Hour)
		end := begin.Add(80 * time.Hour)

		var want []time.Time
		latest := onTheWall(begin.Add(-24*time.Hour), location)
		for at := begin.Add(-24 * time.Hour); !at.After(end); at = at.Add(time.Minute) {
			wall := onTheWall(at, location)
			if strings.HasPrefix(hour.text, "*") {
				if hour.has(wall.Hour()) && minute.has(wall.Minute()) {
					want = append(want, at)
				}
				continue
			}
			// What the clock shows for the first time, or has been put past.
			for ; latest.Before(wall); latest = latest.Add(time.Minute) {
				if shown := latest.Add(time.Minute); hour.has(shown.Hour()) && minute.has(shown.Minute()) && (len(want) == 0 || !want[len(want)-1].Equal(at)) {
					want = append(want, at)
				}
			}
		}
		want = slices.DeleteFunc(want, func(at time.Time) bool { return !at.After(begin) })
		var got []time.Time
		for next := timing.Next(begin); !next.IsZero() && !next.After(end); next = timing.Next(next) {
			got = append(got, next)
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Fatalf("%q in %s after %s:\n got %v\nwant %v", text, zone, begin, got, want)
		}
		if last, n := timing.Last(begin, end); n != int64(min(len(want), 1000)) || n > 0 && !last.Equal(want[len(want)-1]) {
			t.Fatalf("%q in %s: the last of %d is %s of %d", text, zone, len(want), last, n)
		}
	})
}

func TestClockChanges(t *testing.T) {
	for _, test := range []struct{ schedule, after, want string }{
		// In Berlin, 2 becomes 3 on 2026-03-29, and 3 becomes 2 on 2026-10-25.
		{"30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"},
		{"30 2 * * *", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		{"30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"},
		{"30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		{"30 * * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"},
		{"30 * * * *", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"},
		{"0 0 29 2 *", "2026-03-01T00:00:00Z", "2028-02-28T23:00:00Z"},
	} {
		timing, err := Parse(test.schedule, "Europe/Berlin", "")
		if err != nil {
			t.Fatal(err)
		}
		after, _ := time.Parse(time.RFC3339, test.after)
		if got := stamp(timing.Next(after)); got != test.want {
			t.Errorf("%s after %s is %s, want %s", test.schedule, test.after, got, test.want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, text := range []string{"", "@every 5m", "@reboot", "@dayly", "* * * *", "* * * * * *", "61 * * * *", "TZ=UTC 0 0 * * *", "a b c d e"} {
		if _, err := Parse(text, "", ""); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	for _, zone := range []string{"Local", "Mars/Olympus", "../etc/passwd"} {
		if _, err := Parse("@daily", zone, ""); err == nil {
			t.Errorf("the time zone %q is taken", zone)
		}
	}
	if timing, err := Parse("0 0 30 2 *", "", ""); err != nil || !timing.Next(time.Unix(0, 0)).IsZero() {
		t.Errorf("the 30th of February: %v", err)
	}
}

// TestSpread: each schedule has its own minute, and keeps it.
func TestSpread(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for word, period := range map[string]time.Duration{"@hourly-random": time.Hour, "@daily-random": 24 * time.Hour, "@weekly-random": 7 * 24 * time.Hour,
		"@monthly-random": 31 * 24 * time.Hour, "@yearly-random": 366 * 24 * time.Hour} {
		seen := map[time.Time]int{}
		for i := range 1000 {
			uid := types.UID(fmt.Sprintf("uid-%d", i))
			timing, err := Parse(word, "", uid)
			if err != nil {
				t.Fatal(err)
			}
			first := timing.Next(begin)
			if first.Sub(begin) > period {
				t.Fatalf("%s comes after %s first", word, first.Sub(begin))
			}
			again, _ := Parse(word, "", uid)
			if !again.Next(begin).Equal(first) {
				t.Fatalf("%s moves", word)
			}
			seen[first]++
		}
		if word == "@hourly-random" {
			for at, n := range seen {
				if n > 50 {
					t.Errorf("%d of 1000 schedules of %s come at %s", n, word, at)
				}
			}
		} else if len(seen) < 450 {
			t.Errorf("1000 schedules of %s come at %d times", word, len(seen))
		}
	}
}

func TestLastOfMany(t *testing.T) {
	timing, _ := Parse("* * * * *", "Europe/Berlin", "")
	now := time.Date(2026, 7, 1, 12, 0, 30, 0, time.UTC)
	if last, n := timing.Last(now.AddDate(-3, 0, 0), now); n != 1000 || !last.Equal(now.Truncate(time.Minute)) {
		t.Errorf("the last of three years of minutes is %s, of %d", last, n)
	}
	timing, _ = Parse("* 3 1 * *", "", "")
	if last, n := timing.Last(now.AddDate(-4, 0, 0), now); n != 1000 || stamp(last) != "2026-07-01T03:59:00Z" {
		t.Errorf("the last is %s, of %d", last, n)
	}
}

// surplus is Surplus by another way: for each rule, the backups that it keeps.
func surplus(backups []Backup, keep v1alpha1.ScheduleKeep) map[string]bool {
	kept := map[string]bool{}
	var newestCompleted time.Time
	for _, backup := range backups {
		if backup.Phase == v1alpha1.BackupPhaseCompleted && backup.Created.After(newestCompleted) {
			newestCompleted = backup.Created
		}
	}
	rule := func(n int32, period func(Backup) string) {
		last := map[string]Backup{}
		for _, backup := range backups {
			if backup.Phase == v1alpha1.BackupPhaseCompleted && !backup.Created.Before(last[period(backup)].Created) {
				last[period(backup)] = backup
			}
		}
		for _, at := range slices.Backward(slices.Sorted(func(yield func(string) bool) {
			for at := range last {
				if !yield(at) {
					return
				}
			}
		})) {
			if n--; n >= 0 {
				kept[last[at].Name] = true
			}
		}
	}
	rule(keep.Last, func(b Backup) string { return b.Created.Format("2006-01-02T15:04:05.000000000") })
	rule(keep.Daily, func(b Backup) string { return b.Created.Format("2006-01-02") })
	rule(keep.Weekly, func(b Backup) string { year, week := b.Created.ISOWeek(); return fmt.Sprintf("%04d-%02d", year, week) })
	rule(keep.Monthly, func(b Backup) string { return b.Created.Format("2006-01") })
	rule(keep.Yearly, func(b Backup) string { return b.Created.Format("2006") })
	gone := map[string]bool{}
	for _, backup := range backups {
		switch backup.Phase {
		case v1alpha1.BackupPhaseCompleted:
			gone[backup.Name] = !kept[backup.Name]
		case v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhasePartiallyFailed:
			gone[backup.Name] = backup.Created.Before(newestCompleted)
		}
	}
	return gone
}

func TestSurplus(t *testing.T) {
	phases := []v1alpha1.BackupPhase{v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhaseCompleted,
		v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseInProgress, v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseUnreadable}
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.Int32Range(0, 5)
		keep := v1alpha1.ScheduleKeep{Last: count.Draw(t, "last"), Daily: count.Draw(t, "daily"), Weekly: count.Draw(t, "weekly"),
			Monthly: count.Draw(t, "monthly"), Yearly: count.Draw(t, "yearly")}
		at := time.Date(2024, 12, 20, 0, 0, 0, 0, time.UTC)
		var backups []Backup
		for i := range rapid.IntRange(0, 40).Draw(t, "backups") {
			at = at.Add(time.Duration(rapid.IntRange(1, 20*24*60).Draw(t, "minutes")) * time.Minute / time.Duration(rapid.SampledFrom([]int{1, 20, 200}).Draw(t, "pace")))
			backups = append(backups, Backup{Name: fmt.Sprintf("b%02d", i), Created: at, Phase: rapid.SampledFrom(phases).Draw(t, "phase"), Exempt: rapid.IntRange(0, 4).Draw(t, "exempt") == 0})
		}
		want := surplus(slices.DeleteFunc(slices.Clone(backups), func(b Backup) bool { return b.Exempt }), keep)
		if keep == (v1alpha1.ScheduleKeep{}) {
			want = nil
		}
		shuffled := rapid.Permutation(backups).Draw(t, "order")
		gone := map[string]bool{}
		for _, backup := range Surplus(shuffled, &keep, time.UTC) {
			gone[backup.Name] = true
		}
		for _, backup := range backups {
			if gone[backup.Name] != want[backup.Name] {
				t.Fatalf("%s of %s, %s: goes: %t, want %t, by %+v", backup.Name, backup.Created, backup.Phase, gone[backup.Name], want[backup.Name], keep)
			}
		}
	})
}

// Pitfall 27: while one waits there is no other one.
func TestDecide(t *testing.T) {
	daily, _ := Parse("0 3 * * *", "", "")
	at := func(text string) time.Time {
		parsed, err := time.Parse("2006-01-02 15:04", text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	since := at("2026-01-01 12:00")
	for name, test := range map[string]struct {
		state  State
		now    string
		due    string
		reason string
		missed int64
	}{
		"nothing yet":   {state: State{Timing: daily, Since: since}, now: "2026-01-02 02:59"},
		"at the minute": {state: State{Timing: daily, Since: since}, now: "2026-01-02 03:00", due: "2026-01-02 03:00"},
		"dealt with":    {state: State{Timing: daily, Since: since, Dealt: at("2026-01-02 03:00")}, now: "2026-01-02 03:00"},
		"made up once":  {state: State{Timing: daily, Since: since}, now: "2026-01-05 02:00", due: "2026-01-04 03:00", missed: 2},
		"too late": {state: State{Timing: daily, Since: since, Deadline: time.Hour}, now: "2026-01-05 05:00", due: "2026-01-05 03:00",
			reason: v1alpha1.ScheduleReasonTooLate, missed: 4},
		"one waits": {state: State{Timing: daily, Since: since, Backups: []Backup{{Name: "b", Phase: v1alpha1.BackupPhaseQueued}}}, now: "2026-01-02 03:00",
			due: "2026-01-02 03:00", reason: v1alpha1.ScheduleReasonWaiting, missed: 1},
		"one runs": {state: State{Timing: daily, Since: since, Backups: []Backup{{Name: "b", Phase: v1alpha1.BackupPhaseInProgress}}}, now: "2026-01-02 03:00",
			due: "2026-01-02 03:00"},
		"paused":                       {state: State{Timing: daily, Since: since, Paused: true}, now: "2026-01-05 02:00"},
		"a future that was none":       {state: State{Timing: daily, Since: since, Dealt: at("2027-01-01 03:00")}, now: "2026-01-05 02:00"},
		"edited after it had been due": {state: State{Timing: daily, Since: at("2026-01-05 04:00"), Dealt: at("2026-01-02 03:00")}, now: "2026-01-05 05:00"},
	} {
		decision := Decide(test.state, at(test.now))
		due := ""
		if !decision.Due.IsZero() {
			due = decision.Due.Format("2006-01-02 15:04")
		}
		if due != test.due || decision.Reason != test.reason || decision.Missed != test.missed {
			t.Errorf("%s: %+v", name, decision)
		}
		if decision.Next.IsZero() != test.state.Paused {
			t.Errorf("%s: next is %s", name, decision.Next)
		}
	}
}

// TestAnnotationsOfBackups: a backup gets the annotations of its schedule that choose the class of its snapshots,
// and no other, as kubectl's copy of the schedule or the name of a user that triggers.
func TestAnnotationsOfBackups(t *testing.T) {
	const class = "velero.io/csi-volumesnapshot-class_ebs.csi.aws.com"
	s := &v1alpha1.Schedule{}
	s.Name = "nightly"
	if backup := NewBackup(s, time.Unix(0, 0)); len(backup.Annotations) != 0 {
		t.Errorf("without annotations: %q", backup.Annotations)
	}
	s.Labels = map[string]string{"app.kubernetes.io/instance": "shop"}
	s.Annotations = map[string]string{class: "archive", "velero.io/csi-volumesnapshot-class": "x", AnnotationTriggeredBy: "eve", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
	backup := NewBackup(s, time.Unix(0, 0))
	if len(backup.Annotations) != 1 || backup.Annotations[class] != "archive" || len(s.Annotations) != 4 {
		t.Errorf("the backup has %q, and the schedule %q", backup.Annotations, s.Annotations)
	}
	if len(backup.Labels) != 1 {
		t.Errorf("the labels are %q", backup.Labels)
	}
}
