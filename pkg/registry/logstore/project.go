// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"errors"
	"fmt"
	"iter"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"
)

// Apply stores objects that are new or differ, the resourceVersion aside, at once, and returns the number of
// events. The caller keeps the objects, and sets their uid and creationTimestamp. If an object is invalid or given
// twice, Apply fails and stores nothing.
func (l *Log[T]) Apply(objs ...T) (int, error) {
	wanted, err := l.byKey(objs, nil)
	if err != nil {
		return 0, err
	}
	l.writers.Lock()
	defer l.writers.Unlock()
	return l.commit(l.differences(wanted, l.lookup)), nil
}

// Replace applies objs and removes all others, at once. Requests over all namespaces see an object of over instead
// of its namesake.
func (l *Log[T]) Replace(objs []T, over ...T) (int, error) {
	wanted, err := l.byKey(objs, over)
	if err != nil {
		return 0, err
	}
	given := make(map[string]struct{}, len(wanted))
	for _, w := range wanted {
		given[w.key] = struct{}{}
	}
	l.writers.Lock()
	defer l.writers.Unlock()
	l.mu.Lock()
	current, _ := l.snapshotLocked()
	l.mu.Unlock()

	changes := l.differences(wanted, current.get)
	for e := range current.scan(l.scopeOf(l.prefix, true), "") {
		if _, ok := given[e.key]; !ok {
			changes = append(changes, change[T]{key: e.key, remove: true})
		}
	}
	return l.commit(changes), nil
}

// Update stores objects like Apply and removes those in gone, at once. It skips an object that is invalid or given
// twice; the error names it. over is as for Replace.
func (l *Log[T]) Update(set []T, gone []types.NamespacedName, over ...T) (int, error) {
	wanted := make([]change[T], 0, len(set))
	seen := make(map[string]bool, len(set))
	var errs []error
	for _, obj := range set {
		one, err := l.byKey([]T{obj}, nil)
		if err == nil && seen[one[0].key] {
			err = fmt.Errorf("%s %q of namespace %q is given twice", l.options.Resource, obj.GetName(), obj.GetNamespace())
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		seen[one[0].key] = true
		wanted = append(wanted, one[0])
	}
	l.setOver(wanted, over)
	l.writers.Lock()
	defer l.writers.Unlock()
	var changes []change[T]
	for _, name := range gone {
		if key := l.key(name.Namespace, name.Name); l.lookup(key) != nil && !seen[key] {
			changes = append(changes, change[T]{key: key, remove: true})
		}
	}
	return l.commit(append(changes, l.differences(wanted, l.lookup)...)), errors.Join(errs...)
}

// Remove removes an object and reports whether it existed. Cluster-scoped objects have no namespace.
func (l *Log[T]) Remove(namespace, name string) bool {
	key := l.key(namespace, name)
	l.writers.Lock()
	defer l.writers.Unlock()
	if l.lookup(key) == nil {
		return false
	}
	l.commit([]change[T]{{key: key, remove: true}})
	return true
}

// GetObject returns a copy of an object, whether or not the log is ready.
func (l *Log[T]) GetObject(namespace, name string) (T, bool) {
	e := l.lookup(l.key(namespace, name))
	if e == nil {
		var none T
		return none, false
	}
	return e.within.obj.DeepCopyObject().(T), true
}

// All yields a namespace's objects as it sees them, whether or not the log is ready. The caller must not change
// them.
func (l *Log[T]) All(namespace string) iter.Seq[T] {
	return func(yield func(T) bool) {
		l.mu.Lock()
		now, _ := l.snapshotLocked()
		l.mu.Unlock()
		for e := range now.scan(scope{key: l.key(namespace, ""), recursive: true}, "") {
			if !yield(e.within.obj) {
				return
			}
		}
	}
}

// commit returns the number of changes. The caller holds writers.
func (l *Log[T]) commit(changes []change[T]) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commitLocked(changes...)
	return len(changes)
}

// differences returns the changes that make the stored objects equal to wanted, with copies. An object with
// another uid is deleted first.
func (l *Log[T]) differences(wanted []change[T], stored func(key string) *entry[T]) []change[T] {
	var changes []change[T]
	for _, w := range wanted {
		e := stored(w.key)
		if e != nil {
			w.key = e.key // one string for all versions
			if e.within.obj.GetUID() != w.within.obj.GetUID() {
				changes = append(changes, change[T]{key: w.key, remove: true})
				e = nil
			}
		}
		one := w.within.is(w.over)
		var within, over bool
		if e != nil {
			within = same(e.within.obj, w.within.obj)
			if over = within; !one || !e.within.is(e.over) {
				over = same(e.over.obj, w.over.obj)
			}
		}
		if within && over {
			continue
		}
		if within {
			w.within = e.within
		} else {
			w.within.obj = w.within.obj.DeepCopyObject().(T)
		}
		switch {
		case over:
			w.over = e.over
		case one && !within:
			w.over = w.within
		default:
			w.over.obj = w.over.obj.DeepCopyObject().(T)
		}
		changes = append(changes, w)
	}
	return changes
}

// byKey pairs objects, in order, with their keys and their namesakes in over.
func (l *Log[T]) byKey(objs, over []T) ([]change[T], error) {
	seen := make(map[string]struct{}, len(objs))
	wanted := make([]change[T], 0, len(objs))
	for _, obj := range objs {
		key, err := l.keyOf(obj)
		if err != nil {
			return nil, fmt.Errorf("can't store %s %q of namespace %q: %w", l.options.Resource, obj.GetName(), obj.GetNamespace(), err)
		}
		if _, ok := seen[key]; ok {
			return nil, fmt.Errorf("%s %q of namespace %q is given twice", l.options.Resource, obj.GetName(), obj.GetNamespace())
		}
		seen[key] = struct{}{}
		wanted = append(wanted, alike(key, obj))
	}
	l.setOver(wanted, over)
	return wanted, nil
}

func (l *Log[T]) setOver(wanted []change[T], over []T) {
	if len(over) == 0 {
		return
	}
	byKey := make(map[string]T, len(over))
	for _, obj := range over {
		byKey[l.key(obj.GetNamespace(), obj.GetName())] = obj
	}
	for i := range wanted {
		if obj, ok := byKey[wanted[i].key]; ok {
			wanted[i].over.obj = obj
		}
	}
}

func (l *Log[T]) keyOf(obj T) (string, error) {
	switch namespace := obj.GetNamespace(); {
	case !l.options.Namespaced && namespace != "":
		return "", fmt.Errorf("the resource is cluster-scoped; leave metadata.namespace empty")
	case !l.options.Namespaced:
		return storage.NoNamespaceKeyFunc(l.prefix, obj)
	case namespace == "":
		return "", fmt.Errorf("the resource is namespaced; set metadata.namespace")
	default:
		return storage.NamespaceKeyFunc(l.prefix, obj)
	}
}

func (l *Log[T]) key(namespace, name string) string {
	if l.options.Namespaced {
		return l.prefix + namespace + "/" + name
	}
	return l.prefix + name
}

func setVersion[T Object](obj T, rv uint64) { obj.SetResourceVersion(strconv.FormatUint(rv, 10)) }

func withVersion[T Object](obj T, rv uint64) T {
	c := obj.DeepCopyObject().(T)
	setVersion(c, rv)
	return c
}
