// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	kubefake "k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"
)

// TestPlacesAreBounded: the nodes' limits and one volume more for each node are the places, of one driver at
// most 16, and of each at least one.
func TestPlacesAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		limits []int
		taken  map[string]int
		read   int
		want   map[string]int
	}{
		"one node":                      {limits: []int{1}, want: map[string]int{"a": 2}},
		"three, one that has not told":  {limits: []int{3, 0, 1}, want: map[string]int{"a": 8}},
		"no agent":                      {want: map[string]int{"a": 1}},
		"no agent, two drivers":         {taken: map[string]int{"a": 1}, want: map[string]int{"a": 1, "b": 1}},
		"more than a driver may have":   {limits: []int{9, 9}, want: map[string]int{"a": 16}},
		"two drivers share":             {limits: []int{9, 9}, taken: map[string]int{"a": 15}, want: map[string]int{"a": 16, "b": 4}},
		"no limit":                      {limits: []int{math.MaxInt32, math.MaxInt32}, want: map[string]int{"a": 16, "b": 16}},
		"another driver has all places": {limits: []int{1}, taken: map[string]int{"a": 2}, want: map[string]int{"a": 2, "b": 1}},
		"nodes are lost":                {limits: []int{1}, taken: map[string]int{"a": 9}, want: map[string]int{"a": 9}},
		"read, and not hidden yet":      {limits: []int{1}, taken: map[string]int{"a": 15}, read: 15, want: map[string]int{"a": 16, "b": 1}},
		"an earlier process had more":   {limits: []int{20}, taken: map[string]int{"a": 19}, want: map[string]int{"a": 19, "b": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			l := line{taken: map[string]int{}}
			for driver, n := range c.taken {
				for range n {
					l.take(driver)
				}
			}
			l.unread -= c.read
			for range 40 {
				for _, driver := range slices.Sorted(maps.Keys(c.want)) {
					l.waiting = append(l.waiting, &asker{driver: driver})
				}
			}
			for l.next(room(c.limits)) != nil {
			}
			if fmt.Sprint(l.taken) != fmt.Sprint(c.want) {
				t.Errorf("taken are %v, want %v", l.taken, c.want)
			}
		})
	}
}

// TestWhoGetsAPlace: the biggest volume does, and after three bigger ones the one that waits longest.
func TestWhoGetsAPlace(t *testing.T) {
	for name, c := range map[string]struct {
		// full are drivers without a free place.
		full  []string
		sizes string
		want  string
	}{
		"the biggest":                      {sizes: "a5 a9 a7", want: "a9 a7 a5"},
		"of equal ones the first":          {sizes: "a5 b5 a5", want: "a5 b5 a5"},
		"every fourth waits longest":       {sizes: "a1 a2 a3 a4 a5 a6 a7 a8 a9", want: "a9 a8 a7 a1 a6 a5 a4 a2 a3"},
		"no driver holds another up":       {full: []string{"a"}, sizes: "a9 b1 a8 b2", want: "b2 b1"},
		"who can't have one loses no turn": {full: []string{"a"}, sizes: "a1 b1 b2 b3 b4 b5", want: "b5 b4 b3 b1 b2"},
	} {
		t.Run(name, func(t *testing.T) {
			l := line{taken: map[string]int{"b": 1}}
			for _, driver := range c.full {
				l.taken[driver] = atOnceExposed
			}
			for _, word := range strings.Fields(c.sizes) {
				l.waiting = append(l.waiting, &asker{driver: word[:1], size: int64(word[1])})
			}
			var got []string
			for a := l.next(100); a != nil; a = l.next(100) {
				got = append(got, a.driver+string(rune(a.size)))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("places got %v, want %s", got, c.want)
			}
		})
	}
}

