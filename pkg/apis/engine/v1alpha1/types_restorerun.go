// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	// LabelRestore names, on a VolumeRestore and on a pod that holds a claim, the RestoreRun that
	// it belongs to, by uid.
	LabelRestore = "engine.holdfast.io/restore-uid"
	// LabelWaits names, on a restored pod, the RestoreRun for whose volumes it waits, or has
	// waited, by uid.
	LabelWaits = "engine.holdfast.io/waits-for-restore"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=restoreruns,singular=restorerun,shortName=hfrrun,scope=Namespaced
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Backup",type=string,JSONPath=`.spec.backup.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// RestoreRun is the record of a restore that waits, runs, or has ended lately. Its name is
// the Restore's for the system namespace, and NAMESPACE.NAME for any other; its uid and
// creationTimestamp are the Restore's. It is in the system namespace, where only Holdfast
// writes: it says with whose rights objects are written.
type RestoreRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What was asked for, and by whom.
	Spec RestoreRunSpec `json:"spec"`
	// How far it is.
	// +optional
	Status RestoreRunStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// RestoreRunList is a list of RestoreRuns.
type RestoreRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RestoreRun `json:"items"`
}

// RestoreRunSpec is the request. It does not change, except that it can be cancelled once.
// +kubebuilder:validation:XValidation:rule="self.restoreRef == oldSelf.restoreRef && has(self.namespaceUID) == has(oldSelf.namespaceUID) && (!has(self.namespaceUID) || self.namespaceUID == oldSelf.namespaceUID) && self.backup == oldSelf.backup && self.restore == oldSelf.restore && self.requester == oldSelf.requester",message="the spec of a RestoreRun does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancellation) || has(self.cancellation) && self.cancellation == oldSelf.cancellation",message="a cancellation is not taken back"
type RestoreRunSpec struct {
	// The Restore that the run belongs to.
	RestoreRef v1alpha1.BackupReference `json:"restoreRef"`
	// Uid of the Restore's namespace when the Restore was asked for. Another namespace of
	// that name has nothing to do with the run.
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty"`
	// Labels of the Restore.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the Restore.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(self[key]) <= 49152)",message="an annotation has at most 48 KiB"
	Annotations map[string]string `json:"annotations,omitempty"`
	// Who asked for the restore, with whose rights it writes, unless it is in the system
	// namespace.
	// +optional
	Requester Requester `json:"requester,omitempty"`
	// The backup, as it was found when the Restore was asked for.
	Backup RestoreSource `json:"backup"`
	// The Restore's spec, with its defaults filled in.
	Restore v1alpha1.RestoreSpec `json:"restore"`
	// Namespaces that the restore writes to, sorted, as far as they were known when it was
	// asked for: the words of the queue's rule. Empty means any.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MaxLength=253
	TargetNamespaces []string `json:"targetNamespaces,omitempty"`
	// Whether the restore writes cluster-scoped objects.
	// +optional
	ClusterScoped bool `json:"clusterScoped,omitempty"`
	// Who asked for the run to be stopped, and when. It counts until the run has ended.
	// +optional
	Cancellation *Ask `json:"cancellation,omitempty"`
}

// RestoreSource is a backup in a store.
type RestoreSource struct {
	v1alpha1.RestoredBackup `json:",inline"`
	// Name of the backup in the store.
	StoreName string `json:"storeName"`
	// Public key with which the backup was signed when the Restore was asked for, by this
	// cluster or one that the location trusts: Ed25519, in base64. Empty if nobody vouched
	// for it.
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
}

// RestoreRunStatus is the state of a run.
type RestoreRunStatus struct {
	// The restore's phase. Empty means New.
	// +optional
	Phase v1alpha1.RestorePhase `json:"phase,omitempty"`
	// Order in the queue: lower goes first. Given once, when the run is queued.
	// +optional
	Ticket int64 `json:"ticket,omitempty"`
	// When the run was queued.
	// +optional
	QueuedTimestamp *metav1.Time `json:"queuedTimestamp,omitempty"`
	// The controller process that executes the run. Another one that leads goes on with it.
	// +optional
	Executor string `json:"executor,omitempty"`
	// How often a process has begun to execute the run.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// How many of these were given back, since their process was told to stop. Those do not count
	// against the limit of attempts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GivenBack int32 `json:"givenBack,omitempty"`
	// When it began, the first time.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When the run ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// Objects to restore, and restored.
	// +optional
	Progress *v1alpha1.RestoreProgress `json:"progress,omitempty"`
	// Volumes to restore, and restored.
	// +optional
	Volumes *v1alpha1.RestoreVolumesProgress `json:"volumes,omitempty"`
	// Commands that were to run in restored pods, and failed.
	// +optional
	HookStatus *v1alpha1.HookStatus `json:"hookStatus,omitempty"`
	// The pods in which commands were begun. None is begun twice.
	// +optional
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=1000
	Hooked []HookedPod `json:"hooked,omitempty"`
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
	// Why the run failed or was cancelled, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, for FailedValidation.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// Whether the results are durable in the store, below restores/STORE-NAME/.
	// +optional
	Stored bool `json:"stored,omitempty"`
	// The digests of what is stored, by file: SHA-256 in hexadecimal.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Digests map[string]string `json:"digests,omitempty"`
}

// HookedPod is a restored pod in which the commands of hooks were begun.
type HookedPod struct {
	// The pod's uid.
	UID types.UID `json:"uid"`
	// Whether they have ended, and which of them failed.
	// +optional
	Ended bool `json:"ended,omitempty"`
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// What was told of those that failed: errors, and warnings.
	// +optional
	// +listType=atomic
	Errors []string `json:"errors,omitempty"`
	// +optional
	// +listType=atomic
	Warnings []string `json:"warnings,omitempty"`
}
