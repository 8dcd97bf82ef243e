// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

// Kubernetes makes a claim for each generic ephemeral volume of a pod, and deletes both together.
// So the claim is not restored. Its data is written through the pod if the restore creates that; a
// pod made by its controller has another name and claim.

// leaveClaimsOfPods decides, before the ordering, which claims Kubernetes makes.
func (e *execution) leaveClaimsOfPods(items []*manifest.Item) {
	if e.spec.VolumesOnly {
		return
	}
	owners := e.podsOfClaims(items)
	if len(owners) == 0 {
		return
	}
	chosen := make(map[types.UID]*manifest.Item, len(owners))
	for _, item := range items {
		if item.UID != "" {
			chosen[types.UID(item.UID)] = item
		}
	}
	e.ofPods = map[*manifest.Item]string{}
	for _, claim := range items {
		pod := e.ephemeralOf(claim, owners)
		if pod == nil {
			continue
		}
		volume := e.volumeOf(claim)
		switch maker := makerOf(pod, chosen); {
		case maker != nil && e.asksFor(claim):
			continue
		case maker != nil:
			e.ofPods[claim] = fmt.Sprintf("it belonged to the pod %s, which the %s %s makes anew with a claim of its own", pod.Name, maker.KindName, maker.Name)
			if volume != nil {
				e.report.warn(e.subject(claim), e.ofPods[claim]+": its data stays in the backup, and the new volume is empty")
			}
		case chosen[types.UID(pod.UID)] == pod:
			e.ofPods[claim] = fmt.Sprintf("Kubernetes makes it for the pod %s, which waits for its data", pod.Name)
			if volume == nil {
				e.ofPods[claim] = fmt.Sprintf("Kubernetes makes it for the pod %s", pod.Name)
				e.warnOfEmptyClaim(claim, e.subject(claim))
			} else {
				e.scratch[types.UID(pod.UID)] = append(e.scratch[types.UID(pod.UID)], volume)
			}
		default:
			continue
		}
		delete(e.volumes, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
	}
}

func (e *execution) podsOfClaims(items []*manifest.Item) map[string]*manifest.Item {
	owners := map[string]bool{}
	for _, item := range items {
		if isClaim(item) {
			for _, uid := range item.OwnerUIDs {
				owners[uid] = true
			}
		}
	}
	pods := map[string]*manifest.Item{}
	if len(owners) == 0 {
		return pods
	}
	for _, item := range e.Backup.Items {
		if item.APIGroup == "" && item.KindName == "Pod" && owners[item.UID] {
			pods[item.UID] = item
		}
	}
	return pods
}

// ephemeralOf returns the pod of a generic ephemeral volume's claim, or nil. A claim that its pod
// names is not made anew.
func (e *execution) ephemeralOf(claim *manifest.Item, pods map[string]*manifest.Item) *manifest.Item {
	if !isClaim(claim) {
		return nil
	}
	for _, uid := range claim.OwnerUIDs {
		pod := pods[uid]
		if pod == nil || pod.Namespace != claim.Namespace || !strings.HasPrefix(claim.Name, pod.Name+"-") {
			continue
		}
		if volume := e.volumeOf(claim); volume != nil && (volume.Pod.UID != types.UID(pod.UID) || pod.Name+"-"+volume.Name != claim.Name) {
			continue
		}
		if !slices.Contains(pod.References, manifest.Reference{KindName: claim.KindName, Namespace: claim.Namespace, Name: claim.Name}) {
			return pod
		}
	}
	return nil
}

func makerOf(pod *manifest.Item, chosen map[types.UID]*manifest.Item) *manifest.Item {
	for _, uid := range pod.OwnerUIDs {
		if owner := chosen[types.UID(uid)]; owner != nil && slices.Contains(object.PodMakers, owner.KindName) {
			return owner
		}
	}
	return nil
}

func (e *execution) asksFor(item *manifest.Item) bool {
	return slices.ContainsFunc(e.spec.Objects, func(o v1alpha1.RestoreObject) bool {
		return o.Namespace == item.Namespace && o.Name == item.Name && (o.Resource == item.Resource || strings.EqualFold(o.Resource, item.KindName))
	})
}
