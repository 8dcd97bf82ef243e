// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/repository"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	// volumeCheck is how often a run looks whether its volumes can still be waited for.
	volumeCheck = 10 * time.Second
	// warnAfter is the part of the time that a node may be without an agent after which
	// people are told.
	warnAfter = 3
)

// volumes hands the volumes of one run to the agents, as VolumeUploads. It
// implements backup.Volumes.
type volumes struct {
	run        *enginev1alpha1.BackupRun
	client     engineclient.VolumeUploadInterface
	repository func(ctx context.Context, volumeNamespace string) error
	clock      clock.Clock
	limits     volumeLimits
	nodes      nodes
	// warn tells people that a node has had no agent for a while.
	warn func(node string, absence time.Duration)

	mu       sync.Mutex
	records  map[string]*volumeRecord
	progress chan struct{} // closed at the next change
	// warned are the nodes of which people were told.
	warned sets.Set[string]
	// unsure is set when a volume may have been handed over of which there is no note.
	unsure bool
	// namespaces are those of all volumes that were submitted, also when no answer came.
	namespaces sets.Set[string]
}

// volumeLimits are how long volumes are waited for.
type volumeLimits struct {
	// work is how long an upload may take from its start. As long may a node begin and
	// end no upload at all while a volume waits there.
	work time.Duration
	// agent is how long a node may be without an agent.
	agent time.Duration
}

// nodes is what is known of the nodes.
type nodes interface {
	// Absence is how long there has been no sign of life of a node's agent, counted
	// from a time at the earliest. An agent that is absent for the limit works no more.
	Absence(node string, since time.Time) time.Duration
	// NodeGone reports whether there is no such node, given since when it was heard of.
	NodeGone(node string, since time.Time) bool
	// Active is when an upload began or ended on a node the last time.
	Active(node string) time.Time
}

type volumeRecord struct {
	volume    *format.Volume
	submitted time.Time
	// begun is when the agent was seen to have begun.
	begun  time.Time
	latest enginev1alpha1.VolumeUploadStatus
	// stopped is set when the agent works on it no more, or the record is gone.
	stopped bool
}

var _ backup.Volumes = &volumes{}

// Submit implements backup.Volumes.
func (v *volumes) Submit(ctx context.Context, volume *format.Volume) error {
	if err := v.repository(ctx, volume.Pod.Namespace); err != nil {
		return err
	}
	location := v.run.Spec.Backup.StorageLocation
	record := &enginev1alpha1.VolumeUpload{
		ObjectMeta: metav1.ObjectMeta{
			Name: recordName(v.run, volume),
			Labels: map[string]string{
				enginev1alpha1.LabelRun:  string(v.run.UID),
				enginev1alpha1.LabelNode: enginev1alpha1.NodeLabel(volume.Node),
			},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(v.run, enginev1alpha1.SchemeGroupVersion.WithKind("BackupRun")),
			},
		},
		Spec: enginev1alpha1.VolumeUploadSpec{
			Node:                  volume.Node,
			Pod:                   volume.Pod,
			Volume:                volume.Name,
			ClaimName:             volume.ClaimName,
			ClaimUID:              volume.ClaimUID,
			PersistentVolume:      volume.PersistentVolume,
			BackupStorageLocation: location,
			Repository:            enginev1alpha1.RepositoryName(volume.Pod.Namespace, location),
		},
	}
	if !v.add(record.Name, volume) {
		return nil
	}
	_, err := v.client.Create(ctx, record, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// An earlier answer was lost, and its events may have come before this call.
		var existing *enginev1alpha1.VolumeUpload
		if existing, err = v.client.Get(ctx, record.Name, metav1.GetOptions{}); err == nil {
			v.observe(existing)
		}
	}
	if err != nil {
		v.mu.Lock()
		delete(v.records, record.Name)
		v.unsure = true
		v.mu.Unlock()
		return fmt.Errorf("handing volume %s of pod %s/%s to its node: %w", volume.Name, volume.Pod.Namespace, volume.Pod.Name, err)
	}
	return nil
}

