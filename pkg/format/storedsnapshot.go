// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// AnnotationSnapshotOfClaim names a claim's VolumeSnapshot in the backup, from which Velero
	// restores the claim.
	AnnotationSnapshotOfClaim = "velero.io/volume-snapshot-name"
	// LabelSnapshotOfClaim is the claim's uid, on the objects about its snapshot.
	LabelSnapshotOfClaim = AnnotationPrefix + "snapshot-of-claim"

	annotationHandle      = "velero.io/csi-volumesnapshot-handle"
	annotationDriver      = "velero.io/csi-driver-name"
	annotationPolicy      = "velero.io/csi-vsc-deletion-policy"
	annotationRestoreSize = "velero.io/csi-volumesnapshot-restore-size"

	snapshotVersion = "snapshot.storage.k8s.io/v1"
	retain          = "Retain"
)

// StoredSnapshot describes a volume's cut as Velero stores it, of a block device or a file system.
// Neither object may delete the stored snapshot. With the label of the backup's name, which they lack,
// Velero would delete it with its record of the backup.
func StoredSnapshot(volume *Volume, block bool) (snapshot, content *unstructured.Unstructured) {
	of, cut := volume.Snapshot, volume.Snapshot.Cut
	name := "snapshot-" + string(volume.ClaimUID)
	labels := map[string]any{LabelSnapshotOfClaim: string(volume.ClaimUID), LabelExclude: "true"}
	annotations := map[string]any{annotationHandle: cut.Handle, annotationDriver: of.Driver, annotationPolicy: retain}
	mode := corev1.PersistentVolumeFilesystem
	if block {
		mode = corev1.PersistentVolumeBlock
	}
	ofSnapshot := map[string]any{"source": map[string]any{"volumeSnapshotContentName": name}}
	ofContent := map[string]any{
		"deletionPolicy": retain, "driver": of.Driver, "sourceVolumeMode": string(mode),
		"source":            map[string]any{"snapshotHandle": cut.Handle},
		"volumeSnapshotRef": map[string]any{"apiVersion": snapshotVersion, "kind": "VolumeSnapshot", "namespace": volume.Pod.Namespace, "name": name},
	}
	if of.Class != "" {
		ofSnapshot["volumeSnapshotClassName"], ofContent["volumeSnapshotClassName"] = of.Class, of.Class
	}
	isSnapshot := map[string]any{"boundVolumeSnapshotContentName": name, "readyToUse": true}
	isContent := map[string]any{"snapshotHandle": cut.Handle, "readyToUse": true}
	if !cut.Time.IsZero() {
		isSnapshot["creationTime"], isContent["creationTime"] = cut.Time.UTC().Format(time.RFC3339), cut.Time.UnixNano()
	}
	if cut.Size > 0 {
		size := resource.NewQuantity(cut.Size, resource.BinarySI).String()
		annotations[annotationRestoreSize], isSnapshot["restoreSize"], isContent["restoreSize"] = size, size, cut.Size
	}
	return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": snapshotVersion, "kind": "VolumeSnapshot",
			"metadata": map[string]any{"name": name, "namespace": volume.Pod.Namespace, "labels": labels, "annotations": annotations},
			"spec":     ofSnapshot, "status": isSnapshot,
		}}, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": snapshotVersion, "kind": "VolumeSnapshotContent",
			"metadata": map[string]any{"name": name, "labels": labels},
			"spec":     ofContent, "status": isContent,
		}}
}
