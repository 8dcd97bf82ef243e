// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// servesContents has the cluster serve all of the API of snapshots.
func (f *fixture) servesContents() {
	for i := range f.resources {
		if list := &f.resources[i]; list.GroupVersion == "snapshot.storage.k8s.io/v1" {
			of := list.APIResources[0]
			of.Name, of.SingularName, of.Kind, of.Namespaced = "volumesnapshotcontents", "volumesnapshotcontent", "VolumeSnapshotContent", false
			list.APIResources = append(list.APIResources, of)
		}
	}
	f.knowSizes()
}

// keeping is a backup that keeps the snapshots of a pod's claim, a claim that no pod uses, and a block
// device. Volumes of another driver have no snapshot.
func keeping(t *testing.T, hooks v1alpha1.BackupHooks) *fixture {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, SnapshotVolumes: new(true), SnapshotMoveData: new(false), Hooks: hooks}).
		withSnapshots(snapshotClass("fast", "d", false))
	f.servesContents()
	f.add("namespaces", namespace("shop", ""))
	f.csiClaim("used", "d", "Filesystem", `"mine":"x"`)
	f.csiClaim("idle", "d", "Filesystem")
	f.csiClaim("raw", "d", "Block")
	f.csiClaim("other", "e", "Filesystem")
	f.add("pods", hookedPod("web", "n1", isDB, "", claimIn("u", "used"), claimIn("o", "other")))
	f.volumes.cut = func(volume *format.Volume) {
		volume.Snapshot.Cut.Size, volume.Snapshot.Cut.Time = 5<<30, metav1.NewTime(start.Add(time.Second))
	}
	f.volumes.result = func(volume *format.Volume) enginev1alpha1.VolumeUploadStatus {
		return enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
	}
	return f
}

// objects are the objects of resources in the tarball, in its order.
func (f *fixture) objectsOf(t testing.TB, resources ...string) (objects []json.RawMessage) {
	t.Helper()
	reader, err := archive.NewReader(bytes.NewReader(f.read(t, format.TarballKey("b"))))
	for err == nil {
		var entry archive.Entry
		if entry, err = reader.Next(); err != nil || entry.Versioned || !slices.Contains(resources, entry.Resource.Resource) {
			continue
		}
		var content []byte
		content, err = io.ReadAll(reader)
		objects = append(objects, content)
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return objects
}

// TestKeptForVelero: a claim whose snapshot is kept names it in the tarball, which has the snapshot and its
// content too. The golden file is what Velero's restore actions were tried with. The manifest has the
// original claim.
func TestKeptForVelero(t *testing.T) {
	for name, hooks := range map[string]v1alpha1.BackupHooks{"": {}, "after pre hooks": dbHooks("")} {
		t.Run(name, func(t *testing.T) {
			f := keeping(t, hooks)
			if outcome := f.run(t); outcome.Status.Errors > 0 {
				t.Errorf("the backup is %+v", outcome.Status)
			}
			objects := f.objectsOf(t, "persistentvolumeclaims", "volumesnapshots", "volumesnapshotcontents")
			var sorted []map[string]any // Go sorts the fields
			for _, object := range objects {
				var fields map[string]any
				if err := json.Unmarshal(object, &fields); err != nil {
					t.Fatal(err)
				}
				sorted = append(sorted, fields)
			}
			slices.SortFunc(sorted, func(a, b map[string]any) int {
				return strings.Compare(fmt.Sprint(a["kind"], a["metadata"]), fmt.Sprint(b["kind"], b["metadata"]))
			})
			got, err := json.MarshalIndent(sorted, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			const golden = "testdata/kept-for-velero.json"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			labelled, named := 0, 0
			for item, err := range manifest.Read(bytes.NewReader(f.read(t, format.ManifestKey("b")))) {
				if err != nil {
					t.Fatal(err)
				}
				if item.Labels[format.LabelSnapshotOfClaim] != "" && strings.HasPrefix(item.Reason, "the claim shop/") {
					labelled++
				}
				if item.KindName == "PersistentVolumeClaim" && bytes.Contains(item.Original, []byte(`"`+format.AnnotationSnapshotOfClaim+`":null`)) {
					named++
				}
			}
			if labelled != 6 || named != 3 {
				t.Errorf("the manifest has %d objects about snapshots, and %d claims that differ from the original, want 6 and 3", labelled, named)
			}
		})
	}
}

// TestNotKeptForVelero: a claim names no snapshot that is not there: the cut has failed, the data is moved, or
// the cluster does not serve the API any more. The claim is in the backup.
func TestNotKeptForVelero(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"not cut": func(f *fixture) { f.volumes.cut = func(volume *format.Volume) { volume.Snapshot.Cut = nil } },
		"failed since": func(f *fixture) {
			f.volumes.cut = func(volume *format.Volume) { volume.Status.Phase = enginev1alpha1.VolumePhaseFailed }
		},
		"moved": func(f *fixture) { f.request.Backup.Spec.SnapshotMoveData = new(true) },
		"by an API of the past": func(f *fixture) {
			f.resources = slices.DeleteFunc(f.resources, func(l metav1.APIResourceList) bool { return l.GroupVersion == "snapshot.storage.k8s.io/v1" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := keeping(t, v1alpha1.BackupHooks{})
			change(f)
			f.run(t)
			claims := f.objectsOf(t, "persistentvolumeclaims")
			if made := f.objectsOf(t, "volumesnapshots", "volumesnapshotcontents"); len(claims) != 4 || len(made) > 0 {
				t.Errorf("there are %d claims, and %s", len(claims), made)
			}
			for _, claim := range claims {
				if bytes.Contains(claim, []byte(format.AnnotationSnapshotOfClaim)) {
					t.Errorf("the claim is %s", claim)
				}
			}
		})
	}
}

// TestWhatKeptClaimsNeed: the class of a claim that is written last is in the backup, and so is its namespace,
// which only objects bring along.
func TestWhatKeptClaimsNeed(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{SnapshotVolumes: new(true), SnapshotMoveData: new(false), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}).
		withSnapshots(snapshotClass("fast", "d", false))
	f.resources = append(f.resources, metav1.APIResourceList{GroupVersion: "storage.k8s.io/v1", APIResources: []metav1.APIResource{
		{Name: "storageclasses", SingularName: "storageclass", Kind: "StorageClass", Verbs: metav1.Verbs{"create", "delete", "get", "list"}},
	}})
	f.servesContents()
	f.add("namespaces", namespace("shop", ""))
	f.add("storageclasses.storage.k8s.io", `{"metadata":{"name":"asked"}}`)
	f.add("persistentvolumes", `{"metadata":{"name":"pv-db"},"spec":{"csi":{"driver":"d","volumeHandle":"h"},"storageClassName":"had","claimRef":{"namespace":"shop","name":"db","uid":"uid-db"}}}`)
	f.add("persistentvolumeclaims", `{"metadata":{"name":"db","namespace":"shop","uid":"uid-db","labels":{"app":"db"}},"spec":{"volumeName":"pv-db","storageClassName":"asked"},"status":{"phase":"Bound"}}`)
	f.run(t)
	items := f.items(t)
	for _, want := range []string{"namespaces shop", "persistentvolumeclaims shop/db", "storageclasses.storage.k8s.io asked", "volumesnapshots.snapshot.storage.k8s.io shop/snapshot-uid-db"} {
		if !slices.Contains(items, want) {
			t.Errorf("the backup has %q, and not %s", items, want)
		}
	}
}
