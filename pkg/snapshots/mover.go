// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// Labels of a Mover's objects, which the sweep of stored snapshots ignores.
const (
	LabelMoverCluster = "engine.holdfast.io/moves-for-cluster"
	LabelMoverBackup  = "engine.holdfast.io/moves-for-backup"
)

const (
	// ExposeTimeout bounds the start of a pod with a volume from a snapshot.
	ExposeTimeout  = 30 * time.Minute
	stuckAfter     = 10 * time.Minute // on one node, where another may do
	atOnceCut      = 8                // of a driver: storages limit the rate
	longestCut     = 10 * time.Minute
	whyInterval    = 5 * time.Second  // of questions why a pod does not run
	provisionTime  = 10 * time.Minute // after which a claim without a volume may be deleted
	remakeAfter    = 30 * time.Second // the least age of a failed pod that is made anew
	taintsInterval = time.Minute
	moverVolume    = "data"
	holdTime       = 7 * 24 * time.Hour // of a forgotten pod
)

// Mover exposes cuts to the agents, as volumes of pods in a namespace of its own. The stored snapshot has a second
// content there, which is always Retain.
type Mover struct {
	*Client
	kube        kubernetes.Interface
	namespace   string
	image       func(context.Context) (string, error)
	pullSecrets []string
	places      *places

	mu          sync.Mutex
	cutting     map[string]chan struct{}
	tolerated   []corev1.Toleration
	toleratedAt time.Time
}

// NewMover returns a Mover. image returns the program's own image, limits how many volumes each living agent moves
// at once; 0 is unknown.
func NewMover(client *Client, kube kubernetes.Interface, namespace string, image func(context.Context) (string, error), pullSecrets []string, limits func() []int) *Mover {
	return &Mover{Client: client, kube: kube, namespace: namespace, image: image, pullSecrets: pullSecrets, places: newPlaces(limits), cutting: map[string]chan struct{}{}}
}

// Cut is Client.Cut, for a bounded number of a driver's volumes. A cut between hooks waits for no other: its pod
// is frozen. A long cut gives its place to others, since a user chooses its timeout.
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
	case <-ctx.Done():
		return Taken{}, context.Cause(ctx)
	}
	leave := sync.OnceFunc(func() { <-places })
	defer time.AfterFunc(longestCut, leave).Stop()
	defer leave()
	return m.Client.Cut(ctx, v, report)
}

// Exposed is a pod that mounts a cut.
type Exposed struct {
	Node             string
	Pod              types.UID
	PersistentVolume string
	Device           string // of the pod that serves a block device, or ""
}

// Place waits until a cut may be exposed, and reports in words that it waits.
func (m *Mover) Place(ctx context.Context, v Volume, taken Taken, report func(string)) (Spot, error) {
	return m.places.wait(ctx, v.Driver, v.capacity(taken), report)
}

// Occupy takes the place of a volume that an earlier process has exposed.
func (m *Mover) Occupy(v Volume) Spot { return m.places.occupy(v.Driver) }

// StuckError says that a node has a pod with a cut, and does not run it. Another node may.
type StuckError struct {
	Node string
	Err  error
}

func (e StuckError) Error() string { return e.Err.Error() }

