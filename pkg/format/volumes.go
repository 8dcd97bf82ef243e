// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	// UploaderKopia is the only one that Holdfast restores.
	UploaderKopia = "kopia"
	// UploaderRestic is the default of old versions of Velero.
	UploaderRestic = "restic"
)

// ResultFailed is the result of a volume without data.
const ResultFailed = "failed"

const (
	labelBackupName              = "velero.io/backup-name"
	labelBackupUID               = "velero.io/backup-uid"
	labelClaimUID                = "velero.io/pvc-uid"
	annotationClaim              = "velero.io/pvc-name"
	annotationVolumeNamespaceUID = AnnotationPrefix + "namespace-uid"
	annotationVolume             = AnnotationPrefix + "volume"
	annotationSnapshotDriver     = AnnotationPrefix + "snapshot-driver"
	annotationSnapshotHandle     = AnnotationPrefix + "snapshot-handle"
	annotationVolumeMode         = AnnotationPrefix + "volume-mode"
	maxVolumeAnnotation          = 16 << 10
	methodPodVolume              = "PodVolumeBackup"
	resultSucceeded              = "succeeded"
	maxLabelValue                = 63
	labelHashLength              = 6
	volumeHashLength             = 10
)

// Volume is a volume's result in a backup.
type Volume struct {
	Pod          enginev1alpha1.PodReference
	NamespaceUID types.UID
	Node         string
	Name         string
	// ClaimName, ClaimUID and PersistentVolume are empty without a claim.
	ClaimName        string
	ClaimUID         types.UID
	PersistentVolume string
	// HostPath is a hostPath volume's path.
	HostPath    string
	ClaimLabels map[string]string
	// ReclaimPolicy, Labels, Capacity in bytes and Created are the persistent volume's.
	ReclaimPolicy corev1.PersistentVolumeReclaimPolicy
	Labels        map[string]string
	Capacity      int64
	Created       metav1.Time
	Hooked        bool
	// Device is true for a block device.
	Device bool
	// Snapshot is set if the data is read from one. Pod has a name only if a pod has the claim.
	Snapshot *SnapshotSource
	// Instead is the claim's volume in another pod that was unreadable; or nil.
	Instead *Volume
	// Status has a final phase.
	Status enginev1alpha1.VolumeUploadStatus
}

// SnapshotSource is a CSI volume whose snapshot is read instead.
type SnapshotSource struct {
	Driver, Handle string
	// Class is the VolumeSnapshotClass, StorageClass the volume's.
	Class, StorageClass string
	// Nodes limits where a volume from the snapshot can be used.
	Nodes *corev1.VolumeNodeAffinity
	// Avoid is a node that may not be able to mount a copy beside the volume, or "".
	Avoid string
	// Kept leaves the snapshot in the volume's storage, and moves no data.
	Kept bool
	// KeepLocal is how many of the claim's newest snapshots stay beside their moved data.
	KeepLocal int32
	// Cut is nil until the snapshot is cut.
	Cut *SnapshotCut
}

// InStorage reports whether the only copy is in the volume's own storage.
func (v *Volume) InStorage() bool {
	return v.Snapshot != nil && v.Snapshot.Kept && v.Snapshot.Cut != nil && v.Status.SnapshotID == "" && v.Status.Phase == enginev1alpha1.VolumePhaseCompleted
}

func (v *Volume) keepsLocal() bool {
	return v.Snapshot != nil && v.Snapshot.KeepLocal > 0 && v.Snapshot.Cut != nil && v.Status.SnapshotID != "" && v.Status.Phase == enginev1alpha1.VolumePhaseCompleted
}

// SnapshotCut is a stored snapshot, and its objects in the cluster.
type SnapshotCut struct {
	// Snapshot is a VolumeSnapshot in the claim's namespace, Content its VolumeSnapshotContent.
	Snapshot, Content, Handle string
	Time                      metav1.Time
	// Size is the least size of a volume from it in bytes, or 0.
	Size int64
	// Attempt is the backup's attempt that has cut between hooks, or 0.
	Attempt int32
}

// PodVolumeBackup is Velero's: a pod's volume in its namespace's Kopia repository.
type PodVolumeBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              PodVolumeBackupSpec   `json:"spec"`
	Status            PodVolumeBackupStatus `json:"status"`
}

