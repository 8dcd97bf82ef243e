// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// labelClaimUID is Velero's and our label with a claim's uid.
const labelClaimUID = "velero.io/pvc-uid"

const methodPodVolume = "PodVolumeBackup"

// Volume is a volume of the backup. Its snapshot Status.SnapshotID is in the backup's location, in
// the repository of its pod's namespace. A volume moved by Velero has only that namespace.
type Volume struct {
	format.Volume
	// Problem says why its data can't be restored, or is empty.
	Problem string
}

// RepositoryNamespace is the namespace whose repository has the snapshot.
func (v *Volume) RepositoryNamespace() string { return v.Pod.Namespace }

// Claim returns the claim of the data, without name if there is none.
func (v *Volume) Claim() types.NamespacedName {
	if v.ClaimName == "" {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: v.Pod.Namespace, Name: v.ClaimName}
}

// readVolumes reads the snapshots of volumes. Facts about persistent volumes are in another file,
// which Velero until 1.12 has not.
func (b *Backup) readVolumes(ctx context.Context, storeName string) error {
	key := format.PodVolumeBackupsKey(storeName)
	_, volumes := b.contents.Of(key)
	_, infos := b.contents.Of(format.VolumeInfoKey(storeName))
	b.ListsSealed = volumes && infos
	err := b.summed(ctx, key, func(r io.Reader) error {
		return format.ReadPodVolumeBackups(r, func(pvb format.PodVolumeBackup) error {
			volume, err := newVolume(&pvb)
			if err != nil {
				return err
			}
			b.Volumes = append(b.Volumes, volume)
			return nil
		})
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		if _, ok := b.contents.Of(key); ok {
			return refused("its list of volumes is missing")
		}
	case errors.Is(err, errSum):
		return refused("its list of volumes: %w", err)
	case err != nil:
		return fmt.Errorf("read the volumes of the backup %s: %w", storeName, err)
	}
	return b.join(ctx, storeName)
}

// Delete marks volumes that were deleted from the backup later.
func (b *Backup) Delete(volumes []format.DeletedVolume) {
	deleted := map[format.VolumeID]*format.DeletedVolume{}
	for i := range volumes {
		deleted[volumes[i].VolumeID] = &volumes[i]
	}
	for id, v := range b.identified() {
		if by := deleted[id]; by != nil {
			v.Problem = fmt.Sprintf("its data was deleted from the backup: %s asked for that at %s", by.Requester, by.Timestamp.UTC().Format(time.RFC3339))
		}
	}
}

func (b *Backup) identified() iter.Seq2[format.VolumeID, *Volume] {
	return func(yield func(format.VolumeID, *Volume) bool) {
		repeats := map[format.VolumeID]int32{}
		for i := range b.Volumes {
			v := &b.Volumes[i]
			id := format.VolumeID{Namespace: v.Pod.Namespace, Name: format.VolumeName(v.ClaimName, v.Pod.Name, v.Name)}
			repeat := repeats[id]
			repeats[id]++
			id.Repeat = repeat
			if !yield(id, v) {
				return
			}
		}
	}
}

// Volume returns the volume with an identity, or nil.
func (b *Backup) Volume(id format.VolumeID) *Volume {
	for is, v := range b.identified() {
		if is == id {
			return v
		}
	}
	return nil
}

func newVolume(pvb *format.PodVolumeBackup) (Volume, error) {
	v := Volume{Volume: format.Volume{
		Pod:          enginev1alpha1.PodReference{Namespace: pvb.Spec.Pod.Namespace, Name: pvb.Spec.Pod.Name, UID: pvb.Spec.Pod.UID},
		NamespaceUID: pvb.NamespaceUID(),
		Node:         pvb.Spec.Node,
		Name:         pvb.Spec.Volume,
		ClaimName:    pvb.ClaimName(),
		Device:       pvb.IsDevice(),
		ClaimUID:     types.UID(cmp.Or(pvb.Labels[labelClaimUID], pvb.Spec.Tags["pvc-uid"])),
		Status: enginev1alpha1.VolumeUploadStatus{
			Phase:               pvb.Status.Phase,
			SnapshotID:          pvb.Status.SnapshotID,
			Path:                pvb.Status.Path,
			Message:             pvb.Status.Message,
			StartTimestamp:      pvb.Status.StartTimestamp,
			CompletionTimestamp: pvb.Status.CompletionTimestamp,
			Progress:            pvb.Status.Progress,
			IncrementalBytes:    pvb.Status.IncrementalBytes,
		},
	}}
	// They become names of objects, and folders of the store.
	inPod := v.Pod.Name != "" || v.Name != "" || v.ClaimName == "" // else the snapshot of a claim that no pod used
	if len(validation.IsDNS1123Label(v.Pod.Namespace)) > 0 || inPod && len(validation.IsDNS1123Subdomain(v.Pod.Name)) > 0 ||
		inPod && len(validation.IsDNS1123Label(v.Name)) > 0 || v.ClaimName != "" && len(validation.IsDNS1123Subdomain(v.ClaimName)) > 0 ||
		strings.ContainsAny(v.Status.SnapshotID, "/\\ \n") {
		return Volume{}, refused("its list of volumes names the volume %q of the pod %q in the namespace %q, of the claim %q, with the snapshot %q", v.Name, v.Pod.Name, v.Pod.Namespace, v.ClaimName, v.Status.SnapshotID)
	}
	if handle := pvb.SnapshotHandle(); handle != "" { // beside a SnapshotID, its data was moved too
		v.Snapshot = &format.SnapshotSource{Driver: pvb.SnapshotDriver(), Kept: v.Status.SnapshotID == "", Cut: &format.SnapshotCut{Handle: handle}}
	}
	switch {
	case v.InStorage():
	case pvb.Spec.UploaderType != format.UploaderKopia:
		v.Problem = fmt.Sprintf("it was uploaded with %q, and only what was uploaded with Kopia can be restored", pvb.Spec.UploaderType)
	case v.Status.Phase != enginev1alpha1.VolumePhaseCompleted || v.Status.SnapshotID == "":
		v.Problem = cmp.Or(v.Status.Message, "its backup has not succeeded")
	}
	return v, nil
}

// join adds facts about persistent volumes, the volumes stored by Velero's snapshots, and claims
// without data.
func (b *Backup) join(ctx context.Context, storeName string) error {
	var infos []format.VolumeInfo
	key := format.VolumeInfoKey(storeName)
	err := b.summed(ctx, key, func(r io.Reader) (err error) {
		infos, err = format.ReadVolumeInfo(r)
		return err
	})
	switch _, named := b.contents.Of(key); {
	case errors.Is(err, store.ErrNotFound) && named:
		return refused("its list of persistent volumes is missing")
	case errors.Is(err, store.ErrNotFound):
		b.uploads = true // of Velero until 1.12
		return nil
	case errors.Is(err, errSum):
		return refused("its list of persistent volumes: %w", err)
	case err != nil:
		return fmt.Errorf("read the persistent volumes of the backup %s: %w", storeName, err)
	}
	byClaim := map[types.NamespacedName]*format.VolumeInfo{}
	for i := range infos {
		info := &infos[i]
		if len(validation.IsDNS1123Label(info.PVCNamespace)) > 0 || len(validation.IsDNS1123Subdomain(info.PVCName)) > 0 {
			continue
		}
		claim := types.NamespacedName{Namespace: info.PVCNamespace, Name: info.PVCName}
		if known := byClaim[claim]; known == nil || known.Skipped || !known.SnapshotDataMoved {
			byClaim[claim] = info
		}
	}
	for i := range b.Volumes {
		v := &b.Volumes[i]
		if info := byClaim[v.Claim()]; info != nil {
			v.PersistentVolume = info.PVName
			if csi := info.CSISnapshotInfo; csi != nil && v.InStorage() && csi.SnapshotHandle == v.Snapshot.Cut.Handle {
				v.Snapshot.Cut.Size = max(csi.Size, 0)
			}
			delete(byClaim, v.Claim())
		}
	}
	b.NotTaken = map[types.NamespacedName]string{}
	for _, claim := range slices.SortedFunc(maps.Keys(byClaim), compareNames) {
		switch info := byClaim[claim]; {
		case info.Skipped && info.Failed():
			b.Volumes = append(b.Volumes, Volume{
				Volume:  format.Volume{Pod: enginev1alpha1.PodReference{Namespace: claim.Namespace}, ClaimName: claim.Name, PersistentVolume: info.PVName},
				Problem: cmp.Or(info.SkippedReason, "its backup has not succeeded"),
			})
		case info.Skipped:
			b.NotTaken[claim] = info.SkippedReason
		case info.BackupMethod == format.MethodCSISnapshot, info.BackupMethod == format.MethodNativeSnapshot:
			b.Volumes = append(b.Volumes, newSnapshot(claim, info))
		case info.BackupMethod != "" && info.BackupMethod != methodPodVolume:
			b.Volumes = append(b.Volumes, Volume{
				Volume:  format.Volume{Pod: enginev1alpha1.PodReference{Namespace: claim.Namespace}, ClaimName: claim.Name, PersistentVolume: info.PVName},
				Problem: fmt.Sprintf("it was backed up as %s, and only files of volumes can be restored", info.BackupMethod),
			})
		}
	}
	return nil
}

// UnknownHandles counts the CSI snapshots in the volumes' storage whose handles the backup does not
// tell, as Velero's before 1.13.
func (b *Backup) UnknownHandles(ctx context.Context, storeName string) (count int, err error) {
	for i := range b.Volumes {
		if b.Volumes[i].Problem == format.StoredInStorage {
			count++
		}
	}
	if !b.uploads {
		return count, nil
	}
	err = b.summed(ctx, format.CSISnapshotsKey(storeName), func(r io.Reader) error {
		return format.ReadCSISnapshots(r, func(format.CSISnapshot) error {
			count++
			return nil
		})
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, fmt.Errorf("read the CSI snapshots of the backup %s: %w", storeName, err)
	}
	return count, nil
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
