// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=create,get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Backup is one backup of Kubernetes objects and of the data in their volumes:
// waiting, running, or stored in a storage location. A Backup in the system
// namespace may include any namespace; in any other namespace it includes that
// namespace, and further ones only if its creator may create backups there too.
// Backups have no delete verb, so that deleting a namespace keeps its backups.
type Backup struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name must be a DNS label.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What to back up, and where to store it. It does not change after creation.
	// +optional
	Spec BackupSpec `json:"spec,omitempty"`
	// How far the backup is, and what came of it. Computed on read.
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

// BackupSpec says what to back up. Its fields have the names and meanings of those
// of Velero's Backup; those that are not here are refused. A list may have 1000
// words, 32 of them with a wildcard, and the whole spec 32 KiB.
type BackupSpec struct {
	// Metadata of the backups that a schedule makes. In the spec of a Backup, as Velero
	// writes it, it has no effect, and is not kept.
	// +optional
	Metadata BackupSpecMetadata `json:"metadata,omitzero"`
	// Namespaces to include, by name or pattern (*, ?, [ab]). Empty means all of them
	// for a backup in the system namespace, and the backup's own namespace elsewhere.
	// There, another namespace needs the right to create backups in it, and a
	// pattern the right to create backups in all namespaces.
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
	// Resources to include, by plural, singular, kind or short name, with or without .group,
	// in any case, or by pattern. Empty means all.
	// Not to be combined with the cluster-scoped and namespace-scoped lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedResources []string `json:"includedResources,omitempty"`
	// Resources to leave out, by the same words. Exclusion wins.
	// Not to be combined with the cluster-scoped and namespace-scoped lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedResources []string `json:"excludedResources,omitempty"`
	// Whether to include all cluster-scoped resources (true), none (false), or only
	// those that an included object refers to (unset, when namespaces are named).
	// Not to be combined with the cluster-scoped and namespace-scoped lists.
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
	// Only objects with these labels are backed up. Unset means all objects.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32 && self.matchExpressions.all(e, !has(e.values) || size(e.values) <= 100))",message="a selector has at most 32 labels and 32 expressions, of 100 values each"
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Only objects that match at least one of these selectors are backed up. Not to
	// be combined with labelSelector.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32)",message="a selector has at most 32 labels and 32 expressions"
	OrLabelSelectors []*metav1.LabelSelector `json:"orLabelSelectors,omitempty"`
	// Whether what the objects with these labels name in their namespaces is backed up, too,
	// whatever its labels: their ServiceAccounts with the RoleBindings of these, Secrets and
	// ConfigMaps. Only resources that the backup includes come along. Claims of pods and
	// cluster-scoped objects always do. Default true; false is Velero's rule.
	// +optional
	IncludeReferenced *bool `json:"includeReferenced,omitempty"`
	// Whether to snapshot volumes through the cloud's API. Holdfast takes no such
	// snapshots: only false, or unset, is accepted.
	// +optional
	SnapshotVolumes *bool `json:"snapshotVolumes,omitempty"`
	// Whether to move the data of volumes out of snapshots. Holdfast takes no such
	// snapshots: only false, or unset, is accepted.
	// +optional
	SnapshotMoveData *bool `json:"snapshotMoveData,omitempty"`
	// Which volumes to back up the files of, beside the ones that a pod names in its
	// annotation backup.holdfast.io/backup-volumes. Unset (default): all volumes with a
	// claim. true: all volumes of pods, also emptyDirs. false: no others. true and false are
	// Velero's, and false is Velero's default. The annotation
	// backup.holdfast.io/backup-volumes-excludes leaves volumes out in any case.
	// backup.velero.io/backup-volumes counts unless this is true, and
	// backup.velero.io/backup-volumes-excludes unless it is false.
	// +optional
	DefaultVolumesToFsBackup *bool `json:"defaultVolumesToFsBackup,omitempty"`
	// A ConfigMap with Velero's volume policies, in the backup's own namespace: they say
	// of which volumes the files are backed up, and of which not, before the annotations
	// of pods and defaultVolumesToFsBackup do. Whoever asks for the backup must have the
	// right to get it.
	// +optional
	ResourcePolicy *ResourcePolicyReference `json:"resourcePolicy,omitempty"`
	// Objects to take before others of their resource, in this order: resources, by words as
	// in includedResources, each with a list of names, or namespace/name, separated by
	// commas. Pods that are named are one block: the hooks before of all of them run
	// before the data of their volumes is read, in this order.
	// +optional
	// +kubebuilder:validation:MaxProperties=100
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(self[key]) <= 32768)",message="a list has at most 32 KiB"
	OrderedResources map[string]string `json:"orderedResources,omitempty"`
	// Commands to run in pods of the backup, before and after the data of their volumes
	// is read. A pod can have annotations for that, which count instead. Both need the
	// right of the user who asks for the backup to create pods/exec in the pod's namespace.
	// +optional
	Hooks BackupHooks `json:"hooks,omitzero"`
	// How long the backup is kept, counted from its start. Default 720h, unless the
	// cluster has another one. Then it expires: it is deleted, but for the last good one
	// of a namespace.
	// +optional
	TTL Duration `json:"ttl,omitempty"`
	// Name of the StorageLocation that stores the backup. Default: the
	// location that is marked as default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageLocation string `json:"storageLocation,omitempty"`
	// Fields of Velero's that are not kept here.
	VeleroFields `json:",inline"`
}

