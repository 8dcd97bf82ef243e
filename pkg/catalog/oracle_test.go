// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// oracle is the catalogue by its rules, without a thought for cost: the contents
// that ought to be there, and all listings that there ever were.
type oracle struct {
	contents   map[place]Content
	unreadable map[place]string
	unfinished map[place]bool
	listings   map[string][]listing
	// since is how many listings of its location there were before a place was
	// recorded, or before it was cleared of suspicion.
	since map[place]int
}

// listing is a complete listing, and what of it follows from those before.
type listing struct {
	begun    time.Time
	names    []string
	suspects map[place]bool
}

type place struct{ location, storeName string }

func (o *oracle) forget(p place) {
	delete(o.contents, p)
	delete(o.unreadable, p)
	delete(o.unfinished, p)
	delete(o.since, p)
}

// record takes note of when a place was recorded.
func (o *oracle) record(p place) { o.since[p] = len(o.listings[p.location]) }

// missing gives the listings since a place was last recorded, cleared or listed.
func (o *oracle) missing(p place) []listing {
	all := o.listings[p.location]
	from := len(all)
	for from > o.since[p] && !slices.Contains(all[from-1].names, p.storeName) {
		from--
	}
	return all[from:]
}

// observe returns whether there is a suspicion. What was missing by the instant accepted may
// go.
func (o *oracle) observe(location string, names []string, begun, accepted time.Time) bool {
	before := map[place]bool{}
	if all := o.listings[location]; len(all) > 0 {
		before = all[len(all)-1].suspects
	}
	suspects := map[place]bool{}
	o.listings[location] = append(o.listings[location], listing{begun, names, suspects})
	var known, lost []place
	for _, p := range slices.Concat(slices.Collect(maps.Keys(o.contents)), slices.Collect(maps.Keys(o.unreadable))) {
		if p.location != location {
			continue
		}
		if missing := o.missing(p); len(missing) > 0 && !missing[0].begun.After(accepted) {
			if len(missing) > 1 {
				o.forget(p)
			}
			continue
		}
		known = append(known, p)
		if len(o.missing(p)) > 0 {
			lost = append(lost, p)
		}
	}
	for _, p := range lost {
		if fresh := len(o.missing(p)) == 1; fresh || before[p] || len(lost) == len(known) {
			suspects[p] = true
		}
	}
	if (len(lost) < len(known) || len(known) == 0) && (len(suspects) <= 10 || len(suspects)*20 <= len(known)) {
		for p := range suspects {
			if before[p] { // it is missing for the first time now
				o.since[p] = len(o.listings[location]) - 1
			}
		}
		clear(suspects)
	}
	for _, p := range lost {
		if len(o.missing(p)) > 1 && len(suspects) == 0 {
			o.forget(p)
		}
	}
	return len(suspects) > 0
}

// fresh is a catalogue that learns the same contents in another order, at once.
func (o *oracle) fresh(t *testing.T) *Catalog {
	c := newCatalog(nil)
	for p, content := range o.contents { // the order of a map is any order
		c.Put(p.location, p.storeName, content, t0)
	}
	for p, reason := range o.unreadable {
		c.PutUnreadable(p.location, p.storeName, reason, t0)
	}
	return c
}

// Whatever happens, the catalogue lists what it would list if it had read the
// surviving contents only, in any order; and the changes that it told of lead to
// the same lists.
func TestAgainstOracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, m := newMirror(t)
		o := &oracle{contents: map[place]Content{}, unreadable: map[place]string{}, unfinished: map[place]bool{}, listings: map[string][]listing{}, since: map[place]int{}}
		storeNames := []string{"a", "b", "n.a", "n.b", "m.a"}
		at := func(label string) place {
			return place{rapid.SampledFrom([]string{"one", "two", "three"}).Draw(rt, label), rapid.SampledFrom(storeNames).Draw(rt, label)}
		}
		clock := 0
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				p := at("put")
				content := Content{Backup: stored(p.location, p.storeName, rapid.IntRange(1, 3).Draw(rt, "age"))}
				for i := range rapid.IntRange(0, 3).Draw(rt, "volumes") {
					v := claim(rapid.SampledFrom([]string{"n", "m"}).Draw(rt, "namespace"), fmt.Sprintf("claim-%d", i), int64(i), rapid.IntRange(1, 3).Draw(rt, "completion"))
					if rapid.Bool().Draw(rt, "failed") {
						v = failed(v)
					}
					content.Volumes = append(content.Volumes, v)
				}
				c.Put(p.location, p.storeName, content, minute(clock))
				o.forget(p)
				o.contents[p] = content
				o.record(p)
			},
			"unreadable": func(rt *rapid.T) {
				p := at("unreadable")
				reason := rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "reason")
				c.PutUnreadable(p.location, p.storeName, reason, minute(clock))
				if _, known := o.contents[p]; !known {
					delete(o.unfinished, p)
					if _, known := o.unreadable[p]; !known {
						o.record(p)
					}
					o.unreadable[p] = reason
				}
			},
			"unfinished": func(rt *rapid.T) {
				p := at("unfinished")
				c.PutUnfinished(p.location, p.storeName, minute(clock), minute(clock))
				if _, known := o.contents[p]; !known {
					delete(o.unreadable, p)
					o.unfinished[p] = true
				}
			},
			"forget": func(rt *rapid.T) {
				p := at("forget")
				c.Forget(p.location)
				for _, storeName := range storeNames {
					o.forget(place{p.location, storeName})
				}
			},
			"observe": func(rt *rapid.T) {
				p := at("observe")
				listing := rapid.SliceOfDistinct(rapid.SampledFrom(storeNames), rapid.ID[string]).Draw(rt, "listing")
				clock += rapid.SampledFrom([]int{1, 20, 60}).Draw(rt, "minutes")
				c.Observe(p.location, listing, minute(clock), minute(clock))
				o.observe(p.location, listing, minute(clock), time.Time{})
			},
			"": func(rt *rapid.T) {
				m.check(c)
				if t.Failed() {
					rt.FailNow()
				}
				fresh := o.fresh(t)
				if diff := cmp.Diff(summary(fresh), summary(c)); diff != "" {
					rt.Fatalf("read at once (-) and as it came (+):\n%s", diff)
				}
			},
		})
	})
}