// add takes note of a volume, unless that was done before.
func (v *volumes) add(name string, volume *format.Volume) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.records[name] != nil {
		return false
	}
	v.namespaces.Insert(volume.Pod.Namespace)
	v.records[name] = &volumeRecord{volume: volume, submitted: v.clock.Now()}
	return true
}

// submitted are the namespaces of volumes that may have records, and snapshots.
func (v *volumes) submitted() sets.Set[string] {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.namespaces.Clone()
}

// recordName is the same for the same volume of the same run, so that a repeated
// submission makes no second record.
func recordName(run *enginev1alpha1.BackupRun, volume *format.Volume) string {
	sum := sha256.Sum256([]byte(string(run.UID) + "/" + string(volume.Pod.UID) + "/" + volume.Name))
	return run.Name + "-" + hex.EncodeToString(sum[:8])
}

// Wait implements backup.Volumes. A volume is waited for while its node has an agent
// that works.
func (v *volumes) Wait(ctx context.Context) error {
	for {
		v.mu.Lock()
		changed := v.progress
		ended := 0
		var absent map[string]time.Duration
		now := v.clock.Now()
		next := now.Add(volumeCheck)
		for _, record := range v.records {
			if !record.latest.Phase.Done() {
				failure, limit := v.judge(record, now)
				if failure != "" {
					record.latest = v.failed(record.latest, failure)
				} else if limit.Before(next) {
					next = limit
				}
			}
			if record.latest.Phase.Done() {
				ended++
				record.volume.Status = record.latest
			} else if absence := v.nodes.Absence(record.volume.Node, record.submitted); absence >= v.limits.agent/warnAfter && !v.warned.Has(record.volume.Node) {
				v.warned.Insert(record.volume.Node)
				if absent == nil {
					absent = map[string]time.Duration{}
				}
				absent[record.volume.Node] = absence
			}
		}
		done := ended == len(v.records)
		v.mu.Unlock()
		for node, absence := range absent {
			v.warn(node, absence)
		}
		if done {
			return nil
		}
		timer := v.clock.NewTimer(next.Sub(now))
		select {
		case <-changed:
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// judge says why a volume that is not done is given up, or when to look again.
func (v *volumes) judge(record *volumeRecord, now time.Time) (failure string, next time.Time) {
	node := record.volume.Node
	if v.nodes.NodeGone(node, record.submitted) {
		volumesGivenUp.WithLabelValues("NodeGone").Inc()
		return fmt.Sprintf("the node %q does not exist any more", node), next
	}
	absence := v.nodes.Absence(node, record.submitted)
	if absence >= v.limits.agent {
		volumesGivenUp.WithLabelValues("AgentGone").Inc()
		return fmt.Sprintf("node %q has had no agent for %s: is the pod of the DaemonSet holdfast-node-agent running there?", node, absence.Round(time.Second)), next
	}
	next = now.Add(v.limits.agent - absence)
	begun, since := !record.begun.IsZero(), record.begun
	if !begun {
		since = record.submitted
		if active := v.nodes.Active(node); active.After(since) {
			since = active
		}
	}
	deadline := since.Add(v.limits.work)
	switch {
	case now.Before(deadline):
		if deadline.Before(next) {
			next = deadline
		}
		return "", next
	case begun:
		volumesGivenUp.WithLabelValues("Timeout").Inc()
		return fmt.Sprintf("the volume was not uploaded within %s after its upload had begun", v.limits.work), next
	}
	volumesGivenUp.WithLabelValues("NeverBegun").Inc()
	why := ""
	if record.latest.Message != "" {
		why = ": it " + record.latest.Message
	}
	return fmt.Sprintf("the upload has not begun, and the agent of node %q has begun and ended no other one for %s%s", node, v.limits.work, why), next
}

// wake has those look again who wait for volumes.
func (v *volumes) wake() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wakeLocked()
}

func (v *volumes) wakeLocked() {
	close(v.progress)
	v.progress = make(chan struct{})
}

// changed is closed at the next change.
func (v *volumes) changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.progress
}

// haveStopped reports whether no agent works on a volume any more, as far as is known.
func (v *volumes) haveStopped() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, record := range v.records {
		if !record.stopped {
			return false
		}
	}
	return !v.unsure
}

