// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// Labels of all that a Mover makes. The sweep of stored snapshots does not see them.
const (
	LabelMoverCluster = "engine.holdfast.io/moves-for-cluster"
	LabelMoverBackup  = "engine.holdfast.io/moves-for-backup"
)

const (
	// ExposeTimeout bounds the start of a pod with a volume from a snapshot.
	ExposeTimeout = 30 * time.Minute
	// atOnceExposed bounds the volumes that a Mover exposes at a time: each takes an attachment of a node.
	atOnceExposed = 16
	// atOnceCut bounds the cuts of a driver at a time: storages limit the rate.
	atOnceCut = 8
	// whyInterval is the interval of questions why a pod does not run.
	whyInterval = 5 * time.Second
	// moverVolume is the name of the volume in a mover's pod.
	moverVolume = "data"
	// holdTime ends a mover's pod that was forgotten.
	holdTime = 7 * 24 * time.Hour
)

// Mover exposes cuts as volumes of pods in a namespace of its own, where agents read them. The stored
// snapshot has a second content there, which is Retain for ever.
type Mover struct {
	*Client
	kube        kubernetes.Interface
	namespace   string
	image       func(context.Context) (string, error)
	pullSecrets []string
	places      chan struct{}

	mu sync.Mutex
	// cutting bounds the cuts of each driver.
	cutting map[string]chan struct{}
}

// NewMover returns a Mover. image returns the program's own image.
func NewMover(client *Client, kube kubernetes.Interface, namespace string, image func(context.Context) (string, error), pullSecrets []string) *Mover {
	return &Mover{Client: client, kube: kube, namespace: namespace, image: image, pullSecrets: pullSecrets, places: make(chan struct{}, atOnceExposed), cutting: map[string]chan struct{}{}}
}

// Cut is Client.Cut, for a bounded number of a driver's volumes at a time. A cut that hooks enclose waits
// for no other: its pod is frozen, and its own timeout bounds that.
func (m *Mover) Cut(ctx context.Context, v Volume, report func(string)) (Taken, error) {
	if v.Attempt > 0 {
		return m.Client.Cut(ctx, v, report)
	}
	m.mu.Lock()
	if m.cutting[v.Driver] == nil {
		m.cutting[v.Driver] = make(chan struct{}, atOnceCut)
	}
	places := m.cutting[v.Driver]
	m.mu.Unlock()
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-ctx.Done():
		return Taken{}, context.Cause(ctx)
	}
	return m.Client.Cut(ctx, v, report)
}

// Exposed is a pod that mounts a cut.
type Exposed struct {
	Node             string
	Pod              types.UID
	PersistentVolume string
}

// Place waits until a volume may be exposed. The caller calls leave when it is hidden.
func (m *Mover) Place(ctx context.Context) (leave func(), err error) {
	select {
	case m.places <- struct{}{}:
		return func() { <-m.places }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Expose returns the running pod with a cut. It reports in words what it waits for. An exposure
// of an earlier attempt is found by its names.
func (m *Mover) Expose(ctx context.Context, v Volume, taken Taken, report func(string)) (Exposed, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ExposeTimeout, fmt.Errorf("not within %s", ExposeTimeout))
	defer cancel()
	said, pause, asked := "", time.Duration(0), time.Now()
	for {
		exposed, waitsFor, err := m.expose(ctx, &v, &taken)
		switch {
		case err == nil && waitsFor == "":
			return exposed, nil
		case err == nil && time.Since(asked) < whyInterval:
			waitsFor = said
		case err == nil:
			waitsFor, asked = waitsFor+m.why(ctx, v.name()), time.Now()
		case err != nil && !passing(err) && ctx.Err() == nil:
			return Exposed{}, fmt.Errorf("expose the snapshot of the claim %s/%s: %w", v.Namespace, v.Claim, err)
		case err != nil:
			waitsFor = err.Error()
		}
		if ctx.Err() == nil && waitsFor != said {
			if said = waitsFor; report != nil {
				report(said)
			}
		}
		if !m.pause(ctx, &pause, m.lastPause) {
			return Exposed{}, fmt.Errorf("expose the snapshot of the claim %s/%s: %w: it waited for %s", v.Namespace, v.Claim, context.Cause(ctx), said)
		}
	}
}

// expose makes what is missing, and looks at the pod.
func (m *Mover) expose(ctx context.Context, v *Volume, taken *Taken) (exposed Exposed, waitsFor string, err error) {
	pods := m.kube.CoreV1().Pods(m.namespace)
	pod, err := pods.Get(ctx, v.name(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if err = m.make(ctx, v, taken); err == nil {
			pod, err = pods.Get(ctx, v.name(), metav1.GetOptions{})
		}
	}
	if err != nil {
		return exposed, "", err
	}
	if pod.Labels[LabelMoverBackup] != string(v.Backup) || pod.DeletionTimestamp != nil {
		return exposed, "the deletion of the pod " + pod.Name, nil
	}
	claim, err := m.kube.CoreV1().PersistentVolumeClaims(m.namespace).Get(ctx, v.name(), metav1.GetOptions{})
	if err != nil {
		return exposed, "", err
	}
	running := slices.ContainsFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.State.Running != nil })
	switch {
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		return exposed, "", final("the pod %s/%s has ended: %s", pod.Namespace, pod.Name, cmp.Or(pod.Status.Message, "it was not to"))
	case !running || pod.Spec.NodeName == "" || claim.Spec.VolumeName == "":
		return exposed, "the pod " + pod.Name, nil
	}
	return Exposed{Node: pod.Spec.NodeName, Pod: pod.UID, PersistentVolume: claim.Spec.VolumeName}, "", nil
}

