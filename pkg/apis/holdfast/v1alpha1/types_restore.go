// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// AnnotationRestoreFrom of a Restore chooses between a snapshot in a claim's storage,
// RestoreFromLocal (default, if usable), and its moved data, RestoreFromMoved.
const (
	AnnotationRestoreFrom = "holdfast.io/restore-from"
	RestoreFromLocal      = "local"
	RestoreFromMoved      = "moved"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=create,get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Restore restores objects and volume data from a backup. In the system namespace it may write
// anywhere. Elsewhere it writes with its creator's rights, to its namespace and to others where the
// creator may create restores. Restores have no delete verb.
type Restore struct {
	metav1.TypeMeta `json:",inline"`
	// The name must be a DNS label.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The objects to restore, and their target. Immutable.
	// +optional
	Spec RestoreSpec `json:"spec,omitempty"`
	// State and result. Computed on read.
	// +optional
	Status RestoreStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RestoreList is a list of Restores.
type RestoreList struct {
	metav1.TypeMeta `json:",inline"`
	// List metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The restores.
	Items []Restore `json:"items"`
}

// ExistingResourcePolicy is for objects that exist and differ.
// +kubebuilder:validation:Enum="";none;update;recreate
type ExistingResourcePolicy string

const (
	// ExistingResourceNone: it stays, with a warning.
	ExistingResourceNone ExistingResourcePolicy = "none"
	// ExistingResourceUpdate: it becomes as in the backup, except fields that controllers manage.
	ExistingResourceUpdate ExistingResourcePolicy = "update"
	// ExistingResourceRecreate: as update; an object that can't be updated is deleted and created
	// anew.
	ExistingResourceRecreate ExistingResourcePolicy = "recreate"
)

// ExistingVolumePolicy is for data of volumes whose claim exists.
// +kubebuilder:validation:Enum="";none;keep;overwrite;replace
type ExistingVolumePolicy string

const (
	// ExistingVolumeNone: the restore is refused before anything is written.
	ExistingVolumeNone ExistingVolumePolicy = "none"
	// ExistingVolumeKeep: the data stays, and all else is restored.
	ExistingVolumeKeep ExistingVolumePolicy = "keep"
	// ExistingVolumeOverwrite: files of the same name are replaced. Others stay, and a warning
	// counts them.
	ExistingVolumeOverwrite ExistingVolumePolicy = "overwrite"
	// ExistingVolumeReplace: as overwrite, and other files are removed.
	ExistingVolumeReplace ExistingVolumePolicy = "replace"
)

// RestoreSpec says what to restore. It has the fields of Velero's Restore, with their meanings, and
// more; unknown ones are refused. A list may have 1000 words, 32 with a wildcard, and the spec 32
// KiB.
type RestoreSpec struct {
	// Name of the Backup. Empty means the newest one that has not failed and holds everything
	// requested.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	BackupName string `json:"backupName,omitempty"`
	// Namespace of the Backup. Default: the Restore's. Only a Restore in the system namespace may
	// name another.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	BackupNamespace string `json:"backupNamespace,omitempty"`
	// Name of a Schedule, to restore its newest good backup. Not with backupName.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ScheduleName string `json:"scheduleName,omitempty"`
	// Namespaces of the backup to include, by name or pattern (*, ?, [ab]). Empty means all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedNamespaces []string `json:"includedNamespaces,omitempty"`
	// Namespaces to leave out, by name or pattern. Exclusion wins.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedNamespaces []string `json:"excludedNamespaces,omitempty"`
	// Resources to include, by plural, singular, kind or short name, any case, with or without
	// .group, or pattern. Empty means all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedResources []string `json:"includedResources,omitempty"`
	// Resources to leave out, by the same words. Exclusion wins.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedResources []string `json:"excludedResources,omitempty"`
	// Only these objects, with the objects that they need.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Objects []RestoreObject `json:"objects,omitempty"`
	// Whether to include all cluster-scoped objects (true), or none (false). Unset means all if no
	// namespaces are named, else those that included objects need. Outside the system namespace,
	// always only those needed that the creator may create.
	// +optional
	IncludeClusterResources *bool `json:"includeClusterResources,omitempty"`
	// Labels of the objects to restore. Unset means all.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Selectors of the objects to restore: one must match. Not with labelSelector.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	OrLabelSelectors []*metav1.LabelSelector `json:"orLabelSelectors,omitempty"`
	// Whether to include, regardless of labels, objects that the selected ones need in their
	// namespaces, if their resources are included. Default true.
	// +optional
	IncludeReferenced *bool `json:"includeReferenced,omitempty"`
	// Namespaces to restore into, by the namespace in the backup. Others keep their name.
	// +optional
	// +kubebuilder:validation:MaxProperties=1000
	NamespaceMapping map[string]string `json:"namespaceMapping,omitempty"`
	// Storage classes of restored claims, by the class in the backup.
	// +optional
	// +kubebuilder:validation:MaxProperties=100
	StorageClassMapping map[string]string `json:"storageClassMapping,omitempty"`
	// Images of restored containers, by the image in the backup or its beginning, such as
	// docker.io/library. The longest match counts.
	// +optional
	// +kubebuilder:validation:MaxProperties=100
	ImageMapping map[string]string `json:"imageMapping,omitempty"`
	// Init containers for restored pods, and commands for their running containers. A pod's
	// annotations count instead. Commands need the creator's right to create pods/exec in the pod's
	// namespace.
	// +optional
	Hooks RestoreHooks `json:"hooks,omitzero"`
	// For objects that exist and differ: none (default) keeps them, with a warning. update sets
	// values and removes later additions, except controllers' fields. recreate also deletes and
	// creates objects that can't be updated.
	// +optional
	ExistingResourcePolicy ExistingResourcePolicy `json:"existingResourcePolicy,omitempty"`
	// For data of volumes whose claim exists: none (default) refuses the restore before any write.
	// keep leaves the data, and restores the rest. overwrite replaces files of the same name, and
	// counts others. replace also removes those. Volumes without a claim that outlive their pod, as
	// nfs, need overwrite or replace.
	// +optional
	ExistingVolumePolicy ExistingVolumePolicy `json:"existingVolumePolicy,omitempty"`
	// Resources whose status is restored too. Unset means none.
	// +optional
	RestoreStatus *RestoreStatusSpec `json:"restoreStatus,omitempty"`
	// Whether Services get their former node ports. Default false: only those that their owner set.
	// +optional
	PreserveNodePorts *bool `json:"preserveNodePorts,omitempty"`
	// Whether volumes and their data are restored. If false, claims come back empty. Unset means yes,
	// except PersistentVolumes of another cluster's backup, whose storage may be in use there; true
	// creates these too.
	// +optional
	RestorePVs *bool `json:"restorePVs,omitempty"`
	// Whether only volume data is restored, into existing claims.
	// +optional
	VolumesOnly bool `json:"volumesOnly,omitempty"`
	// Files and folders to restore, by path in the volume of the one claim in objects. A pod that
	// uses the claim, if any, gives access. Files of the same name are replaced.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=4096
	Paths []string `json:"paths,omitempty"`
	// ConfigMap in the Restore's namespace with Velero's rules to change objects before creation:
	// JSON, merge or strategic merge patches.
	// +optional
	ResourceModifier *RestoreModifier `json:"resourceModifier,omitempty"`
	// Whether to write nothing, and only make the plan that restores/NAME/plan shows.
	// +optional
	PlanOnly bool `json:"planOnly,omitempty"`
	// Has no effect, and is not kept: Holdfast has no plugins.
	// +optional
	ItemOperationTimeout Duration `json:"itemOperationTimeout,omitzero"`
	// Velero's uploader configuration. Not kept; causes a warning where it has no effect.
	// +optional
	UploaderConfig *UploaderConfigForRestore `json:"uploaderConfig,omitempty"`
}

// UploaderConfigForRestore is Velero's uploader configuration.
type UploaderConfigForRestore struct {
	// Blocks of zeros always become holes of files: false has no effect.
	// +optional
	WriteSparseFiles *bool `json:"writeSparseFiles,omitempty"`
	// Files of a volume to write at once. Has no effect: the agent decides.
	// +optional
	ParallelFilesDownload int `json:"parallelFilesDownload,omitempty"`
}

// RestoreHooks are hooks in restored pods.
type RestoreHooks struct {
	// Hooks of pods. A pod has the hooks of all matching entries.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Resources []RestoreResourceHookSpec `json:"resources,omitempty"`
}

// RestoreResourceHookSpec says which pods have which hooks.
type RestoreResourceHookSpec struct {
	// Name for the log.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Namespaces of the pods in the backup, by name or pattern. Empty means all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	IncludedNamespaces []string `json:"includedNamespaces,omitempty"`
	// Namespaces whose pods are left out.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedNamespaces []string `json:"excludedNamespaces,omitempty"`
	// Only pods can have hooks; empty means pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	IncludedResources []string `json:"includedResources,omitempty"`
	// Resources without the hooks.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedResources []string `json:"excludedResources,omitempty"`
	// Labels of the pods. Unset means any.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// The hooks, in this order.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PostHooks []RestoreResourceHook `json:"postHooks"`
}

// RestoreResourceHook is one hook: exec or init.
type RestoreResourceHook struct {
	// A command to run in a container.
	// +optional
	Exec *ExecRestoreHook `json:"exec,omitempty"`
	// Init containers, placed before the pod's own.
	// +optional
	Init *InitRestoreHook `json:"init,omitempty"`
}

// ExecRestoreHook is a command in a restored pod's container.
type ExecRestoreHook struct {
	// Container of the command. Default: the pod's first.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Container string `json:"container,omitempty"`
	// The command and its arguments.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=32768
	Command []string `json:"command"`
	// By default a failure is an error, and the pod's further commands run. Fail: they do not run.
	// Continue: they run, and the failure is a warning.
	// +optional
	// +kubebuilder:validation:Enum=Continue;Fail
	OnError HookErrorMode `json:"onError,omitempty"`
	// Time limit of the command. Default 30s, at most 4h.
	// +optional
	ExecTimeout Duration `json:"execTimeout,omitempty"`
	// Time limit until the container runs, once all objects are restored. Default 10m, at most 4h.
	// +optional
	WaitTimeout Duration `json:"waitTimeout,omitempty"`
	// Whether the container must be ready, too.
	// +optional
	WaitForReady *bool `json:"waitForReady,omitempty"`
}

// InitRestoreHook are init containers for restored pods.
type InitRestoreHook struct {
	// Containers as in a pod's spec, placed before the pod's own.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:pruning:PreserveUnknownFields
	InitContainers []runtime.RawExtension `json:"initContainers"`
	// Ignored, as in Velero: the containers have no time limit.
	// +optional
	Timeout Duration `json:"timeout,omitempty"`
}

// RestoreObject is one object of a backup.
type RestoreObject struct {
	// Its resource, by a word as in includedResources, such as deployments.apps.
	// +kubebuilder:validation:MaxLength=253
	Resource string `json:"resource"`
	// Its namespace in the backup. Empty if cluster-scoped.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// Its name.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// RestoreStatusSpec has the resources whose status is restored.
type RestoreStatusSpec struct {
	// Resources to include, by words as in spec.includedResources. Empty means all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedResources []string `json:"includedResources,omitempty"`
	// Resources to leave out.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedResources []string `json:"excludedResources,omitempty"`
}

// RestoreModifier names a ConfigMap.
type RestoreModifier struct {
	// Group of the object: none.
	// +optional
	// +kubebuilder:validation:MaxLength=0
	APIGroup *string `json:"apiGroup,omitempty"`
	// ConfigMap, also if empty.
	// +optional
	// +kubebuilder:validation:Enum="";ConfigMap;configmap
	Kind string `json:"kind,omitempty"`
	// Name of the ConfigMap.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// RestorePhase is a restore's state in one word. Programs should use conditions.
type RestorePhase string

const (
	// RestorePhaseNew: accepted, not queued yet.
	RestorePhaseNew RestorePhase = "New"
	// RestorePhaseFailedValidation: refused after creation; nothing was written.
	RestorePhaseFailedValidation RestorePhase = "FailedValidation"
	// RestorePhaseQueued: waiting, with a ticket.
	RestorePhaseQueued RestorePhase = "Queued"
	// RestorePhaseReadyToStart: left the queue and holds a slot.
	RestorePhaseReadyToStart RestorePhase = "ReadyToStart"
	// RestorePhaseInProgress: objects and volumes are being written.
	RestorePhaseInProgress RestorePhase = "InProgress"
	// RestorePhaseCompleted: everything requested is restored.
	RestorePhaseCompleted RestorePhase = "Completed"
	// RestorePhasePartiallyFailed: not everything requested is restored; status.errors counts the
	// rest.
	RestorePhasePartiallyFailed RestorePhase = "PartiallyFailed"
	// RestorePhaseFailed: ended before everything was tried.
	RestorePhaseFailed RestorePhase = "Failed"
	// RestorePhaseCancelling: asked to stop, not stopped yet.
	RestorePhaseCancelling RestorePhase = "Cancelling"
	// RestorePhaseCancelled: stopped on request. Written objects stay; the results list them.
	RestorePhaseCancelled RestorePhase = "Cancelled"
)

// Ended reports whether the phase is final.
func (p RestorePhase) Ended() bool {
	switch p {
	case RestorePhaseFailedValidation, RestorePhaseCompleted, RestorePhasePartiallyFailed, RestorePhaseFailed, RestorePhaseCancelled:
		return true
	}
	return false
}

// RestoreStatus is a restore's state.
type RestoreStatus struct {
	// New, Queued, ReadyToStart, InProgress, Cancelling, Completed, PartiallyFailed, Failed,
	// FailedValidation or Cancelled.
	// +optional
	Phase RestorePhase `json:"phase,omitempty"`
	// Place in the queue, from 1. Absent unless the restore waits.
	// +optional
	QueuePosition int32 `json:"queuePosition,omitempty"`
	// Conditions: Queued, Complete, Succeeded.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The restored backup.
	// +optional
	Backup *RestoredBackup `json:"backup,omitempty"`
	// When the restore was queued.
	// +optional
	QueuedTimestamp *metav1.Time `json:"queuedTimestamp,omitempty"`
	// When the restore began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When the restore ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// Objects to restore, and restored.
	// +optional
	Progress *RestoreProgress `json:"progress,omitempty"`
	// Volumes to restore, and restored, and their bytes.
	// +optional
	Volumes *RestoreVolumesProgress `json:"volumes,omitempty"`
	// Commands to run in restored pods, and failed ones.
	// +optional
	HookStatus *HookStatus `json:"hookStatus,omitempty"`
	// Number of warnings: restored objects that differ. See restores/NAME/results.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of errors: missing requested objects. See restores/NAME/results.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// One line: the reason for waiting, or finally the numbers of errors and warnings, with the
	// first three errors, else warnings. Outside the system namespace it names only objects of its
	// namespace. restores/NAME/results has all texts.
	// +optional
	Message string `json:"message,omitempty"`
	// Why the restore failed or was cancelled, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, if FailedValidation.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// The requesting user, as authenticated by a cluster that this one trusts.
	// +optional
	Requester string `json:"requester,omitempty"`
	// Origin of a stored restore, and whether it is proved. Empty while the cluster has a record of
	// it.
	// +optional
	Origin *BackupOrigin `json:"origin,omitempty"`
	// The planned effects. Only in the answer to a dry run of the creation.
	// +optional
	Plan *RestorePlan `json:"plan,omitempty"`
}

// RestoredBackup identifies a Restore's backup.
type RestoredBackup struct {
	// Namespace of the Backup.
	Namespace string `json:"namespace"`
	// Name of the Backup.
	Name string `json:"name"`
	// Uid of the Backup.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Name of the StorageLocation that holds it.
	StorageLocation string `json:"storageLocation"`
}

// RestoreProgress counts objects.
type RestoreProgress struct {
	// Objects to restore.
	// +optional
	TotalItems int64 `json:"totalItems,omitempty"`
	// Objects as in the backup: created, changed or unchanged.
	// +optional
	ItemsRestored int64 `json:"itemsRestored,omitempty"`
	// Objects created, or deleted and created anew.
	// +optional
	ItemsCreated int64 `json:"itemsCreated,omitempty"`
	// Objects changed.
	// +optional
	ItemsUpdated int64 `json:"itemsUpdated,omitempty"`
	// Objects that existed and were equal.
	// +optional
	ItemsUnchanged int64 `json:"itemsUnchanged,omitempty"`
	// Objects that differ and stay: each is a warning.
	// +optional
	ItemsDiffering int64 `json:"itemsDiffering,omitempty"`
	// Objects missing or wrong: each is an error.
	// +optional
	ItemsFailed int64 `json:"itemsFailed,omitempty"`
}

// RestoreVolumesProgress counts volumes and their bytes.
type RestoreVolumesProgress struct {
	// Volumes to restore.
	// +optional
	Total int32 `json:"total,omitempty"`
	// Volumes restored.
	// +optional
	Completed int32 `json:"completed,omitempty"`
	// Volumes that failed.
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// Bytes to write.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// Bytes written so far.
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RestoreCancellation is the body of a POST to restores/NAME/cancel, which stops a waiting or
// running restore. Written objects stay.
type RestoreCancellation struct {
	metav1.TypeMeta `json:",inline"`
	// The name, if set, must be the restore's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
}