// BackupSpecMetadata is metadata in the spec of a backup.
type BackupSpecMetadata struct {
	// Labels of a schedule's backups, besides velero.io/schedule-name.
	// +optional
	// +kubebuilder:validation:MaxProperties=63
	Labels map[string]string `json:"labels,omitempty"`
}

// VeleroFields are fields of Velero's Backup that are accepted and are not kept. Most are in
// every manifest that Velero gives out. A value that Velero does not fill in by itself, and
// that has no effect, is answered with a warning.
type VeleroFields struct {
	// Has no effect: Holdfast takes no snapshots.
	// +optional
	CSISnapshotTimeout Duration `json:"csiSnapshotTimeout,omitzero"`
	// Has no effect: Holdfast has no plugins to wait for. How long a volume may take is
	// the administrator's to say.
	// +optional
	ItemOperationTimeout Duration `json:"itemOperationTimeout,omitzero"`
	// Has no effect: Holdfast takes no snapshots.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	VolumeGroupSnapshotLabelKey string `json:"volumeGroupSnapshotLabelKey,omitempty"`
	// Has no effect: Holdfast takes no snapshots.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=253
	VolumeSnapshotLocations []string `json:"volumeSnapshotLocations,omitempty"`
	// Has no effect: Holdfast takes no snapshots whose data it could move.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	DataMover string `json:"datamover,omitempty"`
	// Has no effect: the node's agent says how many files it reads at once.
	// +optional
	UploaderConfig *UploaderConfigForBackup `json:"uploaderConfig,omitempty"`
	// The old name of defaultVolumesToFsBackup. As in Velero, true has that set to true, and
	// false has no effect.
	// +optional
	DefaultVolumesToRestic *bool `json:"defaultVolumesToRestic,omitempty"`
}

// UploaderConfigForBackup is what Velero lets a Backup say of its uploader.
type UploaderConfigForBackup struct {
	// How many files of a volume to read at once. Has no effect.
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
	// Which pods have which hooks. A pod has those of all that it matches.
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
	// Resources that have the hooks. Only pods can; empty means those.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	IncludedResources []string `json:"includedResources,omitempty"`
	// Resources that do not have the hooks.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedResources []string `json:"excludedResources,omitempty"`
	// Only pods with these labels have the hooks. Unset means all.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32)",message="a selector has at most 32 labels and 32 expressions"
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Hooks to run before the data of the pod's volumes is read, in this order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Pre []BackupResourceHook `json:"pre,omitempty"`
	// Hooks to run after the data of the pod's volumes is read, in this order. They run
	// also when a hook before them failed, and when the backup fails or is cancelled.
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
	// What to do when the command fails: Fail (default) does not read the data of the
	// pod's volumes, runs none of its further pre hooks, and makes an error of it;
	// Continue goes on, with a warning.
	// +optional
	// +kubebuilder:validation:Enum=Continue;Fail
	OnError HookErrorMode `json:"onError,omitempty"`
	// How long the command may take. Default 30s, at most 4h.
	// +optional
	Timeout Duration `json:"timeout,omitempty"`
}

// HookErrorMode is what to do when a hook fails.
type HookErrorMode string

const (
	// HookErrorModeContinue: the backup goes on.
	HookErrorModeContinue HookErrorMode = "Continue"
	// HookErrorModeFail: the data of the pod's volumes is not backed up.
	HookErrorModeFail HookErrorMode = "Fail"
)

