// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// GCPercent is how much garbage there may be before it is collected, in percent of what is
// looked at then. By default it could be as much as all that lives.
const GCPercent = 40

// leastGCPercent bounds how often memory is collected when hardly anything has to be looked at.
const leastGCPercent = 10

// garbage keeps the room for garbage as the catalogue grows.
type garbage struct {
	mu      sync.Mutex
	percent int // as it was set last; guarded by mu
}

// allow takes note of how many bytes live on the heap that a collection does not look at. Go
// counts its percents of all that lives. Whoever has set GOGC has the last word.
func (g *garbage) allow(resting int64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	percent := GCPercent
	if live[0].Value.Kind() == metrics.KindUint64 {
		percent = percentOf(int64(live[0].Value.Uint64()), resting)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.percent != percent { // to set it stops the world for a moment
		g.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentOf is how many percent of what lives are GCPercent of what of that is not resting.
func percentOf(live, resting int64) int {
	if live <= 0 {
		return GCPercent
	}
	return max(leastGCPercent, int(GCPercent*max(live-resting, 0)/live))
}
