// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestVolumesOfClaims: a claim names its volume only if the volume is there and free for
// it, since it would stay Pending for ever otherwise.
func TestVolumesOfClaims(t *testing.T) {
	const uid = "old-PersistentVolumeClaim-a-data"
	claimRef := func(namespace, uid string) map[string]any {
		reference := map[string]any{"namespace": namespace, "name": "data"}
		if uid != "" {
			reference["uid"], reference["resourceVersion"] = uid, "7"
		}
		return reference
	}
	volume := func(policy string, reference map[string]any, phase string) map[string]any {
		o := obj("v1", "PersistentVolume", "", "pv", with(policy, "spec", "persistentVolumeReclaimPolicy"), with(phase, "status", "phase"))
		if reference != nil {
			o["spec"].(map[string]any)["claimRef"] = reference
		}
		return o
	}
	lost := volume("Delete", claimRef("a", uid), "Bound")
	retained := volume("Retain", claimRef("a", uid), "Bound")
	const empty = "it comes back empty, since the backup does not hold its data"
	for name, test := range map[string]struct {
		stored, live map[string]any
		spec         v1alpha1.RestoreSpec
		change       func(*Dependencies)
		namespace    string
		keeps        bool
		says         string
	}{
		"lost with its claim":                    {stored: lost, says: empty},
		"lost, and in no backup":                 {says: empty},
		"lost, and kept by the backup":           {stored: retained, keeps: true},
		"there, and released by the claim":       {stored: retained, live: volume("Retain", claimRef("a", uid), "Released"), keeps: true},
		"there, and in no backup":                {live: volume("Retain", claimRef("a", uid), "Released"), keeps: true},
		"released by a later claim of this name": {live: volume("Retain", claimRef("a", "later"), "Released"), keeps: true, says: "a later claim of this name has written there"},
		"about to be deleted":                    {stored: lost, live: volume("Delete", claimRef("a", uid), "Released"), says: empty},
		"bound to another claim":                 {stored: retained, live: volume("Retain", claimRef("b", "other"), "Bound"), says: empty},
		"free":                                   {stored: retained, live: volume("Retain", nil, "Available"), keeps: true, says: "it differs: spec.claimRef"},
		"reserved for the claim":                 {stored: retained, live: volume("Retain", claimRef("a", ""), "Available"), keeps: true},
		"reserved for another claim":             {stored: retained, live: volume("Retain", claimRef("b", ""), "Available"), says: empty},
		"the namespace is mapped": {
			stored: retained, live: volume("Retain", nil, "Available"), namespace: "copy",
			spec: v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"a": "copy"}}, says: empty,
		},
		"of another cluster": {stored: retained, change: func(d *Dependencies) { d.ClusterUID = "here" }, says: "it points at storage of the cluster there"},
		"of another cluster, and asked for": {
			stored: retained, change: func(d *Dependencies) { d.ClusterUID = "here" }, spec: v1alpha1.RestoreSpec{RestorePVs: new(true)}, keeps: true,
		},
		"of this cluster": {stored: retained, change: func(d *Dependencies) { d.ClusterUID = "there" }, keeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []map[string]any{obj("v1", "PersistentVolumeClaim", "a", "data", with("pv", "spec", "volumeName"))}
			if test.stored != nil {
				objects = append(objects, (&unstructured.Unstructured{Object: test.stored}).DeepCopy().Object)
			}
			backup := backupOf(t, objects...)
			backup.Metadata = &v1alpha1.Backup{Status: v1alpha1.BackupStatus{Origin: &v1alpha1.BackupOrigin{ClusterUID: "there"}}}
			s := newFakeServer(t)
			namespace := "a"
			if test.namespace != "" {
				namespace = test.namespace
			}
			s.add("namespaces", obj("v1", "Namespace", "", namespace))
			if test.live != nil {
				s.add("persistentvolumes", test.live)
			}
			if test.change == nil {
				test.change = func(*Dependencies) {}
			}

			planned := test.spec
			planned.PlanOnly = true
			want(t, s.run(t.Context(), backup, request("plan", planned), test.change), v1alpha1.RestorePhaseCompleted)
			if s.writes > 0 {
				t.Errorf("the plan made %d writes", s.writes)
			}

			ended := s.run(t.Context(), backup, request("r", test.spec), test.change)
			if want(t, ended, v1alpha1.RestorePhaseCompleted, test.says); test.says == "" && ended.Status.Warnings > 0 {
				results, _ := told(t, ended)
				t.Errorf("warnings: %v", results.Warnings)
			}
			claim := s.get("persistentvolumeclaims", namespace, "data")
			if claim == nil {
				t.Fatal("there is no claim")
			}
			if named, _, _ := unstructured.NestedString(claim.Object, "spec", "volumeName"); (named == "pv") != test.keeps {
				t.Errorf("the claim names the volume %q", named)
			}
			live := s.get("persistentvolumes", "", "pv")
			if !test.keeps {
				return
			}
			reference, _, _ := unstructured.NestedMap(live.Object, "spec", "claimRef")
			if reference["uid"] != nil || reference["resourceVersion"] != nil {
				t.Errorf("the volume is kept for %v", reference)
			}
		})
	}
}

