// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/repository"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	volumeCheck = 10 * time.Second
	// warnAfter divides AgentTimeout: users are then warned of an absent agent.
	warnAfter  = 3
	absentTold = 10
)

// volumes implements backup.Volumes: it gives a run's volumes to the agents, as VolumeUploads.
type volumes struct {
	c   *Controller
	run *enginev1alpha1.BackupRun

	mu sync.Mutex
	// uploads are the submitted volumes, by their records' names; records are these names.
	uploads map[string]*upload
	records map[*format.Volume]string
	// namespaces are of all submitted volumes, also if an answer was lost.
	namespaces   sets.Set[string]
	repositories sets.Set[string]
	changed      chan struct{}
	// ctx ends the moves of snapshots, and moving waits for them.
	ctx    context.Context
	moving sync.WaitGroup
	warned sets.Set[string]
}

type upload struct {
	volume    *format.Volume
	submitted time.Time
	// node is where the volume is read. With a snapshot it is known once that is exposed.
	node string
	// record is its record's uid, empty until known; early has the sightings until then. An earlier
	// record of the name may end late.
	record types.UID
	early  []sighting
	// begun is when the agent was seen to begin; zero when it is to begin anew.
	begun time.Time
	// vanished is when the record was seen deleted during the upload.
	vanished time.Time
	// unheard is when an unfinished upload's record was missing.
	unheard time.Time
	// status is the agent's, or says that the volume was given up.
	status enginev1alpha1.VolumeUploadStatus
	// preparing is true until a snapshot is handed to an agent, cut once it is made. The data is of the
	// instant at, not after the cut; nil without a snapshot.
	preparing, cut bool
	at             *metav1.Time
	taken          *format.SnapshotCut
	// uncut is the content of a cut that has failed.
	uncut string
	// exposed: this process has exposed the cut.
	exposed bool
	// again is true from the first try's failure until the second begins, failed says why, and
	// forgotten is the first's record.
	again     bool
	failed    string
	forgotten types.UID
	// replaced: another pod's volume was submitted instead.
	replaced bool
	// stop is true from giving up until the agent is told.
	stop bool
	wait *waits.Wait
}

type sighting struct {
	record  *enginev1alpha1.VolumeUpload
	deleted bool
}

var _ backup.Volumes = &volumes{}

// Submit implements backup.Volumes.
func (v *volumes) Submit(ctx context.Context, volume *format.Volume) error {
	if volume.Status.Phase.Done() {
		v.register(recordName(v.run, volume), &upload{volume: volume, node: volume.Node, status: volume.Status})
		return nil
	}
	if volume.Snapshot == nil || !volume.Snapshot.Kept {
		if err := v.ensureRepository(ctx, volume.Pod.Namespace, v.run.Spec.Backup.StorageLocation); err != nil {
			return err
		}
	}
	if volume.Snapshot != nil {
		return v.submitSnapshot(ctx, volume)
	}
	record := v.recordOf(volume, volume.Node)
	// It is known before its first event.
	v.register(record.Name, &upload{volume: volume, node: volume.Node, submitted: v.c.Clock.Now(), cut: true, wait: waits.For(ctx, volume.Pod.Namespace, textOf(volume))})
	if err := v.createUpload(ctx, record); err != nil {
		v.mu.Lock()
		v.uploads[record.Name].wait.End()
		delete(v.uploads, record.Name)
		v.mu.Unlock()
		return fmt.Errorf("handing volume %s of pod %s/%s to its node: %w", volume.Name, volume.Pod.Namespace, volume.Pod.Name, err)
	}
	v.replace(volume.Instead)
	return nil
}

// createUpload creates a volume's record, or finds it: an answer was lost, or an earlier attempt made
// it, and it may have ended.
func (v *volumes) createUpload(ctx context.Context, record *enginev1alpha1.VolumeUpload) error {
	known, err := v.c.uploads.Create(ctx, record, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		known, err = v.c.uploads.Get(ctx, record.Name, metav1.GetOptions{})
	}
	if err == nil {
		v.know(known)
	}
	return err
}

