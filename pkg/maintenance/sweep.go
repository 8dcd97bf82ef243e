// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// requestTimeout bounds a request to the store, content included.
const requestTimeout = time.Minute

type bucket interface {
	store.Reader
	store.Remover
}

const (
	// minAge is the minimum age of snapshots removed without a removal.
	minAge = 24 * time.Hour
	// oneMissingOf bounds the missing backups: one, or one in so many, never all.
	oneMissingOf = 20
)

// sweep removes snapshots from a namespace's repository: of backups with a removal, of missing
// backups, of deleted volumes, and snapshots that their stored backup does not list.
type sweep struct {
	store                        bucket
	repository                   *repository.Repository
	cluster, namespace, location string
	keys                         []string
	clock                        clock.PassiveClock
	dryRun                       bool
	// missing looks for missing backups; accept removes their snapshots even if too many are
	// missing.
	missing, accept bool

	// asked has the backups read for deleted volumes, and whether that succeeded. byID has the
	// remaining snapshots.
	asked map[format.RemovalOf]bool
	byID  map[string]datapath.Snapshot
}

type swept struct {
	backups, snapshots int
	// waiting and missing are as in Result.
	waiting int
	missing int
}

type removal struct{ format.Removal }

func (s *sweep) run(ctx context.Context) (done swept, err error) {
	objects, err := s.requested(ctx)
	if err != nil || len(objects) == 0 && !s.missing {
		return done, err
	}
	// Listed before the backups are read, so that later uploads stay.
	all, err := datapath.Snapshots(ctx, s.repository)
	if err != nil {
		return done, err
	}
	s.asked, s.byID = map[format.RemovalOf]bool{}, make(map[string]datapath.Snapshot, len(all))
	for _, snapshot := range all {
		s.byID[snapshot.ID] = snapshot
	}
	var ids []string
	var backups int
	var requested []removal
	var ended []store.Object
	var failures []error
	// flush removes the snapshots found so far: a killed sweep has progressed.
	flush := func() error {
		if len(ids) > 0 && !s.dryRun {
			if err := datapath.DeleteSnapshots(ctx, s.repository, ids); err != nil {
				return err
			}
		}
		done.snapshots, done.backups = done.snapshots+len(ids), done.backups+backups
		for _, object := range ended {
			if !s.dryRun {
				failures = append(failures, s.remove(ctx, object))
			}
		}
		ids, backups, ended = nil, 0, nil
		return nil
	}
	for _, object := range objects {
		if len(ids)+len(ended) >= flushAfter {
			if err := flush(); err != nil {
				return done, err
			}
		}
		if format.IsVolumeRemovalKey(object.Key) {
			its, waiting, err := s.ofVolumes(ctx, object)
			if err != nil {
				return done, err
			}
			ids = append(ids, its...)
			if done.waiting += waiting; waiting == 0 {
				ended = append(ended, object)
			}
			if err := flush(); err != nil { // it has read many backups
				return done, err
			}
			continue
		}
		r, err := s.read(ctx, object)
		switch {
		case errors.Is(err, store.ErrNotFound) || err == nil && r == nil:
			continue
		case errors.Is(err, store.ErrDenied):
			klog.FromContext(ctx).Info("What is to be removed can't be read, and waits", "key", object.Key, "err", err)
			done.waiting++
			continue
		case err != nil:
			return done, err
		}
		requested = append(requested, removal{Removal: format.Removal{UID: r.UID, StoreName: r.StoreName}})
		// Most removals are done, and wait for late uploads.
		if its := r.snapshots(all); len(its) > 0 {
			needed, err := s.needs(ctx, *r)
			switch {
			case isBackups(err):
				klog.FromContext(ctx).Info("It is not certain that a backup is gone, so its snapshots stay", "backup", r.StoreName, "uid", r.UID, "err", err)
				done.waiting++
				continue
			case err != nil:
				return done, err
			case needed:
				klog.FromContext(ctx).V(1).Info("A backup whose snapshots are to go is still there", "backup", r.StoreName, "uid", r.UID)
				done.waiting++
			default:
				ids = append(ids, its...)
				backups++
				klog.FromContext(ctx).Info("The snapshots of a backup go", "backup", r.StoreName, "uid", r.UID, "snapshots", len(its), "dryRun", s.dryRun)
			}
		}
		// Until then an upload of the backup may still end.
		if s.clock.Since(object.ModTime) > MaxUpload {
			ended = append(ended, object)
		}
	}
	if s.missing {
		missing, err := s.findMissing(ctx, requested, all)
		if err != nil {
			return done, err
		}
		if missing.tooMany() && !s.accept {
			klog.FromContext(ctx).Info("Too many backups are missing from the store, or don't list their snapshots, to be believed, so these stay", "missing", len(missing.snapshots), "of", missing.of)
			done.missing = len(missing.snapshots)
			missing.snapshots = nil
		}
		for uid, its := range missing.snapshots {
			ids = append(ids, its...)
			backups++
			klog.FromContext(ctx).Info("Snapshots go whose backup is missing from the store, or ended without them", "uid", uid, "snapshots", len(its), "dryRun", s.dryRun)
		}
	}
	if err := flush(); err != nil {
		return done, err
	}
	return done, errors.Join(failures...)
}

