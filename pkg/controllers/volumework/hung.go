// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Hung are volumes whose work does not return. All controllers of an agent share it: a hanging volume
// hangs in each. Its zero value is ready.
type Hung struct {
	mu      sync.Mutex
	volumes map[volume]hung
}

// hung counts a volume's hanging works; since is the first one's time.
type hung struct {
	since time.Time
	works int
}

type volume struct {
	pod  types.UID
	name string
}

func (t Target) volume() volume {
	if t.PersistentVolume != "" {
		return volume{name: t.PersistentVolume} // any pod may mount it
	}
	return volume{pod: t.Pod, name: t.Volume}
}

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

func (h *Hung) since(v volume) (since time.Time, hangs bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, hangs := h.volumes[v]
	return of.since, hangs
}
