// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	fewFaults  = 0.01
	manyFaults = 0.25
)

// scene is one thing that happens after a while.
type scene struct {
	after time.Duration
	do    func()
}

// play plays the next scene, if there is one.
func (w *world) play() {
	if len(w.script) > 0 {
		next := w.script[0]
		w.script = w.script[1:]
		next.do()
	}
}

// weather is a random episode.
func (w *world) weather() []scene {
	p := w.processes[w.random.IntN(len(w.processes))]
	switch kind := w.random.IntN(24); {
	case kind < 6:
		return w.stale(p)
	case kind < 9: // the network is bad
		return []scene{{w.upTo(30 * time.Second), func() { w.setFaults(manyFaults) }}, {w.upTo(40 * time.Second), func() { w.setFaults(fewFaults) }}}
	case kind < 13: // a store goes away; that is noticed sooner or later
		return []scene{
			{w.upTo(30 * time.Second), func() { w.setDown(true) }},
			{w.upTo(2 * time.Minute), func() { w.setDown(false) }},
		}
	case kind >= 22: // a store answers checks, and no run for a while, or now and then
		deaf := func(deaf bool) func() {
			return func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.deaf = deaf
			}
		}
		var scenes []scene
		for range 1 + w.random.IntN(4) {
			scenes = append(scenes, scene{w.upTo(20 * time.Second), deaf(true)}, scene{w.upTo(2 * time.Minute), deaf(false)})
		}
		return scenes
	case kind >= 20: // a location is made anew in another format, and anew as it was
		replace := func(foreign bool) func() {
			return func() {
				if err := w.EngineV1alpha1().StorageLocations(system).Delete(w.Context(), flaky, metav1.DeleteOptions{}); err != nil {
					w.Fatal(err)
				}
				w.mu.Lock()
				w.foreign = foreign
				w.mu.Unlock()
				w.createLocation(flaky)
			}
		}
		return []scene{{w.upTo(time.Minute), replace(true)}, {w.upTo(20 * time.Second), replace(false)}}
	case kind < 15: // paused, and not for long enough to be taken for dead
		return w.pausing(p, w.upTo(9*time.Second))
	case kind < 16: // restarted
		return []scene{{w.upTo(time.Minute), p.stop}}
	case kind < 17: // killed
		return []scene{{w.upTo(time.Minute), p.kill}}
	case kind < 18: // paused until another one leads
		scenes := w.pausing(p, 15*time.Second+w.upTo(time.Minute))
		return append(append(scenes[:1:1], scene{15 * time.Second, w.another}), scenes[1:]...)
	case kind < 19: // two lead, one of them on what it knew before; the other is killed
		var other *process
		trouble := w.stale(p)
		if w.random.IntN(2) == 0 {
			trouble = w.pausing(p, w.upTo(20*time.Second))
		}
		return append(append([]scene{{w.upTo(time.Minute), func() { w.another(); other = w.processes[len(w.processes)-1] }}},
			trouble...), scene{w.upTo(time.Minute), func() { other.kill() }})
	}
	return []scene{{w.upTo(2 * time.Minute), func() {}}}
}

// stale keeps a process from seeing anything.
func (w *world) stale(p *process) []scene {
	var release func()
	return []scene{
		{w.upTo(30 * time.Second), func() { release = p.hold() }},
		{w.upTo(40 * time.Second), func() { release() }},
	}
}

// pausing keeps a process from sending and from seeing anything.
func (w *world) pausing(p *process, length time.Duration) []scene {
	var release func()
	return []scene{
		{w.upTo(time.Minute), func() { p.pause(); release = p.hold() }},
		{length, func() { release(); p.resume() }},
	}
}

// another starts one more leader.
func (w *world) another() { w.processes = append(w.processes, w.launch()) }

// revive puts a new process in the place of the last one that has ended.
func (w *world) revive() {
	var living []*process
	for _, p := range w.processes {
		if !p.isDead() && !p.hasStopped() {
			living = append(living, p)
		}
	}
	w.processes = living
	if len(living) == 0 {
		w.another()
	}
}

func (w *world) setFaults(rate float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = rate
}

func (w *world) faultRate() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faults
}

func (w *world) setDown(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}
