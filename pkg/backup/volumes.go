// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// These annotations of pods list volumes, separated by commas.
const (
	includeVolumesAnnotation = "backup.holdfast.io/backup-volumes"
	excludeVolumesAnnotation = "backup.holdfast.io/backup-volumes-excludes"
	// Velero's, with Velero's meaning.
	includeVolumesVelero = "backup.velero.io/backup-volumes"
	excludeVolumesVelero = "backup.velero.io/backup-volumes-excludes"
	// tokenVolumePrefix begins the names of service account tokens that old clusters mounted as
	// secrets.
	tokenVolumePrefix = "default-token"
)

// Volumes moves the data of volumes. The implementer stops unfinished uploads when Run returns.
type Volumes interface {
	// Submit hands over a volume once, without waiting. An ended one is counted.
	Submit(ctx context.Context, volume *format.Volume) error
	// Cut returns when the snapshots of submitted volumes are cut, which it records in them. Ended
	// volumes then have their status.
	Cut(ctx context.Context, volumes []*format.Volume) error
	// Wait returns when submitted volumes have ended and have their status.
	Wait(ctx context.Context, volumes []*format.Volume) error
}

type skippedVolume struct {
	volume string
	claim  string
	reason string
	// asked: the pod names the volume, so the user must know. excluded: our annotation leaves it out.
	asked, excluded bool
}

// pickedVolume is read in its pod or, if cut, in a snapshot.
type pickedVolume struct {
	corev1.Volume
	cut bool
}

type wish struct {
	annotation string
	excluded   bool
}

type defaults uint8

const (
	takeClaims defaults = iota
	takeAll
	takeNone
)

func defaultsOf(defaultVolumesToFsBackup *bool) defaults {
	switch {
	case defaultVolumesToFsBackup == nil:
		return takeClaims
	case *defaultVolumesToFsBackup:
		return takeAll
	}
	return takeNone
}

// take reports whether an unnamed volume is taken. A generic ephemeral volume is scratch space: its
// claim is deleted with its pod.
func (d defaults) take(volume *corev1.Volume) bool {
	return d == takeAll || d == takeClaims && volume.PersistentVolumeClaim != nil
}

// wishes returns a pod's choices by volume. Velero's annotations count as in Velero: inclusion for
// volumes not taken by default, exclusion for the others. Ours always count and win; exclusion wins
// over inclusion.
func wishes(pod *corev1.Pod, byDefault defaults) map[string]wish {
	found := map[string]wish{}
	var of []wish
	if byDefault != takeAll {
		of = append(of, wish{includeVolumesVelero, false})
	}
	if byDefault != takeNone {
		of = append(of, wish{excludeVolumesVelero, true})
	}
	of = append(of, wish{includeVolumesAnnotation, false}, wish{excludeVolumesAnnotation, true})
	for _, w := range of {
		for name := range strings.SplitSeq(pod.Annotations[w.annotation], ",") {
			if name = strings.TrimSpace(name); name != "" {
				found[name] = w
			}
		}
	}
	return found
}

// pickVolumes returns a pod's volumes to upload: by a volume policy, else by the pod's annotations,
// else by default. It never picks volumes whose content is in the API, in an image, or out of reach.
func pickVolumes(pod *corev1.Pod, byDefault defaults, actionOf func(*corev1.Volume) action, cuts func(volume *corev1.Volume, otherwise bool) bool) (picked []pickedVolume, skipped []skippedVolume) {
	wishes := wishes(pod, byDefault)
	mounted, blocks := mounts(pod)
	_, waitVolume := restorewait.In(pod)
	for _, volume := range pod.Spec.Volumes {
		name := volume.Name
		wish, named := wishes[name]
		delete(wishes, name)
		files := named && !wish.excluded || !named && byDefault == takeAll
		if cuts(&volume, files || named && wish.annotation == excludeVolumesAnnotation) {
			picked = append(picked, pickedVolume{volume, true})
			continue
		}
		action := actionOf(&volume)
		if action == noAction && !named && !byDefault.take(&volume) {
			skipped = append(skipped, skippedVolume{volume: name, reason: cmp.Or(unsupported(&volume), "no annotation of the pod names it")})
			continue
		}
		byPod := action == noAction && named
		reason, asked := action.whyNot()
		if action == snapshotAction && claimOf(pod, &volume) == "" {
			reason, asked = "a volume policy wants a snapshot of it, and it has no claim", false
		}
		switch {
		case byPod && wish.excluded:
			reason = "the pod's annotation " + wish.annotation + " excludes it"
		case unsupported(&volume) != "":
			reason, asked = unsupported(&volume), byPod
		case name == waitVolume:
			reason = "an earlier restore has told the pod in it what became of its volumes" // restored again, it would be wrong
		case reason != "":
		case blocks.Has(name):
			reason, asked = "it is a block device, and only files can be read", true
		case !mounted.Has(name):
			reason, asked = "no container mounts it", true
		}
		if reason != "" {
			skipped = append(skipped, skippedVolume{name, claimOf(pod, &volume), reason, asked, byPod && wish.annotation == excludeVolumesAnnotation})
			continue
		}
		picked = append(picked, pickedVolume{volume, false})
	}
	for _, name := range slices.Sorted(maps.Keys(wishes)) {
		if wish := wishes[name]; !wish.excluded {
			skipped = append(skipped, skippedVolume{volume: name, reason: "the pod's annotation " + wish.annotation + " names it, but the pod has no such volume", asked: true})
		}
	}
	return picked, skipped
}

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

func claimOf(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		// Kubernetes names it so for a generic ephemeral volume.
		return pod.Name + "-" + volume.Name
	}
	return ""
}

// isMirror reports whether a kubelet made the pod for a file on its node, in any namespace.
func isMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// whyNotRunning says why a pod's volumes can't be read and its hooks not run, or returns "". A read
// pod's node gets the key of the namespace's repository. With a mirror pod, a node could get the key of
// a namespace that has no pod there.
func whyNotRunning(pod *corev1.Pod) string {
	switch {
	case isMirror(pod):
		return "it is a mirror pod, which its node makes from a file: neither volumes nor hooks of such pods are taken"
	case pod.Spec.NodeName == "":
		return "the pod is not on a node"
	case pod.Status.Phase != corev1.PodRunning:
		return fmt.Sprintf("the pod is %s, not Running", pod.Status.Phase)
	}
	return ""
}
