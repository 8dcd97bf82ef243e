// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AnnotationSnapshotClassOf and a CSI driver's name are Velero's annotation of a Backup with the
// VolumeSnapshotClass for the driver's volumes.
const AnnotationSnapshotClassOf = "velero.io/csi-volumesnapshot-class_"

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=create,get,list,watch
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Backup is a backup of Kubernetes objects and volume data: waiting, running, or stored in a
// storage location. In the system namespace it may include any namespace. Elsewhere it includes its
// namespace, and others only if its creator may create backups there. Backups have no delete verb,
// so deleting a namespace keeps them.
type Backup struct {
	metav1.TypeMeta `json:",inline"`
	// The name must be a DNS label.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The contents of the backup, and its storage. Immutable.
	// +optional
	Spec BackupSpec `json:"spec,omitempty"`
	// State and result. Computed on read.
	// +optional
	Status BackupStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupList is a list of Backups.
type BackupList struct {
	metav1.TypeMeta `json:",inline"`
	// List metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The backups.
	Items []Backup `json:"items"`
}

// BackupSpec says what to back up. It has the fields of Velero's Backup, with their meanings;
// others are refused. A list may have 1000 words, 32 with a wildcard, and the spec 32 KiB.
type BackupSpec struct {
	// Metadata of a schedule's backups. In a Backup, where Velero writes it too, it has no effect,
	// and is not kept.
	// +optional
	Metadata BackupSpecMetadata `json:"metadata,omitzero"`
	// Namespaces to include, by name or pattern (*, ?, [ab]). Empty means all in the system
	// namespace, and elsewhere the backup's own. Elsewhere, another namespace needs the right to
	// create backups there, and a pattern needs it in all namespaces.
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
	// .group, or pattern. Empty means all. Not with cluster-scoped and namespace-scoped lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	IncludedResources []string `json:"includedResources,omitempty"`
	// Resources to leave out, by the same words. Exclusion wins. Not with cluster-scoped and
	// namespace-scoped lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	ExcludedResources []string `json:"excludedResources,omitempty"`
	// Whether to include all cluster-scoped resources (true), or none (false). Unset means all, or
	// if namespaces are named, those that included objects refer to. Not with cluster-scoped and
	// namespace-scoped lists.
	// +optional
	IncludeClusterResources *bool `json:"includeClusterResources,omitempty"`
	// Cluster-scoped resources to include, by words as in includedResources. Empty means only those
	// that included objects refer to.
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
	// Labels of the objects to back up. Unset means all.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32 && self.matchExpressions.all(e, !has(e.values) || size(e.values) <= 100))",message="a selector has at most 32 labels and 32 expressions, of 100 values each"
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Selectors of the objects to back up: one must match. Not with labelSelector.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="(!has(self.matchLabels) || size(self.matchLabels) <= 32) && (!has(self.matchExpressions) || size(self.matchExpressions) <= 32)",message="a selector has at most 32 labels and 32 expressions"
	OrLabelSelectors []*metav1.LabelSelector `json:"orLabelSelectors,omitempty"`
	// Whether to include, regardless of labels, objects that the selected ones refer to in their
	// namespaces, if their resources are included: ServiceAccounts with their RoleBindings, Secrets
	// and ConfigMaps. Claims of pods and cluster-scoped objects are always included. Default true;
	// false is Velero's rule.
	// +optional
	IncludeReferenced *bool `json:"includeReferenced,omitempty"`
	// Whether claims' data is read from CSI snapshots. true: for each claim that no volume policy
	// or pod sends to the backup of its files, if its driver has a VolumeSnapshotClass. Unset: if
	// such a class has the label velero.io/csi-volumesnapshot-class. The cluster must allow
	// snapshots: docs/snapshots.md.
	// +optional
	SnapshotVolumes *bool `json:"snapshotVolumes,omitempty"`
	// Whether snapshots' data is moved into the storage location, and the snapshots then deleted.
	// false keeps them in their volumes' storage: no second copy, which only this cluster can
	// restore. Default: the controller's --default-snapshot-move-data.
	// +optional
	SnapshotMoveData *bool `json:"snapshotMoveData,omitempty"`
	// Volumes whose files are backed up, besides those in a pod's annotation
	// backup.holdfast.io/backup-volumes. Unset (default): all with a claim. true: all volumes of
	// pods, also emptyDirs. false: no others, Velero's default. The annotation
	// backup.holdfast.io/backup-volumes-excludes always leaves volumes out.
	// backup.velero.io/backup-volumes counts unless this is true, and
	// backup.velero.io/backup-volumes-excludes unless it is false.
	// +optional
	DefaultVolumesToFsBackup *bool `json:"defaultVolumesToFsBackup,omitempty"`
	// A ConfigMap in the backup's namespace with Velero's volume policies. They decide which
	// volumes' files are backed up, before pods' annotations and defaultVolumesToFsBackup. The
	// creator must have the right to get it.
	// +optional
	ResourcePolicy *ResourcePolicyReference `json:"resourcePolicy,omitempty"`
	// Objects to back up before others of their resource, in this order. Keys are resources, by
	// words as in includedResources. Values are names, or namespace/name, separated by commas.
	// Named pods are one block: all their pre hooks run, in this order, before their volumes' data
	// is read.
	// +optional
	// +kubebuilder:validation:MaxProperties=100
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(self[key]) <= 32768)",message="a list has at most 32 KiB"
	OrderedResources map[string]string `json:"orderedResources,omitempty"`
	// Commands to run in pods before and after their volumes' data is read. A pod's annotations
	// count instead. Both need the creator's right to create pods/exec in the pod's namespace.
	// +optional
	Hooks BackupHooks `json:"hooks,omitzero"`
	// How long the backup is kept from its start, before it is deleted. Default 720h, unless the
	// cluster has another. The last good one of a namespace stays.
	// +optional
	TTL Duration `json:"ttl,omitempty"`
	// Name of the StorageLocation that stores the backup. Default: the default location.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageLocation string `json:"storageLocation,omitempty"`
	// How long to wait until the driver has cut a volume's snapshot, while hooks freeze the pod.
	// Default 10m.
	// +optional
	CSISnapshotTimeout Duration `json:"csiSnapshotTimeout,omitzero"`
	// How long to wait, from a snapshot's cut, until the storage can make a volume from it, which
	// may take hours of copying. The administrator limits the upload's time. Default 4h.
	// +optional
	ItemOperationTimeout Duration `json:"itemOperationTimeout,omitzero"`
	// Velero's fields that are not kept.
	VeleroFields `json:",inline"`
}

