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

// Planner is the queue's Planner, told of records. It is not safe for concurrent use. It knows a run
// until RemoveRun, even if another record has its name.
type Planner struct {
	*queue.Planner

	runs     map[types.UID]enginev1alpha1.QueuedRun
	named    map[place]int
	selected map[types.UID]*Selection
	started  sets.Set[types.UID]
	loads    map[place]Load
}

type place struct {
	class queue.Class
	name  string
}

// Selection is what a backup reads or a restore writes. It does not change.
type Selection struct {
	// Namespaces is nil for unreadable lists: that overlaps everything.
	Namespaces    *selection.Namespaces
	ClusterScoped bool
}

// Load counts a namespace's records of backups or restores.
type Load struct {
	// Records are all; Waiting have not begun.
	Records, Waiting int
}

// NewPlanner returns an empty Planner. Its error wraps queue.ErrLimit.
func NewPlanner(limits queue.Slots) (*Planner, error) {
	planner, err := queue.NewPlanner(limits)
	if err != nil {
		return nil, err
	}
	return &Planner{
		Planner:  planner,
		runs:     map[types.UID]enginev1alpha1.QueuedRun{},
		named:    map[place]int{},
		selected: map[types.UID]*Selection{},
		loads:    map[place]Load{},
	}, nil
}

// Run returns the last known record with this uid, or nil.
func (p *Planner) Run(uid types.UID) enginev1alpha1.QueuedRun { return p.runs[uid] }

// Knows reports whether UpdateRun needs no Selection of this run.
func (p *Planner) Knows(run enginev1alpha1.QueuedRun) bool {
	return p.selected[run.GetUID()] != nil || !inQueue(run)
}

// Load returns a namespace's load, with records that are being created, named in coming.
func (p *Planner) Load(class queue.Class, namespace string, coming sets.Set[string]) Load {
	load := p.loads[place{class, namespace}]
	for name := range coming {
		if p.named[place{class, name}] == 0 {
			load.Records, load.Waiting = load.Records+1, load.Waiting+1
		}
	}
	return load
}

// UpdateRun records a run's state, and reports a possible change of the queue. It parses an unknown
// selection, unless a caller with a contended lock gives it.
func (p *Planner) UpdateRun(run enginev1alpha1.QueuedRun, selected *Selection) bool {
	uid := run.GetUID()
	if known := p.runs[uid]; known != nil {
		p.count(known, -1)
	}
	p.runs[uid] = run
	p.count(run, 1)
	switch {
	case !inQueue(run):
		delete(p.selected, uid)
	case p.selected[uid] != nil:
	case selected != nil:
		p.selected[uid] = selected
	default:
		p.selected[uid] = Select(run)
	}
	return p.Update(p.compile(run))
}

// RemoveRun forgets a run, and reports a possible change of the queue.
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

func (p *Planner) count(run enginev1alpha1.QueuedRun, n int) {
	asked := run.Asked()
	name, namespace := place{ClassOf(run), run.GetName()}, place{ClassOf(run), asked.Ref.Namespace}
	if p.named[name] += n; p.named[name] == 0 {
		delete(p.named, name)
	}
	load := p.loads[namespace]
	load.Records += n
	if Unclaimed(run) && asked.Cancellation == nil {
		load.Waiting += n
	}
	if load == (Load{}) {
		delete(p.loads, namespace)
	} else {
		p.loads[namespace] = load
	}
}

// SetStarted sets the runs in the ledger. Don't change the set.
func (p *Planner) SetStarted(started sets.Set[types.UID]) {
	before := p.started
	p.started = started
	for uid := range before.SymmetricDifference(started) {
		if run := p.runs[uid]; run != nil {
			p.Update(p.compile(run))
		}
	}
}

// SetStorageLocations sets the records of storage locations.
func (p *Planner) SetStorageLocations(locations []*enginev1alpha1.StorageLocation) {
	states := make(map[string]queue.LocationState, len(locations))
	for _, location := range locations {
		states[location.Name] = locationState(location)
	}
	p.SetLocations(states)
}

// SetExistingNamespaces sets the existing namespaces.
func (p *Planner) SetExistingNamespaces(namespaces []*corev1.Namespace) {
	names := make([]string, 0, len(namespaces))
	for _, namespace := range namespaces {
		names = append(names, namespace.Name)
	}
	p.SetNamespaces(names)
}

func (p *Planner) compile(run enginev1alpha1.QueuedRun) queue.Run {
	asked := run.Asked()
	result := queue.Run{
		Class:     ClassOf(run),
		UID:       run.GetUID(),
		Namespace: asked.Ref.Namespace,
		Name:      asked.Ref.Name,
		Phase:     Phase(run, p.started),
		Cancelled: asked.Cancellation != nil,
		Ticket:    run.Standing().Ticket,
		CreatedAt: run.GetCreationTimestamp().Time,
		Location:  asked.Location,
		Plan:      isPlan(run),
	}
	if result.Phase != v1alpha1.BackupPhaseInProgress {
		result.WaitingSince = WaitingSince(run)
	}
	if result.Phase == "" || result.Phase == v1alpha1.BackupPhaseNew {
		// 0 if it is no number
		result.Version, _ = strconv.ParseUint(run.GetResourceVersion(), 10, 64)
	}
	if selected := p.selected[result.UID]; selected != nil { // else only its ticket matters
		result.Selection, result.ClusterScoped = selected.Namespaces, selected.ClusterScoped
	}
	return result
}

func isPlan(run enginev1alpha1.QueuedRun) bool {
	restore, ok := run.(*enginev1alpha1.RestoreRun)
	return ok && restore.Spec.Restore.PlanOnly
}

// inQueue reports whether a run's selection matters to others.
func inQueue(run enginev1alpha1.QueuedRun) bool {
	phase := Phase(run, nil)
	return !phase.Ended() && phase != v1alpha1.BackupPhaseDeleting && phase != v1alpha1.BackupPhaseWaitingForPluginOperations
}

// Select returns what a backup reads or a restore writes. Unreadable lists overlap everything.
func Select(run enginev1alpha1.QueuedRun) *Selection {
	if restore, ok := run.(*enginev1alpha1.RestoreRun); ok {
		// On an error they are nil. No names mean any, as for a backup.
		namespaces, _ := selection.ParseNamespaces(restore.Spec.TargetNamespaces, nil, nil)
		return &Selection{Namespaces: namespaces, ClusterScoped: restore.Spec.ClusterScoped || namespaces == nil}
	}
	spec := &run.(*enginev1alpha1.BackupRun).Spec.Backup
	namespaces, errs := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, nil)
	if len(errs) > 0 {
		return &Selection{ClusterScoped: true}
	}
	resources, errs := selection.ParseResources(validation.ResourceLists(spec), namespaces, nil)
	return &Selection{Namespaces: namespaces, ClusterScoped: len(errs) > 0 || resources.TouchesClusterScope()}
}
