// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	recheck    = 10 * time.Second
	dataVolume = "data"
)

var errUnread = errors.New("reading the claim")

var errRemade = errors.New("the claim was deleted and made anew meanwhile: restore again")

// Restorer restores the data of one restore. It is safe for concurrent use.
type Restorer struct {
	*Volumes
	run   *enginev1alpha1.RestoreRun
	pods  corev1client.PodsGetter
	slots chan struct{}

	mu    sync.Mutex
	works map[string]*work
	// binding are claims that wait for a node, and their mates.
	binding map[string]struct{}
	// change is closed at the next change.
	change chan struct{}
}

type work struct {
	about     string
	uid       types.UID
	node      string
	submitted time.Time
	// begun is when the agent began; zero before, and when it must begin again.
	begun time.Time
	lost  bool
	// status is the agent's, or says that the volume was given up.
	status enginev1alpha1.VolumeRestoreStatus
}

// Claim is a claim to restore data into.
type Claim struct {
	Namespace, Name string
	// Data is the backup's record of the volume.
	Data format.Volume
	// Pod is the backup's pod through which the volume was read, or nil: the claim's users may run
	// where it could.
	Pod *corev1.Pod
	// Paths are the files and folders to write; none is all. They are written through a pod that
	// uses the claim, if any.
	Paths []string
	// Provisioned says that the claim's volume is made with its data: nothing is written.
	Provisioned bool
	// Begin is called before the first write, except for paths through a pod that uses the claim.
	// If it fails, nothing is written. It may be called again. Optional.
	Begin func(ctx context.Context) error
	// Used is called when a pod uses the claim, so that nothing is written. Optional.
	Used func(ctx context.Context) error
	// Started is called with the name of a pod that started on the claim before its data was
	// complete; Claim still returns nil. Optional.
	Started func(pod string)

	// try counts the holders; avoid is a failed one's node.
	try   int
	avoid string
}

