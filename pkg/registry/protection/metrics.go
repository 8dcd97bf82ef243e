// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

var (
	protectionCount = metrics.NewDesc("holdfast_protections",
		"Workloads and claims by their protection: Yes, Late, UNPROTECTED or Unknown.", []string{"kind", "protected"}, nil, metrics.ALPHA, "")
	unprotectedClaims = metrics.NewDesc("holdfast_unprotected_claims",
		"Claims that are Late or UNPROTECTED, although an annotation or a schedule asks for their backups, and older than their last backup may be.", nil, nil, metrics.ALPHA, "")

	register sync.Once
	shown    collector
)

// collector counts when it is asked. Each replica shows the same.
type collector struct {
	metrics.BaseStableCollector
	publisher atomic.Pointer[Publisher]
}

func registerMetrics(p *Publisher) {
	shown.publisher.Store(p)
	register.Do(func() { legacyregistry.CustomMustRegister(&shown) })
}

// DescribeWithStability implements metrics.StableCollector.
func (*collector) DescribeWithStability(descs chan<- *metrics.Desc) {
	descs <- protectionCount
	descs <- unprotectedClaims
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(values chan<- metrics.Metric) {
	p := c.publisher.Load()
	if p == nil || p.decided.Load() == nil {
		return
	}
	counts, unprotected := p.count()
	for of, n := range counts {
		values <- metrics.NewLazyConstMetric(protectionCount, metrics.GaugeValue, float64(n), of.kind, string(of.state))
	}
	values <- metrics.NewLazyConstMetric(unprotectedClaims, metrics.GaugeValue, float64(unprotected))
}

type counted struct {
	kind  string
	state v1alpha1.ProtectionState
}

// count counts all objects, and unprotected claims that should be protected.
func (p *Publisher) count() (counts map[counted]int, unprotected int) {
	counts = map[counted]int{}
	for state := range order {
		counts[counted{"claim", state}], counts[counted{"workload", state}] = 0, 0
	}
	p.judged(p.live.list(metav1.NamespaceAll), func(o *object, _ facts, v verdict) {
		of := counted{"workload", v.state}
		if o.claims {
			of.kind = "claim"
			if (v.state == v1alpha1.ProtectionLate || v.state == v1alpha1.ProtectionNone) && v.expected(o, p.Clock.Now()) {
				unprotected++
			}
		}
		counts[of]++
	})
	return counts, unprotected
}
