// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// holding has pods wait as a Restorer does, and their data is there at once.
type holding struct{ t *testing.T }

func (holding) Claim(context.Context, volumes.Claim) error                 { return nil }
func (holding) Pod(context.Context, string, string, []format.Volume) error { return nil }
func (holding) Counts() (none v1alpha1.RestoreVolumesProgress)             { return none }
func (holding) Warnings() []string                                         { return nil }
func (h holding) Hold(_ context.Context, pod *unstructured.Unstructured, data []format.Volume) error {
	var typed corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pod.Object, &typed); err != nil {
		return err
	}
	var names []string
	for i := range data {
		names = append(names, data[i].Name)
	}
	if _, err := restorewait.Add(&typed, "holdfast", names, time.Hour); err != nil {
		return err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&typed)
	pod.Object = content
	return err
}

// lonePod is a pod without a controller, with a volume that has no claim.
func lonePod(image string) map[string]any {
	return obj("v1", "Pod", "a", "lone", with("pod-uid", "metadata", "uid"),
		with([]any{map[string]any{"name": "c", "image": "app", "workingDir": image}}, "spec", "containers"),
		with([]any{map[string]any{"name": "scratch", "emptyDir": map[string]any{}}}, "spec", "volumes"))
}

// waited is a pod that an earlier restore has made.
func waited(t *testing.T, pod map[string]any) map[string]any {
	t.Helper()
	o := &unstructured.Unstructured{Object: pod}
	if err := (holding{t}).Hold(t.Context(), o, []format.Volume{{Name: "scratch"}}); err != nil {
		t.Fatal(err)
	}
	o.SetAnnotations(map[string]string{object.AnnotationRestoreUID: "earlier", object.AnnotationOriginalUID: "pod-uid"})
	return o.Object
}

// withData is a backup of a pod and the data of its volumes.
func withData(t *testing.T, pod map[string]any, names ...string) *source.Backup {
	t.Helper()
	backup := backupOf(t, pod)
	for _, name := range names {
		backup.Volumes = append(backup.Volumes, source.Volume{Volume: format.Volume{
			Pod: enginev1alpha1.PodReference{Namespace: "a", Name: "lone", UID: types.UID("pod-uid")}, Name: name,
		}})
	}
	return backup
}

// waiters are what a pod waits for: one container each.
func (s *fakeServer) waiters(t *testing.T) [][]string { return s.waitersOf(t, "lone") }

func (s *fakeServer) waitersOf(t *testing.T, name string) (args [][]string) {
	t.Helper()
	var typed corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(s.get("pods", "a", name).Object, &typed); err != nil {
		t.Fatal(err)
	}
	for _, c := range typed.Spec.InitContainers {
		args = append(args, c.Args)
	}
	return args
}

// TestPodWaitsOnce: however often a pod is asked for, it has one container that waits, since
// nobody would tell a second one; and one that is there and equal stays.
func TestPodWaitsOnce(t *testing.T) {
	once := [][]string{{restorewait.Command, "--timeout=1h0m0s", "--volume=scratch"}}
	for name, c := range map[string]struct {
		live    map[string]any
		wanted  string
		deletes int
	}{
		"none is there":                {nil, "create", 0},
		"an earlier restore's, other":  {waited(t, lonePod("/other")), "create", 1},
		"an earlier restore's, equal":  {waited(t, lonePod("/")), "skip", 0},
		"one that never waited, other": {lonePod("/other"), "create", 1},
		"one that never waited, equal": {lonePod("/"), "skip", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			s.add("serviceaccounts", obj("v1", "ServiceAccount", "a", "default"))
			if c.live != nil {
				s.add("pods", c.live)
			}
			plan := want(t, s.run(t.Context(), withData(t, lonePod("/"), "scratch"),
				request("r", v1alpha1.RestoreSpec{ExistingResourcePolicy: v1alpha1.ExistingResourceRecreate}),
				func(d *Dependencies) { d.Volumes = holding{t} }), v1alpha1.RestorePhaseCompleted)
			if got := actions(plan)["Pod a/lone"]; got != c.wanted {
				t.Errorf("the plan says %q instead of %q", got, c.wanted)
			}
			if got := s.count(http.MethodDelete); got != c.deletes {
				t.Errorf("%d objects were deleted instead of %d", got, c.deletes)
			}
			wanted := once
			if c.wanted == "skip" && s.get("pods", "a", "lone").GetAnnotations()[object.AnnotationRestoreUID] == "" {
				wanted = nil
			}
			if diff := cmp.Diff(wanted, s.waiters(t)); diff != "" {
				t.Errorf("what the pod waits for (-want +got):\n%s", diff)
			}
		})
	}
}

