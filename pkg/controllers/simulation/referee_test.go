// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/backuprun"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// referee sees each write of the cluster as it is made, and every execution, and
// says what breaks the rules. It judges by the true state, which no process knows.
type referee struct {
	mu         sync.Mutex
	violations []string
	runs       map[types.UID]*tracked
	// waiting have a ticket and have not begun, fresh have none yet, left have not
	// ended, and reading are being executed.
	waiting, fresh, left, reading map[types.UID]*tracked
	ledger                        map[types.UID]records.Start
	// ledgerLost is set when somebody has deleted it.
	ledgerLost bool
	processes  map[string]*process
	// elected is the process that holds the Lease, leader the one that the ledger names,
	// and led are all that it has named.
	elected, leader string
	led             sets.Set[string]
	// present are the runs whose record exists.
	present map[types.UID]*tracked
	// begun is when each process was launched: it knows what there was by then.
	begun  map[string]time.Time
	counts map[string]int
	// litter are runs that have ended and were never stored.
	litter []string
	// lastEnd is when a run ended the last time.
	lastEnd     time.Time
	mostWaiting int
	// down are the locations whose record says that they are unavailable, and wasDown is
	// when the record of each said so for the last time.
	down    map[string]bool
	wasDown map[string]time.Time
}

// tracked is the truth about a run.
type tracked struct {
	name    string
	restore bool
	// namespaces has a bit for each name of the universe that it selects.
	namespaces    uint64
	clusterScoped bool
	location      string
	valid         bool
	created       time.Time
	version       int

	phase    v1alpha1.BackupPhase
	ticket   int64
	queuedAt time.Time
	queuedBy string
	// begunAt is when it was claimed, or ended or was removed before, and cancelledAt when
	// that was asked for.
	begunAt, cancelledAt time.Time
	cancelled, deleted   bool
	stored               bool
	ends, executions     int
	executing            *process
}

func newReferee() *referee {
	return &referee{
		runs: map[types.UID]*tracked{}, waiting: map[types.UID]*tracked{}, fresh: map[types.UID]*tracked{},
		left: map[types.UID]*tracked{}, reading: map[types.UID]*tracked{},
		ledger: map[types.UID]records.Start{}, processes: map[string]*process{}, led: sets.New[string](),
		present: map[types.UID]*tracked{}, begun: map[string]time.Time{}, counts: map[string]int{},
		down: map[string]bool{}, wasDown: map[string]time.Time{},
	}
}

// universe are the namespaces that there may be: those of 8 teams with 8 each.
var universe = func() (names []string) {
	for _, team := range []string{"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"} {
		for _, app := range []string{"ci", "db", "dev", "doc", "ml", "ops", "qa", "web"} {
			names = append(names, team+"-"+app)
		}
	}
	return names
}()

// selects is what the lists select, found by trying each name.
func selects(included, excluded []string) (selected uint64, valid bool) {
	valid = true
	match := func(words []string, name string) bool {
		return slices.ContainsFunc(words, func(word string) bool {
			matches, err := path.Match(word, name)
			valid = valid && err == nil
			return matches
		})
	}
	for i, name := range universe {
		if (len(included) == 0 || match(included, name)) && !match(excluded, name) {
			selected |= 1 << i
		}
	}
	return selected, valid
}

func (t *tracked) overlaps(other *tracked) bool {
	return t.namespaces&other.namespaces != 0 || t.clusterScoped && other.clusterScoped
}

// precedes reports whether a run comes before another one in the queue: restores come before
// backups.
func (t *tracked) precedes(other *tracked) bool {
	if t.restore != other.restore {
		return t.restore
	}
	return t.ticket < other.ticket
}

func (r *referee) violation(format string, args ...any) {
	if len(r.violations) < 10 {
		r.violations = append(r.violations, fmt.Sprintf("%s: ", time.Now().Format("15:04:05.000"))+fmt.Sprintf(format, args...))
	}
}

func (r *referee) count(what string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[what] += n
}

// refused counts a write of the queue that the cluster has refused.
func (r *referee) refused(by string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[queueRefused]++
	if r.elected != by {
		r.counts[queueLate]++
	}
}

func (r *referee) launched(p *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes[p.name] = p
	r.begun[p.name] = time.Now()
}

// observe is called for each write.
func (r *referee) observe(action clienttesting.Action, obj runtime.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var manager string
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		manager = action.CreateOptions.FieldManager
	case clienttesting.UpdateActionImpl:
		manager = action.UpdateOptions.FieldManager
		if accessor, err := meta.Accessor(action.GetObject()); err == nil && accessor.GetResourceVersion() == "" {
			r.violation("%s wrote over whatever %s had become", manager, accessor.GetName())
		}
	}
	by, part, _ := strings.Cut(manager, " ")
	removed := action.GetVerb() == "delete"
	switch obj := obj.(type) {
	case enginev1alpha1.QueuedRun:
		if removed {
			r.runDeleted(r.runs[obj.GetUID()], obj.GetUID())
		} else {
			r.runWritten(by, part, obj)
		}
	case *enginev1alpha1.StorageLocation:
		r.locationWritten(obj.Name, !removed && meta.IsStatusConditionTrue(obj.Status.Conditions, enginev1alpha1.ConditionAvailable))
	case *corev1.ConfigMap:
		if removed {
			r.ledgerDeleted()
		} else {
			r.ledgerWritten(by, part, obj)
		}
	case *coordinationv1.Lease:
		if r.elected = ""; !removed {
			r.elected = *obj.Spec.HolderIdentity
		}
	}
}

