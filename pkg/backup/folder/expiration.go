// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Expirations describes the changes of until when the backup is kept, which lie beside its
// folder.
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

// NewestExpiration is the change that counts, of a backup whose metadata is given; nil
// without one. A change is believed if the backup's own cluster has made it: it is signed
// with the key of the backup's metadata, or with another one of these keys if the backup is
// this cluster's. last is the greatest number that is taken, by whomever.
//
// What can't be read of the store is an error. What can be read and is not believed is
// passed over: whoever can write to the store could put it there, and takes no hold away by
// that, nor makes one.
func (f *Folder) NewestExpiration(ctx context.Context, of *holdfast.Backup, clusterUID string, keys []string) (newest *format.Expiration, last int64, err error) {
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

// Creator creates what is not there yet, or fails with store.ErrExists.
type Creator interface {
	Create(ctx context.Context, key string, content []byte) error
}

// Errors of Change, for errors.Is.
var (
	// ErrGone says that the store has no such backup.
	ErrGone = errors.New("the backup is not in the store")
	// ErrTooMany says that there are so many changes that no more are made.
	ErrTooMany = fmt.Errorf("the backup has had %d changes, and no more are made", format.MaxExpirations)
)

// changeAttempts are for numbers that others take at the same moment.
const changeAttempts = 5

// Change writes another change beside the backup's folder, which a cluster signs, and gives the
// one that counts then. next makes it of how things stand, in which it is what it changes; it
// is false if nothing is to be written, or fails. Of two writers at once one is asked again,
// for how things stand after the other.
func (f *Folder) Change(ctx context.Context, creator Creator, by format.Cluster, keys []string, next func(backup *holdfast.Backup, stands *format.Expiration) (bool, error)) (*format.Expiration, error) {
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

func believed(change *format.Expiration, of *holdfast.Backup, clusterUID string, keys []string) bool {
	origin := of.Status.Origin
	if origin == nil || origin.Trust != "" || change.ClusterUID != origin.ClusterUID {
		return false // the metadata is not as anybody has signed it
	}
	return change.PublicKey == origin.PublicKey || origin.ClusterUID == clusterUID && slices.Contains(keys, change.PublicKey)
}

// Find is the backup that is in the store with this uid, in its metadata or, beneath
// another writer's, in the copy; nil if there is none.
func (f *Folder) Find(ctx context.Context) (*holdfast.Backup, error) {
	for _, read := range []func(context.Context) (*holdfast.Backup, error){f.Metadata, f.Copy} {
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

// RemoveExpirations removes the changes, when there is nothing left that they are about.
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
