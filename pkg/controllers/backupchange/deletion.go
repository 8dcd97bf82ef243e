// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// atOnce bounds the backups changed at once, step those between two writes of the progress.
	atOnce = 16
	step   = 200
	// mostChanges leaves changes of a backup for holds and expirations.
	mostChanges = format.MaxExpirations - 100
	lookAgain   = 30 * time.Second
)

// deleteVolumes deletes a volume's whole history, or one volume backup. It writes the deletion beside
// each backup, then a removal of the snapshots into each store, for the repository's maintenance. Snapshots
// beside the data are left to the sweep.
//
//   - A backup stays, without the volume; later changes repeat the deletion.
//   - Held backups, and backups that this cluster has not signed, stay.
//   - A missing location refuses its backups, and delays nothing.
//   - The removal waits for restores that may not have read the change.
func (w *work) deleteVolumes(ctx context.Context) error {
	if err := w.changeBackups(ctx); err != nil {
		return w.waits(ctx, "it counts, and waits to be written into the store", err)
	}
	reads, err := w.isRead(ctx)
	switch {
	case err != nil:
		return err
	case reads:
		w.queue.AddAfter(w.change.Name, lookAgain)
		return w.waits(ctx, "the data stays until restores that may need it have ended", nil)
	}
	if err := w.askForRemoval(ctx); err != nil {
		return w.waits(ctx, "it is in the store, and the removal of the data could not be asked for yet", err)
	}
	if err := w.leaveSnapshots(ctx); err != nil {
		return w.waits(ctx, "it counts, and waits until the snapshots in the volume's storage can be deleted", err)
	}
	// Last: each attempt repeats it under Longhorn's lock, and only its own failure causes one.
	if err := w.deleteLonghorns(ctx); err != nil {
		return w.waits(ctx, "it counts, and waits until Longhorn's store lets it be carried out", err)
	}
	w.change.Status.Message = ""
	if err := w.finish(ctx); err != nil {
		return err
	}
	refused := w.change.Status.Refused
	if deleted := len(w.change.Spec.Targets) - len(refused); deleted > 0 {
		w.event(corev1.EventTypeNormal, "Deleted", "%s has deleted %d volume backups; their data goes with the next maintenance of the repository, and the space comes back with later ones",
			w.change.Spec.Ask.Requester.Username, deleted)
	}
	if len(refused) > 0 {
		w.event(corev1.EventTypeWarning, "NotDeleted", "%d volume backups were not deleted, and are listed again; the first: %.500s", len(refused), refused[0].Message)
	}
	return nil
}

