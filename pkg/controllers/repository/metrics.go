// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

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
	notReadyRepositories = metrics.NewDesc("holdfast_repositories_not_ready",
		"Repositories that can't be used, by why: KeyMissing, KeyMismatch and Damaged need somebody to act.", []string{"reason"}, nil, metrics.ALPHA, "")
	keysNotBackedUp = metrics.NewDesc("holdfast_repositories_key_not_backed_up",
		"Repositories whose key is in this cluster only, by why: nobody has exported it, or it could not be written for the location's recovery keys.", []string{"reason"}, nil, metrics.ALPHA, "")
	keyReasons = []string{enginev1alpha1.ReasonKeyNotExported, enginev1alpha1.ReasonKeyNotWrapped}
	// reasons are all shown reasons, so that ended ones are zero.
	reasons = []string{enginev1alpha1.ReasonKeyMissing, enginev1alpha1.ReasonKeyMismatch, enginev1alpha1.ReasonDamaged, enginev1alpha1.ReasonInvalid, enginev1alpha1.ReasonUnreachable}

	register sync.Once
	shown    repositories
)

func registerMetrics(c *Controller) {
	shown.controller.Store(c)
	register.Do(func() { legacyregistry.CustomMustRegister(&shown) })
}

type repositories struct {
	metrics.BaseStableCollector
	controller atomic.Pointer[Controller]
}

func (*repositories) DescribeWithStability(descs chan<- *metrics.Desc) {
	descs <- notReadyRepositories
	descs <- keysNotBackedUp
}

func (r *repositories) CollectWithStability(found chan<- metrics.Metric) {
	all, err := r.controller.Load().lister.List(labels.Everything())
	if err != nil {
		return
	}
	for _, shown := range []struct {
		desc      *metrics.Desc
		condition string
		reasons   []string
	}{{notReadyRepositories, enginev1alpha1.ConditionReady, reasons}, {keysNotBackedUp, enginev1alpha1.ConditionKeyBackedUp, keyReasons}} {
		counts := map[string]int{}
		for _, record := range all {
			if condition := meta.FindStatusCondition(record.Status.Conditions, shown.condition); condition != nil {
				counts[condition.Reason]++
			}
		}
		for _, reason := range shown.reasons {
			found <- metrics.NewLazyConstMetric(shown.desc, metrics.GaugeValue, float64(counts[reason]), reason)
		}
	}
}
