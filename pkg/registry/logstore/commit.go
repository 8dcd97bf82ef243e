// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
)

// change is what a writer wants done: store obj at key, or remove what is there.
type change[T Object] struct {
	key    string
	obj    T // owned by the log from here on
	remove bool
}

// commitLocked makes each change an event with a version of its own. The caller
// holds writers and mu.
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
			setVersion(c.obj, l.rv)
			e.now = &entry[T]{key: c.key, rv: l.rv, obj: c.obj}
			e.was = l.state.set(e.now)
		}
		l.history.add(e)
	}
	l.wakeLocked()
}

// lookup returns the current entry at key, or nil.
func (l *Log[T]) lookup(key string) *entry[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.get(key)
}

// equalities compares like equality.Semantic, but for the resourceVersion, which
// the log itself assigns.
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
