// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// PlanningREST is a REST that answers a dry run of a creation with the backup's plan, after all checks. Like
// manifests, it names cluster-scoped objects only to readers of all namespaces.
type PlanningREST struct {
	*REST
	// Plan has a backup planned by a process that may read the cluster, without a record.
	Plan  func(ctx context.Context, run *enginev1alpha1.BackupRun) (*v1alpha1.BackupPlan, error)
	Place func(run *enginev1alpha1.BackupRun) *v1alpha1.PlannedPlace // in the queue, or nil
}

var _ rest.Creater = &PlanningREST{}

// Create implements rest.Creater. If a dry run has no plan, a warning says why.
func (r *PlanningREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	created, err := r.REST.Create(ctx, obj, validate, options)
	if err != nil || len(options.DryRun) == 0 {
		return created, err
	}
	backup := created.DeepCopyObject().(*v1alpha1.Backup)
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return created, nil
	}
	run := plannedRun(backup, requester)
	plan, err := r.Plan(ctx, run)
	if err != nil {
		warning.AddWarning(ctx, "", fmt.Sprintf("the dry run has no plan, since the controller did not compute it: %v: the backup is valid all the same; try again to see its plan", err))
		return backup, nil
	}
	if err := r.complete(ctx, plan, run, r.planReader(requester)); err != nil {
		return nil, err
	}
	backup.Status.Plan = plan
	return backup, nil
}

func plannedRun(backup *v1alpha1.Backup, requester user.Info) *enginev1alpha1.BackupRun {
	by := recorded.Requester(requester)
	by.Extra = requester.GetExtra()
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: backup.Name, UID: backup.UID, CreationTimestamp: backup.CreationTimestamp},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: backup.Namespace, Name: backup.Name},
			Labels:    backup.Labels, Annotations: backup.Annotations, Requester: by, Backup: backup.Spec,
		},
	}
}

// planReader returns a plan's reader, with the rights of a reader of manifests.
func (r *PlanningREST) planReader(requester user.Info) *reader {
	kind := r.Kind.(*kind)
	return &reader{
		Info: requester, authorizer: kind.authorizer, subresource: "manifest", system: kind.systemNamespace,
		own: "-", // no namespace's name: the right is asked for in each
		may: map[schema.GroupVersionResource]map[string]bool{},
	}
}

// complete adds the place in the queue, and removes names that the reader may not know.
func (r *PlanningREST) complete(ctx context.Context, plan *v1alpha1.BackupPlan, run *enginev1alpha1.BackupRun, by *reader) error {
	all, err := by.mayReadAll(ctx)
	if err != nil {
		return err
	}
	if !all {
		hideClusterScoped(plan)
	}
	plan.Queue = r.Place(run)
	return nil
}

// hideClusterScoped removes the names of related cluster-scoped objects.
func hideClusterScoped(plan *v1alpha1.BackupPlan) {
	for i := range plan.Along {
		if of := &plan.Along[i]; of.Namespace == "" {
			of.Name, of.Reason = "", ""
		}
	}
}
