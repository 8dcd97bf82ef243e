// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
)

// disk stands for what brings data back. All processes of a restore share it, as they do the
// records: what one has written another one finds.
type disk struct {
	mu sync.Mutex
	// content is what a claim holds, by its uid: a part of a snapshot ends with a star.
	content map[string]string
	server  *fakeServer
	// warnings are what agents have told.
	warnings []string
	// half is called when half of a claim is written.
	half func() error
	// user is a pod that uses the claim.
	user bool
}

func (d *disk) Claim(ctx context.Context, claim volumes.Claim) error {
	live := d.server.get("persistentvolumeclaims", claim.Namespace, claim.Name)
	if live == nil {
		return errors.New("the claim does not exist")
	}
	uid := string(live.GetUID())
	d.mu.Lock()
	is := d.content[uid]
	d.mu.Unlock()
	if is == claim.Data.Status.SnapshotID {
		return nil
	}
	if d.user {
		return errors.Join(errors.New("a pod uses it"), claim.Used(ctx))
	}
	if claim.Begin != nil {
		if err := claim.Begin(ctx); err != nil {
			return err
		}
	}
	marked := markOf(d.server.get("persistentvolumeclaims", claim.Namespace, claim.Name)) != nil
	for _, content := range []string{claim.Data.Status.SnapshotID + "*", claim.Data.Status.SnapshotID} {
		d.mu.Lock()
		whole := d.content[uid] == claim.Data.Status.SnapshotID // by another process
		if !whole {
			d.content[uid] = content
		}
		d.mu.Unlock()
		if whole {
			return nil
		}
		if !marked {
			d.server.t.Error("data is written into a claim that is not marked")
		}
		if d.half != nil && strings.HasSuffix(content, "*") {
			if err := d.half(); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (d *disk) Hold(context.Context, *unstructured.Unstructured, []format.Volume) error { return nil }
func (d *disk) Pod(context.Context, string, string, []format.Volume) error              { return nil }
func (d *disk) Warnings() []string                                                      { return d.warnings }

func (d *disk) Counts() v1alpha1.RestoreVolumesProgress {
	return v1alpha1.RestoreVolumesProgress{}
}

// claimWithPod is a backup of a claim with its data, and of a pod that uses it.
func claimWithPod(t *testing.T, snapshot string, more ...map[string]any) *source.Backup {
	t.Helper()
	pod := obj("v1", "Pod", "a", "p", with([]any{map[string]any{"name": "v", "persistentVolumeClaim": map[string]any{"claimName": "data"}}}, "spec", "volumes"))
	backup := backupOf(t, append(more, obj("v1", "Namespace", "", "a"), obj("v1", "PersistentVolumeClaim", "a", "data"), pod)...)
	volume := source.Volume{Volume: format.Volume{Pod: enginev1alpha1.PodReference{Namespace: "a", Name: "p"}, ClaimName: "data"}}
	volume.Status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: snapshot}
	backup.Volumes = append(backup.Volumes, volume)
	return backup
}

func (d *disk) run(t *testing.T, ctx context.Context, backup *source.Backup, uid string, spec v1alpha1.RestoreSpec) *Ended {
	t.Helper()
	return d.server.run(ctx, backup, request(uid, spec), func(deps *Dependencies) { deps.Volumes = d })
}

// TestClaimWithoutRoom: a claim whose annotations leave no room for marks comes back with its data, and
// has room for what its binding writes. That nothing marks it is a warning.
func TestClaimWithoutRoom(t *testing.T) {
	for name, test := range map[string]struct {
		room   int
		marked bool
	}{"enough": {2 << 10, true}, "for no mark": {1<<10 + 30, false}, "for nothing": {0, false}} {
		t.Run(name, func(t *testing.T) {
			backup := claimWithPod(t, "k1", obj("v1", "PersistentVolumeClaim", "b", "data", with(strings.Repeat("x", 256<<10-4-test.room), "metadata", "annotations", "note")))
			backup.Volumes[0].Pod.Namespace = "b"
			s, filled := newFakeServer(t), recording{holding: holding{t}, claims: new([]string), pods: new([]string)}
			s.add("namespaces", obj("v1", "Namespace", "", "b"))
			ended := s.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{IncludedNamespaces: []string{"b"}}), func(d *Dependencies) { d.Volumes = filled })
			says := ""
			if !test.marked {
				says = noRoom
			}
			want(t, ended, v1alpha1.RestorePhaseCompleted, says)
			claim := s.get("persistentvolumeclaims", "b", "data")
			if claim == nil || len(*filled.claims) != 1 {
				t.Fatalf("the claim is %v, and filled are %v", claim, *filled.claims)
			}
			size := 0
			for name, value := range claim.GetAnnotations() {
				size += len(name) + len(value)
			}
			if size > max(256<<10-test.room, 255<<10) {
				t.Errorf("its annotations have %d bytes", size)
			}
		})
	}
}

