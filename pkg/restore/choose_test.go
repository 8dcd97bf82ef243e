// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
)

// TestClaimsWithoutData: that a claim comes back empty is said, and what would start on one
// whose data can't be restored is held back.
func TestClaimsWithoutData(t *testing.T) {
	bound := func(name string) map[string]any {
		return obj("v1", "PersistentVolumeClaim", "a", name, with("pv-"+name, "spec", "volumeName"))
	}
	backup := backupOf(t, bound("idle"), bound("unknown"), bound("kept"), obj("v1", "PersistentVolumeClaim", "a", "pending"),
		obj("v1", "PersistentVolume", "", "pv-kept", with("Retain", "spec", "persistentVolumeReclaimPolicy")))
	backup.NotTaken = map[types.NamespacedName]string{{Namespace: "a", Name: "idle"}: "no pod runs"}
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	ended := s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}))
	want(t, ended, v1alpha1.RestorePhaseCompleted, "persistentvolumeclaims a/idle: it comes back empty, since the backup does not hold its data: no pod runs", "a/unknown: it comes back empty")
	if ended.Status.Warnings != 2 {
		results, _ := told(t, ended)
		t.Errorf("warnings: %v", results.Warnings)
	}

	pod := obj("v1", "Pod", "a", "p", with([]any{map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": "snapshot"}}}, "spec", "volumes"))
	backup = backupOf(t, bound("snapshot"), pod)
	backup.Volumes = []source.Volume{{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: "a"}, ClaimName: "snapshot"}, Problem: "it was backed up as CSISnapshot"}}
	for _, live := range []bool{false, true} {
		s = newFakeServer(t)
		s.add("namespaces", obj("v1", "Namespace", "", "a"))
		if live { // nothing would be written over
			s.add("persistentvolumeclaims", bound("snapshot"))
		}
		want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{})), v1alpha1.RestorePhasePartiallyFailed, "its data is not in the backup: it was backed up as CSISnapshot", "would start without")
		if s.get("pods", "a", "p") != nil {
			t.Error("the pod was created")
		}
	}
}

