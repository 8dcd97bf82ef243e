// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

var (
	backupsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      "holdfast",
		Name:           "backups_total",
		Help:           "Backups that have started and ended, by phase: Completed, PartiallyFailed, Failed, FailedValidation or Cancelled.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"phase"})
	backupDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem:      "holdfast",
		Name:           "backup_duration_seconds",
		Help:           "How long backups took from start to end.",
		Buckets:        []float64{0.1, 1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
		StabilityLevel: metrics.ALPHA,
	})
	volumesGivenUp = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      "holdfast",
		Name:           "volumes_given_up_total",
		Help:           "Volumes of backups that were not waited for any longer, by reason: NodeGone, AgentGone, Timeout or NeverBegun.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})

	podFrozen = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem:      "holdfast",
		Name:           "pod_frozen_seconds",
		Help:           "How long pods were frozen, from the start of their hooks before the backup to the end of their hooks after it, by what was waited for: files, snapshots, or none without a volume.",
		Buckets:        []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600},
		StabilityLevel: metrics.ALPHA,
	}, []string{"volumes"})

	register sync.Once
)

func registerMetrics() {
	register.Do(func() {
		legacyregistry.MustRegister(backupsTotal, backupDuration, volumesGivenUp, podFrozen)
		begin()
	})
}

// begin sets all counters to zero, so that the first failure is an increase.
func begin() {
	for _, phase := range []v1alpha1.BackupPhase{v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed, v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseFailedValidation, v1alpha1.BackupPhaseCancelled} {
		backupsTotal.WithLabelValues(string(phase))
	}
}

func observeFrozen(took time.Duration, read string) {
	podFrozen.WithLabelValues(read).Observe(took.Seconds())
}

func observeEnd(run *enginev1alpha1.BackupRun, status *v1alpha1.BackupStatus) {
	backupsTotal.WithLabelValues(string(status.Phase)).Inc()
	if start, end := run.Status.StartTimestamp, status.CompletionTimestamp; start != nil && end != nil {
		backupDuration.Observe(end.Sub(start.Time).Seconds())
	}
}
