// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=create,get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Backup is one backup of Kubernetes objects and of the data in their volumes: waiting, running, or
// stored in a storage location. A Backup in the system namespace may include any namespace. In any
// other namespace it includes that namespace, and further ones only if its creator may create
// backups there too. Backups have no delete verb, so that deleting a namespace keeps its backups.
type Backup struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name must be a DNS label.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The contents of the backup, and where to store it. It does not change after creation.
	// +optional
	Spec BackupSpec `json:"spec,omitempty"`
	// State and result of the backup. Computed on read.
	// +optional
	Status BackupStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupList is a list of Backups.
type BackupList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The backups.
	Items []Backup `json:"items"`
}

// BackupSpec says what to back up. Its fields have the names and meanings of Velero's Backup; other
// fields are refused. A list may have 1000 words, 32 of them with a wildcard, and the whole spec 32
// KiB.
type BackupSpec struct {
	// Metadata of a schedule's backups. In the spec of a Backup, as Velero writes it, it has no
	// effect, and is not kept.
	// +optional
	Metadata BackupSpecMetadata `json:"metadata,omitzero"`
	// Namespaces to include, by name or pattern (*, ?, [ab]). Empty means all of them for a backup
	// in the system namespace, and the backup's own namespace elsewhere. There, another namespace
	// needs the right to create backups in it, and a pattern needs it in all namespaces.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedNamespaces []string `json:"includedNamespaces,omitempty"`
	// Namespaces to leave out, by name or pattern. Exclusion wins over inclusion.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedNamespaces []string `json:"excludedNamespaces,omitempty"`
	// Resources to include, by plural, singular, kind or short name, with or without .group, in any
	// case, or by pattern. Empty means all. Not to be combined with the cluster-scoped and
	// namespace-scoped lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedResources []string `json:"includedResources,omitempty"`
	// Resources to leave out, by the same words. Exclusion wins. Not to be combined with the
	// cluster-scoped and namespace-scoped lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedResources []string `json:"excludedResources,omitempty"`
	// Whether to include all cluster-scoped resources (true), or none (false). Unset means all, or
	// if namespaces are named, those that an included object refers to. Not to be combined with the
	// cluster-scoped and namespace-scoped lists.
	// +optional
	IncludeClusterResources *bool `json:"includeClusterResources,omitempty"`
	// Cluster-scoped resources to include, by words as in includedResources. Empty
	// means only those that an included object refers to.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedClusterScopedResources []string `json:"includedClusterScopedResources,omitempty"`
	// Cluster-scoped resources to leave out. Exclusion wins; * leaves out all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedClusterScopedResources []string `json:"excludedClusterScopedResources,omitempty"`
	// Namespaced resources to include, by words as in includedResources. Empty means all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedNamespaceScopedResources []string `json:"includedNamespaceScopedResources,omitempty"`
	// Namespaced resources to leave out. Exclusion wins; * leaves out all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedNamespaceScopedResources []string `json:"excludedNamespaceScopedResources,omitempty"`
	// Labels of the objects to back up. Unset means all objects.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32 && self.matchExpressions.all(e, !has(e.values) || size(e.values) <= 100))",message="a selector has at most 32 labels and 32 expressions, of 100 values each"
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Selectors of the objects to back up: one must match. Not to be combined with labelSelector.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32)",message="a selector has at most 32 labels and 32 expressions"
	OrLabelSelectors []*metav1.LabelSelector `json:"orLabelSelectors,omitempty"`
	// Whether to include, regardless of labels, objects in the same namespaces that the selected
	// objects refer to: ServiceAccounts with their RoleBindings, Secrets and ConfigMaps. Their
	// resources must be included. Claims of pods and cluster-scoped objects are always included.
	// Default true; false is Velero's rule.
	// +optional
	IncludeReferenced *bool `json:"includeReferenced,omitempty"`
	// Whether the data of claims is read from snapshots by the CSI drivers of their volumes. true: of
	// each claim that no volume policy and no pod sends to the backup of its files, if its driver
	// has a VolumeSnapshotClass. Unset: if such a class has the label
	// velero.io/csi-volumesnapshot-class. The cluster must allow snapshots: docs/snapshots.md.
	// +optional
	SnapshotVolumes *bool `json:"snapshotVolumes,omitempty"`
	// Whether the data of snapshots is moved into the storage location, and the snapshot deleted
	// after that. false keeps the snapshot in the storage of its volume: it is no second copy, and
	// only this cluster can restore it. Default: the controller's --default-snapshot-move-data.
	// +optional
	SnapshotMoveData *bool `json:"snapshotMoveData,omitempty"`
	// Volumes whose files are backed up, beside those in a pod's annotation
	// backup.holdfast.io/backup-volumes. Unset (default): all volumes with a claim. true: all
	// volumes of pods, also emptyDirs. false: no others, Velero's default. The annotation
	// backup.holdfast.io/backup-volumes-excludes always leaves volumes out.
	// backup.velero.io/backup-volumes counts unless this is true, and
	// backup.velero.io/backup-volumes-excludes unless it is false.
	// +optional
	DefaultVolumesToFsBackup *bool `json:"defaultVolumesToFsBackup,omitempty"`
	// A ConfigMap with Velero's volume policies, in the backup's own namespace. They decide first
	// which volumes' files are backed up, before the annotations of pods and
	// defaultVolumesToFsBackup. The backup's creator must have the right to get it.
	// +optional
	ResourcePolicy *ResourcePolicyReference `json:"resourcePolicy,omitempty"`
	// Objects to back up before others of their resource, in this order. The keys are resources, by
	// words as in includedResources. The values are names, or namespace/name, separated by commas.
	// Named pods are one block: the pre hooks of all of them run, in this order, before the data of
	// their volumes is read.
	// +optional
	// +kubebuilder:validation:MaxProperties=100
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(self[key]) <= 32768)",message="a list has at most 32 KiB"
	OrderedResources map[string]string `json:"orderedResources,omitempty"`
	// Commands to run in pods of the backup, before and after the data of their volumes is read. A
	// pod's annotations count instead. Both need the creator's right to create pods/exec in the
	// pod's namespace.
	// +optional
	Hooks BackupHooks `json:"hooks,omitzero"`
	// How long the backup is kept, counted from its start. Default 720h, unless the cluster has
	// another default. Then it is deleted, unless it is the last good one of a namespace.
	// +optional
	TTL Duration `json:"ttl,omitempty"`
	// Name of the StorageLocation that stores the backup. Default: the default location.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageLocation string `json:"storageLocation,omitempty"`
	// How long to wait until the driver has cut the snapshot of a volume, whose pod is frozen by hooks
	// until then. Default 10m.
	// +optional
	CSISnapshotTimeout Duration `json:"csiSnapshotTimeout,omitzero"`
	// How long to wait, from the cut of a snapshot, until the storage can make a volume from it. Some
	// storages copy it for hours. The administrator sets the time limit of the upload. Default 4h.
	// +optional
	ItemOperationTimeout Duration `json:"itemOperationTimeout,omitzero"`
	// Velero's fields that are not kept.
	VeleroFields `json:",inline"`
}

