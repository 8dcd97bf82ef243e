// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

func (f *fixture) plan(ctx context.Context, limits PlanLimits) *v1alpha1.BackupPlan {
	deps := f.deps
	deps.Store, deps.Remover, deps.Volumes = nil, nil, nil
	return Plan(ctx, f.request, deps, limits, nil)
}

// planObjects returns a plan and all its objects.
func (f *fixture) planObjects(ctx context.Context) (*v1alpha1.BackupPlan, []v1alpha1.PlannedRelated) {
	deps := f.deps
	deps.Store, deps.Remover, deps.Volumes = nil, nil, nil
	var objects []v1alpha1.PlannedRelated
	plan := Plan(ctx, f.request, deps, DefaultPlanLimits, func(object v1alpha1.PlannedRelated) error {
		objects = append(objects, object)
		return nil
	})
	return plan, objects
}

// compareObjects orders the objects of a plan.
func compareObjects(a, b v1alpha1.PlannedRelated) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// objects returns the objects of a stored backup, as a plan has them.
func (f *fixture) plannedObjects(t testing.TB) []v1alpha1.PlannedRelated {
	t.Helper()
	var objects []v1alpha1.PlannedRelated
	for item, err := range manifest.Read(bytes.NewReader(f.read(t, format.ManifestKey("b")))) {
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, v1alpha1.PlannedRelated{
			Resource: schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}.String(), Namespace: item.Namespace, Name: item.Name, Reason: item.Reason,
		})
	}
	slices.SortFunc(objects, compareObjects)
	return objects
}

// held counts what a stored backup has of each resource in each namespace.
func (f *fixture) held(t testing.TB) map[string]int64 {
	t.Helper()
	counts := map[string]int64{}
	for item, err := range manifest.Read(bytes.NewReader(f.read(t, format.ManifestKey("b")))) {
		if err != nil {
			t.Fatal(err)
		}
		resource := schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}.String()
		counts[item.Namespace+" "+resource]++
	}
	return counts
}

