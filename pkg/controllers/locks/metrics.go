// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package locks

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

var (
	failedFor = metrics.NewDesc("holdfast_locks_failed_seconds",
		"For how long not all objects of a storage location are locked as spec.lock says, by why: the longest of all locations, or 0.", []string{"reason"}, nil, metrics.ALPHA, "")
	// reasons are all shown reasons, so that ended ones are zero.
	reasons = []string{enginev1alpha1.ReasonNoObjectLock, enginev1alpha1.ReasonAccessDenied, enginev1alpha1.ReasonExtensionFailed, enginev1alpha1.ReasonMaintenanceLate, enginev1alpha1.ReasonLockPending}

	register sync.Once
	shown    collector
)

func registerMetrics(c *Controller) {
	shown.controller.Store(c)
	register.Do(func() { legacyregistry.CustomMustRegister(&shown) })
}

type collector struct {
	metrics.BaseStableCollector
	controller atomic.Pointer[Controller]
}

func (*collector) DescribeWithStability(descs chan<- *metrics.Desc) { descs <- failedFor }

func (s *collector) CollectWithStability(found chan<- metrics.Metric) {
	c := s.controller.Load()
	all, err := c.locations.List(labels.Everything())
	if err != nil {
		return
	}
	longest := map[string]float64{}
	for _, record := range all {
		if locked := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionLocked); locked != nil && locked.Status == metav1.ConditionFalse {
			longest[locked.Reason] = max(longest[locked.Reason], c.Clock.Since(locked.LastTransitionTime.Time).Seconds())
		}
	}
	for _, reason := range reasons {
		found <- metrics.NewLazyConstMetric(failedFor, metrics.GaugeValue, longest[reason], reason)
	}
}
