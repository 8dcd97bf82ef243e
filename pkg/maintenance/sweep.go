// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// requestTimeout is how long a store may take for one request, its content included.
const requestTimeout = time.Minute

// bucket is what a sweep needs of a storage location.
type bucket interface {
	store.Reader
	store.Remover
}

const (
	// minAge is how old a snapshot is at least that goes though nobody has asked for it.
	minAge = 24 * time.Hour
	// One backup may be missing, or one of so many, but never all.
	oneMissingOf = 20
)

// sweep removes from the repository of a namespace the snapshots of backups that are
// deleted, or have failed or were cancelled: those for which the store holds a removal,
// and those that are missing.
type sweep struct {
	store      bucket
	repository *repository.Repository
	// cluster is the uid of this one, and location the name of the storage location.
	cluster, namespace, location string
	clock                        clock.PassiveClock
	dryRun                       bool
	// missing is set if all backups of this cluster are to be asked for, and accept if it
	// is known that many are missing.
	missing, accept bool
}

// swept is what a sweep has done.
type swept struct {
	backups, snapshots int
	// waiting are removals of backups that are still there.
	waiting int
	// missing are backups that are not in the store, too many to be believed.
	missing int
}

// removal is a request, and the object that it lies in.
type removal struct {
	format.Removal
	object store.Object
}

func (s *sweep) run(ctx context.Context) (done swept, err error) {
	requested, err := s.requested(ctx)
	if err != nil || len(requested) == 0 && !s.missing {
		return done, err
	}
	// Listed before the backups are asked for: what is uploaded later stays.
	all, err := datapath.Snapshots(ctx, s.repository)
	if err != nil {
		return done, err
	}
	var ids []string
	var ended []removal
	var failures []error
	for _, r := range requested {
		needed, err := s.needs(ctx, r)
		switch {
		case errors.Is(err, folder.ErrUnreadable):
			klog.FromContext(ctx).Info("It is not certain that a backup is gone, so its snapshots stay", "backup", r.StoreName, "uid", r.UID, "err", err)
			done.waiting++
			continue
		case err != nil:
			return done, err // of the store, which will say the same of the others
		case needed:
			klog.FromContext(ctx).V(1).Info("A backup whose snapshots are to go is still there", "backup", r.StoreName, "uid", r.UID)
			done.waiting++
		default:
			if its := r.snapshots(all); len(its) > 0 {
				ids = append(ids, its...)
				done.backups++
				klog.FromContext(ctx).Info("The snapshots of a backup go", "backup", r.StoreName, "uid", r.UID, "snapshots", len(its), "dryRun", s.dryRun)
			}
		}
		ended = append(ended, r)
	}
	if s.missing {
		missing, err := s.findMissing(ctx, requested, all)
		if err != nil {
			return done, err
		}
		if missing.tooMany() && !s.accept {
			klog.FromContext(ctx).Info("Too many backups are missing from the store to be believed, so their snapshots stay", "missing", len(missing.snapshots), "of", missing.of)
			done.missing = len(missing.snapshots)
			missing.snapshots = nil
		}
		for uid, its := range missing.snapshots {
			ids = append(ids, its...)
			done.backups++
			klog.FromContext(ctx).Info("The snapshots of a backup go that is missing from the store", "uid", uid, "snapshots", len(its), "dryRun", s.dryRun)
		}
	}
	done.snapshots = len(ids)
	if s.dryRun {
		return done, nil
	}
	if err := datapath.DeleteSnapshots(ctx, s.repository, ids); err != nil {
		return swept{waiting: done.waiting, missing: done.missing}, err
	}
	for _, r := range ended {
		// An upload of the backup may still end.
		if s.clock.Since(r.object.ModTime) > MaxUpload {
			failures = append(failures, s.remove(ctx, r.object))
		}
	}
	return done, errors.Join(failures...)
}

