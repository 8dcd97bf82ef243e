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
	failedLocks = metrics.NewDesc("holdfast_locks_failed",
		"Storage locations with spec.lock whose objects are not all locked as it says, by why.", []string{"reason"}, nil, metrics.ALPHA, "")
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

func (*collector) DescribeWithStability(descs chan<- *metrics.Desc) { descs <- failedLocks }

func (s *collector) CollectWithStability(found chan<- metrics.Metric) {
	all, err := s.controller.Load().locations.List(labels.Everything())
	if err != nil {
		return
	}
	counts := map[string]int{}
	for _, record := range all {
		if locked := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionLocked); locked != nil && locked.Status == metav1.ConditionFalse {
			counts[locked.Reason]++
		}
	}
	for _, reason := range reasons {
		found <- metrics.NewLazyConstMetric(failedLocks, metrics.GaugeValue, float64(counts[reason]), reason)
	}
}
