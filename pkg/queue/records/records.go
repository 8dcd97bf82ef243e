// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package records turns the durable records into the queue's input, the same way
// for the controller, which acts on the queue, and for the API server, which
// shows it. The records are the runs, and the ledger of those that were let start.
package records

import (
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

const (
	// SettingsName is the name of the ConfigMap, in the system namespace, through
	// which the controller tells the API server how it runs the queue.
	SettingsName = "holdfast-queue"
	// ConcurrentBackupsKey is its key for the number of slots.
	ConcurrentBackupsKey = "concurrentBackups"
	// DefaultConcurrentBackups is the number of slots unless it is set.
	DefaultConcurrentBackups = 1
)

// Limit is the number of slots that the settings tell; the default while there
// are none that can be read.
func Limit(settings *corev1.ConfigMap) int {
	if settings != nil {
		if n, err := strconv.Atoi(settings.Data[ConcurrentBackupsKey]); err == nil && n >= 1 {
			return n
		}
	}
	return DefaultConcurrentBackups
}

// Compiler compiles the selections of runs, each once. It is safe for
// concurrent use.
type Compiler struct {
	mu       sync.Mutex
	compiled map[types.UID]compiled
}

type compiled struct {
	namespaces    *selection.Namespaces
	clusterScoped bool
}

// NewCompiler returns an empty Compiler.
func NewCompiler() *Compiler { return &Compiler{compiled: map[types.UID]compiled{}} }

// Forget drops what is kept for a run that is gone.
func (c *Compiler) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.compiled, uid)
}

// Run is what the queue needs to know of a record. started are the runs in the
// ledger.
func (c *Compiler) Run(run *enginev1alpha1.BackupRun, started sets.Set[types.UID]) queue.Run {
	result := queue.Run{
		Key:       run.Name,
		Namespace: run.Spec.BackupRef.Namespace,
		Name:      run.Spec.BackupRef.Name,
		UID:       string(run.UID),
		Phase:     Phase(run, started),
		Cancelled: run.Spec.Cancellation != nil,
		Ticket:    run.Status.Ticket,
		CreatedAt: run.CreationTimestamp.Time,
		Location:  run.Spec.Backup.StorageLocation,
	}
	// One that is no number is of no use, and 0 says so.
	result.Version, _ = strconv.ParseUint(run.ResourceVersion, 10, 64)
	if run.Status.QueuedTimestamp != nil {
		result.QueuedAt = run.Status.QueuedTimestamp.Time
	}
	if run.Status.Phase.Ended() || run.Spec.Deletion != nil {
		return result // only its ticket matters
	}
	selected := c.compile(run)
	result.Selection, result.ClusterScoped = selected.namespaces, selected.clusterScoped
	return result
}

func (c *Compiler) compile(run *enginev1alpha1.BackupRun) compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.compiled[run.UID]; ok {
		return known // the spec of a run does not change
	}
	spec := &run.Spec.Backup
	// What can't be read overlaps everything: nil namespaces, and cluster scope.
	result := compiled{clusterScoped: true}
	if namespaces, errs := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, nil); len(errs) == 0 {
		result.namespaces = namespaces
		if resources, errs := selection.ParseResources(validation.ResourceLists(spec), namespaces, nil); len(errs) == 0 {
			result.clusterScoped = resources.TouchesClusterScope()
		}
	}
	c.compiled[run.UID] = result
	return result
}

// Location is what the queue needs to know of a storage location. A location
// that has not been probed yet is not available.
func Location(location *enginev1alpha1.BackupStorageLocation) queue.LocationState {
	condition := meta.FindStatusCondition(location.Status.Conditions, enginev1alpha1.ConditionAvailable)
	switch {
	case condition == nil:
		return queue.LocationState{Message: "it has not been checked yet"}
	case condition.Status == "True":
		return queue.LocationState{Available: true}
	}
	return queue.LocationState{Message: condition.Message}
}
