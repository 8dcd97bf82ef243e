// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeagent makes the NodeAgents from the nodes and their agents' Leases. It also serves each agent its
// node's records; see Proxy.
package nodeagent

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

type agent = *v1alpha1.NodeAgent

// Resource defines nodeagents.
var Resource = virtual.Resource[agent]{
	GroupResource: v1alpha1.Resource("nodeagents"),
	Singular:      "nodeagent",
	ShortNames:    []string{"hfn"},
	Categories:    []string{"holdfast-admin"},
	Object:        &v1alpha1.NodeAgent{},
	List:          &v1alpha1.NodeAgentList{},
	Fields: map[string]func(agent) string{
		"status.limit": func(a agent) string { return fmt.Sprint(a.Status.Limit) },
	},
	Columns: []virtual.Column[agent]{
		virtual.Name[agent](),
		virtual.Text("Ready", "Whether the node's agent gives signs of life.", ready),
		virtual.Number("Limit", "How many volumes the node moves at once at most. One that is not Ready moves none, and would so many.", func(a agent) int32 { return a.Status.Limit }),
		virtual.Text("Rule", "What set the limit.", func(a agent) string { return a.Status.LimitSource }),
		virtual.Number("Running", "Volumes that are being moved.", func(a agent) int32 { return total(a.Status.Running) }),
		virtual.Number("Waiting", "Volumes that wait for their turn.", func(a agent) int32 { return total(a.Status.Waiting) }),
		virtual.Text("Throughput", "What was moved in each second, over the last 10 s.", throughput),
		virtual.Timed("Age", "How long the node has had an agent; without one, how long it has been there.", func(a agent, now time.Time) string {
			return virtual.Age(&a.CreationTimestamp, now)
		}),
		virtual.Wide(virtual.Text("Version", "Version of the agent.", func(a agent) string { return a.Status.Version })),
		virtual.Wide(virtual.Text("Waiting-Classes", "What waits, by what is to be done with it.", waitingClasses)),
		virtual.Wide(virtual.Timed("Oldest-Wait", "How long the volume has waited that came first.", func(a agent, now time.Time) string {
			return virtual.Since(a.Status.WaitingSince, now)
		})),
		virtual.Wide(virtual.Text("Problem", "What is wrong with the ConfigMap of the agents, or with the agent.", problem)),
	},
}

func ready(a agent) string {
	if condition := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionAgentReady); condition != nil {
		return string(condition.Status)
	}
	return string(metav1.ConditionUnknown)
}

func total(counts v1alpha1.VolumeCounts) int32 { return counts.Restores + counts.Backups }

func throughput(a agent) string {
	if a.Status.BytesPerSecond == 0 {
		return ""
	}
	return virtual.Bytes(a.Status.BytesPerSecond) + "/s"
}

func waitingClasses(a agent) string {
	if waiting := a.Status.Waiting; total(waiting) > 0 {
		return fmt.Sprintf("%d restores, %d backups", waiting.Restores, waiting.Backups)
	}
	return ""
}

func problem(a agent) string {
	var messages []string
	for _, condition := range a.Status.Conditions {
		if condition.Status != metav1.ConditionTrue {
			messages = append(messages, condition.Message)
		}
	}
	return strings.Join(messages, "; ")
}