// TestVolumesThatMayNotBeTakenOver: without the right to change it, a volume stays as it is,
// and the claim gets a new one.
func TestVolumesThatMayNotBeTakenOver(t *testing.T) {
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	s.add("persistentvolumes", obj("v1", "PersistentVolume", "", "pv", with("Retain", "spec", "persistentVolumeReclaimPolicy"), with("Released", "status", "phase"),
		with(map[string]any{"namespace": "a", "name": "data", "uid": "old-PersistentVolumeClaim-a-data"}, "spec", "claimRef")))
	s.fault = func(r *http.Request) (int, bool) {
		if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/persistentvolumes/") {
			return http.StatusForbidden, false
		}
		return 0, false
	}
	backup := backupOf(t, obj("v1", "PersistentVolumeClaim", "a", "data", with("pv", "spec", "volumeName")))
	want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted,
		"its volume pv still has its data, and was not given to it", "it comes back empty")
	if named, found, _ := unstructured.NestedString(s.get("persistentvolumeclaims", "a", "data").Object, "spec", "volumeName"); found {
		t.Errorf("the claim names %s", named)
	}
}

// TestClaimsThatAreBoundLate: a claim that keeps its volume may be bound by the controller's next
// round. It is waited for, within a bound.
func TestClaimsThatAreBoundLate(t *testing.T) {
	for name, test := range map[string]struct {
		look, after time.Duration
		says        string
	}{
		"by the next round": {time.Second, 2 * time.Second, ""},
		"never":             {100 * time.Millisecond, time.Hour, "it is not bound: no event says why"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			s.add("persistentvolumes", obj("v1", "PersistentVolume", "", "pv", with("Retain", "spec", "persistentVolumeReclaimPolicy"), with("Released", "status", "phase"),
				with(map[string]any{"namespace": "a", "name": "data", "uid": "old-PersistentVolumeClaim-a-data"}, "spec", "claimRef")))
			var made time.Time
			s.fault = func(r *http.Request) (int, bool) {
				claim := s.objects["persistentvolumeclaims/a/data"]
				switch {
				case claim == nil:
				case made.IsZero():
					made = time.Now()
				case time.Since(made) > test.after:
					with("Bound", "status", "phase")(claim)
				}
				return 0, false
			}
			backup := backupOf(t, obj("v1", "PersistentVolumeClaim", "a", "data", with("pv", "spec", "volumeName")))
			ended := s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}), func(d *Dependencies) { d.Look = test.look })
			if want(t, ended, v1alpha1.RestorePhaseCompleted, test.says); (test.says != "") != (ended.Status.Warnings > 0) {
				results, _ := told(t, ended)
				t.Errorf("warnings: %v", results.Warnings)
			}
		})
	}
}
