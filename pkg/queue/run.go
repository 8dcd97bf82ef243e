// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Class is a kind of runs with own slots.
type Class int

const (
	Backup Class = iota
	Restore
	classes
)

// String returns the class's word for its runs.
func (c Class) String() string { return [classes]string{"backup", "restore"}[c] }

// PlanSlots bounds the plans at once, besides restores.
const PlanSlots = 4

// Slots are numbers of slots, or of their runs, for each class.
type Slots [classes]int

// Sum returns the sum of all classes.
func (s Slots) Sum() int { return s[Backup] + s[Restore] }

func (s Slots) noun() string {
	switch {
	case s[Restore] == 0:
		return Backup.String()
	case s[Backup] == 0:
		return Restore.String()
	}
	return "run"
}

// Run is the queue's view of a record.
type Run struct {
	Class Class
	// UID is unique among records of all kinds. A name may be reused while its earlier run executes.
	UID             types.UID
	Namespace, Name string

	// Phase is the record's; "" is New. The queue ignores phases other than New, Queued, ReadyToStart
	// and InProgress. Restores have the same names.
	Phase v1alpha1.BackupPhase
	// Cancelled takes a New or Queued run out of the queue. Others hold their slots until their phase
	// changes, since they may still read.
	Cancelled bool
	// Ticket is the run's place in the order, or 0. Of equal tickets, the older run comes first, then
	// the lesser name.
	Ticket int64

	CreatedAt time.Time
	// Version is a New run's record's, or 0. It orders New runs of one second.
	Version uint64
	// WaitingSince is when the run was queued, or else created; zero once it runs.
	WaitingSince time.Time

	// Plan is a restore that only plans. It overlaps nothing, and uses PlanSlots.
	Plan bool

	// Location is the storage location; the caller fills in the default.
	Location string
	// Selection may be shared. Nil is unreadable, and overlaps everything.
	Selection *selection.Namespaces
	// ClusterScoped is selection.Resources.TouchesClusterScope of a backup, or whether a restore writes
	// cluster-scoped objects.
	ClusterScoped bool
}

type rank int

const (
	// They use a slot, and block overlapping runs.
	rankRunning rank = iota
	rankReady
	rankQueued
	rankNew
	ranks
)

func rankOf(r *Run) rank {
	switch {
	case r.Phase == v1alpha1.BackupPhaseInProgress:
		return rankRunning
	case r.Phase == v1alpha1.BackupPhaseReadyToStart:
		return rankReady
	case r.Phase == v1alpha1.BackupPhaseQueued && !r.Cancelled:
		return rankQueued
	case (r.Phase == v1alpha1.BackupPhaseNew || r.Phase == "") && !r.Cancelled:
		return rankNew
	}
	return ranks
}

// State returns how the queue shows a run.
func (r *Run) State() v1alpha1.QueueState {
	switch r.Phase {
	case v1alpha1.BackupPhaseReadyToStart:
		return v1alpha1.QueueStateReady
	case v1alpha1.BackupPhaseQueued:
		return v1alpha1.QueueStateQueued
	}
	return v1alpha1.QueueStateRunning
}

func (r *Run) overlaps(other *Run) bool {
	if r.Plan || other.Plan {
		return false
	}
	return r.ClusterScoped && other.ClusterScoped || selection.Overlaps(r.Selection, other.Selection)
}

// LocationState is what is known of a storage location.
type LocationState struct {
	Available bool
	// NoBackups is true if restores may read from it, but no backup may begin.
	NoBackups bool
	// Message says why it is unavailable or takes no backups, for administrators only.
	Message string
}

// ErrLimit means a class without slots. No other input is refused: one odd record must not stop the
// queue.
var ErrLimit = errors.New("at least one backup and one restore must be able to run: set --concurrent-backups and --concurrent-restores to 1 or more")

func byArrival(a, b *Run) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Version, b.Version), byCreation(a, b))
}

func byCreation(a, b *Run) int {
	return cmp.Or(
		a.CreatedAt.Compare(b.CreatedAt),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.UID, b.UID),
	)
}

func byTicket(a, b *Run) int {
	if a.Ticket != b.Ticket {
		return cmp.Compare(a.Ticket, b.Ticket)
	}
	return byCreation(a, b)
}
