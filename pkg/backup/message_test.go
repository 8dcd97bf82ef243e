// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestItemsOfNothing shows that a backup whose words stand for nothing does not look complete.
func TestItemsOfNothing(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"deploymnts"}})
	f.add("namespaces", namespace("shop", ""))
	status := f.run(t).Status
	if want := (v1alpha1.BackupProgress{TotalItems: 1}); status.Phase != v1alpha1.BackupPhasePartiallyFailed || *status.Progress != want {
		t.Errorf("it is %s: %+v", status.Phase, *status.Progress)
	}
}

// TestMessage shows that an ended backup says in its conditions what it lacks, also as it is
// stored, and that a tenant's names nothing of other namespaces.
func TestMessage(t *testing.T) {
	for name, test := range map[string]struct{ namespace, want string }{
		"an administrator's": {"holdfast", "3 errors: namespaces gone: the backup includes it, but it does not exist; configmaps bank: list it: no rights; configmaps shop: list it: no rights"},
		"a tenant's":         {"shop", "3 errors: configmaps shop: list it: no rights; and 2 more"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop", "bank", "gone"}})
			f.request.Backup.Namespace = test.namespace
			f.add("namespaces", namespace("shop", ""), namespace("bank", ""))
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/configmaps") {
					return false
				}
				writeStatus(w, metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no rights"})
				return true
			}
			f.deps.Workers = 1
			outcome := f.run(t)
			if outcome.Status.Message != test.want {
				t.Errorf("the message is %q, want %q", outcome.Status.Message, test.want)
			}
			for _, of := range []string{v1alpha1.ConditionComplete, v1alpha1.ConditionSucceeded} {
				if got := meta.FindStatusCondition(outcome.Status.Conditions, of); got == nil || got.Message != test.want {
					t.Errorf("the condition %s is %+v", of, got)
				}
			}
			if strings.Contains(test.namespace, "shop") {
				return // it is stored by another name
			}
			if stored := f.stored(t); stored.Status.Message != test.want || stored.Status.Conditions[0].Message != test.want {
				t.Errorf("as it is stored it says %q: %+v", stored.Status.Message, stored.Status.Conditions)
			}
		})
	}
}