// Claim returns nil when a claim's data is complete. After an error its users would start on
// incomplete data. It may be called again, also for the same claim. When ctx ends, writes continue
// until End or another process's Claim.
func (r *Restorer) Claim(ctx context.Context, claim Claim) error {
	if err := r.claim(ctx, claim); err != nil {
		return fmt.Errorf("the data of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// tries bounds a claim's holders, when its holder or its node's agent is lost.
const tries = 2

type lostError string

func (e lostError) Error() string { return string(e) }

func (r *Restorer) claim(ctx context.Context, claim Claim) error {
	if claim.Provisioned {
		live, err := r.live(ctx, claim)
		if err != nil {
			return err
		}
		claim.try = 1
		return r.provisioned(ctx, claim, live)
	}
	if claim.Data.Device && len(claim.Paths) > 0 {
		return errors.New("the volume is a block device, which is restored as a whole: leave out paths")
	}
	if err := r.readable(ctx, claim.Data); err != nil {
		return err
	}
	for claim.try = 1; ; claim.try++ {
		lost, err := r.tryClaim(ctx, &claim)
		if !lost || claim.try == tries || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Info("The data of a claim is written anew, since its node or the pod that held it went away", "claim", klog.KRef(claim.Namespace, claim.Name), "try", claim.try, "err", err)
	}
}

// tryClaim returns lost if the volume may be requested again: nothing of it is left.
func (r *Restorer) tryClaim(ctx context.Context, claim *Claim) (lost bool, err error) {
	live, err := r.live(ctx, *claim)
	if err != nil {
		return false, err
	}
	name := r.recordName(string(live.UID))
	record, err := r.records.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		record = nil
	case err != nil:
		return false, fmt.Errorf("reading VolumeRestore %s: %w", name, err)
	case record.Status.Phase.Done():
		r.know(record, claimText(*claim))
		r.tellStarted(ctx, *claim, live, record, record.Status)
		return false, errors.Join(outcome(record.Status), r.release(ctx, live))
	}
	if record == nil && claim.try == 1 {
		if err := r.heldAnew(ctx, claim, live); err != nil {
			return false, err
		}
	}
	turn := waits.For(ctx, claim.Namespace, fmt.Sprintf("claim %s in %s: its turn, after other claims of the restore", claim.Name, claim.Namespace))
	defer turn.End()
	select {
	case r.slots <- struct{}{}:
		turn.End()
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if record == nil {
		if err := r.awaitOthers(ctx, live); err != nil {
			return false, err
		}
		user, err := r.user(ctx, live)
		switch {
		case err != nil:
			return false, err
		case user != nil && len(claim.Paths) == 0:
			err := fmt.Errorf("the pod %s uses the claim: scale down what it belongs to, or delete it, and restore again, with existingVolumePolicy: overwrite or replace if what it has written may go", user.Name)
			if claim.Used != nil {
				err = errors.Join(err, claim.Used(ctx))
			}
			return false, err
		case user != nil:
			again, err := r.live(ctx, *claim)
			if err == nil && again.UID != live.UID {
				err = errRemade
			}
			if err != nil {
				return false, err
			}
			return false, r.intoPod(ctx, name, *claim, again, user)
		}
		holder, err := r.hold(ctx, *claim, live)
		if err != nil {
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			return errors.Is(err, errPodGone), errors.Join(err, r.release(ctx, live))
		}
		held := live.UID
		if live, err = r.live(ctx, *claim); err != nil {
			return false, err
		}
		if live.UID != held {
			return false, errRemade
		}
		if claim.Begin != nil {
			if err := claim.Begin(ctx); err != nil {
				return false, errors.Join(err, r.release(ctx, live))
			}
		}
		if record, err = r.submit(ctx, name, holder, claim.Data, dataVolume, live, claim.Paths); err != nil {
			return false, err
		}
	}
	r.know(record, claimText(*claim))
	if err := r.await(ctx, record, claimText(*claim)); err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		_, lost = errors.AsType[lostError](err)
		if lost = lost && r.isHolder(record.Spec.Pod.Name, live) || r.isUnheld(ctx, record, live); lost && claim.try < tries {
			claim.avoid, lost = record.Spec.Node, r.forget(ctx, record)
		}
		return lost, errors.Join(err, r.release(ctx, live))
	}
	r.mu.Lock()
	status := r.works[record.Name].status
	r.mu.Unlock()
	r.tellStarted(ctx, *claim, live, record, status)
	return false, r.release(ctx, live)
}

// isUnheld reports whether a record's holder was lost, as in a drain, and the agent has stopped.
func (r *Restorer) isUnheld(ctx context.Context, record *enginev1alpha1.VolumeRestore, live *corev1.PersistentVolumeClaim) bool {
	if !r.isHolder(record.Spec.Pod.Name, live) {
		return false
	}
	if said, err := r.records.Get(ctx, record.Name, metav1.GetOptions{}); err != nil || !said.Status.Phase.Done() {
		return false
	}
	pod, err := r.find(ctx, live.Namespace, record.Spec.Pod.Name)
	return err == nil && (pod == nil || pod.UID != record.Spec.Pod.UID || pod.DeletionTimestamp != nil)
}

// forget deletes a record that no agent works on, and reports whether it has. The agent said so, or
// is absent long enough, and stops when the record is missing.
func (r *Restorer) forget(ctx context.Context, record *enginev1alpha1.VolumeRestore) bool {
	r.mu.Lock()
	delete(r.works, record.Name)
	r.mu.Unlock()
	err := r.records.Delete(ctx, record.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &record.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Info("Removing a volume that was given up failed", "volumeRestore", record.Name, "err", err)
		r.know(record, "a volume that was given up")
		return false
	}
	return true
}

func (r *Restorer) readable(ctx context.Context, data format.Volume) error {
	if !cache.WaitForCacheSync(ctx.Done(), r.synced) {
		return ctx.Err()
	}
	if data.Status.Phase != enginev1alpha1.VolumePhaseCompleted || data.Status.SnapshotID == "" {
		why := ""
		if data.Status.Message != "" {
			why = ": " + data.Status.Message
		}
		return errors.New("is not in the backup" + why)
	}
	waiting := waits.For(ctx, data.Pod.Namespace, fmt.Sprintf("the repository of the volumes of %s", data.Pod.Namespace))
	defer waiting.End()
	return r.Repository(ctx, data.Pod.Namespace, r.run.Spec.Backup.StorageLocation)
}

func (r *Restorer) live(ctx context.Context, claim Claim) (*corev1.PersistentVolumeClaim, error) {
	live, err := r.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errors.New("the claim does not exist")
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errUnread, err)
	case live.DeletionTimestamp != nil:
		return nil, errors.New("the claim is being deleted")
	case !claim.Provisioned && isDevice(live) != claim.Data.Device:
		return nil, fmt.Errorf("the claim has the mode %s, and the volume in the backup has not: leave its mode as it was", ptr.Deref(live.Spec.VolumeMode, corev1.PersistentVolumeFilesystem))
	}
	return live, nil
}