// filling records which volumes of pods are held back for, and filled.
type filling struct {
	holding
	filled *[]string
}

func (f filling) Pod(_ context.Context, _, _ string, data []format.Volume) error {
	for _, volume := range data {
		*f.filled = append(*f.filled, volume.Name)
	}
	return nil
}

// TestVolumesOfOthersAreSpared: a network volume in a pod's spec may be in use, so it is
// filled only if the restore's spec says that existing data is written over. The pod does
// not wait for it.
func TestVolumesOfOthersAreSpared(t *testing.T) {
	pod := lonePod("/")
	volumes := pod["spec"].(map[string]any)["volumes"].([]any)
	pod["spec"].(map[string]any)["volumes"] = append(volumes, map[string]any{"name": "export", "nfs": map[string]any{"server": "s", "path": "/"}})
	for name, c := range map[string]struct {
		spec  v1alpha1.RestoreSpec
		rules string
		again bool
		want  []string
		says  string
	}{
		"no policy":                     {want: []string{"scratch"}, says: "the data of its volume export (nfs) is not restored"},
		"none":                          {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeNone}, want: []string{"scratch"}, says: "set existingVolumePolicy to overwrite"},
		"keep":                          {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeKeep}, want: []string{"scratch"}, says: "set existingVolumePolicy to overwrite"},
		"replace":                       {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeReplace}, want: []string{"export", "scratch"}},
		"overwrite":                     {spec: v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite}, want: []string{"export", "scratch"}},
		"the restore goes on elsewhere": {again: true, want: []string{"scratch"}, says: "the data of its volume export (nfs) is not restored"},
		"a modifier makes it a network volume": {
			rules: `{version: v1, resourceModifierRules: [{conditions: {groupResource: pods}, patches: [{operation: replace, path: /spec/volumes/0, value: '{"name": "scratch", "nfs": {"server": "s", "path": "/"}}'}]}]}`,
			says:  "the data of its volume scratch (nfs) is not restored",
		},
		"into another namespace, mapped": {spec: v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"a": "b"}}, want: []string{"scratch"}, says: "the data of its volume export (nfs) is not restored"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			for _, namespace := range []string{"a", "b"} {
				s.add("namespaces", obj("v1", "Namespace", "", namespace))
				s.add("serviceaccounts", obj("v1", "ServiceAccount", namespace, "default"))
			}
			var filled []string
			run := func() {
				filled = nil
				want(t, s.run(t.Context(), withData(t, runtime.DeepCopyJSON(pod), "scratch", "export"), request("r", c.spec),
					func(d *Dependencies) {
						d.Volumes = filling{holding{t}, &filled}
						if c.rules != "" {
							d.Modifiers = map[string]string{"rules.yaml": c.rules}
						}
					}), v1alpha1.RestorePhaseCompleted, c.says)
			}
			run()
			if c.again {
				run()
			}
			slices.Sort(filled)
			if !slices.Equal(filled, c.want) {
				t.Errorf("filled are %q, want %q", filled, c.want)
			}
		})
	}
}

// TestDataOfVolumesThatArePutIn: what a backup has of the volume in which a pod was told of
// an earlier restore keeps the pod from nothing.
func TestDataOfVolumesThatArePutIn(t *testing.T) {
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	s.add("serviceaccounts", obj("v1", "ServiceAccount", "a", "default"))
	backup := withData(t, waited(t, lonePod("/")), "scratch", restorewait.VolumeName)
	want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}), func(d *Dependencies) { d.Volumes = holding{t} }),
		v1alpha1.RestorePhaseCompleted, "the data of its volume holdfast-restore is not restored")
	if diff := cmp.Diff([][]string{{restorewait.Command, "--timeout=1h0m0s", "--volume=scratch"}}, s.waiters(t)); diff != "" {
		t.Errorf("what the pod waits for (-want +got):\n%s", diff)
	}
}
