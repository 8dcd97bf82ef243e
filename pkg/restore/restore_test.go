// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
)

// configMaps are objects of a namespace, and that.
func configMaps(namespace string, n int) []map[string]any {
	objects := []map[string]any{obj("v1", "Namespace", "", namespace)}
	for i := range n {
		objects = append(objects, obj("v1", "ConfigMap", namespace, fmt.Sprintf("c-%05d", i), with(fmt.Sprint(i), "data", "n")))
	}
	return objects
}

// TestRequests: one request for each object and little besides, and for a second restore
// less than one read and no write. Proofs 7 and 19.
func TestRequests(t *testing.T) {
	const n = 2000
	s := newFakeServer(t)
	backup := backupOf(t, configMaps("a", n)...)
	want(t, s.run(t.Context(), backup, request("r1", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	if s.writes != n+1 {
		t.Errorf("%d writes of %d objects", s.writes, n+1)
	}
	if requests := s.count(); requests > n+n/5 {
		t.Errorf("%d requests for %d objects", requests, n+1)
	}
	clear(s.requests)
	s.writes = 0
	plan := want(t, s.run(t.Context(), backup, request("r2", v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate})), v1alpha1.RestorePhaseCompleted)
	if s.writes > 0 || s.count("POST", "PATCH", "DELETE") > 1 {
		t.Errorf("the second restore wrote %d times, by %v", s.writes, s.requests)
	}
	if s.count() > n/50 {
		t.Errorf("the second restore made %d requests", s.count())
	}
	for _, o := range plan.Items {
		if o.Action != "skip" {
			t.Fatalf("what is equal: %+v", o)
		}
	}
}

// TestOwners: proofs 2, 3 and 4.
func TestOwners(t *testing.T) {
	s := newFakeServer(t)
	a := obj("v1", "ConfigMap", "a", "a")
	b := obj("v1", "ConfigMap", "a", "b", ownedBy(a))
	c := obj("v1", "ConfigMap", "a", "c", ownedBy(b))
	ownedBy(c)(a) // in a circle
	live := obj("v1", "Secret", "a", "live")
	kept := obj("v1", "ConfigMap", "a", "kept", ownedBy(live))
	stray := obj("v1", "ConfigMap", "a", "stray", ownedBy(obj("v1", "Secret", "a", "gone")))
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	s.add("secrets", obj("v1", "Secret", "a", "live", with("uid-now", "metadata", "uid")))
	want(t, s.run(t.Context(), backupOf(t, a, b, c, kept, stray), request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted, "the Secret gone, is neither restored nor there")
	for of, owner := range map[string]string{"a": "c", "b": "a", "c": "b"} {
		owners := s.get("configmaps", "a", of).GetOwnerReferences()
		if len(owners) != 1 || owners[0].UID != s.get("configmaps", "a", owner).GetUID() {
			t.Errorf("%s is owned by %v", of, owners)
		}
	}
	if owners := s.get("configmaps", "a", "kept").GetOwnerReferences(); len(owners) != 1 || owners[0].UID != "uid-now" {
		t.Errorf("what a live object owns is owned by %v", owners)
	}
	if owners := s.get("configmaps", "a", "stray").GetOwnerReferences(); len(owners) != 0 {
		t.Errorf("what nobody owns is owned by %v", owners)
	}
}

// TestOwnerOfALaterAttempt: what was created while its owner could not be is owned all the same,
// once an attempt after that has created the owner.
func TestOwnerOfALaterAttempt(t *testing.T) {
	s := newFakeServer(t)
	owner := obj("v1", "Secret", "a", "owner")
	backup := backupOf(t, obj("v1", "Namespace", "", "a"), owner, obj("v1", "ConfigMap", "a", "owned", ownedBy(owner)))
	s.fault = func(r *http.Request) (int, bool) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/secrets") {
			return http.StatusUnprocessableEntity, false
		}
		return 0, false
	}
	want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhasePartiallyFailed, "the Secret owner, is neither restored nor there")
	s.fault = nil
	want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	if owners := s.get("configmaps", "a", "owned").GetOwnerReferences(); len(owners) != 1 || owners[0].UID != s.get("secrets", "a", "owner").GetUID() {
		t.Errorf("it is owned by %v", owners)
	}
}

