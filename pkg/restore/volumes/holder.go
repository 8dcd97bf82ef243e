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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	// holderPrefix begins the names of holders only.
	holderPrefix = "holdfast-restore-"
	// startTimeout bounds a pod's start, with provisioning and new nodes.
	startTimeout = 10 * time.Minute
	// firstLook is the delay of the first look at a waiting pod, recheck of others.
	firstLook    = 2 * time.Second
	retryRefused = 5 * time.Second
)

// holder returns the pod that holds a claim. It ends when the agent says that the data is complete,
// so a forgotten one frees its volume.
func (r *Restorer) holder(image string, claim Claim, live *corev1.PersistentVolumeClaim) (*corev1.Pod, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      r.holderNames(live)[max(claim.try, 1)-1],
			Namespace: live.Namespace,
			Labels: map[string]string{
				enginev1alpha1.LabelRestore:    string(r.run.UID),
				"app.kubernetes.io/managed-by": "holdfast",
				format.LabelExclude:            "true",
				"sidecar.istio.io/inject":      "false",
			},
			Annotations: map[string]string{
				"linkerd.io/inject": "disabled",
				"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
				"karpenter.sh/do-not-disrupt":                    "true",
			},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyOnFailure, // also after a restart of its node
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(int64(1)),
			SecurityContext:               &corev1.PodSecurityContext{},
			Volumes: []corev1.Volume{{Name: dataVolume, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: live.Name},
			}}},
		},
	}
	if claim.Pod != nil {
		// Some clusters allow pods of a namespace no other user.
		pod.Spec.SecurityContext.RunAsUser = userOf(claim.Pod)
		pod.Spec.Tolerations = slices.Clone(claim.Pod.Spec.Tolerations)
	}
	if claim.avoid != "" {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{claim.avoid},
			}}},
		}}}}
	}
	if _, err := restorewait.Add(pod, image, []string{dataVolume}, r.waitTimeout()); err != nil {
		return nil, err
	}
	container := pod.Spec.InitContainers[0]
	// The kubelet mounts what a container mounts.
	if isDevice(live) {
		restorewait.ServeDevice(&container, dataVolume, true)
	} else {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: dataVolume, MountPath: "/" + dataVolume, ReadOnly: true})
	}
	pod.Spec.InitContainers, pod.Spec.Containers = nil, []corev1.Container{container}
	return pod, nil
}

func (r *Restorer) fit(ctx context.Context, namespace string, container *corev1.Container, alone bool) error {
	ranges, err := r.Kube.CoreV1().LimitRanges(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("finding out which resources a container may have in %s: %w", namespace, err)
	}
	restorewait.Fit(container, ranges.Items, alone)
	return nil
}

func userOf(pod *corev1.Pod) *int64 {
	if of := pod.Spec.SecurityContext; of != nil && of.RunAsUser != nil {
		return of.RunAsUser
	}
	for _, c := range pod.Spec.Containers {
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			return c.SecurityContext.RunAsUser
		}
	}
	return nil
}

// hold returns a claim's holder when it runs: then the volume is mounted.
func (r *Restorer) hold(ctx context.Context, claim Claim, live *corev1.PersistentVolumeClaim) (*corev1.Pod, error) {
	image, err := r.Image(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding out which image the pod that holds the claim has: %w", err)
	}
	pod, err := r.holder(image, claim, live)
	if err != nil {
		return nil, err
	}
	if err := r.fit(ctx, live.Namespace, &pod.Spec.Containers[0], true); err != nil {
		return nil, err
	}
	if err := r.allowPull(ctx, live.Namespace, &pod.Spec); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if live.Spec.VolumeName == "" {
		// The holder's node decides where the volume is made.
		mates := matesOf(claim)
		if err := r.lockBinding(ctx, claim, mates); err != nil {
			return nil, err
		}
		defer r.unlockBinding(claim, mates)
		if err := r.place(ctx, pod, claim, mates); err != nil {
			return nil, err
		}
	}
	created, err := r.create(ctx, pod)
	if err != nil {
		return nil, err
	}
	if !holds(created, r.run.UID, live.Name) {
		return nil, fmt.Errorf("there is a pod %s that does not hold the claim: delete it, and restore again", created.Name)
	}
	return r.running(ctx, created)
}

