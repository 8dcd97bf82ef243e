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

// Class is a kind of runs, which has slots of its own.
type Class int

const (
	Backup Class = iota
	// Restores are ahead of the backups that wait.
	Restore
	classes
)

// String is what a run of the class stands for.
func (c Class) String() string { return [classes]string{"backup", "restore"}[c] }

// PlanSlots is how many plans may run at once, besides the restores.
const PlanSlots = 4

// Slots are numbers of slots, or of the runs that use them, for each class.
type Slots [classes]int

// Sum is that of all classes.
func (s Slots) Sum() int { return s[Backup] + s[Restore] }

// noun is what they are, if they are of one class.
func (s Slots) noun() string {
	switch {
	case s[Restore] == 0:
		return Backup.String()
	case s[Backup] == 0:
		return Restore.String()
	}
	return "run"
}

// Run is what the queue needs to know of the record of a live backup or restore.
type Run struct {
	Class Class
	// UID is the record's, which no other one has or will have, of whatever kind. A name
	// may be used again while a run that had it before is still being executed.
	UID types.UID
	// Namespace and Name are those of the Backup or Restore that people see.
	Namespace, Name string

	// Phase as the record has it; "" is New. New, Queued, ReadyToStart and
	// InProgress concern the queue, a run in any other phase is ignored. Those of
	// restores have the same names.
	Phase v1alpha1.BackupPhase
	// Cancelled: cancelling was asked for. A New or Queued run is then out of
	// the queue. One that is ready or runs holds what it held until its phase
	// says otherwise, since what has not stopped may still read.
	Cancelled bool
	// Ticket is the run's place in the order, 0 while it has none. No two runs
	// share one. Should they all the same, the older goes first, then the lesser
	// name.
	Ticket int64

	CreatedAt time.Time
	// Version is that of a New run's record, which increases with every change of any
	// record; 0 where it is not known. It tells New runs apart that were created in the same
	// second, which is as exact as CreatedAt is.
	Version uint64
	// WaitingSince is when the run was queued, or else created; zero once it runs.
	WaitingSince time.Time

	// Plan: a restore that only finds out what it would do. It overlaps nothing, and has slots
	// of its own: PlanSlots.
	Plan bool

	// Location is the storage location, with the default already filled in.
	Location string
	// Selection is compiled by the caller, who may share one value between
	// runs and snapshots. Nil means that it can't be read: it overlaps
	// everything.
	Selection *selection.Namespaces
	// ClusterScoped is selection.Resources.TouchesClusterScope of a backup, and
	// whether a restore writes cluster-scoped objects.
	ClusterScoped bool
}

// rank is the part of the line that a run stands in, which is ordered by it first.
type rank int

const (
	// Those that use a slot: they count towards the limit, and block whatever overlaps them.
	rankRunning rank = iota
	rankReady
	// Those that have a place in the queue.
	rankQueued
	// Those that are to get a ticket.
	rankNew
	// The queue has nothing to do with the others.
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

// State is how the queue shows a run that it concerns.
func (r *Run) State() v1alpha1.QueueState {
	switch r.Phase {
	case v1alpha1.BackupPhaseReadyToStart:
		return v1alpha1.QueueStateReady
	case v1alpha1.BackupPhaseQueued:
		return v1alpha1.QueueStateQueued
	}
	return v1alpha1.QueueStateRunning
}

// overlaps says whether the two may not run together.
func (r *Run) overlaps(other *Run) bool {
	if r.Plan || other.Plan {
		return false
	}
	return r.ClusterScoped && other.ClusterScoped || selection.Overlaps(r.Selection, other.Selection)
}

// LocationState is what is known of a storage location.
type LocationState struct {
	Available bool
	// NoBackups is true if restores may read from it, and no backup may begin.
	NoBackups bool
	// Message says why it is not available, or takes no backups. It is for administrators:
	// entries of a tenant don't show it.
	Message string
}

// ErrLimit is the error of a class with no slot. No other input is refused: one odd
// record must not stop the queue for its neighbours.
var ErrLimit = errors.New("at least one backup and one restore must be able to run: set --concurrent-backups and --concurrent-restores to 1 or more")

// byArrival orders New runs, whose version is that of their creation.
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
