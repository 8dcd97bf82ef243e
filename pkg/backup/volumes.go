// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/format"
)

// Annotations of pods, with Velero's names: lists of volumes, separated by commas.
const (
	includeVolumesAnnotation = "backup.velero.io/backup-volumes"
	excludeVolumesAnnotation = "backup.velero.io/backup-volumes-excludes"
	// tokenVolumePrefix begins the names of the service account tokens that old
	// clusters mounted as plain secrets.
	tokenVolumePrefix = "default-token"
)

// Volumes moves the data of volumes. What was submitted and has not ended when
// Run returns is the implementer's to stop.
type Volumes interface {
	// Submit hands over a volume, whose status is not known yet, and returns without
	// waiting for its upload. A volume is handed over once.
	Submit(ctx context.Context, volume *format.Volume) error
	// Wait returns when every submitted volume has ended, one way or the other, and
	// each has its status.
	Wait(ctx context.Context) error
}

// skippedVolume is a volume of a pod whose data is not read.
type skippedVolume struct {
	volume string
	reason string
	// asked is true when the pod names the volume, so that the user must know.
	asked bool
}

// pickVolumes says which volumes of a pod are to be uploaded. The rules are
// Velero's for its file system backup: without byDefault those that the pod's
// annotation names; with it all but those that another annotation names, and but
// those whose content is in the API anyway, in an image, or out of reach.
func pickVolumes(pod *corev1.Pod, byDefault bool) (picked []corev1.Volume, skipped []skippedVolume) {
	wanted := volumeNames(pod, includeVolumesAnnotation)
	excluded := volumeNames(pod, excludeVolumesAnnotation)
	mounted, blocks := mounts(pod)
	for _, volume := range pod.Spec.Volumes {
		name := volume.Name
		asked := !byDefault && wanted.Has(name)
		wanted.Delete(name)
		if !byDefault && !asked {
			continue
		}
		reason := ""
		switch {
		case byDefault && excluded.Has(name):
			reason = "the pod's annotation " + excludeVolumesAnnotation + " excludes it"
		case unsupported(&volume) != "":
			reason = unsupported(&volume)
		case blocks.Has(name):
			reason, asked = "it is a block device, and only files can be read", true
		case !mounted.Has(name):
			// The node makes no folder for it.
			reason, asked = "no container mounts it", true
		}
		if reason != "" {
			skipped = append(skipped, skippedVolume{name, reason, asked})
			continue
		}
		picked = append(picked, volume)
	}
	if !byDefault {
		for _, name := range sets.List(wanted) {
			skipped = append(skipped, skippedVolume{name, "the pod's annotation names it, but the pod has no such volume", true})
		}
	}
	return picked, skipped
}

// unsupported says why volumes of this type are never read, or "".
func unsupported(volume *corev1.Volume) string {
	switch source := &volume.VolumeSource; {
	case source.HostPath != nil:
		return "it is a hostPath volume, which the agent can't reach"
	case source.Secret != nil, source.ConfigMap != nil, source.Projected != nil, source.DownwardAPI != nil:
		return "its content comes from objects"
	case source.Image != nil:
		return "its content comes from an image"
	case strings.HasPrefix(volume.Name, tokenVolumePrefix):
		return "it holds the token of a service account"
	}
	return ""
}

func volumeNames(pod *corev1.Pod, annotation string) sets.Set[string] {
	names := sets.New[string]()
	for name := range strings.SplitSeq(pod.Annotations[annotation], ",") {
		if name = strings.TrimSpace(name); name != "" {
			names.Insert(name)
		}
	}
	return names
}

// mounts are the volumes that containers use as folders, and as block devices.
func mounts(pod *corev1.Pod) (folders, blocks sets.Set[string]) {
	folders, blocks = sets.New[string](), sets.New[string]()
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, mount := range containers[i].VolumeMounts {
				folders.Insert(mount.Name)
			}
			for _, device := range containers[i].VolumeDevices {
				blocks.Insert(device.Name)
			}
		}
	}
	return folders, blocks
}

// claimOf is the name of a volume's claim, or "".
func claimOf(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		// The claim that Kubernetes makes for a generic ephemeral volume.
		return pod.Name + "-" + volume.Name
	}
	return ""
}

// whyNotRunning says why a pod's volumes can't be read, or "".
func whyNotRunning(pod *corev1.Pod) string {
	switch {
	case pod.Spec.NodeName == "":
		return "the pod is not on a node"
	case pod.Status.Phase != corev1.PodRunning:
		return fmt.Sprintf("the pod is %s, not Running", pod.Status.Phase)
	}
	return ""
}