func (v *volumes) recordOf(volume *format.Volume, node string) *enginev1alpha1.VolumeUpload {
	location := v.run.Spec.Backup.StorageLocation
	record := &enginev1alpha1.VolumeUpload{
		ObjectMeta: metav1.ObjectMeta{
			Name: recordName(v.run, volume),
			Labels: map[string]string{
				enginev1alpha1.LabelRun:  string(v.run.UID),
				enginev1alpha1.LabelNode: enginev1alpha1.NodeLabel(node),
			},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(v.run, enginev1alpha1.SchemeGroupVersion.WithKind("BackupRun")),
			},
		},
		Spec: enginev1alpha1.VolumeUploadSpec{
			Node:                  node,
			Pod:                   volume.Pod,
			Volume:                volume.Name,
			ClaimName:             volume.ClaimName,
			ClaimUID:              volume.ClaimUID,
			PersistentVolume:      volume.PersistentVolume,
			HostPath:              volume.HostPath,
			BackupStorageLocation: location,
			Repository:            enginev1alpha1.RepositoryName(volume.Pod.Namespace, location),
			StoreName:             v.run.Name,
			ClusterUID:            v.c.ClusterUID,
		},
	}
	if volume.Hooked {
		record.Labels[enginev1alpha1.LabelHooked] = "true"
	}
	return record
}

// replace leaves a volume out of the counts, as another pod's was submitted instead. It accepts nil.
func (v *volumes) replace(volume *format.Volume) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if before := v.uploads[v.records[volume]]; before != nil {
		before.replaced = true
	}
}

func (v *volumes) ensureRepository(ctx context.Context, namespace, location string) error {
	v.mu.Lock()
	known := v.repositories.Has(namespace)
	v.mu.Unlock()
	if known {
		return nil
	}
	if err := repository.EnsureRecord(ctx, v.c.Engine.VolumeRepositories(v.c.Namespace), namespace, location); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.repositories.Insert(namespace)
	return nil
}

func (v *volumes) submitted() sets.Set[string] {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.namespaces.Clone()
}

// recordName returns the same name for the same volume of a run, so a repeated submission makes no
// second record.
func recordName(run *enginev1alpha1.BackupRun, volume *format.Volume) string {
	identity := string(run.UID) + "/" + string(volume.Pod.UID) + "/" + volume.Name
	if volume.Snapshot != nil { // the same through each pod, and without one
		identity = string(run.UID) + "//" + string(volume.ClaimUID)
	}
	sum := sha256.Sum256([]byte(identity))
	return run.Name + "-" + hex.EncodeToString(sum[:8])
}