// HookStatus counts the hooks of a backup or restore.
type HookStatus struct {
	// Hooks that were to run.
	// +optional
	HooksAttempted int32 `json:"hooksAttempted,omitempty"`
	// Those of them that failed.
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
	// BackupPhaseReadyToStart: has left the queue and holds a slot.
	BackupPhaseReadyToStart BackupPhase = "ReadyToStart"
	// BackupPhaseInProgress: objects and volumes are being read.
	BackupPhaseInProgress BackupPhase = "InProgress"
	// BackupPhaseCompleted: everything asked for is stored.
	BackupPhaseCompleted BackupPhase = "Completed"
	// BackupPhasePartiallyFailed: stored, without the items that status.errors counts.
	BackupPhasePartiallyFailed BackupPhase = "PartiallyFailed"
	// BackupPhaseFailed: ended without a result that can be restored.
	BackupPhaseFailed BackupPhase = "Failed"
	// BackupPhaseCancelling: asked to stop while it was running, and not stopped yet.
	BackupPhaseCancelling BackupPhase = "Cancelling"
	// BackupPhaseCancelled: stopped before its end because somebody asked for it;
	// nothing of it is stored.
	BackupPhaseCancelled BackupPhase = "Cancelled"
	// BackupPhaseDeleting: being removed from the store because somebody asked for it.
	BackupPhaseDeleting BackupPhase = "Deleting"
	// BackupPhaseUnreadable: in the store, with metadata that can't be read. Nothing
	// else is known of it.
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

// Condition types of a Backup.
const (
	// ConditionComplete is True when the backup has ended, well or not; its reason
	// is the final phase.
	ConditionComplete = "Complete"
	// ConditionQueued is True while the backup waits; its reason says for what.
	ConditionQueued = "Queued"
	// ReasonNoController is the reason of the condition Queued while no controller is heard of.
	ReasonNoController = "NoController"
	// ConditionSucceeded is True when everything asked for is stored, and False
	// when the backup ended any other way.
	ConditionSucceeded = "Succeeded"
	// ConditionSecretsLeftOut is True on a backup that selected Secrets of Holdfast's
	// own namespaces, which no backup holds; its message says how many and why.
	ConditionSecretsLeftOut = "SecretsLeftOut"
	// ConditionDeleting is True while the backup is being removed from its store; its
	// message says what the removal waits for, if anything.
	ConditionDeleting = "Deleting"
	// ConditionMetadataReplaced is True on a backup in whose folder somebody, such as
	// Velero, has replaced the metadata of one of ours.
	ConditionMetadataReplaced = "MetadataReplaced"
	// ConditionAbridged is True on a backup of unknown origin whose metadata is larger than what
	// lists keep of such: labels, annotations and most of the spec are not shown.
	ConditionAbridged = "Abridged"
	// ConditionVolumesDamaged is True on a backup with volumes that can't be restored in full,
	// since its store has lost data of them: see the VolumeBackups that are Damaged.
	ConditionVolumesDamaged = "VolumesDamaged"
	// ConditionVolumesListed is False on a backup whose list of volumes can't be read,
	// and absent otherwise.
	ConditionVolumesListed = "VolumesListed"
)

// BackupStatus is the state of a backup.
type BackupStatus struct {
	// The state in one word: New, Queued, ReadyToStart, InProgress, Cancelling,
	// Completed, PartiallyFailed, Failed, FailedValidation, Cancelled, Deleting, or
	// Unreadable for a backup in the store whose metadata cannot be read.
	// +optional
	Phase BackupPhase `json:"phase,omitempty"`
	// Place in the queue, from 1. Absent when the backup does not wait. It is
	// published with a short delay; backupqueues says why the backup waits.
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
	// When the backup took its place in the queue.
	// +optional
	QueuedTimestamp *metav1.Time `json:"queuedTimestamp,omitempty"`
	// When reading began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When the backup ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
	// When the backup expires, as was last asked for. Absent if it never does.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// Why the backup neither expires nor can be deleted. Absent if nobody holds it.
	// +optional
	Hold *BackupHold `json:"hold,omitempty"`
	// How often it was changed until when the backup is kept.
	// +optional
	ExpirationChanges int64 `json:"expirationChanges,omitempty"`
	// How many objects are found and backed up.
	// +optional
	Progress *BackupProgress `json:"progress,omitempty"`
	// How many volumes are found and backed up, and their bytes.
	// +optional
	Volumes *BackupVolumesProgress `json:"volumes,omitempty"`
	// How many hooks were run, and how many of them failed.
	// +optional
	HookStatus *HookStatus `json:"hookStatus,omitempty"`
	// Number of warnings; backups/NAME/results has the texts.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of errors; backups/NAME/results has the texts.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// In one line: what the backup waits for while it is in progress, and at its end how
	// many errors and warnings it has, with the first three of the errors, or of the
	// warnings if it has no error. A backup outside the system namespace names only what is
	// in its own namespace. backups/NAME/results has all texts.
	// +optional
	Message string `json:"message,omitempty"`
	// Why the backup failed, was cancelled, or is not deleted yet, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, for FailedValidation.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// Who asked for the backup, as a cluster authenticated them that this one trusts.
	// +optional
	Requester string `json:"requester,omitempty"`
	// Where the backup comes from, and whether that is borne out.
	// +optional
	Origin *BackupOrigin `json:"origin,omitempty"`
	// Objects and volumes that the backup would hold. Only the answer to a dry run of its
	// creation has it.
	// +optional
	Plan *BackupPlan `json:"plan,omitempty"`
}

// BackupHold says who holds a backup.
type BackupHold struct {
	// Who asked for it.
	// +optional
	Requester string `json:"requester,omitempty"`
	// When.
	Timestamp metav1.Time `json:"timestamp"`
	// Why, in the words of who asked.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// BackupTrust says how far what a stored backup says of itself can be believed.
type BackupTrust string

const (
	// BackupTrustOwn: made by this cluster, as its signature shows.
	BackupTrustOwn BackupTrust = "Own"
	// BackupTrustTrusted: made by a cluster that the storage location trusts, as its
	// signature shows.
	BackupTrustTrusted BackupTrust = "Trusted"
	// BackupTrustForeign: not signed, or by a cluster that nobody here knows.
	BackupTrustForeign BackupTrust = "Foreign"
	// BackupTrustUnknownKey: signed in the name of a known cluster, with a key that nobody here
	// knows: a former key of that cluster, as after an installation anew, or somebody else's.
	BackupTrustUnknownKey BackupTrust = "UnknownKey"
	// BackupTrustForged: changed after it was signed, or in the name of a known cluster
	// with the key of another one.
	BackupTrustForged BackupTrust = "Forged"
)

// BackupOrigin is where a backup comes from. Of a stored backup that is Foreign,
// UnknownKey or Forged, everything here is no more than what the store says.
type BackupOrigin struct {
	// Own, Trusted, Foreign, UnknownKey or Forged. A backup that is neither Own nor Trusted is
	// listed in the system namespace only.
	// +optional
	Trust BackupTrust `json:"trust,omitempty"`
	// Why the backup is not believed, or not listed in its own namespace, in one sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// Name by which the storage location trusts the cluster that made the backup.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// Uid of the namespace kube-system of the cluster that made the backup.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`
	// Public key that the backup is signed with: Ed25519, in base64.
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
	// Who asked for the backup, as the store says. It is in status.requester too if it
	// is borne out.
	// +optional
	ClaimedRequester string `json:"claimedRequester,omitempty"`
}

// BackupProgress counts objects.
type BackupProgress struct {
	// Objects found so far. Of a backup that has ended, those beyond itemsBackedUp are
	// missing: a list that failed counts as one at least.
	// +optional
	TotalItems int64 `json:"totalItems,omitempty"`
	// Objects that are in the backup so far.
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
	// Claims whose data was wanted and is not in the backup, which count nowhere else: no
	// running pod gave access to it. The results name each.
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`
	// Volumes that were deleted from the backup since, which count nowhere else.
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

// BackupCancellation is the body of a POST to backups/NAME/cancel: it asks for a
// backup that waits or runs to be stopped. What it has stored is removed.
type BackupCancellation struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupDeletion is the body of a POST to backups/NAME/deletion: it asks for a
// backup that has ended to be removed from its store, with the data of its
// volumes. It can't be undone.
type BackupDeletion struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What must be true of the backup, or it is not deleted.
	// +optional
	Preconditions *BackupDeletionPreconditions `json:"preconditions,omitempty"`
}

// StatusReasonBackupState is the reason of the refusal of a request that does not fit the
// state of the backup.
const StatusReasonBackupState metav1.StatusReason = "BackupState"

// CauseHoldsLastData is the cause of the refusal to delete a backup that must be superseded,
// and holds the newest data of a claim. Its field names the claim, as namespace/name.
const CauseHoldsLastData metav1.CauseType = "HoldsLastData"

// BackupDeletionPreconditions are what must be true of a backup that is to be deleted.
type BackupDeletionPreconditions struct {
	// Uid of the backup, so that no later one of its name is deleted.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Whether the backup must be one of this cluster's own that has expired, by the
	// clock of the API server.
	// +optional
	Expired bool `json:"expired,omitempty"`
	// Whether the backup must hold the newest data of no volume claim that exists: each
	// claim that it holds is gone, or another good backup holds newer data of it.
	// +optional
	Superseded bool `json:"superseded,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupExpiration is the body of a POST to backups/NAME/expiration: it changes until when
// a stored backup of this cluster is kept. What it leaves out stays as it is.
type BackupExpiration struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Uid of the backup, so that no later one of its name is changed.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// When the backup is to expire: later than it would, or earlier.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// Whether the backup is held: true keeps it from expiring and from being deleted until
	// false releases it.
	// +optional
	Hold *bool `json:"hold,omitempty"`
	// Why, for whoever reads the backup's status.
	// +optional
	Reason string `json:"reason,omitempty"`
}
