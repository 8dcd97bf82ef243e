// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

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
	// Deadline is how late a backup may be asked for; zero is no limit.
	Deadline time.Duration
	// Backups are those that the schedule made.
	Backups []Backup
}

// Decision is what is to be done.
type Decision struct {
	// Due is the time that is to be dealt with; zero when there is none.
	Due time.Time
	// Reason and Message say why there is to be no backup for it; empty when one is to
	// be asked for.
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
	if state.Paused {
		return Decision{}
	}
	decision := Decision{Next: state.Timing.Next(now)}
	base := state.Since
	if base.After(now.Add(skew)) {
		base = time.Time{}
	}
	if state.Dealt.After(base) {
		base = state.Dealt
	}
	if base.IsZero() || base.After(now.Add(skew)) {
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

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
