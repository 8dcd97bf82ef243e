// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Surplus returns the backups that no rule keeps, oldest first. Only Completed, not exempt backups count. One that
// ended otherwise is surplus when a newer one is Completed; an unfinished one never is. Without rules nothing is
// surplus.
func Surplus(backups []Backup, keep *v1alpha1.ScheduleKeep, location *time.Location) []Backup {
	if keep == nil || *keep == (v1alpha1.ScheduleKeep{}) {
		return nil
	}
	newest := slices.SortedFunc(slices.Values(backups), func(a, b Backup) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Name, a.Name))
	})
	type rule struct {
		left   int32
		period func(time.Time) [2]int
		last   [2]int
	}
	rules := []rule{
		{left: keep.Daily, period: func(t time.Time) [2]int { return [2]int{t.Year(), t.YearDay()} }},
		{left: keep.Weekly, period: func(t time.Time) [2]int { year, week := t.ISOWeek(); return [2]int{year, week} }},
		{left: keep.Monthly, period: func(t time.Time) [2]int { return [2]int{t.Year(), int(t.Month())} }},
		{left: keep.Yearly, period: func(t time.Time) [2]int { return [2]int{t.Year(), 1} }},
	}
	last, completed := keep.Last, false
	var surplus []Backup
	for _, backup := range newest {
		if backup.Exempt {
			continue
		}
		switch backup.Phase {
		case v1alpha1.BackupPhaseCompleted:
		case v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupPhaseFailed:
			if completed {
				surplus = append(surplus, backup)
			}
			continue
		default:
			continue
		}
		completed = true
		kept := last > 0
		last--
		for i := range rules {
			r := &rules[i]
			if period := r.period(backup.Created.In(location)); r.left > 0 && period != r.last {
				r.left, r.last, kept = r.left-1, period, true
			}
		}
		if !kept {
			surplus = append(surplus, backup)
		}
	}
	slices.Reverse(surplus)
	return surplus
}
