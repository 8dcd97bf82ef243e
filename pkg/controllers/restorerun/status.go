// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// Progress is an executed run's progress. It is safe for concurrent use.
type Progress struct {
	restore.Progress
	waits             *waits.Waits
	namespace, system string

	mu      sync.Mutex
	volumes func() v1alpha1.RestoreVolumesProgress
}

// Volumes sets the function that counts volumes.
func (p *Progress) Volumes(counts func() v1alpha1.RestoreVolumesProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.volumes = counts
}

func (p *Progress) set(status *enginev1alpha1.RestoreRunStatus) bool {
	before := status.DeepCopy()
	status.Message = p.waits.Line(p.namespace, p.system)
	if objects := p.Objects(); objects != (v1alpha1.RestoreProgress{}) {
		status.Progress = &objects
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.volumes != nil {
		if counts := p.volumes(); counts.Total > 0 {
			status.Volumes = &counts
		}
	}
	return !equality.Semantic.DeepEqual(before, status)
}

func recordEnd(status *enginev1alpha1.RestoreRunStatus, ended *restore.Ended, stored bool) {
	end := &ended.Status
	status.Phase, status.Stored, status.Digests = end.Phase, stored, ended.Digests
	status.Errors, status.Warnings, status.Message = end.Errors, end.Warnings, end.Message
	status.FailureReason, status.ValidationErrors = end.FailureReason, end.ValidationErrors
	status.CompletionTimestamp = end.CompletionTimestamp.DeepCopy()
	status.HookStatus = end.HookStatus.DeepCopy()
	if end.Progress != nil {
		status.Progress = end.Progress.DeepCopy()
	}
	if end.Volumes != nil {
		status.Volumes = end.Volumes.DeepCopy()
	}
}

var (
	restoresTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      "holdfast",
		Name:           "restores_total",
		Help:           "Restores that have started and ended, by phase: Completed, PartiallyFailed, Failed, FailedValidation or Cancelled.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"phase"})
	restoreDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem:      "holdfast",
		Name:           "restore_duration_seconds",
		Help:           "How long restores took from their first start to their end.",
		Buckets:        []float64{0.1, 1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
		StabilityLevel: metrics.ALPHA,
	})

	register sync.Once
)

func registerMetrics() {
	register.Do(func() {
		legacyregistry.MustRegister(restoresTotal, restoreDuration)
		begin()
	})
}

// begin sets all counters to zero, so that the first failure is an increase.
func begin() {
	for _, phase := range []v1alpha1.RestorePhase{v1alpha1.RestorePhaseCompleted, v1alpha1.RestorePhasePartiallyFailed, v1alpha1.RestorePhaseFailed, v1alpha1.RestorePhaseFailedValidation, v1alpha1.RestorePhaseCancelled} {
		restoresTotal.WithLabelValues(string(phase))
	}
}

func observeEnd(run *enginev1alpha1.RestoreRun, status *v1alpha1.RestoreStatus) {
	restoresTotal.WithLabelValues(string(status.Phase)).Inc()
	if start, end := run.Status.StartTimestamp, status.CompletionTimestamp; start != nil && end != nil {
		restoreDuration.Observe(end.Sub(start.Time).Seconds())
	}
}