// claimed notes the pod by which the room of each claim is chosen.
type claimed struct {
	*disk
	pods map[string]string
}

func (c claimed) Claim(ctx context.Context, claim volumes.Claim) error {
	c.pods[claim.Name] = ""
	if claim.Pod != nil {
		c.pods[claim.Name] = claim.Pod.Name
	}
	return c.disk.Claim(ctx, claim)
}

// TestPodOfAMovedVolume: a volume that was read from a snapshot names no pod. Its claim is bound where a
// pod that used it could run.
func TestPodOfAMovedVolume(t *testing.T) {
	for name, change := range map[string]func(*source.Volume) string{
		"read through the pod": func(*source.Volume) string { return "p" },
		"moved":                func(v *source.Volume) string { v.Pod.Name = ""; return "p" },
		"used by no pod":       func(v *source.Volume) string { v.Pod.Name, v.ClaimName = "", "other"; return "" },
	} {
		t.Run(name, func(t *testing.T) {
			backup := claimWithPod(t, "s1", obj("v1", "PersistentVolumeClaim", "a", "other"))
			want := change(&backup.Volumes[0])
			data := claimed{newDisk(t), map[string]string{}}
			ended := data.server.run(t.Context(), backup, request("r", v1alpha1.RestoreSpec{}), func(d *Dependencies) { d.Volumes = data })
			if got, ok := data.pods[backup.Volumes[0].ClaimName]; !ok || got != want {
				t.Errorf("the pods are %v, want %q; ended: %+v", data.pods, want, ended)
			}
		})
	}
}

// TestWarningsOfData: what agents have told of complete data is in the results.
func TestWarningsOfData(t *testing.T) {
	d := newDisk(t)
	d.warnings = []string{"the data of claim data in a: 1 warning: x: its owner could not be set"}
	ended := d.run(t, t.Context(), claimWithPod(t, "s1"), "r", v1alpha1.RestoreSpec{})
	want(t, ended, v1alpha1.RestorePhaseCompleted, "the data of claim data in a: 1 warning: x: its owner could not be set")
	if ended.Status.Warnings != 1 {
		t.Errorf("there are %d warnings", ended.Status.Warnings)
	}
}

// holds checks what the claim holds, and whether it is marked as a part.
func (d *disk) holds(t *testing.T, content string, marked bool) {
	t.Helper()
	claim := d.server.get("persistentvolumeclaims", "a", "data")
	if claim == nil {
		t.Fatal("there is no claim")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if got := d.content[string(claim.GetUID())]; got != content || (markOf(claim) != nil) != marked {
		t.Errorf("it holds %q, not %q, with the mark %q", got, content, claim.GetAnnotations()[format.AnnotationIncomplete])
	}
}

// cancelled leaves a claim half filled, by a restore that was cancelled.
func cancelled(t *testing.T, d *disk, backup *source.Backup, uid string, spec v1alpha1.RestoreSpec) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d.half = func() error { cancel(); return nil }
	if ended := d.run(t, ctx, backup, uid, spec); !errors.Is(ended.Err, context.Canceled) {
		t.Fatalf("it ended with %+v, %v", ended.Status, ended.Err)
	}
	d.half = nil
}

func newDisk(t *testing.T) *disk {
	d := &disk{content: map[string]string{}, server: newFakeServer(t)}
	d.server.add("serviceaccounts", obj("v1", "ServiceAccount", "a", "default")) // pods wait for it
	return d
}

