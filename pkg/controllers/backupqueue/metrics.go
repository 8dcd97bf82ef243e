// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

const subsystem = "holdfast_queue"

var (
	queueDepth = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "backups",
		Help:           "Backups by state: Running, Ready or Queued.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
	queueBlocked = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "blocked_backups",
		Help:           "Queued backups by the reason why they wait.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	queueOldestWait = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "oldest_wait_seconds",
		Help:           "How long the oldest queued backup has been waiting, as of the last decision.",
		StabilityLevel: metrics.ALPHA,
	})
	queueWait = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "wait_seconds",
		Help:           "How long backups waited before they started.",
		Buckets:        []float64{0.1, 1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
		StabilityLevel: metrics.ALPHA,
	})
	queueStarts = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "starts_total",
		Help:           "Backups that were let start.",
		StabilityLevel: metrics.ALPHA,
	})
	queueDecision = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "decision_duration_seconds",
		Help:           "How long it took to decide which backups start, without the writes.",
		Buckets:        metrics.ExponentialBuckets(0.0001, 4, 8),
		StabilityLevel: metrics.ALPHA,
	})
	queueSlots = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "slots",
		Help:           "How many backups may run at once.",
		StabilityLevel: metrics.ALPHA,
	})

	register sync.Once
)

func registerMetrics() {
	register.Do(func() {
		legacyregistry.MustRegister(queueDepth, queueBlocked, queueOldestWait, queueWait, queueStarts, queueDecision, queueSlots)
	})
}

// observe sets the gauges to what a plan says.
func observe(plan queue.Plan, now time.Time) {
	depth := map[v1alpha1.QueueState]int{v1alpha1.QueueStateRunning: 0, v1alpha1.QueueStateReady: 0, v1alpha1.QueueStateQueued: 0}
	blocked := map[v1alpha1.QueueReason]int{
		v1alpha1.QueueReasonConcurrencyLimit:    0,
		v1alpha1.QueueReasonNamespaceOverlap:    0,
		v1alpha1.QueueReasonClusterScopeOverlap: 0,
		v1alpha1.QueueReasonBehindOverlapping:   0,
		v1alpha1.QueueReasonStorageUnavailable:  0,
		v1alpha1.QueueReasonNextToStart:         0,
	}
	oldest := time.Duration(0)
	for _, entry := range plan.Entries {
		depth[entry.State]++
		if entry.State == v1alpha1.QueueStateQueued {
			blocked[entry.Reason]++
			oldest = max(oldest, now.Sub(entry.WaitingSince))
		}
	}
	for state, n := range depth {
		queueDepth.WithLabelValues(string(state)).Set(float64(n))
	}
	for reason, n := range blocked {
		queueBlocked.WithLabelValues(string(reason)).Set(float64(n))
	}
	queueOldestWait.Set(oldest.Seconds())
	queueSlots.Set(float64(plan.Limit))
}
