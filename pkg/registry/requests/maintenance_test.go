// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// A request is written once, with who has asked, and answered with the Job; one that waits is
// answered again; and what can't be maintained is refused.
func TestMaintenance(t *testing.T) {
	record := func(name string, ready metav1.ConditionStatus) *enginev1alpha1.VolumeRepository {
		return &enginev1alpha1.VolumeRepository{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: name},
			Status: enginev1alpha1.VolumeRepositoryStatus{Conditions: []metav1.Condition{{
				Type: enginev1alpha1.ConditionReady, Status: ready, Reason: "R", Message: "the key is wrong",
			}}},
		}
	}
	cluster := enginetest.New(record("shop.default", metav1.ConditionTrue), record("broken.default", metav1.ConditionFalse))
	records := cluster.EngineV1alpha1().VolumeRepositories("holdfast")
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 500))
	storage := NewMaintenance("holdfast", records, clock)
	ask := func(namespace, name string, options metav1.CreateOptions) (v1alpha1.MaintenanceRequestStatus, error) {
		ctx := genericapirequest.WithUser(genericapirequest.WithNamespace(t.Context(), namespace), &user.DefaultInfo{Name: "jane"})
		answer, err := storage.Create(ctx, &v1alpha1.MaintenanceRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil, &options)
		if err != nil {
			return v1alpha1.MaintenanceRequestStatus{}, err
		}
		return answer.(*v1alpha1.MaintenanceRequest).Status, nil
	}
	first, err := ask("holdfast", "shop.default", metav1.CreateOptions{})
	if err != nil || !strings.HasPrefix(first.Job, "shop-default-") || first.JobNamespace != "holdfast-maintenance" {
		t.Fatalf("it answers %+v, %v", first, err)
	}
	clock.SetTime(time.Unix(1001, 0))
	again, err := ask("holdfast", "shop.default", metav1.CreateOptions{})
	if err != nil || again.Job != first.Job || !strings.Contains(again.Message, "nothing to do: jane asked") {
		t.Errorf("asked again it answers %+v, %v", again, err)
	}
	if writes := cluster.Writes("volumerepositories"); len(writes) != 1 {
		t.Errorf("%d writes", len(writes))
	}
	written, err := records.Get(t.Context(), "shop.default", metav1.GetOptions{})
	if err != nil || written.Spec.MaintenanceRequest.Requester.Username != "jane" {
		t.Fatalf("the record is %+v, %v", written, err)
	}
	written.Status.RecentMaintenance = []enginev1alpha1.MaintenanceRun{{Job: first.Job}}
	if _, err := records.UpdateStatus(t.Context(), written, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if next, err := ask("holdfast", "shop.default", metav1.CreateOptions{}); err != nil || next.Job == first.Job {
		t.Errorf("asked after its end it answers %+v, %v", next, err)
	}
	verifying, err := storage.Create(genericapirequest.WithUser(genericapirequest.WithNamespace(t.Context(), "holdfast"), &user.DefaultInfo{Name: "jane"}),
		&v1alpha1.MaintenanceRequest{ObjectMeta: metav1.ObjectMeta{Name: "shop.default"}, Spec: v1alpha1.MaintenanceRequestSpec{Verify: true}}, nil, &metav1.CreateOptions{})
	if err != nil || !strings.Contains(verifying.(*v1alpha1.MaintenanceRequest).Status.Message, "maintains and verifies") {
		t.Errorf("asked to verify it answers %+v, %v", verifying, err)
	}
	if written, err := records.Get(t.Context(), "shop.default", metav1.GetOptions{}); err != nil || !written.Spec.MaintenanceRequest.Verify {
		t.Errorf("the record is %+v, %v", written, err)
	}
	if _, err := ask("holdfast", "nowhere.default", metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("one that does not exist: %v", err)
	}
	if _, err := ask("holdfast", "broken.default", metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "the key is wrong") {
		t.Errorf("one that is broken: %v", err)
	}
	for _, wrong := range [][2]string{{"shop", "shop.default"}, {"holdfast", ""}} {
		if _, err := ask(wrong[0], wrong[1], metav1.CreateOptions{}); !apierrors.IsBadRequest(err) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	if _, err := storage.Create(genericapirequest.WithNamespace(context.Background(), "holdfast"), &v1alpha1.MaintenanceRequest{ObjectMeta: metav1.ObjectMeta{Name: "shop.default"}}, nil, &metav1.CreateOptions{}); err == nil {
		t.Error("a request of nobody is taken")
	}
}
