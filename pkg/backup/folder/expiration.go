// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Expirations lists changes of the backup's expiration, beside its folder.
func (f *Folder) Expirations(ctx context.Context) (objects []store.Object, err error) {
	err = f.Try(ctx, func(ctx context.Context) error {
		objects = nil
		options := store.ListOptions{Beginning: format.ExpirationsBeginning(f.StoreName, f.UID)}
		for object, err := range f.Store.List(ctx, format.BackupsPrefix, options) {
			if err != nil {
				return err
			}
			if name, uid, _, ok := format.ParseExpirationKey(object.Key); ok && name == f.StoreName && uid == f.UID {
				objects = append(objects, object)
			}
		}
		return nil
	})
	return objects, err
}

// NewestExpiration returns the change that counts for the given metadata, or nil, and the last used
// number. A change counts if the backup's own cluster signed it: with the metadata's key or, for this
// cluster's backup, one of keys. Any writer to the store could make others.
func (f *Folder) NewestExpiration(ctx context.Context, of *v1alpha1.Backup, clusterUID string, keys []string) (newest *format.Expiration, last int64, err error) {
	objects, err := f.Expirations(ctx)
	if err != nil {
		return nil, 0, err
	}
	names := make([]string, 0, len(objects))
	for _, object := range objects {
		names = append(names, object.Key)
		if _, _, number, ok := format.ParseExpirationKey(object.Key); ok {
			last = max(last, number)
		}
	}
	for _, key := range format.NewestFirst(names) {
		_, _, number, _ := format.ParseExpirationKey(key)
		data, err := f.read(ctx, key, format.MaxExpirationBytes)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		change, err := format.DecodeExpiration(data, f.StoreName, f.UID, number)
		if err != nil {
			klog.FromContext(ctx).Info("A change of until when a backup is kept is not believed", "key", key, "reason", err.Error())
			continue
		}
		if believed(change, of, clusterUID, keys) {
			return change, last, nil
		}
	}
	return nil, last, nil
}

// Creator creates an object, or fails with store.ErrExists.
type Creator interface {
	Create(ctx context.Context, key string, content []byte) error
}

var (
	ErrGone    = errors.New("the backup is not in the store")
	ErrTooMany = fmt.Errorf("the backup has had %d changes, and no more are made", format.MaxExpirations)
)

const changeAttempts = 5

// Change signs and writes another change, and returns the one that counts then. next makes it from the
// current state; false writes nothing. If another writer was first, next is called again.
func (f *Folder) Change(ctx context.Context, creator Creator, by format.Cluster, keys []string, next func(backup *v1alpha1.Backup, stands *format.Expiration) (bool, error)) (*format.Expiration, error) {
	for range changeAttempts {
		backup, err := f.Find(ctx)
		if err != nil {
			return nil, err
		}
		if backup == nil {
			return nil, ErrGone
		}
		newest, last, err := f.NewestExpiration(ctx, backup, by.UID, keys)
		if err != nil {
			return nil, err
		}
		stands := format.Expiration{StoreName: f.StoreName, UID: f.UID, Expiration: backup.Status.Expiration}
		if newest != nil {
			stands = *newest
		}
		write, err := next(backup, &stands)
		switch {
		case err != nil:
			return nil, err
		case !write:
			return newest, nil
		case last >= format.MaxExpirations:
			return nil, ErrTooMany
		}
		stands.Number = last + 1
		content, err := format.EncodeExpiration(stands, by)
		if err != nil {
			return nil, err
		}
		err = f.Try(ctx, func(ctx context.Context) error {
			return creator.Create(ctx, format.ExpirationKey(f.StoreName, f.UID, stands.Number), content)
		})
		if err == nil {
			return &stands, nil
		}
		if !errors.Is(err, store.ErrExists) {
			return nil, err
		}
	}
	return nil, errors.New("others make changes of the backup again and again")
}

func believed(change *format.Expiration, of *v1alpha1.Backup, clusterUID string, keys []string) bool {
	origin := of.Status.Origin
	if origin == nil || origin.Trust != "" || change.ClusterUID != origin.ClusterUID {
		return false // not as its cluster signed it
	}
	return change.PublicKey == origin.PublicKey || origin.ClusterUID == clusterUID && slices.Contains(keys, change.PublicKey)
}

// Find returns the backup with this uid from its metadata, or from its copy if another writer has
// replaced that; else nil.
func (f *Folder) Find(ctx context.Context) (*v1alpha1.Backup, error) {
	for _, read := range []func(context.Context) (*v1alpha1.Backup, error){f.Metadata, f.Copy} {
		backup, err := read(ctx)
		if err != nil && !errors.Is(err, format.ErrUnfinished) {
			return nil, err
		}
		if backup != nil && backup.UID == f.UID {
			return backup, nil
		}
	}
	return nil, nil
}

// RemoveExpirations removes a removed backup's changes.
func (f *Folder) RemoveExpirations(ctx context.Context, remover store.Remover, present func() error) error {
	objects, err := f.Expirations(ctx)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := present(); err != nil {
			return err
		}
		if err := f.Remove(ctx, remover, object); err != nil {
			return err
		}
	}
	return nil
}
