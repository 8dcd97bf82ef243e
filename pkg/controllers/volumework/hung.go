// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Hung are the volumes whose work does not return. The controllers of an agent share it: a volume
// that hangs in one's work does so in the other's. Its zero value is ready.
type Hung struct {
	mu      sync.Mutex
	volumes map[volume]hung
}

// hung is how many works on a volume do not return, and since when the first one does not.
type hung struct {
	since time.Time
	works int
}

// volume is what a hung mount makes unusable.
type volume struct {
	pod  types.UID
	name string
}

func (t Target) volume() volume {
	if t.PersistentVolume != "" {
		return volume{name: t.PersistentVolume} // whichever pod mounts it
	}
	return volume{pod: t.Pod, name: t.Volume}
}

// add adds a volume, until the work is said to have returned.
func (h *Hung) add(v volume, now time.Time) (returned func()) {
	h.count(v, now, 1)
	return func() { h.count(v, now, -1) }
}

func (h *Hung) count(v volume, now time.Time, works int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, known := h.volumes[v]
	if !known {
		of.since = now
	}
	if of.works += works; of.works == 0 {
		delete(h.volumes, v)
		return
	}
	if h.volumes == nil {
		h.volumes = map[volume]hung{}
	}
	h.volumes[v] = of
}

// since reports whether, and since when, work on a volume does not return.
func (h *Hung) since(v volume) (since time.Time, hangs bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, hangs := h.volumes[v]
	return of.since, hangs
}
