// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=list
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupObject is one object in one stored backup, by its manifest. It has the backup's namespace
// and the object's labels. A list needs the field selector kind, and begins with the newest backup.
type BackupObject struct {
	metav1.TypeMeta `json:",inline"`
	// Object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The object and its backup.
	Spec BackupObjectSpec `json:"spec"`
}

// BackupObjectSpec identifies an object and its backup.
type BackupObjectSpec struct {
	// Its API version, such as apps/v1.
	APIVersion string `json:"apiVersion"`
	// Its kind.
	Kind string `json:"kind"`
	// Its namespace. Empty if cluster-scoped.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Its name.
	Name string `json:"name"`
	// Its UID.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Bytes of its JSON.
	// +optional
	Size int64 `json:"size,omitempty"`
	// SHA-256 of its JSON, in hexadecimal: equal for equal versions. In encrypted backups it is
	// keyed by cluster, and comparable only within a cluster's backups.
	// +optional
	SHA256 string `json:"sha256,omitempty"`
	// Why the backup has the object. Empty if its spec selects it.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Images of a pod's or workload's containers. Empty if the backup lacks them.
	// +optional
	// +listType=atomic
	Images []string `json:"images,omitempty"`
	// Name of the backup.
	Backup string `json:"backup"`
	// The backup's UID.
	// +optional
	BackupUID types.UID `json:"backupUID,omitempty"`
	// The backup's phase.
	// +optional
	BackupPhase BackupPhase `json:"backupPhase,omitempty"`
	// When the backup began to read.
	BackupTimestamp metav1.Time `json:"backupTimestamp"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupObjectList is a list of BackupObjects.
type BackupObjectList struct {
	metav1.TypeMeta `json:",inline"`
	// List metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// The objects.
	Items []BackupObject `json:"items"`
}
