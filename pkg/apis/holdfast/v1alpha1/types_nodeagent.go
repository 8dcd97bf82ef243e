// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ConditionAgentReady of a NodeAgent is True while it gives signs of life.
	ConditionAgentReady = "Ready"
	// ConditionAgentConfigured of a NodeAgent is False if the ConfigMap with its limits has
	// mistakes, which the message names.
	ConditionAgentConfigured = "Configured"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:noStatus
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeAgent moves the data of a node's volumes, and has the node's name. A node without an agent
// has one that is not Ready.
type NodeAgent struct {
	metav1.TypeMeta `json:",inline"`
	// Object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The agent's last report, and its limit.
	// +optional
	Status NodeAgentStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeAgentList is a list of NodeAgents.
type NodeAgentList struct {
	metav1.TypeMeta `json:",inline"`
	// List metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The agents.
	Items []NodeAgent `json:"items"`
}

// NodeAgentStatus is an agent's state.
type NodeAgentStatus struct {
	// Whether the agent is alive, and its ConfigMap valid.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// How many volumes may be moved at once, by a Ready agent's report. Without a report, no volume
	// is moved, and this is a new agent's limit.
	// +optional
	Limit int32 `json:"limit,omitempty"`
	// Source of the limit: globalConfig, perNodeConfig[INDEX], default, or memory if the agent has
	// too little for the configured limit.
	// +optional
	LimitSource string `json:"limitSource,omitempty"`
	// Volumes being moved.
	// +optional
	Running VolumeCounts `json:"running,omitempty"`
	// Volumes that wait.
	// +optional
	Waiting VolumeCounts `json:"waiting,omitempty"`
	// Since when the oldest one waits.
	// +optional
	WaitingSince *metav1.Time `json:"waitingSince,omitempty"`
	// Bytes read or written per second, unchanged files included: the mean of 10 s.
	// +optional
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// Version of the agent.
	// +optional
	Version string `json:"version,omitempty"`
}

// VolumeCounts counts volumes by the kind of work.
type VolumeCounts struct {
	// Volumes being restored.
	// +optional
	Restores int32 `json:"restores,omitempty"`
	// Volumes being backed up.
	// +optional
	Backups int32 `json:"backups,omitempty"`
}

// NodeAgentProxyPath returns the path of the subresource proxy, where a node's agent reads its
// records.
func NodeAgentProxyPath(node string) string {
	return "/apis/" + SchemeGroupVersion.String() + "/nodeagents/" + node + "/proxy"
}
