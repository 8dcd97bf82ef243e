// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Activity is the observed work of the nodes' agents, with slots for backups and restores. The zero
// value is empty. It is safe for concurrent use.
type Activity struct {
	mu    sync.Mutex
	nodes map[string]*activity
}

type activity struct {
	last       time.Time
	inProgress sets.Set[types.UID]
}

// Saw records an agent's work: whether it is in progress, false for a deleted record, and a change of
// its phase.
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

// Idle returns for how long, at most since a time, a node's agent has neither begun nor ended work, and
// whether it works.
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
