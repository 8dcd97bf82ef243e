// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// AskREST serves a resource whose objects can only be created: each asks for something of the
// record of its name in the system namespace, into which that is written.
type AskREST[T interface {
	runtime.Object
	metav1.Object
}] struct {
	Singular string
	// System is the namespace of the records.
	System string
	// Records are what those are called, and NamedAfter says what a request is named after.
	Records, NamedAfter string
	// Empty is a request with no more than its metadata.
	Empty func(metav1.ObjectMeta) T
	// Fill writes into a request what is asked for in the given one; nil if nothing but its
	// name counts.
	Fill func(request, given T)
	// Ask writes what is asked for into the record, unless that waits there already, and
	// answers in the request. It is called again if the record has changed meanwhile.
	Ask   func(ctx context.Context, request T, ask enginev1alpha1.Ask, options *metav1.CreateOptions) error
	Clock clock.PassiveClock
}

// New implements rest.Storage.
func (r *AskREST[T]) New() runtime.Object { return r.Empty(metav1.ObjectMeta{}) }

// Destroy implements rest.Storage.
func (r *AskREST[T]) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r *AskREST[T]) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (r *AskREST[T]) GetSingularName() string { return r.Singular }

// Create implements rest.Creater.
func (r *AskREST[T]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	given, ok := obj.(metav1.ObjectMetaAccessor)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", r.Singular, obj))
	}
	meta, ok := given.GetObjectMeta().(*metav1.ObjectMeta)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", r.Singular, obj))
	}
	switch namespace := genericapirequest.NamespaceValue(ctx); {
	case namespace != r.System:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s are in the namespace %s, not in %s", r.Records, r.System, namespace))
	case meta.Name == "":
		return nil, apierrors.NewBadRequest("metadata.name must be that of a " + r.NamedAfter)
	}
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the request has no user"))
	}
	request := r.Empty(*meta.DeepCopy())
	request.SetNamespace(r.System)
	if asked, ok := obj.(T); ok && r.Fill != nil {
		r.Fill(request, asked)
	}
	rest.FillObjectMetaSystemFields(request)
	if validate != nil {
		if err := validate(ctx, request.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	ask := enginev1alpha1.Ask{Requester: Requester(requester), Timestamp: metav1.NewTime(r.Clock.Now()).Rfc3339Copy()}
	// Other conflicts are answers.
	raced := func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonConflict }
	if err := retry.OnError(retry.DefaultRetry, raced, func() error { return r.Ask(ctx, request, ask, options) }); err != nil {
		return nil, err
	}
	return request, nil
}
