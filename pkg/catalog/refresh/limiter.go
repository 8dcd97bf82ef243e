// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// limiter adapts the number of concurrent requests to the store, and of readers of entries. With each
// answer while at least half is used, the limit grows: it doubles each round before the first overload,
// then grows by one. An overload halves it.
type limiter struct {
	clock clock.PassiveClock
	most  float64

	mu       sync.Mutex
	limit    float64   // guarded by mu
	met      bool      // the store was overloaded; guarded by mu
	halved   time.Time // time of the last halving; guarded by mu
	requests lane
	readers  lane
}

type lane struct {
	busy    int             // guarded by limiter.mu
	waiting []chan struct{} // guarded by limiter.mu
}

func newLimiter(first, most int, clock clock.PassiveClock) *limiter {
	return &limiter{clock: clock, limit: float64(first), most: float64(max(first, most))}
}

func (l *limiter) enter(ctx context.Context, in *lane) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	if in.busy < int(l.limit) {
		in.busy++
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	in.waiting = append(in.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, other := range in.waiting {
		if other == turn {
			in.waiting = append(in.waiting[:i], in.waiting[i+1:]...)
			return ctx.Err()
		}
	}
	l.leaveLocked(in)
	return ctx.Err()
}

// reenter takes a place without waiting, after a short leave.
func (l *limiter) reenter(in *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in.busy++
}

func (l *limiter) leave(in *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveLocked(in)
}

func (l *limiter) leaveLocked(in *lane) {
	in.busy--
	l.wakeLocked()
}

func (l *limiter) wakeLocked() {
	for _, in := range []*lane{&l.requests, &l.readers} {
		for len(in.waiting) > 0 && in.busy < int(l.limit) {
			in.busy++
			close(in.waiting[0])
			in.waiting = in.waiting[1:]
		}
	}
}

func (l *limiter) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.requests.busy < int(l.limit)/2: // proves nothing about the limit
	case l.met:
		l.limit = min(l.most, l.limit+1/l.limit)
	default:
		l.limit = min(l.most, l.limit+1)
	}
	l.wakeLocked()
}

func (l *limiter) overloaded(begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if begun.After(l.halved) { // else it was sent under the former limit
		l.limit, l.met, l.halved = max(1, l.limit/2), true, l.clock.Now()
	}
}