func (w *work) changeBackups(ctx context.Context) error {
	for {
		targets, first := w.change.Spec.Targets, int(w.change.Status.Processed)
		if first >= len(targets) {
			return nil
		}
		held, err := w.recordedHolds(ctx)
		if err != nil {
			return err
		}
		end := min(first+step, len(targets))
		whys := make([]string, end-first)
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(atOnce)
		for i := first; i < end; i++ {
			group.Go(func() (err error) {
				whys[i-first], err = w.deleteFrom(groupCtx, &targets[i], held[targets[i].UID])
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for i, why := range whys {
			if why != "" {
				w.change.Status.Refused = append(w.change.Status.Refused, enginev1alpha1.BackupChangeRefusal{Target: int32(first + i), Message: why})
			}
		}
		w.change.Status.Processed, w.change.Status.Message = int32(end), ""
		if err := w.update(ctx); err != nil {
			return err
		}
	}
}

// recordedHolds returns requested holds and releases that may not be stored, by the backup's uid.
func (w *work) recordedHolds(ctx context.Context) (map[types.UID]*bool, error) {
	changes, err := w.Engine.BackupChanges(w.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "!" + enginev1alpha1.LabelDeletesVolumes})
	if err != nil {
		return nil, fmt.Errorf("finding out which backups are held: %w", err)
	}
	formers, err := w.Engine.ExpirationChanges(w.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("finding out which backups are held: %w", err)
	}
	former := map[string]*enginev1alpha1.BackupChange{}
	for i := range formers.Items {
		former[formers.Items[i].Name] = enginev1alpha1.AsBackupChange(&formers.Items[i])
	}
	held := map[types.UID]*bool{}
	note := func(inOrder []*enginev1alpha1.BackupChange) {
		for _, change := range inOrder {
			if !change.Done() && change.Spec.Hold != nil {
				held[change.Spec.UID] = change.Spec.Hold
			}
		}
	}
	for i := range changes.Items {
		change := &changes.Items[i]
		note(enginev1alpha1.InOrder(change, former[change.Name]))
		delete(former, change.Name)
	}
	for _, change := range former {
		note(enginev1alpha1.InOrder(nil, change))
	}
	return held, nil
}

// deleteFrom writes the deletion beside one backup, or returns why not. hold is a request that may not
// be stored.
func (w *work) deleteFrom(ctx context.Context, target *enginev1alpha1.BackupChangeTarget, hold *bool) (why string, err error) {
	spec := &w.change.Spec
	if target.BackupName != "" {
		return w.refuseLonghorn(target)
	}
	opened, err := w.bucket(ctx, target.StorageLocation)
	if missing, isMissing := errors.AsType[noLocation](err); isMissing {
		return missing.Error(), nil
	}
	if past, isPast := errors.AsType[asOf](err); isPast {
		return past.Error(), nil
	}
	if err != nil {
		return "", err
	}
	of := w.folder(opened, target)
	volume := format.VolumeID{Namespace: spec.Namespace, Name: spec.Volume, Repeat: target.Repeat}
	_, err = of.Change(ctx, opened, w.Cluster, w.Keys, func(backup *v1alpha1.Backup, stands *format.Expiration) (bool, error) {
		if slices.ContainsFunc(stands.Deleted, func(d format.DeletedVolume) bool { return d.VolumeID == volume }) {
			return false, nil
		}
		origin := backup.Status.Origin
		switch held := stands.Hold != nil; {
		case origin == nil || origin.Trust != "" || origin.ClusterUID != w.Cluster.UID || !slices.Contains(w.Keys, origin.PublicKey):
			return false, refusal("the backup is not one of this cluster's own")
		case hold == nil && held, hold != nil && *hold:
			return false, refusal("the backup is held")
		case stands.Number >= mostChanges:
			return false, refusal("the backup has had too many changes: delete the whole backup")
		}
		volumes, err := of.Volumes(ctx, backup)
		if err != nil {
			return false, err
		}
		snapshot, listed := volumes[volume]
		if !listed {
			return false, refusal("the backup has no such volume")
		}
		deleted := format.DeletedVolume{VolumeID: volume, SnapshotID: snapshot, Requester: spec.Ask.Requester.Username, Timestamp: spec.Ask.Timestamp}
		stands.Deleted = append(slices.Clone(stands.Deleted), deleted)
		keepShared(stands.Deleted, volumes)
		stands.Requester, stands.Timestamp, stands.Request = spec.Ask.Requester.Username, spec.Ask.Timestamp, string(w.change.UID)
		return true, nil
	})
	refused, isRefusal := errors.AsType[refusal](err)
	switch {
	case err == nil, errors.Is(err, folder.ErrGone):
		return "", nil
	case isRefusal:
		return string(refused), nil
	case errors.Is(err, folder.ErrUnreadable):
		return "the backup's metadata can't be read", nil
	case errors.Is(err, folder.ErrNoList), errors.Is(err, folder.ErrTooMany):
		return err.Error(), nil
	}
	return "", err
}

// keepShared keeps snapshots that a remaining volume needs, and frees them when none does.
func keepShared(deleted []format.DeletedVolume, volumes map[format.VolumeID]string) {
	goes, needed := map[format.VolumeID]bool{}, map[string]bool{}
	for _, d := range deleted {
		goes[d.VolumeID] = true
	}
	for volume, snapshot := range volumes {
		if !goes[volume] {
			needed[snapshot] = true
		}
	}
	for i := range deleted {
		if d := &deleted[i]; needed[volumes[d.VolumeID]] {
			d.SnapshotID = ""
		} else {
			d.SnapshotID = volumes[d.VolumeID]
		}
	}
}

// isRead reports whether an active restore reads one of the backups. Later ones read the change.
// Longhorn's backups are not restored here.
func (w *work) isRead(ctx context.Context) (bool, error) {
	of := map[types.UID]bool{}
	for i := range w.deleted() {
		if target := &w.change.Spec.Targets[i]; target.BackupName == "" {
			of[target.UID] = true
		}
	}
	if len(of) == 0 {
		return false, nil
	}
	list, err := w.Engine.RestoreRuns(w.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("finding out whether the backups are being restored: %w", err)
	}
	for i := range list.Items {
		restore := &list.Items[i]
		if from := &restore.Spec.Backup; !restore.Status.Phase.Ended() && (of[from.UID] || from.UID == "") {
			return true, nil
		}
	}
	return false, nil
}

func (w *work) deleted() map[int]bool {
	deleted := map[int]bool{}
	for i := range w.change.Spec.Targets {
		deleted[i] = true
	}
	for _, r := range w.change.Status.Refused {
		delete(deleted, int(r.Target))
	}
	return deleted
}

func (w *work) askForRemoval(ctx context.Context) error {
	namespace := w.change.Spec.Namespace
	deleted, removals := w.deleted(), map[string]*format.VolumeRemoval{}
	for i, target := range w.change.Spec.Targets {
		if !deleted[i] || target.BackupName != "" {
			continue
		}
		removal := removals[target.StorageLocation]
		if removal == nil {
			removal = &format.VolumeRemoval{Request: w.change.UID}
			removals[target.StorageLocation] = removal
		}
		removal.Backups = append(removal.Backups, format.RemovalOf{UID: target.UID, StoreName: target.StoreName})
	}
	for name, removal := range removals {
		opened, err := w.bucket(ctx, name)
		if missing, isMissing := errors.AsType[noLocation](err); isMissing {
			klog.FromContext(ctx).Info("The data of deleted volumes stays until the backups go", "namespace", namespace, "reason", missing.Error())
			continue
		}
		if err != nil {
			return err
		}
		there := false
		err = try(ctx, func(ctx context.Context) error {
			for _, err := range opened.List(ctx, format.RepositoryPrefix(namespace), store.ListOptions{Recursive: true}) {
				there = err == nil
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !there {
			klog.FromContext(ctx).Info("The repository of a deleted volume is gone already", "namespace", namespace, "storageLocation", name)
			continue
		}
		if err := w.EnsureRepository(ctx, namespace, name); err != nil {
			return fmt.Errorf("having the repository of the namespace %s maintained: %w", namespace, err)
		}
		content, err := format.EncodeVolumeRemoval(*removal)
		if err != nil {
			return err
		}
		err = try(ctx, func(ctx context.Context) error {
			return opened.Put(ctx, format.VolumeRemovalKey(w.Cluster.UID, namespace, removal.Request), content)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// leaveSnapshots has the snapshots beside the deleted data forgotten. A copy of a backup in another location
// has none.
func (w *work) leaveSnapshots(ctx context.Context) error {
	targets := map[types.UID][]*enginev1alpha1.BackupChangeTarget{}
	for i := range w.deleted() {
		if target := &w.change.Spec.Targets[i]; target.BackupName == "" {
			targets[target.UID] = append(targets[target.UID], target)
		}
	}
	if w.LeaveSnapshots == nil || len(targets) == 0 {
		return nil
	}
	all, err := w.locations.List(labels.Everything())
	if err != nil {
		return err
	}
	return try(ctx, func(ctx context.Context) error {
		return w.LeaveSnapshots(ctx, w.change.Spec.Namespace, w.change.Spec.Volume, func(backup types.UID, at snapshots.Place) bool {
			return slices.ContainsFunc(targets[backup], func(of *enginev1alpha1.BackupChangeTarget) bool {
				return at.DeletedFrom(of.StorageLocation, of.StoreName, all)
			})
		})
	})
}
