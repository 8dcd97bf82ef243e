// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"
)

// hack/alerts reads from here what the controller serves.
const exposition = `# HELP holdfast_node_agents [ALPHA] Nodes that have an agent, by its Lease, and nodes that have none.
# TYPE holdfast_node_agents gauge
holdfast_node_agents{present="false"} 1
holdfast_node_agents{present="true"} 2
`

func TestMetrics(t *testing.T) {
	agents := &Agents{clock: clock.RealClock{}, nodes: cache.NewStore(cache.MetaNamespaceKeyFunc), seen: map[string]agent{}}
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		if err := agents.nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"node-1", "node-2"} {
		agents.seen[AgentLease(name)] = agent{sighting: sighting{at: agents.clock.Now()}}
	}
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(&collector{agents: agents})
	if err := testutil.GatherAndCompare(registry, strings.NewReader(exposition), "holdfast_node_agents"); err != nil {
		t.Error(err)
	}
}
