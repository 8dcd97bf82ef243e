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

// Backup is what is to be known of a backup that a schedule made.
type Backup struct {
	Name string
	// Due is the time that its name says, zero if it says none.
	Due   time.Time
	UID   types.UID
	Phase v1alpha1.BackupPhase
	// Exempt is true for one that was asked for by hand, that may not be restorable, or of which
	// somebody has changed until when it is kept: no
	// rule counts it, so that it drives out no other one, and none lets it go.
	Exempt bool
	// ByHand is true for one that was asked for by hand.
	ByHand bool
	// Created is when it was asked for, and Ended when it ended, if it has.
	Created, Ended time.Time
}

// Waits reports whether the backup has not begun.
func (b *Backup) Waits() bool {
	switch b.Phase {
	case v1alpha1.BackupPhaseNew, v1alpha1.BackupPhaseQueued, v1alpha1.BackupPhaseReadyToStart:
		return true
	}
	return false
}

// State is what a schedule has come to.
type State struct {
	Timing *Timing
	Paused bool
	// Since is from when on something can be due, and Dealt the last time that was dealt
	// with.
	Since, Dealt time.Time
	// Unsettled are the times before Since that were not dealt with by then, if any.
	Unsettled *enginev1alpha1.UnsettledTimes
	// Deadline is how late a backup may be asked for; zero is no limit.
	Deadline time.Duration
	// Backups are those that the schedule made.
	Backups []Backup
}

// StateOf is what a schedule with that uid has come to by its record.
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

// Move has the times of a schedule begin anew at an instant, before its record gets those of
// a change: what was due until then, and was not dealt with, is unsettled.
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

// unsettled are the times before the last change that are to be dealt with; nil if none are:
// they go first, so that whatever was dealt with after the first of them has ended them.
func (s *State) unsettled(now time.Time) *enginev1alpha1.UnsettledTimes {
	if left := s.Unsettled; left != nil && !s.Dealt.After(left.After.Time) && !left.Last.After(now.Add(skew)) {
		return left
	}
	return nil
}

// base is the instant after which something is due; zero if what is recorded lies in a future
// that was none.
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

// Decision is what is to be done.
type Decision struct {
	// Due is the time that is to be dealt with; zero when there is none.
	Due time.Time
	// Reason and Message say why there is to be no backup for it; empty when one is to
	// be asked for. With ScheduleReasonChanged there may be one nevertheless: it was asked for
	// by somebody who did not get to record it.
	Reason, Message string
	// Missed are the times, of those up to Due, that have no backup of their own.
	Missed int64
	// Dealt, if set, is to be taken for the last time that was dealt with: what is recorded
	// lies in a future that was none.
	Dealt time.Time
	// Next is when something is due after that; zero while paused, or when never.
	Next time.Time
}

// skew is how much the clocks of those who work one after the other may differ.
const skew = time.Minute

// Decide says what is to be done about a schedule at an instant. Of several times that
// have passed, the last one counts, and the others were missed. What was dealt with in a
// future that has turned out to be none is due again: the name of its backup is the same,
// so there is no second one.
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
		// One that was asked for by somebody who did not get to record it.
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

// settle deals with what was due before a change. It is not made up: the schedule is another
// one.
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