// definition is that of a kind.
func definition(group, kind string) map[string]any {
	return obj("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", strings.ToLower(kind)+"s."+group, with(map[string]any{
		"group": group, "names": map[string]any{"plural": strings.ToLower(kind) + "s", "kind": kind},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true}},
	}, "spec"))
}

// TestPlan: what is planned is what is done, and planning writes nothing. Proofs 5 and 17.
func TestPlan(t *testing.T) {
	s := newFakeServer(t)
	objects := append(configMaps("a", 30), definition("example.com", "Widget"), obj("example.com/v1", "Widget", "a", "w"))
	objects = append(objects, obj("v1", "Secret", "a", "child", ownedBy(objects[len(objects)-1])), obj("old.example.com/v1", "Gone", "a", "g"))
	backup := backupOf(t, objects...)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	s.add("configmaps", obj("v1", "ConfigMap", "a", "c-00003", with("other", "data", "n")))
	spec := v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate, PlanOnly: true}
	planned := want(t, s.run(t.Context(), backup, request("p", spec)), v1alpha1.RestorePhasePartiallyFailed, "does not serve old.example.com/v1/Gone")
	if s.writes > 0 {
		t.Errorf("planning wrote %d times", s.writes)
	}
	spec.PlanOnly = false
	done := want(t, s.run(t.Context(), backup, request("r", spec)), v1alpha1.RestorePhasePartiallyFailed, "does not serve old.example.com/v1/Gone")
	if diff := cmp.Diff(actions(planned), actions(done)); diff != "" {
		t.Errorf("-planned +done:\n%s", diff)
	}
	if o := s.get("configmaps", "a", "c-00003"); o.Object["data"].(map[string]any)["n"] != "3" {
		t.Errorf("what was to be updated: %v", o)
	}
	if s.get("widgets.example.com", "a", "w") == nil {
		t.Error("the object of a new kind is missing")
	}
}

func actions(plan format.RestorePlan) map[string]string {
	found := map[string]string{}
	for _, o := range plan.Items {
		found[o.Kind+" "+o.Namespace+"/"+o.Name] = o.Action
	}
	return found
}

// TestExisting: proof 8. A key that was added since counts as a change, and is removed.
func TestExisting(t *testing.T) {
	for policy, wanted := range map[v1alpha1.ExistingResourcePolicy]string{"": "conflict", v1alpha1.ExistingResourceNone: "conflict", v1alpha1.ExistingResourceUpdate: "update"} {
		s := newFakeServer(t)
		s.add("namespaces", obj("v1", "Namespace", "", "a"))
		s.add("configmaps", obj("v1", "ConfigMap", "a", "c", with("live", "data", "x"), with("theirs", "data", "y")))
		backup := backupOf(t, obj("v1", "ConfigMap", "a", "c", with("old", "data", "x")))
		plan := want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{ExistingResourcePolicy: policy})), v1alpha1.RestorePhaseCompleted)
		if action := actions(plan)["ConfigMap a/c"]; action != wanted {
			t.Errorf("%q: %s", policy, action)
		}
		if reason := plan.Items[len(plan.Items)-1].Reason; !strings.Contains(reason, "data.x") || !strings.Contains(reason, "data.y") {
			t.Errorf("%q: the reason is %q", policy, reason)
		}
		data, _, _ := unstructured.NestedStringMap(s.get("configmaps", "a", "c").Object, "data")
		expected := map[string]string{"x": "live", "y": "theirs"}
		if wanted == "update" {
			expected = map[string]string{"x": "old"}
		}
		if diff := cmp.Diff(expected, data); diff != "" {
			t.Errorf("%q: (-want +got):\n%s", policy, diff)
		}
	}
}

