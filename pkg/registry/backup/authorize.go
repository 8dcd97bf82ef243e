// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// scope is a part of a backup that its creator needs a right for, beyond that
// to create backups in its own namespace.
type scope struct {
	// namespace is empty for the whole cluster.
	namespace string
	// because names the field that asks for it, in words for the creator.
	because string
}

// scopes lists what a backup of a tenant's namespace reaches outside of it. A
// pattern may match namespaces that do not exist yet, so it reaches everywhere.
func scopes(backup *v1alpha1.Backup, namespaces *selection.Namespaces, resources *selection.Resources) []scope {
	var result []scope
	for _, name := range namespaces.Explicit() {
		if name != backup.Namespace {
			result = append(result, scope{name, "spec.includedNamespaces names it"})
		}
	}
	if patterns := namespaces.Patterns(); len(patterns) > 0 {
		return append(result, scope{"", fmt.Sprintf("spec.includedNamespaces has the pattern %q", patterns[0])})
	}
	if resources.TouchesClusterScope() {
		return append(result, scope{"", "spec asks for cluster-scoped resources"})
	}
	return result
}

// authorize answers Forbidden, naming the namespace, when the user may not
// create backups in one of the scopes.
func authorize(ctx context.Context, decider authorizer.Authorizer, requester user.Info, name string, scopes []scope) error {
	for _, scope := range scopes {
		decision, reason, err := decider.Authorize(ctx, authorizer.AttributesRecord{
			User:            requester,
			Verb:            "create",
			Namespace:       scope.namespace,
			APIGroup:        v1alpha1.GroupName,
			APIVersion:      v1alpha1.SchemeGroupVersion.Version,
			Resource:        resource.Resource,
			ResourceRequest: true,
		})
		if decision == authorizer.DecisionAllow {
			continue
		}
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("checking whether %q may create backups: %w", requester.GetName(), err))
		}
		where := "in all namespaces"
		if scope.namespace != "" {
			where = fmt.Sprintf("in namespace %q", scope.namespace)
		}
		cause := fmt.Errorf("user %q may not create %s %s, and %s", requester.GetName(), resource, where, scope.because)
		if reason != "" {
			cause = fmt.Errorf("%w: %s", cause, reason)
		}
		forbidden := apierrors.NewForbidden(resource, name, cause)
		forbidden.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type:    metav1.CauseTypeFieldValueInvalid,
			Field:   "spec.includedNamespaces",
			Message: cause.Error(),
		}}
		return forbidden
	}
	return nil
}
