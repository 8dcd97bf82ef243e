// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// maxPlanned bounds the objects that the controller reads for a dry run, beside running restores.
const maxPlanned = 200_000

// planner answers dry runs of creations with plans, after all checks. A plan takes the rights to read the plan and
// the results of a restore with planOnly.
type planner struct {
	plan       func(ctx context.Context, run *enginev1alpha1.RestoreRun) (*v1alpha1.RestorePlan, error)
	backups    Backups
	authorizer authorizer.Authorizer
}

// planned completes the answer to a dry run. Without a plan, a warning says how to get one.
func (p *planner) planned(ctx context.Context, dry *v1alpha1.Restore, run *enginev1alpha1.RestoreRun) (*v1alpha1.Restore, error) {
	without := func(why string) (*v1alpha1.Restore, error) {
		warning.AddWarning(ctx, "", fmt.Sprintf("the dry run has no plan: %s: the restore is valid all the same; create it with spec.planOnly, and read restores/NAME/plan", why))
		return dry, nil
	}
	requester, err := recorded.RequesterFrom(ctx)
	if err != nil {
		return nil, err
	}
	for _, subresource := range []string{"plan", "results"} {
		decision, _, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: requester, Verb: "get", ResourceRequest: true, Namespace: dry.Namespace, Name: dry.Name, Subresource: subresource,
			APIGroup: v1alpha1.GroupName, APIVersion: v1alpha1.SchemeGroupVersion.Version, Resource: Resource.GroupResource.Resource,
		})
		switch {
		case decision == authorizer.DecisionAllow:
		case err != nil:
			return nil, apierrors.NewInternalError(fmt.Errorf("checking whether %q may get restores/%s: %w", requester.GetName(), subresource, err))
		default:
			return without(fmt.Sprintf("user %q may not get restores/%s in the namespace %q", requester.GetName(), subresource, dry.Namespace))
		}
	}
	of := run.Spec.Backup
	found, err := p.backups.Get(genericapirequest.WithNamespace(ctx, of.Namespace), of.Name, &metav1.GetOptions{})
	if err != nil {
		return without(err.Error())
	}
	if progress := found.(*v1alpha1.Backup).Status.Progress; progress != nil && progress.ItemsBackedUp > maxPlanned {
		return without(fmt.Sprintf("the backup has %d objects, and a dry run plans %d", progress.ItemsBackedUp, maxPlanned))
	}
	asked := run.DeepCopy()
	asked.UID = uuid.NewUUID() // no object has it
	plan, err := p.plan(ctx, asked)
	if err != nil {
		return without(fmt.Sprintf("the controller did not compute it: %v", err))
	}
	dry.Status.Plan = plan
	return dry, nil
}