func (t *tracked) begins() {
	if t.begunAt.IsZero() {
		t.begunAt = time.Now()
	}
}

func (r *referee) runDeleted(t *tracked, uid types.UID) {
	t.deleted = true
	t.begins()
	delete(r.waiting, uid)
	delete(r.fresh, uid)
	delete(r.left, uid)
	delete(r.present, uid)
}

// order is the way from the creation of a run to its end.
func order(phase v1alpha1.BackupPhase) int {
	switch {
	case phase == "":
		return 0
	case phase == v1alpha1.BackupPhaseQueued:
		return 1
	case phase == v1alpha1.BackupPhaseInProgress:
		return 2
	case phase.Ended():
		return 3
	}
	return -1 // never written
}

func (r *referee) runWritten(by, part string, run enginev1alpha1.QueuedRun) {
	t := r.runs[run.GetUID()]
	if t == nil {
		t = &tracked{name: run.GetName(), created: run.GetCreationTimestamp().Time}
		switch run := run.(type) {
		case *enginev1alpha1.BackupRun:
			spec := &run.Spec.Backup
			t.location = spec.StorageLocation
			t.namespaces, t.valid = selects(spec.IncludedNamespaces, spec.ExcludedNamespaces)
			t.clusterScoped = spec.IncludeClusterResources != nil && *spec.IncludeClusterResources
		case *enginev1alpha1.RestoreRun:
			t.restore, t.location = true, run.Spec.Backup.StorageLocation
			t.namespaces, t.valid = selects(run.Spec.TargetNamespaces, nil)
			t.clusterScoped = run.Spec.ClusterScoped
		}
		r.runs[run.GetUID()], r.present[run.GetUID()] = t, t
	}
	status := run.Standing()
	executor, stored := "", false
	switch run := run.(type) {
	case *enginev1alpha1.BackupRun:
		executor, stored = run.Status.Executor, run.Status.Stored
	case *enginev1alpha1.RestoreRun:
		executor, stored = run.Status.Executor, run.Status.Stored
	}
	if status.Ticket != t.ticket {
		r.ticketGiven(by, t, status.Ticket)
	}
	if t.phase == v1alpha1.BackupPhaseInProgress && status.Phase == v1alpha1.BackupPhaseQueued && t.executions == 0 {
		r.counts[givenBack]++
		t.begunAt = time.Time{}
	} else if order(status.Phase) < order(t.phase) {
		r.violation("%s went from %q back to %q, by %s", t.name, t.phase, status.Phase, by)
	}
	if t.phase.Ended() && t.phase != status.Phase && t.stored {
		r.violation("%s had ended %s for good, and %s made that %s", t.name, t.phase, by, status.Phase)
	}
	if order(status.Phase) > 1 {
		t.begins()
	}
	if status.Phase == v1alpha1.BackupPhaseInProgress && t.phase != status.Phase && executor != by {
		r.violation("%s was claimed by %s for %s", t.name, by, executor)
	}
	if status.Phase.Ended() && !t.phase.Ended() {
		t.ends++
		r.lastEnd = time.Now()
		if part == queuePart {
			r.counts[endWrites]++
		}
	}
	if p := status.Phase; p != t.phase && !t.restore && (p == v1alpha1.BackupPhaseFailedValidation || p == v1alpha1.BackupPhaseCancelled && status.StartTimestamp == nil) {
		r.litter = append(r.litter, t.name)
	}
	t.phase, t.stored = status.Phase, stored
	if t.cancelled = run.Asked().Cancellation != nil; t.cancelled && t.cancelledAt.IsZero() {
		t.cancelledAt = time.Now()
	}
	t.version, _ = strconv.Atoi(run.GetResourceVersion())
	keep(r.left, run.GetUID(), t, !t.phase.Ended())
	keep(r.fresh, run.GetUID(), t, t.phase == "" && t.valid && !t.cancelled)
	keep(r.waiting, run.GetUID(), t, t.phase == v1alpha1.BackupPhaseQueued && !t.cancelled)
	r.mostWaiting = max(r.mostWaiting, len(r.waiting))
	r.checkActive()
}

// locationWritten takes note of what the record of a location says from now on.
func (r *referee) locationWritten(name string, available bool) {
	if r.down[name] || !available {
		r.wasDown[name] = time.Now()
	}
	if !r.down[name] && !available {
		r.counts[outages]++
	}
	r.down[name] = !available
}

// mayBeHeld reports whether a process that knows what there was at a moment may believe
// that the location of a run is unavailable. Such a run reserves nothing.
func (r *referee) mayBeHeld(t *tracked, knew time.Time) bool {
	return r.down[t.location] || !r.wasDown[t.location].Before(knew)
}