// Velero's default limits of a snapshot.
const (
	DefaultCSISnapshotTimeout   = 10 * time.Minute
	DefaultItemOperationTimeout = 4 * time.Hour
)

// DropDefaultTimeouts leaves out default timeouts, which Velero writes into each spec.
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

// VeleroFields are fields of Velero's Backup that are accepted but not kept. A value that has no
// effect and is not Velero's default causes a warning.
type VeleroFields struct {
	// Has no effect: each volume has its own snapshot. Volumes of pods that must agree are cut
	// while one block of hooks freezes them.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	VolumeGroupSnapshotLabelKey string `json:"volumeGroupSnapshotLabelKey,omitempty"`
	// Has no effect: CSI drivers make snapshots, whose classes name their place.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=253
	VolumeSnapshotLocations []string `json:"volumeSnapshotLocations,omitempty"`
	// Has no effect: the nodes' agents move the data.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	DataMover string `json:"datamover,omitempty"`
	// Has no effect: the agent decides how many files it reads at once.
	// +optional
	UploaderConfig *UploaderConfigForBackup `json:"uploaderConfig,omitempty"`
	// The old name of defaultVolumesToFsBackup. As in Velero, true sets it to true, and false has
	// no effect.
	// +optional
	DefaultVolumesToRestic *bool `json:"defaultVolumesToRestic,omitempty"`
}