// Expose returns the running pod with a cut, also of an earlier attempt. It reports in words what it waits for. On a
// first try, a node that does not run the pod for stuckAfter is a StuckError.
func (m *Mover) Expose(ctx context.Context, v Volume, taken Taken, report func(string)) (Exposed, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ExposeTimeout, fmt.Errorf("not within %s", ExposeTimeout))
	defer cancel()
	said, pause, asked := "", time.Duration(0), time.Now()
	node, since := "", time.Time{}
	for {
		exposed, waitsFor, err := m.expose(ctx, &v, &taken)
		if err == nil && exposed.Node != node {
			node, since = exposed.Node, time.Now()
		}
		switch {
		case err == nil && waitsFor == "":
			return exposed, nil
		case err == nil && node != "" && v.Try < 2 && time.Since(since) > stuckAfter:
			waitsFor += m.why(ctx, v.exposure())
			return Exposed{}, StuckError{node, fmt.Errorf("expose the snapshot of the claim %s/%s: not within %s: it waited for %s", v.Namespace, v.Claim, stuckAfter, waitsFor)}
		case err == nil && time.Since(asked) < whyInterval:
			waitsFor = said
		case err == nil:
			waitsFor, asked = waitsFor+m.why(ctx, v.exposure()), time.Now()
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

// expose returns the pod's node also while it waits.
func (m *Mover) expose(ctx context.Context, v *Volume, taken *Taken) (exposed Exposed, waitsFor string, err error) {
	pods := m.kube.CoreV1().Pods(m.namespace)
	claim, err := m.kube.CoreV1().PersistentVolumeClaims(m.namespace).Get(ctx, v.exposure(), metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return exposed, "", err
	}
	pod, err := pods.Get(ctx, v.exposure(), metav1.GetOptions{})
	if missing || apierrors.IsNotFound(err) {
		waitsFor, err = m.make(ctx, v, taken)
		return exposed, cmp.Or(waitsFor, "the pod "+v.exposure()), err
	}
	if err != nil {
		return exposed, "", err
	}
	running := slices.ContainsFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.State.Running != nil })
	switch {
	case pod.DeletionTimestamp != nil || pod.Labels[LabelMoverBackup] != string(v.Backup):
		return exposed, "the deletion of the pod " + pod.Name, nil
	case cmp.Or(pod.Annotations[annotationHandle], taken.Handle) != taken.Handle:
		waitsFor, err = m.replace(ctx, v)
		return exposed, waitsFor, err
	case claim.DeletionTimestamp != nil:
		return exposed, "the deletion of the claim " + claim.Name, nil
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		if time.Since(pod.CreationTimestamp.Time) > remakeAfter {
			err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
			if apierrors.IsNotFound(err) {
				err = nil
			}
		}
		return exposed, fmt.Sprintf("the pod %s, which has ended, to be made anew: %s", pod.Name, cmp.Or(pod.Status.Message, pod.Status.Reason, "it was not to")), err
	case !running || pod.Spec.NodeName == "" || claim.Spec.VolumeName == "":
		return Exposed{Node: pod.Spec.NodeName}, "the pod " + pod.Name, nil
	}
	exposed = Exposed{Node: pod.Spec.NodeName, Pod: pod.UID, PersistentVolume: claim.Spec.VolumeName}
	if v.Device {
		_, exposed.Device = restorewait.In(pod)
	}
	return exposed, "", nil
}

// annotationHandle names the stored snapshot that a pod has.
const annotationHandle = "engine.holdfast.io/snapshot-handle"

func exposes(content *unstructured.Unstructured, taken *Taken) bool {
	handle, _, _ := unstructured.NestedString(content.Object, "spec", "source", "snapshotHandle")
	return handle == taken.Handle
}

// replace hides an earlier attempt's exposure of another cut.
func (m *Mover) replace(ctx context.Context, v *Volume) (waitsFor string, err error) {
	_, err = m.Hide(ctx, *v)
	return "the deletion of the pod, claim and VolumeSnapshot " + v.exposure() + ", which are of an earlier cut", err
}

// make makes missing objects. It waits for the deletion of hidden ones.
func (m *Mover) make(ctx context.Context, v *Volume, taken *Taken) (waitsFor string, err error) {
	labels := map[string]string{LabelMoverCluster: m.clusterUID, LabelMoverBackup: string(v.Backup), "app.kubernetes.io/managed-by": "holdfast", format.LabelExclude: "true"}
	spread := map[string]any{}
	for key, value := range labels {
		spread[key] = value
	}
	content, snapshot := static(m.namespace, v.exposure(), Found{Driver: v.Driver, Class: v.Class, Handle: taken.Handle, Mode: string(v.mode())}, spread)
	for _, made := range []struct {
		in     dynamic.ResourceInterface
		object *unstructured.Unstructured
	}{{m.objects.Resource(Contents), content}, {m.objects.Resource(Snapshots).Namespace(m.namespace), snapshot}} {
		object := made.object
		_, err := made.in.Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			var found *unstructured.Unstructured
			if found, err = made.in.Get(ctx, v.exposure(), metav1.GetOptions{}); apierrors.IsNotFound(err) || err == nil && found.GetDeletionTimestamp() != nil {
				return "the deletion of the " + object.GetKind() + " " + v.exposure(), nil
			}
			if err == nil && object == content && !exposes(found, taken) {
				return m.replace(ctx, v)
			}
		}
		if err != nil {
			return "", err
		}
	}
	metadata := metav1.ObjectMeta{Name: v.exposure(), Namespace: m.namespace, Labels: labels}
	size := resource.NewQuantity(v.capacity(*taken), resource.BinarySI)
	_, err = m.kube.CoreV1().PersistentVolumeClaims(m.namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metadata,
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &v.StorageClass, VolumeMode: ptr.To(v.mode()),
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *size}},
			DataSource: &corev1.TypedLocalObjectReference{APIGroup: ptr.To(Version.Group), Kind: "VolumeSnapshot", Name: v.exposure()},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	pod, err := m.pod(ctx, v, taken, metadata)
	if err == nil {
		_, err = m.kube.CoreV1().Pods(m.namespace).Create(ctx, pod, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return "", nil
	}
	return "", err
}

