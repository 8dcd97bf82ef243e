// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Check returns what is wrong with a history: backups that did not end, or ended or
// were begun twice; that overlapped one that held a slot at the same time; that were
// more than limit; or that were let start while one that overlaps them waited ahead,
// and not for its storage location.
// A backup holds its slot from its entry into the ledger to its end. Before, it gives it back
// when it only moves data, or leaves the ledger unclaimed.
func (h *History) Check(limit int) []error {
	c := &checker{
		limit: limit, runs: map[types.UID]*state{}, ledger: map[types.UID]records.Start{}, holding: map[types.UID]bool{},
		down: map[string]bool{}, wasDown: map[string]uint64{},
	}
	for _, v := range h.versions {
		c.version = v.number
		switch {
		case v.run != nil:
			c.run(v.run)
		case v.location != nil:
			c.location(v.location, v.unanswered)
		default:
			c.setLedger(v)
		}
		c.slots()
	}
	for _, s := range c.inOrder() {
		if s.latest.Spec.Deletion != nil && s.latest.Spec.Deletion.Stored != nil {
			continue // it stands for a backup that had ended before
		}
		if !s.latest.Status.Phase.Ended() {
			c.fail("%s has not ended: its phase is %q", s.latest.Name, s.latest.Status.Phase)
		}
	}
	return c.errs
}

type checker struct {
	limit   int
	version uint64 // where it is
	runs    map[types.UID]*state
	ledger  map[types.UID]records.Start
	leader  string             // by the ledger
	holding map[types.UID]bool // those that held a slot in the version before
	// down are the storage locations that are unavailable, and wasDown the last version
	// in which each was.
	down    map[string]bool
	wasDown map[string]uint64
	errs    []error
}

// state is a run as it is in a version.
type state struct {
	latest *enginev1alpha1.BackupRun
	// What it reads, as far as overlap goes.
	namespaces    *selection.Namespaces
	clusterScoped bool
	claims        int
	queued        uint64 // the version in which it took its place
}

func (c *checker) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("version %d: "+format, append([]any{c.version}, args...)...))
}

// run follows a run to its next version.
func (c *checker) run(run *enginev1alpha1.BackupRun) {
	s := c.runs[run.UID]
	if s == nil {
		s = &state{latest: &enginev1alpha1.BackupRun{}}
		selected := records.Select(run)
		s.namespaces, s.clusterScoped = selected.Namespaces, selected.ClusterScoped
		c.runs[run.UID] = s
	}
	before, after := s.latest.Status, run.Status
	s.latest = run
	from, to := before.Phase, after.Phase
	if before.Ticket != 0 && before.Ticket != after.Ticket {
		c.fail("%s had the ticket %d, and then %d", run.Name, before.Ticket, after.Ticket)
	}
	resumed := begun(from) && to == from && after.Attempts == max(before.Attempts, 1)+1
	if before.Executor != "" && before.Executor != after.Executor && !resumed {
		c.fail("%s was executed by %s, and then by %s", run.Name, before.Executor, after.Executor)
	}
	if from == to {
		return
	}
	switch {
	case from.Ended():
		c.fail("%s had ended as %s, and became %s", run.Name, from, to)
	case to == v1alpha1.BackupPhaseQueued && from == "":
		s.queued = c.version
	case to == v1alpha1.BackupPhaseInProgress:
		s.claims++
		switch _, ok := c.ledger[run.UID]; {
		case s.claims > 1:
			c.fail("%s was begun %d times", run.Name, s.claims)
		case from != v1alpha1.BackupPhaseQueued:
			c.fail("%s was begun as %q, and not from the queue", run.Name, from)
		case !ok:
			c.fail("%s was begun without a start in the ledger", run.Name)
		case c.leader != after.Executor:
			c.fail("%s was begun by %s, and %s led", run.Name, after.Executor, c.leader)
		}
	case to.Ended() && begun(from):
	case to == v1alpha1.BackupPhaseWaitingForPluginOperations && from == v1alpha1.BackupPhaseInProgress:
	case to == v1alpha1.BackupPhaseCancelled, to == v1alpha1.BackupPhaseFailedValidation:
	default:
		c.fail("%s went from %q to %q", run.Name, from, to)
	}
}

