// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// newSnapshot returns a volume that Velero stored by a snapshot. If Velero's data mover uploaded
// its files, they are in the repository of the claim's namespace, else in the storage of the
// volume.
func newSnapshot(claim types.NamespacedName, info *format.VolumeInfo) Volume {
	v := Volume{
		Volume: format.Volume{
			Pod: enginev1alpha1.PodReference{Namespace: claim.Namespace}, ClaimName: claim.Name, PersistentVolume: info.PVName,
			Status: enginev1alpha1.VolumeUploadStatus{
				Phase: enginev1alpha1.VolumePhaseCompleted, StartTimestamp: info.StartTimestamp, CompletionTimestamp: info.CompletionTimestamp,
			},
		},
		Problem: info.Stored(),
	}
	if info.Failed() {
		v.Status.Phase = enginev1alpha1.VolumePhaseFailed
	}
	if csi := info.CSISnapshotInfo; v.Problem == format.StoredInStorage && csi != nil && csi.SnapshotHandle != "" && csi.Driver != "" {
		v.Snapshot = &format.SnapshotSource{Driver: csi.Driver, Kept: true, Cut: &format.SnapshotCut{Handle: csi.SnapshotHandle, Size: max(csi.Size, 0)}}
		v.Problem = ""
	}
	if moved := info.DataMovementInfo; moved != nil && info.SnapshotDataMoved {
		v.Status.Progress.TotalBytes, v.Status.Progress.BytesDone = max(moved.Size, 0), max(moved.Size, 0)
		v.Status.IncrementalBytes = max(moved.IncrementalSize, 0)
		if v.Problem == "" {
			v.Status.SnapshotID = moved.SnapshotHandle
		}
	}
	if strings.ContainsAny(v.Status.SnapshotID, "/\\ \n") {
		v.Problem = fmt.Sprintf("the list of volumes names the snapshot %q, which a repository can't have", v.Status.SnapshotID)
		v.Status.SnapshotID = ""
	}
	return v
}

// readMoved reads the objects about volumes that Velero has moved: claims have the mode of the
// volume, and records of uploads the snapshots that Velero's lists until 1.13 do not name.
func (b *Backup) readMoved(ctx context.Context) error {
	moved := map[types.NamespacedName]int{}
	for i := range b.Volumes {
		switch v := &b.Volumes[i]; {
		case v.Pod.Name != "", v.InStorage(): // of any mode
		case v.Problem == format.StoredUnnamed:
			b.uploads = true
			moved[v.Claim()] = i
		case v.Problem == "":
			moved[v.Claim()] = i
		}
	}
	if len(moved) == 0 && !b.uploads {
		return nil
	}
	uploaded := map[types.NamespacedName]Volume{}
	if b.uploads {
		err := b.readSome(ctx, isUpload, func(content *unstructured.Unstructured) error {
			var upload format.DataUpload
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.Object, &upload); err != nil {
				return err
			}
			claim := types.NamespacedName{Namespace: upload.Spec.SourceNamespace, Name: upload.Spec.SourcePVC}
			if upload.IsOf(b.Metadata.UID) && len(validation.IsDNS1123Label(claim.Namespace)) == 0 && len(validation.IsDNS1123Subdomain(claim.Name)) == 0 {
				info := upload.Info()
				uploaded[claim] = newSnapshot(claim, &info)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	taken := map[types.NamespacedName]bool{}
	for i := range b.Volumes {
		taken[b.Volumes[i].Claim()] = true
	}
	for claim, i := range moved {
		if found, ok := uploaded[claim]; ok {
			found.PersistentVolume = b.Volumes[i].PersistentVolume
			b.Volumes[i] = found
		}
	}
	for _, claim := range slices.SortedFunc(maps.Keys(uploaded), compareNames) {
		if !taken[claim] {
			moved[claim] = len(b.Volumes)
			b.Volumes = append(b.Volumes, uploaded[claim])
		}
	}
	return b.readSome(ctx, func(item *manifest.Item) bool {
		i, ok := moved[types.NamespacedName{Namespace: item.Namespace, Name: item.Name}]
		return ok && isClaim(item) && b.Volumes[i].Problem == ""
	}, func(content *unstructured.Unstructured) error {
		if mode, _, _ := unstructured.NestedString(content.Object, "spec", "volumeMode"); mode == string(corev1.PersistentVolumeBlock) {
			b.Volumes[moved[types.NamespacedName{Namespace: content.GetNamespace(), Name: content.GetName()}]].Device = true
		}
		return nil
	})
}

// readSome calls use for the objects of chosen items. An unreadable one is left out with a warning.
func (b *Backup) readSome(ctx context.Context, want func(*manifest.Item) bool, use func(*unstructured.Unstructured) error) error {
	items := slices.DeleteFunc(slices.Clone(b.Items), func(item *manifest.Item) bool { return !want(item) })
	if len(items) == 0 {
		return nil
	}
	for object, err := range b.ObjectsOf(ctx, items) {
		if err == nil {
			err = use(object.Content)
		}
		switch {
		case err != nil && object.Item == nil:
			return err
		case err != nil:
			b.Warnings = append(b.Warnings, fmt.Sprintf("what %s says of a volume can't be read: %v", identity(object.Item), err))
		}
	}
	return nil
}

func isUpload(item *manifest.Item) bool {
	return item.APIGroup == "velero.io" && item.KindName == "DataUpload"
}

func isClaim(item *manifest.Item) bool {
	return item.APIGroup == "" && item.KindName == "PersistentVolumeClaim"
}
