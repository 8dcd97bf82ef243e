// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=volumerepositories,singular=volumerepository,shortName=hfrepo,scope=Namespaced,categories=holdfast-admin
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.volumeNamespace`
// +kubebuilder:printcolumn:name="Location",type=string,JSONPath=`.spec.backupStorageLocation`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.status.conditions[?(@.type=="KeyBackedUp")].reason`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Files",type=integer,JSONPath=`.status.files`
// +kubebuilder:printcolumn:name="Last-Maintenance",type=date,JSONPath=`.status.lastMaintenanceTime`
// +kubebuilder:printcolumn:name="Last-Result",type=string,JSONPath=`.status.recentMaintenance[0].result`
// +kubebuilder:printcolumn:name="Damaged",type=string,JSONPath=`.status.conditions[?(@.type=="Damaged")].status`
// +kubebuilder:printcolumn:name="Reclaimed",type=string,JSONPath=`.status.reclaimed`
// +kubebuilder:printcolumn:name="Maintained",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Maintained")].reason`
// +kubebuilder:printcolumn:name="Last-Job",type=string,priority=1,JSONPath=`.status.recentMaintenance[0].job`
// +kubebuilder:printcolumn:name="Missing-Backups",type=integer,priority=1,JSONPath=`.status.missingBackups`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Maintained")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// VolumeRepository is a Kopia repository with one namespace's volume data in one storage location.
// Its name is NAMESPACE.LOCATION. Its key is in the Secret NAMESPACE.LOCATION.key in the namespace
// <system namespace>-repositories. Without that Secret, the data is lost.
type VolumeRepository struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Its identity.
	Spec VolumeRepositorySpec `json:"spec"`
	// Its usability and maintenance.
	// +optional
	Status VolumeRepositoryStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// VolumeRepositoryList is a list of VolumeRepositories.
type VolumeRepositoryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumeRepository `json:"items"`
}

// VolumeRepositorySpec identifies a repository. Only the maintenance changes.
// +kubebuilder:validation:XValidation:rule="self.volumeNamespace == oldSelf.volumeNamespace && self.backupStorageLocation == oldSelf.backupStorageLocation",message="a VolumeRepository stays the one that it is: only when it is maintained changes"
type VolumeRepositorySpec struct {
	// Namespace of the volumes.
	VolumeNamespace string `json:"volumeNamespace"`
	// The storage location.
	BackupStorageLocation string `json:"backupStorageLocation"`
	// Interval of maintenance. Default: the controller's --maintenance-frequency.
	// +optional
	MaintenanceFrequency *metav1.Duration `json:"maintenanceFrequency,omitempty"`
	// A request to maintain it now. It stays afterwards.
	// +optional
	MaintenanceRequest *MaintenanceAsk `json:"maintenanceRequest,omitempty"`
}

// MaintenanceAsk is a request to maintain a repository now.
type MaintenanceAsk struct {
	Ask `json:",inline"`
	// Whether to read every pack, too.
	// +optional
	Verify bool `json:"verify,omitempty"`
}

const (
	// ConditionReady is True when the repository exists, and its key opens it.
	ConditionReady = "Ready"
	// ReasonReady: it was opened or created.
	ReasonReady = "Ready"
	// ReasonKeyMismatch: it exists, and its key does not open it.
	ReasonKeyMismatch = "KeyMismatch"
	// ReasonKeyMissing: it exists, and its key's Secret is missing.
	ReasonKeyMissing = "KeyMissing"
	// ReasonDamaged: the store lost all, or the objects that open the repository.
	ReasonDamaged = "Damaged"

	// ConditionKeyBackedUp is True if the key is kept outside this cluster too. Missing until the
	// first check.
	ConditionKeyBackedUp = "KeyBackedUp"
	// ReasonKeyWrapped: the key is in the store, encrypted for the location's recovery keys.
	ReasonKeyWrapped = "Wrapped"
	// ReasonKeyNotWrapped: the encrypted key could not be stored.
	ReasonKeyNotWrapped = "NotWrapped"
	// ReasonKeyExported: the key was exported, to a place that the cluster does not know.
	ReasonKeyExported = "Exported"
	// ReasonKeyNotExported: no recovery keys, and no export since the key was made.
	ReasonKeyNotExported = "NotExported"

	// ConditionMaintained is True if the last maintenance succeeded, and the next is not late.
	// Missing until the first has ended. Its observedGeneration is behind until a requested one has
	// ended.
	ConditionMaintained = "Maintained"
	// ConditionDamaged is True if the store has lost data of the repository. Missing until the
	// first full maintenance.
	ConditionDamaged = "Damaged"
	// ReasonDataLost: packs are missing, or differ from what was written.
	ReasonDataLost = "DataLost"
	// ReasonNothingLost: the last check found nothing missing.
	ReasonNothingLost = "NothingLost"

	// ReasonWaiting: maintenance was requested, or is late by a period. The message says what it
	// waits for. Otherwise the reason is the last MaintenanceResult.
	ReasonWaiting = "Waiting"
)

// KeySecretName returns the name of a repository's key Secret.
func KeySecretName(repository string) string { return repository + ".key" }

// KeySecretKey is the Secret's key with the repository's password.
const KeySecretKey = "repository-password"

