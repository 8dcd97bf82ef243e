// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// What different patterns cost follows their number, and not that of their pairs.
func TestManyPatterns(t *testing.T) {
	for name, words := range map[string]func(i int) []string{
		"wildcards on both sides": func(i int) []string { return []string{fmt.Sprintf("*-x%d-*", i)} },
		"a wildcard within":       func(i int) []string { return []string{fmt.Sprintf("p*-x%d-*", i)} },
		"any characters":          func(i int) []string { return []string{fmt.Sprintf("p??-x%d-?", i)} },
		"many patterns": func(i int) []string {
			return []string{fmt.Sprintf("a%d-*", i), "b*", "c*", "d*", "e*"}
		},
		"a prefix": func(i int) []string { return []string{fmt.Sprintf("p-%d-*", i)} },
		"all of them overlap, compared by pairs": func(i int) []string {
			return []string{"shared-*", fmt.Sprintf("p-%d-*", i)}
		},
		"half prefixes, half suffixes": func(i int) []string {
			if i%2 == 0 {
				return []string{fmt.Sprintf("p-%d-*", i)}
			}
			return []string{fmt.Sprintf("*-s-%d", i)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) (mallocs, bytes uint64) {
				selections := make([]*selection.Namespaces, n)
				for i := range selections {
					selections[i] = selected(t, words(i)...)
				}
				before := memory()
				p, err := NewPlanner(Slots{1, 1})
				if err != nil {
					t.Fatal(err)
				}
				p.SetLocations(map[string]LocationState{"default": {Available: true}})
				for i := range selections {
					p.Update(Run{
						UID: types.UID(fmt.Sprintf("run-%06d", i)), Name: fmt.Sprintf("b%d", i), Namespace: systemNamespace,
						Phase: v1alpha1.BackupPhaseQueued, Ticket: int64(i + 1), CreatedAt: time.Unix(int64(i), 0), Location: "default", Selection: selections[i],
					})
				}
				p.Next()
				after := memory()
				runtime.KeepAlive(p)
				runtime.KeepAlive(selections)
				return after.Mallocs - before.Mallocs, after.HeapAlloc - before.HeapAlloc
			}
			const n = 1000
			once, _ := cost(n)
			twice, bytes := cost(2 * n)
			if twice > 3*once {
				t.Errorf("%d take %d allocations, and %d take %d", n, once, 2*n, twice)
			}
			// A bit for each other one at most, which for 10,000 is 1.25 KiB.
			if each := bytes / (2 * n); each > 2<<10 {
				t.Errorf("each of %d keeps %d bytes, want 2 KiB at most", 2*n, each)
			}
		})
	}
}

func memory() (stats runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats
}
