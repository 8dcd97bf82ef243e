// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxUndecidedBytes bounds what a backup keeps of pods that wait for their claims, in memory. It
// has room for some 7,000 usual pods.
var maxUndecidedBytes = 32 << 20

// podBytes and partBytes are what a pod, and each of its containers and volumes, takes in memory
// at least: what they would be sent in may be far less.
const podBytes, partBytes = 2 << 10, 512

// undecidedPod is a pod with claims that nothing has brought along yet, as those of pods that
// labels choose, or one that was read after such a pod.
type undecidedPod struct {
	// pod is what decide looks at.
	pod  *corev1.Pod
	held *heldPod
}

// waits says whether a pod is to be decided on later: when its claims are known, and all pods
// before it were.
func (p *podVolumes) waits(pod *heldPod) bool {
	return len(p.undecided) > 0 || slices.ContainsFunc(pod.claims, func(name string) bool {
		return p.claims[types.NamespacedName{Namespace: pod.ref.Namespace, Name: name}] == nil
	})
}

// postpone keeps a pod until all pods are read, so that a few lists find the claims of all: then
// they have whatever a request for each would have found. Should these become too many, they are
// decided on here.
func (p *podVolumes) postpone(ctx context.Context, pod *corev1.Pod, held *heldPod) error {
	pod = undecidedPart(pod)
	p.undecided = append(p.undecided, undecidedPod{pod, held})
	p.undecidedBytes += pod.Size() + podBytes + partBytes*(len(pod.Spec.Containers)+len(pod.Spec.Volumes))
	if p.undecidedBytes < maxUndecidedBytes {
		return ctx.Err()
	}
	return p.decideAll(ctx)
}

// undecidedPart is what decide looks at of a pod.
func undecidedPart(pod *corev1.Pod) *corev1.Pod {
	part := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, Volumes: pod.Spec.Volumes},
	}
	for _, name := range []string{includeVolumesVelero, excludeVolumesVelero, includeVolumesAnnotation, excludeVolumesAnnotation} {
		if value, ok := pod.Annotations[name]; ok {
			part.Annotations[name] = value
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			part.Spec.Containers = append(part.Spec.Containers, corev1.Container{
				VolumeMounts: containers[i].VolumeMounts, VolumeDevices: containers[i].VolumeDevices,
			})
		}
	}
	return part
}

// decideAll decides on the pods that wait for their claims.
func (p *podVolumes) decideAll(ctx context.Context) error {
	if err := p.takeClaimsOfPods(ctx); err != nil {
		return err
	}
	for _, undecided := range p.undecided {
		if err := p.decide(ctx, undecided.pod, undecided.held); err != nil {
			return err
		}
	}
	p.undecided, p.undecidedBytes = nil, 0
	return nil
}

// takeClaimsOfPods takes the claims that pods wait for, even when the backup's label selector does
// not match them, and their persistent volumes. After it all are known.
func (p *podVolumes) takeClaimsOfPods(ctx context.Context) error {
	missing := map[types.NamespacedName]string{}
	for _, undecided := range p.undecided {
		of := undecided.held
		for _, name := range of.claims {
			key := types.NamespacedName{Namespace: of.ref.Namespace, Name: name}
			if p.claims[key] == nil && missing[key] == "" {
				missing[key] = "the pod " + of.ref.Name + " has it as a volume"
			}
		}
	}
	r, found := p.discovered.find(claimsResource)
	if !found || !p.wanted.IncludedRelated(claimsResource, true) {
		for key := range missing {
			p.claims[key] = &claim{unusable: "the backup excludes its claim", known: true}
		}
		return nil
	}
	if err := p.takeClaims(ctx, r, missing, expected, func(types.NamespacedName, *head) bool { return true }); err != nil {
		return err
	}
	for key := range missing {
		p.claims[key] = unreadClaim()
	}
	return p.settleClaims(ctx)
}
