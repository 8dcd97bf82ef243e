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
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// AskREST serves a resource with the verb create. Each object is a request, written into the record of its name in
// System.
type AskREST[T logstore.Object] struct {
	Singular string
	System   string
	// Records names the records in messages, NamedAfter their kind.
	Records, NamedAfter string
	Empty               T // without metadata
	// Asked returns a request with only the metadata and the spec of the given one.
	Asked func(given T) T
	// Ask writes the request into the record, unless one waits, and completes its status. It is called again after
	// a conflict.
	Ask   func(ctx context.Context, request T, ask enginev1alpha1.Ask, options *metav1.CreateOptions) error
	Clock clock.PassiveClock
}

// New implements rest.Storage.
func (r *AskREST[T]) New() runtime.Object { return r.Empty.DeepCopyObject() }

// Destroy implements rest.Storage.
func (r *AskREST[T]) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r *AskREST[T]) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (r *AskREST[T]) GetSingularName() string { return r.Singular }

// Create implements rest.Creater.
func (r *AskREST[T]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	given, ok := obj.DeepCopyObject().(T)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", r.Singular, obj))
	}
	switch namespace := genericapirequest.NamespaceValue(ctx); {
	case namespace != r.System:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s are in the namespace %s, not in %s", r.Records, r.System, namespace))
	case given.GetName() == "":
		return nil, apierrors.NewBadRequest("metadata.name must be the name of a " + r.NamedAfter)
	}
	requester, err := RequesterFrom(ctx)
	if err != nil {
		return nil, err
	}
	request := r.Asked(given)
	request.SetNamespace(r.System)
	rest.FillObjectMetaSystemFields(request)
	if validate != nil {
		if err := validate(ctx, request.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	ask := enginev1alpha1.Ask{Requester: Requester(requester), Timestamp: metav1.NewTime(r.Clock.Now()).Rfc3339Copy()}
	if err := untilWritten(func() error { return r.Ask(ctx, request, ask, options) }); err != nil {
		return nil, err
	}
	return request, nil
}
