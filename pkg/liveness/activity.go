// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package liveness

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Activity is what the agents of nodes were seen to do, of whichever kind: backups and
// restores share an agent's slots. Its zero value has seen nothing. It is safe for concurrent
// use.
type Activity struct {
	mu    sync.Mutex
	nodes map[string]*activity
}

// activity is that of one agent.
type activity struct {
	// last is when work began or ended.
	last       time.Time
	inProgress sets.Set[types.UID]
}

// Saw takes note of a record of an agent's work: whether that is in progress, which a record
// that is gone is not, and whether its phase was seen to change.
func (a *Activity) Saw(node string, record types.UID, inProgress, changed bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.nodes[node]
	if of == nil {
		of = &activity{inProgress: sets.New[types.UID]()}
		if a.nodes == nil {
			a.nodes = map[string]*activity{}
		}
		a.nodes[node] = of
	}
	if changed || inProgress != of.inProgress.Has(record) {
		of.last = now
	}
	if inProgress {
		of.inProgress.Insert(record)
	} else {
		of.inProgress.Delete(record)
	}
}

// Idle is for how long a node's agent was not seen to begin or end any work, counted from a
// time at the earliest, and whether it has some in progress.
func (a *Activity) Idle(node string, since, now time.Time) (idle time.Duration, busy bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if of := a.nodes[node]; of != nil {
		busy = of.inProgress.Len() > 0
		if of.last.After(since) {
			since = of.last
		}
	}
	return now.Sub(since), busy
}