// PodVolumeBackupSpec identifies the volume.
type PodVolumeBackupSpec struct {
	Node                  string                 `json:"node"`
	Pod                   corev1.ObjectReference `json:"pod"`
	Volume                string                 `json:"volume"`
	BackupStorageLocation string                 `json:"backupStorageLocation"`
	// RepoIdentifier is from restic, and empty.
	RepoIdentifier string            `json:"repoIdentifier"`
	UploaderType   string            `json:"uploaderType"`
	Tags           map[string]string `json:"tags,omitempty"`
}

// PodVolumeBackupStatus is the result.
type PodVolumeBackupStatus struct {
	Phase               enginev1alpha1.VolumePhase    `json:"phase,omitempty"`
	Path                string                        `json:"path,omitempty"`
	SnapshotID          string                        `json:"snapshotID,omitempty"`
	Message             string                        `json:"message,omitempty"`
	StartTimestamp      *metav1.Time                  `json:"startTimestamp,omitempty"`
	CompletionTimestamp *metav1.Time                  `json:"completionTimestamp,omitempty"`
	Progress            enginev1alpha1.VolumeProgress `json:"progress"`
	IncrementalBytes    int64                         `json:"incrementalBytes,omitempty"`
}

// ClaimName returns the claim's name, or "".
func (p *PodVolumeBackup) ClaimName() string { return p.Annotations[annotationClaim] }

// VolumeName returns the volume's name in its namespace.
func (p *PodVolumeBackup) VolumeName() string {
	return VolumeName(p.ClaimName(), p.Spec.Pod.Name, p.Spec.Volume)
}

// VolumeName returns a volume's name in its namespace: the claim's, which has no colon, or the pod's.
func VolumeName(claim, pod, podVolume string) string {
	if claim == "" {
		return "pod:" + pod + ":" + podVolume
	}
	return claim
}

// NamespaceUID returns the uid of the pod's namespace, or "".
func (p *PodVolumeBackup) NamespaceUID() types.UID {
	return types.UID(p.Annotations[annotationVolumeNamespaceUID])
}

// SnapshotDriver returns the CSI driver whose snapshot was read, or "".
func (p *PodVolumeBackup) SnapshotDriver() string { return p.Annotations[annotationSnapshotDriver] }

// SnapshotHandle returns the handle of a snapshot in its volume's storage, or "".
func (p *PodVolumeBackup) SnapshotHandle() string { return p.Annotations[annotationSnapshotHandle] }

// IsDevice reports whether the volume is a block device.
func (p *PodVolumeBackup) IsDevice() bool {
	return p.Annotations[annotationVolumeMode] == string(corev1.PersistentVolumeBlock)
}

// VolumeItself describes a claim and its persistent volume.
type VolumeItself struct {
	// Name, SizeBytes and Created are the persistent volume's.
	Name      string       `json:"name,omitempty"`
	SizeBytes int64        `json:"sizeBytes,omitempty"`
	Created   *metav1.Time `json:"created,omitempty"`
	// Labels are the claim's: its owner may not see the persistent volume's.
	Labels map[string]string `json:"labels,omitempty"`
}

// Itself returns a text for DecodeVolumeItself, the same in all backups of an unchanged volume.
func (p *PodVolumeBackup) Itself() string { return p.Annotations[annotationVolume] }

// DecodeVolumeItself returns the zero value for an unreadable text. It verifies nothing.
func DecodeVolumeItself(text string) VolumeItself {
	var itself VolumeItself
	if len(text) > maxVolumeAnnotation || json.Unmarshal([]byte(text), &itself) != nil {
		return VolumeItself{}
	}
	return itself
}