// The limits of a snapshot that a spec does not set, as Velero's.
const (
	DefaultCSISnapshotTimeout   = 10 * time.Minute
	DefaultItemOperationTimeout = 4 * time.Hour
)

// DropDefaultTimeouts leaves out timeouts that are the default: Velero writes them into each spec.
func (s *BackupSpec) DropDefaultTimeouts() {
	if s.CSISnapshotTimeout.Duration == DefaultCSISnapshotTimeout {
		s.CSISnapshotTimeout = Duration{}
	}
	if s.ItemOperationTimeout.Duration == DefaultItemOperationTimeout {
		s.ItemOperationTimeout = Duration{}
	}
}

// BackupSpecMetadata is metadata in a backup's spec.
type BackupSpecMetadata struct {
	// Labels of a schedule's backups, besides velero.io/schedule-name.
	// +optional
	// +kubebuilder:validation:MaxProperties=63
	Labels map[string]string `json:"labels,omitempty"`
}

// VeleroFields are fields of Velero's Backup that are accepted but not kept. Most are in every
// manifest that Velero writes. A value that is not Velero's own default, and has no effect, causes
// a warning.
type VeleroFields struct {
	// Has no effect: each volume has a snapshot of its own. The volumes of pods that must agree are cut
	// while one block of hooks freezes them.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	VolumeGroupSnapshotLabelKey string `json:"volumeGroupSnapshotLabelKey,omitempty"`
	// Has no effect: snapshots are made by CSI drivers, whose classes name their place.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=253
	VolumeSnapshotLocations []string `json:"volumeSnapshotLocations,omitempty"`
	// Has no effect: the nodes' agents move the data.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	DataMover string `json:"datamover,omitempty"`
	// Has no effect: the node's agent decides how many files it reads at once.
	// +optional
	UploaderConfig *UploaderConfigForBackup `json:"uploaderConfig,omitempty"`
	// The old name of defaultVolumesToFsBackup. As in Velero, true sets it to true, and false has
	// no effect.
	// +optional
	DefaultVolumesToRestic *bool `json:"defaultVolumesToRestic,omitempty"`
}

