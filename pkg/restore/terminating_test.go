// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"net/http"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestTerminatingNamespace: proof 9, pitfall 12. A namespace that is being deleted is waited for
// once and not once for each object, whether it goes or stays; a plan does not wait.
func TestTerminatingNamespace(t *testing.T) {
	const objects = 200
	for name, c := range map[string]struct {
		planOnly, goes bool
		gets           int
	}{
		"it goes":   {goes: true, gets: 3},
		"it stays":  {gets: 2},
		"in a plan": {planOnly: true, gets: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a", with("2026-01-02T03:04:05Z", "metadata", "deletionTimestamp")))
			now := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC))
			gets := 0
			s.fault = func(r *http.Request) (int, bool) {
				if r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/a" {
					switch gets++; {
					case gets == 2 && c.goes:
						delete(s.objects, "namespaces//a")
					case gets == 2:
						now.SetTime(now.Now().Add(terminatingTimeout + time.Second))
					}
				}
				return 0, false
			}
			phase, texts := v1alpha1.RestorePhaseCompleted, []string(nil)
			if !c.goes {
				phase, texts = v1alpha1.RestorePhasePartiallyFailed, []string{"the namespace a is being deleted"}
			}
			plan := want(t, s.run(t.Context(), backupOf(t, configMaps("a", objects)...), request("r", v1alpha1.RestoreSpec{PlanOnly: c.planOnly}), func(d *Dependencies) { d.Clock = now }), phase, texts...)
			if gets > c.gets {
				t.Errorf("the namespace was asked for %d times", gets)
			}
			created := 0
			for _, o := range plan.Items {
				if o.Action == "create" {
					created++
				}
			}
			if c.goes && created != objects+1 || !c.goes && created != 0 {
				t.Errorf("%d objects were created", created)
			}
		})
	}
}

// TestPlanOfWhatIsBeingDeleted: it says what the restore will do, which waits for the end of what
// is there, and creates it anew.
func TestPlanOfWhatIsBeingDeleted(t *testing.T) {
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	s.add("configmaps", obj("v1", "ConfigMap", "a", "c", with("2026-01-02T03:04:05Z", "metadata", "deletionTimestamp")))
	plan := want(t, s.run(t.Context(), backupOf(t, obj("v1", "ConfigMap", "a", "c")), request("r", v1alpha1.RestoreSpec{PlanOnly: true})), v1alpha1.RestorePhaseCompleted)
	if action := actions(plan)["ConfigMap a/c"]; action != "create" {
		t.Errorf("what is planned: %s", action)
	}
}