// TestNoVolumeWaitsForEver: a volume before which n wait has a place when 4(n+1) were free for it, however many
// bigger ones come. No place is given that is not free.
func TestNoVolumeWaitsForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := line{taken: map[string]int{}}
		driver := rapid.SampledFrom([]string{"a", "b", "c"})
		before, chances := map[*asker]int{}, map[*asker]int{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "come") {
				a := &asker{driver: driver.Draw(t, "driver"), size: rapid.Int64Range(1, 9).Draw(t, "size")}
				before[a] = len(l.waiting)
				l.waiting = append(l.waiting, a)
			}
			if l.unread > 0 && rapid.Bool().Draw(t, "read") {
				l.unread--
			}
			if of := driver.Draw(t, "leaves"); l.taken[of] > 0 {
				l.unread = max(l.unread-1, 0)
				l.leave(of)
			}
			places := rapid.IntRange(0, 20).Draw(t, "places")
			for {
				for _, a := range l.waiting {
					if l.taken[a.driver] == 0 || l.unread < places && l.taken[a.driver] < 16 {
						chances[a]++
					}
				}
				given := l.next(places)
				if given == nil && len(l.waiting) > 0 && slices.ContainsFunc(l.waiting, func(a *asker) bool { return l.taken[a.driver] == 0 }) {
					t.Fatal("a place is free, and not given")
				}
				if given == nil {
					break
				}
				if n := l.taken[given.driver]; n > 1 && (n > 16 || l.unread > places) {
					t.Fatalf("a place was given that is not free: %v of %d", l.taken, places)
				}
			}
			for _, a := range l.waiting {
				if chances[a] > 4*(before[a]+1) {
					t.Fatalf("a volume has lost %d times, and %d were before it", chances[a], before[a])
				}
			}
		}
	})
}

// TestPlaceIsPassedOn: a place that is left is given to the next, also if that one has just been cancelled. Places of nodes
// that come are seen while volumes wait, and nothing looks when none does.
func TestPlaceIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		looks, limits := 0, []int{1}
		m := newSidecars(t).mover(kubefake.NewClientset())
		m.places = newPlaces(func() []int {
			mu.Lock()
			defer mu.Unlock()
			looks++
			return limits
		})
		type place struct {
			name string
			Spot
		}
		given, said := make(chan place, 9), make(chan string, 9)
		ask := func(ctx context.Context, name string, size int64) {
			v := volume()
			v.Size = size
			go func() {
				spot, err := m.Place(ctx, v, Taken{Size: 1}, func(words string) { said <- words })
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if err == nil {
					given <- place{name, spot}
				}
			}()
			synctest.Wait()
		}
		next := func() place {
			t.Helper()
			synctest.Wait()
			if len(given) == 0 {
				t.Fatal("no place is given")
			}
			return <-given
		}
		first := m.Occupy(volume())
		ask(t.Context(), "second", 5)
		second := next()
		if len(said) != 0 {
			t.Errorf("a volume that need not wait says %q", <-said)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		ask(cancelled, "cancelled", 9)
		ask(t.Context(), "small", 3)
		ask(t.Context(), "big", 7)
		if len(given) != 0 || len(said) != 3 || !strings.HasPrefix(<-said, "a place: see loadConcurrency") {
			t.Errorf("%d have a place, %d say that they wait", len(given), len(said))
		}
		cancel()
		synctest.Wait()
		second.Read()
		if big := next(); big.name != "big" {
			t.Errorf("the place is of %s", big.name)
		}
		mu.Lock()
		limits = []int{1, 1}
		mu.Unlock()
		time.Sleep(placesInterval)
		synctest.Wait()
		if len(given) != 1 {
			t.Fatal("the place of a node that came is not given")
		}
		mu.Lock()
		limits, looks = nil, 0
		mu.Unlock()
		time.Sleep(10 * placesInterval)
		if looks > 1 {
			t.Errorf("%d looks, and none waits", looks)
		}
		first.Leave()
		next().Leave()
		if m.places.line.unread != 1 || m.places.line.taken[volume().Driver] != 2 {
			t.Errorf("places are %+v", m.places.line)
		}
		second.Leave()
		second.Leave()
		if m.places.line.unread != 1 || m.places.line.taken[volume().Driver] != 1 {
			t.Errorf("places are %+v", m.places.line)
		}
	})
}

// TestPlaceOfACancelledVolume: a place that is given at the moment of a cancellation is given back.
func TestPlaceOfACancelledVolume(t *testing.T) {
	refused := 0
	for refused < 10 {
		p := newPlaces(func() []int { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		earlier := p.occupy("d")
		spot, err := p.wait(ctx, "d", 1, func(string) {
			cancel()
			earlier.Leave()
		})
		if err == nil {
			spot.Leave()
		} else {
			refused++
		}
		if p.line.unread != 0 || len(p.line.taken) != 0 || len(p.line.waiting) != 0 {
			t.Fatalf("places are %+v", p.line)
		}
	}
}