// TestSchedules: a schedule comes back paused, and that is said. One that is there is no other
// one for being paused or not, and is paused if a restore of the administrators changes it.
func TestSchedules(t *testing.T) {
	schedule := func(fields ...func(map[string]any)) map[string]any {
		return obj("holdfast.io/v1alpha1", "Schedule", "a", "nightly", append(fields, with("@daily", "spec", "schedule"), with([]any{"a", "b"}, "spec", "template", "includedNamespaces"))...)
	}
	const paused = "it is paused, and makes no backups until somebody resumes it"
	for name, c := range map[string]struct {
		live, stored map[string]any
		policy       v1alpha1.ExistingResourcePolicy
		action       string
		told, paused bool
	}{
		"none is there":             {nil, schedule(), "", "create", true, true},
		"it was paused":             {nil, schedule(with(true, "spec", "paused")), "", "create", false, true},
		"the same is there":         {schedule(), schedule(), v1alpha1.ExistingResourceUpdate, "skip", false, false},
		"one that was paused since": {schedule(with(true, "spec", "paused")), schedule(), "", "skip", false, true},
		"another one is there":      {schedule(with("UTC", "spec", "timeZone")), schedule(), "", "conflict", false, false},
		"another one is updated":    {schedule(with("UTC", "spec", "timeZone")), schedule(), v1alpha1.ExistingResourceUpdate, "update", true, false}, // the API server pauses it
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			if c.live != nil {
				s.add("schedules.holdfast.io", c.live)
			}
			var warnings []string
			if c.told {
				warnings = []string{paused}
			}
			done := s.run(t.Context(), backupOf(t, c.stored), request("r", v1alpha1.RestoreSpec{ExistingResourcePolicy: c.policy}))
			if got := actions(want(t, done, v1alpha1.RestorePhaseCompleted, warnings...))["Schedule a/nightly"]; got != c.action {
				t.Errorf("%s, want %s", got, c.action)
			}
			if results, _ := told(t, done); strings.Contains(fmt.Sprint(results), paused) != c.told {
				t.Errorf("that it is paused is told: %t, want %t: %+v", !c.told, c.told, results)
			}
			if is, _, _ := unstructured.NestedBool(s.get("schedules.holdfast.io", "a", "nightly").Object, "spec", "paused"); is != c.paused {
				t.Errorf("it is paused: %t, want %t", is, c.paused)
			}
		})
	}
	s := newFakeServer(t)
	s.run(t.Context(), backupOf(t, schedule(), obj("holdfast.io/v1alpha1", "Backup", "a", "b")), request("r", v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"a": "copy"}}))
	if got, _, _ := unstructured.NestedStringSlice(s.get("schedules.holdfast.io", "copy", "nightly").Object, "spec", "template", "includedNamespaces"); !slices.Equal(got, []string{"copy", "b"}) {
		t.Errorf("in a copy of the namespace it selects %q", got)
	}
	if s.get("backups.holdfast.io", "copy", "b") != nil {
		t.Error("a backup is restored as an object")
	}
}

// TestServersOwn: what the server puts back is its own: an object that has only such fields besides
// is equal, and nothing is written. If the server refuses to tell, all that is there besides is
// named.
func TestServersOwn(t *testing.T) {
	for refuses, wanted := range map[bool]string{false: "skip", true: "conflict"} {
		s := newFakeServer(t)
		s.add("namespaces", obj("v1", "Namespace", "", "a"))
		s.add("deployments.apps", obj("apps/v1", "Deployment", "a", "d", with("RollingUpdate", "spec", "strategy", "type")))
		s.fault = func(r *http.Request) (int, bool) {
			if r.Method != http.MethodPatch {
				return 0, false
			}
			if r.URL.Query().Get("dryRun") != "All" {
				t.Error("something is written")
			}
			if refuses {
				return http.StatusForbidden, false
			}
			_ = r.Body.Close()
			r.Body = io.NopCloser(strings.NewReader("{}")) // whatever is removed is put back
			return 0, false
		}
		plan := want(t, s.run(t.Context(), backupOf(t, obj("apps/v1", "Deployment", "a", "d")), request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
		if action := actions(plan)["Deployment a/d"]; action != wanted {
			t.Errorf("refuses %v: %s, want %s", refuses, action, wanted)
		}
		if s.writes > 0 {
			t.Errorf("%d writes", s.writes)
		}
	}
}

// TestRecreate: what can't be changed is deleted and created, but for that with which data or
// other objects would go; and a plan says so.
func TestRecreate(t *testing.T) {
	for _, planOnly := range []bool{true, false} {
		s := newFakeServer(t)
		s.add("namespaces", obj("v1", "Namespace", "", "a"))
		s.add("configmaps", obj("v1", "ConfigMap", "a", "c", with("live", "data", "x"), with(true, "immutable")))
		s.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data", with("fast", "spec", "storageClassName")))
		s.add("customresourcedefinitions.apiextensions.k8s.io", definition("example.com", "Widget"))
		changed := definition("example.com", "Widget")
		with("Gadget", "spec", "names", "kind")(changed)
		backup := backupOf(t, obj("v1", "ConfigMap", "a", "c", with("old", "data", "x"), with(true, "immutable")),
			obj("v1", "PersistentVolumeClaim", "a", "data", with("slow", "spec", "storageClassName")), changed)
		plan := want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceRecreate, PlanOnly: planOnly})),
			v1alpha1.RestorePhasePartiallyFailed, "its data would go with it", "all objects of its kind would go with it")
		wanted := map[string]string{"ConfigMap a/c": "recreate", "PersistentVolumeClaim a/data": "error", "CustomResourceDefinition /widgets.example.com": "error"}
		if !planOnly {
			wanted["ConfigMap a/c"] = "create" // it has been deleted by then
		}
		if diff := cmp.Diff(wanted, actions(plan)); diff != "" {
			t.Errorf("plan only %v: (-want +got):\n%s", planOnly, diff)
		}
		if deletes := s.count(http.MethodDelete); !planOnly && deletes != 1 || planOnly && deletes != 0 {
			t.Errorf("plan only %v: %d objects were deleted", planOnly, deletes)
		}
	}
}