// draw adds random objects to a cluster, and gives a random spec.
func draw(t *rapid.T, f *fixture) v1alpha1.BackupSpec {
	bit := func(name string) bool { return rapid.Bool().Draw(t, name) }
	namespaces := []string{"shop", "other", "bank"}
	f.add("namespaces", namespace("bank", rapid.SampledFrom([]string{"", `"app":"a"`, `"velero.io/exclude-from-backup":"true"`}).Draw(t, "labels of bank")))
	kinds := []string{"configmaps", "secrets", "deployments.apps", "widgets.example.com", "serviceaccounts", "events", "persistentvolumeclaims", "pods"}
	for i := range rapid.IntRange(0, 25).Draw(t, "objects") {
		name, in := fmt.Sprintf("o%d", i), rapid.SampledFrom(namespaces).Draw(t, "namespace")
		labels := map[string]string{}
		for key, value := range map[string]string{"app": "a", "tier": "b"} {
			if bit(key) {
				labels[key] = value
			}
		}
		if rapid.IntRange(0, 5).Draw(t, "excluded") == 0 {
			labels[format.LabelExclude] = "true"
		}
		meta := map[string]any{"name": name, "namespace": in, "uid": "uid-" + name, "labels": labels}
		if rapid.IntRange(0, 7).Draw(t, "deleted") == 0 {
			meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
		}
		object := map[string]any{"metadata": meta}
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		other := func() string { return fmt.Sprintf("o%d", rapid.IntRange(0, 25).Draw(t, "other")) }
		switch kind {
		case "deployments.apps":
			object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{
				"serviceAccountName": "web", "imagePullSecrets": []any{map[string]any{"name": other()}},
				"priorityClassName": rapid.SampledFrom([]string{"", "low"}).Draw(t, "priority"),
			}}}
		case "events":
			if bit("own event") {
				object["reportingComponent"] = "holdfast-controller"
			}
		case "persistentvolumeclaims":
			volume := "pv-" + name
			f.add("persistentvolumes", fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app":%q}},"spec":{"storageClassName":"slow","capacity":{"storage":"1Gi"},"claimRef":{"namespace":%q,"name":%q,"uid":%q}}}`,
				volume, rapid.SampledFrom([]string{"a", "z"}).Draw(t, "label of volume"), in, name, "uid-"+name))
			phase := "Bound"
			if !bit("bound") {
				phase = "Pending"
			}
			object["spec"], object["status"] = map[string]any{"volumeName": volume}, map[string]any{"phase": phase}
		case "pods":
			volumes := []any{map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": other()}}, map[string]any{"name": "scratch", "emptyDir": map[string]any{}}}
			phase := "Running"
			if !bit("running") {
				phase = "Pending"
			}
			annotations := map[string]string{}
			if bit("hooks") {
				annotations["pre.hook.backup.holdfast.io/command"] = "freeze"
				annotations["post.hook.backup.holdfast.io/command"] = "thaw"
			}
			if bit("scratch") {
				annotations[includeVolumesAnnotation] = "scratch"
			}
			meta["annotations"] = annotations
			object["spec"] = map[string]any{
				"nodeName": "n1", "serviceAccountName": "web", "volumes": volumes,
				"containers": []any{map[string]any{"name": "main", "volumeMounts": []any{map[string]any{"name": "v"}, map[string]any{"name": "scratch"}}}},
			}
			object["status"] = map[string]any{"phase": phase}
		}
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		f.add(kind, string(raw))
	}
	var spec v1alpha1.BackupSpec
	some := func(name string, words ...string) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(words), 0, 2, rapid.ID[string]).Draw(t, name)
	}
	spec.IncludedNamespaces = some("included namespaces", "shop", "bank", "o*", "gone", "*")
	if slices.Contains(spec.IncludedNamespaces, "*") {
		spec.IncludedNamespaces = []string{"*"}
	}
	spec.ExcludedNamespaces = some("excluded namespaces", "bank", "oth?r")
	if bit("by scope") {
		spec.IncludedNamespaceScopedResources = some("namespaced", "pods", "configmaps", "secrets", "deployments", "persistentvolumeclaims", "widgets")
		spec.IncludedClusterScopedResources = some("cluster-scoped", "persistentvolumes", "storageclasses", "nodes")
		spec.ExcludedClusterScopedResources = some("excluded cluster-scoped", "customresourcedefinitions", "clusterroles")
	} else {
		spec.IncludedResources = some("resources", "pods", "configmaps", "secrets", "deployments", "persistentvolumeclaims", "widgets", "persistentvolumes")
		spec.ExcludedResources = some("excluded resources", "events", "pods", "serviceaccounts", "clusterroles")
		spec.IncludeClusterResources = rapid.SampledFrom([]*bool{nil, nil, new(true), new(false)}).Draw(t, "cluster resources")
	}
	spec.DefaultVolumesToFsBackup = rapid.SampledFrom([]*bool{nil, new(true), new(false)}).Draw(t, "volumes")
	switch rapid.IntRange(0, 3).Draw(t, "selectors") {
	case 0:
		spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	case 1:
		spec.OrLabelSelectors = []*metav1.LabelSelector{{MatchLabels: map[string]string{"app": "a"}}, {MatchLabels: map[string]string{"tier": "b"}}}
	}
	return spec
}