// snapshots are those of the backup: with its uid, or named by it and made for no other.
func (r *removal) snapshots(all []datapath.Snapshot) (ids []string) {
	named := sets.New(r.Snapshots...)
	for _, snapshot := range all {
		if r.means(snapshot) || snapshot.Backup == "" && named.Has(snapshot.ID) {
			ids = append(ids, snapshot.ID)
		}
	}
	return ids
}

// means reports whether a snapshot was made for the backup. The folder that was asked for it
// must be the one that the snapshot says, else a copy of a backup, or a removal that somebody
// has put there, would have another folder asked than the backup's.
func (r *removal) means(snapshot datapath.Snapshot) bool {
	return snapshot.Backup == r.UID && (snapshot.StoreName == "" || snapshot.StoreName == r.StoreName)
}

// missing are backups of this cluster that the store has not, though nobody has asked for
// the removal of their snapshots.
type missing struct {
	// snapshots by the uid of their backup, and of how many backups.
	snapshots map[types.UID][]string
	of        int
}

// tooMany reports whether so many are missing that rather the store is to be doubted: it
// was brought back only in part, for instance.
func (m *missing) tooMany() bool {
	n := len(m.snapshots)
	return n > 0 && (n == m.of || n > 1 && n*oneMissingOf > m.of)
}

// findMissing asks for each backup of this cluster that has snapshots.
func (s *sweep) findMissing(ctx context.Context, requested []removal, all []datapath.Snapshot) (found missing, err error) {
	known := map[types.UID]removal{}
	for _, r := range requested {
		known[r.UID] = r
	}
	found.snapshots = map[types.UID][]string{}
	of := map[types.UID]string{}
	young := sets.New[types.UID]()
	for _, snapshot := range all {
		if r, asked := known[snapshot.Backup]; snapshot.Backup == "" || asked && r.means(snapshot) || snapshot.ClusterUID != s.cluster || format.ValidateStoreName(snapshot.StoreName) != nil {
			continue
		}
		of[snapshot.Backup] = snapshot.StoreName
		found.snapshots[snapshot.Backup] = append(found.snapshots[snapshot.Backup], snapshot.ID)
		if s.clock.Since(snapshot.Saved) < minAge {
			young.Insert(snapshot.Backup)
		}
	}
	found.of = len(of)
	for uid, name := range of {
		needed := young.Has(uid)
		if !needed {
			needed, err = s.needs(ctx, removal{Removal: format.Removal{UID: uid, StoreName: name}})
			if err != nil && !errors.Is(err, folder.ErrUnreadable) {
				return missing{}, err
			}
		}
		if needed {
			delete(found.snapshots, uid)
		}
	}
	return found, nil
}

// requested are the removals of this cluster for the repository.
func (s *sweep) requested(ctx context.Context) (all []removal, err error) {
	var objects []store.Object
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
	for _, object := range objects {
		r, err := s.read(ctx, object)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if r != nil {
			all = append(all, *r)
		}
	}
	return all, nil
}

// read returns nil for an object that is no removal, which stays as it is.
func (s *sweep) read(ctx context.Context, object store.Object) (*removal, error) {
	var data []byte
	err := try(ctx, func(ctx context.Context) error {
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
	decoded, err := format.DecodeRemoval(data)
	if err != nil || object.Key != format.RemovalKey(s.cluster, s.namespace, decoded.UID) {
		klog.FromContext(ctx).Info("What is no removal lies among them, and is left alone", "key", object.Key, "err", err)
		return nil, nil
	}
	return &removal{decoded, object}, nil
}

// needs reports whether a backup needs its snapshots.
func (s *sweep) needs(ctx context.Context, r removal) (bool, error) {
	of := folder.Folder{
		Place: format.Place{StoreName: r.StoreName, Location: s.location},
		Clock: s.clock,
		UID:   r.UID,
		Store: s.store,
		Try:   try,
	}
	return of.Needs(ctx)
}

func (s *sweep) remove(ctx context.Context, object store.Object) error {
	err := try(ctx, func(ctx context.Context) error { return s.store.Delete(ctx, object) })
	if errors.Is(err, store.ErrChanged) {
		return nil // it was asked for anew
	}
	return err
}

// try makes a request in bounded time.
func try(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}