// TestDefinitionThatStays: what the backup's definition would have the cluster serve is not
// waited for in vain where that of the cluster stays as it is.
func TestDefinitionThatStays(t *testing.T) {
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	s.add("customresourcedefinitions.apiextensions.k8s.io", definition("example.com", "Widget"))
	s.define(&unstructured.Unstructured{Object: definition("example.com", "Widget")})
	old := definition("example.com", "Widget")
	with([]any{map[string]any{"name": "v0", "served": true}}, "spec", "versions")(old)
	want(t, s.run(t.Context(), backupOf(t, old, obj("example.com/v1", "Widget", "a", "w")), request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
}

// TestTenants: what a tenant's restore refuses. Proof 18.
func TestTenants(t *testing.T) {
	hostPath := []any{map[string]any{"name": "h", "hostPath": map[string]any{"path": "/"}}}
	for name, test := range map[string]struct {
		object map[string]any
		live   bool
		phase  v1alpha1.RestorePhase
		text   string
	}{
		"token":            {object: obj("v1", "Secret", "a", "t", with("kubernetes.io/service-account-token", "type")), phase: v1alpha1.RestorePhasePartiallyFailed, text: refusedToken},
		"host path":        {object: obj("v1", "Pod", "a", "p", with(hostPath, "spec", "volumes")), phase: v1alpha1.RestorePhasePartiallyFailed, text: refusedHostPath},
		"template":         {object: obj("apps/v1", "Deployment", "a", "d", with(hostPath, "spec", "template", "spec", "volumes")), phase: v1alpha1.RestorePhasePartiallyFailed, text: refusedHostPath},
		"account":          {object: obj("v1", "Pod", "a", "p", with("powerful", "spec", "serviceAccountName")), phase: v1alpha1.RestorePhasePartiallyFailed, text: "may not impersonate"},
		"binding":          {object: obj("rbac.authorization.k8s.io/v1", "RoleBinding", "a", "r"), phase: v1alpha1.RestorePhaseCompleted, text: "not as in the backup: 1 (1 rolebindings.rbac.authorization.k8s.io)"},
		"binding as it is": {object: obj("rbac.authorization.k8s.io/v1", "RoleBinding", "a", "r"), live: true, phase: v1alpha1.RestorePhaseCompleted},
		"namespace":        {object: obj("v1", "Namespace", "", "a", with("privileged", "metadata", "labels", "pod-security")), phase: v1alpha1.RestorePhaseCompleted},
		"foreign":          {object: obj("v1", "ConfigMap", "b", "c"), phase: v1alpha1.RestorePhaseFailedValidation, text: ""},
		"missing":          {object: obj("v1", "ConfigMap", "c", "c"), phase: v1alpha1.RestorePhaseFailedValidation, text: ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			s.add("namespaces", obj("v1", "Namespace", "", "b"))
			if test.live {
				s.add("rolebindings.rbac.authorization.k8s.io", obj("rbac.authorization.k8s.io/v1", "RoleBinding", "a", "r"))
			}
			request := request("r", v1alpha1.RestoreSpec{})
			request.Run.Spec.RestoreRef.Namespace = "a"
			ended := s.run(t.Context(), backupOf(t, obj("v1", "ConfigMap", "a", "plain"), test.object), request, func(d *Dependencies) {
				d.Allowed = func(_ context.Context, right Right) (bool, error) {
					return right.Resource == "restores" && right.Namespace != "b", nil
				}
			})
			want(t, ended, test.phase, test.text)
			wrote := 1
			if test.phase == v1alpha1.RestorePhaseFailedValidation {
				wrote = 0
			}
			if s.writes != wrote {
				t.Errorf("%d writes: %v", s.writes, s.created)
			}
		})
	}
}

// TestFormerOwners: a tenant's restore takes nothing of a namespace that was made anew since the backup.
func TestFormerOwners(t *testing.T) {
	for name, uid := range map[string]types.UID{"the same": "uid of b", "made anew": "another"} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			s.add("namespaces", obj("v1", "Namespace", "", "b"))
			request := request("r", v1alpha1.RestoreSpec{})
			request.Run.Spec.RestoreRef.Namespace = "a"
			backup := backupOf(t, obj("v1", "ConfigMap", "a", "c"), obj("v1", "Namespace", "", "b", with("uid of b", "metadata", "uid")), obj("v1", "ConfigMap", "b", "c"))
			ended := s.run(t.Context(), backup, request, func(d *Dependencies) {
				d.Allowed = func(context.Context, Right) (bool, error) { return true, nil }
				d.Continues = func(_ context.Context, namespace string, was types.UID) (bool, error) {
					return namespace == "a" || was == uid, nil
				}
			})
			if name == "the same" {
				want(t, ended, v1alpha1.RestorePhaseCompleted)
				return
			}
			want(t, ended, v1alpha1.RestorePhaseFailedValidation)
			if s.writes > 0 || !strings.Contains(fmt.Sprint(ended.Err), "another namespace b than the present one") {
				t.Errorf("%d writes, %v", s.writes, ended.Err)
			}
		})
	}
}

