// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	// LabelRestore has the RestoreRun's uid, on a VolumeRestore and a pod that holds a claim.
	LabelRestore = "engine.holdfast.io/restore-uid"
	// LabelWaits has the uid of the RestoreRun that a restored pod waits or waited for.
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

// RestoreRun is the record of a waiting, running or just ended restore. Its name is the Restore's
// in the system namespace, else NAMESPACE.NAME; its uid and creationTimestamp are the Restore's. It
// decides with whose rights objects are written, so it is in the system namespace, where only
// Holdfast writes.
type RestoreRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The request.
	Spec RestoreRunSpec `json:"spec"`
	// The state of the run.
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

// RestoreRunSpec is the request. Immutable, except for one cancellation.
// +kubebuilder:validation:XValidation:rule="self.restoreRef == oldSelf.restoreRef && has(self.namespaceUID) == has(oldSelf.namespaceUID) && (!has(self.namespaceUID) || self.namespaceUID == oldSelf.namespaceUID) && self.backup == oldSelf.backup && self.restore == oldSelf.restore && self.requester == oldSelf.requester",message="the spec of a RestoreRun does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancellation) || has(self.cancellation) && self.cancellation == oldSelf.cancellation",message="a cancellation is not taken back"
type RestoreRunSpec struct {
	// The Restore.
	RestoreRef v1alpha1.BackupReference `json:"restoreRef"`
	// Uid of the Restore's namespace at the request. Another namespace of that name is not meant.
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
	// The requesting user. Outside the system namespace, the restore writes with their rights.
	// +optional
	Requester Requester `json:"requester,omitempty"`
	// The backup, as found at the request.
	Backup RestoreSource `json:"backup"`
	// The Restore's spec, with its defaults.
	Restore v1alpha1.RestoreSpec `json:"restore"`
	// Sorted namespaces that the restore writes to, as known at the request, for the queue. Empty
	// means any.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MaxLength=253
	TargetNamespaces []string `json:"targetNamespaces,omitempty"`
	// Whether the restore writes cluster-scoped objects.
	// +optional
	ClusterScoped bool `json:"clusterScoped,omitempty"`
	// The request to stop the run, until it has ended.
	// +optional
	Cancellation *Ask `json:"cancellation,omitempty"`
}

// RestoreSource is a backup in a store.
type RestoreSource struct {
	v1alpha1.RestoredBackup `json:",inline"`
	// Its name in the store.
	StoreName string `json:"storeName"`
	// Public key of the backup's signature at the request: Ed25519, in base64, of this cluster or a
	// trusted one. Empty without a trusted signature.
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
}

// RestoreRunStatus is the state of a run.
type RestoreRunStatus struct {
	// The restore's phase. Empty means New.
	// +optional
	Phase v1alpha1.RestorePhase `json:"phase,omitempty"`
	// Order in the queue: lower goes first. Set once, when queued.
	// +optional
	Ticket int64 `json:"ticket,omitempty"`
	// When the run was queued.
	// +optional
	QueuedTimestamp *metav1.Time `json:"queuedTimestamp,omitempty"`
	// The executing controller process. The next leader continues.
	// +optional
	Executor string `json:"executor,omitempty"`
	// Number of processes that began the run.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// Attempts given back by processes that were told to stop. They do not count against the limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GivenBack int32 `json:"givenBack,omitempty"`
	// When it first began.
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
	// Commands to run in restored pods, and failed ones.
	// +optional
	HookStatus *v1alpha1.HookStatus `json:"hookStatus,omitempty"`
	// Pods in which commands were begun. None is begun twice.
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
	// Reason for waiting, or short result, in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
	// Why the run failed or was cancelled, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, if FailedValidation.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// Whether the results are durable in the store, below restores/STORE-NAME/.
	// +optional
	Stored bool `json:"stored,omitempty"`
	// SHA-256 digests of the stored files, in hexadecimal.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Digests map[string]string `json:"digests,omitempty"`
}

// HookedPod is a restored pod whose hook commands were begun.
type HookedPod struct {
	// The pod's uid.
	UID types.UID `json:"uid"`
	// Whether the commands have ended, and how many failed.
	// +optional
	Ended bool `json:"ended,omitempty"`
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// Messages about failed commands: errors, and warnings.
	// +optional
	// +listType=atomic
	Errors []string `json:"errors,omitempty"`
	// +optional
	// +listType=atomic
	Warnings []string `json:"warnings,omitempty"`
}
