// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

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

// sweep removes from the repository of a namespace the snapshots of backups that are
// deleted, or have failed or were cancelled: those for which the store holds a removal.
type sweep struct {
	store      bucket
	repository *repository.Repository
	// cluster is the uid of this one, and location the name of the storage location.
	cluster, namespace, location string
	clock                        clock.PassiveClock
	dryRun                       bool
}

// swept is what a sweep has done.
type swept struct {
	backups, snapshots int
	// waiting are removals of backups that are still there.
	waiting int
}

// removal is a request, and the object that it lies in.
type removal struct {
	format.Removal
	object store.Object
}

func (s *sweep) run(ctx context.Context) (done swept, err error) {
	requested, err := s.requested(ctx)
	if err != nil || len(requested) == 0 {
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
			its := r.snapshots(all)
			if len(its) > 0 {
				klog.FromContext(ctx).Info("The snapshots of a backup go", "backup", r.StoreName, "uid", r.UID, "snapshots", len(its), "dryRun", s.dryRun)
				done.backups++
				done.snapshots += len(its)
				ids = append(ids, its...)
			}
		}
		ended = append(ended, r)
	}
	if s.dryRun {
		return done, nil
	}
	if err := datapath.DeleteSnapshots(ctx, s.repository, ids); err != nil {
		return swept{waiting: done.waiting}, err
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
		if snapshot.Backup == r.UID || snapshot.Backup == "" && named.Has(snapshot.ID) {
			ids = append(ids, snapshot.ID)
		}
	}
	return ids
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
