// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	hideInterval = time.Second
	// hidePatience is the time after which an exposure loses its place: docs/design/snapshots.md.
	hidePatience = 2 * time.Minute
	// pendingPatience is how long a pending pod keeps a place of the nodes.
	pendingPatience = 2 * time.Minute
	leaveTimeout    = 10 * time.Second
	retryInterval   = 2 * time.Second
)

// Mover is a snapshots.Mover.
type Mover interface {
	Cut(ctx context.Context, v snapshots.Volume, report func(string)) (snapshots.Taken, error)
	AwaitReady(ctx context.Context, v snapshots.Volume, taken snapshots.Taken, report func(string)) (snapshots.Taken, error)
	Place(ctx context.Context, v snapshots.Volume, taken snapshots.Taken, report func(string)) (snapshots.Spot, error)
	Occupy(v snapshots.Volume) snapshots.Spot
	Expose(ctx context.Context, v snapshots.Volume, taken snapshots.Taken, report func(string)) (snapshots.Exposed, error)
	Hide(ctx context.Context, v snapshots.Volume) (gone bool, err error)
	Leave(ctx context.Context, content string) error
}

func (v *volumes) submitSnapshot(ctx context.Context, volume *format.Volume) error {
	if v.c.Mover == nil {
		return fmt.Errorf("a snapshot of the claim %s/%s is wanted, and this controller makes none", volume.Pod.Namespace, volume.ClaimName)
	}
	known, err := v.c.uploads.Get(ctx, recordName(v.run, volume), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("looking for the upload of the claim %s/%s: %w", volume.Pod.Namespace, volume.ClaimName, err)
	}
	// An earlier attempt may have decided to move this kept snapshot.
	found := err == nil && !volume.Snapshot.Kept
	u := &upload{volume: volume, submitted: v.c.Clock.Now(), wait: waits.For(ctx, volume.Pod.Namespace, textOf(volume)), preparing: !found, taken: volume.Snapshot.Cut, at: v.run.Status.StartTimestamp}
	if found && u.taken == nil {
		u.taken = cutOf(known)
	}
	u.cut = found || u.taken != nil
	if u.taken != nil {
		u.at = &u.taken.Time
	}
	if found {
		u.node = known.Spec.Node
	}
	v.register(recordName(v.run, volume), u)
	if found {
		v.know(known)
	}
	of := v.snapshotOf(volume)
	spot := noSpot
	if found { // an earlier process has exposed it
		spot = v.c.Mover.Occupy(of)
	}
	v.moving.Go(func() { v.move(v.ctx, u, of, spot) })
	return nil
}

func (v *volumes) register(name string, u *upload) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.uploads[name] = u
	v.records[u.volume] = name
	v.namespaces.Insert(u.volume.Pod.Namespace)
}

func (v *volumes) snapshotOf(volume *format.Volume) snapshots.Volume {
	spec := &v.run.Spec.Backup
	of := snapshots.Volume{
		Backup: v.run.UID, Place: snapshots.Place{StoreName: v.run.Name, Location: spec.StorageLocation},
		Namespace: volume.Pod.Namespace, Claim: volume.ClaimName, ClaimUID: volume.ClaimUID,
		Driver: volume.Snapshot.Driver, Handle: volume.Snapshot.Handle, Class: volume.Snapshot.Class,
		Moved: !volume.Snapshot.Kept, KeepLocal: volume.Snapshot.KeepLocal, Size: volume.Capacity, StorageClass: volume.Snapshot.StorageClass, Nodes: volume.Snapshot.Nodes, Avoid: volume.Snapshot.Avoid, Device: volume.Device,
		Timeout:      cmp.Or(spec.CSISnapshotTimeout.Duration, v1alpha1.DefaultCSISnapshotTimeout),
		ReadyTimeout: cmp.Or(spec.ItemOperationTimeout.Duration, v1alpha1.DefaultItemOperationTimeout),
	}
	if record, err := v.c.LocationInformer.Lister().StorageLocations(v.c.Namespace).Get(spec.StorageLocation); err == nil {
		of.StoreID = record.Status.StoreID
	}
	if start := v.run.Status.StartTimestamp; start != nil {
		of.Since = start.Time
	}
	switch {
	case volume.Snapshot.Cut != nil:
		of.Attempt = volume.Snapshot.Cut.Attempt
	case volume.Hooked:
		of.Attempt = v.run.Status.Attempts
	}
	return of
}

var noSpot = snapshots.Spot{Read: func() {}, Leave: func() {}}

