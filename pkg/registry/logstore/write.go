// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// For the upstream test suite of storage.Interface only: no resource offers the writes of clients.

// commitIf commits c if the object at its key is still seen (nil: none), and returns the version.
func (l *Log[T]) commitIf(seen *entry[T], c change[T]) (uint64, bool) {
	l.writers.Lock()
	defer l.writers.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.get(c.key) != seen {
		return 0, false
	}
	l.commitLocked(c)
	return l.rv, true
}

// Create implements storage.Interface.
func (l *Log[T]) Create(_ context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	key, err := l.prepareWrite(key)
	if err != nil {
		return err
	}
	if rv, err := l.versioner.ObjectResourceVersion(obj); err == nil && rv != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	c, err := l.forStorage(obj)
	if err != nil {
		return err
	}
	rv, ok := l.commitIf(nil, alike(key, c))
	if !ok {
		return storage.NewKeyExistsError(key, 0)
	}
	l.expireAfter(key, rv, ttl)
	return copyInto(c, out)
}

// Delete implements storage.Interface.
func (l *Log[T]) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions) error {
	key, err := l.prepareWrite(key)
	if err != nil {
		return err
	}
	for {
		e := l.lookup(key)
		if e == nil {
			return storage.NewKeyNotFoundError(key, 0)
		}
		current := l.copyOf(e.within)
		if err := preconditions.Check(key, current); err != nil {
			return err
		}
		if err := validate(ctx, current); err != nil {
			return err
		}
		if rv, ok := l.commitIf(e, change[T]{key: key, remove: true}); ok {
			return copyInto(withVersion(e.within.obj, rv), out)
		}
	}
}

// GuaranteedUpdate implements storage.Interface. It reads memory, so it ignores a cached object.
func (l *Log[T]) GuaranteedUpdate(_ context.Context, key string, dst runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object) error {
	key, err := l.prepareWrite(key)
	if err != nil {
		return err
	}
	for {
		e := l.lookup(key)
		if e == nil && !ignoreNotFound {
			return storage.NewKeyNotFoundError(key, 0)
		}
		current, version := runtime.Object(l.newObject()), uint64(0)
		if e != nil {
			current, version = l.copyOf(e.within), max(e.within.rv, l.floor.Load())
		}
		if err := preconditions.Check(key, current); err != nil {
			return err
		}
		updated, ttl, err := tryUpdate(current, storage.ResponseMeta{ResourceVersion: version})
		if err != nil {
			return err
		}
		c, err := l.forStorage(updated)
		if err != nil {
			return err
		}
		if e != nil && ttl == nil && same(e.within.obj, c) {
			return setTo(l.copyOf(e.within), dst)
		}
		rv, ok := l.commitIf(e, alike(key, c))
		if !ok {
			continue
		}
		if ttl != nil {
			l.expireAfter(key, rv, *ttl)
		}
		return copyInto(c, dst)
	}
}

// prepareWrite refuses writes before the log is ready: it does not know what exists.
func (l *Log[T]) prepareWrite(key string) (string, error) {
	key, err := storage.PrepareKey(l.prefix, key, false)
	if err != nil {
		return "", err
	}
	return key, l.ReadinessCheck()
}

func (l *Log[T]) forStorage(obj runtime.Object) (T, error) {
	c, ok := obj.DeepCopyObject().(T)
	if !ok {
		return c, fmt.Errorf("can't store a %T among %s", obj, l.options.Resource)
	}
	return c, l.versioner.PrepareObjectForStorage(c)
}

// minTTL is the shortest time to live. etcd has one too.
const minTTL = 2 * time.Second

// expireAfter removes the object at key after ttl seconds, unless 0 or it has changed since rv.
func (l *Log[T]) expireAfter(key string, rv, ttl uint64) {
	if ttl == 0 {
		return
	}
	time.AfterFunc(max(time.Duration(ttl)*time.Second, minTTL), func() {
		if e := l.lookup(key); e != nil && e.within.rv == rv {
			l.commitIf(e, change[T]{key: key, remove: true})
		}
	})
}
