// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// oracle is the catalogue by its rules, without a thought for cost: the contents
// that ought to be there, and how often each was lacking in a row.
type oracle struct {
	contents   map[place]Content
	unreadable map[place]string
	unfinished map[place]bool
	lacking    map[place]int
}

type place struct{ location, storeName string }

func (o *oracle) forget(p place) {
	delete(o.contents, p)
	delete(o.unreadable, p)
	delete(o.unfinished, p)
	delete(o.lacking, p)
}

func (o *oracle) observe(location string, listing []string) {
	known := map[place]bool{}
	for _, p := range slices.Concat(slices.Collect(maps.Keys(o.contents)), slices.Collect(maps.Keys(o.unreadable))) {
		if p.location == location {
			known[p] = true
		}
	}
	var lost []place
	for p := range known {
		if slices.Contains(listing, p.storeName) {
			o.lacking[p] = 0
		} else {
			lost = append(lost, p)
		}
	}
	suspicious := len(lost) > 0 && (len(lost) == len(known) || len(lost) > max(10, len(known)/20))
	for _, p := range lost {
		if suspicious {
			o.lacking[p] = 0
		} else if o.lacking[p]++; o.lacking[p] == 2 {
			o.forget(p)
		}
	}
}

// fresh is a catalogue that learns the same contents in another order, at once.
func (o *oracle) fresh(t *testing.T) *Catalog {
	c := New(system, nil)
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
		o := &oracle{contents: map[place]Content{}, unreadable: map[place]string{}, unfinished: map[place]bool{}, lacking: map[place]int{}}
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
			},
			"unreadable": func(rt *rapid.T) {
				p := at("unreadable")
				reason := rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "reason")
				c.PutUnreadable(p.location, p.storeName, reason, minute(clock))
				if _, known := o.contents[p]; !known {
					delete(o.unfinished, p)
					o.unreadable[p] = reason
				}
			},
			"unfinished": func(rt *rapid.T) {
				p := at("unfinished")
				c.PutUnfinished(p.location, p.storeName, minute(clock))
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
				clock++
				c.Observe(p.location, listing, minute(clock), minute(clock))
				o.observe(p.location, listing)
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
