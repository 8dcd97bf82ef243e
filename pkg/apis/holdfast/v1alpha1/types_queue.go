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

// BackupQueueEntry is one backup or restore that waits, is about to start, or runs. It
// has the name, namespace and uid of its Backup, and is gone when the backup ends. That of
// a Restore is called restore:NAME, since a Backup may have the same name.
type BackupQueueEntry struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata: the Backup's or the Restore's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What was asked for.
	// +optional
	Spec BackupQueueEntrySpec `json:"spec,omitempty"`
	// Where it stands, and what it waits for.
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

// BackupQueueEntrySpec says what was asked for.
type BackupQueueEntrySpec struct {
	// Backup or Restore.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Namespaces that the backup includes, in its own words, or that the restore writes to.
	// Empty means all.
	// +optional
	// +listType=atomic
	IncludedNamespaces []string `json:"includedNamespaces,omitempty"`
	// Namespaces that the backup leaves out, in its own words.
	// +optional
	// +listType=atomic
	ExcludedNamespaces []string `json:"excludedNamespaces,omitempty"`
	// Name of the storage location.
	// +optional
	StorageLocation string `json:"storageLocation,omitempty"`
	// Who asked for it.
	// +optional
	Requester string `json:"requester,omitempty"`
}

// QueueState is where in the queue a backup or restore stands.
type QueueState string

const (
	// QueueStateRunning: it reads or writes objects or volumes, and holds a slot.
	QueueStateRunning QueueState = "Running"
	// QueueStateReady: it has a slot and is about to start.
	QueueStateReady QueueState = "Ready"
	// QueueStateQueued: it waits.
	QueueStateQueued QueueState = "Queued"
)

// QueueReason says why a backup or restore waits.
type QueueReason string

const (
	// QueueReasonConcurrencyLimit: as many of its kind run as may run at once.
	QueueReasonConcurrencyLimit QueueReason = "ConcurrencyLimit"
	// QueueReasonNamespaceOverlap: one that runs reads or writes one of its namespaces.
	QueueReasonNamespaceOverlap QueueReason = "NamespaceOverlap"
	// QueueReasonClusterScopeOverlap: one that runs reads or writes cluster-scoped
	// resources, as this one does.
	QueueReasonClusterScopeOverlap QueueReason = "ClusterScopeOverlap"
	// QueueReasonBehindOverlapping: one ahead of it in the queue overlaps it, and must
	// run first.
	QueueReasonBehindOverlapping QueueReason = "BehindOverlapping"
	// QueueReasonStorageUnavailable: its storage location can't be reached. It
	// starts by itself when the location is available again.
	QueueReasonStorageUnavailable QueueReason = "StorageUnavailable"
	// QueueReasonNextToStart: nothing stands in its way; it is about to start.
	QueueReasonNextToStart QueueReason = "NextToStart"
	// QueueReasonAgentAbsent: it runs, and its volumes wait for the agents of nodes, of
	// which nothing was seen for a while.
	QueueReasonAgentAbsent QueueReason = "AgentAbsent"
)

// BackupQueueEntryStatus is an entry's place and reason.
type BackupQueueEntryStatus struct {
	// Running, Ready or Queued.
	// +optional
	State QueueState `json:"state,omitempty"`
	// Place among the queued of the whole cluster, from 1, restores first. Absent for one
	// that runs. Published with a short delay.
	// +optional
	Position int32 `json:"position,omitempty"`
	// Why it waits: ConcurrencyLimit, NamespaceOverlap,
	// ClusterScopeOverlap, BehindOverlapping, StorageUnavailable or NextToStart; for
	// one that runs, AgentAbsent if its volumes wait for the agents of nodes.
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
	// How many further ones, elsewhere, it waits for.
	// +optional
	OtherBlockers int32 `json:"otherBlockers,omitempty"`
	// The namespaces that it and its blockers share.
	// +optional
	// +listType=atomic
	ConflictNamespaces []string `json:"conflictNamespaces,omitempty"`
	// The nodes whose agents it waits for, though nothing was seen of them for a while: ten
	// at most.
	// +optional
	// +listType=atomic
	AbsentAgents []string `json:"absentAgents,omitempty"`
	// How many of its kind run or are about to start, in the whole cluster. Only entries that do so themselves say that.
	// +optional
	SlotsInUse int32 `json:"slotsInUse,omitempty"`
	// How many may run at once; like slotsInUse.
	// +optional
	SlotLimit int32 `json:"slotLimit,omitempty"`
	// Since when it waits; for a running one, since when it runs.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// QueueBlocker names a backup or restore that another one waits for.
type QueueBlocker struct {
	// Backup or Restore.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Its namespace.
	Namespace string `json:"namespace"`
	// Its name.
	Name string `json:"name"`
}
