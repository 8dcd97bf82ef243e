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

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// sweepInterval is how often it is looked for what restores have left behind.
const sweepInterval = 10 * time.Minute

// givenUpMost is of how many volumes a pod is told that its restore has ended without them. One is
// enough that was not told before, and whoever writes pods decides how many they say they wait for.
const givenUpMost = 100

// givenUpPerNamespace is of how many volumes the pods of a namespace are told at once: anybody who
// makes pods can give them the label of one that waits.
const givenUpPerNamespace = 200

// Run removes, until ctx ends, the holders and records of restores that have ended or were
// removed, and has the pods told that wait for these: their End may not have been reached,
// or the pods were on no node then.
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
	selector := metav1.ListOptions{LabelSelector: engine.LabelRestore}
	records, err := v.records.List(ctx, selector)
	if err != nil {
		return fmt.Errorf("reading the records of restored volumes: %w", err)
	}
	pods, err := v.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, selector)
	if err != nil {
		return fmt.Errorf("looking for pods that hold claims: %w", err)
	}
	waiting, err := v.waiting(ctx, engine.LabelWaits)
	if err != nil {
		return err
	}
	if len(records.Items)+len(pods.Items)+len(waiting) == 0 {
		return nil
	}
	// After what they have made, so that none is missing of which something was seen.
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
		if live.Has(types.UID(waiting[i].Labels[engine.LabelWaits])) || told[namespace] >= givenUpPerNamespace {
			continue // the next sweep tells those that are left
		}
		names, err := v.giveUp(ctx, &waiting[i], made)
		told[namespace] += len(names)
		wanted.Insert(names...)
		errs = append(errs, err)
	}
	for i := range records.Items {
		record := &records.Items[i]
		if wanted.Has(record.Name) || live.Has(types.UID(record.Labels[engine.LabelRestore])) {
			continue
		}
		err := v.records.Delete(ctx, record.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &record.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("removing VolumeRestore %s: %w", record.Name, err))
		}
	}
	for i := range pods.Items {
		if !live.Has(types.UID(pods.Items[i].Labels[engine.LabelRestore])) {
			errs = append(errs, v.removeHolder(ctx, &pods.Items[i]))
		}
	}
	return errors.Join(errs...)
}

// waiting are the pods of a label that may wait for a restore: of those that do not, only the
// ones that are about to start.
func (v *Volumes) waiting(ctx context.Context, selector string) ([]corev1.Pod, error) {
	pending := fields.OneTermEqualSelector("status.phase", string(corev1.PodPending))
	list, err := v.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: selector, FieldSelector: pending.String()})
	if err != nil {
		return nil, fmt.Errorf("looking for pods that wait for restores which have ended: %w", err)
	}
	return list.Items, nil
}

// giveUp has a pod told, if it waits for a restore that has ended, that this brings nothing
// any more: by a record for each of its volumes, which is cancelled from the start. Its agent
// says it when it works again, and the record is wanted for as long as the pod waits. Those that
// were made are not made again.
func (v *Volumes) giveUp(ctx context.Context, pod *corev1.Pod, made sets.Set[string]) (records []string, err error) {
	waiter, waits := restorewait.In(pod)
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil, nil // no restore has made it
	}
	if waiter == nil || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || goesOn(pod) {
		return nil, nil // it waits for nothing, or not yet
	}
	var errs []error
	for _, volume := range pod.Spec.Volumes {
		if !slices.Contains(waiter.Args, "--volume="+volume.Name) {
			continue
		}
		if len(records) == givenUpMost {
			break
		}
		record := &engine.VolumeRestore{
			ObjectMeta: metav1.ObjectMeta{
				Name: "given-up-" + digest(string(pod.UID)+"/"+volume.Name),
				Labels: map[string]string{
					engine.LabelRestore: pod.Labels[engine.LabelWaits],
					engine.LabelNode:    engine.NodeLabel(pod.Spec.NodeName),
				},
			},
			Spec: engine.VolumeRestoreSpec{
				Node:       pod.Spec.NodeName,
				Pod:        engine.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
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

// removeHolders removes the pods of a restore that hold claims.
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

// removeHolder removes a pod that holds a claim. Of pods that only have our label, it
// removes none: a name stays what it was.
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