// TestExistingVolumes: no data is written over without a word.
func TestExistingVolumes(t *testing.T) {
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	s.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data"))
	backup := backupOf(t, obj("v1", "ConfigMap", "a", "c"), obj("v1", "PersistentVolumeClaim", "a", "data"))
	backup.Volumes = append(backup.Volumes, source.Volume{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: "a", Name: "p"}, ClaimName: "data"}})
	ended := s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}))
	var refused *Refused
	if !errors.As(ended.Err, &refused) || s.writes > 0 {
		t.Errorf("%v, after %d writes", ended.Err, s.writes)
	}
	// The harmless way comes first.
	text := ended.Err.Error()
	keep, overwrite, replace := strings.Index(text, "keep ("), strings.Index(text, "overwrite ("), strings.Index(text, "replace (")
	if !strings.Contains(text, "a/data") || keep < 0 || keep > overwrite || overwrite > replace {
		t.Errorf("the refusal is %q", text)
	}

	kept := s.run(t.Context(), backup, request("r2", v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeKeep}))
	want(t, kept, v1alpha1.RestorePhaseCompleted)
	if s.writes != 1 || s.objects["configmaps/a/c"] == nil {
		t.Errorf("with keep: %d writes: %v", s.writes, s.created)
	}
	// One that holds a part of other data is not kept: its users would take that for all of it.
	s.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data", with("other new s", "metadata", "annotations", format.AnnotationIncomplete)))
	ended = s.run(t.Context(), backup, request("r3", v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeKeep}))
	if !errors.As(ended.Err, &refused) || !strings.Contains(ended.Err.Error(), "a part of other data") {
		t.Errorf("%v", ended.Err)
	}
}

// TestClaimMadeMeanwhile: nor is that of a claim that somebody makes while the restore is
// under way.
func TestClaimMadeMeanwhile(t *testing.T) {
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	pod := obj("v1", "Pod", "a", "p", with([]any{map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": "data"}}}, "spec", "volumes"))
	backup := backupOf(t, obj("v1", "PersistentVolumeClaim", "a", "data"), pod)
	backup.Volumes = append(backup.Volumes, source.Volume{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: "a", Name: "p"}, ClaimName: "data"}})
	s.fault = func(r *http.Request) (int, bool) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/persistentvolumeclaims") {
			s.objects["persistentvolumeclaims/a/data"] = obj("v1", "PersistentVolumeClaim", "a", "data", with("theirs", "metadata", "uid"))
		}
		return 0, false
	}
	want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhasePartiallyFailed, "somebody has made it meanwhile", "it uses the claim a/data")
	if s.writes > 0 {
		t.Errorf("%d writes: %v", s.writes, s.created)
	}
}