func isDevice(claim *corev1.PersistentVolumeClaim) bool {
	return ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
}

func (r *Restorer) intoPod(ctx context.Context, name string, claim Claim, live *corev1.PersistentVolumeClaim, pod *corev1.Pod) error {
	if pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("the pod %s uses the claim, and does not run yet: restore again when it does", pod.Name)
	}
	record, err := r.submit(ctx, name, pod, claim.Data, volumeOf(pod, live.Name), live, claim.Paths)
	if err != nil {
		return err
	}
	r.know(record, claimText(claim))
	return r.await(ctx, record, claimText(claim))
}

func (r *Restorer) recordName(target string) string {
	return r.run.Name + "-" + digest(string(r.run.UID)+"/"+target)
}

func digest(target string) string {
	sum := sha256.Sum256([]byte(target))
	return hex.EncodeToString(sum[:8])
}

func (r *Restorer) submit(ctx context.Context, name string, pod *corev1.Pod, data format.Volume, volume string, claim *corev1.PersistentVolumeClaim, paths []string) (*enginev1alpha1.VolumeRestore, error) {
	waits, err := waitVolume(pod)
	switch {
	case len(paths) > 0 && !strings.HasPrefix(pod.Name, holderPrefix):
		waits = ""
	case err != nil:
		return nil, err
	}
	var persistentVolume, hostPath, device string
	if claim != nil && isDevice(claim) {
		device = waits
	}
	if claim != nil {
		persistentVolume = claim.Spec.VolumeName
		if hostPath, err = r.hostPath(ctx, claim, pod.Spec.NodeName); err != nil {
			return nil, err
		}
	}
	location := r.run.Spec.Backup.StorageLocation
	record := &enginev1alpha1.VolumeRestore{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				enginev1alpha1.LabelRestore: string(r.run.UID),
				enginev1alpha1.LabelNode:    enginev1alpha1.NodeLabel(pod.Spec.NodeName),
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.run, enginev1alpha1.SchemeGroupVersion.WithKind("RestoreRun"))},
		},
		Spec: enginev1alpha1.VolumeRestoreSpec{
			Node:                  pod.Spec.NodeName,
			Pod:                   enginev1alpha1.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Volume:                volume,
			PersistentVolume:      persistentVolume,
			HostPath:              hostPath,
			Device:                device,
			BackupStorageLocation: location,
			Repository:            enginev1alpha1.RepositoryName(data.Pod.Namespace, location),
			SnapshotID:            data.Status.SnapshotID,
			WaitVolume:            waits,
			Replace:               r.run.Spec.Restore.ExistingVolumePolicy == v1alpha1.ExistingVolumeReplace && len(paths) == 0,
			Paths:                 paths,
		},
	}
	created, err := r.records.Create(ctx, record, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // by another process, or an earlier answer was lost
		created, err = r.records.Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("asking the agent of node %s for volume %s of pod %s/%s: %w", pod.Spec.NodeName, volume, pod.Namespace, pod.Name, err)
	}
	return created, nil
}