// make makes the content, the VolumeSnapshot, the claim and the pod, unless they exist.
func (m *Mover) make(ctx context.Context, v *Volume, taken *Taken) error {
	labels := map[string]string{LabelMoverCluster: m.clusterUID, LabelMoverBackup: string(v.Backup), "app.kubernetes.io/managed-by": "holdfast", format.LabelExclude: "true"}
	spread := map[string]any{}
	for key, value := range labels {
		spread[key] = value
	}
	content := map[string]any{
		"apiVersion": Version.String(), "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{"name": v.name(), "labels": spread},
		"spec": map[string]any{
			"driver": v.Driver, "deletionPolicy": Retain, "volumeSnapshotClassName": v.Class,
			"source":            map[string]any{"snapshotHandle": taken.Handle},
			"volumeSnapshotRef": map[string]any{"apiVersion": Version.String(), "kind": "VolumeSnapshot", "namespace": m.namespace, "name": v.name()},
		},
	}
	snapshot := map[string]any{
		"apiVersion": Version.String(), "kind": "VolumeSnapshot",
		"metadata": map[string]any{"name": v.name(), "namespace": m.namespace, "labels": spread},
		"spec":     map[string]any{"volumeSnapshotClassName": v.Class, "source": map[string]any{"volumeSnapshotContentName": v.name()}},
	}
	_, err := m.objects.Resource(Contents).Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) {
		_, err = m.objects.Resource(Snapshots).Namespace(m.namespace).Create(ctx, &unstructured.Unstructured{Object: snapshot}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	metadata := metav1.ObjectMeta{Name: v.name(), Namespace: m.namespace, Labels: labels}
	size := resource.NewQuantity(max(v.Size, taken.Size), resource.BinarySI)
	_, err = m.kube.CoreV1().PersistentVolumeClaims(m.namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metadata,
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &v.StorageClass,
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *size}},
			DataSource: &corev1.TypedLocalObjectReference{APIGroup: ptr.To(Version.Group), Kind: "VolumeSnapshot", Name: v.name()},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	pod, err := m.pod(ctx, v, metadata)
	if err == nil {
		_, err = m.kube.CoreV1().Pods(m.namespace).Create(ctx, pod, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// pod returns a pod without any privilege. Only its container mounts the volume as read-only, so that
// the driver can replay a journal.
func (m *Mover) pod(ctx context.Context, v *Volume, metadata metav1.ObjectMeta) (*corev1.Pod, error) {
	image, err := m.image(ctx)
	if err != nil {
		return nil, fmt.Errorf("find out which image the pod with the snapshot has: %w", err)
	}
	metadata.Annotations = map[string]string{
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
		"karpenter.sh/do-not-disrupt":                    "true",
	}
	pod := &corev1.Pod{ObjectMeta: metadata, Spec: corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyOnFailure,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		DNSPolicy:                     corev1.DNSDefault,
		TerminationGracePeriodSeconds: ptr.To(int64(1)),
		SecurityContext:               &corev1.PodSecurityContext{},
		// Where the volume can be used counts, not what else may run there.
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Volumes: []corev1.Volume{{Name: moverVolume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.name()},
		}}},
	}}
	for _, name := range m.pullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	if v.Nodes != nil && v.Nodes.Required != nil {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: v.Nodes.Required}}
	}
	if _, err := restorewait.Add(pod, image, []string{moverVolume}, holdTime); err != nil {
		return nil, err
	}
	container := pod.Spec.InitContainers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: moverVolume, MountPath: "/" + moverVolume, ReadOnly: true})
	pod.Spec.InitContainers, pod.Spec.Containers = nil, []corev1.Container{container}
	return pod, nil
}