// Whatever a store lists, and whenever, of many backups: what is dropped, kept and
// suspected follows from the listings alone. And once a store is at rest, the
// catalogue is right as soon as its loss is accepted.
func TestSuspicionAgainstOracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCatalog(nil)
		o := &oracle{contents: map[place]Content{}, listings: map[string][]listing{}, since: map[place]int{}}
		const location = "default"
		clock := 0
		all := map[string]bool{} // what the store holds
		put := func(i int) {
			storeName := fmt.Sprintf("b%04d", i)
			p := place{location, storeName}
			all[storeName] = true
			o.forget(p)
			o.contents[p] = Content{Backup: stored(location, storeName, 5)}
			o.record(p)
			c.Put(location, storeName, o.contents[p], minute(clock))
		}
		first := rapid.SampledFrom([]int{1, 5, 30, 100, 400}).Draw(rt, "first")
		for i := range first {
			put(i)
		}
		var accepted time.Time
		observe := func(names []string) {
			clock++
			found := c.ObserveListing(location, Listing{Names: names, Begun: minute(clock), Accepted: accepted}, minute(clock))
			if suspicion := o.observe(location, names, minute(clock), accepted); suspicion != (found.Suspicion != "") {
				rt.Fatalf("suspicion %q, want %t", found.Suspicion, suspicion)
			}
			for _, storeName := range found.Read { // it was dropped, and is found again
				p := place{location, storeName}
				o.contents[p] = Content{Backup: stored(location, storeName, 5)}
				o.record(p)
				c.Put(location, storeName, o.contents[p], minute(clock))
			}
		}
		listed := func(p map[string]bool) []string { return slices.Sorted(maps.Keys(p)) }
		next := first
		rt.Repeat(map[string]func(*rapid.T){
			"lose": func(rt *rapid.T) {
				for _, storeName := range listed(all)[:rapid.IntRange(0, min(len(all), 30)).Draw(rt, "lost")] {
					delete(all, storeName)
				}
				observe(listed(all))
			},
			"store": func(*rapid.T) {
				next++
				put(next)
			},
			"list":  func(*rapid.T) { observe(listed(all)) },
			"empty": func(*rapid.T) { observe(nil) },
			"part": func(rt *rapid.T) {
				observe(listed(all)[:rapid.IntRange(0, len(all)).Draw(rt, "part")])
			},
			"later":  func(rt *rapid.T) { clock += rapid.SampledFrom([]int{10, 58, 59, 60}).Draw(rt, "minutes") },
			"accept": func(*rapid.T) { accepted = minute(clock) },
			"rest": func(*rapid.T) {
				observe(listed(all))
				accepted = minute(clock)
				observe(listed(all))
				if c.Len(location) != len(all) {
					rt.Fatalf("after its acceptance %d are known, and %d are there", c.Len(location), len(all))
				}
			},
			"": func(rt *rapid.T) {
				got, want := map[string]bool{}, map[string]bool{}
				for _, backup := range c.Backups() {
					got[backup.Name] = true
				}
				for p := range o.contents {
					want[p.storeName] = true
				}
				if diff := cmp.Diff(want, got); diff != "" {
					rt.Fatalf("by the rules (-) and as it is (+):\n%s", diff)
				}
			},
		})
	})
}

// summary leaves out only the instants at which bad files were found.
func summary(c *Catalog) map[string]any {
	s := map[string]any{"volumes": c.Volumes(), "history": c.VolumeBackups()}
	for _, backup := range c.Backups() {
		backup = backup.DeepCopy()
		if backup.Status.CompletionTimestamp == nil {
			backup.Status.Conditions = nil
		}
		s["backup "+types.NamespacedName{Namespace: backup.Namespace, Name: backup.Name}.String()] = backup
	}
	return s
}