// TestClaimsWithoutVolumes: with restorePVs false, claims come back as new ones. Neither their data nor a volume that
// is kept for them is touched, and one warning counts them. A tenant's names the claims of its namespace.
func TestClaimsWithoutVolumes(t *testing.T) {
	claim := func(namespace, name string, changes ...func(map[string]any)) map[string]any {
		return obj("v1", "PersistentVolumeClaim", namespace, name, append(changes, with("pv", "spec", "volumeName"))...)
	}
	volume := obj("v1", "PersistentVolume", "", "pv", with("Retain", "spec", "persistentVolumeReclaimPolicy"), with("Released", "status", "phase"),
		with(map[string]any{"namespace": "a", "name": "data", "uid": "old-PersistentVolumeClaim-a-data"}, "spec", "claimRef"))
	user := obj("v1", "Pod", "a", "p", with("user-uid", "metadata", "uid"), with([]any{map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": "data"}}}, "spec", "volumes"))
	lone := lonePod("/")
	work := claim("a", "lone-work", ownedBy(lone))
	backup := backupOf(t, volume, user, lone, work, obj("v1", "PersistentVolumeClaim", "a", "pending"), claim("b", "data"),
		claim("a", "data", with(map[string]any{"kind": "VolumeSnapshot", "name": "s"}, "spec", "dataSource"), with(map[string]any{}, "spec", "selector")))
	backup.Volumes = append(withData(t, lone, "scratch").Volumes,
		source.Volume{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: "a", Name: "p"}, ClaimName: "data"}, Problem: "it was backed up as CSISnapshot"})
	for name, test := range map[string]struct {
		live   []map[string]any
		policy v1alpha1.ExistingResourcePolicy
		plan   bool
		tenant string
		says   string
	}{
		"all":             {says: "claims come back empty, since restorePVs is false: 3 (a/"},
		"planned":         {plan: true, says: "claims come back empty, since restorePVs is false: 3 (a/"},
		"for a tenant":    {tenant: "b", says: "claims come back empty, since restorePVs is false: 3 (b/data; and 2 more)"},
		"some that exist": {live: []map[string]any{claim("a", "data")}, policy: v1alpha1.ExistingResourceUpdate, says: "claims come back empty, since restorePVs is false: 2 ("},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			for _, namespace := range []string{"a", "b"} {
				s.add("namespaces", obj("v1", "Namespace", "", namespace))
				s.add("serviceaccounts", obj("v1", "ServiceAccount", namespace, "default"))
			}
			s.add("persistentvolumes", volume)
			for _, o := range test.live {
				s.add("persistentvolumeclaims", o)
			}
			r := request("r", v1alpha1.RestoreSpec{RestorePVs: new(false), PlanOnly: test.plan, ExistingResourcePolicy: test.policy})
			if test.tenant != "" {
				r.Run.Spec.RestoreRef.Namespace = test.tenant
			}
			filled := recording{holding: holding{t}, claims: new([]string), pods: new([]string)}
			ended := want(t, s.run(t.Context(), backup, r, func(d *Dependencies) {
				d.Volumes = filled
				d.Allowed = func(context.Context, Right) (bool, error) { return true, nil }
			}), v1alpha1.RestorePhaseCompleted, test.says)
			if len(*filled.claims) > 0 || len(*filled.pods) > 0 {
				t.Errorf("filled are the claims %v and the volumes %v", *filled.claims, *filled.pods)
			}
			for _, o := range ended.Items {
				if o.Kind == "PersistentVolume" || o.Kind == "PersistentVolumeClaim" && (o.Action == "create") == (o.Name == "lone-work" || o.Name == "data" && o.Namespace == "a" && test.live != nil) {
					t.Errorf("%s: %s %s %s", o.Action, o.Kind, o.Name, o.Reason)
				}
			}
			if reference, _, _ := unstructured.NestedMap(s.get("persistentvolumes", "", "pv").Object, "spec", "claimRef"); reference["uid"] == nil {
				t.Error("the claim takes over the volume that is kept")
			}
			if s.get("pods", "a", "p") == nil != test.plan {
				t.Error("the pod that uses the claim is missing")
			}
			if !test.plan && len(s.waiters(t)) > 0 {
				t.Errorf("a pod waits for the data of its volume: %v", s.waiters(t))
			}
			made := s.get("persistentvolumeclaims", "a", "data")
			if test.plan || test.live != nil {
				return
			}
			for _, field := range []string{"volumeName", "dataSource", "selector"} {
				if value, found, _ := unstructured.NestedFieldNoCopy(made.Object, "spec", field); found {
					t.Errorf("the claim has the %s %v", field, value)
				}
			}
		})
	}
}

// wantChosen fails the test unless just these objects of a backup are chosen, as KIND NAMESPACE/NAME.
func wantChosen(t *testing.T, backup *source.Backup, spec v1alpha1.RestoreSpec, names ...string) *report {
	t.Helper()
	e := newExecution(t.Context(), request("r", spec), Dependencies{Backup: backup, Clock: clock.RealClock{}})
	var err error
	if e.kinds, err = discover(t.Context(), newFakeServer(t)); err != nil {
		t.Fatal(err)
	}
	items, others, err := e.choose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, item := range items {
		got = append(got, item.KindName+" "+item.Namespace+"/"+item.Name)
	}
	slices.Sort(got)
	slices.Sort(names)
	if !slices.Equal(got, names) || len(items)+len(others) != len(backup.Items) {
		t.Errorf("chosen are %q, not %q", got, names)
	}
	return e.report
}

// TestClaimsOfSets: a StatefulSet that is named brings its claims, to which it does not refer.
func TestClaimsOfSets(t *testing.T) {
	claim := func(namespace, name string) map[string]any {
		return obj("v1", "PersistentVolumeClaim", namespace, name)
	}
	backup := backupOf(t, obj("apps/v1", "StatefulSet", "a", "web"), obj("apps/v1", "StatefulSet", "a", "my-web"),
		claim("a", "data-web-0"), claim("a", "log-data-web-12"), claim("a", "data-my-web-0"), claim("a", "data-web"), claim("a", "web-0"), claim("b", "data-web-0"))
	objects := []v1alpha1.RestoreObject{{Resource: "statefulsets", Namespace: "a", Name: "web"}}
	wantChosen(t, backup, v1alpha1.RestoreSpec{Objects: objects}, "StatefulSet a/web", "PersistentVolumeClaim a/data-web-0", "PersistentVolumeClaim a/log-data-web-12")
	wantChosen(t, backup, v1alpha1.RestoreSpec{Objects: objects, RestorePVs: new(bool)}, "StatefulSet a/web", "PersistentVolumeClaim a/data-web-0", "PersistentVolumeClaim a/log-data-web-12")
}