// Wait implements backup.Volumes. It waits for a volume while its node's agent works. A given up volume
// is stopped, since others wait for its slot.
func (v *volumes) Wait(ctx context.Context, volumes []*format.Volume) error {
	for {
		waiting, givenUp, next, changed := v.check(volumes)
		for _, u := range givenUp {
			v.abandon(ctx, u)
		}
		if !waiting {
			return nil
		}
		select {
		case <-changed:
		case <-v.c.Clock.After(next):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// check gives up hopeless volumes, and returns those whose agents are to be told. It reports whether
// others wait, and when to check again: at a time, or at a change.
func (v *volumes) check(volumes []*format.Volume) (waiting bool, givenUp []*upload, next time.Duration, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next = volumeCheck
	for _, volume := range volumes {
		u := v.uploads[v.records[volume]]
		if u == nil {
			continue // not submitted
		}
		if !u.status.Phase.Done() {
			left, reason, failure := v.judge(u)
			if (reason == "NodeGone" || reason == "AgentGone") && v.tryAgainLocked(u, failure) {
				reason = ""
			}
			if reason == "" {
				waiting, next = true, min(next, left)
				if !u.preparing {
					v.warn(u)
				}
				continue
			}
			volumesGivenUp.WithLabelValues(reason).Inc()
			v.fail(u, failure)
			u.stop = true
		}
		if u.stop {
			givenUp = append(givenUp, u)
		}
		u.conclude()
	}
	return waiting, givenUp, next, v.changed
}

func (u *upload) conclude() {
	u.volume.Node, u.volume.Status = u.node, u.status
	if u.taken != nil {
		u.volume.Snapshot.Cut = u.taken
	}
	if u.at != nil {
		u.volume.Status.StartTimestamp = u.at
	}
}

func (v *volumes) abandon(ctx context.Context, u *upload) {
	record, err := v.c.uploads.Get(ctx, recordName(v.run, u.volume), metav1.GetOptions{})
	told := apierrors.IsNotFound(err) || err == nil && record.Spec.Cancel
	if err == nil && !told {
		told, err = v.c.stopUpload(ctx, record)
	}
	switch {
	case told:
		v.mu.Lock()
		u.stop = false
		v.mu.Unlock()
	case err != nil:
		klog.FromContext(ctx).Info("Stopping the upload of a volume that was given up failed; it will be tried again", "volume", u.volume.Name, "pod", klog.KRef(u.volume.Pod.Namespace, u.volume.Pod.Name), "err", err)
	}
}

func (v *volumes) judge(u *upload) (left time.Duration, reason, failure string) {
	if u.preparing { // cut, copy and exposure have own limits, and so all get a place
		return v.inTime(volumeCheck)
	}
	node := u.node
	absence := v.c.Agents.Absence(node, u.submitted)
	switch {
	case v.c.Agents.NodeGone(node, u.submitted):
		return 0, "NodeGone", fmt.Sprintf("the node %q does not exist any more", node)
	case absence >= v.c.AgentTimeout:
		return 0, "AgentGone", fmt.Sprintf("node %q has had no agent for %s: is the pod of the DaemonSet holdfast-node-agent running there?", node, absence.Round(time.Second))
	}
	begun, now := !u.begun.IsZero(), v.c.Clock.Now()
	idle, busy := v.c.Agents.Idle(node, u.submitted, now)
	switch {
	case begun:
		left = v.c.VolumeTimeout - now.Sub(u.begun)
	case busy: // that has its own time, and then the time to stop
		left = 2*v.c.VolumeTimeout + v.c.AgentTimeout - idle
	default:
		left = v.c.VolumeTimeout - idle
	}
	if left, reason, failure = v.inTime(left); reason != "" {
		return 0, reason, failure
	}
	switch {
	case left > 0:
		return min(left, v.c.AgentTimeout-absence), "", ""
	case begun:
		return 0, "Timeout", fmt.Sprintf("the volume was not uploaded within %s after its upload had begun: let --pod-volume-timeout of the controller be longer", v.c.VolumeTimeout)
	}
	why := ""
	if u.status.Message != "" {
		why = ": it " + u.status.Message
	}
	return 0, "NeverBegun", fmt.Sprintf("the upload has not begun, and the agent of node %q has begun and ended no other one for %s%s", node, idle.Round(time.Second), why)
}

func (v *volumes) inTime(left time.Duration) (_ time.Duration, reason, failure string) {
	start := v.run.Status.StartTimestamp
	if v.c.Timeout <= 0 || start == nil {
		return left, "", ""
	}
	rest := v.c.Timeout - v.c.Clock.Since(start.Time)
	if rest <= 0 {
		return 0, "BackupTimeout", fmt.Sprintf("the backup has taken %s, which is as long as one may: see --backup-timeout of the controller", v.c.Timeout)
	}
	return min(left, rest), "", ""
}

func (v *volumes) warn(u *upload) {
	node := u.node
	absence, absent := v.absence(u)
	if !absent || v.warned.Has(node) {
		return
	}
	v.warned.Insert(node)
	v.c.Events.Eventf(records.Reference(v.run), nil, corev1.EventTypeWarning, "AgentAbsent", "Backup",
		"The volumes on node %s wait for its agent, of which nothing was seen for %s; they are given up after %s", node, absence.Round(time.Second), v.c.AgentTimeout)
}

func (v *volumes) absence(u *upload) (time.Duration, bool) {
	if u.preparing {
		return 0, false
	}
	absence := v.c.Agents.Absence(u.node, u.submitted)
	return absence, absence >= v.c.AgentTimeout/warnAfter
}

func (v *volumes) absent() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	nodes := sets.New[string]()
	for _, u := range v.uploads {
		if _, absent := v.absence(u); absent && !u.status.Phase.Done() {
			nodes.Insert(u.node)
		}
	}
	all := sets.List(nodes)
	return all[:min(len(all), absentTold)]
}

func (v *volumes) know(record *enginev1alpha1.VolumeUpload) {
	v.mu.Lock()
	defer v.mu.Unlock()
	u := v.uploads[record.Name]
	seen := append([]sighting{{record, false}}, u.early...)
	u.record, u.early = record.UID, nil
	for _, s := range seen {
		v.observeLocked(s)
	}
}

// observe takes a sighting of a record. A given up or done volume stays so.
func (v *volumes) observe(record *enginev1alpha1.VolumeUpload, deleted bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.observeLocked(sighting{record, deleted})
}

func (v *volumes) observeLocked(s sighting) {
	v.wakeLocked()
	record, deleted := s.record, s.deleted
	u := v.uploads[record.Name]
	if u != nil && u.record == record.UID && deleted && record.Status.Phase == enginev1alpha1.VolumePhaseInProgress {
		u.vanished = v.c.Clock.Now() // also if given up
	}
	switch {
	case u == nil || u.status.Phase.Done():
		return
	case u.record == "":
		u.early = append(u.early, s)
		return
	case u.record != record.UID:
		return
	}
	u.status = *record.Status.DeepCopy()
	if u.status.Phase == enginev1alpha1.VolumePhaseFailed {
		if !record.Spec.Cancel && v.tryAgainLocked(u, u.status.Message) {
			return
		}
		u.status.Message += u.before()
	}
	switch {
	case u.status.Phase != enginev1alpha1.VolumePhaseInProgress:
		u.begun = time.Time{}
	case u.begun.IsZero():
		u.begun = v.c.Clock.Now()
	}
	if deleted && !u.status.Phase.Done() {
		v.fail(u, "the VolumeUpload was deleted before its upload had ended")
	}
}

func (v *volumes) fail(u *upload, message string) {
	now := metav1.NewTime(v.c.Clock.Now())
	u.status.Phase, u.status.Message, u.status.CompletionTimestamp = enginev1alpha1.VolumePhaseFailed, message+u.before(), &now
}

func (u *upload) before() string {
	if u.failed == "" {
		return ""
	}
	return "; and before, " + u.failed
}

func (v *volumes) wakeLocked() {
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *volumes) counts() *v1alpha1.BackupVolumesProgress {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.uploads) == 0 {
		return nil
	}
	sum := &v1alpha1.BackupVolumesProgress{}
	for _, u := range v.uploads {
		if u.replaced {
			continue
		}
		sum.Total++
		switch u.status.Phase {
		case enginev1alpha1.VolumePhaseCompleted:
			sum.Completed++
			if of := u.volume.Snapshot; of != nil && of.Kept {
				sum.InStorage++
			}
		case enginev1alpha1.VolumePhaseFailed:
			sum.Failed++
		}
		sum.TotalBytes += u.status.Progress.TotalBytes
		sum.BytesDone += u.status.Progress.BytesDone
	}
	return sum
}

func (v *volumes) stop(ctx context.Context) error {
	for {
		v.mu.Lock()
		changed := v.changed
		v.mu.Unlock()
		_, stopped, err := v.c.stopUploads(ctx, v.run)
		switch {
		case stopped && v.leftAlone(), records.Refused(err):
			return err
		case err != nil:
			klog.FromContext(ctx).Info("Stopping the uploads of the volumes failed; it will be tried again", "err", err)
		}
		select {
		case <-changed:
		case <-v.c.Clock.After(recheck):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leftAlone reports whether no agent reads for deleted records. The agent stops when it learns of the
// deletion, which nothing reports; at the latest, at its own limit. A list has just said that nothing
// runs.
func (v *volumes) leftAlone() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	alone := true
	for _, u := range v.uploads {
		// An unfinished one missing in a list was deleted or has ended. The watch is about to say
		// which, unless it missed that.
		since := u.vanished
		if !u.status.Phase.Done() {
			if u.unheard.IsZero() {
				u.unheard = v.c.Clock.Now()
			}
			since = u.unheard
		}
		if !since.IsZero() && v.c.Clock.Since(since) < lease.HungAfter && !v.c.agentGone(u.node) {
			alone = false
		}
	}
	return alone
}

// agentGone reports an agent absent long enough to have stopped.
func (c *Controller) agentGone(node string) bool {
	return c.Agents.NodeGone(node, time.Time{}) || c.Agents.Absence(node, time.Time{}) >= c.AgentTimeout
}

func (c *Controller) uploadChanged(before, after *enginev1alpha1.VolumeUpload) {
	record := cmp.Or(after, before)
	if before != nil && before.UID != record.UID {
		c.Agents.Saw(before.Spec.Node, before.UID, false, false, c.Clock.Now())
	}
	c.Agents.Saw(record.Spec.Node, record.UID, after != nil && after.Status.Phase == enginev1alpha1.VolumePhaseInProgress,
		before != nil && before.Status.Phase != record.Status.Phase, c.Clock.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.volumes[types.UID(record.Labels[enginev1alpha1.LabelRun])]; v != nil {
		v.observe(record, after == nil)
	}
}

func (c *Controller) nodeRemoved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.volumes {
		v.mu.Lock()
		v.wakeLocked()
		v.mu.Unlock()
	}
}
