// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// Hold makes a pod, before its creation, wait for these volumes without a claim, which Pod then
// brings. Its label leads to it if the restore ends without.
func (r *Restorer) Hold(ctx context.Context, pod *unstructured.Unstructured, data []format.Volume) error {
	image, err := r.Image(ctx)
	if err != nil {
		return fmt.Errorf("finding out which image the container has that waits for the volumes: %w", err)
	}
	var typed corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pod.Object, &typed); err != nil {
		return fmt.Errorf("reading the pod: %w", err)
	}
	if _, err := restorewait.Add(&typed, image, namesOf(data), r.waitTimeout()); err != nil {
		return err
	}
	if err := r.fit(ctx, pod.GetNamespace(), &typed.Spec.InitContainers[0], false); err != nil {
		return err
	}
	if err := r.allowPull(ctx, pod.GetNamespace(), &typed.Spec); err != nil {
		return err
	}
	changed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: typed.Spec.InitContainers, Volumes: typed.Spec.Volumes, ImagePullSecrets: typed.Spec.ImagePullSecrets,
	}})
	if err != nil {
		return err
	}
	for _, field := range []string{"initContainers", "volumes", "imagePullSecrets"} {
		value, found, _ := unstructured.NestedSlice(changed, "spec", field)
		if !found {
			continue
		}
		if err := unstructured.SetNestedSlice(pod.Object, value, "spec", field); err != nil {
			return err
		}
	}
	labels := pod.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[enginev1alpha1.LabelWaits] = string(r.run.UID)
	pod.SetLabels(labels)
	return nil
}

// allowPull adds our image's pull secrets to a pod, with its account's: a pod that names any does
// not get those.
func (r *Restorer) allowPull(ctx context.Context, namespace string, spec *corev1.PodSpec) error {
	if len(r.PullSecrets) == 0 {
		return nil
	}
	if len(spec.ImagePullSecrets) == 0 {
		account := cmp.Or(spec.ServiceAccountName, "default")
		accounts, err := r.Kube.CoreV1().ServiceAccounts(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, account).String()})
		if err != nil {
			return fmt.Errorf("finding out which pull secrets the account %s/%s has: %w", namespace, account, err)
		}
		for i := range accounts.Items {
			if accounts.Items[i].Name == account {
				spec.ImagePullSecrets = slices.Clone(accounts.Items[i].ImagePullSecrets)
			}
		}
	}
	for _, name := range r.PullSecrets {
		if one := (corev1.LocalObjectReference{Name: name}); !slices.Contains(spec.ImagePullSecrets, one) {
			spec.ImagePullSecrets = append(spec.ImagePullSecrets, one)
		}
	}
	return nil
}

// waitTimeout bounds the wait of a pod that nothing is told. Volumes of a node take turns, and a
// pod that is not restarted fails for good; the requester gives up long before.
func (r *Restorer) waitTimeout() time.Duration {
	return max(restorewait.DefaultTimeout, 12*r.VolumeTimeout)
}

func namesOf(data []format.Volume) (names []string) {
	for i := range data {
		names = append(names, data[i].Name)
	}
	slices.Sort(names)
	return names
}

// Pod returns nil when the volumes prepared by Hold are complete and the pod continues. After an
// error it does not start.
func (r *Restorer) Pod(ctx context.Context, namespace, name string, data []format.Volume) error {
	if err := r.pod(ctx, namespace, name, data); err != nil {
		return fmt.Errorf("the volumes of pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

func (r *Restorer) pod(ctx context.Context, namespace, name string, data []format.Volume) error {
	pod, err := r.find(ctx, namespace, name)
	switch {
	case err != nil:
		return err
	case pod == nil:
		return errors.New("the pod does not exist")
	}
	// The pod was restored without other volumes; one may have had the name of its wait volume.
	waiter, _ := restorewait.In(pod)
	data = slices.DeleteFunc(slices.Clone(data), func(volume format.Volume) bool {
		if waiter != nil {
			return !slices.Contains(waiter.Args, "--volume="+volume.Name)
		}
		return !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume.Name })
	})
	if len(data) == 0 {
		return nil
	}
	if _, err := waitVolume(pod); err != nil {
		return err
	}
	for i := range data {
		if err := r.readable(ctx, data[i]); err != nil {
			return fmt.Errorf("volume %s: %w", data[i].Name, err)
		}
	}
	if goesOn(pod) {
		return nil // an earlier process has done it
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if pod, err = r.running(starting, pod); err != nil {
		return err
	}
	var records []*enginev1alpha1.VolumeRestore
	for i := range data {
		name := r.recordName(string(pod.UID) + "/" + data[i].Name)
		record, err := r.records.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			var claim *corev1.PersistentVolumeClaim
			if claim, err = r.ephemeral(ctx, pod, data[i].Name); err == nil {
				record, err = r.submit(ctx, name, pod, data[i], data[i].Name, claim, nil)
			}
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", data[i].Name, err)
		}
		r.know(record, podVolumeText(data[i].Name, pod))
		records = append(records, record)
	}
	var errs []error
	for i, record := range records {
		if err := r.await(ctx, record, podVolumeText(data[i].Name, pod)); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			errs = append(errs, fmt.Errorf("volume %s: %w", data[i].Name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	// The agent reads the records, which Forget deletes.
	going, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	_, err = r.until(going, pod, func(live *corev1.Pod) (bool, error) { return goesOn(live), nil })
	return err
}

func podVolumeText(volume string, pod *corev1.Pod) string {
	return fmt.Sprintf("volume %s of pod %s in %s", volume, pod.Name, pod.Namespace)
}

// ephemeral returns a generic ephemeral volume's claim, or nil: the agent finds the folder by the
// persistent volume.
func (r *Restorer) ephemeral(ctx context.Context, pod *corev1.Pod, volume string) (*corev1.PersistentVolumeClaim, error) {
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume && v.Ephemeral != nil }) {
		return nil, nil
	}
	claim, err := r.live(ctx, Claim{Namespace: pod.Namespace, Name: pod.Name + "-" + volume})
	if err != nil {
		return nil, err
	}
	if !metav1.IsControlledBy(claim, pod) || claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("the claim %s is not the pod's, or is not bound: delete the claim and the pod, and restore again", claim.Name)
	}
	return claim, nil
}

// goesOn reports whether the pod's waiting container has succeeded.
func goesOn(pod *corev1.Pod) bool {
	waiter, _ := restorewait.In(pod)
	for _, status := range pod.Status.InitContainerStatuses {
		if ended := status.State.Terminated; waiter != nil && status.Name == waiter.Name {
			return ended != nil && ended.ExitCode == 0
		}
	}
	return false
}
