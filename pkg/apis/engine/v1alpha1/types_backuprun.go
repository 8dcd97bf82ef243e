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
// creationTimestamp are the Backup's. It is removed a while after the backup's result is durable in
// the store.
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

// BackupRunSpec is the request. It does not change, except by one cancellation and one deletion.
// +kubebuilder:validation:XValidation:rule="self.backupRef == oldSelf.backupRef && has(self.namespaceUID) == has(oldSelf.namespaceUID) && (!has(self.namespaceUID) || self.namespaceUID == oldSelf.namespaceUID) && self.backup == oldSelf.backup && self.requester == oldSelf.requester && has(self.scheduleUID) == has(oldSelf.scheduleUID) && (!has(self.scheduleUID) || self.scheduleUID == oldSelf.scheduleUID)",message="the spec of a BackupRun does not change, except by a cancellation or deletion"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancellation) || has(self.cancellation) && self.cancellation == oldSelf.cancellation",message="a cancellation is not taken back"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.deletion) || has(self.deletion) && self.deletion == oldSelf.deletion",message="a deletion is not taken back"
type BackupRunSpec struct {
	// The Backup of the run.
	BackupRef v1alpha1.BackupReference `json:"backupRef"`
	// Uid of the Backup's namespace when the Backup was requested. Another namespace of that name
	// has nothing to do with the run. Empty in a run that was created to delete a stored backup.
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
	// The user that requested the backup.
	// +optional
	Requester Requester `json:"requester,omitempty"`
	// Uid of the Schedule that made the Backup.
	// +optional
	ScheduleUID types.UID `json:"scheduleUID,omitempty"`
	// The Backup's spec, with its defaults.
	Backup v1alpha1.BackupSpec `json:"backup"`
	// The request to stop the run. It counts until the run has ended.
	// +optional
	Cancellation *Ask `json:"cancellation,omitempty"`
	// The request to remove the ended backup from its store. A run that is created with it stands
	// for a stored backup without a run.
	// +optional
	Deletion *Deletion `json:"deletion,omitempty"`
}

// Ask is a request about a run.
type Ask struct {
	// The user.
	// +optional
	Requester Requester `json:"requester,omitempty"`
	// The schedule that caused it, as NAMESPACE/NAME. Empty if none did.
	// +optional
	Schedule string `json:"schedule,omitempty"`
	// The time of the request.
	Timestamp metav1.Time `json:"timestamp"`
}

// Deletion is the request to remove a backup from its store.
type Deletion struct {
	Ask `json:",inline"`
	// The stored backup, if the run was created to delete it.
	// +optional
	Stored *StoredBackup `json:"stored,omitempty"`
	// Whether the backup had expired. Then the deletion waits if the backup turns out to be kept
	// for longer.
	// +optional
	Expired bool `json:"expired,omitempty"`
	// Whether stored snapshots are deleted too that only the backup names.
	// +optional
	SnapshotsByHandle bool `json:"snapshotsByHandle,omitempty"`
}

// StoredBackup identifies a backup in the store.
type StoredBackup struct {
	// Uid of the Backup.
	UID types.UID `json:"uid"`
	// Creation of the Backup.
	CreationTimestamp metav1.Time `json:"creationTimestamp"`
}

// Requester is the user of a request, as the API server authenticated them.
type Requester struct {
	// Name of the user.
	// +optional
	Username string `json:"username,omitempty"`
	// Uid of the user.
	// +optional
	UID string `json:"uid,omitempty"`
	// Groups of the user.
	// +optional
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
	// Further attributes from the authenticator. Kept only if later work has the user's rights.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Extra map[string][]string `json:"extra,omitempty"`
}

// BackupRunStatus is the state of a run.
type BackupRunStatus struct {
	// The backup's phase. Empty means New.
	// +optional
	Phase v1alpha1.BackupPhase `json:"phase,omitempty"`
	// Order in the queue: lower goes first. Given once, when the run is queued.
	// +optional
	Ticket int64 `json:"ticket,omitempty"`
	// When the run was queued.
	// +optional
	QueuedTimestamp *metav1.Time `json:"queuedTimestamp,omitempty"`
	// The controller process that executes the run. If it ends, the next one takes the run over.
	// +optional
	Executor string `json:"executor,omitempty"`
	// Number of processes that have claimed the run.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempts int32 `json:"attempts,omitempty"`
	// Number of these that gave the run back: they were told to stop, or should not have executed
	// it. They do not count against the limit of attempts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GivenBack int32 `json:"givenBack,omitempty"`
	// When reading began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When the run ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// The time until which the backup is kept.
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
	// The public keys that the stored objects are encrypted for. Absent if they are not encrypted.
	// +optional
	Encryption *v1alpha1.BackupEncryption `json:"encryption,omitempty"`
	// Pods in which a hook may have run, and post hooks are pending. The next executor runs them
	// first.
	// +optional
	// +listType=atomic
	PendingHooks []PodReference `json:"pendingHooks,omitempty"`
	// The first ten nodes whose agents the run waits for, and that have shown no sign of life for a
	// while.
	// +optional
	// +listType=set
	AbsentAgents []string `json:"absentAgents,omitempty"`
	// Number of warnings.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of errors.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// The reason why the run waits, or its result in short, in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
	// Why the run failed, or why a deletion has to wait, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, if FailedValidation. Otherwise the reason why the end of the backup can't be
	// stored.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// Namespaces of volumes whose snapshots are still to be removed from the store, since no stored
	// backup lists them. The run was cancelled or has failed.
	// +optional
	// +listType=set
	LeftoverSnapshots []string `json:"leftoverSnapshots,omitempty"`
	// Whether the result is durable in the store, so that the record may be removed.
	// +optional
	Stored bool `json:"stored,omitempty"`
}
