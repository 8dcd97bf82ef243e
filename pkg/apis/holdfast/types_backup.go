// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package holdfast

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Backup is one backup of Kubernetes objects and of the data in their volumes:
// waiting, running, or stored in a storage location. A Backup in the system
// namespace may include any namespace; in any other namespace it includes that
// namespace, and further ones only if its creator may create backups there too.
// Backups have no delete verb, so that deleting a namespace keeps its backups.
type Backup struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   BackupSpec
	Status BackupStatus
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupList is a list of Backups.
type BackupList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []Backup
}

// BackupSpec says what to back up. Its fields have the names and meanings of
// Velero's Backup, so that such a manifest moves over by its apiVersion.
type BackupSpec struct {
	IncludedNamespaces               []string
	ExcludedNamespaces               []string
	IncludedResources                []string
	ExcludedResources                []string
	IncludeClusterResources          *bool
	IncludedClusterScopedResources   []string
	ExcludedClusterScopedResources   []string
	IncludedNamespaceScopedResources []string
	ExcludedNamespaceScopedResources []string
	LabelSelector                    *metav1.LabelSelector
	OrLabelSelectors                 []*metav1.LabelSelector
	SnapshotVolumes                  *bool
	DefaultVolumesToFsBackup         *bool
	TTL                              metav1.Duration
	StorageLocation                  string
}

// BackupPhase is the state of a backup in one word. Conditions are the contract
// for programs.
type BackupPhase string

// BackupStatus is the state of a backup.
type BackupStatus struct {
	Phase               BackupPhase
	QueuePosition       int32
	Conditions          []metav1.Condition
	FormatVersion       string
	QueuedTimestamp     *metav1.Time
	StartTimestamp      *metav1.Time
	CompletionTimestamp *metav1.Time
	Expiration          *metav1.Time
	Progress            *BackupProgress
	Volumes             *BackupVolumesProgress
	Warnings            int32
	Errors              int32
	FailureReason       string
	ValidationErrors    []string
	Requester           string
	Origin              *BackupOrigin
}

// BackupTrust says how far what a stored backup says of itself can be believed.
type BackupTrust string

// BackupOrigin is where a backup comes from.
type BackupOrigin struct {
	Trust            BackupTrust
	Message          string
	Cluster          string
	ClusterUID       string
	PublicKey        string
	Namespace        string
	NamespaceUID     types.UID
	Name             string
	ClaimedRequester string
}

// BackupProgress counts objects.
type BackupProgress struct {
	TotalItems    int64
	ItemsBackedUp int64
}

// BackupVolumesProgress counts volumes and their bytes.
type BackupVolumesProgress struct {
	Total      int32
	Completed  int32
	Failed     int32
	TotalBytes int64
	BytesDone  int64
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupCancellation is the body of a POST to backups/NAME/cancel.
type BackupCancellation struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupDeletion is the body of a POST to backups/NAME/deletion.
type BackupDeletion struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}
