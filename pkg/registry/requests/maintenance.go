// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// MaintenanceRecords is the client of the repositories' records.
type MaintenanceRecords interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.VolumeRepository, error)
	Update(ctx context.Context, record *enginev1alpha1.VolumeRepository, options metav1.UpdateOptions) (*enginev1alpha1.VolumeRepository, error)
}

// NewMaintenance serves requests to the repositories in the system namespace. The answer names the Job.
func NewMaintenance(system string, records MaintenanceRecords, clock clock.PassiveClock) *recorded.AskREST[*v1alpha1.MaintenanceRequest] {
	return &recorded.AskREST[*v1alpha1.MaintenanceRequest]{
		Singular: "maintenancerequest", System: system, Records: "repositories", NamedAfter: "VolumeRepository: NAMESPACE.LOCATION", Clock: clock,
		Empty: &v1alpha1.MaintenanceRequest{},
		Asked: func(given *v1alpha1.MaintenanceRequest) *v1alpha1.MaintenanceRequest {
			return &v1alpha1.MaintenanceRequest{ObjectMeta: given.ObjectMeta, Spec: given.Spec}
		},
		Ask: func(ctx context.Context, request *v1alpha1.MaintenanceRequest, ask enginev1alpha1.Ask, options *metav1.CreateOptions) (err error) {
			request.Status, err = writeMaintenance(ctx, records, system, request.Name, enginev1alpha1.MaintenanceAsk{Ask: ask, Verify: request.Spec.Verify}, options)
			return err
		},
	}
}

// writeMaintenance writes a request into the record, unless one waits.
func writeMaintenance(ctx context.Context, records MaintenanceRecords, system, name string, ask enginev1alpha1.MaintenanceAsk, options *metav1.CreateOptions) (answer v1alpha1.MaintenanceRequestStatus, err error) {
	record, err := records.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return answer, err
	}
	if ready := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionReady); ready == nil || ready.Status != metav1.ConditionTrue {
		because := "it has not been opened yet"
		if ready != nil {
			because = ready.Message
		}
		return answer, recorded.Conflict(v1alpha1.Resource("maintenancerequests"), name, "RepositoryState", fmt.Sprintf("the repository %s can't be maintained: %s", name, because))
	}
	answer.JobNamespace = enginev1alpha1.MaintenanceNamespace(system)
	job, waits := record.RequestedJob()
	if waits && (record.Spec.MaintenanceRequest.Verify || !ask.Verify) {
		asked := record.Spec.MaintenanceRequest
		answer.Job = job
		answer.Message = fmt.Sprintf("nothing to do: %s asked for the Job %s at %s", asked.Requester.Username, job, asked.Timestamp.UTC().Format("2006-01-02T15:04:05Z"))
		return answer, nil
	}
	record = record.DeepCopy()
	record.Spec.MaintenanceRequest = &ask
	if record, err = records.Update(ctx, record, metav1.UpdateOptions{DryRun: options.DryRun}); err != nil {
		return answer, err
	}
	answer.Job, _ = record.RequestedJob()
	does := "maintains"
	if ask.Verify {
		does = "maintains and verifies"
	}
	answer.Message = fmt.Sprintf("the Job %s in %s %s the repository as soon as one more may run", answer.Job, answer.JobNamespace, does)
	return answer, nil
}