// disposable has a volume deleted with its claim, also if its class says Retain. "" is no volume yet.
func (m *Mover) disposable(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	volumes := m.kube.CoreV1().PersistentVolumes()
	volume, err := volumes.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return err
	}
	if ref := volume.Spec.ClaimRef; ref == nil || ref.Namespace != m.namespace {
		return final("the PersistentVolume %s is not of a claim in %s", name, m.namespace)
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"persistentVolumeReclaimPolicy":%q}}`, volume.UID, volume.ResourceVersion, corev1.PersistentVolumeReclaimDelete)
	_, err = volumes.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// why says what a pod waits for: by its status, else by the events about it and its claim.
func (m *Mover) why(ctx context.Context, name string) string {
	pod, err := m.kube.CoreV1().Pods(m.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	if reason := waits.PodReason(pod); reason != "" {
		return ": " + reason
	}
	claim, err := m.kube.CoreV1().PersistentVolumeClaims(m.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	text, at := "", time.Time{}
	for _, uid := range []types.UID{pod.UID, claim.UID} {
		list, err := m.kube.CoreV1().Events(m.namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String()})
		if err != nil {
			continue
		}
		for i := range list.Items {
			e := &list.Items[i]
			seen := e.LastTimestamp.Time
			if seen.IsZero() {
				seen = e.EventTime.Time
			}
			if e.InvolvedObject.UID == uid && e.Type == corev1.EventTypeWarning && !seen.Before(at) {
				text, at = ": "+e.Reason+": "+e.Message, seen
			}
		}
	}
	return text
}

// Hide deletes the pod, the claim with its volume, the VolumeSnapshot and the content. The stored
// snapshot stays. It may be repeated, and reports whether all are gone.
func (m *Mover) Hide(ctx context.Context, v Volume) (gone bool, err error) {
	return m.hide(ctx, v.name())
}

func (m *Mover) hide(ctx context.Context, name string) (gone bool, err error) {
	gone = true
	leave := func(object metav1.Object, err error, remove func(metav1.DeleteOptions) error) error {
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case object.GetLabels()[LabelMoverCluster] != m.clusterUID:
			return nil
		}
		gone = false
		if object.GetDeletionTimestamp() != nil {
			return nil
		}
		uid := object.GetUID()
		err = remove(metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	pods, claims := m.kube.CoreV1().Pods(m.namespace), m.kube.CoreV1().PersistentVolumeClaims(m.namespace)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err := leave(pod, err, func(options metav1.DeleteOptions) error { return pods.Delete(ctx, name, options) }); err != nil {
		return false, err
	}
	claim, err := claims.Get(ctx, name, metav1.GetOptions{})
	if err := leave(claim, err, func(options metav1.DeleteOptions) error {
		if err := m.disposable(ctx, claim.Spec.VolumeName); err != nil {
			return err
		}
		return claims.Delete(ctx, name, options)
	}); err != nil || !gone {
		return false, err // the volume may be of the snapshot until it is deleted
	}
	snapshots := m.objects.Resource(Snapshots).Namespace(m.namespace)
	snapshot, err := snapshots.Get(ctx, name, metav1.GetOptions{})
	if err := leave(snapshot, err, func(options metav1.DeleteOptions) error { return snapshots.Delete(ctx, name, options) }); err != nil || !gone {
		return false, err
	}
	contents := m.objects.Resource(Contents)
	content, err := contents.Get(ctx, name, metav1.GetOptions{})
	err = leave(content, err, func(options metav1.DeleteOptions) error {
		// Without the annotation csi-snapshotter never lets go of it.
		patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q,"annotations":{%q:"yes"}}}`, content.GetUID(), content.GetResourceVersion(), annotationBeingDeleted)
		if _, err := contents.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
		return contents.Delete(ctx, name, options)
	})
	return gone, err
}

// SweepExposed hides what was exposed for backups that are not live. It reports whether all is gone.
func (m *Mover) SweepExposed(ctx context.Context, live func(backup types.UID) bool) (gone bool, err error) {
	if served, err := m.Served(ctx); err != nil || !served {
		return true, err
	}
	selector := LabelMoverCluster + "=" + m.clusterUID
	options := metav1.ListOptions{LabelSelector: selector}
	names := sets.New[string]()
	see := func(object metav1.Object) {
		if !live(types.UID(object.GetLabels()[LabelMoverBackup])) {
			names.Insert(object.GetName())
		}
	}
	contents, err := list[VolumeSnapshotContent](ctx, m.objects.Resource(Contents), selector)
	if err != nil {
		return false, err
	}
	taken, err := list[VolumeSnapshot](ctx, m.objects.Resource(Snapshots).Namespace(m.namespace), selector)
	if err != nil {
		return false, err
	}
	claims, err := m.kube.CoreV1().PersistentVolumeClaims(m.namespace).List(ctx, options)
	if err != nil {
		return false, err
	}
	pods, err := m.kube.CoreV1().Pods(m.namespace).List(ctx, options)
	if err != nil {
		return false, err
	}
	for i := range contents {
		see(&contents[i])
	}
	for i := range taken {
		see(&taken[i])
	}
	for i := range claims.Items {
		see(&claims.Items[i])
	}
	for i := range pods.Items {
		see(&pods.Items[i])
	}
	gone = true
	var failures []error
	for _, name := range sets.List(names) {
		is, err := m.hide(ctx, name)
		gone, failures = gone && is && err == nil, append(failures, err)
	}
	return gone, errors.Join(failures...)
}