// observe takes note of a record's state.
func (v *volumes) observe(record *enginev1alpha1.VolumeUpload) {
	v.update(record.Name, record.Status.Phase, func(enginev1alpha1.VolumeUploadStatus) enginev1alpha1.VolumeUploadStatus {
		return *record.Status.DeepCopy()
	})
}

// gone takes note that a record was deleted.
func (v *volumes) gone(name string) {
	v.update(name, enginev1alpha1.VolumePhaseFailed, func(latest enginev1alpha1.VolumeUploadStatus) enginev1alpha1.VolumeUploadStatus {
		return v.failed(latest, "the VolumeUpload was deleted before its upload had ended")
	})
}

// update takes note of the phase of a record. What was given up, or is done, stays so.
func (v *volumes) update(name string, phase enginev1alpha1.VolumePhase, change func(enginev1alpha1.VolumeUploadStatus) enginev1alpha1.VolumeUploadStatus) {
	v.mu.Lock()
	defer v.mu.Unlock()
	record, ok := v.records[name]
	if !ok || record.stopped {
		return
	}
	record.stopped = phase.Done()
	if phase == enginev1alpha1.VolumePhaseInProgress && record.begun.IsZero() {
		record.begun = v.clock.Now()
	}
	if !record.latest.Phase.Done() {
		record.latest = change(record.latest)
	}
	v.wakeLocked()
}

func (v *volumes) failed(status enginev1alpha1.VolumeUploadStatus, message string) enginev1alpha1.VolumeUploadStatus {
	now := metav1.NewTime(v.clock.Now())
	status.Phase = enginev1alpha1.VolumePhaseFailed
	status.Message = message
	status.CompletionTimestamp = &now
	return status
}

// counts sums up the volumes so far; nil while there are none.
func (v *volumes) counts() *v1alpha1.BackupVolumesProgress {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.records) == 0 {
		return nil
	}
	sum := &v1alpha1.BackupVolumesProgress{Total: int32(len(v.records))}
	for _, record := range v.records {
		switch record.latest.Phase {
		case enginev1alpha1.VolumePhaseCompleted:
			sum.Completed++
		case enginev1alpha1.VolumePhaseFailed:
			sum.Failed++
		}
		sum.TotalBytes += record.latest.Progress.TotalBytes
		sum.BytesDone += record.latest.Progress.BytesDone
	}
	return sum
}

// stop deletes the records of a run, which ends the uploads that still go on.
func stop(ctx context.Context, client engineclient.VolumeUploadInterface, run types.UID) error {
	err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, volumesOf(run))
	if err != nil {
		return fmt.Errorf("stopping the uploads of the backup's volumes: %w", err)
	}
	return nil
}

// stopUploads tells the agents to stop the uploads of a run, and reports whether all
// have. Then it deletes their records. An upload has stopped when its agent says so, or
// has been absent for so long that it works no more. One that has not begun never
// will: it begins with a write of the record, which is gone.
func (c *Controller) stopUploads(ctx context.Context, run *enginev1alpha1.BackupRun) (bool, error) {
	list, err := c.uploads.List(ctx, volumesOf(run.UID))
	if err != nil {
		return false, fmt.Errorf("reading which volumes of BackupRun %s are being uploaded: %w", run.Name, err)
	}
	stopped := true
	for i := range list.Items {
		has, err := c.stopUpload(ctx, &list.Items[i])
		if err != nil {
			return false, fmt.Errorf("stopping the upload %s: %w", list.Items[i].Name, err)
		}
		stopped = stopped && has
	}
	if !stopped {
		return false, nil
	}
	return true, stop(ctx, c.uploads, run.UID)
}