// wantTold fails the test unless these are what a report tells, each of one text.
func wantTold(t *testing.T, r *report, errors, warnings []string) {
	t.Helper()
	_, _ = r.end()
	for _, of := range []struct {
		what        string
		found       format.Messages
		count, want int
		texts       []string
	}{{"errors", r.results.Errors, int(r.errors), len(errors), errors}, {"warnings", r.results.Warnings, int(r.warnings), len(warnings), warnings}} {
		encoded, _ := json.Marshal(of.found)
		if of.count != of.want {
			t.Errorf("%d %s, not %d: %s", of.count, of.what, of.want, encoded)
		}
		for _, text := range of.texts {
			if !strings.Contains(string(encoded), text) {
				t.Errorf("the %s lack %q: %s", of.what, text, encoded)
			}
		}
	}
}

// TestUnknownResources: words that mean nothing in the backup are not passed over. A resource may be
// called by any of its names, also by those that only a definition in the backup has.
func TestUnknownResources(t *testing.T) {
	crd := definition("example.com", "Widget")
	with([]any{"wd"}, "spec", "names", "shortNames")(crd)
	with("widgets", "spec", "names", "plural")(crd)
	backup := backupOf(t, obj("v1", "ConfigMap", "a", "c"), obj("v1", "Secret", "a", "s"), obj("v1", "Secret", "b", "s"), obj("apps/v1", "Deployment", "a", "d"), crd, obj("example.com/v1", "Widget", "a", "w"))
	all := []string{"ConfigMap a/c", "Deployment a/d", "Widget a/w"}
	for name, test := range map[string]struct {
		spec             v1alpha1.RestoreSpec
		want             []string
		errors, warnings []string
	}{
		"any name, in any case": {spec: v1alpha1.RestoreSpec{IncludedResources: []string{"configmap", "Deploy.apps", "WD"}}, want: all},
		"excluded by any name":  {spec: v1alpha1.RestoreSpec{ExcludedResources: []string{"cm", "SECRET", "deploy", "crd", "customresourcedefinition"}}, want: []string{"Widget a/w"}, warnings: []string{"the backup holds no crd,"}},
		"patterns in any case":  {spec: v1alpha1.RestoreSpec{IncludedResources: []string{"ConfigM*", "Widgets.*", "deployments.*"}}, want: all},
		"unknown words": {
			spec:     v1alpha1.RestoreSpec{IncludedResources: []string{"ConfigMap", "depl", "jobs.*", "deploy", "wd"}, ExcludedResources: []string{"pods", "secrets", "z*", "nodes", "events.events.k8s.io"}},
			want:     all,
			errors:   []string{"the backup holds no depl:"},
			warnings: []string{`includedResources has \"jobs.*\", which applies to nothing`, "the backup holds no pods,", "the backup holds no z*,"},
		},
		"namespaces that are not there": {
			spec: v1alpha1.RestoreSpec{IncludedNamespaces: []string{"b", "x*"}, ExcludedNamespaces: []string{"y", "z*", "a"}}, want: []string{"Secret b/s"},
			warnings: []string{`includedNamespaces has \"x*\"`, `excludedNamespaces has \"y\"`, `excludedNamespaces has \"z*\", which applies to nothing: the backup holds no such namespace`},
		},
		"words that apply to nothing": {
			spec: v1alpha1.RestoreSpec{IncludedNamespaces: []string{"b"}, IncludedResources: []string{"cm", "secret"}, RestoreStatus: &v1alpha1.RestoreStatusSpec{IncludedResources: []string{"secret", "deploy"}, ExcludedResources: []string{"nosuch"}}},
			want: []string{"Secret b/s"},
			warnings: []string{`includedResources has \"cm\", which applies to nothing: the backup holds such objects, but none that the restore takes`,
				`restoreStatus.includedResources has \"deploy\", which applies to nothing`, `restoreStatus.excludedResources has \"nosuch\", which applies to nothing`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantTold(t, wantChosen(t, backup, test.spec, test.want...), test.errors, test.warnings)
		})
	}
}

