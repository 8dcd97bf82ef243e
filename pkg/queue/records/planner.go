// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Planner is the queue's, told of records. Like that one, it is not safe for
// concurrent use.
//
// It knows a run until RemoveRun is called, be there another record of the same name
// meanwhile or not.
type Planner struct {
	*queue.Planner

	runs     map[types.UID]*enginev1alpha1.BackupRun
	named    map[string]int // how many of the runs have a name
	selected map[types.UID]*Selection
	started  sets.Set[types.UID]
	loads    map[string]Load // by namespace of the Backup
}

// Selection is what a backup reads, as far as overlap goes. It does not change.
type Selection struct {
	// Namespaces is nil if the lists can't be read: that overlaps everything.
	Namespaces    *selection.Namespaces
	ClusterScoped bool
}

// Load counts the records of a namespace's backups.
type Load struct {
	// Records are all of them, and Waiting those that have not begun and are to.
	Records, Waiting int
}

// NewPlanner returns a Planner that knows of no records. Its error wraps
// queue.ErrLimit.
func NewPlanner(limit int) (*Planner, error) {
	planner, err := queue.NewPlanner(limit)
	if err != nil {
		return nil, err
	}
	return &Planner{
		Planner:  planner,
		runs:     map[types.UID]*enginev1alpha1.BackupRun{},
		named:    map[string]int{},
		selected: map[types.UID]*Selection{},
		loads:    map[string]Load{},
	}, nil
}

// Run is the record with this uid as UpdateRun was last told of it, or nil.
func (p *Planner) Run(uid types.UID) *enginev1alpha1.BackupRun { return p.runs[uid] }

// Knows reports whether UpdateRun needs no Selection of this run: it was told before,
// or the queue does not ask for it.
func (p *Planner) Knows(run *enginev1alpha1.BackupRun) bool {
	return p.selected[run.UID] != nil || !inQueue(run)
}

// Load is what the backups of a namespace take up. The records named, which are being
// created, count in any case.
func (p *Planner) Load(namespace string, coming sets.Set[string]) Load {
	load := p.loads[namespace]
	for name := range coming {
		if p.named[name] == 0 {
			load.Records, load.Waiting = load.Records+1, load.Waiting+1
		}
	}
	return load
}

// UpdateRun takes note of a record, in place of what was known of it, and reports whether
// the queue may be another one by that. What it selects is read from its spec unless it
// is known or given: a caller with a lock that others wait for gives it.
func (p *Planner) UpdateRun(run *enginev1alpha1.BackupRun, selected *Selection) bool {
	if known := p.runs[run.UID]; known != nil {
		p.count(known, -1)
	}
	p.runs[run.UID] = run
	p.count(run, 1)
	switch {
	case !inQueue(run):
		delete(p.selected, run.UID)
	case p.selected[run.UID] != nil:
	case selected != nil:
		p.selected[run.UID] = selected
	default:
		p.selected[run.UID] = Select(&run.Spec.Backup)
	}
	return p.Update(p.compile(run))
}

// RemoveRun forgets a run, and reports whether the queue may be another one by that.
func (p *Planner) RemoveRun(uid types.UID) bool {
	run := p.runs[uid]
	if run == nil {
		return false
	}
	delete(p.runs, uid)
	delete(p.selected, uid)
	p.count(run, -1)
	return p.Remove(uid)
}

func (p *Planner) count(run *enginev1alpha1.BackupRun, n int) {
	if p.named[run.Name] += n; p.named[run.Name] == 0 {
		delete(p.named, run.Name)
	}
	namespace := run.Spec.BackupRef.Namespace
	load := p.loads[namespace]
	load.Records += n
	if Unclaimed(run) && run.Spec.Cancellation == nil {
		load.Waiting += n
	}
	if load == (Load{}) {
		delete(p.loads, namespace)
	} else {
		p.loads[namespace] = load
	}
}

// SetStarted sets which runs are in the ledger. The Planner keeps the set: the
// caller must not change it.
func (p *Planner) SetStarted(started sets.Set[types.UID]) {
	before := p.started
	p.started = started
	for uid := range before.SymmetricDifference(started) {
		if run := p.runs[uid]; run != nil {
			p.Update(p.compile(run))
		}
	}
}

// SetStorageLocations sets the records of the storage locations.
func (p *Planner) SetStorageLocations(locations []*enginev1alpha1.StorageLocation) {
	states := make(map[string]queue.LocationState, len(locations))
	for _, location := range locations {
		states[location.Name] = locationState(location)
	}
	p.SetLocations(states)
}

// SetExistingNamespaces sets the namespaces that exist.
func (p *Planner) SetExistingNamespaces(namespaces []*corev1.Namespace) {
	names := make([]string, 0, len(namespaces))
	for _, namespace := range namespaces {
		names = append(names, namespace.Name)
	}
	p.SetNamespaces(names)
}

// compile is what the queue needs to know of a record.
func (p *Planner) compile(run *enginev1alpha1.BackupRun) queue.Run {
	result := queue.Run{
		UID:       run.UID,
		Namespace: run.Spec.BackupRef.Namespace,
		Name:      run.Spec.BackupRef.Name,
		Phase:     Phase(run, p.started),
		Cancelled: run.Spec.Cancellation != nil,
		Ticket:    run.Status.Ticket,
		CreatedAt: run.CreationTimestamp.Time,
		Location:  run.Spec.Backup.StorageLocation,
	}
	if result.Phase != v1alpha1.BackupPhaseInProgress {
		result.WaitingSince = WaitingSince(run)
	}
	if result.Phase == "" || result.Phase == v1alpha1.BackupPhaseNew {
		// One that is no number is of no use, and 0 says so.
		result.Version, _ = strconv.ParseUint(run.ResourceVersion, 10, 64)
	}
	if selected := p.selected[run.UID]; selected != nil { // else only its ticket matters
		result.Selection, result.ClusterScoped = selected.Namespaces, selected.ClusterScoped
	}
	return result
}

// inQueue reports whether it matters to others what the run selects.
func inQueue(run *enginev1alpha1.BackupRun) bool {
	phase := Phase(run, nil)
	return !phase.Ended() && phase != v1alpha1.BackupPhaseDeleting
}

// Select reads what a backup selects. Lists that can't be read overlap everything.
func Select(spec *v1alpha1.BackupSpec) *Selection {
	namespaces, errs := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, nil)
	if len(errs) > 0 {
		return &Selection{ClusterScoped: true}
	}
	resources, errs := selection.ParseResources(validation.ResourceLists(spec), namespaces, nil)
	return &Selection{Namespaces: namespaces, ClusterScoped: len(errs) > 0 || resources.TouchesClusterScope()}
}
