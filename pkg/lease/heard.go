// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// unheardAfter is longer than a takeover.
const unheardAfter = LeaderDuration + 5*time.Second

// LeaderWatch knows from LeaderLease since when no controller was heard, without comparing processes'
// clocks. It is safe for concurrent use.
type LeaderWatch struct {
	clock  clock.PassiveClock
	synced cache.InformerSynced

	mu   sync.Mutex
	seen sighting
}

// NewLeaderWatch returns a LeaderWatch on an informer.
func NewLeaderWatch(leases cache.SharedIndexInformer, clock clock.PassiveClock) (*LeaderWatch, error) {
	l := &LeaderWatch{clock: clock, seen: sighting{at: clock.Now()}}
	registration, err := leases.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    l.changed,
		UpdateFunc: func(_, obj any) { l.changed(obj) },
	})
	if err != nil {
		return nil, err
	}
	l.synced = registration.HasSynced
	return l, nil
}

func (l *LeaderWatch) changed(obj any) {
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok || lease.Name != LeaderLease || isHolder(lease, "") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.seen.is(lease) {
		l.seen = sighting{uid: lease.UID, version: lease.ResourceVersion, at: l.clock.Now()}
	}
}

// Unheard returns since when no controller was heard, if known, and a sentence why runs wait; else
// zero.
func (l *LeaderWatch) Unheard() (since time.Time, message string) {
	if !l.synced() {
		return time.Time{}, ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clock.Since(l.seen.at) < unheardAfter {
		return time.Time{}, ""
	}
	since = l.seen.at
	return since, fmt.Sprintf("no controller was heard of since %s: see whether the Deployment holdfast-controller runs", since.UTC().Format(time.RFC3339))
}
