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

// BackupRun is the record of a live backup. Its name is the backup's name in
// the store, and its uid and creationTimestamp are the Backup's. It is removed a
// stated time after the backup's result is durable in the store.
type BackupRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What was asked for, and by whom.
	Spec BackupRunSpec `json:"spec"`
	// How far it is.
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

// BackupRunSpec is the request. It does not change, except that it can be
// cancelled once and that its backup's deletion can be asked for once.
// +kubebuilder:validation:XValidation:rule="self.backupRef == oldSelf.backupRef && has(self.namespaceUID) == has(oldSelf.namespaceUID) && (!has(self.namespaceUID) || self.namespaceUID == oldSelf.namespaceUID) && self.backup == oldSelf.backup && self.requester == oldSelf.requester && has(self.scheduleUID) == has(oldSelf.scheduleUID) && (!has(self.scheduleUID) || self.scheduleUID == oldSelf.scheduleUID)",message="the spec of a BackupRun does not change, except by a cancellation or deletion"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancellation) || has(self.cancellation) && self.cancellation == oldSelf.cancellation",message="a cancellation is not taken back"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.deletion) || has(self.deletion) && self.deletion == oldSelf.deletion",message="a deletion is not taken back"
type BackupRunSpec struct {
	// The Backup that the run belongs to.
	BackupRef v1alpha1.BackupReference `json:"backupRef"`
	// Uid of the Backup's namespace when the Backup was asked for. Another namespace of
	// that name has nothing to do with the run. Empty in a run that was created for
	// the deletion of a stored backup.
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
	// Who asked for the backup.
	// +optional
	Requester Requester `json:"requester,omitempty"`
	// Uid of the Schedule that made the Backup.
	// +optional
	ScheduleUID types.UID `json:"scheduleUID,omitempty"`
	// The Backup's spec, with its defaults filled in.
	Backup v1alpha1.BackupSpec `json:"backup"`
	// Who asked for the run to be stopped, and when. It counts until the run has ended.
	// +optional
	Cancellation *Ask `json:"cancellation,omitempty"`
	// Who asked for the ended backup to be removed from its store, and when. A run
	// that is created with it stands for a stored backup whose own run is gone.
	// +optional
	Deletion *Deletion `json:"deletion,omitempty"`
}

// Ask is a request about a run.
type Ask struct {
	// Who asked.
	// +optional
	Requester Requester `json:"requester,omitempty"`
	// The schedule that caused it, as NAMESPACE/NAME. Empty if none did.
	// +optional
	Schedule string `json:"schedule,omitempty"`
	// When.
	Timestamp metav1.Time `json:"timestamp"`
}

// Deletion is the request to remove a backup from its store.
type Deletion struct {
	Ask `json:",inline"`
	// The stored backup, when the run was created for its deletion: its uid and
	// creation, and its phase.
	// +optional
	Stored *StoredBackup `json:"stored,omitempty"`
	// Whether it was asked for since the backup has expired, so that it waits if the
	// backup turns out to be kept for longer.
	// +optional
	Expired bool `json:"expired,omitempty"`
}

// StoredBackup identifies a backup in the store.
type StoredBackup struct {
	// Uid of the Backup.
	UID types.UID `json:"uid"`
	// When the Backup was created.
	CreationTimestamp metav1.Time `json:"creationTimestamp"`
}

// Requester is the user who made a request, as the API server authenticated them.
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
	// What else the authenticator says of the user. Kept only where work is done later
	// with the user's rights.
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
	// The controller process that executes the run. A run that is InProgress by a
	// process that is gone is taken over by the next one.
	// +optional
	Executor string `json:"executor,omitempty"`
	// How many processes have claimed the run, the one that executes it included.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempts int32 `json:"attempts,omitempty"`
	// How many of these gave the run back, since they were told to stop, or since it turned out
	// that they were not to execute it. Those do not count against the limit of attempts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GivenBack int32 `json:"givenBack,omitempty"`
	// When reading began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When the run ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// Until when the backup is to be kept.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// Objects found and backed up.
	// +optional
	Progress *v1alpha1.BackupProgress `json:"progress,omitempty"`
	// Volumes found and backed up.
	// +optional
	Volumes *v1alpha1.BackupVolumesProgress `json:"volumes,omitempty"`
	// Hooks that were run.
	// +optional
	HookStatus *v1alpha1.HookStatus `json:"hookStatus,omitempty"`
	// Pods that a hook may have been run in, and whose post hooks are still to be run.
	// Whoever takes over from the executor runs them first.
	// +optional
	// +listType=atomic
	PendingHooks []PodReference `json:"pendingHooks,omitempty"`
	// Nodes, the first ten, whose agents the run waits for though nothing was seen of them
	// for a while.
	// +optional
	// +listType=set
	AbsentAgents []string `json:"absentAgents,omitempty"`
	// Number of warnings.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of errors.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// What the run waits for while it is in progress, or in short what came of it, in one
	// line.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
	// Why the run failed, or why a deletion has to wait, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, for FailedValidation.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// Namespaces of volumes whose snapshots are still to be removed from the store,
	// since no stored backup lists them: the run was cancelled or has failed.
	// +optional
	// +listType=set
	LeftoverSnapshots []string `json:"leftoverSnapshots,omitempty"`
	// Whether the result is durable in the store, so that the record may go.
	// +optional
	Stored bool `json:"stored,omitempty"`
}