func (v *Volume) itself() string {
	itself := VolumeItself{Name: v.PersistentVolume, SizeBytes: v.Capacity, Labels: v.ClaimLabels}
	if !v.Created.IsZero() {
		itself.Created = &v.Created
	}
	encoded, err := json.Marshal(itself)
	if len(encoded) > maxVolumeAnnotation {
		itself.Labels = nil
		encoded, err = json.Marshal(itself)
	}
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

// NewPodVolumeBackup describes a volume for Velero, named by pod and volume.
func NewPodVolumeBackup(backup *v1alpha1.Backup, storeName string, volume Volume) PodVolumeBackup {
	pvb := PodVolumeBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: veleroAPIVersion, Kind: "PodVolumeBackup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         veleroNamespace,
			Name:              storeName + "-" + volumeHash(&volume),
			CreationTimestamp: backup.CreationTimestamp,
			Labels: map[string]string{
				labelBackupName: labelValue(storeName),
				labelBackupUID:  string(backup.UID),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: veleroAPIVersion,
				Kind:       "Backup",
				Name:       storeName,
				UID:        backup.UID,
				Controller: new(true),
			}},
		},
		Spec: PodVolumeBackupSpec{
			Node: volume.Node,
			Pod: corev1.ObjectReference{
				Kind:      "Pod",
				Namespace: volume.Pod.Namespace,
				Name:      volume.Pod.Name,
				UID:       volume.Pod.UID,
			},
			Volume:                volume.Name,
			BackupStorageLocation: backup.Spec.StorageLocation,
			UploaderType:          UploaderKopia,
			Tags: map[string]string{
				"backup":     storeName,
				"backup-uid": string(backup.UID),
				"ns":         volume.Pod.Namespace,
				"pod":        volume.Pod.Name,
				"pod-uid":    string(volume.Pod.UID),
				"volume":     volume.Name,
			},
		},
		Status: PodVolumeBackupStatus{
			Phase:               volume.Status.Phase,
			Path:                volume.Status.Path,
			SnapshotID:          volume.Status.SnapshotID,
			Message:             volume.Status.Message,
			StartTimestamp:      volume.Status.StartTimestamp,
			CompletionTimestamp: volume.Status.CompletionTimestamp,
			Progress:            enginev1alpha1.VolumeProgress{TotalBytes: volume.Status.Progress.TotalBytes, BytesDone: volume.Status.Progress.BytesDone}, // Velero counts no files
			IncrementalBytes:    volume.Status.IncrementalBytes,
		},
	}
	if volume.NamespaceUID != "" {
		metav1.SetMetaDataAnnotation(&pvb.ObjectMeta, annotationVolumeNamespaceUID, string(volume.NamespaceUID))
	}
	if volume.Snapshot != nil {
		metav1.SetMetaDataAnnotation(&pvb.ObjectMeta, annotationSnapshotDriver, volume.Snapshot.Driver)
	}
	if volume.InStorage() || volume.keepsLocal() {
		metav1.SetMetaDataAnnotation(&pvb.ObjectMeta, annotationSnapshotHandle, volume.Snapshot.Cut.Handle)
	}
	if volume.Device { // Velero would mount it into the pod, which could not start
		metav1.SetMetaDataAnnotation(&pvb.ObjectMeta, annotationVolumeMode, string(corev1.PersistentVolumeBlock))
		pvb.Spec.Pod.Name, pvb.Spec.Pod.UID, pvb.Spec.Volume = "", "", ""
		pvb.Spec.Tags["pod"], pvb.Spec.Tags["pod-uid"], pvb.Spec.Tags["volume"] = "", "", ""
	}
	if volume.ClaimName != "" {
		metav1.SetMetaDataAnnotation(&pvb.ObjectMeta, annotationClaim, volume.ClaimName)
		metav1.SetMetaDataAnnotation(&pvb.ObjectMeta, annotationVolume, volume.itself())
		pvb.Labels[labelClaimUID] = string(volume.ClaimUID)
		pvb.Spec.Tags["pvc-uid"] = string(volume.ClaimUID)
	}
	return pvb
}

// WritePodVolumeBackups writes PodVolumeBackupsKey.
func WritePodVolumeBackups(w io.Writer, volumes []PodVolumeBackup) error {
	return writeJSON(w, MaxVolumesBytes, volumes)
}

// ReadPodVolumeBackups calls each for every element, until an error.
func ReadPodVolumeBackups(r io.Reader, each func(PodVolumeBackup) error) error {
	return readList(r, MaxVolumesBytes, each)
}

// VolumeInfo describes a volume's backup. Velero's restore finds it by the persistent volume's name,
// and then makes a new volume.
type VolumeInfo struct {
	PVCName               string             `json:"pvcName,omitempty"`
	PVCNamespace          string             `json:"pvcNamespace,omitempty"`
	PVName                string             `json:"pvName,omitempty"`
	BackupMethod          string             `json:"backupMethod,omitempty"`
	SnapshotDataMoved     bool               `json:"snapshotDataMoved"`
	PreserveLocalSnapshot bool               `json:"preserveLocalSnapshot"`
	Skipped               bool               `json:"skipped"`
	SkippedReason         string             `json:"skippedReason,omitempty"`
	StartTimestamp        *metav1.Time       `json:"startTimestamp,omitempty"`
	CompletionTimestamp   *metav1.Time       `json:"completionTimestamp,omitempty"`
	Result                string             `json:"result,omitempty"`
	PVBInfo               *PodVolumeInfo     `json:"pvbInfo,omitempty"`
	PVInfo                *PersistentVolInfo `json:"pvInfo,omitempty"`
	// Of volumes that Velero stored by snapshots.
	CSISnapshotInfo    *CSISnapshotInfo    `json:"csiSnapshotInfo,omitempty"`
	DataMovementInfo   *DataMovementInfo   `json:"snapshotDataMovementInfo,omitempty"`
	NativeSnapshotInfo *NativeSnapshotInfo `json:"nativeSnapshotInfo,omitempty"`
}

