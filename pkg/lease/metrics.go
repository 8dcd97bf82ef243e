// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var nodeAgents = metrics.NewDesc("holdfast_node_agents",
	"Nodes that have an agent, by its Lease, and nodes that have none.",
	[]string{"present"}, nil, metrics.ALPHA, "")

type collector struct {
	metrics.BaseStableCollector
	agents *Agents
}

// RegisterMetrics adds the counts of nodes to the metrics.
func (a *Agents) RegisterMetrics() {
	legacyregistry.CustomMustRegister(&collector{agents: a})
}

func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) { ch <- nodeAgents }

func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	with, without := c.agents.Nodes()
	ch <- metrics.NewLazyConstMetric(nodeAgents, metrics.GaugeValue, float64(with), "true")
	ch <- metrics.NewLazyConstMetric(nodeAgents, metrics.GaugeValue, float64(without), "false")
}
