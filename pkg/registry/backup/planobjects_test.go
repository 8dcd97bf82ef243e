// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestPlanWithAllObjects: a posted backup is answered with the objects of its plan, of any number, without
// the names that a manifest would not show to the same reader. It is for users who may create the
// backup, and creates nothing. A plan that breaks off is an error, or breaks off the connection.
func TestPlanWithAllObjects(t *testing.T) {
	h := newHarness(t, map[string]bool{"shop": true}, locationOf("default", true, metav1.ConditionTrue))
	rights := map[string]bool{"create backups/ shop": true, "get backups/manifest shop": true}
	h.kind.authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if rights[fmt.Sprintf("%s %s/%s %s", a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetNamespace())] {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	objects := []v1alpha1.PlannedRelated{
		{Resource: "clusterroles.rbac.authorization.k8s.io", Name: "foreign", Reason: "the RoleBinding foreign refers to it"},
		{Resource: "configmaps", Namespace: "shop", Name: "conf"}, {Resource: "secrets", Namespace: "shop", Name: "key", Reason: "the Pod shop/p names it"},
	}
	var failure error
	storage := &PlanObjectsREST{
		Planning: &PlanningREST{REST: h.REST, Place: func(*enginev1alpha1.BackupRun) *v1alpha1.PlannedPlace { return &v1alpha1.PlannedPlace{Position: 3} }},
		Plan: func(_ context.Context, run *enginev1alpha1.BackupRun, each func(v1alpha1.PlannedRelated) error) (*v1alpha1.BackupPlan, error) {
			if run.Spec.BackupRef != (v1alpha1.BackupReference{Namespace: "shop", Name: "b"}) || run.Spec.Requester.Username != "jane" {
				t.Errorf("planned was %+v", run.Spec)
			}
			for _, object := range objects {
				if err := each(object); err != nil {
					return nil, err
				}
			}
			return &v1alpha1.BackupPlan{Complete: true, TotalItems: int64(len(objects)), Along: objects[:min(1, len(objects))]}, failure
		},
	}
	type answer struct {
		Items []v1alpha1.PlannedRelated
		Plan  *v1alpha1.BackupPlan
	}
	ask := func(name string, backup *v1alpha1.Backup) (of answer, err error) {
		t.Helper()
		created, err := storage.Create(h.ctx("shop"), name, backup, nil, &metav1.CreateOptions{})
		if err != nil {
			return of, err
		}
		stream, _, _, err := created.(rest.ResourceStreamer).InputStream(t.Context(), "", "")
		if err != nil {
			return of, err
		}
		defer func() {
			_ = stream.Close()
			if reason := recover(); reason != nil {
				err = fmt.Errorf("broken off: %v", reason)
			}
		}()
		content, err := io.ReadAll(stream)
		if err != nil {
			return of, err
		}
		return of, json.Unmarshal(content, &of)
	}
	shown := func(want ...v1alpha1.PlannedRelated) {
		t.Helper()
		got, err := ask("b", newBackup("shop", "b"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, got.Items); diff != "" {
			t.Errorf("the objects (-want +got):\n%s", diff)
		}
		if got.Plan == nil || got.Plan.TotalItems != int64(len(objects)) || got.Plan.Queue == nil || got.Plan.Along[0].Name != want[0].Name {
			t.Errorf("the plan is %+v", got.Plan)
		}
	}
	hidden := []v1alpha1.PlannedRelated{{Resource: objects[0].Resource}, objects[1], {Resource: "secrets", Namespace: "shop"}}
	shown(hidden...)
	rights["get secrets/ shop"] = true
	shown(hidden[0], objects[1], objects[2])
	rights["get backups/manifest "] = true
	shown(objects...)
	if len(h.observed) > 0 {
		t.Errorf("recorded were %v", h.observed)
	}

	if _, err := ask("b", newBackup("shop", "other")); !apierrors.IsBadRequest(err) {
		t.Errorf("a backup of another name: %v", err)
	}
	if _, err := ask("b", newBackup("shop", "b", "bank")); !apierrors.IsForbidden(err) {
		t.Errorf("a backup of a foreign namespace: %v", err)
	}
	delete(rights, "create backups/ shop")
	if _, err := ask("b", newBackup("shop", "b")); !apierrors.IsForbidden(err) {
		t.Errorf("without the right to create it: %v", err)
	}
	rights["create backups/ shop"] = true

	failure = errors.New("away")
	if _, err := ask("b", newBackup("shop", "b")); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "away") {
		t.Errorf("without a controller: %v", err)
	}
	for i := range 20_000 {
		objects = append(objects, v1alpha1.PlannedRelated{Resource: "configmaps", Namespace: "shop", Name: fmt.Sprintf("c-%05d", i)})
	}
	if _, err := ask("b", newBackup("shop", "b")); err == nil || !strings.Contains(err.Error(), "broken off") {
		t.Errorf("a plan that breaks off: %v", err)
	}
	failure = nil
	if got, err := ask("b", newBackup("shop", "b")); err != nil || len(got.Items) != len(objects) {
		t.Errorf("%d objects of %d, %v", len(got.Items), len(objects), err)
	}
	objects = nil
	if got, err := ask("b", newBackup("shop", "b")); err != nil || len(got.Items) != 0 || got.Plan == nil {
		t.Errorf("an empty plan: %+v, %v", got, err)
	}
}