// PodVolumeInfo repeats a PodVolumeBackup in a VolumeInfo.
type PodVolumeInfo struct {
	SnapshotHandle  string `json:"snapshotHandle,omitempty"`
	Size            int64  `json:"size,omitempty"`
	IncrementalSize int64  `json:"incrementalSize,omitempty"`
	UploaderType    string `json:"uploaderType,omitempty"`
	VolumeName      string `json:"volumeName,omitempty"`
	PodName         string `json:"podName,omitempty"`
	PodNamespace    string `json:"podNamespace,omitempty"`
	NodeName        string `json:"nodeName,omitempty"`
	// Phase has no JSON name in the format.
	Phase enginev1alpha1.VolumePhase `json:"Phase"`
}

// PersistentVolInfo is what a restore needs.
type PersistentVolInfo struct {
	ReclaimPolicy string            `json:"reclaimPolicy,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
}

// NewVolumeInfo describes a volume that was, or should have been, uploaded.
func NewVolumeInfo(volume Volume) VolumeInfo {
	info := VolumeInfo{
		PVCName:             volume.ClaimName,
		PVName:              volume.PersistentVolume,
		BackupMethod:        methodPodVolume,
		StartTimestamp:      volume.Status.StartTimestamp,
		CompletionTimestamp: volume.Status.CompletionTimestamp,
		Result:              ResultFailed,
		PVBInfo: &PodVolumeInfo{
			SnapshotHandle:  volume.Status.SnapshotID,
			Size:            volume.Status.Progress.TotalBytes,
			IncrementalSize: volume.Status.IncrementalBytes,
			UploaderType:    UploaderKopia,
			VolumeName:      volume.Name,
			PodName:         volume.Pod.Name,
			PodNamespace:    volume.Pod.Namespace,
			NodeName:        volume.Node,
			Phase:           volume.Status.Phase,
		},
	}
	if volume.Status.Phase == enginev1alpha1.VolumePhaseCompleted {
		info.Result = resultSucceeded
	}
	if volume.InStorage() {
		cut := volume.Snapshot.Cut
		info.BackupMethod, info.PVBInfo, info.PreserveLocalSnapshot = MethodCSISnapshot, nil, true
		info.CSISnapshotInfo = &CSISnapshotInfo{SnapshotHandle: cut.Handle, Size: cut.Size, VSCName: cut.Content, Driver: volume.Snapshot.Driver, ReadyToUse: new(true)}
	}
	if volume.ClaimName != "" {
		info.PVCNamespace = volume.Pod.Namespace
	}
	if volume.PersistentVolume != "" {
		info.PVInfo = &PersistentVolInfo{ReclaimPolicy: string(volume.ReclaimPolicy), Labels: volume.Labels}
	}
	return info
}

// WriteVolumeInfo writes VolumeInfoKey.
func WriteVolumeInfo(w io.Writer, volumes []VolumeInfo) error {
	return writeJSON(w, MaxSideFileBytes, volumes)
}

// ReadVolumeInfo reads VolumeInfoKey.
func ReadVolumeInfo(r io.Reader) ([]VolumeInfo, error) { return readJSON[[]VolumeInfo](r) }

func volumeHash(volume *Volume) string {
	// None of the three has a slash.
	identity := strings.Join([]string{volume.Pod.Namespace, volume.Pod.Name, volume.Name}, "/")
	if volume.Pod.Name == "" {
		identity += "/" + volume.ClaimName
	}
	hash := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(hash[:])[:volumeHashLength]
}

func labelValue(storeName string) string {
	if len(storeName) <= maxLabelValue {
		return storeName
	}
	hash := sha256.Sum256([]byte(storeName))
	return storeName[:maxLabelValue-labelHashLength] + hex.EncodeToString(hash[:])[:labelHashLength]
}
