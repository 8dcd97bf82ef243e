// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"context"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Get implements storage.Interface.
func (l *Log[T]) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, err := storage.PrepareKey(l.prefix, key, false)
	if err != nil {
		return err
	}
	atLeast, err := l.parseVersion(opts.ResourceVersion)
	if err != nil {
		return err
	}
	l.mu.Lock()
	err = l.checkOpenLocked()
	e, rv := l.state.get(key), l.rv
	if err == nil && e == nil && !l.ready {
		err = l.tooEarly() // it may be there
	}
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if atLeast > rv {
		return storage.NewTooLargeResourceVersionError(atLeast, rv, 0)
	}
	l.onRead(ctx)
	switch {
	case e != nil:
		return setTo(l.copyOf(e.within), out)
	case opts.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	default:
		return storage.NewKeyNotFoundError(key, int64(rv))
	}
}

// GetList implements storage.Interface.
func (l *Log[T]) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	key, err := storage.PrepareKey(l.prefix, key, opts.Recursive)
	if err != nil {
		return err
	}
	exactly, continueKey, err := storage.ValidateListOptions(key, l.versioner, opts)
	if err != nil {
		return err
	}
	itemsPtr, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return err
	}
	items, err := conversion.EnforcePtr(itemsPtr)
	if err != nil {
		return err
	}
	s, rv, err := l.stateFor(opts, uint64(exactly), continueKey, key)
	if err != nil {
		return err
	}
	l.onRead(ctx)

	found, err := selectPage(s, l.scopeOf(key, opts.Recursive), continueKey, &opts.Predicate)
	if err != nil {
		return err
	}
	items.Set(reflect.MakeSlice(items.Type(), len(found.views), len(found.views)))
	for i, v := range found.views {
		items.Index(i).Set(reflect.ValueOf(l.copyOf(v)).Elem())
	}
	token, remaining, err := storage.PrepareContinueToken(found.lastKey, key, int64(rv), found.count, found.more, opts)
	if err != nil {
		return err
	}
	if err := l.versioner.UpdateList(listObj, rv, token, remaining); err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(listObj)
	return nil
}

// stateFor returns the state for a list, and its version: the current one, or exactly unless zero.
func (l *Log[T]) stateFor(opts storage.ListOptions, exactly uint64, continueKey, key string) (state[T], uint64, error) {
	var none state[T]
	l.mu.Lock()
	if err := l.checkOpenLocked(); err != nil {
		l.mu.Unlock()
		return none, 0, err
	}
	now, rv := l.snapshotLocked()
	ready, first := l.ready, l.first
	l.mu.Unlock()

	if exactly == 0 || exactly == rv {
		atLeast, err := l.parseVersion(opts.ResourceVersion)
		if err == nil && opts.ResourceVersion != "" && atLeast < first && !ready {
			err = l.tooEarly() // an informer, which may know more than is loaded yet
		}
		if err == nil && atLeast > rv {
			err = storage.NewTooLargeResourceVersionError(atLeast, rv, 0)
		}
		return now, rv, err
	}
	if exactly > rv && continueKey == "" {
		return none, 0, storage.NewTooLargeResourceVersionError(exactly, rv, 0)
	}
	if exactly < rv {
		if past, ok := l.snapshotAt(exactly); ok {
			return past, exactly, nil
		}
	}
	if continueKey == "" {
		return none, 0, apierrors.NewResourceExpired(fmt.Sprintf(
			"The resourceVersion for the provided list is too old. Version %d is not remembered; list without a resourceVersion.", exactly))
	}
	return none, 0, ExpiredContinue(continueKey, key)
}

// ExpiredContinue returns the answer to an expired continue token, with a token for the current version (rv -1, a
// convention of Kubernetes).
func ExpiredContinue(continueKey, key string) error {
	token, err := storage.EncodeContinue(continueKey, key, -1)
	if err != nil {
		return apierrors.NewResourceExpired(
			"The provided continue parameter is too old to display a consistent list result. Start a new list without it.")
	}
	expired := apierrors.NewResourceExpired(
		"The provided continue parameter is too old to display a consistent list result. Start a new list without it, " +
			"or go on with the continue token of this response: the rest of the list is then as of now, " +
			"and objects that changed in between may be missing or appear twice.")
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}

type page[T Object] struct {
	views   []view[T]
	lastKey string // of the last entry that was checked for the page
	count   int64  // entries from the page's beginning to the scope's end; only without a selector
	more    bool
}

func selectPage[T Object](s state[T], sc scope, from string, selector *storage.SelectionPredicate) (page[T], error) {
	var p page[T]
	unfiltered := selector.Empty()
	for e := range s.scan(sc, from) {
		p.count++
		if selector.Limit > 0 && int64(len(p.views)) == selector.Limit {
			p.more = true
			if unfiltered {
				continue
			}
			break
		}
		shown := e.in(sc)
		ok, err := selector.Matches(shown.obj)
		if err != nil {
			return p, err
		}
		if ok {
			p.views = append(p.views, shown)
		}
		p.lastKey = e.key
	}
	return p, nil
}

func (l *Log[T]) onRead(ctx context.Context) {
	if l.options.OnRead != nil {
		l.options.OnRead(ctx)
	}
}

func (l *Log[T]) parseVersion(s string) (uint64, error) {
	rv, err := l.versioner.ParseResourceVersion(s)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resourceVersion %q: use one that a get, list or watch returned", s))
	}
	return rv, nil
}

func copyInto[T Object](obj T, out runtime.Object) error {
	return setTo(obj.DeepCopyObject().(T), out)
}

// setTo sets out, unless nil, to obj, which it takes over.
func setTo[T Object](obj T, out runtime.Object) error {
	if out == nil {
		return nil
	}
	v, err := conversion.EnforcePtr(out)
	if err != nil {
		return err
	}
	c := reflect.ValueOf(obj).Elem()
	if c.Type() != v.Type() {
		return fmt.Errorf("can't read a %T into a %T", obj, out)
	}
	v.Set(c)
	return nil
}
