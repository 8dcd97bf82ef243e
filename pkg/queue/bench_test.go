// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// benchSnapshot has 4 slots, all in use, and a queue of n backups of 50
// namespaces each. Neighbours in the queue share namespaces.
func benchSnapshot(b *testing.B, n, distinct int, extra func(i int) []string) Snapshot {
	s := Snapshot{Limit: 4, Locations: map[string]LocationState{"default": {Available: true}}}
	for i := range distinct {
		s.Namespaces = append(s.Namespaces, fmt.Sprintf("namespace-%06d", i))
	}
	epoch := time.Unix(0, 0)
	for i := range n + 4 {
		words := extra(i)
		if words == nil {
			for j := range 50 {
				words = append(words, s.Namespaces[(i*40+j)%distinct])
			}
		}
		r := Run{
			Key: fmt.Sprintf("run-%06d", i), Name: fmt.Sprintf("backup-%06d", i), Namespace: systemNamespace,
			Phase: v1alpha1.BackupPhaseQueued, Ticket: int64(i + 1), CreatedAt: epoch.Add(time.Duration(i) * time.Second),
			Location: "default", Selection: selected(b, words...),
		}
		if i < 4 {
			r.Phase = v1alpha1.BackupPhaseInProgress
		}
		s.Runs = append(s.Runs, r)
	}
	return s
}

func BenchmarkDecide(b *testing.B) {
	names := func(int) []string { return nil }
	for _, bench := range []struct {
		name     string
		distinct int
		words    func(int) []string
	}{
		{"names", 5_000, names},
		{"names, nearly all distinct", 400_100, names},
		// A schedule of a pattern that piles up among the others.
		{"1 in 10 the same pattern", 5_000, func(i int) []string {
			if i%10 != 5 {
				return nil
			}
			return []string{"namespace-0012*"}
		}},
		// One pattern for each of many teams.
		{"1 in 10 a pattern of its own", 5_000, func(i int) []string {
			if i%10 != 5 {
				return nil
			}
			return []string{fmt.Sprintf("namespace-%05d*", i%500)}
		}},
	} {
		for _, n := range []int{2_000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, n), func(b *testing.B) {
				s := benchSnapshot(b, n, bench.distinct, bench.words)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Decide(s); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
