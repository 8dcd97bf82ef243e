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

// BackupQueueEntry is a backup or restore that waits, is about to start, or runs. It has its
// Backup's name, namespace and uid, and is removed when the backup ends. A Restore's entry is named
// restore:NAME, since a Backup may have the same name.
type BackupQueueEntry struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata of the Backup or Restore.
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
	// List metadata.
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
	// Namespaces that the backup's spec includes, or the restore writes to. Empty means all.
	// +optional
	// +listType=atomic
	IncludedNamespaces []string `json:"includedNamespaces,omitempty"`
	// Namespaces that the backup's spec excludes.
	// +optional
	// +listType=atomic
	ExcludedNamespaces []string `json:"excludedNamespaces,omitempty"`
	// The storage location.
	// +optional
	StorageLocation string `json:"storageLocation,omitempty"`
	// The requesting user.
	// +optional
	Requester string `json:"requester,omitempty"`
}

// QueueState is the state in the queue.
type QueueState string

const (
	// QueueStateRunning: it reads or writes, and holds a slot.
	QueueStateRunning QueueState = "Running"
	// QueueStateReady: it has a slot and is about to start.
	QueueStateReady QueueState = "Ready"
	// QueueStateQueued: it waits.
	QueueStateQueued QueueState = "Queued"
)

// QueueReason says why a backup or restore waits.
type QueueReason string

const (
	// QueueReasonConcurrencyLimit: the maximum number of its kind runs.
	QueueReasonConcurrencyLimit QueueReason = "ConcurrencyLimit"
	// QueueReasonNamespaceOverlap: a running one reads or writes one of its namespaces.
	QueueReasonNamespaceOverlap QueueReason = "NamespaceOverlap"
	// QueueReasonClusterScopeOverlap: a running one uses cluster-scoped resources, as this one
	// does.
	QueueReasonClusterScopeOverlap QueueReason = "ClusterScopeOverlap"
	// QueueReasonBehindOverlapping: an overlapping one ahead of it must run first.
	QueueReasonBehindOverlapping QueueReason = "BehindOverlapping"
	// QueueReasonStorageUnavailable: its storage location can't be reached. It starts once the
	// location is available again.
	QueueReasonStorageUnavailable QueueReason = "StorageUnavailable"
	// QueueReasonNextToStart: it is about to start.
	QueueReasonNextToStart QueueReason = "NextToStart"
	// QueueReasonAgentAbsent: it runs, and its volumes wait for agents without a sign of life for a
	// while.
	QueueReasonAgentAbsent QueueReason = "AgentAbsent"
)

// BackupQueueEntryStatus is an entry's place and reason.
type BackupQueueEntryStatus struct {
	// Running, Ready or Queued.
	// +optional
	State QueueState `json:"state,omitempty"`
	// Place in the whole cluster, from 1, restores first. Absent for a running one. Published with
	// a short delay.
	// +optional
	Position int32 `json:"position,omitempty"`
	// Why it waits: ConcurrencyLimit, NamespaceOverlap, ClusterScopeOverlap, BehindOverlapping,
	// StorageUnavailable or NextToStart. For a running one: AgentAbsent if its volumes wait for
	// agents.
	// +optional
	Reason QueueReason `json:"reason,omitempty"`
	// The reason in one sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// The backups and restores that it waits for. A request for one namespace gets only names in
	// it. A request for the system namespace, or all namespaces, gets all.
	// +optional
	// +listType=atomic
	Blockers []QueueBlocker `json:"blockers,omitempty"`
	// Number of further ones in other namespaces.
	// +optional
	OtherBlockers int32 `json:"otherBlockers,omitempty"`
	// Namespaces shared with its blockers.
	// +optional
	// +listType=atomic
	ConflictNamespaces []string `json:"conflictNamespaces,omitempty"`
	// The first ten nodes whose agents it waits for, without a sign of life for a while.
	// +optional
	// +listType=atomic
	AbsentAgents []string `json:"absentAgents,omitempty"`
	// Number of its kind that run or are about to start in the cluster. Only such entries have it.
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
