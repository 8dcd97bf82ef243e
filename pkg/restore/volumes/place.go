// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/waits"
)

// A volume is made where its claim's first pod, the holder, is scheduled. So the holder has the
// workload's node selector and required node affinity, and runs where claims of one pod can be used
// together.

func matesOf(claim Claim) []string {
	if claim.Pod == nil {
		return nil
	}
	var mates []string
	for _, v := range claim.Pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName != claim.Name {
			mates = append(mates, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return mates
}

func (r *Restorer) place(ctx context.Context, pod *corev1.Pod, claim Claim, mates []string) error {
	var terms []corev1.NodeSelectorTerm
	if of := claim.Pod; of != nil && !pinned(of) {
		pod.Spec.NodeSelector = maps.Clone(of.Spec.NodeSelector)
		if a := of.Spec.Affinity; a != nil && a.NodeAffinity != nil {
			terms = both(terms, a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		}
	}
	for _, mate := range mates {
		required, err := r.reach(ctx, claim.Namespace, mate)
		if err != nil {
			return err
		}
		terms = both(terms, required)
	}
	if len(terms) > 0 {
		if pod.Spec.Affinity == nil {
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		}
		pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
	}
	return nil
}

// pinned reports whether a pod's controller chose its node, in the old cluster.
func pinned(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node")
}

// reach returns where a claim's volume can be used; nil is everywhere, or unknown.
func (r *Restorer) reach(ctx context.Context, namespace, claim string) (*corev1.NodeSelector, error) {
	live, err := r.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.Spec.VolumeName == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading claim %s, which is used together with it: %w", claim, err)
	}
	volume, err := r.Kube.CoreV1().PersistentVolumes().Get(ctx, live.Spec.VolumeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && volume.Spec.NodeAffinity == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the volume of claim %s, which is used together with it: %w", claim, err)
	}
	return volume.Spec.NodeAffinity.Required, nil
}

// maxTerms bounds the terms of an affinity; further ones are dropped.
const maxTerms = 100

// both returns terms that fulfil one of terms and one of selector's.
func both(terms []corev1.NodeSelectorTerm, selector *corev1.NodeSelector) []corev1.NodeSelectorTerm {
	switch {
	case selector == nil || len(selector.NodeSelectorTerms) == 0, len(terms)*len(selector.NodeSelectorTerms) > maxTerms:
		return terms
	case len(terms) == 0:
		return slices.Clone(selector.NodeSelectorTerms)
	}
	var product []corev1.NodeSelectorTerm
	for _, a := range terms {
		for _, b := range selector.NodeSelectorTerms {
			product = append(product, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(a.MatchExpressions, b.MatchExpressions),
				MatchFields:      slices.Concat(a.MatchFields, b.MatchFields),
			})
		}
	}
	return product
}

// lockBinding waits until this claim, its mates and claims used with them are not being bound.
func (r *Restorer) lockBinding(ctx context.Context, claim Claim, mates []string) error {
	waiting := waits.For(ctx, claim.Namespace, fmt.Sprintf("claims that are used together with %s in %s to be bound", claim.Name, claim.Namespace))
	defer waiting.End()
	for {
		r.mu.Lock()
		free, changed := true, r.change
		for _, name := range append(mates, claim.Name) {
			if _, taken := r.binding[claim.Namespace+"/"+name]; taken {
				free = false
			}
		}
		if free {
			for _, name := range append(mates, claim.Name) {
				r.binding[claim.Namespace+"/"+name] = struct{}{}
			}
		}
		r.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("claims that are used together with it were not bound within %s", startTimeout)
		}
	}
}

func (r *Restorer) unlockBinding(claim Claim, mates []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range append(mates, claim.Name) {
		delete(r.binding, claim.Namespace+"/"+name)
	}
	r.wakeLocked()
}
