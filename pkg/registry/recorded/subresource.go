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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// Subresource serves a subresource with the verb create. A request is recorded, and answered with a Status.
type Subresource struct {
	Resource schema.GroupResource
	Singular string
	// Body is an empty request. A request's name, if set, must be the object's.
	Body  runtime.Object
	Clock clock.PassiveClock
	// Record records a request, and returns the answer's message. It is called again after a conflict.
	Record func(ctx context.Context, request *Request) (message string, err error)
}

// Request is a request about the object of this name.
type Request struct {
	Name      string
	Body      runtime.Object
	Requester user.Info
	Ask       enginev1alpha1.Ask // for the record
	DryRun    []string
	About     metav1.StatusDetails // the object in the answer; Record may change it
}

var _ rest.NamedCreater = &Subresource{}

// New implements rest.Storage.
func (s *Subresource) New() runtime.Object { return s.Body.DeepCopyObject() }

// Destroy implements rest.Storage.
func (s *Subresource) Destroy() {}

// Create implements rest.NamedCreater.
func (s *Subresource) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if body, ok := obj.(metav1.Object); ok && body.GetName() != "" && body.GetName() != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, but the request is about the %s %q", body.GetName(), s.Singular, name))
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	requester, err := RequesterFrom(ctx)
	if err != nil {
		return nil, err
	}
	request := &Request{
		Name: name, Body: obj, Requester: requester, DryRun: options.DryRun,
		Ask:   enginev1alpha1.Ask{Requester: Requester(requester), Schedule: scheduleOf(ctx, requester), Timestamp: metav1.NewTime(s.Clock.Now())},
		About: metav1.StatusDetails{Name: name, Group: s.Resource.Group, Kind: s.Resource.Resource},
	}
	var message string
	if err := untilWritten(func() (err error) {
		message, err = s.Record(ctx, request)
		return err
	}); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated, Message: message, Details: &request.About}, nil
}

// untilWritten repeats a write after a conflict with another one, but not after other refusals with that code.
func untilWritten(write func() error) error {
	return retry.OnError(retry.DefaultRetry, func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonConflict }, write)
}

// Conflict refuses a request that does not fit an object's state. Clients do not repeat it.
func Conflict(resource schema.GroupResource, name string, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: reason, Message: message,
		Details: &metav1.StatusDetails{Name: name, Group: resource.Group, Kind: resource.Resource},
	}}
}

// NewRequest serves a request that is written into an object's record. record gets the record, nil if there is
// none, and returns the changed one, or nil with the message if there is nothing to write.
func NewRequest[T, R logstore.Object](objects *REST[T, R], clock clock.PassiveClock, body runtime.Object,
	record func(obj T, record R, ask enginev1alpha1.Ask, body runtime.Object) (changed R, message string, err error)) *Subresource {
	return &Subresource{
		Resource: objects.Resource.GroupResource, Singular: objects.Resource.Singular, Body: body, Clock: clock,
		Record: func(ctx context.Context, request *Request) (string, error) {
			found, err := objects.Get(ctx, request.Name, &metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			known, err := objects.recordOf(ctx, found.(T))
			if err != nil {
				return "", err
			}
			var none R
			changed, message, err := record(found.(T), known, request.Ask, request.Body)
			if err != nil || any(changed) == any(none) {
				return message, err
			}
			if any(known) == any(none) {
				changed, err = objects.Records.Create(ctx, changed, metav1.CreateOptions{DryRun: request.DryRun})
				if apierrors.IsAlreadyExists(err) {
					return "", apierrors.NewConflict(objects.Resource.GroupResource, request.Name, err) // another request came first
				}
			} else {
				changed, err = objects.Records.Update(ctx, changed, metav1.UpdateOptions{DryRun: request.DryRun})
			}
			if err != nil {
				return "", err
			}
			if len(request.DryRun) == 0 {
				objects.Observe(changed)
			}
			return message, nil
		},
	}
}

func (r *REST[T, R]) recordOf(ctx context.Context, obj T) (none R, err error) {
	object := types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	record, err := r.Records.Get(ctx, r.Kind.RecordName(object), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("reading the record of the %s: %w", r.Resource.Singular, err)
	case r.Kind.ObjectName(record) != object && r.Kind.Object(record).GetUID() != obj.GetUID():
		return none, r.Kind.NameTaken(obj, record)
	}
	return record, nil
}