func begun(phase v1alpha1.BackupPhase) bool {
	return phase == v1alpha1.BackupPhaseInProgress || phase == v1alpha1.BackupPhaseWaitingForPluginOperations
}

func (c *checker) setLedger(v version) {
	starts, err := records.Ledger(v.ledger)
	if errors.Is(err, records.ErrNoLedger) && len(c.ledger) == 0 {
		return // the ConfigMap is made first, and then the ledger of what runs since
	}
	if err != nil {
		c.fail("%w", err)
		return
	}
	before := c.ledger
	c.leader = records.Leader(v.ledger)
	c.ledger = map[types.UID]records.Start{}
	for _, start := range starts {
		c.ledger[start.UID] = start
	}
	for uid, start := range before {
		_, still := c.ledger[uid]
		if s := c.runs[uid]; !still && s != nil && s.latest.Status.Phase == v1alpha1.BackupPhaseInProgress {
			c.fail("%s left the ledger while it was in progress", start.Name)
		}
	}
}

// location follows a storage location to its next version. An unanswered write brings it back when
// a later version says so.
func (c *checker) location(location *enginev1alpha1.StorageLocation, unanswered bool) {
	name := location.Name
	if c.down[name] {
		c.wasDown[name] = c.version
	}
	c.down[name] = c.down[name] && unanswered || !meta.IsStatusConditionTrue(location.Status.Conditions, enginev1alpha1.ConditionAvailable)
	if c.down[name] {
		c.wasDown[name] = c.version
	}
}

// mayBeHeld reports whether the controller may believe that the storage location of a
// waiting run is unavailable: such a run may be passed. The controller learns of a
// change late, so it counts if the location was down at any time since the run waits.
func (c *checker) mayBeHeld(s *state) bool {
	name := s.latest.Spec.Backup.StorageLocation
	return c.down[name] || c.wasDown[name] > s.queued
}

// holds reports whether a run holds a slot.
func (c *checker) holds(s *state) bool {
	_, started := c.ledger[s.latest.UID]
	phase := s.latest.Status.Phase
	return phase == v1alpha1.BackupPhaseInProgress || started && !phase.Ended() && phase != v1alpha1.BackupPhaseWaitingForPluginOperations
}

// slots looks at those that have got a slot since the version before.
func (c *checker) slots() {
	holding := map[types.UID]bool{}
	var got []*state
	for uid, s := range c.runs {
		if !c.holds(s) {
			continue
		}
		holding[uid] = true
		if !c.holding[uid] {
			got = append(got, s)
		}
	}
	c.holding = holding
	if len(got) == 0 {
		return
	}
	if len(holding) > c.limit {
		c.fail("%d backups hold a slot, and the limit is %d", len(holding), c.limit)
	}
	runs := c.inOrder()
	for i, s := range got {
		for _, other := range runs {
			switch {
			case other == s || slices.Contains(got[:i], other) || !overlap(s, other):
			case holding[other.latest.UID]:
				c.fail("%s and %s overlap, and both hold a slot", s.latest.Name, other.latest.Name)
			case waits(other) && !c.mayBeHeld(other) && other.latest.Status.Ticket < s.latest.Status.Ticket:
				c.fail("%s with ticket %d was let start, and %s with ticket %d, which it overlaps, waits",
					s.latest.Name, s.latest.Status.Ticket, other.latest.Name, other.latest.Status.Ticket)
			}
		}
	}
}

func waits(s *state) bool {
	return s.latest.Status.Phase == v1alpha1.BackupPhaseQueued && s.latest.Spec.Cancellation == nil
}

func overlap(a, b *state) bool {
	return selection.Overlaps(a.namespaces, b.namespaces) || a.clusterScoped && b.clusterScoped
}

// inOrder are the runs, in an order that is the same in each test.
func (c *checker) inOrder() []*state {
	return slices.SortedFunc(maps.Values(c.runs), func(a, b *state) int {
		return cmp.Compare(a.latest.Name, b.latest.Name)
	})
}
