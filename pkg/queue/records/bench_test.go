// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

// benchRecords are what the benchmarks of package queue call "names", as records:
// n that are queued behind one that runs, of 50 namespaces each.
type benchRecords struct {
	runs       []*enginev1alpha1.BackupRun
	namespaces []*corev1.Namespace
	locations  []*enginev1alpha1.StorageLocation
}

func newBenchRecords(n int) benchRecords {
	var r benchRecords
	for i := range 5_000 {
		r.namespaces = append(r.namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("namespace-%06d", i)}})
	}
	r.locations = []*enginev1alpha1.StorageLocation{{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Status: enginev1alpha1.StorageLocationStatus{
			Conditions: []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue}},
		},
	}}
	for i := range n + 1 {
		at := metav1.NewTime(time.Unix(int64(i), 0))
		run := &enginev1alpha1.BackupRun{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("shop.backup-%06d", i), UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)),
				CreationTimestamp: at, ResourceVersion: fmt.Sprint(1_000_000 + i),
			},
			Spec: enginev1alpha1.BackupRunSpec{
				BackupRef: v1alpha1.BackupReference{Namespace: "shop", Name: fmt.Sprintf("backup-%06d", i)},
				Backup:    v1alpha1.BackupSpec{StorageLocation: "default"},
			},
			Status: enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseQueued, Ticket: int64(i + 1), QueuedTimestamp: &at},
		}
		if i == 0 {
			run.Status.Phase = v1alpha1.BackupPhaseInProgress
		}
		for j := range 50 {
			run.Spec.Backup.IncludedNamespaces = append(run.Spec.Backup.IncludedNamespaces, fmt.Sprintf("namespace-%06d", (i*40+j)%5_000))
		}
		r.runs = append(r.runs, run)
	}
	return r
}

func (r benchRecords) planner(b *testing.B) *Planner {
	p, err := NewPlanner(queue.Slots{4, 4})
	if err != nil {
		b.Fatal(err)
	}
	p.SetExistingNamespaces(r.namespaces)
	p.SetStorageLocations(r.locations)
	for _, run := range r.runs {
		p.UpdateRun(run, nil)
	}
	return p
}

// From nothing but the records, as after a restart: each spec is compiled.
func BenchmarkReplanOfRecords(b *testing.B) {
	for _, n := range []int{2_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newBenchRecords(n)
			b.ReportAllocs()
			for b.Loop() {
				if entries := r.planner(b).Plan().Entries; len(entries) != n+1 {
					b.Fatalf("%d entries of %d", len(entries), n+1)
				}
			}
		})
	}
}

// All that a planner keeps alive: the records, which the caches of the controller
// keep as well; what it makes of them; and a plan with all entries.
func BenchmarkMemoryOfRecords(b *testing.B) {
	heap := func() float64 {
		runtime.GC()
		runtime.GC() // pools let go of theirs at the second one
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc)
	}
	for _, n := range []int{2_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				r := newBenchRecords(n)
				given := heap()
				p := r.planner(b)
				p.Next()
				planner := heap()
				plan := p.Plan()
				all := heap()
				b.ReportMetric((given-before)/1e6, "records-MB")
				b.ReportMetric((planner-given)/1e6, "planner-MB")
				b.ReportMetric((all-planner)/1e6, "plan-MB")
				runtime.KeepAlive(r)
				runtime.KeepAlive(p)
				runtime.KeepAlive(plan)
			}
		})
	}
}
