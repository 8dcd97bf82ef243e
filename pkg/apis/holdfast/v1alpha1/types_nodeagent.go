// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ConditionAgentReady of a NodeAgent is true while the agent gives signs of life.
	ConditionAgentReady = "Ready"
	// ConditionAgentConfigured of a NodeAgent is false when the ConfigMap that says how
	// much it moves at once has mistakes. The message names them.
	ConditionAgentConfigured = "Configured"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:noStatus
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeAgent is the agent that moves the data of the volumes of a node, whose name it
// has. A node without an agent has one that is not Ready.
type NodeAgent struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the agent does, as it said last, and how much it may.
	// +optional
	Status NodeAgentStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeAgentList is a list of NodeAgents.
type NodeAgentList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The agents.
	Items []NodeAgent `json:"items"`
}

// NodeAgentStatus is what an agent does.
type NodeAgentStatus struct {
	// Whether the agent is there, and whether its ConfigMap is right.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// How many volumes are moved at once at most: the number in force, as a Ready agent says.
	// While none says so, no volume is moved, and this is the number with which an agent
	// would start.
	// +optional
	Limit int32 `json:"limit,omitempty"`
	// What set the limit: globalConfig, perNodeConfig[INDEX], default, or memory where the
	// agent has too little for what they say.
	// +optional
	LimitSource string `json:"limitSource,omitempty"`
	// Volumes that are being moved.
	// +optional
	Running VolumeCounts `json:"running,omitempty"`
	// Volumes that wait for their turn.
	// +optional
	Waiting VolumeCounts `json:"waiting,omitempty"`
	// Since when the volume waits that has waited for the longest time.
	// +optional
	WaitingSince *metav1.Time `json:"waitingSince,omitempty"`
	// Bytes that were read or written in each second, unchanged files included: the mean
	// of 10 s.
	// +optional
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// Version of the agent.
	// +optional
	Version string `json:"version,omitempty"`
}

// VolumeCounts counts volumes by what is done with them.
type VolumeCounts struct {
	// Volumes that are restored.
	// +optional
	Restores int32 `json:"restores,omitempty"`
	// Volumes that are backed up.
	// +optional
	Backups int32 `json:"backups,omitempty"`
}

// NodeAgentProxyPath is the path of the subresource proxy, where the agent of a node reads what
// is for it.
func NodeAgentProxyPath(node string) string {
	return "/apis/" + SchemeGroupVersion.String() + "/nodeagents/" + node + "/proxy"
}