// TestHalfWritten: a claim that a cancelled restore left half filled is gone on with by the next
// one of the same data, and by none taken for whole.
func TestHalfWritten(t *testing.T) {
	backup := claimWithPod(t, "k-1")
	t.Run("the same data", func(t *testing.T) {
		d := newDisk(t)
		cancelled(t, d, backup, "r1", v1alpha1.RestoreSpec{})
		d.holds(t, "k-1*", true)
		cancelled(t, d, backup, "r2", v1alpha1.RestoreSpec{})
		d.holds(t, "k-1*", true)
		want(t, d.run(t, t.Context(), backup, "r3", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
		d.holds(t, "k-1", false)
		if d.server.get("pods", "a", "p") == nil {
			t.Error("the pod is missing")
		}
		want(t, d.run(t, t.Context(), backup, "r4", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseFailedValidation, "a/data exists with its data")
	})
	t.Run("a claim whose data failed", func(t *testing.T) {
		d := newDisk(t)
		d.half = func() error { return errors.New("no space") }
		want(t, d.run(t, t.Context(), backup, "r1", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhasePartiallyFailed, "no space", "it uses the claim a/data")
		d.half = nil
		want(t, d.run(t, t.Context(), backup, "r2", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
		d.holds(t, "k-1", false)
	})
	t.Run("other data", func(t *testing.T) {
		d := newDisk(t)
		cancelled(t, d, backup, "r1", v1alpha1.RestoreSpec{})
		other := claimWithPod(t, "k-2")
		writes := d.server.writes
		want(t, d.run(t, t.Context(), other, "r2", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseFailedValidation, "a/data holds a part of other data")
		if d.server.writes != writes {
			t.Errorf("%d writes", d.server.writes-writes)
		}
		want(t, d.run(t, t.Context(), other, "r3", v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite}), v1alpha1.RestorePhaseCompleted)
		d.holds(t, "k-2", false)
	})
	t.Run("without data", func(t *testing.T) {
		d := newDisk(t)
		cancelled(t, d, backup, "r1", v1alpha1.RestoreSpec{})
		want(t, d.run(t, t.Context(), backup, "r2", v1alpha1.RestoreSpec{RestorePVs: new(false)}), v1alpha1.RestorePhasePartiallyFailed,
			"it may hold a part of the data", "it uses the claim a/data")
		if d.server.get("pods", "a", "p") != nil {
			t.Error("the pod starts on half of its data")
		}
	})
	t.Run("somebody's claim", func(t *testing.T) {
		d := newDisk(t)
		d.server.add("namespaces", obj("v1", "Namespace", "", "a"))
		d.server.add("persistentvolumeclaims", obj("v1", "PersistentVolumeClaim", "a", "data", with("theirs", "metadata", "uid")))
		cancelled(t, d, backup, "r1", v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite})
		d.holds(t, "k-1*", true)
		want(t, d.run(t, t.Context(), backup, "r2", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseFailedValidation, "a/data holds a part of other data")
		want(t, d.run(t, t.Context(), backup, "r3", v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite}), v1alpha1.RestorePhaseCompleted)
		d.holds(t, "k-1", false)
	})
	t.Run("somebody uses the half", func(t *testing.T) {
		d := newDisk(t)
		cancelled(t, d, backup, "r1", v1alpha1.RestoreSpec{})
		d.user = true
		want(t, d.run(t, t.Context(), backup, "r2", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhasePartiallyFailed, "a pod uses it", "it uses the claim a/data")
		d.user = false
		want(t, d.run(t, t.Context(), backup, "r3", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseFailedValidation, "or was used since")
		d.holds(t, "k-1*", true)
		want(t, d.run(t, t.Context(), backup, "r4", v1alpha1.RestoreSpec{ExistingVolumePolicy: v1alpha1.ExistingVolumeOverwrite}), v1alpha1.RestorePhaseCompleted)
		d.holds(t, "k-1", false)
	})
	noPatches := func(r *http.Request) (int, bool) {
		if r.Method == http.MethodPatch {
			return http.StatusForbidden, false
		}
		return 0, false
	}
	t.Run("the mark stays", func(t *testing.T) {
		d := newDisk(t)
		d.server.fault = noPatches
		want(t, d.run(t, t.Context(), backup, "r1", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhasePartiallyFailed, "would write all of it again", "it uses the claim a/data")
		d.holds(t, "k-1", true)
		if d.server.get("pods", "a", "p") != nil {
			t.Error("the pod starts on what a later restore would write over")
		}
		d.server.fault = nil
		clear(d.content) // it has no record of another restore
		want(t, d.run(t, t.Context(), backup, "r2", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
		d.holds(t, "k-1", false)
	})
	t.Run("the mark of a tenant stays", func(t *testing.T) {
		d := newDisk(t)
		d.server.add("namespaces", obj("v1", "Namespace", "", "a"))
		d.server.fault = noPatches
		run := func(uid string) *Ended {
			r := request(uid, v1alpha1.RestoreSpec{})
			r.Run.Spec.RestoreRef.Namespace = "a"
			return d.server.run(t.Context(), backup, r, func(deps *Dependencies) {
				deps.Volumes = d
				deps.Allowed = func(_ context.Context, right Right) (bool, error) { return right.Verb != "patch", nil }
			})
		}
		ended := run("r1")
		want(t, ended, v1alpha1.RestorePhaseCompleted, "remove it by hand")
		if ended.Status.Warnings != 1 {
			t.Errorf("%d warnings", ended.Status.Warnings)
		}
		d.holds(t, "k-1", true)
		if d.server.get("pods", "a", "p") == nil {
			t.Error("the pod is missing")
		}
		want(t, run("r2"), v1alpha1.RestorePhaseFailedValidation, "a/data")
	})
	t.Run("an earlier restore wakes up", func(t *testing.T) {
		d := newDisk(t)
		var r2 *Ended
		d.half = func() error {
			d.half = func() error { // of the second
				return nil
			}
			r2 = d.run(t, t.Context(), backup, "r2", v1alpha1.RestoreSpec{})
			if claim := d.server.get("persistentvolumeclaims", "a", "data"); claim != nil {
				claim.SetAnnotations(map[string]string{format.AnnotationIncomplete: mark{restore: "r3", snapshot: "k-3"}.String()})
				d.server.add("persistentvolumeclaims", claim.Object)
			}
			return nil
		}
		d.run(t, t.Context(), backup, "r1", v1alpha1.RestoreSpec{})
		want(t, r2, v1alpha1.RestorePhaseCompleted)
		if m := markOf(d.server.get("persistentvolumeclaims", "a", "data")); m == nil || m.restore != "r3" {
			t.Errorf("the mark of a later restore is %+v", m)
		}
	})
}

// TestHalfWrittenAndKilled: whichever request of a restore that goes on with a claim is its last,
// the next process goes on with that, and ends it.
func TestHalfWrittenAndKilled(t *testing.T) {
	backup := claimWithPod(t, "k-1")
	for _, carriedOut := range []bool{false, true} {
		for n := 1; ; n++ {
			d := newDisk(t)
			cancelled(t, d, backup, "r1", v1alpha1.RestoreSpec{})
			killed := d.killedAt(t, backup, "r2", n, carriedOut)
			want(t, d.run(t, t.Context(), backup, "r2", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
			d.holds(t, "k-1", false)
			if d.server.get("pods", "a", "p") == nil {
				t.Errorf("killed at request %d: the pod is missing", n)
			}
			d.server.server.Close()
			if !killed {
				break
			}
		}
	}
}

// killedAt runs a restore whose process is killed at its nth request, which is carried out or
// not. It is false if the restore had fewer.
func (d *disk) killedAt(t *testing.T, backup *source.Backup, uid string, n int, carriedOut bool) bool {
	t.Helper()
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	d.server.mu.Lock()
	d.server.fault = func(*http.Request) (int, bool) {
		if n--; n == 0 {
			kill()
		}
		if n <= 0 {
			return -1, carriedOut && n == 0
		}
		return 0, false
	}
	d.server.mu.Unlock()
	d.run(t, ctx, backup, uid, v1alpha1.RestoreSpec{})
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	d.server.fault = nil
	return n <= 0
}

// TestWhatMayUseAClaim: a pod whose references had no room starts neither before the data of the
// claims of its namespace is whole, nor without.
func TestWhatMayUseAClaim(t *testing.T) {
	backupOf := func(t *testing.T, more ...map[string]any) *source.Backup {
		backup := claimWithPod(t, "k-1", more...)
		for _, item := range backup.Items {
			if item.KindName == "Pod" {
				item.References, item.OwnerUIDs, item.Labels, item.Shortened = nil, nil, nil, true
			}
		}
		return backup
	}
	t.Run("whole", func(t *testing.T) {
		d := newDisk(t)
		d.half = func() error {
			if d.server.get("pods", "a", "p") != nil {
				t.Error("the pod is there before the data")
			}
			return nil
		}
		want(t, d.run(t, t.Context(), backupOf(t), "r1", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhaseCompleted)
		if d.server.get("pods", "a", "p") == nil {
			t.Error("there is no pod")
		}
	})
	t.Run("missing", func(t *testing.T) {
		d := newDisk(t)
		d.half = func() error { return errors.New("no space") }
		// It comes after the data, since it owns what may use the claim; and it comes all the same.
		free := obj("v1", "ConfigMap", "a", "free")
		backup := backupOf(t, free, obj("example.com/v1", "Widget", "a", "w", ownedBy(free)))
		want(t, d.run(t, t.Context(), backup, "r1", v1alpha1.RestoreSpec{}), v1alpha1.RestorePhasePartiallyFailed, "no space", "it may use the claim a/data, whose data is not there")
		if d.server.get("pods", "a", "p") != nil {
			t.Error("the pod was created")
		}
		if d.server.get("configmaps", "a", "free") == nil {
			t.Error("what a suspect belongs to was held back, too")
		}
	})
	t.Run("left out of the restore", func(t *testing.T) {
		d := newDisk(t)
		cancelled(t, d, backupOf(t), "r1", v1alpha1.RestoreSpec{})
		want(t, d.run(t, t.Context(), backupOf(t), "r2", v1alpha1.RestoreSpec{IncludedResources: []string{"pods"}}), v1alpha1.RestorePhasePartiallyFailed, "it may hold a part", "it may use the claim a/data")
		if d.server.get("pods", "a", "p") != nil {
			t.Error("the pod was created")
		}
	})
}