// move cuts a volume, exposes the cut, has an agent upload it, and hides it. spot is a continuing
// upload's place, else noSpot. When ctx ends, the next attempt or the sweep continues.
func (v *volumes) move(ctx context.Context, u *upload, of snapshots.Volume, spot snapshots.Spot) {
	defer func() { spot.Leave() }()
	for {
		v.mu.Lock()
		preparing := u.preparing && !u.again
		v.mu.Unlock()
		if preparing {
			err := v.prepare(ctx, u, of, &spot)
			v.mu.Lock()
			u.preparing, u.cut = false, true // a failure needs no further wait
			stopped := err != nil && ctx.Err() != nil && !u.status.Phase.Done()
			if stuck := (snapshots.StuckError{}); errors.As(err, &stuck) && !u.status.Phase.Done() && !stopped {
				v.againLocked(u, stuck.Node, stuck.Error())
			} else if err != nil && !u.status.Phase.Done() {
				v.fail(u, err.Error())
			}
			v.wakeLocked()
			v.mu.Unlock()
			if stopped { // the next attempt may use the cut
				return
			}
		}
		again, over := v.awaitUpload(ctx, u)
		if over {
			return
		}
		if !again {
			break
		}
		v.dropUpload(ctx, u)
		v.hide(ctx, of, func() {}, hidePatience)
		of.Try, of.Avoid = 2, u.node
	}
	if !of.Moved || of.KeepLocal > 0 {
		v.leave(ctx, u)
	}
	if !of.Moved { // nothing was exposed
		return
	}
	spot.Read()
	v.hide(ctx, of, spot.Leave, math.MaxInt64)
}

// hide returns once an exposure is deleted, or after a time. Its place is given back after
// hidePatience.
func (v *volumes) hide(ctx context.Context, of snapshots.Volume, leave func(), most time.Duration) {
	for begun := v.c.Clock.Now(); ; {
		gone, err := v.c.Mover.Hide(ctx, of)
		if gone || v.c.Clock.Since(begun) > most {
			return
		}
		if v.c.Clock.Since(begun) > hidePatience {
			leave()
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Hiding a snapshot failed; it will be tried again", "namespace", of.Namespace, "claim", of.Claim, "err", err)
		}
		select {
		case <-v.c.Clock.After(hideInterval):
		case <-ctx.Done():
			return
		}
	}
}

func (v *volumes) awaitUpload(ctx context.Context, u *upload) (again, over bool) {
	for {
		v.mu.Lock()
		done, changed := u.status.Phase.Done(), v.changed
		again, u.again = u.again && !done, false
		v.mu.Unlock()
		if done || again {
			return again, false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, true
		}
	}
}

// tryAgainLocked has a failed upload tried once more, preferably on another node, and reports whether
// its snapshot allows that. An earlier process's upload is not tried again: it may be a second try.
func (v *volumes) tryAgainLocked(u *upload, why string) bool {
	if of := u.volume.Snapshot; of == nil || of.Kept || v.c.Mover == nil || !u.exposed || u.preparing || u.failed != "" || v.ctx.Err() != nil {
		return false
	}
	v.againLocked(u, u.node, why)
	v.wakeLocked()
	return true
}

func (v *volumes) againLocked(u *upload, node, why string) {
	u.again, u.preparing, u.node, u.failed = true, true, node, fmt.Sprintf("on the node %s: %s", node, why)
	u.forgotten, u.record, u.early, u.begun = u.record, "", nil, time.Time{}
	u.status = enginev1alpha1.VolumeUploadStatus{Message: "is tried again: it failed " + u.failed}
	klog.Background().Info("The data of a snapshot is moved once more", "namespace", u.volume.Pod.Namespace, "claim", u.volume.ClaimName, "failed", u.failed)
}

func (v *volumes) dropUpload(ctx context.Context, u *upload) {
	name := recordName(v.run, u.volume)
	for {
		err := v.c.uploads.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &u.forgotten}})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || records.Refused(err) || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Info("Removing the upload of a first try failed; it will be tried again", "upload", name, "err", err)
		select {
		case <-v.c.Clock.After(retryInterval):
		case <-ctx.Done():
			return
		}
	}
}

