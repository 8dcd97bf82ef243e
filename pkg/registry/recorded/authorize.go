// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// authorizedAnnotation lists in the audit log the further rights that a request needed.
const authorizedAnnotation = "authorization.holdfast.io/further"

// Scope is a part of a request that needs a further right.
type Scope struct {
	Namespace string // empty for the whole cluster
	Name      string // of the one object that needs the right, or empty for all
	// Field needs the right, and Because tells the requester so.
	Field, Because string
}

// Right is the verb on a resource that a requester needs in each scope.
type Right struct {
	Verb     string
	Resource schema.GroupVersionResource
	Of       schema.GroupResource // of the requested object; Resource if empty
}

// Authorize asks for a right in each scope, in order. It returns the scopes that it asked for, and Forbidden,
// naming the namespace, if the last one was refused. name is the object's.
func (r Right) Authorize(ctx context.Context, decider authorizer.Authorizer, requester user.Info, name string, scopes []Scope) ([]Scope, error) {
	resource := r.Resource.GroupResource()
	for i, scope := range scopes {
		decision, reason, err := decider.Authorize(ctx, authorizer.AttributesRecord{
			User:            requester,
			Verb:            r.Verb,
			Namespace:       scope.Namespace,
			Name:            scope.Name,
			APIGroup:        r.Resource.Group,
			APIVersion:      r.Resource.Version,
			Resource:        r.Resource.Resource,
			ResourceRequest: true,
		})
		if decision == authorizer.DecisionAllow {
			continue
		}
		asked := scopes[:i+1]
		if err != nil {
			return asked, apierrors.NewInternalError(fmt.Errorf("checking whether %q may %s %s: %w", requester.GetName(), r.Verb, r.Resource.Resource, err))
		}
		cause := fmt.Errorf("user %q may not %s %s %s, and %s", requester.GetName(), r.Verb, resource, scope.place(), scope.Because)
		if reason != "" {
			cause = fmt.Errorf("%w: %s", cause, reason)
		}
		of := r.Of
		if of.Empty() {
			of = resource
		}
		forbidden := apierrors.NewForbidden(of, name, cause)
		forbidden.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type:    metav1.CauseTypeFieldValueInvalid,
			Field:   scope.Field,
			Message: cause.Error(),
		}}
		return asked, forbidden
	}
	return scopes, nil
}

func (s Scope) place() string {
	if s.Namespace == "" {
		return "in all namespaces"
	}
	return fmt.Sprintf("in namespace %q", s.Namespace)
}

func places(scopes []Scope) []string {
	result := make([]string, 0, len(scopes))
	for _, scope := range scopes {
		result = append(result, scope.place())
	}
	return result
}