// TestOwnObjects: what is Holdfast's own is no part of a restore of everything.
func TestOwnObjects(t *testing.T) {
	backup := backupOf(t, obj("v1", "Namespace", "", "holdfast"), obj("v1", "Secret", "holdfast", "s"), obj("v1", "ConfigMap", "holdfast-maintenance", "m"),
		definition("engine.holdfast.io", "Run"), definition("example.com", "Widget"), obj("v1", "ConfigMap", "a", "c"))
	report := wantChosen(t, backup, v1alpha1.RestoreSpec{}, "ConfigMap a/c", "CustomResourceDefinition /widgets.example.com")
	wantTold(t, report, nil, []string{"3 objects of Holdfast's own namespaces are left out"})
}

// TestObjectsStayInTheirNamespaces: what a named object needs of namespaces that nobody named
// is not taken.
func TestObjectsStayInTheirNamespaces(t *testing.T) {
	pv := obj("v1", "PersistentVolume", "", "pv", with(map[string]any{
		"driver": "d", "volumeHandle": "h", "nodePublishSecretRef": map[string]any{"namespace": "b", "name": "key"},
	}, "spec", "csi"))
	backup := backupOf(t, obj("v1", "Namespace", "", "a"), obj("v1", "Namespace", "", "b"), obj("v1", "Secret", "b", "key"), pv,
		obj("v1", "PersistentVolumeClaim", "a", "data", with("pv", "spec", "volumeName")))
	objects := []v1alpha1.RestoreObject{{Resource: "persistentvolumeclaims", Namespace: "a", Name: "data"}}
	wantChosen(t, backup, v1alpha1.RestoreSpec{Objects: objects}, "PersistentVolumeClaim a/data", "PersistentVolume /pv", "Namespace /a")
}

// TestPlanShowsNoSecrets: nor does a modifier bring what a tenant's restore refuses.
func TestPlanShowsNoSecrets(t *testing.T) {
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	s.add("secrets", obj("v1", "Secret", "a", "s", with("bGl2ZQ==", "data", "k")))
	backup := backupOf(t, obj("v1", "Secret", "a", "s", with("b2xk", "data", "k")))
	plan := want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceUpdate, PlanOnly: true})), v1alpha1.RestorePhaseCompleted)
	if len(plan.Items) != 1 || plan.Items[0].Action != "update" || plan.Items[0].Diff != nil {
		t.Errorf("planned: %+v", plan.Items)
	}
	s.add("serviceaccounts", obj("v1", "ServiceAccount", "a", "default")) // pods wait for it
	r := request("r", v1alpha1.RestoreSpec{})
	r.Run.Spec.RestoreRef.Namespace = "a"
	ended := s.run(t.Context(), backupOf(t, obj("v1", "Pod", "a", "p", with("x", "spec", "nodeName"))), r, func(d *Dependencies) {
		d.Allowed = func(context.Context, Right) (bool, error) { return true, nil }
		d.Modifiers = map[string]string{"m": "version: v1\nresourceModifierRules:\n- conditions: {groupResource: pods}\n  patches:\n  - {operation: add, path: /spec/volumes, value: '[{\"name\":\"h\",\"hostPath\":{\"path\":\"/\"}}]'}\n"}
	})
	want(t, ended, v1alpha1.RestorePhasePartiallyFailed, refusedHostPath)
	if s.writes > 0 {
		t.Errorf("%d writes", s.writes)
	}
}