// prepare takes a spot, and cuts, exposes and hands over a volume. A second try has the first one's
// spot.
func (v *volumes) prepare(ctx context.Context, u *upload, of snapshots.Volume, spot *snapshots.Spot) error {
	report := func(words string) {
		v.mu.Lock()
		defer v.mu.Unlock()
		if !u.status.Phase.Done() {
			u.status.Message = "waits for " + words
		}
	}
	ofSnapshot := func(words string) { report("the snapshot: " + words) }
	taken, err := v.cutOnce(ctx, u, of, ofSnapshot)
	if err != nil {
		return err
	}
	if taken, err = v.c.Mover.AwaitReady(ctx, of, taken, ofSnapshot); err != nil {
		return err
	}
	if u.volume.Snapshot.Kept {
		v.keep(u)
		return nil
	}
	if of.Try < 2 {
		placed, err := v.c.Mover.Place(ctx, of, taken, report)
		if err != nil {
			return err
		}
		*spot = placed
	}
	// A pod that no node takes keeps no place of the nodes from others.
	pending := time.AfterFunc(pendingPatience, spot.Read)
	exposed, err := v.c.Mover.Expose(ctx, of, taken, report)
	pending.Stop()
	if err != nil {
		return err
	}
	v.mu.Lock()
	givenUp := u.status.Phase.Done()
	if !givenUp { // else the volume may be read without the lock
		u.node, u.submitted, u.exposed, u.status.Message = exposed.Node, v.c.Clock.Now(), true, ""
	}
	v.mu.Unlock()
	if givenUp {
		return nil
	}
	record := v.recordOf(u.volume, exposed.Node)
	record.Spec.Holder, record.Spec.PersistentVolume, record.Spec.Device = exposed.Pod, exposed.PersistentVolume, exposed.Device
	if err := noteCut(record, u.taken); err != nil {
		return err
	}
	return v.createPatiently(ctx, record)
}

func noteCut(record *enginev1alpha1.VolumeUpload, cut *format.SnapshotCut) error {
	text, err := json.Marshal(cut)
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&record.ObjectMeta, enginev1alpha1.AnnotationCut, string(text))
	return nil
}

func cutOf(record *enginev1alpha1.VolumeUpload) *format.SnapshotCut {
	var cut format.SnapshotCut
	if json.Unmarshal([]byte(record.Annotations[enginev1alpha1.AnnotationCut]), &cut) != nil {
		return nil
	}
	return &cut
}

func (v *volumes) keep(u *upload) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !u.status.Phase.Done() { // it may have been given up
		now := metav1.NewTime(v.c.Clock.Now())
		u.status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, CompletionTimestamp: &now}
	}
}

// leave has the sweep forget a failed volume's snapshot, also one that is cut late: no backup lists it.
func (v *volumes) leave(ctx context.Context, u *upload) {
	v.mu.Lock()
	content, failed := u.uncut, u.status.Phase == enginev1alpha1.VolumePhaseFailed
	if u.taken != nil {
		content = u.taken.Content
	}
	v.mu.Unlock()
	if content == "" || !failed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := v.c.Mover.Leave(ctx, content); err != nil {
		klog.FromContext(ctx).Info("A snapshot that no backup lists stays until its backup is deleted", "volumeSnapshotContent", content, "err", err)
	}
}

// cutOnce cuts a volume unless an earlier attempt did.
func (v *volumes) cutOnce(ctx context.Context, u *upload, of snapshots.Volume, report func(string)) (snapshots.Taken, error) {
	if known := u.taken; known != nil {
		return snapshots.Taken{Snapshot: known.Snapshot, Content: known.Content, Handle: known.Handle, Time: known.Time.Time, Size: known.Size}, nil
	}
	taken, err := v.c.Mover.Cut(ctx, of, report)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		u.uncut = taken.Content
		return taken, err
	}
	u.cut, u.status.Message = true, ""
	u.taken = &format.SnapshotCut{
		Snapshot: taken.Snapshot, Content: taken.Content, Handle: taken.Handle, Time: metav1.Time{Time: taken.Time}, Size: taken.Size, Attempt: of.Attempt,
	}
	u.at = &u.taken.Time
	v.wakeLocked()
	return taken, nil
}

// createPatiently waits for a restarting API server: the snapshot is exposed.
func (v *volumes) createPatiently(ctx context.Context, record *enginev1alpha1.VolumeUpload) error {
	for {
		err := v.createUpload(ctx, record)
		if err == nil || records.Refused(err) || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Info("Handing a snapshot to its node failed; it will be tried again", "upload", record.Name, "err", err)
		select {
		case <-v.c.Clock.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Cut implements backup.Volumes.
func (v *volumes) Cut(ctx context.Context, volumes []*format.Volume) error {
	for {
		v.mu.Lock()
		waiting, changed := false, v.changed
		for _, volume := range volumes {
			switch u := v.uploads[v.records[volume]]; {
			case u == nil: // not submitted
			case u.status.Phase.Done():
				u.conclude()
			case !u.cut:
				waiting = true
			default:
				u.volume.Snapshot.Cut = u.taken
			}
		}
		v.mu.Unlock()
		if !waiting {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
