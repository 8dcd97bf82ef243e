// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/runlog"
)

// TestUnknownFields: an object that has lost fields has one warning that names
// them, also if it is written twice; further objects of a kind have them in the log, and what else a
// server warns of makes no warning.
func TestUnknownFields(t *testing.T) {
	for name, test := range map[string]struct {
		warnings []string
		objects  int
		warned   int
	}{
		"fields":       {[]string{`unknown field "spec.b"`, `unknown field "spec.a"`, `unknown field "spec.b"`}, 3, 3},
		"no fields":    {[]string{"v1 Thing is deprecated in v1.2", "would violate PodSecurity"}, 3, 0},
		"many objects": {[]string{`unknown field "spec.a"`}, maxUnknown + 20, maxUnknown + 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			s.warnings = test.warnings
			ended := s.run(t.Context(), backupOf(t, configMaps("a", test.objects)...), request("r", v1alpha1.RestoreSpec{ExcludedResources: []string{"namespaces"}}))
			plan := want(t, ended, v1alpha1.RestorePhaseCompleted)
			if int(ended.Status.Warnings) != test.warned {
				t.Errorf("%d warnings for %d objects, want %d", ended.Status.Warnings, len(plan.Items), test.warned)
			}
			results, _ := told(t, ended)
			encoded, _ := json.Marshal(results)
			if name == "fields" && strings.Count(string(encoded), "has dropped them: spec.a, spec.b\"") != 3 {
				t.Errorf("the results are %s", encoded)
			}
		})
	}
	report := newReport(runlog.New(clock.RealClock{}), "a", "holdfast")
	tell := (&unknownFields{}).tell(report)
	for range 2 {
		tell(subject{"configmaps", "a", "c"}, []string{`unknown field "spec.a"`})
	}
	if _, warnings := report.counts(); warnings != 1 {
		t.Errorf("%d warnings of one object", warnings)
	}
}
