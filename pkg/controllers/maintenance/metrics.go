// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const subsystem = "holdfast_repo_maintenance"

var (
	byRepository = []string{"repository_namespace", "location"}

	maintenanceTotal = counter("total", "Maintenances of repositories that have ended.")
	successTotal     = counter("success_total", "Maintenances of repositories that have succeeded.")
	failedTotal      = counter("failed_total", "Maintenances of repositories that have failed.")
	reclaimedTotal   = counter("reclaimed_bytes_total", "Bytes that maintenances have removed from the stores.")
	sweptTotal       = counter("swept_snapshots_total", "Snapshots of backups that are gone which maintenances have removed.")
	duration         = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "duration_seconds",
		Help:           "How long maintenances of repositories took.",
		Buckets:        []float64{10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
		StabilityLevel: metrics.ALPHA,
	}, byRepository)

	oldest = metrics.NewDesc(subsystem+"_oldest_seconds",
		"How long ago the repository was maintained with success that was for longest not, or was made if it never was.", nil, nil, metrics.ALPHA, "")
	overdue = metrics.NewDesc(subsystem+"_overdue_repositories",
		"Repositories that have not been maintained with success for three of their periods.", nil, nil, metrics.ALPHA, "")

	doubted = metrics.NewDesc(subsystem+"_doubted_repositories",
		"Repositories with snapshots of so many backups that are missing from the store, or don't list them, that they stay.", nil, nil, metrics.ALPHA, "")

	damaged = metrics.NewDesc("holdfast_repositories_damaged",
		"Repositories whose store has lost data of them, as of their last check.", nil, nil, metrics.ALPHA, "")

	register sync.Once
	shown    repositories
)

func counter(name, help string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}, byRepository)
}

func registerMetrics(c *Controller) {
	shown.controller.Store(c)
	register.Do(func() {
		legacyregistry.MustRegister(maintenanceTotal, successTotal, failedTotal, reclaimedTotal, sweptTotal, duration)
		legacyregistry.CustomMustRegister(&shown)
	})
}

type repositories struct {
	metrics.BaseStableCollector
	controller atomic.Pointer[Controller]
}

func (*repositories) DescribeWithStability(descs chan<- *metrics.Desc) {
	descs <- oldest
	descs <- overdue
	descs <- doubted
	descs <- damaged
}

const overduePeriods = 3

func (r *repositories) CollectWithStability(found chan<- metrics.Metric) {
	c := r.controller.Load()
	all, err := c.lister.List(labels.Everything())
	if err != nil {
		return
	}
	longest, late, doubts, damages := time.Duration(0), 0, 0, 0
	for _, record := range all {
		if record.Status.MissingBackups > 0 {
			doubts++
		}
		if record.Status.Damage != nil {
			damages++
		}
		if c.Limit == 0 || record.DeletionTimestamp != nil {
			continue
		}
		since := record.CreationTimestamp.Time
		if record.Status.LastMaintenanceTime != nil {
			since = record.Status.LastMaintenanceTime.Time
		}
		age := c.Clock.Since(since)
		longest = max(longest, age)
		if age > overduePeriods*c.frequency(record) {
			late++
		}
	}
	found <- metrics.NewLazyConstMetric(oldest, metrics.GaugeValue, longest.Seconds())
	found <- metrics.NewLazyConstMetric(overdue, metrics.GaugeValue, float64(late))
	found <- metrics.NewLazyConstMetric(doubted, metrics.GaugeValue, float64(doubts))
	found <- metrics.NewLazyConstMetric(damaged, metrics.GaugeValue, float64(damages))
}

func observe(record *enginev1alpha1.VolumeRepository, run enginev1alpha1.MaintenanceRun, swept int) {
	of := []string{record.Spec.VolumeNamespace, record.Spec.BackupStorageLocation}
	maintenanceTotal.WithLabelValues(of...).Inc()
	if run.Result == enginev1alpha1.MaintenanceSucceeded {
		successTotal.WithLabelValues(of...).Inc()
	} else {
		failedTotal.WithLabelValues(of...).Inc()
	}
	reclaimedTotal.WithLabelValues(of...).Add(float64(run.ReclaimedBytes))
	sweptTotal.WithLabelValues(of...).Add(float64(swept))
	duration.WithLabelValues(of...).Observe(max(0, run.CompleteTimestamp.Sub(run.StartTimestamp.Time).Seconds()))
}

func forget(name string) {
	namespace, location, _ := strings.Cut(name, ".")
	of := map[string]string{byRepository[0]: namespace, byRepository[1]: location}
	for _, vector := range []interface{ Delete(map[string]string) bool }{maintenanceTotal, successTotal, failedTotal, reclaimedTotal, sweptTotal, duration} {
		vector.Delete(of)
	}
}
