// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/pkg/loadconcurrency"
)

const (
	atOnceExposed  = 16 // of a driver: each takes an attachment of a node
	ahead          = 1  // exposed volumes of a node beside those that its agent reads
	mostPreferred  = 3  // bigger volumes that come before the one that waits longest
	placesInterval = 10 * time.Second
)

// room returns the number of places for the agents' limits; 0 is unknown yet.
func room(limits []int) (places int) {
	for _, limit := range limits {
		places += max(limit, loadconcurrency.Default) + ahead
	}
	return places
}

// Spot is the place of an exposed volume. Its functions may be repeated.
type Spot struct {
	// Read says that the volume is read, so that another one may be exposed.
	Read  func()
	Leave func() // gives the place back when the volume is hidden
}

type asker struct {
	driver    string
	size      int64
	preferred int // bigger volumes that got a place while this one waited longest
	given     chan struct{}
}

// line gives places to volumes. It does not lock.
type line struct {
	taken   map[string]int // by driver; unread are those whose volume is not read
	unread  int
	waiting []*asker
}

// free reports whether a driver may have one more place. Its first place is always free: others may hang, and an
// agent may come with the first pod.
func (l *line) free(driver string, room int) bool {
	return l.taken[driver] == 0 || l.unread < room && l.taken[driver] < atOnceExposed
}

// next removes the volume that gets a place now, if any, and takes the place. See docs/design/snapshots.md#places.
func (l *line) next(room int) *asker {
	var longest, biggest *asker
	for _, a := range l.waiting {
		switch {
		case !l.free(a.driver, room):
		case longest == nil:
			longest, biggest = a, a
		case a.size > biggest.size:
			biggest = a
		}
	}
	if longest == nil {
		return nil
	}
	given := biggest
	if longest.preferred == mostPreferred {
		given = longest
	}
	longest.preferred++
	l.drop(given)
	l.take(given.driver)
	return given
}

func (l *line) drop(a *asker) {
	l.waiting = slices.DeleteFunc(l.waiting, func(other *asker) bool { return other == a })
}

func (l *line) take(driver string) {
	l.taken[driver]++
	l.unread++
}

func (l *line) leave(driver string) {
	if l.taken[driver]--; l.taken[driver] == 0 {
		delete(l.taken, driver)
	}
}

// places gives places to volumes. It is safe for concurrent use.
type places struct {
	limits func() []int // how many volumes each living agent moves at once

	mu      sync.Mutex
	line    line
	looking bool
}

func newPlaces(limits func() []int) *places {
	return &places{limits: limits, line: line{taken: map[string]int{}}}
}

func (p *places) wait(ctx context.Context, driver string, size int64, report func(string)) (Spot, error) {
	a := &asker{driver: driver, size: size, given: make(chan struct{})}
	p.change(func(l *line) { l.waiting = append(l.waiting, a) })
	select {
	case <-a.given:
		return p.spot(driver), nil
	default:
		report("a place: see loadConcurrency of the node agents")
	}
	select {
	case <-a.given:
		return p.spot(driver), nil
	case <-ctx.Done():
		p.change(func(l *line) {
			select {
			case <-a.given:
				l.unread--
				l.leave(driver)
			default:
				l.drop(a)
			}
		})
		return Spot{}, context.Cause(ctx)
	}
}

// occupy takes a place at once, for a volume exposed by an earlier process.
func (p *places) occupy(driver string) Spot {
	p.change(func(l *line) { l.take(driver) })
	return p.spot(driver)
}

func (p *places) spot(driver string) Spot {
	read := sync.OnceFunc(func() { p.change(func(l *line) { l.unread-- }) })
	return Spot{Read: read, Leave: sync.OnceFunc(func() {
		read()
		p.change(func(l *line) { l.leave(driver) })
	})}
}

// change changes the line, and gives the free places. While volumes wait, it repeats itself.
func (p *places) change(change func(*line)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.line)
	if len(p.line.waiting) == 0 {
		return
	}
	now := room(p.limits())
	for a := p.line.next(now); a != nil; a = p.line.next(now) {
		close(a.given)
	}
	if len(p.line.waiting) > 0 && !p.looking {
		p.looking = true
		time.AfterFunc(placesInterval, func() { p.change(func(*line) { p.looking = false }) })
	}
}