func (v *Volume) capacity(taken Taken) int64 { return max(v.Size, taken.Size) }

func (v *Volume) mode() corev1.PersistentVolumeMode {
	if v.Device {
		return corev1.PersistentVolumeBlock
	}
	return corev1.PersistentVolumeFilesystem
}

// pod returns a pod without any privilege. Only its container mounts the volume read-only, so that the driver can
// replay a journal.
func (m *Mover) pod(ctx context.Context, v *Volume, taken *Taken, metadata metav1.ObjectMeta) (*corev1.Pod, error) {
	image, err := m.image(ctx)
	if err != nil {
		return nil, fmt.Errorf("find out which image the pod with the snapshot has: %w", err)
	}
	tolerations, err := m.tolerations(ctx)
	if err != nil {
		return nil, err
	}
	metadata.Annotations = map[string]string{
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
		"karpenter.sh/do-not-disrupt":                    "true",
		annotationHandle:                                 taken.Handle,
	}
	pod := &corev1.Pod{ObjectMeta: metadata, Spec: corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyOnFailure,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		DNSPolicy:                     corev1.DNSDefault,
		TerminationGracePeriodSeconds: ptr.To(int64(1)),
		SecurityContext:               &corev1.PodSecurityContext{},
		Tolerations:                   tolerations,
		Affinity:                      &corev1.Affinity{PodAffinity: m.besideAgents()},
		Volumes: []corev1.Volume{{Name: moverVolume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.exposure()},
		}}},
	}}
	for _, name := range m.pullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	if v.Nodes != nil && v.Nodes.Required != nil || v.Avoid != "" {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	if v.Nodes != nil && v.Nodes.Required != nil {
		pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = v.Nodes.Required
	}
	if v.Avoid != "" {
		pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{v.Avoid},
			}}},
		}}
	}
	if _, err := restorewait.Add(pod, image, []string{moverVolume}, holdTime); err != nil {
		return nil, err
	}
	container := pod.Spec.InitContainers[0]
	if v.Device {
		restorewait.ServeDevice(&container, moverVolume, false)
	} else {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: moverVolume, MountPath: "/" + moverVolume, ReadOnly: true})
	}
	pod.Spec.InitContainers, pod.Spec.Containers = nil, []corev1.Container{container}
	return pod, nil
}

func (m *Mover) besideAgents() *corev1.PodAffinity {
	return &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/component": "node-agent"}},
		Namespaces:    []string{enginev1alpha1.AgentsNamespace(m.systemSpace)},
		TopologyKey:   corev1.LabelHostname,
	}}}
}

// leaving are taints of nodes that don't work or are removed: of Kubernetes, Karpenter and the cluster autoscaler.
var leaving = []string{
	"node.kubernetes.io", "node.cloudprovider.kubernetes.io", "karpenter.sh",
	"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler",
}

