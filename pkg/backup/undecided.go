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

// maxUndecidedBytes bounds the memory of waiting pods: about 7,000 usual ones.
var maxUndecidedBytes = 32 << 20

// podBytes and partBytes are the least memory of a pod and of each container or volume.
const podBytes, partBytes = 2 << 10, 512

// undecidedPod waits for its claims, or for an earlier pod.
type undecidedPod struct {
	pod  *corev1.Pod
	held *heldPod
}

func (p *podVolumes) waits(pod *heldPod) bool {
	return len(p.undecided) > 0 || slices.ContainsFunc(pod.claims, func(name string) bool {
		return p.claims[types.NamespacedName{Namespace: pod.ref.Namespace, Name: name}] == nil
	})
}

// postpone keeps a pod until all are read, so that a few lists find all claims. If too much is kept, it
// decides now.
func (p *podVolumes) postpone(ctx context.Context, pod *corev1.Pod, held *heldPod) error {
	pod = undecidedPart(pod)
	p.undecided = append(p.undecided, undecidedPod{pod, held})
	p.undecidedBytes += pod.Size() + podBytes + partBytes*(len(pod.Spec.Containers)+len(pod.Spec.Volumes))
	if p.undecidedBytes < maxUndecidedBytes {
		return ctx.Err()
	}
	return p.decideAll(ctx)
}

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

// takeClaimsOfPods takes waiting pods' claims and persistent volumes, even if labels don't match.
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
