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
	compiled map[types.UID]compiled
	started  sets.Set[types.UID]
}

// compiled is what the spec of a run selects. It does not change.
type compiled struct {
	namespaces    *selection.Namespaces
	clusterScoped bool
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
		compiled: map[types.UID]compiled{},
	}, nil
}

// Run is the record of this name as UpdateRun was last told of it, or nil.
func (p *Planner) Run(name string) *enginev1alpha1.BackupRun { return p.runs[name] }

// UpdateRun takes note of a record, in place of the one of the same name.
func (p *Planner) UpdateRun(run *enginev1alpha1.BackupRun) {
	if known := p.runs[run.Name]; known != nil && known.UID != run.UID {
		p.RemoveRun(known.Name)
	}
	p.runs[run.Name] = run
	p.names[run.UID] = run.Name
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
	delete(p.compiled, run.UID)
	p.Remove(name)
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
func (p *Planner) SetStorageLocations(locations []*enginev1alpha1.BackupStorageLocation) {
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
	if run.Status.Phase.Ended() || run.Deleting() {
		delete(p.compiled, run.UID)
		return result // only its ticket matters
	}
	selected := p.selected(run)
	result.Selection, result.ClusterScoped = selected.namespaces, selected.clusterScoped
	return result
}

func (p *Planner) selected(run *enginev1alpha1.BackupRun) compiled {
	if known, ok := p.compiled[run.UID]; ok {
		return known
	}
	var selected compiled
	selected.namespaces, selected.clusterScoped = Selected(&run.Spec.Backup)
	p.compiled[run.UID] = selected
	return selected
}

// Selected is what a backup reads, as far as overlap goes: namespaces, and whether
// cluster-scoped resources. What can't be read overlaps everything: nil, and true.
func Selected(spec *v1alpha1.BackupSpec) (*selection.Namespaces, bool) {
	namespaces, errs := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, nil)
	if len(errs) > 0 {
		return nil, true
	}
	resources, errs := selection.ParseResources(validation.ResourceLists(spec), namespaces, nil)
	if len(errs) > 0 {
		return namespaces, true
	}
	return namespaces, resources.TouchesClusterScope()
}
