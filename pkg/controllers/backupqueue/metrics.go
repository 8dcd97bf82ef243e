// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const subsystem = "holdfast_queue"

var (
	queueDepth = metrics.NewDesc(subsystem+"_backups",
		"Backups by state: Running, Ready, Queued, or New if they have no place in the queue yet.", []string{"state"}, nil, metrics.ALPHA, "")
	queueBlocked = metrics.NewDesc(subsystem+"_blocked_backups",
		"Queued backups by the reason why they wait.", []string{"reason"}, nil, metrics.ALPHA, "")
	queueOldestWait = metrics.NewDesc(subsystem+"_oldest_wait_seconds",
		"How long the oldest queued backup has been waiting.", nil, nil, metrics.ALPHA, "")
	queueSlots = metrics.NewDesc(subsystem+"_slots",
		"How many backups may run at once.", nil, nil, metrics.ALPHA, "")

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
	queueEnded = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "ended_total",
		Help:           "Backups that ended before they started, by phase: Cancelled or FailedValidation.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"phase"})
	queueDecision = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "decision_duration_seconds",
		Help:           "How long it took to decide which backups start, without the writes.",
		Buckets:        metrics.ExponentialBuckets(0.0001, 4, 8),
		StabilityLevel: metrics.ALPHA,
	})
	register sync.Once
)

// collector computes when it is asked what follows from the queue as it is then, so
// that decisions don't pay for it and a wait grows while nothing happens.
type collector struct {
	metrics.BaseStableCollector
	controller atomic.Pointer[Controller]
}

var queueCollector collector

// registerMetrics makes a controller the one whose queue is shown.
func registerMetrics(c *Controller) {
	queueCollector.controller.Store(c)
	register.Do(func() {
		legacyregistry.MustRegister(queueWait, queueStarts, queueEnded, queueDecision)
		legacyregistry.CustomMustRegister(&queueCollector)
	})
}

// DescribeWithStability is that of metrics.StableCollector.
func (*collector) DescribeWithStability(descs chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{queueDepth, queueBlocked, queueOldestWait, queueSlots} {
		descs <- desc
	}
}

// CollectWithStability is that of metrics.StableCollector.
func (q *collector) CollectWithStability(found chan<- metrics.Metric) {
	c := q.controller.Load()
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
	now := c.Clock.Now()
	c.planning.Lock()
	for run, reason := range c.planner.Line() {
		state := run.State()
		switch {
		case run.Phase == "" || run.Phase == v1alpha1.BackupPhaseNew:
			state = "New"
			oldest = max(oldest, now.Sub(run.WaitingSince))
		case state == v1alpha1.QueueStateQueued:
			blocked[reason]++
			oldest = max(oldest, now.Sub(run.WaitingSince))
		}
		depth[state]++
	}
	c.planning.Unlock()
	gauge := func(desc *metrics.Desc, value float64, labels ...string) {
		found <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, labels...)
	}
	for state, n := range depth {
		gauge(queueDepth, float64(n), string(state))
	}
	for reason, n := range blocked {
		gauge(queueBlocked, float64(n), string(reason))
	}
	gauge(queueOldestWait, oldest.Seconds())
	gauge(queueSlots, float64(c.Limit))
}
