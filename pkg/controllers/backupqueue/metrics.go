// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

const subsystem = "holdfast_queue"

var (
	queueDepth = descs("%ss",
		"The %ss by state: Running, Ready, Queued, or New if they have no place in the queue yet.", "state")
	queueBlocked = descs("blocked_%ss",
		"The queued %ss by the reason why they wait.", "reason")
	queueOldestWait = metrics.NewDesc(subsystem+"_oldest_wait_seconds",
		"How long the oldest queued backup or restore has been waiting.", nil, nil, metrics.ALPHA, "")
	queueSlots = metrics.NewDesc(subsystem+"_slots",
		"How many backups may run at once.", nil, nil, metrics.ALPHA, "")
	queueRestoreSlots = metrics.NewDesc(subsystem+"_restore_slots",
		"How many restores may run at once.", nil, nil, metrics.ALPHA, "")

	queueWait = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "wait_seconds",
		Help:           "How long backups and restores waited before they started, by kind.",
		Buckets:        []float64{0.1, 1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
		StabilityLevel: metrics.ALPHA,
	}, []string{"kind"})
	queueStarts = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "starts_total",
		Help:           "Backups and restores that were let start, by kind.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"kind"})
	queueEnded = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "ended_total",
		Help:           "Backups and restores that ended before they started, by kind and phase: Cancelled or FailedValidation.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"kind", "phase"})
	queueDecision = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "decision_duration_seconds",
		Help:           "How long it took to decide what starts, without the writes.",
		Buckets:        metrics.ExponentialBuckets(0.0001, 4, 8),
		StabilityLevel: metrics.ALPHA,
	})
	register sync.Once
)

func descs(name, help, label string) (descs [2]*metrics.Desc) {
	for _, class := range []queue.Class{queue.Backup, queue.Restore} {
		descs[class] = metrics.NewDesc(subsystem+"_"+fmt.Sprintf(name, class), fmt.Sprintf(help, class), []string{label}, nil, metrics.ALPHA, "")
	}
	return descs
}

// collector computes metrics when scraped, so that waits grow while nothing happens.
type collector struct {
	metrics.BaseStableCollector
	controller atomic.Pointer[Controller]
}

var queueCollector collector

func registerMetrics(c *Controller) {
	queueCollector.controller.Store(c)
	register.Do(func() {
		legacyregistry.MustRegister(queueWait, queueStarts, queueEnded, queueDecision)
		legacyregistry.CustomMustRegister(&queueCollector)
	})
}

func (*collector) DescribeWithStability(descs chan<- *metrics.Desc) {
	for _, desc := range slices.Concat(queueDepth[:], queueBlocked[:], []*metrics.Desc{queueOldestWait, queueSlots, queueRestoreSlots}) {
		descs <- desc
	}
}

func (q *collector) CollectWithStability(found chan<- metrics.Metric) {
	c := q.controller.Load()
	var of [2]struct {
		depth   map[v1alpha1.QueueState]int
		blocked map[v1alpha1.QueueReason]int
	}
	oldest := time.Duration(0)
	for class := range of {
		of[class].depth = map[v1alpha1.QueueState]int{v1alpha1.QueueStateRunning: 0, v1alpha1.QueueStateReady: 0, v1alpha1.QueueStateQueued: 0}
		of[class].blocked = map[v1alpha1.QueueReason]int{
			v1alpha1.QueueReasonConcurrencyLimit:    0,
			v1alpha1.QueueReasonNamespaceOverlap:    0,
			v1alpha1.QueueReasonClusterScopeOverlap: 0,
			v1alpha1.QueueReasonBehindOverlapping:   0,
			v1alpha1.QueueReasonStorageUnavailable:  0,
			v1alpha1.QueueReasonNextToStart:         0,
		}
	}
	now := c.Clock.Now()
	c.planning.Lock()
	for run, reason := range c.planner.Line() {
		state, of := run.State(), &of[run.Class]
		switch {
		case run.Plan: // plans have other slots
			continue
		case run.Phase == "" || run.Phase == v1alpha1.BackupPhaseNew:
			state = "New"
			oldest = max(oldest, now.Sub(run.WaitingSince))
		case state == v1alpha1.QueueStateQueued:
			of.blocked[reason]++
			oldest = max(oldest, now.Sub(run.WaitingSince))
		}
		of.depth[state]++
	}
	c.planning.Unlock()
	gauge := func(desc *metrics.Desc, value float64, labels ...string) {
		found <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, labels...)
	}
	for class := range of {
		for state, n := range of[class].depth {
			gauge(queueDepth[class], float64(n), string(state))
		}
		for reason, n := range of[class].blocked {
			gauge(queueBlocked[class], float64(n), string(reason))
		}
	}
	gauge(queueOldestWait, oldest.Seconds())
	gauge(queueSlots, float64(c.Limits[queue.Backup]))
	gauge(queueRestoreSlots, float64(c.Limits[queue.Restore]))
}
