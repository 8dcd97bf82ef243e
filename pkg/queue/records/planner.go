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
type Planner struct {
	*queue.Planner

	runs     map[string]*enginev1alpha1.BackupRun // by name
	names    map[types.UID]string                 // of runs
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
		runs:     map[string]*enginev1alpha1.BackupRun{},
		names:    map[types.UID]string{},
		selected: map[types.UID]*Selection{},
		loads:    map[string]Load{},
	}, nil
}

// Run is the record of this name as UpdateRun was last told of it, or nil.
func (p *Planner) Run(name string) *enginev1alpha1.BackupRun { return p.runs[name] }

// Knows reports whether UpdateRun needs no Selection of this run: it was told before,
// or the queue does not ask for it.
func (p *Planner) Knows(run *enginev1alpha1.BackupRun) bool {
	return p.selected[run.UID] != nil || !inQueue(run)
}

// Load is what the backups of a namespace take up.
func (p *Planner) Load(namespace string) Load { return p.loads[namespace] }

// UpdateRun takes note of a record, in place of the one of the same name. What it
// selects is read from its spec unless it is known or given: a caller with a lock
// that others wait for gives it.
func (p *Planner) UpdateRun(run *enginev1alpha1.BackupRun, selected *Selection) {
	known := p.runs[run.Name]
	if known != nil && known.UID != run.UID {
		p.RemoveRun(known.Name)
	} else if known != nil {
		p.count(known, -1)
	}
	p.runs[run.Name] = run
	p.names[run.UID] = run.Name
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
	p.Update(p.compile(run))
}

// RemoveRun takes note that there is no record of this name any more.
func (p *Planner) RemoveRun(name string) {
	run := p.runs[name]
	if run == nil {
		return
	}
	delete(p.runs, name)
	delete(p.names, run.UID)
	delete(p.selected, run.UID)
	p.count(run, -1)
	p.Remove(name)
}

func (p *Planner) count(run *enginev1alpha1.BackupRun, n int) {
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
		if run := p.runs[p.names[uid]]; run != nil {
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
		Key:       run.Name,
		Namespace: run.Spec.BackupRef.Namespace,
		Name:      run.Spec.BackupRef.Name,
		UID:       string(run.UID),
		Phase:     Phase(run, p.started),
		Cancelled: run.Spec.Cancellation != nil,
		Ticket:    run.Status.Ticket,
		CreatedAt: run.CreationTimestamp.Time,
		QueuedAt:  WaitingSince(run),
		Location:  run.Spec.Backup.StorageLocation,
	}
	// One that is no number is of no use, and 0 says so.
	result.Version, _ = strconv.ParseUint(run.ResourceVersion, 10, 64)
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
