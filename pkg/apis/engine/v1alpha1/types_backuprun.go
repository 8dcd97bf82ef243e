// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=backupruns,singular=backuprun,shortName=hfrun,scope=Namespaced
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ticket",type=integer,JSONPath=`.status.ticket`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// BackupRun is the record of a live backup. Its name is the backup's name in the store; its uid and
// creationTimestamp are the Backup's. It is removed a while after the result is durable.
type BackupRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The request.
	Spec BackupRunSpec `json:"spec"`
	// The state of the run.
	// +optional
	Status BackupRunStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// BackupRunList is a list of BackupRuns.
type BackupRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BackupRun `json:"items"`
}

// BackupRunSpec is the request. Immutable, except for one cancellation and one deletion.
// +kubebuilder:validation:XValidation:rule="self.backupRef == oldSelf.backupRef && has(self.namespaceUID) == has(oldSelf.namespaceUID) && (!has(self.namespaceUID) || self.namespaceUID == oldSelf.namespaceUID) && self.backup == oldSelf.backup && self.requester == oldSelf.requester && has(self.scheduleUID) == has(oldSelf.scheduleUID) && (!has(self.scheduleUID) || self.scheduleUID == oldSelf.scheduleUID)",message="the spec of a BackupRun does not change, except by a cancellation or deletion"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancellation) || has(self.cancellation) && self.cancellation == oldSelf.cancellation",message="a cancellation is not taken back"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.deletion) || has(self.deletion) && self.deletion == oldSelf.deletion",message="a deletion is not taken back"
type BackupRunSpec struct {
	// The Backup.
	BackupRef v1alpha1.BackupReference `json:"backupRef"`
	// Uid of the Backup's namespace at the request. Another namespace of that name is not meant.
	// Empty in a run created to delete a stored backup.
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty"`
	// Labels of the Backup.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the Backup.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(self[key]) <= 49152)",message="an annotation has at most 48 KiB"
	Annotations map[string]string `json:"annotations,omitempty"`
	// The requesting user.
	// +optional
	Requester Requester `json:"requester,omitempty"`
	// Uid of the Backup's Schedule.
	// +optional
	ScheduleUID types.UID `json:"scheduleUID,omitempty"`
	// The Backup's spec, with its defaults.
	Backup v1alpha1.BackupSpec `json:"backup"`
	// The request to stop the run, until it has ended.
	// +optional
	Cancellation *Ask `json:"cancellation,omitempty"`
	// The request to remove the ended backup from its store. A run created with it stands for a
	// stored backup without a run.
	// +optional
	Deletion *Deletion `json:"deletion,omitempty"`
}

// Ask is a request about a run.
type Ask struct {
	// The user.
	// +optional
	Requester Requester `json:"requester,omitempty"`
	// The causing schedule, as NAMESPACE/NAME. Empty without one.
	// +optional
	Schedule string `json:"schedule,omitempty"`
	// The time of the request.
	Timestamp metav1.Time `json:"timestamp"`
}

// Deletion is the request to remove a stored backup.
type Deletion struct {
	Ask `json:",inline"`
	// The stored backup, if the run was created for it.
	// +optional
	Stored *StoredBackup `json:"stored,omitempty"`
	// Whether the backup had expired. Then the deletion waits if the backup turns out to be kept
	// longer.
	// +optional
	Expired bool `json:"expired,omitempty"`
	// Whether stored snapshots that only the backup names are deleted too.
	// +optional
	SnapshotsByHandle bool `json:"snapshotsByHandle,omitempty"`
}

// StoredBackup identifies a backup in the store.
type StoredBackup struct {
	// Its uid.
	UID types.UID `json:"uid"`
	// Its creation.
	CreationTimestamp metav1.Time `json:"creationTimestamp"`
}

// Requester is a request's user, as the API server authenticated them.
type Requester struct {
	// User name.
	// +optional
	Username string `json:"username,omitempty"`
	// User uid.
	// +optional
	UID string `json:"uid,omitempty"`
	// User groups.
	// +optional
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
	// Further attributes from the authenticator, kept only for later work with the user's rights.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Extra map[string][]string `json:"extra,omitempty"`
}

// BackupRunStatus is the state of a run.
type BackupRunStatus struct {
	// The backup's phase. Empty means New.
	// +optional
	Phase v1alpha1.BackupPhase `json:"phase,omitempty"`
	// Order in the queue: lower goes first. Set once, when queued.
	// +optional
	Ticket int64 `json:"ticket,omitempty"`
	// When the run was queued.
	// +optional
	QueuedTimestamp *metav1.Time `json:"queuedTimestamp,omitempty"`
	// The executing controller process. If it ends, the next takes over.
	// +optional
	Executor string `json:"executor,omitempty"`
	// Number of processes that claimed the run.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempts int32 `json:"attempts,omitempty"`
	// Attempts given back by processes that were told to stop, or should not have executed the run.
	// They do not count against the limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GivenBack int32 `json:"givenBack,omitempty"`
	// When reading began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When the run ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// Until when the backup is kept.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// Objects found and backed up.
	// +optional
	Progress *v1alpha1.BackupProgress `json:"progress,omitempty"`
	// Volumes found and backed up.
	// +optional
	Volumes *v1alpha1.BackupVolumesProgress `json:"volumes,omitempty"`
	// Hooks run.
	// +optional
	HookStatus *v1alpha1.HookStatus `json:"hookStatus,omitempty"`
	// Public keys of the encrypted objects. Absent if unencrypted.
	// +optional
	Encryption *v1alpha1.BackupEncryption `json:"encryption,omitempty"`
	// Pods in which a hook may have run and post hooks are pending. The next executor runs them
	// first.
	// +optional
	// +listType=atomic
	PendingHooks []PodReference `json:"pendingHooks,omitempty"`
	// The first ten nodes whose agents the run waits for, without a sign of life for a while.
	// +optional
	// +listType=set
	AbsentAgents []string `json:"absentAgents,omitempty"`
	// Number of warnings.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of errors.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// Reason for waiting, or short result, in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
	// Why the run failed, or a deletion waits, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, if FailedValidation. Otherwise why the backup's end can't be stored.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// Namespaces of volumes whose snapshots must still be removed from the store: the run was
	// cancelled or failed, so no stored backup lists them.
	// +optional
	// +listType=set
	LeftoverSnapshots []string `json:"leftoverSnapshots,omitempty"`
	// Whether the result is durable in the store, so that the record may be removed.
	// +optional
	Stored bool `json:"stored,omitempty"`
}
