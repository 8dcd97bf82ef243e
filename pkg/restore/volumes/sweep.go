// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

const sweepInterval = 10 * time.Minute

// givenUpMost bounds the records for one abandoned pod, which may name any number of volumes: one
// record is enough.
const givenUpMost = 100

// givenUpPerNamespace bounds such records in a namespace: any pod can have the label.
const givenUpPerNamespace = 200

// Run deletes, until ctx ends, holders and records of ended or deleted restores, and tells waiting
// pods: End may have been missed, or they had no node then.
func (v *Volumes) Run(ctx context.Context) {
	for {
		if err := v.sweep(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Removing what ended restores of volumes have left failed; it will be tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-v.Clock.After(sweepInterval):
		}
	}
}

func (v *Volumes) sweep(ctx context.Context) error {
	selector := metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRestore}
	records, err := v.records.List(ctx, selector)
	if err != nil {
		return fmt.Errorf("reading the records of restored volumes: %w", err)
	}
	pods, err := v.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, selector)
	if err != nil {
		return fmt.Errorf("looking for pods that hold claims: %w", err)
	}
	waiting, err := v.waiting(ctx, enginev1alpha1.LabelWaits)
	if err != nil {
		return err
	}
	if len(records.Items)+len(pods.Items)+len(waiting) == 0 {
		return nil
	}
	// Restores are read after their objects, so that none is missing.
	runs, err := v.Runs.RestoreRuns(v.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("reading which restores go on: %w", err)
	}
	live := sets.New[types.UID]()
	for i := range runs.Items {
		if !runs.Items[i].Status.Phase.Ended() {
			live.Insert(runs.Items[i].UID)
		}
	}
	var errs []error
	made, wanted := sets.New[string](), sets.New[string]()
	for i := range records.Items {
		made.Insert(records.Items[i].Name)
	}
	told := map[string]int{}
	for i := range waiting {
		namespace := waiting[i].Namespace
		if live.Has(types.UID(waiting[i].Labels[enginev1alpha1.LabelWaits])) || told[namespace] >= givenUpPerNamespace {
			continue
		}
		names, err := v.giveUp(ctx, &waiting[i], made)
		told[namespace] += len(names)
		wanted.Insert(names...)
		errs = append(errs, err)
	}
	for i := range records.Items {
		record := &records.Items[i]
		if wanted.Has(record.Name) || live.Has(types.UID(record.Labels[enginev1alpha1.LabelRestore])) {
			continue
		}
		err := v.records.Delete(ctx, record.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &record.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("removing VolumeRestore %s: %w", record.Name, err))
		}
	}
	for i := range pods.Items {
		if !live.Has(types.UID(pods.Items[i].Labels[enginev1alpha1.LabelRestore])) {
			errs = append(errs, v.removeHolder(ctx, &pods.Items[i]))
		}
	}
	return errors.Join(errs...)
}

// waiting returns the pending pods with a label, which wait for a restore, or are about to start.
func (v *Volumes) waiting(ctx context.Context, selector string) ([]corev1.Pod, error) {
	pending := fields.OneTermEqualSelector("status.phase", string(corev1.PodPending))
	list, err := v.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: selector, FieldSelector: pending.String()})
	if err != nil {
		return nil, fmt.Errorf("looking for pods that wait for restores which have ended: %w", err)
	}
	return list.Items, nil
}

// giveUp tells a pod that waits for an ended restore, by a cancelled record for each of its
// volumes. The records are kept while the pod waits, and are not made twice.
func (v *Volumes) giveUp(ctx context.Context, pod *corev1.Pod, made sets.Set[string]) (records []string, err error) {
	waiter, waits := restorewait.In(pod)
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil, nil // no restore has made it
	}
	if waiter == nil || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || goesOn(pod) {
		return nil, nil // it does not wait, or not yet
	}
	var errs []error
	for _, volume := range pod.Spec.Volumes {
		if !slices.Contains(waiter.Args, "--volume="+volume.Name) {
			continue
		}
		if len(records) == givenUpMost {
			break
		}
		record := &enginev1alpha1.VolumeRestore{
			ObjectMeta: metav1.ObjectMeta{
				Name: "given-up-" + digest(string(pod.UID)+"/"+volume.Name),
				Labels: map[string]string{
					enginev1alpha1.LabelRestore: pod.Labels[enginev1alpha1.LabelWaits],
					enginev1alpha1.LabelNode:    enginev1alpha1.NodeLabel(pod.Spec.NodeName),
				},
			},
			Spec: enginev1alpha1.VolumeRestoreSpec{
				Node:       pod.Spec.NodeName,
				Pod:        enginev1alpha1.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
				Volume:     volume.Name,
				WaitVolume: waits,
				Cancel:     true,
			},
		}
		records = append(records, record.Name)
		if made.Has(record.Name) {
			continue
		}
		if _, err := v.records.Create(ctx, record, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("telling pod %s/%s that its restore has ended without its volume %s: %w", pod.Namespace, pod.Name, volume.Name, err))
		}
	}
	return records, errors.Join(errs...)
}

func (v *Volumes) removeHolders(ctx context.Context, restore metav1.ListOptions) error {
	list, err := v.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, restore)
	if err != nil {
		return fmt.Errorf("looking for pods that hold claims: %w", err)
	}
	var errs []error
	for i := range list.Items {
		errs = append(errs, v.removeHolder(ctx, &list.Items[i]))
	}
	return errors.Join(errs...)
}

// removeHolder deletes a pod that holds a claim. A pod that only has our label stays: names can't
// be changed.
func (v *Volumes) removeHolder(ctx context.Context, pod *corev1.Pod) error {
	if !strings.HasPrefix(pod.Name, holderPrefix) {
		return nil
	}
	err := v.Removing.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing pod %s/%s, which held a claim: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