// TestPlanIsWhatTheBackupHolds: of random clusters and selections, a plan has the objects, volumes,
// errors and warnings that the backup has then, and it writes nothing. Its list of all objects is the
// backup's manifest.
func TestPlanIsWhatTheBackupHolds(t *testing.T) {
	rapid.Check(t, func(random *rapid.T) {
		f := needing(t, v1alpha1.BackupSpec{})
		f.deps.Workers, f.deps.BlockWorkers = 1, 1 // messages have the first warnings, whose order varies with more
		spec := draw(random, f)
		spec.StorageLocation, spec.TTL = "default", f.request.Backup.Spec.TTL
		f.request.Backup.Spec = spec
		forbidden := rapid.Bool().Draw(random, "hooks are forbidden")
		f.hooks.allowed = func(namespace string) error {
			if forbidden {
				return NotAllowedError("ada may not run commands in " + namespace)
			}
			return nil
		}
		plan, objects := f.planObjects(t.Context())
		if events, keys := f.hooks.events, f.keys(t); len(events)+len(keys) > 0 {
			random.Fatalf("the plan ran %v and wrote %v", events, keys)
		}
		outcome := f.run(t)
		if !plan.Complete {
			if outcome.Status.Phase != v1alpha1.BackupPhaseFailed {
				random.Fatalf("the plan says %q, and the backup is %s", plan.Message, outcome.Status.Phase)
			}
			return
		}
		counts := map[string]int64{}
		total := int64(0)
		for _, of := range plan.Objects {
			counts[of.Namespace+" "+of.Resource] += of.Count
			total += of.Count
		}
		if diff := gocmp.Diff(f.held(t), counts); diff != "" {
			random.Errorf("what the backup holds (-), and the plan (+):\n%s", diff)
		}
		slices.SortFunc(objects, compareObjects)
		if diff := gocmp.Diff(f.plannedObjects(t), objects); diff != "" {
			random.Errorf("the objects of the backup (-), and of the plan (+):\n%s", diff)
		}
		if total != plan.TotalItems || outcome.Status.Progress.ItemsBackedUp != total {
			random.Errorf("the plan counts %d in its rows and %d in all, and the backup has %d", total, plan.TotalItems, outcome.Status.Progress.ItemsBackedUp)
		}
		if plan.Errors != outcome.Status.Errors || plan.Warnings != outcome.Status.Warnings || plan.Message != outcome.Status.Message {
			random.Errorf("the plan has %d errors, %d warnings and %q; the backup %d, %d and %q", plan.Errors, plan.Warnings, plan.Message, outcome.Status.Errors, outcome.Status.Warnings, outcome.Status.Message)
		}
		var handed, read []string
		for _, volume := range f.volumes.submitted {
			handed = append(handed, volume.Pod.Namespace+"/"+volume.ClaimName+" "+volume.Pod.Name+" "+volume.Name)
		}
		for _, volume := range plan.Volumes {
			if volume.Method == v1alpha1.VolumeMethodFiles {
				read = append(read, volume.Namespace+"/"+volume.Claim+" "+volume.Pod+" "+volume.Volume)
			} else if volume.Reason == "" {
				random.Errorf("the plan does not say why %s/%s is not read", volume.Namespace, volume.Claim)
			}
		}
		slices.Sort(handed)
		slices.Sort(read)
		if !slices.Equal(handed, read) {
			random.Errorf("the backup reads %v, and the plan %v", handed, read)
		}
		hooks := int32(0)
		for _, of := range plan.Hooks {
			hooks += of.Pre + of.Post
			if of.Allowed == forbidden {
				random.Errorf("the plan says of hooks in %s that they are allowed: %t", of.Namespace, of.Allowed)
			}
		}
		if status := outcome.Status.HookStatus; hooks > 0 && (status == nil || status.HooksAttempted > hooks) || hooks == 0 && status != nil {
			random.Errorf("the plan has %d hooks, and the backup %+v", hooks, status)
		}
	})
}

