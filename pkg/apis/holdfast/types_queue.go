// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package holdfast

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupQueueEntry is one backup that waits, is about to start, or runs. It has
// the name, namespace and uid of its Backup, and is gone when the backup ends.
type BackupQueueEntry struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   BackupQueueEntrySpec
	Status BackupQueueEntryStatus
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupQueueEntryList is a list of BackupQueueEntries.
type BackupQueueEntryList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []BackupQueueEntry
}

// BackupQueueEntrySpec says what the waiting backup asked for.
type BackupQueueEntrySpec struct {
	IncludedNamespaces []string
	ExcludedNamespaces []string
	StorageLocation    string
	Requester          string
}

// QueueState is where in the queue a backup stands.
type QueueState string

// QueueReason says why a backup waits.
type QueueReason string

// BackupQueueEntryStatus is an entry's place and reason.
type BackupQueueEntryStatus struct {
	State              QueueState
	Position           int32
	Reason             QueueReason
	Message            string
	Blockers           []QueueBlocker
	OtherBlockers      int32
	ConflictNamespaces []string
	SlotsInUse         int32
	SlotLimit          int32
	Since              *metav1.Time
}

// QueueBlocker names a backup that another one waits for.
type QueueBlocker struct {
	Namespace string
	Name      string
}
