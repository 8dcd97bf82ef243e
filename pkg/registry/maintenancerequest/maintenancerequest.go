// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maintenancerequest serves maintenancerequests, which can only be created: each
// asks for the repository of its name to be maintained now, and is answered with the Job that
// does so. The request is written into the VolumeRepository, whose controller carries it out;
// one that waits already is answered again, and nothing is written.
package maintenancerequest

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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

// Records is the client of the repositories' records.
type Records interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.VolumeRepository, error)
	Update(ctx context.Context, record *enginev1alpha1.VolumeRepository, options metav1.UpdateOptions) (*enginev1alpha1.VolumeRepository, error)
}

// REST creates requests.
type REST struct {
	// System is the namespace of the records.
	System  string
	Records Records
	Clock   clock.PassiveClock
}

var (
	_ rest.Creater              = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// New implements rest.Storage.
func (r *REST) New() runtime.Object { return &v1alpha1.MaintenanceRequest{} }

// Destroy implements rest.Storage.
func (r *REST) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r *REST) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (r *REST) GetSingularName() string { return "maintenancerequest" }

// Create implements rest.Creater.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	request, ok := obj.(*v1alpha1.MaintenanceRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a MaintenanceRequest: %T", obj))
	}
	switch namespace := genericapirequest.NamespaceValue(ctx); {
	case namespace != r.System:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("repositories are in the namespace %s, not in %s", r.System, namespace))
	case request.Name == "":
		return nil, apierrors.NewBadRequest("metadata.name must be that of a VolumeRepository: NAMESPACE.LOCATION")
	}
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the request has no user"))
	}
	request = request.DeepCopy()
	request.Namespace, request.Status = r.System, v1alpha1.MaintenanceRequestStatus{}
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
func (r *REST) ask(ctx context.Context, name string, ask enginev1alpha1.Ask, options *metav1.CreateOptions) (answer v1alpha1.MaintenanceRequestStatus, err error) {
	record, err := r.Records.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return answer, err
	}
	if ready := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionReady); ready == nil || ready.Status != metav1.ConditionTrue {
		because := "it has not been opened yet"
		if ready != nil {
			because = ready.Message
		}
		return answer, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: "RepositoryState",
			Message: fmt.Sprintf("the repository %s can't be maintained: %s", name, because),
		}}
	}
	answer.JobNamespace = enginev1alpha1.MaintenanceNamespace(r.System)
	job, waits := record.RequestedJob()
	if waits {
		asked := record.Spec.MaintenanceRequest
		answer.Job = job
		answer.Message = fmt.Sprintf("nothing to do: %s asked for the Job %s at %s", asked.Requester.Username, job, asked.Timestamp.UTC().Format("2006-01-02T15:04:05Z"))
		return answer, nil
	}
	record = record.DeepCopy()
	record.Spec.MaintenanceRequest = &ask
	if record, err = r.Records.Update(ctx, record, metav1.UpdateOptions{DryRun: options.DryRun}); err != nil {
		return answer, err
	}
	answer.Job, _ = record.RequestedJob()
	answer.Message = fmt.Sprintf("the Job %s in %s maintains the repository as soon as one more may run", answer.Job, answer.JobNamespace)
	return answer, nil
}
