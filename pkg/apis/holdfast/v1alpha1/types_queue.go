// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +resourceName=backupqueues

// BackupQueueEntry is one backup or restore that waits, is about to start, or runs. It has the
// name, namespace and uid of its Backup, and is removed when the backup ends. The entry of a
// Restore is named restore:NAME, since a Backup may have the same name.
type BackupQueueEntry struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata: the Backup's or the Restore's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The request.
	// +optional
	Spec BackupQueueEntrySpec `json:"spec,omitempty"`
	// Its place, and why it waits.
	// +optional
	Status BackupQueueEntryStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupQueueEntryList is a list of BackupQueueEntries.
type BackupQueueEntryList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The entries.
	Items []BackupQueueEntry `json:"items"`
}

// BackupQueueEntrySpec is the request.
type BackupQueueEntrySpec struct {
	// Backup or Restore.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Namespaces that the backup includes, as in its spec, or that the restore writes to. Empty
	// means all.
	// +optional
	// +listType=atomic
	IncludedNamespaces []string `json:"includedNamespaces,omitempty"`
	// Namespaces that the backup excludes, as in its spec.
	// +optional
	// +listType=atomic
	ExcludedNamespaces []string `json:"excludedNamespaces,omitempty"`
	// Name of the storage location.
	// +optional
	StorageLocation string `json:"storageLocation,omitempty"`
	// The user that requested it.
	// +optional
	Requester string `json:"requester,omitempty"`
}

// QueueState is the state of a backup or restore in the queue.
type QueueState string

const (
	// QueueStateRunning: it reads or writes objects or volumes, and holds a slot.
	QueueStateRunning QueueState = "Running"
	// QueueStateReady: it has a slot and is about to start.
	QueueStateReady QueueState = "Ready"
	// QueueStateQueued: it waits.
	QueueStateQueued QueueState = "Queued"
)

// QueueReason is the reason why a backup or restore waits.
type QueueReason string

const (
	// QueueReasonConcurrencyLimit: the maximum number of its kind runs.
	QueueReasonConcurrencyLimit QueueReason = "ConcurrencyLimit"
	// QueueReasonNamespaceOverlap: a running one reads or writes one of its namespaces.
	QueueReasonNamespaceOverlap QueueReason = "NamespaceOverlap"
	// QueueReasonClusterScopeOverlap: a running one reads or writes cluster-scoped resources, as
	// this one does.
	QueueReasonClusterScopeOverlap QueueReason = "ClusterScopeOverlap"
	// QueueReasonBehindOverlapping: one ahead of it in the queue overlaps it, and must run first.
	QueueReasonBehindOverlapping QueueReason = "BehindOverlapping"
	// QueueReasonStorageUnavailable: its storage location can't be reached. It starts by itself
	// when the location is available again.
	QueueReasonStorageUnavailable QueueReason = "StorageUnavailable"
	// QueueReasonNextToStart: it is about to start.
	QueueReasonNextToStart QueueReason = "NextToStart"
	// QueueReasonAgentAbsent: it runs, and its volumes wait for agents of nodes that have shown no
	// sign of life for a while.
	QueueReasonAgentAbsent QueueReason = "AgentAbsent"
)

// BackupQueueEntryStatus is an entry's place and reason.
type BackupQueueEntryStatus struct {
	// Running, Ready or Queued.
	// +optional
	State QueueState `json:"state,omitempty"`
	// Place among the waiting ones of the whole cluster, from 1, restores first. Absent for a
	// running one. Published with a short delay.
	// +optional
	Position int32 `json:"position,omitempty"`
	// Why it waits: ConcurrencyLimit, NamespaceOverlap, ClusterScopeOverlap, BehindOverlapping,
	// StorageUnavailable or NextToStart. For a running one: AgentAbsent if its volumes wait for the
	// agents of nodes.
	// +optional
	Reason QueueReason `json:"reason,omitempty"`
	// The reason in one sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// The backups and restores that it waits for. A request for one namespace gets only the names
	// in that namespace. A request for the system namespace, or for all namespaces, gets all names.
	// +optional
	// +listType=atomic
	Blockers []QueueBlocker `json:"blockers,omitempty"`
	// Number of further ones, in other namespaces, that it waits for.
	// +optional
	OtherBlockers int32 `json:"otherBlockers,omitempty"`
	// The namespaces that it and its blockers share.
	// +optional
	// +listType=atomic
	ConflictNamespaces []string `json:"conflictNamespaces,omitempty"`
	// The first ten nodes whose agents it waits for, and that have shown no sign of life for a
	// while.
	// +optional
	// +listType=atomic
	AbsentAgents []string `json:"absentAgents,omitempty"`
	// Number of its kind that run or are about to start, in the whole cluster. Only such entries
	// have it.
	// +optional
	SlotsInUse int32 `json:"slotsInUse,omitempty"`
	// Maximum of slotsInUse. Only entries with slotsInUse have it.
	// +optional
	SlotLimit int32 `json:"slotLimit,omitempty"`
	// Since when it waits or runs.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// QueueBlocker is a backup or restore that another one waits for.
type QueueBlocker struct {
	// Backup or Restore.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Its namespace.
	Namespace string `json:"namespace"`
	// Its name.
	Name string `json:"name"`
}