const (
	atOnce = 16
	// flushAfter is how many removals share a flush.
	flushAfter = 100
)

// ofVolumes returns the snapshots of deleted volumes, by the changes beside their backups, and the
// number of unreadable backups. A deleted backup has its own removal. A backup is read once:
// changes were stored before the removals were listed.
func (s *sweep) ofVolumes(ctx context.Context, object store.Object) (ids []string, waiting int, err error) {
	data, err := s.content(ctx, object)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, 0, nil
	case errors.Is(err, store.ErrDenied):
		klog.FromContext(ctx).Info("What is to be removed can't be read, and waits", "key", object.Key, "err", err)
		return nil, 1, nil
	case err != nil:
		return nil, 0, err
	}
	request, err := format.DecodeVolumeRemoval(data)
	if err != nil || object.Key != format.VolumeRemovalKey(s.cluster, s.namespace, request.Request) {
		klog.FromContext(ctx).Info("What is no removal lies among them, and is left alone", "key", object.Key, "err", err)
		return nil, 1, nil
	}
	var ask []format.RemovalOf
	for _, backup := range request.Backups {
		if _, asked := s.asked[backup]; !asked {
			s.asked[backup] = true
			ask = append(ask, backup)
		}
	}
	var mu sync.Mutex
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, backup := range ask {
		group.Go(func() error {
			r := removal{Removal: format.Removal{UID: backup.UID, StoreName: backup.StoreName}}
			of := s.folder(r)
			deleted, err := of.DeletedVolumes(groupCtx, s.cluster, s.keys)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case isBackups(err):
				klog.FromContext(ctx).Info("It is not certain which volumes of a backup are deleted, so their snapshots stay", "backup", backup.StoreName, "uid", backup.UID, "err", err)
				s.asked[backup] = false
				return nil
			case err != nil:
				return err
			}
			for _, volume := range deleted {
				if snapshot, there := s.byID[volume.SnapshotID]; there && volume.Namespace == s.namespace && r.means(snapshot) {
					ids = append(ids, snapshot.ID)
					delete(s.byID, snapshot.ID)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	for _, backup := range request.Backups {
		if !s.asked[backup] {
			waiting++
		}
	}
	klog.FromContext(ctx).Info("The snapshots of deleted volumes go", "request", request.Request, "backups", len(request.Backups), "snapshots", len(ids), "waiting", waiting, "dryRun", s.dryRun)
	return ids, waiting, nil
}

// isBackups reports whether an error concerns one backup, whose snapshots stay, not the store.
func isBackups(err error) bool {
	return errors.Is(err, folder.ErrUnreadable) || errors.Is(err, store.ErrDenied)
}

// snapshots returns the backup's: with its uid, or without uid and named by the removal.
func (r *removal) snapshots(all []datapath.Snapshot) (ids []string) {
	named := sets.New(r.Snapshots...)
	for _, snapshot := range all {
		if r.means(snapshot) || snapshot.Backup == "" && named.Has(snapshot.ID) {
			ids = append(ids, snapshot.ID)
		}
	}
	return ids
}

// means reports whether a snapshot was made for the backup, in the same folder: a copied backup or
// forged removal could name another.
func (r *removal) means(snapshot datapath.Snapshot) bool {
	return snapshot.Backup == r.UID && (snapshot.StoreName == "" || snapshot.StoreName == r.StoreName)
}

// missing has this cluster's backups, without a removal, that the store lacks or that don't list
// all their snapshots.
type missing struct {
	// snapshots has those to remove, by their backup's uid; of counts all backups.
	snapshots map[types.UID][]string
	of        int
}

// tooMany reports whether the store is in doubt, as after a partial restore.
func (m *missing) tooMany() bool {
	n := len(m.snapshots)
	return n > 0 && (n == m.of || n > 1 && n*oneMissingOf > m.of)
}

func (s *sweep) findMissing(ctx context.Context, requested []removal, all []datapath.Snapshot) (found missing, err error) {
	known := map[types.UID]removal{}
	for _, r := range requested {
		known[r.UID] = r
	}
	snapshots := map[types.UID][]datapath.Snapshot{}
	of := map[types.UID]string{}
	stay := sets.New[types.UID]()
	for _, snapshot := range all {
		if r, asked := known[snapshot.Backup]; snapshot.Backup == "" || asked && r.means(snapshot) || snapshot.ClusterUID != s.cluster || format.ValidateStoreName(snapshot.StoreName) != nil {
			continue
		}
		if name, known := of[snapshot.Backup]; known && name != snapshot.StoreName {
			stay.Insert(snapshot.Backup) // its folder is ambiguous
		}
		of[snapshot.Backup] = snapshot.StoreName
		snapshots[snapshot.Backup] = append(snapshots[snapshot.Backup], snapshot)
		if s.clock.Since(snapshot.Saved) < minAge {
			stay.Insert(snapshot.Backup)
		}
	}
	found = missing{snapshots: map[types.UID][]string{}, of: len(of)}
	var mu sync.Mutex
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for uid, name := range of {
		if stay.Has(uid) {
			continue
		}
		group.Go(func() error {
			ids, err := s.unneeded(groupCtx, removal{Removal: format.Removal{UID: uid, StoreName: name}}, snapshots[uid])
			switch {
			case isBackups(err):
				klog.FromContext(ctx).Info("It is not certain which snapshots a backup needs, so they stay", "backup", name, "uid", uid, "err", err)
			case err != nil:
				return err
			case len(ids) > 0:
				mu.Lock()
				defer mu.Unlock()
				found.snapshots[uid] = ids
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return missing{}, err
	}
	return found, nil
}

// unneeded returns the snapshots that a backup does not need: all if it was deleted or has failed,
// and the unlisted ones if it is stored.
func (s *sweep) unneeded(ctx context.Context, r removal, its []datapath.Snapshot) (ids []string, err error) {
	of := s.folder(r)
	backup, err := of.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	if backup != nil && backup.UID == r.UID && (backup.Status.Phase == v1alpha1.BackupPhaseCompleted || backup.Status.Phase == v1alpha1.BackupPhasePartiallyFailed) {
		return s.unlisted(ctx, of, backup, its)
	}
	if needed, err := of.Needs(ctx); needed || err != nil {
		return nil, err
	}
	for _, snapshot := range its {
		ids = append(ids, snapshot.ID)
	}
	return ids, nil
}

// mayBeUnlisted reports whether a stored backup may have unlisted snapshots: of a failed volume, of
// another attempt, or saved after the backup's end. It spares reading most lists.
func mayBeUnlisted(backup *v1alpha1.Backup, its []datapath.Snapshot) bool {
	if backup.Status.Phase == v1alpha1.BackupPhasePartiallyFailed {
		return true
	}
	beside, volumes := sets.New[string](), sets.New[string]()
	for _, snapshot := range its {
		beside.Insert(snapshot.Extras)
	}
	for _, snapshot := range its {
		// The end has whole seconds, and the last listed snapshot may be of the same one.
		if !snapshot.Saved.Before(backup.Status.CompletionTimestamp.Add(time.Second)) || !beside.Has(snapshot.ID) && volumes.Has(snapshot.Volume) {
			return true
		}
		if !beside.Has(snapshot.ID) {
			volumes.Insert(snapshot.Volume)
		}
	}
	return false
}

// unlisted returns the snapshots that a stored backup does not list: an agent was killed before it
// reported one, or reported it too late. The list counts if this cluster signed its digest and all
// of its snapshots exist: a repair by Kopia would have changed their ids.
func (s *sweep) unlisted(ctx context.Context, of folder.Folder, backup *v1alpha1.Backup, its []datapath.Snapshot) (ids []string, err error) {
	origin := backup.Status.Origin
	if origin == nil || origin.Trust != "" || origin.ClusterUID != s.cluster || !slices.Contains(s.keys, origin.PublicKey) || backup.Status.CompletionTimestamp.IsZero() {
		return nil, nil
	}
	if !mayBeUnlisted(backup, its) {
		return nil, nil
	}
	listed, err := of.Volumes(ctx, backup)
	if errors.Is(err, folder.ErrNoList) || err == nil && listed == nil {
		klog.FromContext(ctx).Info("The list of a backup's volumes can't be believed, so its snapshots stay", "backup", of.StoreName, "uid", of.UID, "err", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	needed := sets.New[string]()
	for volume, id := range listed {
		snapshot, there := s.byID[id]
		if id != "" && volume.Namespace == s.namespace && !there {
			klog.FromContext(ctx).Info("A backup lists a snapshot that is not in the repository, so its others stay", "backup", of.StoreName, "uid", of.UID, "snapshot", id)
			return nil, nil
		}
		needed.Insert(id, snapshot.Extras)
	}
	for _, snapshot := range its {
		if !needed.Has(snapshot.ID) {
			ids = append(ids, snapshot.ID)
		}
	}
	return ids, nil
}

// requested lists this cluster's removals for the repository, which are read one by one, since they
// may be large.
func (s *sweep) requested(ctx context.Context) (objects []store.Object, err error) {
	err = try(ctx, func(ctx context.Context) error {
		objects = nil
		for object, err := range s.store.List(ctx, format.RemovalsPrefix(s.cluster, s.namespace), store.ListOptions{Recursive: true}) {
			if err != nil {
				return err
			}
			objects = append(objects, object)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list what is to be removed: %w", err)
	}
	return objects, nil
}

func (s *sweep) content(ctx context.Context, object store.Object) (data []byte, err error) {
	err = try(ctx, func(ctx context.Context) error {
		content, err := s.store.Get(ctx, object.Key)
		if err != nil {
			return err
		}
		defer content.Close()
		data, err = io.ReadAll(io.LimitReader(content, format.MaxRemovalBytes+1))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what is to be removed: %w", err)
	}
	return data, nil
}

// read returns nil for another object, which stays.
func (s *sweep) read(ctx context.Context, object store.Object) (*removal, error) {
	data, err := s.content(ctx, object)
	if err != nil {
		return nil, err
	}
	decoded, err := format.DecodeRemoval(data)
	if err != nil || object.Key != format.RemovalKey(s.cluster, s.namespace, decoded.UID) {
		klog.FromContext(ctx).Info("What is no removal lies among them, and is left alone", "key", object.Key, "err", err)
		return nil, nil
	}
	return &removal{decoded}, nil
}

func (s *sweep) needs(ctx context.Context, r removal) (bool, error) {
	of := s.folder(r)
	return of.Needs(ctx)
}

func (s *sweep) folder(r removal) folder.Folder {
	return folder.Folder{
		Place: format.Place{StoreName: r.StoreName, Location: s.location},
		Clock: s.clock,
		UID:   r.UID,
		Store: s.store,
		Try:   try,
	}
}

func (s *sweep) remove(ctx context.Context, object store.Object) error {
	err := try(ctx, func(ctx context.Context) error { return s.store.Delete(ctx, object) })
	if errors.Is(err, store.ErrChanged) {
		return nil // it was requested again
	}
	return err
}

func try(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}
