// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
)

type change[T Object] struct {
	key          string
	within, over view[T] // owned by the log; without a version it is new
	remove       bool
}

func alike[T Object](key string, obj T) change[T] {
	return change[T]{key: key, within: view[T]{obj: obj}, over: view[T]{obj: obj}}
}

// commitLocked makes each change an event with its own version. The caller holds writers and mu.
func (l *Log[T]) commitLocked(changes ...change[T]) {
	if len(changes) == 0 {
		return
	}
	now := l.clock.Now()
	for _, c := range changes {
		l.rv++
		e := event[T]{rv: l.rv, at: now}
		if c.remove {
			e.was = l.state.remove(c.key)
		} else {
			e.now = &entry[T]{c.key, issue(c.within, l.rv), issue(c.over, l.rv)}
			e.was = l.state.set(e.now)
		}
		l.history.add(e)
	}
	l.wakeLocked()
}

func issue[T Object](v view[T], rv uint64) view[T] {
	if v.rv == 0 {
		v.rv = rv
		setVersion(v.obj, rv)
	}
	return v
}

func (l *Log[T]) lookup(key string) *entry[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.get(key)
}

// equalities ignores the resourceVersion, which the log assigns.
var equalities = func() conversion.Equalities {
	e := equality.Semantic.Copy()
	if err := e.AddFunc(func(a, b metav1.ObjectMeta) bool {
		a.ResourceVersion, b.ResourceVersion = "", ""
		return equality.Semantic.DeepEqual(a, b)
	}); err != nil {
		panic(err) // the function's signature is wrong
	}
	return e
}()

func same[T Object](a, b T) bool { return equalities.DeepEqual(a, b) }
