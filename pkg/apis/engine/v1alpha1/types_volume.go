// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// LabelRun has the uid of a VolumeUpload's BackupRun.
	LabelRun = "engine.holdfast.io/run-uid"
	// LabelNode has the node of volume work, by NodeLabel.
	LabelNode = "engine.holdfast.io/node"
	// LabelHooked marks a VolumeUpload of a pod with hooks. If the hooks run again meanwhile, the
	// upload must begin anew.
	LabelHooked = "engine.holdfast.io/hooked"
	// AnnotationCut has the cut that a VolumeUpload reads, as JSON: its Time is for the agent, all of
	// it for the backup's next attempt.
	AnnotationCut = "engine.holdfast.io/snapshot-cut"
)

// NodeLabel returns a node's LabelNode: its name, or a digest of a name too long for a label.
func NodeLabel(node string) string {
	if len(node) <= validation.LabelValueMaxLength {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return hex.EncodeToString(sum[:16])
}

// VolumePhase is the state of volume work.
// +kubebuilder:validation:Enum="";New;InProgress;Completed;Failed
type VolumePhase string

const (
	// VolumePhaseNew: waiting for the node's agent. Empty means New.
	VolumePhaseNew VolumePhase = "New"
	// VolumePhaseInProgress: the agent moves the data.
	VolumePhaseInProgress VolumePhase = "InProgress"
	// VolumePhaseCompleted: all data moved.
	VolumePhaseCompleted VolumePhase = "Completed"
	// VolumePhaseFailed: ended without a usable result.
	VolumePhaseFailed VolumePhase = "Failed"
)

// Done reports whether the phase is final.
func (p VolumePhase) Done() bool {
	return p == VolumePhaseCompleted || p == VolumePhaseFailed
}

// PodReference identifies a pod.
type PodReference struct {
	// Its namespace.
	Namespace string `json:"namespace"`
	// Its name.
	Name string `json:"name"`
	// Its uid: its folder on the node.
	UID types.UID `json:"uid"`
}

// VolumeProgress counts bytes and files.
type VolumeProgress struct {
	// Bytes to move, as far as known.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// Bytes moved so far.
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
	// Files to move, as far as known.
	// +optional
	TotalFiles int64 `json:"totalFiles,omitempty"`
	// Files moved so far.
	// +optional
	FilesDone int64 `json:"filesDone,omitempty"`
}

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=volumeuploads,singular=volumeupload,shortName=hfvu,scope=Namespaced
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.pod.name`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.status.progress.bytesDone`
// +kubebuilder:printcolumn:name="Of",type=integer,JSONPath=`.status.progress.totalBytes`
// +kubebuilder:printcolumn:name="Files",type=integer,JSONPath=`.status.progress.filesDone`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// VolumeUpload asks a node's agent to upload a pod's volume. Its BackupRun owns it. Deletion or
// cancellation stops the upload; after a cancellation, the agent reports it.
type VolumeUpload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The volume.
	Spec VolumeUploadSpec `json:"spec"`
	// The state of the upload.
	// +optional
	Status VolumeUploadStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// VolumeUploadList is a list of VolumeUploads.
type VolumeUploadList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumeUpload `json:"items"`
}

