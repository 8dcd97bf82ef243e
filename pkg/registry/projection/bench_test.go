// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"fmt"
	"testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// BenchmarkPublish lets the head of a long queue end, so that everyone moves up.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFixture(b)
			f.limit(1)
			observe := func(i int, status enginev1alpha1.BackupRunStatus) {
				var included []string
				for j := range 50 {
					included = append(included, fmt.Sprintf("namespace-%06d", i*40+j))
				}
				f.Observe(f.run(system, fmt.Sprintf("backup-%06d", i), status, included...))
			}
			for i := range n {
				observe(i, queued(int64(i+1)))
			}
			f.mustPublish()
			head := 0
			b.ReportAllocs()
			for b.Loop() {
				observe(head, enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted})
				observe(n+head, queued(int64(n+head+1)))
				head++
				b.ReportMetric(float64(f.mustPublish()), "events/op")
			}
		})
	}
}