func (c *Controller) stopUpload(ctx context.Context, record *enginev1alpha1.VolumeUpload) (bool, error) {
	node := record.Spec.Node
	switch phase := record.Status.Phase; {
	case phase.Done():
		return true, nil
	case phase != enginev1alpha1.VolumePhaseInProgress:
		err := c.uploads.Delete(ctx, record.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion},
		})
		if apierrors.IsConflict(err) {
			return false, nil // it may have begun
		}
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return err == nil, err
	case c.Agents.NodeGone(node, time.Time{}), c.Agents.Absence(node, time.Time{}) >= c.AgentTimeout:
		return true, nil
	case record.Spec.Cancel:
		return false, nil
	}
	record.Spec.Cancel = true
	_, err := c.uploads.Update(ctx, record, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = nil // look again
	}
	return false, err
}

// untilStopped stops the uploads of a run, and returns when they have stopped.
func (c *Controller) untilStopped(ctx context.Context, run *enginev1alpha1.BackupRun, v *volumes) error {
	if v.haveStopped() {
		return stop(ctx, c.uploads, run.UID)
	}
	for {
		changed := v.changed()
		stopped, err := c.stopUploads(ctx, run)
		switch {
		case stopped:
			return err
		case records.Refused(err):
			return errors.Join(err, stop(ctx, c.uploads, run.UID)) // the agents see that, too
		case err != nil:
			klog.FromContext(ctx).Info("Stopping the uploads of the volumes failed; it will be tried again", "err", err)
		}
		select {
		case <-changed:
		case <-c.Clock.After(recheck):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// volumesOf selects the records of a run.
func volumesOf(run types.UID) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRun + "=" + string(run)}
}

// ensureRepository makes sure that the repository of a namespace is asked for.
func (c *Controller) ensureRepository(ctx context.Context, volumeNamespace, location string) error {
	_, err := repository.EnsureRecord(ctx, c.Engine.VolumeRepositories(c.Namespace), volumeNamespace, location)
	return err
}

// activity is when uploads began or ended on the nodes, by name.
type activity struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (a *activity) note(node string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = map[string]time.Time{}
	}
	a.last[node] = now
}

func (a *activity) of(node string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[node]
}

// knownNodes are the nodes as this process knows them.
type knownNodes struct {
	agents
	activity *activity
}

func (n knownNodes) Active(node string) time.Time { return n.activity.of(node) }

// nodeRemoved has the runs that wait for volumes look again.
func (c *Controller) nodeRemoved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, working := range c.working {
		if working.volumes != nil {
			working.volumes.wake()
		}
	}
}

// warnAbsent tells people that the volumes of a backup wait for an agent.
func (c *Controller) warnAbsent(run *enginev1alpha1.BackupRun, node string, absence time.Duration) {
	c.Events.Eventf(records.BackupReference(run), nil, corev1.EventTypeWarning, "AgentAbsent", "Backup",
		"The volumes on node %s wait for its agent, of which nothing was seen for %s; they are given up after %s", node, absence.Round(time.Second), c.AgentTimeout)
}

// volumeHandler passes the changes of records to the runs that they belong to.
func (c *Controller) volumeHandler() cache.ResourceEventHandler {
	observe := func(obj any) {
		if record, ok := obj.(*enginev1alpha1.VolumeUpload); ok {
			if v := c.volumesOf(record); v != nil {
				v.observe(record)
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: observe,
		UpdateFunc: func(old, obj any) {
			before, ok := old.(*enginev1alpha1.VolumeUpload)
			if after, isRecord := obj.(*enginev1alpha1.VolumeUpload); ok && isRecord && before.Status.Phase != after.Status.Phase {
				c.activity.note(after.Spec.Node, c.Clock.Now())
			}
			observe(obj)
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if record, ok := obj.(*enginev1alpha1.VolumeUpload); ok {
				if v := c.volumesOf(record); v != nil {
					v.gone(record.Name)
				}
			}
		},
	}
}

func (c *Controller) volumesOf(record *enginev1alpha1.VolumeUpload) *volumes {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, working := range c.working {
		if working.is(types.UID(record.Labels[enginev1alpha1.LabelRun])) {
			return working.volumes
		}
	}
	return nil
}