// UploaderConfigForBackup is Velero's configuration of its uploader.
type UploaderConfigForBackup struct {
	// Number of files of a volume to read at once. Has no effect.
	// +optional
	ParallelFilesUpload int `json:"parallelFilesUpload,omitempty"`
}

// ResourcePolicyReference names an object with volume policies.
type ResourcePolicyReference struct {
	// Group of the object: none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	APIGroup *string `json:"apiGroup,omitempty"`
	// Kind of the object: configmap, in any case.
	// +kubebuilder:validation:MaxLength=253
	Kind string `json:"kind"`
	// Name of the object.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// BackupHooks are commands to run in pods while they are backed up.
type BackupHooks struct {
	// Hooks of pods. A pod has the hooks of all entries that match it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Resources []BackupResourceHookSpec `json:"resources,omitempty"`
}

// BackupResourceHookSpec says which pods have which hooks.
type BackupResourceHookSpec struct {
	// Name for the log.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Namespaces of the pods, by name or pattern. Empty means all of the backup.
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
	// Resources with the hooks. Only pods can have some; empty means pods.
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
	// Labels of the pods. Unset means all.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32)",message="a selector has at most 32 labels and 32 expressions"
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Hooks to run before the data of the pod's volumes is read, in this order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Pre []BackupResourceHook `json:"pre,omitempty"`
	// Hooks to run after the data of the pod's volumes is read, in this order. They run also if an
	// earlier hook failed, and if the backup fails or is cancelled.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Post []BackupResourceHook `json:"post,omitempty"`
}

// BackupResourceHook is one hook.
type BackupResourceHook struct {
	// A command to run in a container.
	Exec *ExecHook `json:"exec"`
}

// ExecHook is a command in a container of the pod.
type ExecHook struct {
	// Container to run the command in. Default: the pod's first.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Container string `json:"container,omitempty"`
	// The command, and its arguments.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=32768
	Command []string `json:"command"`
	// If the command fails: Fail (default) does not read the data of the pod's volumes, runs no
	// further pre hooks of it, and counts an error. Continue goes on, with a warning.
	// +optional
	// +kubebuilder:validation:Enum=Continue;Fail
	OnError HookErrorMode `json:"onError,omitempty"`
	// Time limit of the command. Default 30s, at most 4h.
	// +optional
	Timeout Duration `json:"timeout,omitempty"`
}

// HookErrorMode is the reaction to a failed hook.
type HookErrorMode string

const (
	// HookErrorModeContinue: the backup goes on.
	HookErrorModeContinue HookErrorMode = "Continue"
	// HookErrorModeFail: the data of the pod's volumes is not backed up.
	HookErrorModeFail HookErrorMode = "Fail"
)

// HookStatus counts the hooks of a backup or restore.
type HookStatus struct {
	// Number of hooks.
	// +optional
	HooksAttempted int32 `json:"hooksAttempted,omitempty"`
	// Number of failed hooks.
	// +optional
	HooksFailed int32 `json:"hooksFailed,omitempty"`
}

// BackupPhase is the state of a backup in one word. Conditions are the contract
// for programs.
type BackupPhase string

const (
	// BackupPhaseNew: accepted, without a place in the queue yet.
	BackupPhaseNew BackupPhase = "New"
	// BackupPhaseFailedValidation: refused after creation; nothing was stored.
	BackupPhaseFailedValidation BackupPhase = "FailedValidation"
	// BackupPhaseQueued: waiting, with a ticket.
	BackupPhaseQueued BackupPhase = "Queued"
	// BackupPhaseReadyToStart: left the queue and holds a slot.
	BackupPhaseReadyToStart BackupPhase = "ReadyToStart"
	// BackupPhaseInProgress: objects and volumes are being read.
	BackupPhaseInProgress BackupPhase = "InProgress"
	// BackupPhaseWaitingForPluginOperations: all is read, and data is moved out of snapshots. The
	// backup holds no slot and no namespace. The name is Velero's.
	BackupPhaseWaitingForPluginOperations BackupPhase = "WaitingForPluginOperations"
	// BackupPhaseCompleted: everything requested is stored.
	BackupPhaseCompleted BackupPhase = "Completed"
	// BackupPhasePartiallyFailed: stored, without the items that status.errors counts.
	BackupPhasePartiallyFailed BackupPhase = "PartiallyFailed"
	// BackupPhaseFailed: ended without a result that can be restored.
	BackupPhaseFailed BackupPhase = "Failed"
	// BackupPhaseCancelling: asked to stop while running, and not stopped yet.
	BackupPhaseCancelling BackupPhase = "Cancelling"
	// BackupPhaseCancelled: stopped on request; nothing of it is stored.
	BackupPhaseCancelled BackupPhase = "Cancelled"
	// BackupPhaseDeleting: being removed from the store on request.
	BackupPhaseDeleting BackupPhase = "Deleting"
	// BackupPhaseUnreadable: stored, with unreadable metadata. Nothing else is known of it.
	BackupPhaseUnreadable BackupPhase = "Unreadable"
)

// Ended reports whether the phase is final.
func (p BackupPhase) Ended() bool {
	switch p {
	case BackupPhaseFailedValidation, BackupPhaseCompleted, BackupPhasePartiallyFailed, BackupPhaseFailed, BackupPhaseCancelled, BackupPhaseUnreadable:
		return true
	}
	return false
}

// Executing reports whether a controller works on the backup.
func (p BackupPhase) Executing() bool {
	return p == BackupPhaseInProgress || p == BackupPhaseWaitingForPluginOperations
}

// Condition types of a Backup.
const (
	// ConditionComplete is True when the backup has ended, well or not; its reason is the final
	// phase.
	ConditionComplete = "Complete"
	// ConditionQueued is True while the backup waits; its reason says why.
	ConditionQueued = "Queued"
	// ReasonNoController is the reason of the condition Queued while no controller is heard of.
	ReasonNoController = "NoController"
	// ConditionSucceeded is True when everything requested is stored, and False after any other
	// end.
	ConditionSucceeded = "Succeeded"
	// ConditionSecretsLeftOut is True on a backup that selected Secrets of Holdfast's own
	// namespaces, which are never backed up. Its message says how many and why.
	ConditionSecretsLeftOut = "SecretsLeftOut"
	// ConditionDeleting is True while the backup is being removed from its store. Its message says
	// what the removal waits for.
	ConditionDeleting = "Deleting"
	// ConditionMetadataReplaced is True on one of our backups if another writer, as Velero, has
	// replaced the metadata in its folder.
	ConditionMetadataReplaced = "MetadataReplaced"
	// ConditionAbridged is True on a backup of unknown origin whose metadata is too large for
	// lists: labels, annotations and most of the spec are not shown.
	ConditionAbridged = "Abridged"
	// ConditionVolumesDamaged is True on a backup whose store has lost data of its volumes, which
	// can't be restored in full. Their VolumeBackups are Damaged.
	ConditionVolumesDamaged = "VolumesDamaged"
	// ConditionVolumesListed is False on a backup with an unreadable list of volumes, and absent
	// otherwise.
	ConditionVolumesListed = "VolumesListed"
)

// BackupStatus is the state of a backup.
type BackupStatus struct {
	// State in one word: New, Queued, ReadyToStart, InProgress, WaitingForPluginOperations,
	// Cancelling, Completed, PartiallyFailed, Failed, FailedValidation, Cancelled, Deleting, or
	// Unreadable for a stored backup with unreadable metadata.
	// +optional
	Phase BackupPhase `json:"phase,omitempty"`
	// Place in the queue, from 1. Absent if the backup does not wait. It is published with a short
	// delay; backupqueues says why the backup waits.
	// +optional
	QueuePosition int32 `json:"queuePosition,omitempty"`
	// Conditions: Queued, Complete, Succeeded, Deleting.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Version of the backup's format in the store.
	// +optional
	FormatVersion string `json:"formatVersion,omitempty"`
	// When the backup got its place in the queue.
	// +optional
	QueuedTimestamp *metav1.Time `json:"queuedTimestamp,omitempty"`
	// When reading began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When the backup ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// When the backup expires, by the last request. Absent if it never does.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// The hold that keeps the backup from expiring and from being deleted. Absent without one.
	// +optional
	Hold *BackupHold `json:"hold,omitempty"`
	// Number of changes of the backup's expiration or hold.
	// +optional
	ExpirationChanges int64 `json:"expirationChanges,omitempty"`
	// Number of objects found and backed up.
	// +optional
	Progress *BackupProgress `json:"progress,omitempty"`
	// Number of volumes found and backed up, and their bytes.
	// +optional
	Volumes *BackupVolumesProgress `json:"volumes,omitempty"`
	// Number of hooks run, and failed ones.
	// +optional
	HookStatus *HookStatus `json:"hookStatus,omitempty"`
	// Number of warnings; backups/NAME/results has the texts.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of errors; backups/NAME/results has the texts.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// In one line: the reason for waiting, and at the end the numbers of errors and warnings. The
	// first three errors follow, or warnings if there is no error. A backup outside the system
	// namespace names only its own namespace's objects. backups/NAME/results has all texts.
	// +optional
	Message string `json:"message,omitempty"`
	// Why the backup failed, was cancelled, or is not deleted yet, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, if FailedValidation. Otherwise the reason why the end of the backup can't be
	// stored.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// The user that requested the backup, as authenticated by a cluster that this one trusts.
	// +optional
	Requester string `json:"requester,omitempty"`
	// The backup's origin, and whether it is proved.
	// +optional
	Origin *BackupOrigin `json:"origin,omitempty"`
	// The public keys that the backup's objects are encrypted for. Absent if they are not encrypted.
	// +optional
	Encryption *BackupEncryption `json:"encryption,omitempty"`
	// Objects and volumes that the backup would hold. Only the answer to a dry run of its creation
	// has it.
	// +optional
	Plan *BackupPlan `json:"plan,omitempty"`
}

// BackupEncryption has public keys of age. Each of their private keys decrypts the backup's
// objects.
type BackupEncryption struct {
	// The key of the cluster that made the backup.
	ClusterKey string `json:"clusterKey"`
	// The recovery keys of the storage location then.
	// +optional
	// +listType=atomic
	RecoveryKeys []string `json:"recoveryKeys,omitempty"`
}

// BackupHold is the hold of a backup.
type BackupHold struct {
	// The user that requested it.
	// +optional
	Requester string `json:"requester,omitempty"`
	// The time of the request.
	Timestamp metav1.Time `json:"timestamp"`
	// The reason, in the user's words.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// BackupTrust is the trust in a stored backup's statements about itself.
type BackupTrust string

const (
	// BackupTrustOwn: made by this cluster, as its signature shows.
	BackupTrustOwn BackupTrust = "Own"
	// BackupTrustTrusted: made by a cluster that the storage location trusts, as its
	// signature shows.
	BackupTrustTrusted BackupTrust = "Trusted"
	// BackupTrustForeign: not signed, or by an unknown cluster.
	BackupTrustForeign BackupTrust = "Foreign"
	// BackupTrustUnknownKey: signed in the name of a known cluster, with an unknown key. It may be
	// a former key of that cluster, as before a new installation, or an impostor's.
	BackupTrustUnknownKey BackupTrust = "UnknownKey"
	// BackupTrustForged: changed after it was signed, or in the name of a known cluster with the
	// key of another one.
	BackupTrustForged BackupTrust = "Forged"
)

// BackupOrigin is the origin of a backup. If it is Foreign, UnknownKey or Forged, everything here
// is only the store's claim.
type BackupOrigin struct {
	// Own, Trusted, Foreign, UnknownKey or Forged. A backup that is neither Own nor Trusted is
	// listed in the system namespace only.
	// +optional
	Trust BackupTrust `json:"trust,omitempty"`
	// Why the backup is not trusted, or not listed in its own namespace, in one sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// Name by which the storage location trusts the backup's cluster.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// Uid of the namespace kube-system of the backup's cluster.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`
	// Public key of the backup's signature: Ed25519, in base64.
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
	// Namespace of the Backup in that cluster.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Uid of that namespace.
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty"`
	// Name of the Backup in that cluster.
	// +optional
	Name string `json:"name,omitempty"`
	// Uid of the Schedule that made the backup.
	// +optional
	ScheduleUID types.UID `json:"scheduleUID,omitempty"`
	// The user that requested the backup, by the store's claim. status.requester has it only if it
	// is proved.
	// +optional
	ClaimedRequester string `json:"claimedRequester,omitempty"`
}

// BackupProgress counts objects.
type BackupProgress struct {
	// Objects found so far. When the backup has ended, those beyond itemsBackedUp are missing: a
	// failed list counts as at least one.
	// +optional
	TotalItems int64 `json:"totalItems,omitempty"`
	// Objects in the backup so far.
	// +optional
	ItemsBackedUp int64 `json:"itemsBackedUp,omitempty"`
}

// BackupVolumesProgress counts volumes and their bytes.
type BackupVolumesProgress struct {
	// Volumes found.
	// +optional
	Total int32 `json:"total,omitempty"`
	// Volumes backed up.
	// +optional
	Completed int32 `json:"completed,omitempty"`
	// Volumes that failed.
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// Claims whose selected data is not in the backup, since no running pod gave access to it. They
	// count nowhere else. The results name each.
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`
	// Volumes among the completed whose only copy is a snapshot in the storage of the volume.
	// +optional
	InStorage int32 `json:"inStorage,omitempty"`
	// Volumes deleted from the backup later, which count nowhere else.
	// +optional
	Deleted int32 `json:"deleted,omitempty"`
	// Size of the files in the volumes, in bytes.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// Bytes read so far.
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupCancellation is the body of a POST to backups/NAME/cancel, a request to stop a waiting or
// running backup. Stored parts are removed.
type BackupCancellation struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupDeletion is the body of a POST to backups/NAME/deletion, a request to remove an ended
// backup from its store, with the data of its volumes. It can't be undone.
type BackupDeletion struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Conditions of the deletion.
	// +optional
	Preconditions *BackupDeletionPreconditions `json:"preconditions,omitempty"`
	// Whether stored snapshots of volumes are deleted too that only the backup names: of a cluster
	// with the same storage that is lost, or made by Velero. It takes the right to delete
	// volumesnapshotcontents. By default only those are deleted that this cluster has a record of.
	// +optional
	SnapshotsByHandle bool `json:"snapshotsByHandle,omitempty"`
}

// StatusReasonBackupState is the reason of a refusal because of the backup's state.
const StatusReasonBackupState metav1.StatusReason = "BackupState"

// CauseHoldsLastData is the cause of the refusal to delete a backup that must be superseded, and
// holds the newest data of a claim. Its field names the claim, as namespace/name.
const CauseHoldsLastData metav1.CauseType = "HoldsLastData"

// BackupDeletionPreconditions are the conditions of a deletion.
type BackupDeletionPreconditions struct {
	// Uid of the backup, so that no later one of its name is deleted.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Whether the backup must be this cluster's own and expired, by the clock of the API server.
	// +optional
	Expired bool `json:"expired,omitempty"`
	// Whether another good backup must hold newer data of each existing claim in the backup.
	// +optional
	Superseded bool `json:"superseded,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupExpiration is the body of a POST to backups/NAME/expiration. It changes how long a stored
// backup of this cluster is kept. Absent fields change nothing.
type BackupExpiration struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Uid of the backup, so that no later one of its name is changed.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// The new expiration, later or earlier.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// Whether the backup is held: true keeps it from expiring and from being deleted until false
	// releases it.
	// +optional
	Hold *bool `json:"hold,omitempty"`
	// The reason, for readers of the backup's status.
	// +optional
	Reason string `json:"reason,omitempty"`
}