// hostPath returns the node path of a claim's persistent volume of that type, or "". The kubelet
// checks the binding only of other volumes: an unbound claim names any volume, and a pod any node.
func (r *Restorer) hostPath(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) (string, error) {
	if claim.Spec.VolumeName == "" {
		return "", nil
	}
	volume, err := r.Kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && volume.Spec.HostPath == nil:
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading the persistent volume of the claim: %w", err)
	}
	ref := volume.Spec.ClaimRef
	if claim.Status.Phase != corev1.ClaimBound || ref == nil || ref.UID != claim.UID || ref.Namespace != claim.Namespace || ref.Name != claim.Name {
		return "", fmt.Errorf("the claim is not bound to the persistent volume %s that it names", volume.Name)
	}
	of, err := r.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading the pod's node: %w", err)
	}
	switch on, err := hostpath.On(volume.Spec.NodeAffinity, of); {
	case err != nil:
		return "", err
	case !on:
		return "", fmt.Errorf("the persistent volume %s is a folder of another node than %s, where the pod is", volume.Name, node)
	}
	return volume.Spec.HostPath.Path, nil
}

// know records a volume before its events come.
func (r *Restorer) know(record *enginev1alpha1.VolumeRestore, about string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.works[record.Name]
	if w == nil || w.uid != record.UID {
		w = &work{about: about, uid: record.UID, node: record.Spec.Node, submitted: r.Clock.Now()}
		r.works[record.Name] = w
	}
	r.noteLocked(w, record)
	// The informer may have seen it before.
	if seen, err := r.RecordInformer.Lister().VolumeRestores(r.Namespace).Get(record.Name); err == nil && seen.UID == record.UID {
		r.noteLocked(w, seen)
	}
}

func (r *Restorer) observe(record *enginev1alpha1.VolumeRestore, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakeLocked()
	w := r.works[record.Name]
	if w == nil || w.uid != record.UID {
		return
	}
	r.noteLocked(w, record)
	if deleted && !w.status.Phase.Done() {
		w.status.Phase, w.status.Message = enginev1alpha1.VolumePhaseFailed, "the VolumeRestore was deleted before it had ended"
	}
}

// noteLocked takes over a status, unless the volume has ended or was given up.
func (r *Restorer) noteLocked(w *work, record *enginev1alpha1.VolumeRestore) {
	if w.status.Phase.Done() {
		return
	}
	w.status = *record.Status.DeepCopy()
	switch {
	case w.status.Phase != enginev1alpha1.VolumePhaseInProgress:
		w.begun = time.Time{}
	case w.begun.IsZero():
		w.begun = r.Clock.Now()
	}
}

func (r *Restorer) wakeLocked() {
	close(r.change)
	r.change = make(chan struct{})
}

func claimText(claim Claim) string {
	return fmt.Sprintf("the data of claim %s in %s", claim.Name, claim.Namespace)
}

func (r *Restorer) whatFor(w *work, volume string) string {
	said := ""
	if w.status.Message != "" {
		said = ": it " + w.status.Message
	}
	switch {
	case r.Agents.Absence(w.node, w.submitted) >= r.AgentTimeout/3:
		return fmt.Sprintf("%s: nothing is heard of the agent of node %s", volume, w.node)
	case w.begun.IsZero():
		return fmt.Sprintf("%s: the agent of node %s has not begun%s", volume, w.node, said)
	}
	return fmt.Sprintf("%s, which the agent of node %s writes", volume, w.node)
}