// VolumeUploadSpec is the volume to upload. Immutable, except for one cancellation.
// +kubebuilder:validation:XValidation:rule="self.node == oldSelf.node && self.pod == oldSelf.pod && self.volume == oldSelf.volume && self.backupStorageLocation == oldSelf.backupStorageLocation && self.repository == oldSelf.repository",message="the spec of a VolumeUpload does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.claimName) == has(oldSelf.claimName) && (!has(self.claimName) || self.claimName == oldSelf.claimName)",message="the spec of a VolumeUpload does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.claimUID) == has(oldSelf.claimUID) && (!has(self.claimUID) || self.claimUID == oldSelf.claimUID)",message="the spec of a VolumeUpload does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.persistentVolume) == has(oldSelf.persistentVolume) && (!has(self.persistentVolume) || self.persistentVolume == oldSelf.persistentVolume)",message="the spec of a VolumeUpload does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.hostPath) == has(oldSelf.hostPath) && (!has(self.hostPath) || self.hostPath == oldSelf.hostPath)",message="the spec of a VolumeUpload does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.device) == has(oldSelf.device) && (!has(self.device) || self.device == oldSelf.device)",message="the spec of a VolumeUpload does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.holder) == has(oldSelf.holder) && (!has(self.holder) || self.holder == oldSelf.holder)",message="the spec of a VolumeUpload does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancel) || has(self.cancel) && self.cancel == oldSelf.cancel",message="a cancellation is not taken back"
type VolumeUploadSpec struct {
	// Node that runs the pod, or the holder.
	Node string `json:"node"`
	// The volume's pod. Without a name, no pod uses the claim.
	Pod PodReference `json:"pod"`
	// The volume's name in the pod's spec.
	Volume string `json:"volume"`
	// The volume's claim. Empty without one.
	// +optional
	ClaimName string `json:"claimName,omitempty"`
	// The claim's uid.
	// +optional
	ClaimUID types.UID `json:"claimUID,omitempty"`
	// Name of the PersistentVolume to read, and of its folder on the node: the claim's, or one from
	// a snapshot. Empty without a claim: the folder has the volume's name.
	// +optional
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Uid of the pod that mounts a volume from a snapshot, where the agent reads instead. Older
	// agents fail: the volume's pod has no such PersistentVolume.
	// +optional
	Holder types.UID `json:"holder,omitempty"`
	// Name of the pod's emptyDir with the socket of a block device that it serves. Empty for
	// volumes with files. Older agents fail: a block device has no folder.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Device string `json:"device,omitempty"`
	// Node path of a hostPath PersistentVolume, for which the kubelet makes no folder. The agent
	// uses only paths below its --host-path-roots.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	HostPath string `json:"hostPath,omitempty"`
	// The storage location.
	BackupStorageLocation string `json:"backupStorageLocation"`
	// VolumeRepository of the pod's namespace.
	Repository string `json:"repository"`
	// Tags of the snapshot: the backup's name in the store, and the uid of its cluster's
	// kube-system namespace.
	// +optional
	StoreName string `json:"storeName,omitempty"`
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`
	// Whether to stop the upload. Once stopped, the agent makes it Failed.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
}

// VolumeUploadStatus is the state of an upload.
type VolumeUploadStatus struct {
	// New, InProgress, Completed or Failed.
	// +optional
	Phase VolumePhase `json:"phase,omitempty"`
	// Why it failed, or what it waits for.
	// +optional
	Message string `json:"message,omitempty"`
	// Kopia's id of the snapshot.
	// +optional
	SnapshotID string `json:"snapshotID,omitempty"`
	// Node path that was read.
	// +optional
	Path string `json:"path,omitempty"`
	// Bytes read.
	// +optional
	Progress VolumeProgress `json:"progress,omitempty"`
	// Bytes of files that are new or may have changed since the volume's previous snapshot.
	// +optional
	IncrementalBytes int64 `json:"incrementalBytes,omitempty"`
	// Number of warnings: files that vanished or changed while read, and omitted special files. The
	// message names the first.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// How often an agent began. If one stops, the upload begins anew, a few times.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// Attempts given back, since the agent was told to stop. They do not count against the limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GivenBack int32 `json:"givenBack,omitempty"`
	// The last agent process that began.
	// +optional
	Agent string `json:"agent,omitempty"`
	// When the upload last began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When it ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
}

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=volumerestores,singular=volumerestore,shortName=hfvr,scope=Namespaced
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.pod.name`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.status.progress.bytesDone`
// +kubebuilder:printcolumn:name="Of",type=integer,JSONPath=`.status.progress.totalBytes`
// +kubebuilder:printcolumn:name="Files",type=integer,JSONPath=`.status.progress.filesDone`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// VolumeRestore asks a node's agent to write a snapshot into a pod's volume. Files of the same name
// are replaced. Deletion stops the restore.
type VolumeRestore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The snapshot and the volume.
	Spec VolumeRestoreSpec `json:"spec"`
	// The state of the restore.
	// +optional
	Status VolumeRestoreStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true

// VolumeRestoreList is a list of VolumeRestores.
type VolumeRestoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumeRestore `json:"items"`
}

// VolumeRestoreSpec is the snapshot to restore, and its target. Immutable, except for one
// cancellation.
// +kubebuilder:validation:XValidation:rule="self.node == oldSelf.node && self.pod == oldSelf.pod && self.volume == oldSelf.volume && self.backupStorageLocation == oldSelf.backupStorageLocation && self.repository == oldSelf.repository && self.snapshotID == oldSelf.snapshotID",message="the spec of a VolumeRestore does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.persistentVolume) == has(oldSelf.persistentVolume) && (!has(self.persistentVolume) || self.persistentVolume == oldSelf.persistentVolume)",message="the spec of a VolumeRestore does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.hostPath) == has(oldSelf.hostPath) && (!has(self.hostPath) || self.hostPath == oldSelf.hostPath)",message="the spec of a VolumeRestore does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.device) == has(oldSelf.device) && (!has(self.device) || self.device == oldSelf.device)",message="the spec of a VolumeRestore does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.waitVolume) == has(oldSelf.waitVolume) && (!has(self.waitVolume) || self.waitVolume == oldSelf.waitVolume)",message="the spec of a VolumeRestore does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="has(self.paths) == has(oldSelf.paths) && (!has(self.paths) || self.paths == oldSelf.paths)",message="the spec of a VolumeRestore does not change, except by a cancellation"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancel) || has(self.cancel) && self.cancel == oldSelf.cancel",message="a cancellation is not taken back"
type VolumeRestoreSpec struct {
	// Node that runs the pod.
	Node string `json:"node"`
	// The pod.
	Pod PodReference `json:"pod"`
	// The volume's name in the pod's spec.
	Volume string `json:"volume"`
	// Name of the claim's PersistentVolume, and of its folder on the node. Empty without a claim.
	// +optional
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Name of the pod's emptyDir with the socket of a block device that it serves. Empty for
	// volumes with files. Older agents fail: a block device has no folder.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Device string `json:"device,omitempty"`
	// Node path of a hostPath PersistentVolume, for which the kubelet makes no folder. The agent
	// uses only paths below its --host-path-roots.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	HostPath string `json:"hostPath,omitempty"`
	// The storage location.
	BackupStorageLocation string `json:"backupStorageLocation"`
	// The snapshot's VolumeRepository.
	Repository string `json:"repository"`
	// Kopia's id of the snapshot.
	SnapshotID string `json:"snapshotID"`
	// Whether to stop the restore. Once stopped, the agent makes it Failed. Written files stay.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
	// Name of the emptyDir in which the pod, before its containers start, awaits the volume's
	// result. Empty if it does not wait.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	WaitVolume string `json:"waitVolume,omitempty"`
	// Whether to remove files that the snapshot lacks. Otherwise they stay, and the message counts
	// them.
	// +optional
	Replace bool `json:"replace,omitempty"`
	// Files and folders to restore, by path in the volume. Empty means all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=4096
	Paths []string `json:"paths,omitempty"`
}

// VolumeRestoreStatus is the state of a restore.
type VolumeRestoreStatus struct {
	// New, InProgress, Completed or Failed.
	// +optional
	Phase VolumePhase `json:"phase,omitempty"`
	// Why it failed, or what it waits for.
	// +optional
	Message string `json:"message,omitempty"`
	// Bytes written.
	// +optional
	Progress VolumeProgress `json:"progress,omitempty"`
	// How often an agent began. If one stops, the restore begins anew, a few times.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// Attempts given back, since the agent was told to stop. They do not count against the limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GivenBack int32 `json:"givenBack,omitempty"`
	// The last agent process that began.
	// +optional
	Agent string `json:"agent,omitempty"`
	// When writing last began.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// When it ended.
	// +optional
	CompletionTimestamp *metav1.Time `json:"completionTimestamp,omitempty"`
}