const (
	// NextKeySecretKey is, in this Secret, the password that the repository is about to get, or
	// just got.
	NextKeySecretKey = "next-repository-password"
	// FormerKeysSecretKey has the last former passwords, one a line.
	FormerKeysSecretKey = "former-repository-passwords"
)

// AnnotationKeyExported of a VolumeRepository is the last exported key's fingerprint.
const AnnotationKeyExported = "holdfast.io/key-exported"

// RepositoryTypeKopia is the only type of a repository.
const RepositoryTypeKopia = "kopia"

// RepositoryName returns the name of a namespace's repository in a location. It is unique, since
// namespaces have no dots.
func RepositoryName(volumeNamespace, location string) string {
	return volumeNamespace + "." + location
}

// MaintenanceResult is a maintenance's result.
// +kubebuilder:validation:Enum=Succeeded;Failed
type MaintenanceResult string

const (
	// MaintenanceSucceeded: it was complete.
	MaintenanceSucceeded MaintenanceResult = "Succeeded"
	// MaintenanceFailed: not done, or not in full.
	MaintenanceFailed MaintenanceResult = "Failed"
)

// MaintenanceRun is an ended maintenance.
type MaintenanceRun struct {
	// Succeeded or Failed.
	Result MaintenanceResult `json:"result"`
	// Name of its Job.
	// +optional
	Job string `json:"job,omitempty"`
	// When it began.
	StartTimestamp metav1.Time `json:"startTimestamp"`
	// When it ended.
	CompleteTimestamp metav1.Time `json:"completeTimestamp"`
	// Summary, or the reason of the failure.
	// +optional
	Message string `json:"message,omitempty"`
	// Bytes removed.
	// +optional
	ReclaimedBytes int64 `json:"reclaimedBytes,omitempty"`
}

// MaxDamagedPacks and MaxAffectedSnapshots bound the names in a RepositoryDamage.
const (
	MaxDamagedPacks      = 20
	MaxAffectedSnapshots = 40
)

// MaxRecentMaintenance bounds the maintenances in a VolumeRepository.
const MaxRecentMaintenance = 25

// VolumeRepositoryStatus is a repository's state.
type VolumeRepositoryStatus struct {
	// Time of the last successful maintenance.
	// +optional
	LastMaintenanceTime *metav1.Time `json:"lastMaintenanceTime,omitempty"`
	// Why the last maintenance failed. Empty if it succeeded.
	// +optional
	Message string `json:"message,omitempty"`
	// Size in the store, rounded up, as of the last full maintenance.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// Files in the newest snapshots of the volumes, as of the last full maintenance.
	// +optional
	Files int64 `json:"files,omitempty"`
	// Bytes that recentMaintenance removed, rounded up.
	// +optional
	Reclaimed *resource.Quantity `json:"reclaimed,omitempty"`
	// The last maintenances, the newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=25
	RecentMaintenance []MaintenanceRun `json:"recentMaintenance,omitempty"`
	// Number of backups with snapshots that the store lacked, or that did not list them, at the
	// last full maintenance. Too many to be believed, so these snapshots stay.
	// +optional
	MissingBackups int32 `json:"missingBackups,omitempty"`
	// Time of the last comparison of packs with the index, by full maintenance or on request.
	// +optional
	LastCheckTime *metav1.Time `json:"lastCheckTime,omitempty"`
	// Time when every pack was last read.
	// +optional
	LastVerificationTime *metav1.Time `json:"lastVerificationTime,omitempty"`
	// The lost data, as of the last check. Missing if none.
	// +optional
	Damage *RepositoryDamage `json:"damage,omitempty"`
	// All blobs are locked until then at least, as of the last full maintenance, which extends
	// locks. Missing without a lock.
	// +optional
	LockedUntil *metav1.Time `json:"lockedUntil,omitempty"`
	// Fingerprint of the key: the first 32 hexadecimal digits of the SHA-256 of a key that Holdfast
	// made. It does not reveal the key.
	// +optional
	KeyFingerprint string `json:"keyFingerprint,omitempty"`
	// Conditions: Ready, KeyBackedUp, Maintained, Damaged.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RepositoryDamage is a repository's lost data.
type RepositoryDamage struct {
	// When it was first noticed.
	Since metav1.Time `json:"since"`
	// Packs missing, or stored only in part.
	// +optional
	MissingPacks int32 `json:"missingPacks,omitempty"`
	// Packs with other contents than written.
	// +optional
	DamagedPacks int32 `json:"damagedPacks,omitempty"`
	// Names of the packs, up to 20. Each check reads them again. The next uploads of their contents
	// store them anew.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Packs []string `json:"packs,omitempty"`
	// Indexes missing since the last maintenance. Their contents, snapshots included, are unknown,
	// so nothing is removed meanwhile.
	// +optional
	MissingIndexes int32 `json:"missingIndexes,omitempty"`
	// Unreadable contents of files or folder listings.
	// +optional
	Contents int64 `json:"contents,omitempty"`
	// Number of snapshots that need them.
	// +optional
	AffectedSnapshots int32 `json:"affectedSnapshots,omitempty"`
	// Their ids, if at most 40.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=40
	Snapshots []string `json:"snapshots,omitempty"`
	// Set if there are more, or some could not be checked: snapshots that began until then count as
	// affected.
	// +optional
	AffectedUntil *metav1.Time `json:"affectedUntil,omitempty"`
}
