// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// GCPercent is the garbage that starts a collection, in percent of the scanned heap. Go's default allows all live
// memory.
const GCPercent = 40

// leastGCPercent bounds the frequency of collections if little is scanned.
const leastGCPercent = 10

// garbage adapts the collector as the catalogue grows.
type garbage struct {
	mu      sync.Mutex
	percent int // as last set; guarded by mu
}

// allow sets how many live bytes a collection does not scan, since Go's percents are of all live memory. A user's
// GOGC takes precedence.
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
	if g.percent != percent { // setting it stops the world for a moment
		g.percent = percent
		debug.SetGCPercent(percent)
	}
}

func percentOf(live, resting int64) int {
	if live <= 0 {
		return GCPercent
	}
	return max(leastGCPercent, int(GCPercent*max(live-resting, 0)/live))
}