// TestRandomGraph restores random objects, with owners in every which way, while the server
// fails, changes its mind, loses answers, and the process is stopped and begins anew:
// everything is there in the end, was created once, has the right owners, and a second
// restore writes nothing. Proofs 4, 7 and 16. TestKilledAtEveryRequest leaves none out.
func TestRandomGraph(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		kinds := []string{"ConfigMap", "Secret", "ServiceAccount"}
		objects := []map[string]any{obj("v1", "Namespace", "", "a")}
		n := rapid.IntRange(1, 30).Draw(rt, "objects")
		for i := range n {
			objects = append(objects, obj("v1", rapid.SampledFrom(kinds).Draw(rt, "kind"), "a", fmt.Sprintf("o-%02d", i), with(fmt.Sprint(i), "data", "n")))
		}
		owners := map[int]int{}
		for range rapid.IntRange(0, n).Draw(rt, "owners") {
			of, owner := rapid.IntRange(1, n).Draw(rt, "of"), rapid.IntRange(1, n).Draw(rt, "owner")
			if of != owner {
				ownedBy(objects[owner])(objects[of])
				owners[of] = owner
			}
		}
		backup := backupOf(t, objects...)
		s := newFakeServer(t)
		defer s.server.Close()
		if rapid.Bool().Draw(rt, "namespace exists") {
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
		}
		faults := rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 0, 409, 429, 503, -1, -2}), 0, 50).Draw(rt, "faults")
		faults = append(faults, 0, 0)
		stops := rapid.SliceOfN(rapid.IntRange(1, 40), 0, 4).Draw(rt, "stops")
		var at atomic.Int64
		s.fault = func(r *http.Request) (int, bool) {
			switch code := faults[int(at.Add(1))%len(faults)]; {
			case code == -2:
				return -1, true // the answer is lost
			case code == http.StatusConflict && r.Method != http.MethodPatch:
				return 0, false
			default:
				return code, false
			}
		}
		req := request("r", v1alpha1.RestoreSpec{})
		for _, stop := range stops {
			ctx, cancel := context.WithCancel(context.Background())
			var left atomic.Int64
			left.Store(int64(stop))
			inner := s.fault
			s.mu.Lock()
			s.fault = func(r *http.Request) (int, bool) {
				if left.Add(-1) == 0 {
					cancel()
				}
				return inner(r)
			}
			s.mu.Unlock()
			s.run(ctx, backup, req)
			cancel()
			s.mu.Lock()
			s.fault = inner
			s.mu.Unlock()
		}
		ended := s.run(context.Background(), backup, req)
		for range 5 { // one request may meet all faults in a row
			if ended.Status.Phase == v1alpha1.RestorePhaseCompleted {
				break
			}
			at.Add(1) // else it may meet the same ones each time
			ended = s.run(context.Background(), backup, req)
		}
		results, _ := told(t, ended)
		if ended.Status.Phase != v1alpha1.RestorePhaseCompleted {
			rt.Fatalf("%+v %v", ended.Status, results)
		}
		uids := map[string]string{}
		for _, o := range objects[1:] {
			u := unstructured.Unstructured{Object: o}
			live := s.get(plural(u.GetKind()), "a", u.GetName())
			if live == nil {
				rt.Fatalf("%s %s is missing", u.GetKind(), u.GetName())
			}
			uids[u.GetName()] = string(live.GetUID())
		}
		for key, times := range s.created {
			if times != 1 {
				rt.Errorf("%s was created %d times", key, times)
			}
		}
		for of, owner := range owners {
			u := unstructured.Unstructured{Object: objects[of]}
			found := s.get(plural(u.GetKind()), "a", u.GetName()).GetOwnerReferences()
			if len(found) != 1 || string(found[0].UID) != uids[fmt.Sprintf("o-%02d", owner-1)] {
				rt.Errorf("%s is owned by %v, and not by o-%02d (%s)", u.GetName(), found, owner-1, uids[fmt.Sprintf("o-%02d", owner-1)])
			}
		}
		s.writes = 0
		s.run(context.Background(), backup, request("r2", v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate}))
		if s.writes > 0 {
			rt.Errorf("the second restore wrote %d times", s.writes)
		}
	})
}
