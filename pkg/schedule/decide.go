// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Backup is a backup that a schedule made.
type Backup struct {
	Name  string
	Due   time.Time // the time in its name, or zero
	UID   types.UID
	Phase v1alpha1.BackupPhase
	// Exempt says that rules of keep ignore it: triggered by hand, perhaps not restorable, or with an expiration
	// that a user changed.
	Exempt         bool
	ByHand         bool      // triggered by a user
	Created, Ended time.Time // when it was requested, and when it ended or zero
}

// Waits reports whether the backup has not begun.
func (b *Backup) Waits() bool {
	switch b.Phase {
	case v1alpha1.BackupPhaseNew, v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseReadyToStart:
		return true
	}
	return false
}

// State is the state of a schedule.
type State struct {
	Timing *Timing
	Paused bool
	// Since is the time from which on something can be due, Dealt the last handled time.
	Since, Dealt time.Time
	Unsettled    *enginev1alpha1.UnsettledTimes // unhandled times before Since
	Deadline     time.Duration                  // bounds how late a backup may be requested; zero is no limit
	Backups      []Backup
}

// StateOf returns the state of a schedule by its record.
func StateOf(entry *enginev1alpha1.ScheduleEntry, uid types.UID, backups []Backup) (State, error) {
	spec := &entry.Spec.Schedule
	timing, err := Parse(spec.Schedule, spec.TimeZone, uid)
	state := State{Timing: timing, Paused: spec.Paused, Since: entry.Spec.Since.Time, Unsettled: entry.Spec.Unsettled, Backups: backups}
	if dealt := entry.Status.LastDueTimestamp; dealt != nil {
		state.Dealt = dealt.Time
	}
	if seconds := spec.StartingDeadlineSeconds; seconds != nil {
		state.Deadline = time.Duration(*seconds) * time.Second
	}
	return state, err
}

// Move begins a schedule's times anew, before its record changes. Unhandled times become unsettled.
func Move(entry *enginev1alpha1.ScheduleEntry, uid types.UID, now time.Time) {
	state, err := StateOf(entry, uid, nil)
	left := state.unsettled(now)
	if base := state.base(now); err == nil && !state.Paused && !base.IsZero() {
		if last, n := state.Timing.Last(base, now); n > 0 {
			if left == nil {
				left = &enginev1alpha1.UnsettledTimes{After: metav1.NewTime(base)}
			}
			left = &enginev1alpha1.UnsettledTimes{After: left.After, Last: metav1.NewTime(last), Count: left.Count + n}
		}
	}
	entry.Spec.Unsettled, entry.Spec.Since = left, metav1.NewTime(now)
}

// unsettled returns unhandled times before the last change, or nil. They come first, so handling a later time ends
// them.
func (s *State) unsettled(now time.Time) *enginev1alpha1.UnsettledTimes {
	if left := s.Unsettled; left != nil && !s.Dealt.After(left.After.Time) && !left.Last.After(now.Add(skew)) {
		return left
	}
	return nil
}

// base returns the time after which something is due; zero if the record is from a wrong future.
func (s *State) base(now time.Time) time.Time {
	base := s.Since
	if base.After(now.Add(skew)) {
		base = time.Time{}
	}
	if s.Dealt.After(base) {
		base = s.Dealt
	}
	if base.After(now.Add(skew)) {
		return time.Time{}
	}
	return base
}

// Decision is the result of Decide.
type Decision struct {
	Due time.Time // the time to handle, or zero
	// Reason and Message say why there is no backup for it; empty when one is requested. With
	// ScheduleReasonChanged there may be one: a process requested it without a record.
	Reason, Message string
	Missed          int64     // times up to Due without a backup of their own
	Dealt           time.Time // replaces the last handled time, from a wrong future, unless zero
	Next            time.Time // zero while paused, or if there is none
}

// skew bounds the difference between the clocks of successive processes.
const skew = time.Minute

// Decide returns what to do about a schedule now. Of several passed times the last counts; the others were missed.
// Times handled in a wrong future are due again: their backups have the same names.
func Decide(state State, now time.Time) Decision {
	if left := state.unsettled(now); left != nil {
		return state.settle(left)
	}
	if state.Paused {
		return Decision{}
	}
	decision := Decision{Next: state.Timing.Next(now)}
	base := state.base(now)
	if base.IsZero() {
		decision.Dealt = now
		return decision
	}
	due, n := state.Timing.Last(base, now)
	if n == 0 {
		return decision
	}
	decision.Due, decision.Missed = due, n-1
	name := ""
	for i := range state.Backups {
		backup := &state.Backups[i]
		if backup.Waits() && !backup.Due.Equal(due) {
			name = backup.Name
		}
		// Requested by a process that did not record it.
		if backup.Due.After(base) && backup.Due.Before(due) && state.Timing.Next(backup.Due.Add(-time.Second)).Equal(backup.Due) && decision.Missed > 0 {
			decision.Missed--
		}
	}
	switch late := now.Sub(due); {
	case state.Deadline > 0 && late > state.Deadline:
		decision.Reason = v1alpha1.ScheduleReasonTooLate
		decision.Message = fmt.Sprintf("the backup of %s could have been asked for %s late, and spec.startingDeadlineSeconds is %d",
			stamp(due), late.Round(time.Second), int64(state.Deadline/time.Second))
	case name != "":
		decision.Reason = v1alpha1.ScheduleReasonWaiting
		decision.Message = fmt.Sprintf("the backup %s had not begun at %s, and will hold what there is by then", name, stamp(due))
	default:
		return decision
	}
	decision.Missed++
	return decision
}

// settle handles times before a change. They get no backup, since the schedule was another one.
func (s *State) settle(left *enginev1alpha1.UnsettledTimes) Decision {
	decision := Decision{Due: left.Last.Time, Missed: left.Count, Reason: v1alpha1.ScheduleReasonChanged}
	for i := range s.Backups {
		if backup := &s.Backups[i]; !backup.ByHand && backup.Due.After(left.After.Time) && backup.Due.Before(decision.Due) && decision.Missed > 1 {
			decision.Missed--
		}
	}
	decision.Message = fmt.Sprintf("the backup of %s had not been asked for when the schedule was changed", stamp(decision.Due))
	return decision
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
