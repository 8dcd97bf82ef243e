// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package syncrequest serves syncrequests, which can only be created: each asks for all of the
// store of its name to be listed now, and is answered with the generation of the
// StorageLocation to wait for. The request is written into the location's spec, so that no end
// of a process loses it; one that is yet to be followed is answered again, and nothing is
// written.
package syncrequest

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// Records is the client of the locations.
type Records interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.StorageLocation, error)
	Update(ctx context.Context, record *enginev1alpha1.StorageLocation, options metav1.UpdateOptions) (*enginev1alpha1.StorageLocation, error)
}

// REST creates requests.
type REST struct {
	// System is the namespace of the locations.
	System  string
	Records Records
	// Awaits reports whether what a location asks for is yet to begin.
	Awaits func(location *enginev1alpha1.StorageLocation) bool
	Clock  clock.PassiveClock
}

var (
	_ rest.Creater              = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// New implements rest.Storage.
func (r *REST) New() runtime.Object { return &v1alpha1.SyncRequest{} }

// Destroy implements rest.Storage.
func (r *REST) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r *REST) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (r *REST) GetSingularName() string { return "syncrequest" }

// Create implements rest.Creater.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	request, ok := obj.(*v1alpha1.SyncRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a SyncRequest: %T", obj))
	}
	switch namespace := genericapirequest.NamespaceValue(ctx); {
	case namespace != r.System:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("storage locations are in the namespace %s, not in %s", r.System, namespace))
	case request.Name == "":
		return nil, apierrors.NewBadRequest("metadata.name must be that of a StorageLocation")
	}
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the request has no user"))
	}
	request = request.DeepCopy()
	request.Namespace, request.Status = r.System, v1alpha1.SyncRequestStatus{}
	rest.FillObjectMetaSystemFields(request)
	if validate != nil {
		if err := validate(ctx, request.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	ask := enginev1alpha1.Ask{Requester: recorded.Requester(requester), Timestamp: metav1.NewTime(r.Clock.Now()).Rfc3339Copy()}
	raced := func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonConflict }
	err := retry.OnError(retry.DefaultRetry, raced, func() (err error) {
		request.Status, err = r.ask(ctx, request.Name, ask, options)
		return err
	})
	if err != nil {
		return nil, err
	}
	return request, nil
}

// ask writes a request into the record, unless one waits.
func (r *REST) ask(ctx context.Context, name string, ask enginev1alpha1.Ask, options *metav1.CreateOptions) (answer v1alpha1.SyncRequestStatus, err error) {
	record, err := r.Records.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return answer, err
	}
	asked := record.Spec.SyncRequest
	if asked != nil && r.Awaits(record) {
		answer.Message = fmt.Sprintf("nothing to do: %s asked at %s, and the listing is yet to begin; ", asked.Requester.Username, asked.Timestamp.UTC().Format(time.RFC3339))
	} else {
		if asked != nil && !asked.Timestamp.Before(&ask.Timestamp) { // a second is the least that makes a difference
			ask.Timestamp = metav1.NewTime(asked.Timestamp.Add(time.Second))
		}
		record = record.DeepCopy()
		record.Spec.SyncRequest = &ask
		if record, err = r.Records.Update(ctx, record, metav1.UpdateOptions{DryRun: options.DryRun}); err != nil {
			return answer, err
		}
	}
	answer.Generation = record.Generation
	answer.Message += fmt.Sprintf("to wait for it: kubectl wait -n %s storagelocation/%s --for=condition=Synced", r.System, name)
	return answer, nil
}