// TestScratchOfOthers: a list that names a pod of another namespace by this one's uid has its
// data in that namespace's repository, and gets it into no pod.
func TestScratchOfOthers(t *testing.T) {
	pod := obj("v1", "Pod", "a", "p")
	backup := backupOf(t, pod)
	uid := types.UID(backup.Items[0].UID)
	for namespace, want := range map[string]int{"a": 1, "payroll": 0} {
		e := newExecution(t.Context(), request("r", v1alpha1.RestoreSpec{}), Dependencies{Backup: backup, Clock: clock.RealClock{}})
		volume := source.Volume{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: namespace, UID: uid}, Name: "scratch"}}
		e.scratch = map[types.UID][]*source.Volume{uid: {&volume}}
		if got := e.scratchOf(backup.Items[0]); uid == "" || len(got) != want {
			t.Errorf("of a pod of %s: %d volumes", namespace, len(got))
		}
	}
}

// TestPathsOfTenants: nobody has files written into a volume that they could not mount.
func TestPathsOfTenants(t *testing.T) {
	for namespace, want := range map[string]bool{"shop": false, "holdfast": true} {
		for _, may := range []bool{true, false} {
			r := request("r", v1alpha1.RestoreSpec{Paths: []string{"a"}})
			r.Run.Spec.RestoreRef.Namespace = namespace
			e := newExecution(t.Context(), r, Dependencies{Clock: clock.RealClock{}, Allowed: func(_ context.Context, right Right) (bool, error) {
				return may && right == Right{Verb: "create", Resource: "pods", Namespace: "shop"}, nil
			}})
			if err := e.mayWrite(t.Context(), "shop"); (err == nil) != (may || want) {
				t.Errorf("a restore in %s, may create pods: %t: %v", namespace, may, err)
			}
		}
	}
}

// TestIdleWords: a word of modifiers and hooks that applies to nothing is told of, and any name of a
// resource does.
func TestIdleWords(t *testing.T) {
	for name, test := range map[string]struct {
		rule, replicas, told string
	}{
		"plural":               {rule: "groupResource: deployments.apps", replicas: "1"},
		"plural alone":         {rule: "groupResource: deployments", replicas: "1"},
		"kind":                 {rule: "groupResource: Deployment", replicas: "1"},
		"short name":           {rule: "groupResource: DEPLOY.apps", replicas: "1"},
		"pattern":              {rule: "groupResource: Deploy*", replicas: "1"},
		"unknown":              {rule: "groupResource: deploiments", replicas: "3", told: `resourceModifierRules[0] has \"deploiments\" in groupResource, which applies to nothing`},
		"of another kind":      {rule: "groupResource: secrets", replicas: "3", told: `resourceModifierRules[0] has \"secrets\" in groupResource, which applies to nothing`},
		"of another namespace": {rule: "groupResource: deploy, namespaces: [b]", replicas: "3", told: `resourceModifierRules[0] applies to nothing: no object of \"deploy\" has the namespace`},
		"under a condition":    {rule: "groupResource: deploy, matches: [{path: /spec/replicas, value: '7'}]", replicas: "3"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			spec := v1alpha1.RestoreSpec{Hooks: v1alpha1.RestoreHooks{Resources: []v1alpha1.RestoreResourceHookSpec{{Name: "load", IncludedResources: []string{"Pod", "PO", "deployments"}}}}}
			ended := s.run(t.Context(), backupOf(t, obj("v1", "Namespace", "", "a"), obj("apps/v1", "Deployment", "a", "web", with(int64(3), "spec", "replicas"))), request("r", spec), func(d *Dependencies) {
				d.Modifiers = map[string]string{"rules": "{version: v1, resourceModifierRules: [{conditions: {" + test.rule + "}, patches: [{operation: replace, path: /spec/replicas, value: '1'}]}]}"}
			})
			want(t, ended, v1alpha1.RestorePhaseCompleted, test.told, `the hooks load have \"deployments\" in includedResources, which applies to nothing`)
			warnings := int32(1)
			if test.told != "" {
				warnings++
			}
			if ended.Status.Warnings != warnings {
				t.Errorf("%d warnings", ended.Status.Warnings)
			}
			if replicas, _, _ := unstructured.NestedFieldNoCopy(s.get("deployments.apps", "a", "web").Object, "spec", "replicas"); fmt.Sprint(replicas) != test.replicas {
				t.Errorf("it has %v replicas, not %s", replicas, test.replicas)
			}
		})
	}
}
