// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

var (
	stoppedLocations = metrics.NewDesc("holdfast_locations_stopped",
		"Storage locations to which nothing is written, by why: all but Unreachable need somebody to act.", []string{"reason"}, nil, metrics.ALPHA, "")
	// reasons are all shown reasons, so that ended ones are zero.
	reasons = []string{enginev1alpha1.ReasonUnreachable, enginev1alpha1.ReasonAccessDenied, enginev1alpha1.ReasonNoSuchBucket, enginev1alpha1.ReasonClockSkew, enginev1alpha1.ReasonInvalid, enginev1alpha1.ReasonOtherStore, enginev1alpha1.ConditionClonedCluster}

	register sync.Once
	shown    stopped
)

func registerMetrics(c *Controller) {
	shown.controller.Store(c)
	register.Do(func() { legacyregistry.CustomMustRegister(&shown) })
}

type stopped struct {
	metrics.BaseStableCollector
	controller atomic.Pointer[Controller]
}

func (*stopped) DescribeWithStability(descs chan<- *metrics.Desc) { descs <- stoppedLocations }

func (s *stopped) CollectWithStability(found chan<- metrics.Metric) {
	all, err := s.controller.Load().lister.List(labels.Everything())
	if err != nil {
		return
	}
	counts := map[string]int{}
	for _, record := range all {
		if available := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionAvailable); record.Unavailable() {
			counts[available.Reason]++
		} else if record.Cloned() {
			counts[enginev1alpha1.ConditionClonedCluster]++
		}
	}
	for _, reason := range reasons {
		found <- metrics.NewLazyConstMetric(stoppedLocations, metrics.GaugeValue, float64(counts[reason]), reason)
	}
}
