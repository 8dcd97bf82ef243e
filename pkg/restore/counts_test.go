// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestCounts shows that a restore counts what is there: created, changed, or there and equal. What
// differs or failed counts apart, and what a rule leaves out is not to be restored.
func TestCounts(t *testing.T) {
	objects := []map[string]any{
		obj("v1", "Namespace", "", "a"),
		obj("v1", "ConfigMap", "a", "new", with("1", "data", "k")),
		obj("v1", "ConfigMap", "a", "equal", with("1", "data", "k")),
		obj("v1", "ConfigMap", "a", "other", with("1", "data", "k")),
		obj("v1", "Secret", "a", "refused"),
		obj("v1", "Pod", "a", "ended", with("Succeeded", "status", "phase")),
	}
	for name, test := range map[string]struct {
		policy v1alpha1.ExistingResourcePolicy
		want   v1alpha1.RestoreProgress
		phase  v1alpha1.RestorePhase
	}{
		"what differs stays":      {v1alpha1.ExistingResourceNone, v1alpha1.RestoreProgress{TotalItems: 5, ItemsRestored: 3, ItemsCreated: 2, ItemsUnchanged: 1, ItemsDiffering: 1, ItemsFailed: 1}, v1alpha1.RestorePhasePartiallyFailed},
		"what differs is changed": {v1alpha1.ExistingResourceUpdate, v1alpha1.RestoreProgress{TotalItems: 5, ItemsRestored: 4, ItemsCreated: 2, ItemsUpdated: 1, ItemsUnchanged: 1, ItemsFailed: 1}, v1alpha1.RestorePhasePartiallyFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("configmaps", obj("v1", "ConfigMap", "a", "equal", with("1", "data", "k")))
			s.add("configmaps", obj("v1", "ConfigMap", "a", "other", with("2", "data", "k")))
			s.fault = func(r *http.Request) (int, bool) {
				if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/secrets") {
					return http.StatusUnprocessableEntity, false
				}
				return 0, false
			}
			ended := s.run(t.Context(), backupOf(t, objects...), request("r", v1alpha1.RestoreSpec{ExistingResourcePolicy: test.policy}))
			if ended.Status.Phase != test.phase || *ended.Status.Progress != test.want {
				t.Errorf("it is %s: %+v, want %+v", ended.Status.Phase, *ended.Status.Progress, test.want)
			}
			if got := ended.Status.Message; !strings.HasPrefix(got, "1 error") || !strings.Contains(got, ": secrets a/refused: ") {
				t.Errorf("its message is %q", got)
			}
		})
	}
}