func keep(in map[types.UID]*tracked, uid types.UID, t *tracked, wanted bool) {
	if wanted {
		in[uid] = t
	} else {
		delete(in, uid)
	}
}

// ticketGiven judges a ticket. Two leaders that do not know of each other may give
// the same one, but none gives one that it must know to be outdated.
func (r *referee) ticketGiven(by string, t *tracked, ticket int64) {
	r.counts[ticketWrites]++
	if t.ticket != 0 {
		r.violation("%s has ticket %d, and %s made that %d", t.name, t.ticket, by, ticket)
	}
	for _, other := range r.present {
		if knows := other.queuedBy == by || other.queuedAt.Before(r.begun[by]); knows && ticket <= other.ticket {
			r.violation("%s gave %s the ticket %d, and knew that %s has %d", by, t.name, ticket, other.name, other.ticket)
		}
	}
	for _, other := range r.fresh {
		if other.restore != t.restore {
			continue // seen by other watches, and restores come first anyway
		}
		if before := other.created.Compare(t.created); before < 0 || before == 0 && other.version < t.version {
			r.violation("%s gave %s a ticket before %s, which is older", by, t.name, other.name)
		}
	}
	t.ticket, t.queuedAt, t.queuedBy = ticket, time.Now(), by
}

// checkActive judges what is let run at once, by the records.
func (r *referee) checkActive() {
	active := map[types.UID]*tracked{}
	for uid := range r.ledger {
		if t := r.runs[uid]; t != nil && !t.phase.Ended() {
			active[uid] = t
		}
	}
	r.checkTogether("by the records", slices.Collect(maps.Values(active)))
}

func (r *referee) checkTogether(how string, active []*tracked) {
	restores := 0
	for _, t := range active {
		if t.restore {
			restores++
		}
	}
	if restores > limit || len(active)-restores > limit {
		r.violation("%d backups and %d restores run at once, %s", len(active)-restores, restores, how)
	}
	for i, t := range active {
		for _, other := range active[:i] {
			if t.overlaps(other) {
				r.violation("%s and %s run at once, %s, and overlap", t.name, other.name, how)
			}
		}
	}
}

// reads reports whether a run is being executed by the process that is elected. One that
// was reads on, when it wakes up, until it notices.
func (r *referee) reads(t *tracked) bool {
	return t.executing != nil && !t.executing.isDead() && r.elected == t.executing.name
}

// abandons is called when a process ends a run that it does not execute.
func (r *referee) abandons(p *process, run *enginev1alpha1.BackupRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.runs[run.UID]; r.reads(t) && t.executing != p {
		r.violation("%s ended %s, which %s still reads", p.name, t.name, t.executing.name)
	}
}

// executes is called when a run begins to be executed.
func (r *referee) executes(p *process, run enginev1alpha1.QueuedRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.runs[run.GetUID()]
	if r.reads(t) && t.executing != p {
		r.violation("%s is executed by %s, and %s still reads it", t.name, p.name, t.executing.name)
	}
	t.executing = p
	if t.executions++; t.executions > 1 {
		r.counts[executedAgain]++
	}
	most := backuprun.MaxAttempts
	if t.restore {
		most = restoreAttempts
	}
	if b, ok := run.(*enginev1alpha1.BackupRun); ok {
		most += int(b.Status.GivenBack)
	}
	if t.executions > most {
		r.violation("%s is executed for the %d. time, by %s", t.name, t.executions, p.name)
	}
	if _, started := r.ledger[run.GetUID()]; r.elected == p.name && (!started || r.leader != p.name) {
		r.violation("%s is executed by %s, and the ledger of %s has %t", t.name, p.name, r.leader, started)
	}
	var reading []*tracked
	r.reading[run.GetUID()] = t
	for _, t := range r.reading {
		if r.reads(t) {
			reading = append(reading, t)
		}
	}
	r.checkTogether("really", reading)
}

// stops is called when a process executes a run no more. Another one may have taken it over.
func (r *referee) stops(p *process, run enginev1alpha1.QueuedRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.runs[run.GetUID()]; t.executing == p {
		t.executing = nil
		delete(r.reading, run.GetUID())
	}
}

func (r *referee) violated() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.violations) > 0
}

// last is when a run ended the last time.
func (r *referee) last() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastEnd
}

// pick returns a run that has not ended, or nil: each phase as likely.
func (r *referee) pick(random *rand.Rand) *tracked {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds [3][]*tracked
	for uid, t := range r.left {
		kind := 0
		if _, started := r.ledger[uid]; t.phase == v1alpha1.BackupPhaseInProgress {
			kind = 2
		} else if started {
			kind = 1
		}
		kinds[kind] = append(kinds[kind], t)
	}
	runs := kinds[random.IntN(len(kinds))]
	slices.SortFunc(runs, func(a, b *tracked) int { return cmp.Compare(a.name, b.name) })
	if len(runs) == 0 {
		return nil
	}
	return runs[random.IntN(len(runs))]
}

func (r *referee) takeLitter() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	litter := r.litter
	r.litter = nil
	return litter
}