// await returns when a record has ended. It gives up and stops a volume whose node has no working
// agent. volume describes the wait.
func (r *Restorer) await(ctx context.Context, record *enginev1alpha1.VolumeRestore, volume string) error {
	waiting := waits.For(ctx, record.Spec.Pod.Namespace, volume)
	defer waiting.End()
	for {
		r.mu.Lock()
		w := r.works[record.Name]
		waiting.Set(r.whatFor(w, volume))
		next, failure := time.Duration(0), ""
		if !w.status.Phase.Done() {
			if next, w.lost, failure = r.judge(w); failure != "" {
				w.status.Phase, w.status.Message = enginev1alpha1.VolumePhaseFailed, failure
			}
		}
		status, lost, changed := w.status, w.lost, r.change
		r.mu.Unlock()
		if status.Phase.Done() {
			if failure != "" {
				// If this fails, End does it.
				if err := r.abandon(ctx, record.Name); err != nil {
					klog.FromContext(ctx).Info("Stopping a volume that was given up failed", "volumeRestore", record.Name, "err", err)
				}
			}
			if err := outcome(status); err == nil || !lost {
				return err
			}
			return lostError(status.Message)
		}
		select {
		case <-changed:
		case <-r.Clock.After(min(next, recheck)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// abandon stops a given-up volume, since others wait for its slot.
func (r *Restorer) abandon(ctx context.Context, name string) error {
	for range 3 { // its agent writes to the record, too
		record, err := r.records.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && record.Spec.Cancel {
			return nil
		}
		if err != nil {
			return err
		}
		if stopped, err := r.stop(ctx, record); err != nil || stopped {
			return err
		}
	}
	return nil
}

func outcome(status enginev1alpha1.VolumeRestoreStatus) error {
	switch {
	case status.Phase == enginev1alpha1.VolumePhaseCompleted:
		return nil
	case status.Message == "":
		return errors.New("could not be restored, and nobody knows why")
	}
	return errors.New(status.Message)
}

// judge returns the time until the next look at a volume, or why it is given up.
func (r *Restorer) judge(w *work) (left time.Duration, lost bool, failure string) {
	absence := r.Agents.Absence(w.node, w.submitted)
	switch {
	case r.Agents.NodeGone(w.node, w.submitted):
		return 0, true, fmt.Sprintf("the node %q does not exist any more", w.node)
	case absence >= r.AgentTimeout:
		return 0, true, fmt.Sprintf("node %q has had no agent for %s: is the pod of the DaemonSet holdfast-node-agent running there?", w.node, absence.Round(time.Second))
	}
	begun, now := !w.begun.IsZero(), r.Clock.Now()
	idle, busy := r.Agents.Idle(w.node, w.submitted, now)
	switch {
	case begun:
		left = r.VolumeTimeout - now.Sub(w.begun)
	case busy: // time of the running one, and for stopping it
		left = 2*r.VolumeTimeout + r.AgentTimeout - idle
	default:
		left = r.VolumeTimeout - idle
	}
	switch {
	case left > 0:
		return min(left, r.AgentTimeout-absence), false, ""
	case begun:
		return 0, false, fmt.Sprintf("the volume was not restored within %s after that had begun: if its data needs longer, raise --pod-volume-timeout of the controller", r.VolumeTimeout)
	}
	why := ""
	if w.status.Message != "" {
		why = ": it " + w.status.Message
	}
	return 0, false, fmt.Sprintf("the restore has not begun, and the agent of node %q has begun and ended no other one for %s%s", w.node, idle.Round(time.Second), why)
}

// Warnings returns the agents' messages about complete volumes, sorted, as files whose owner could
// not be set.
func (r *Restorer) Warnings() (texts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.works {
		if w.status.Phase == enginev1alpha1.VolumePhaseCompleted && w.status.Message != "" {
			texts = append(texts, w.about+": "+w.status.Message)
		}
	}
	slices.Sort(texts)
	return texts
}

// Counts sums up the requested volumes.
func (r *Restorer) Counts() v1alpha1.RestoreVolumesProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sum v1alpha1.RestoreVolumesProgress
	for _, w := range r.works {
		sum.Total++
		switch w.status.Phase {
		case enginev1alpha1.VolumePhaseCompleted:
			sum.Completed++
		case enginev1alpha1.VolumePhaseFailed:
			sum.Failed++
		}
		sum.TotalBytes += w.status.Progress.TotalBytes
		sum.BytesDone += w.status.Progress.BytesDone
	}
	return sum
}
