// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestDryRunsHavePlans: a dry run is planned for its requester, and shows cluster-scoped names only
// with the right to manifests of all namespaces. It records nothing. A creation, or a backup that may
// not be created, is not planned.
func TestDryRunsHavePlans(t *testing.T) {
	related := []v1alpha1.PlannedRelated{
		{Resource: "clusterroles", Name: "foreign", Reason: "the RoleBinding foreign refers to it"},
		{Resource: "secrets", Namespace: "shop", Name: "own", Reason: "the Pod shop/p names it"},
	}
	for name, all := range map[string]bool{"tenant": false, "administrator": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, map[string]bool{"shop": true}, locationOf("default", true, metav1.ConditionTrue))
			h.kind.authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if a.GetVerb() == "get" && a.GetResource() == "backups" && a.GetSubresource() == "manifest" && a.GetNamespace() == "" && all {
					return authorizer.DecisionAllow, "", nil
				}
				if a.GetSubresource() == "manifest" {
					return authorizer.DecisionNoOpinion, "", nil
				}
				return h.authorize(ctx, a)
			})
			var planned []*enginev1alpha1.BackupRun
			var failure error
			storage := &PlanningREST{
				REST: h.REST,
				Plan: func(_ context.Context, run *enginev1alpha1.BackupRun) (*v1alpha1.BackupPlan, error) {
					planned = append(planned, run)
					return &v1alpha1.BackupPlan{Complete: true, Along: append([]v1alpha1.PlannedRelated(nil), related...)}, failure
				},
				Place: func(*enginev1alpha1.BackupRun) *v1alpha1.PlannedPlace { return &v1alpha1.PlannedPlace{Position: 3} },
			}
			warnings := recorder{}
			ctx := warning.WithWarningRecorder(h.ctx("shop"), &warnings)
			create := func(name string, included []string, dryRun ...string) *v1alpha1.BackupPlan {
				t.Helper()
				created, err := storage.Create(ctx, newBackup("shop", name, included...), nil, &metav1.CreateOptions{DryRun: dryRun})
				if len(included) > 0 {
					if !apierrors.IsForbidden(err) {
						t.Fatalf("a backup of a foreign namespace: %v", err)
					}
					return nil
				}
				if err != nil {
					t.Fatal(err)
				}
				return created.(*v1alpha1.Backup).Status.Plan
			}
			if plan := create("real", nil); plan != nil || len(planned) > 0 {
				t.Errorf("a backup that is created has the plan %+v", plan)
			}
			create("foreign", []string{"bank"}, metav1.DryRunAll)
			if len(planned) > 0 {
				t.Error("a backup was planned that may not be created")
			}
			plan := create("b", nil, metav1.DryRunAll)
			want := append([]v1alpha1.PlannedRelated(nil), related...)
			if !all {
				want[0].Name, want[0].Reason = "", ""
			}
			if plan == nil || plan.Queue == nil || plan.Queue.Position != 3 {
				t.Fatalf("the plan is %+v", plan)
			}
			if diff := gocmp.Diff(want, plan.Along); diff != "" {
				t.Errorf("what comes along (-want +got):\n%s", diff)
			}
			run := planned[0]
			if by := run.Spec.Requester; by.Username != "jane" || len(by.Groups) == 0 || run.Spec.BackupRef != (v1alpha1.BackupReference{Namespace: "shop", Name: "b"}) || len(run.Spec.Backup.IncludedNamespaces) != 1 {
				t.Errorf("planned was %+v", run.Spec)
			}
			if len(h.observed) != 1 {
				t.Errorf("recorded were %v", h.observed)
			}
			failure = errors.New("away")
			if plan := create("c", nil, metav1.DryRunAll); plan != nil || len(warnings) != 1 {
				t.Errorf("without a controller the plan is %+v, with the warnings %v", plan, warnings)
			}
		})
	}
}