// UploaderConfigForBackup is Velero's uploader configuration.
type UploaderConfigForBackup struct {
	// Files of a volume to read at once. Has no effect.
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
	// Its name.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// BackupPhase is a backup's state in one word. Programs should use conditions.
type BackupPhase string

const (
	// BackupPhaseNew: accepted, not queued yet.
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
	// backup holds no slot or namespace. The name is Velero's.
	BackupPhaseWaitingForPluginOperations BackupPhase = "WaitingForPluginOperations"
	// BackupPhaseCompleted: everything requested is stored.
	BackupPhaseCompleted BackupPhase = "Completed"
	// BackupPhasePartiallyFailed: stored, without the items that status.errors counts.
	BackupPhasePartiallyFailed BackupPhase = "PartiallyFailed"
	// BackupPhaseFailed: ended without a result that can be restored.
	BackupPhaseFailed BackupPhase = "Failed"
	// BackupPhaseCancelling: asked to stop, not stopped yet.
	BackupPhaseCancelling BackupPhase = "Cancelling"
	// BackupPhaseCancelled: stopped on request; nothing of it is stored.
	BackupPhaseCancelled BackupPhase = "Cancelled"
	// BackupPhaseDeleting: being removed from the store on request.
	BackupPhaseDeleting BackupPhase = "Deleting"
	// BackupPhaseUnreadable: stored, with unreadable metadata. Nothing else is known.
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
	// ConditionComplete is True when the backup has ended; its reason is the final phase.
	ConditionComplete = "Complete"
	// ConditionQueued is True while the backup waits; its reason says why.
	ConditionQueued = "Queued"
	// ReasonNoController is the reason of Queued while no controller is heard of.
	ReasonNoController = "NoController"
	// ConditionSucceeded is True when everything requested is stored, and False after any other
	// end.
	ConditionSucceeded = "Succeeded"
	// ConditionSecretsLeftOut is True on a backup that selected Secrets of Holdfast's own
	// namespaces, which are never backed up. Its message says how many, and why.
	ConditionSecretsLeftOut = "SecretsLeftOut"
	// ConditionDeleting is True while the backup is being removed from its store. Its message says
	// what the removal waits for.
	ConditionDeleting = "Deleting"
	// ConditionMetadataReplaced is True on our backup if another writer, as Velero, has replaced
	// its metadata.
	ConditionMetadataReplaced = "MetadataReplaced"
	// ConditionAbridged is True on a backup of unknown origin whose metadata is too large for
	// lists: labels, annotations and most of the spec are not shown.
	ConditionAbridged = "Abridged"
	// ConditionVolumesDamaged is True on a backup whose store has lost volume data. It can't be
	// restored in full, and its VolumeBackups are Damaged.
	ConditionVolumesDamaged = "VolumesDamaged"
	// ConditionVolumesListed is False on a backup with an unreadable list of volumes, and absent
	// otherwise.
	ConditionVolumesListed = "VolumesListed"
)

// BackupStatus is the state of a backup.
type BackupStatus struct {
	// New, Queued, ReadyToStart, InProgress, WaitingForPluginOperations, Cancelling, Completed,
	// PartiallyFailed, Failed, FailedValidation, Cancelled, Deleting, or Unreadable for a stored
	// backup with unreadable metadata.
	// +optional
	Phase BackupPhase `json:"phase,omitempty"`
	// Place in the queue, from 1. Absent unless the backup waits. Published with a short delay;
	// backupqueues says why the backup waits.
	// +optional
	QueuePosition int32 `json:"queuePosition,omitempty"`
	// Conditions: Queued, Complete, Succeeded, Deleting; if they apply SecretsLeftOut,
	// MetadataReplaced, Abridged, VolumesDamaged, VolumesListed.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Version of the backup's format in the store.
	// +optional
	FormatVersion string `json:"formatVersion,omitempty"`
	// When the backup was queued.
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
	// The hold that prevents expiry and deletion. Absent without one.
	// +optional
	Hold *BackupHold `json:"hold,omitempty"`
	// Number of changes of expiration or hold.
	// +optional
	ExpirationChanges int64 `json:"expirationChanges,omitempty"`
	// Objects found and backed up.
	// +optional
	Progress *BackupProgress `json:"progress,omitempty"`
	// Volumes found and backed up, and their bytes.
	// +optional
	Volumes *BackupVolumesProgress `json:"volumes,omitempty"`
	// Hooks run, and failed ones.
	// +optional
	HookStatus *HookStatus `json:"hookStatus,omitempty"`
	// Number of warnings. See backups/NAME/results.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Number of errors. See backups/NAME/results.
	// +optional
	Errors int32 `json:"errors,omitempty"`
	// One line: the reason for waiting, or finally the numbers of errors and warnings, with the
	// first three errors, else warnings. Outside the system namespace it names only objects of its
	// namespace. backups/NAME/results has all texts.
	// +optional
	Message string `json:"message,omitempty"`
	// Why the backup failed, was cancelled, or is not deleted yet, in one sentence.
	// +optional
	FailureReason string `json:"failureReason,omitempty"`
	// Errors of the spec, if FailedValidation. Otherwise why the backup's end can't be stored.
	// +optional
	// +listType=atomic
	ValidationErrors []string `json:"validationErrors,omitempty"`
	// The requesting user, as authenticated by a cluster that this one trusts.
	// +optional
	Requester string `json:"requester,omitempty"`
	// The backup's origin, and whether it is proved.
	// +optional
	Origin *BackupOrigin `json:"origin,omitempty"`
	// Public keys of the encrypted objects. Absent if unencrypted.
	// +optional
	Encryption *BackupEncryption `json:"encryption,omitempty"`
	// The planned contents. Only in the answer to a dry run of the creation.
	// +optional
	Plan *BackupPlan `json:"plan,omitempty"`
}

// BackupEncryption has public keys of age. Each private key decrypts the backup's objects.
type BackupEncryption struct {
	// Key of the cluster that made the backup.
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
	// that cluster's former key, as before a new installation, or an impostor's.
	BackupTrustUnknownKey BackupTrust = "UnknownKey"
	// BackupTrustForged: changed after signing, or in a known cluster's name with another's key.
	BackupTrustForged BackupTrust = "Forged"
)

// BackupOrigin is a backup's origin. If Foreign, UnknownKey or Forged, it is only the store's
// claim.
type BackupOrigin struct {
	// Own, Trusted, Foreign, UnknownKey or Forged. Others than Own and Trusted are listed in the
	// system namespace only.
	// +optional
	Trust BackupTrust `json:"trust,omitempty"`
	// Why the backup is not trusted, or not listed in its own namespace, in one sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// The storage location's name of the trusted cluster.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// Uid of the cluster's namespace kube-system.
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
	// The requesting user, by the store's claim. status.requester has it only if proved.
	// +optional
	ClaimedRequester string `json:"claimedRequester,omitempty"`
}

// BackupProgress counts objects.
type BackupProgress struct {
	// Objects found so far. At the end, those beyond itemsBackedUp are missing; a failed list
	// counts as at least one.
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
	// Claims without their selected data, since no running pod gave access. They count nowhere
	// else. The results name each.
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`
	// Completed volumes whose only copy is a snapshot in their storage.
	// +optional
	InStorage int32 `json:"inStorage,omitempty"`
	// Volumes deleted later, which count nowhere else.
	// +optional
	Deleted int32 `json:"deleted,omitempty"`
	// Bytes of the volumes' files.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// Bytes read so far.
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupCancellation is the body of a POST to backups/NAME/cancel, which stops a waiting or running
// backup. Stored parts are removed.
type BackupCancellation struct {
	metav1.TypeMeta `json:",inline"`
	// The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupDeletion is the body of a POST to backups/NAME/deletion, which removes an ended backup and
// its volume data from its store. It can't be undone.
type BackupDeletion struct {
	metav1.TypeMeta `json:",inline"`
	// The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Conditions of the deletion.
	// +optional
	Preconditions *BackupDeletionPreconditions `json:"preconditions,omitempty"`
	// Whether snapshots that only the backup names are deleted too: a lost cluster's with the same
	// storage, or Velero's. It takes the right to delete volumesnapshotcontents. Default false:
	// only snapshots with a record in this cluster.
	// +optional
	SnapshotsByHandle bool `json:"snapshotsByHandle,omitempty"`
}

// StatusReasonBackupState refuses because of the backup's state.
const StatusReasonBackupState metav1.StatusReason = "BackupState"

// CauseHoldsLastData refuses to delete a backup that must be superseded, and holds a claim's newest
// data. Its field names the claim, as namespace/name.
const CauseHoldsLastData metav1.CauseType = "HoldsLastData"

// BackupDeletionPreconditions are the conditions of a deletion.
type BackupDeletionPreconditions struct {
	// Its uid, so that no later one of its name is deleted.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Whether it must be this cluster's own and expired, by the API server's clock.
	// +optional
	Expired bool `json:"expired,omitempty"`
	// Whether another good backup must hold newer data of each existing claim in it.
	// +optional
	Superseded bool `json:"superseded,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackupExpiration is the body of a POST to backups/NAME/expiration. It changes how long this
// cluster's stored backup is kept. Absent fields change nothing.
type BackupExpiration struct {
	metav1.TypeMeta `json:",inline"`
	// The name, if set, must be the backup's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Its uid, so that no later one of its name is changed.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// The new expiration, later or earlier.
	// +optional
	Expiration *metav1.Time `json:"expiration,omitempty"`
	// Whether the backup is held: true prevents expiry and deletion until false releases it.
	// +optional
	Hold *bool `json:"hold,omitempty"`
	// The reason, for readers of the backup's status.
	// +optional
	Reason string `json:"reason,omitempty"`
}