// TestPlanSaysWhy: a plan names what comes along, what is left out, and what becomes of volumes.
func TestPlanSaysWhy(t *testing.T) {
	f := needing(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.request.Backup.Spec.DefaultVolumesToFsBackup = nil
	f.add("secrets", named("shop", "key")...)
	f.add("configmaps", `{"metadata":{"name":"no","namespace":"shop","labels":{"`+format.LabelExclude+`":"true"}}}`,
		`{"metadata":{"name":"no2","namespace":"shop","labels":{"`+format.LabelExclude+`":"true"}}}`)
	f.add("pods", podWith("db", `"pre.hook.backup.holdfast.io/command":"freeze"`, "v"+claimData))
	f.hooks.allowed = func(string) error { return NotAllowedError("ada may not") }
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if whole := !strings.Contains(r.Header.Get("Accept"), "as=Partial"); whole && strings.Contains(r.URL.Path, "secrets") {
			t.Errorf("Secrets were read whole: %s", r.URL)
		}
		return false
	}
	plan := f.plan(t.Context(), DefaultPlanLimits)
	want := &v1alpha1.PlannedLeftOut{Resource: "configmaps", Namespace: "shop", Count: 2, Reason: "left out: it has the label " + format.LabelExclude + "=true"}
	if len(plan.LeftOut) != 1 || plan.LeftOut[0] != *want {
		t.Errorf("left out are %+v", plan.LeftOut)
	}
	if !slices.Contains(plan.Along, v1alpha1.PlannedRelated{Resource: "priorityclasses.scheduling.k8s.io", Name: "high", Reason: "the Pod shop/p refers to it"}) {
		t.Errorf("along come %+v", plan.Along)
	}
	if want := (v1alpha1.PlannedHooks{Namespace: "shop", Pods: 1, Pre: 1, Message: "ada may not"}); len(plan.Hooks) != 1 || plan.Hooks[0] != want {
		t.Errorf("the hooks are %+v", plan.Hooks)
	}
	if len(plan.Volumes) != 1 || plan.Volumes[0].Method != v1alpha1.VolumeMethodNone || !strings.Contains(plan.Volumes[0].Reason, "its hooks failed") {
		t.Errorf("the volumes are %+v", plan.Volumes)
	}
}

// TestPlansEnd: a plan ends with what it has when there are too many objects, when its reader has
// left, and when the backup would fail.
func TestPlansEnd(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{})
	f.add("namespaces", namespace("shop", ""))
	f.add("configmaps", named("shop", "a", "b", "c", "d")...)
	given := 0
	deps := f.deps
	deps.Store, deps.Remover, deps.Volumes = nil, nil, nil
	if plan := Plan(t.Context(), f.request, deps, DefaultPlanLimits, func(v1alpha1.PlannedRelated) error {
		given++
		return errors.New("the reader has left")
	}); plan.Complete || given != 1 {
		t.Errorf("after %d objects of a reader that left: %+v", given, plan)
	}
	if plan := f.plan(t.Context(), PlanLimits{Objects: 2, Rows: 1}); plan.Complete || plan.TotalItems != 2 || !strings.Contains(plan.Message, "more than 2 objects") {
		t.Errorf("of too many objects: %+v", plan)
	}
	plan := f.plan(t.Context(), PlanLimits{Objects: 9, Rows: 1})
	if !plan.Complete || plan.TotalItems != 5 || len(plan.Objects) != 1 || plan.Omitted == nil || plan.Omitted.Objects != 1 {
		t.Errorf("of one row: %+v", plan)
	}
	f.failed = map[schema.GroupVersion]error{{Version: "v1"}: errors.New("broken")}
	if plan := f.plan(t.Context(), DefaultPlanLimits); plan.Complete || !strings.Contains(plan.Message, "the backup would fail") {
		t.Errorf("of a backup that fails: %+v", plan)
	}
}

// TestPlanOfASlowServer: a plan ends with its time, while the server does not answer. The fixture
// stays as it is until its server has ended: a request that was given up may reach it late.
func TestPlanOfASlowServer(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{})
	f.add("namespaces", namespace("shop", ""))
	f.add("configmaps", named("shop", "a")...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/configmaps") {
			cancel() // the time of a plan ends while the server does not answer
			<-r.Context().Done()
		}
		return false
	}
	if plan := f.plan(ctx, DefaultPlanLimits); plan.Complete || !strings.Contains(plan.Message, "in the time that a plan may take") || plan.TotalItems == 0 {
		t.Errorf("of a slow server: %+v", plan)
	}
}
