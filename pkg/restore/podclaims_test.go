// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
)

// recording notes which claims and pods are filled.
type recording struct {
	holding
	claims, pods *[]string
}

func (f recording) Claim(_ context.Context, claim volumes.Claim) error {
	*f.claims = append(*f.claims, claim.Name)
	return nil
}

func (f recording) Pod(_ context.Context, _, name string, data []format.Volume) error {
	for i := range data {
		*f.pods = append(*f.pods, name+"/"+data[i].Name)
	}
	return nil
}

// TestClaimsOfPods: the claim of a generic ephemeral volume is left to its pod. A pod that the
// restore creates waits for the data; one that its controller makes has a claim of its own.
func TestClaimsOfPods(t *testing.T) {
	controlled := func(owner map[string]any) func(map[string]any) {
		return func(o map[string]any) {
			ownedBy(owner)(o)
			o["metadata"].(map[string]any)["ownerReferences"].([]any)[0].(map[string]any)["controller"] = true
		}
	}
	set := obj("apps/v1", "ReplicaSet", "a", "web", with("set-uid", "metadata", "uid"), with(int64(1), "spec", "replicas"))
	ephemeral := with([]any{map[string]any{"name": "work", "ephemeral": map[string]any{"volumeClaimTemplate": map[string]any{"spec": map[string]any{}}}}}, "spec", "volumes")
	named := with([]any{map[string]any{"name": "work", "persistentVolumeClaim": map[string]any{"claimName": "p-work"}}}, "spec", "volumes")
	pod := func(changes ...func(map[string]any)) map[string]any {
		return obj("v1", "Pod", "a", "p", append(changes, with("pod-uid", "metadata", "uid"),
			with([]any{map[string]any{"name": "c", "image": "app"}}, "spec", "containers"))...)
	}
	claims := v1alpha1.RestoreSpec{Objects: []v1alpha1.RestoreObject{
		{Resource: "persistentvolumeclaims", Namespace: "a", Name: "p-work"}, {Resource: "replicasets.apps", Namespace: "a", Name: "web"},
	}}
	for name, test := range map[string]struct {
		pod          map[string]any
		set, without bool
		spec         v1alpha1.RestoreSpec
		made         bool
		claims, pods []string
		says         string
	}{
		"of a pod by itself":             {pod: pod(ephemeral), pods: []string{"p/work"}},
		"of a pod by itself, no data":    {pod: pod(ephemeral), without: true, says: "it comes back empty"},
		"of a controller's pod":          {pod: pod(ephemeral, controlled(set)), set: true, says: "which the ReplicaSet web makes anew with a claim of its own: its data stays in the backup"},
		"of a controller's pod, no data": {pod: pod(ephemeral, controlled(set)), set: true, without: true},
		"of a controller's pod, named":   {pod: pod(ephemeral, controlled(set)), set: true, spec: claims, made: true, claims: []string{"p-work"}, says: "its owner, the Pod p, is neither restored nor there"},
		"of a pod that is left out":      {pod: pod(ephemeral), spec: v1alpha1.RestoreSpec{ExcludedResources: []string{"pods"}}, made: true, claims: []string{"p-work"}, says: "its owner, the Pod p, is neither restored nor there"},
		"that its pod names":             {pod: pod(named), made: true, claims: []string{"p-work"}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := obj("v1", "PersistentVolumeClaim", "a", "p-work", ownedBy(test.pod), with("pv", "spec", "volumeName"))
			objects := []map[string]any{test.pod, claim}
			if test.set {
				objects = append(objects, set)
			}
			backup := backupOf(t, objects...)
			if !test.without {
				backup.Volumes = append(backup.Volumes, source.Volume{Volume: format.Volume{
					Pod: enginev1alpha1.PodReference{Namespace: "a", Name: "p", UID: types.UID("pod-uid")}, Name: "work", ClaimName: "p-work",
					Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "k1"},
				}})
			}
			s := newFakeServer(t)
			s.add("namespaces", obj("v1", "Namespace", "", "a"))
			s.add("serviceaccounts", obj("v1", "ServiceAccount", "a", "default"))
			filled := recording{holding: holding{t}, claims: new([]string), pods: new([]string)}
			ended := s.run(t.Context(), backup, request("r", test.spec), func(d *Dependencies) { d.Volumes = filled })
			if want(t, ended, v1alpha1.RestorePhaseCompleted, test.says); (test.says != "") != (ended.Status.Warnings > 0) {
				results, _ := told(t, ended)
				t.Errorf("warnings: %v", results.Warnings)
			}
			if made := s.get("persistentvolumeclaims", "a", "p-work") != nil; made != test.made {
				t.Errorf("the claim was made: %t", made)
			}
			if !slices.Equal(*filled.claims, test.claims) || !slices.Equal(*filled.pods, test.pods) {
				t.Errorf("filled are the claims %v and the volumes %v", *filled.claims, *filled.pods)
			}
			if len(test.pods) > 0 && !slices.Contains(s.waitersOf(t, "p")[0], "--volume=work") {
				t.Errorf("the pod does not wait: %v", s.waitersOf(t, "p"))
			}
		})
	}
}

// TestVolumesOfPodsThatAreMadeAnew: data of a volume without a claim stays in the backup where a
// controller makes the pod, and a warning says so.
func TestVolumesOfPodsThatAreMadeAnew(t *testing.T) {
	set := obj("apps/v1", "ReplicaSet", "a", "web", with("set-uid", "metadata", "uid"), with(int64(1), "spec", "replicas"))
	lone := lonePod("/")
	ownedBy(set)(lone)
	lone["metadata"].(map[string]any)["ownerReferences"].([]any)[0].(map[string]any)["controller"] = true
	backup := backupOf(t, set, lone)
	backup.Volumes = append(backup.Volumes, withData(t, lone, "scratch").Volumes...)
	s := newFakeServer(t)
	s.add("namespaces", obj("v1", "Namespace", "", "a"))
	want(t, s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}), func(d *Dependencies) { d.Volumes = holding{t} }),
		v1alpha1.RestorePhaseCompleted, "its volumes scratch, which have no claim, are empty in the pod that is made in its place")
}