// create creates or finds a holder, and retries when a quota refuses.
func (r *Restorer) create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	pods := r.pods.Pods(pod.Namespace)
	var waiting *waits.Wait
	defer func() { waiting.End() }()
	for {
		created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		switch {
		case err == nil:
			return created, nil
		case apierrors.IsAlreadyExists(err):
			found, err := r.find(ctx, pod.Namespace, pod.Name)
			if err != nil || found != nil && found.DeletionTimestamp == nil {
				return found, err
			}
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "violates PodSecurity") && restorewait.Restrict(&pod.Spec):
			continue
		case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsInternalError(err):
		default:
			return nil, fmt.Errorf("creating the pod that holds the claim while its data is written: %w", err)
		}
		if waiting == nil {
			waiting = waits.For(ctx, pod.Namespace, "")
		}
		waiting.Set(fmt.Sprintf("pod %s in %s to be created: %v", pod.Name, pod.Namespace, err))
		select {
		case <-r.Clock.After(retryRefused):
		case <-ctx.Done():
			return nil, fmt.Errorf("the pod that holds the claim could not be created for %s: %w", startTimeout, err)
		}
	}
}

// find returns a pod or nil, by a list: the restore may create pods, the controller may list them.
func (r *Restorer) find(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	list, err := r.Kube.CoreV1().Pods(namespace).List(ctx, named(name))
	if err != nil {
		return nil, fmt.Errorf("looking for pod %s/%s: %w", namespace, name, err)
	}
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
}

func holds(pod *corev1.Pod, restore types.UID, claim string) bool {
	return pod.Labels[enginev1alpha1.LabelRestore] == string(restore) && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == dataVolume && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim && !v.PersistentVolumeClaim.ReadOnly
	})
}

func waitVolume(pod *corev1.Pod) (string, error) {
	waiter, volume := restorewait.In(pod)
	if waiter == nil {
		return "", fmt.Errorf("pod %s/%s has no container that waits for its volumes", pod.Namespace, pod.Name)
	}
	return volume, nil
}

// running returns a pod when its waiting container runs or has ended.
func (r *Restorer) running(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return r.until(ctx, pod, func(live *corev1.Pod) (bool, error) {
		for _, statuses := range [][]corev1.ContainerStatus{live.Status.InitContainerStatuses, live.Status.ContainerStatuses} {
			for _, status := range statuses {
				if status.State.Running != nil || status.State.Terminated != nil || status.LastTerminationState.Terminated != nil {
					return live.Spec.NodeName != "", nil
				}
			}
		}
		if live.Status.Phase == corev1.PodFailed {
			return false, fmt.Errorf("pod %s failed before its volumes were there: %s", live.Name, live.Status.Message)
		}
		return false, nil
	})
}

// until returns a pod when the condition holds, by its events. If ctx ends before, the error says
// what it waits for.
func (r *Restorer) until(ctx context.Context, pod *corev1.Pod, condition func(*corev1.Pod) (bool, error)) (*corev1.Pod, error) {
	pods := r.Kube.CoreV1().Pods(pod.Namespace)
	last := pod
	watching, stop := context.WithCancel(ctx)
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = named(pod.Name).FieldSelector
			return pods.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = named(pod.Name).FieldSelector
			return pods.Watch(ctx, options)
		},
	}, r.Kube), &corev1.Pod{}, 0, cache.Indexers{})
	verdict := make(chan error, 1)
	// Events come one after the other.
	look := func(object any, deleted bool) {
		if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = tombstone.Obj
		}
		live, ok := object.(*corev1.Pod)
		if !ok || live.Name != pod.Name || len(verdict) > 0 {
			return
		}
		var done bool
		var err error
		switch {
		case live.UID != pod.UID:
			err = r.still(watching, pod)
		case deleted, live.DeletionTimestamp != nil:
			err = errPodGone
		default:
			last = live
			done, err = condition(live)
		}
		if done || err != nil {
			verdict <- err
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { look(object, false) },
		UpdateFunc: func(_, object any) { look(object, false) },
		DeleteFunc: func(object any) { look(object, true) },
	})
	if err != nil {
		stop()
		return nil, err
	}
	var running wait.Group
	running.StartWithContext(watching, informer.RunWithContext)
	if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) && len(informer.GetStore().ListKeys()) == 0 {
		err = r.still(ctx, pod)
	}
	if err == nil {
		err = r.verdict(ctx, pod, informer.GetStore(), verdict)
	}
	stop()
	running.Wait()
	switch {
	case err == nil:
		return last, nil
	case errors.Is(err, errPodGone):
		return nil, fmt.Errorf("pod %s was deleted before its volumes were restored: %w", pod.Name, errPodGone)
	case ctx.Err() != nil:
		return nil, notStartedError(fmt.Sprintf("pod %s did not start within %s%s", pod.Name, startTimeout, r.why(context.WithoutCancel(ctx), last)))
	}
	return nil, err
}

