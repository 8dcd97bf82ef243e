// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// PlanningREST is a REST that answers a dry run of a creation with the plan of the backup, after
// all checks of a creation. The plan names cluster-scoped objects only with the right to manifests of
// all namespaces, as manifests do.
type PlanningREST struct {
	*REST
	// Plan has a backup planned by a process that may read the cluster. There is no record of it.
	Plan func(ctx context.Context, run *enginev1alpha1.BackupRun) (*v1alpha1.BackupPlan, error)
	// Place is the place in the queue that it would have, or nil.
	Place func(run *enginev1alpha1.BackupRun) *v1alpha1.PlannedPlace
}

var _ rest.Creater = &PlanningREST{}

// Create implements rest.Creater. A dry run without a plan is as good as before plans, and says in a
// warning why it has none.
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
	by := recorded.Requester(requester)
	by.Extra = requester.GetExtra()
	run := &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: backup.Name, UID: backup.UID, CreationTimestamp: backup.CreationTimestamp},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: backup.Namespace, Name: backup.Name},
			Labels:    backup.Labels, Annotations: backup.Annotations, Requester: by, Backup: backup.Spec,
		},
	}
	plan, err := r.Plan(ctx, run)
	if err != nil {
		warning.AddWarning(ctx, "", fmt.Sprintf("the dry run has no plan, since the controller did not compute it: %v: the backup is valid all the same; try again to see its plan", err))
		return backup, nil
	}
	of := &reader{Info: requester, authorizer: r.Kind.(*kind).authorizer, subresource: "manifest", may: map[schema.GroupVersionResource]map[string]bool{}}
	all, err := of.mayReadAll(ctx)
	if err != nil {
		return nil, err
	}
	if !all {
		hideClusterScoped(plan)
	}
	plan.Queue = r.Place(run)
	backup.Status.Plan = plan
	return backup, nil
}

// hideClusterScoped leaves of cluster-scoped objects that come along their counts.
func hideClusterScoped(plan *v1alpha1.BackupPlan) {
	for i := range plan.Along {
		if of := &plan.Along[i]; of.Namespace == "" {
			of.Name, of.Reason = "", ""
		}
	}
}