// tolerations returns tolerations of the nodes' present taints, as of a pool for databases, except leaving.
func (m *Mover) tolerations(ctx context.Context) ([]corev1.Toleration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.toleratedAt) < taintsInterval {
		return m.tolerated, nil
	}
	keys := sets.New[string]()
	options := metav1.ListOptions{ResourceVersion: "0"} // from memory
	nodes, err := m.kube.CoreV1().Nodes().List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("read the taints of the nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, taint := range nodes.Items[i].Spec.Taints {
			if domain, _, _ := strings.Cut(taint.Key, "/"); !slices.Contains(leaving, domain) {
				keys.Insert(taint.Key)
			}
		}
	}
	m.tolerated, m.toleratedAt = nil, time.Now()
	for _, key := range sets.List(keys) {
		m.tolerated = append(m.tolerated, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return m.tolerated, nil
}

// disposable has a volume, if any, deleted with its claim, even if its class says Retain.
func (m *Mover) disposable(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	volume, err := m.kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if ref := volume.Spec.ClaimRef; ref == nil || ref.Namespace != m.namespace {
		return final("the PersistentVolume %s is not of a claim in %s", name, m.namespace)
	}
	return m.dispose(ctx, volume)
}

func (m *Mover) dispose(ctx context.Context, volume *corev1.PersistentVolume) error {
	if volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"persistentVolumeReclaimPolicy":%q}}`, volume.UID, volume.ResourceVersion, corev1.PersistentVolumeReclaimDelete)
	_, err := m.kube.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// why returns what a pod waits for, by its status, or by events about it and its claim.
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

// Hide deletes the pod, the claim with its volume, the VolumeSnapshot and the content, also of earlier tries, and
// reports whether all are deleted. The stored snapshot stays. It may be repeated.
func (m *Mover) Hide(ctx context.Context, v Volume) (gone bool, err error) {
	names := []string{v.exposure()}
	if v.Try > 1 {
		v.Try = 0
		names = append(names, v.exposure())
	}
	for v.Attempt--; v.Attempt > 0; v.Attempt-- {
		names = append(names, v.exposure())
	}
	return m.HideAll(ctx, names)
}

// HideAll hides exposures by name, and reports whether all are deleted.
func (m *Mover) HideAll(ctx context.Context, names []string) (gone bool, err error) {
	gone = true
	var failures []error
	for _, name := range names {
		is, err := m.hide(ctx, name)
		gone, failures = gone && is && err == nil, append(failures, err)
	}
	return gone, errors.Join(failures...)
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
	if err == nil && claim.Labels[LabelMoverCluster] == m.clusterUID {
		if err := m.disposable(ctx, claim.Spec.VolumeName); err != nil { // it may be bound while it is deleted
			return false, err
		}
	}
	if err == nil && provisions(claim) {
		return false, nil
	}
	if err := leave(claim, err, func(options metav1.DeleteOptions) error { return claims.Delete(ctx, name, options) }); err != nil || !gone {
		return false, err // the volume may depend on the snapshot until then
	}
	return m.withdraw(ctx, m.namespace, name, LabelMoverCluster)
}

// provisions reports whether a provisioner may be making the volume of a claim. If the claim were deleted then, and
// the provisioner killed, the storage would have a volume without any object.
func provisions(claim *corev1.PersistentVolumeClaim) bool {
	begun := claim.Annotations["volume.kubernetes.io/storage-provisioner"] != "" // set by kube-controller-manager
	return begun && claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil && time.Since(claim.CreationTimestamp.Time) < provisionTime
}

// Exposed returns the backups of all exposures, by name.
func (m *Mover) Exposed(ctx context.Context) (map[string]types.UID, error) {
	if served, err := m.Served(ctx); err != nil || !served {
		return nil, err
	}
	selector := LabelMoverCluster + "=" + m.clusterUID
	options := metav1.ListOptions{LabelSelector: selector}
	of := map[string]types.UID{}
	see := func(object metav1.Object) {
		of[object.GetName()] = types.UID(object.GetLabels()[LabelMoverBackup])
	}
	contents, err := list[VolumeSnapshotContent](ctx, m.objects.Resource(Contents), selector)
	if err != nil {
		return nil, err
	}
	taken, err := list[VolumeSnapshot](ctx, m.objects.Resource(Snapshots).Namespace(m.namespace), selector)
	if err != nil {
		return nil, err
	}
	claims, err := m.kube.CoreV1().PersistentVolumeClaims(m.namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	pods, err := m.kube.CoreV1().Pods(m.namespace).List(ctx, options)
	if err != nil {
		return nil, err
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
	return of, nil
}

// DisposeVolumes has the volumes of all exposures deleted with their claims, also of hidden claims.
func (m *Mover) DisposeVolumes(ctx context.Context) error {
	options := metav1.ListOptions{Limit: pageSize}
	var failures []error
	for {
		page, err := m.kube.CoreV1().PersistentVolumes().List(ctx, options)
		if err != nil {
			return errors.Join(append(failures, err)...)
		}
		for i := range page.Items {
			if ref := page.Items[i].Spec.ClaimRef; ref != nil && ref.Namespace == m.namespace && ownName.MatchString(ref.Name) {
				failures = append(failures, m.dispose(ctx, &page.Items[i]))
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return errors.Join(failures...)
		}
	}
}