type notStartedError string

func (e notStartedError) Error() string { return string(e) }

// verdict returns the verdict about a pod, and notes what the pod waits for.
func (r *Restorer) verdict(ctx context.Context, pod *corev1.Pod, seen cache.Store, verdict <-chan error) error {
	text := fmt.Sprintf("pod %s in %s", pod.Name, pod.Namespace)
	waiting := waits.For(ctx, pod.Namespace, text)
	defer waiting.End()
	for next := firstLook; ; next = recheck {
		select {
		case err := <-verdict:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-r.Clock.After(next):
		}
		for _, object := range seen.List() {
			if live, ok := object.(*corev1.Pod); ok && live.UID == pod.UID {
				waiting.Set(text + r.why(ctx, live))
			}
		}
	}
}

// still fails if a pod is missing: a watch may begin before its creation.
func (r *Restorer) still(ctx context.Context, pod *corev1.Pod) error {
	found, err := r.find(ctx, pod.Namespace, pod.Name)
	if err == nil && (found == nil || found.UID != pod.UID) {
		err = errPodGone
	}
	return err
}

var errPodGone = errors.New("the pod is gone")

func (r *Restorer) why(ctx context.Context, pod *corev1.Pod) string {
	ctx, cancel := context.WithTimeout(ctx, recheck)
	defer cancel()
	text := ""
	if reason := waits.PodReason(pod); reason != "" {
		text = ": " + reason
	}
	// Only events say why a volume is not mounted or a claim not bound.
	if text == "" {
		text = r.warned(ctx, pod.Namespace, pod.UID)
	}
	for _, claim := range r.unbound(ctx, pod) {
		if warned := r.warned(ctx, claim.Namespace, claim.UID); warned != "" {
			text += "; claim " + claim.Name + warned
		}
	}
	return text
}

func (r *Restorer) unbound(ctx context.Context, pod *corev1.Pod) (claims []*corev1.PersistentVolumeClaim) {
	if pod.Spec.NodeName != "" {
		return nil
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := r.Kube.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			claims = append(claims, claim)
		}
	}
	return claims
}

func (r *Restorer) warned(ctx context.Context, namespace string, uid types.UID) string {
	list, err := r.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(),
	})
	if err != nil {
		return ""
	}
	text, at := "", time.Time{}
	for _, e := range list.Items {
		seen := e.LastTimestamp.Time
		if seen.IsZero() {
			seen = e.EventTime.Time
		}
		if e.InvolvedObject.UID == uid && e.Type == corev1.EventTypeWarning && !seen.Before(at) {
			text, at = ": "+e.Reason+": "+e.Message, seen
		}
	}
	return text
}

func (r *Restorer) release(ctx context.Context, live *corev1.PersistentVolumeClaim) error {
	list, err := r.Kube.CoreV1().Pods(live.Namespace).List(ctx, ofRun(r.run))
	if err != nil {
		return fmt.Errorf("looking for the pod that held the claim: %w", err)
	}
	var errs []error
	for i := range list.Items {
		if pod := &list.Items[i]; r.isHolder(pod.Name, live) && holds(pod, r.run.UID, live.Name) {
			errs = append(errs, r.removeHolder(ctx, pod))
		}
	}
	return errors.Join(errs...)
}

// holderNames returns the names of a claim's holders by try: one on a lost node may never be
// deleted.
func (r *Restorer) holderNames(live *corev1.PersistentVolumeClaim) []string {
	name := holderPrefix + digest(string(r.run.UID)+"/"+string(live.UID))
	return []string{name, name + "-2"}
}

// heldAnew continues another process's second try: the first holder may never be deleted, and must
// not be made again.
func (r *Restorer) heldAnew(ctx context.Context, claim *Claim, live *corev1.PersistentVolumeClaim) error {
	list, err := r.Kube.CoreV1().Pods(live.Namespace).List(ctx, ofRun(r.run))
	if err != nil {
		return fmt.Errorf("looking for the pod that holds the claim: %w", err)
	}
	names := r.holderNames(live)
	for i := range list.Items {
		pod := &list.Items[i]
		switch leaves := pod.DeletionTimestamp != nil; {
		case !holds(pod, r.run.UID, live.Name):
		case pod.Name == names[0] && leaves:
			claim.try, claim.avoid = tries, pod.Spec.NodeName
		case pod.Name == names[1] && !leaves:
			claim.try = tries
		}
	}
	return nil
}

func (r *Restorer) isHolder(name string, live *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(r.holderNames(live), name)
}
