// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// RequestREST serves a subresource with the verb create: a request about an object,
// which is written into its record. Others carry it out.
type RequestREST[T, R logstore.Object] struct {
	Objects *REST[T, R]
	Clock   clock.PassiveClock
	// Body is the empty body of a request. Its name, if set, must be the object's.
	Body runtime.Object
	// Record returns the record as it is to be written, or nil with what to tell the
	// requester when there is nothing to write. record is nil when the object has none.
	// body is that of the request, of the type of Body.
	Record func(obj T, record R, ask enginev1alpha1.Ask, body runtime.Object) (changed R, message string, err error)
}

var _ rest.NamedCreater = &RequestREST[logstore.Object, logstore.Object]{}

// New implements rest.Storage.
func (r *RequestREST[T, R]) New() runtime.Object { return r.Body.DeepCopyObject() }

// Destroy implements rest.Storage.
func (r *RequestREST[T, R]) Destroy() {}

// Create implements rest.NamedCreater. It answers with a Status.
func (r *RequestREST[T, R]) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	resource := r.Objects.Resource
	if body, ok := obj.(metav1.Object); ok && body.GetName() != "" && body.GetName() != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, but the request is about the %s %q", body.GetName(), resource.Singular, name))
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	requester, err := requesterFrom(ctx)
	if err != nil {
		return nil, err
	}
	ask := enginev1alpha1.Ask{Requester: Requester(requester), Schedule: scheduleOf(ctx, requester), Timestamp: metav1.NewTime(r.Clock.Now())}
	var message string
	raced := func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonConflict }
	err = retry.OnError(retry.DefaultRetry, raced, func() (err error) {
		message, err = r.try(ctx, name, ask, obj, options)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{
		Status:  metav1.StatusSuccess,
		Code:    http.StatusCreated,
		Message: message,
		Details: &metav1.StatusDetails{Name: name, Group: resource.GroupResource.Group, Kind: resource.GroupResource.Resource},
	}, nil
}

// try writes the request into the record as it is now.
func (r *RequestREST[T, R]) try(ctx context.Context, name string, ask enginev1alpha1.Ask, body runtime.Object, options *metav1.CreateOptions) (string, error) {
	found, err := r.Objects.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	var none R
	obj, kind := found.(T), r.Objects.Kind
	object := types.NamespacedName{Namespace: obj.GetNamespace(), Name: name}
	record, err := r.Objects.Records.Get(ctx, kind.RecordName(object), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		record = none
	case err != nil:
		return "", fmt.Errorf("reading the record of the %s: %w", r.Objects.Resource.Singular, err)
	case kind.ObjectName(record) != object && kind.Object(record).GetUID() != obj.GetUID():
		return "", kind.NameTaken(obj, record)
	}
	changed, message, err := r.Record(obj, record, ask, body)
	if err != nil || any(changed) == any(none) {
		return message, err
	}
	if any(record) == any(none) {
		changed, err = r.Objects.Records.Create(ctx, changed, metav1.CreateOptions{DryRun: options.DryRun})
		if apierrors.IsAlreadyExists(err) {
			return "", apierrors.NewConflict(r.Objects.Resource.GroupResource, name, err) // another request came first
		}
	} else {
		changed, err = r.Objects.Records.Update(ctx, changed, metav1.UpdateOptions{DryRun: options.DryRun})
	}
	if err != nil {
		return "", err
	}
	if len(options.DryRun) == 0 {
		r.Objects.Observe(changed)
	}
	return message, nil
}
