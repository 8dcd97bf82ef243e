// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const (
	// FormatVersion is the layout's version. Velero reads versioned folders from "1.1.0" on; its design
	// gives "1.2.0" to backups with a manifest.
	FormatVersion = "1.2.0"
	// MaxMetadataBytes bounds velero-backup.json. etcd's limit keeps valid ones smaller.
	MaxMetadataBytes = 2 << 20

	veleroAPIVersion = "velero.io/v1"
	veleroNamespace  = "velero"
	metadataVersion  = 1
)

// AnnotationIncomplete is on a claim until a restore has written all its data.
const AnnotationIncomplete = "holdfast.io/incomplete-data"

// Annotations of velero-backup.json, which replace the backup's own ones with this prefix.
const (
	AnnotationPrefix          = "holdfast.io/"
	AnnotationOriginNamespace = "holdfast.io/origin-namespace"
	AnnotationOriginName      = "holdfast.io/origin-name"
	// AnnotationOriginNamespaceUID is the namespace's uid.
	AnnotationOriginNamespaceUID = "holdfast.io/origin-namespace-uid"
	// AnnotationClusterUID is the uid of the namespace kube-system.
	AnnotationClusterUID = "holdfast.io/cluster-uid"
	AnnotationPublicKey  = "holdfast.io/public-key"
	// AnnotationSignature is the signature of the other metadata.
	AnnotationSignature = "holdfast.io/signature"
	// AnnotationScheduleUID is the Schedule's uid, if any.
	AnnotationScheduleUID = "holdfast.io/schedule-uid"
	AnnotationRequester   = "holdfast.io/requester"
	// AnnotationQueuedAt is in RFC 3339.
	AnnotationQueuedAt = "holdfast.io/queued-at"
	// AnnotationPhase is Cancelled, a phase that Velero lacks: to it, Failed.
	AnnotationPhase = "holdfast.io/phase"
	// AnnotationContents is Contents in JSON.
	AnnotationContents = "holdfast.io/contents"
	// AnnotationSecretsLeftOut is the message of the condition SecretsLeftOut, no warning, since every
	// backup of all namespaces has it.
	AnnotationSecretsLeftOut = "holdfast.io/secrets-left-out"
	// AnnotationVolumesLeftOut is status.volumes.leftOut, unless 0.
	AnnotationVolumesLeftOut = "holdfast.io/volumes-left-out"
	AnnotationMessage        = "holdfast.io/message"
	// AnnotationEncryption is status.encryption in JSON; absent without encryption.
	AnnotationEncryption = "holdfast.io/encryption"

	annotationGitVersion   = "velero.io/source-cluster-k8s-gitversion"
	annotationMajorVersion = "velero.io/source-cluster-k8s-major-version"
	annotationMinorVersion = "velero.io/source-cluster-k8s-minor-version"
)

// LabelExclude with the value "true" excludes an object, or a namespace with its content. The name is
// Velero's.
const LabelExclude = "velero.io/exclude-from-backup"

// ErrUnfinished means metadata that Velero replaces when the backup ends.
var ErrUnfinished = errors.New("the backup is not finished")

// Cluster identifies the cluster of a backup.
type Cluster struct {
	SystemNamespace string
	UID             string
	// GitVersion, Major and Minor are the API server's, and optional.
	GitVersion, Major, Minor string
	// Key signs the metadata, which readers don't trust otherwise.
	Key *SigningKey
}

// Place is the place and the reader of metadata.
type Place struct {
	StoreName string
	Location  string
	// SystemNamespace gets the backups of other makers.
	SystemNamespace string
	// Now is the time of the read, after which an expired unfinished backup has ended.
	Now time.Time
}

type storedBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	// The API has Velero's field names and meanings.
	Spec   v1alpha1.BackupSpec `json:"spec"`
	Status storedStatus        `json:"status"`
}

type storedStatus struct {
	Version             int                      `json:"version,omitempty"`
	FormatVersion       string                   `json:"formatVersion,omitempty"`
	Expiration          *metav1.Time             `json:"expiration,omitempty"`
	Phase               v1alpha1.BackupPhase     `json:"phase,omitempty"`
	StartTimestamp      *metav1.Time             `json:"startTimestamp,omitempty"`
	CompletionTimestamp *metav1.Time             `json:"completionTimestamp,omitempty"`
	Warnings            int32                    `json:"warnings,omitempty"`
	Errors              int32                    `json:"errors,omitempty"`
	FailureReason       string                   `json:"failureReason,omitempty"`
	Progress            *v1alpha1.BackupProgress `json:"progress,omitempty"`
	HookStatus          *v1alpha1.HookStatus     `json:"hookStatus,omitempty"`
}

// EncodeBackup encodes velero-backup.json of a Completed, PartiallyFailed, Failed or Cancelled backup,
// with uid, creation, start and completion. Readers derive volume counts and conditions, except
// SecretsLeftOut.
func EncodeBackup(backup *v1alpha1.Backup, contents Contents, cluster Cluster) ([]byte, error) {
	storeName := StoreName(backup.Namespace, backup.Name, cluster.SystemNamespace)
	if err := ValidateStoreName(storeName); err != nil {
		return nil, err
	}
	status := &backup.Status
	switch {
	case !restorable(status.Phase) && status.Phase != v1alpha1.BackupPhaseFailed && status.Phase != v1alpha1.BackupPhaseCancelled:
		return nil, fmt.Errorf("backup %s: status.phase %q is no phase of an ended backup", storeName, status.Phase)
	case backup.UID == "" || backup.CreationTimestamp.IsZero():
		return nil, fmt.Errorf("backup %s: metadata.uid and metadata.creationTimestamp must be set", storeName)
	case status.StartTimestamp.IsZero() || status.CompletionTimestamp.IsZero():
		return nil, fmt.Errorf("backup %s: status.startTimestamp and status.completionTimestamp must be set", storeName)
	}
	annotations, err := encodeAnnotations(backup, contents, cluster)
	if err != nil {
		return nil, fmt.Errorf("encode the metadata of backup %s: %w", storeName, err)
	}
	stored := storedBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: veleroAPIVersion, Kind: "Backup"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              storeName,
			Namespace:         veleroNamespace,
			UID:               backup.UID,
			CreationTimestamp: backup.CreationTimestamp,
			Labels:            backup.Labels,
			Annotations:       annotations,
		},
		Spec: backup.Spec,
		Status: storedStatus{
			Version:             metadataVersion,
			FormatVersion:       FormatVersion,
			Expiration:          status.Expiration,
			Phase:               encodePhase(status.Phase),
			StartTimestamp:      status.StartTimestamp,
			CompletionTimestamp: status.CompletionTimestamp,
			Warnings:            status.Warnings,
			Errors:              status.Errors,
			FailureReason:       status.FailureReason,
			Progress:            status.Progress,
			HookStatus:          status.HookStatus,
		},
	}
	if stored.Spec.CSISnapshotTimeout.Duration == 0 { // Velero's restore needs it
		stored.Spec.CSISnapshotTimeout = v1alpha1.Duration{Duration: v1alpha1.DefaultCSISnapshotTimeout}
	}
	data, err := json.Marshal(stored)
	if err == nil && cluster.Key != nil {
		if stored.Annotations[AnnotationSignature], err = cluster.Key.sign(data); err == nil {
			data, err = json.Marshal(stored)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("encode the metadata of backup %s: %w", storeName, err)
	}
	return data, nil
}

func encodePhase(phase v1alpha1.BackupPhase) v1alpha1.BackupPhase {
	if phase == v1alpha1.BackupPhaseCancelled {
		return v1alpha1.BackupPhaseFailed
	}
	return phase
}

func volumesLeftOut(volumes *v1alpha1.BackupVolumesProgress) string {
	if volumes == nil || volumes.LeftOut == 0 {
		return ""
	}
	return strconv.Itoa(int(volumes.LeftOut))
}

func encodeAnnotations(backup *v1alpha1.Backup, contents Contents, cluster Cluster) (map[string]string, error) {
	annotations := map[string]string{}
	for key, value := range backup.Annotations {
		if !strings.HasPrefix(key, AnnotationPrefix) {
			annotations[key] = value
		}
	}
	annotations[AnnotationOriginNamespace] = backup.Namespace
	annotations[AnnotationOriginName] = backup.Name
	optional := map[string]string{
		AnnotationSecretsLeftOut: secretsLeftOut(backup.Status.Conditions),
		AnnotationMessage:        backup.Status.Message,
		AnnotationVolumesLeftOut: volumesLeftOut(backup.Status.Volumes),
		AnnotationClusterUID:     cluster.UID,
		AnnotationRequester:      backup.Status.Requester,
		annotationGitVersion:     cluster.GitVersion,
		annotationMajorVersion:   cluster.Major,
		annotationMinorVersion:   cluster.Minor,
	}
	if origin := backup.Status.Origin; origin != nil {
		optional[AnnotationOriginNamespaceUID] = string(origin.NamespaceUID)
		optional[AnnotationScheduleUID] = string(origin.ScheduleUID)
	}
	if cluster.Key != nil {
		optional[AnnotationPublicKey] = cluster.Key.PublicKey()
	}
	for key, value := range optional {
		if value != "" {
			annotations[key] = value
		}
	}
	if backup.Status.Encryption != nil {
		encoded, err := json.Marshal(backup.Status.Encryption)
		if err != nil {
			return nil, err
		}
		annotations[AnnotationEncryption] = string(encoded)
	}
	if queued := backup.Status.QueuedTimestamp; !queued.IsZero() {
		annotations[AnnotationQueuedAt] = queued.UTC().Format(time.RFC3339)
	}
	if backup.Status.Phase == v1alpha1.BackupPhaseCancelled {
		annotations[AnnotationPhase] = string(backup.Status.Phase)
	}
	if len(contents) > 0 {
		encoded, err := json.Marshal(contents)
		if err != nil {
			return nil, err
		}
		annotations[AnnotationContents] = string(encoded)
	}
	return annotations, nil
}

// EncodeRevocation returns unfinished metadata, which replaces an earlier attempt's copy.
func EncodeRevocation(storeName string, uid types.UID) ([]byte, error) {
	data, err := json.Marshal(storedBackup{
		TypeMeta:   metav1.TypeMeta{APIVersion: veleroAPIVersion, Kind: "Backup"},
		ObjectMeta: metav1.ObjectMeta{Name: storeName, Namespace: veleroNamespace, UID: uid},
		Status:     storedStatus{Phase: v1alpha1.BackupPhaseInProgress},
	})
	if err != nil {
		return nil, fmt.Errorf("encode that an attempt is over: %w", err)
	}
	return data, nil
}

// DecodeBackup reads velero-backup.json of any writer. The backup has its store name, in the system
// namespace, and no requester. Its origin has the unverified claims, and the trust Foreign without a
// signature, Forged with a wrong one, else empty: the reader decides about the key. The uid is stored, or
// derived. Unknown fields are
// ignored. It fails with ErrUnfinished for an unfinished backup, else for unusable metadata.
func DecodeBackup(data []byte, place Place) (*v1alpha1.Backup, error) {
	if len(data) > MaxMetadataBytes {
		return nil, fmt.Errorf("the metadata has more than %d bytes", MaxMetadataBytes)
	}
	data = bytes.TrimSpace(data)
	stored, err := decodeStored(data)
	if err != nil {
		return nil, err
	}
	origin, canonical := originOf(data, stored.Annotations)
	if canonical != nil {
		if stored, err = decodeStored(canonical); err != nil {
			return nil, err
		}
	}
	switch {
	case stored.APIVersion != veleroAPIVersion || stored.Kind != "Backup":
		return nil, fmt.Errorf("the metadata is of kind %q in %q, not of kind Backup in %s", stored.Kind, stored.APIVersion, veleroAPIVersion)
	case stored.Name != place.StoreName:
		return nil, fmt.Errorf("the metadata belongs to a backup named %q", stored.Name)
	}
	phase, err := decodePhase(stored, place.Now)
	if err != nil {
		return nil, err
	}
	origin.ClusterUID = stored.Annotations[AnnotationClusterUID]
	origin.PublicKey = stored.Annotations[AnnotationPublicKey]
	origin.Namespace = stored.Annotations[AnnotationOriginNamespace]
	origin.NamespaceUID = types.UID(stored.Annotations[AnnotationOriginNamespaceUID])
	origin.Name = stored.Annotations[AnnotationOriginName]
	origin.ScheduleUID = types.UID(stored.Annotations[AnnotationScheduleUID])
	origin.ClaimedRequester = stored.Annotations[AnnotationRequester]
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         place.SystemNamespace,
			Name:              place.StoreName,
			UID:               stored.UID,
			CreationTimestamp: stored.CreationTimestamp,
			Labels:            stored.Labels,
			Annotations:       decodeAnnotations(stored.Annotations),
		},
		Spec: stored.Spec,
		Status: v1alpha1.BackupStatus{
			Phase:               phase,
			FormatVersion:       stored.Status.FormatVersion,
			StartTimestamp:      stored.Status.StartTimestamp,
			CompletionTimestamp: stored.Status.CompletionTimestamp,
			Expiration:          stored.Status.Expiration,
			Progress:            stored.Status.Progress,
			HookStatus:          stored.Status.HookStatus,
			Warnings:            stored.Status.Warnings,
			Errors:              stored.Status.Errors,
			FailureReason:       stored.Status.FailureReason,
			Message:             boundedMessage(stored.Annotations[AnnotationMessage]),
			Origin:              origin,
		},
	}
	backup.Spec.StorageLocation = place.Location
	backup.Spec.Metadata, backup.Spec.VeleroFields = v1alpha1.BackupSpecMetadata{}, v1alpha1.VeleroFields{}
	backup.Spec.DropDefaultTimeouts()
	backup.Spec.OrLabelSelectors = slices.DeleteFunc(backup.Spec.OrLabelSelectors, func(s *metav1.LabelSelector) bool { return s == nil })
	if backup.UID == "" {
		backup.UID = DerivedUID("backup", place.Location, place.StoreName)
	}
	if backup.CreationTimestamp.IsZero() && stored.Status.StartTimestamp != nil {
		backup.CreationTimestamp = *stored.Status.StartTimestamp
	}
	if queued, err := time.Parse(time.RFC3339, stored.Annotations[AnnotationQueuedAt]); err == nil {
		backup.Status.QueuedTimestamp = &metav1.Time{Time: queued}
	}
	if count, err := strconv.ParseInt(stored.Annotations[AnnotationVolumesLeftOut], 10, 32); err == nil && count > 0 {
		backup.Status.Volumes = &v1alpha1.BackupVolumesProgress{LeftOut: int32(count)}
	}
	if backup.Status.Encryption, err = decodeEncryption(stored.Annotations); err != nil {
		return nil, err
	}
	backup.Status.Conditions = EndConditions(&backup.Status)
	if message := stored.Annotations[AnnotationSecretsLeftOut]; message != "" {
		backup.Status.Conditions = append(backup.Status.Conditions, SecretsLeftOut(&backup.Status, message))
	}
	return backup, nil
}

// maxEncryptionBytes bounds AnnotationEncryption in foreign metadata.
const maxEncryptionBytes = 8 << 10

var publicKeys = regexp.MustCompile(`^age1[0-9a-z]+$`)

func decodeEncryption(annotations map[string]string) (*v1alpha1.BackupEncryption, error) {
	encoded, ok := annotations[AnnotationEncryption]
	if !ok {
		return nil, nil
	}
	encryption := &v1alpha1.BackupEncryption{}
	if len(encoded) > maxEncryptionBytes {
		return nil, fmt.Errorf("the annotation %s has %d bytes, more than %d", AnnotationEncryption, len(encoded), maxEncryptionBytes)
	}
	if err := utiljson.Unmarshal([]byte(encoded), encryption); err != nil {
		return nil, fmt.Errorf("the annotation %s is not JSON: %w", AnnotationEncryption, err)
	}
	for _, key := range append([]string{encryption.ClusterKey}, encryption.RecoveryKeys...) {
		if !publicKeys.MatchString(key) {
			return nil, fmt.Errorf("the annotation %s: %.100q is not a public key of age", AnnotationEncryption, key)
		}
	}
	return encryption, nil
}

func originOf(data []byte, annotations map[string]string) (origin *v1alpha1.BackupOrigin, canonical []byte) {
	if _, signed := annotations[AnnotationSignature]; !signed {
		return &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForeign, Message: "its metadata is not signed"}, nil
	}
	canonical, err := verify(data)
	if err != nil {
		return &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForged, Message: "its metadata is not as it was signed: " + err.Error()}, nil
	}
	return &v1alpha1.BackupOrigin{}, canonical
}

func decodeStored(data []byte) (*storedBackup, error) {
	stored := &storedBackup{}
	if err := utiljson.Unmarshal(data, stored); err != nil {
		return nil, fmt.Errorf("the metadata is not the JSON of a backup: %w", err)
	}
	return stored, nil
}

func restorable(phase v1alpha1.BackupPhase) bool {
	return phase == v1alpha1.BackupPhaseCompleted || phase == v1alpha1.BackupPhasePartiallyFailed
}

func decodePhase(stored *storedBackup, now time.Time) (v1alpha1.BackupPhase, error) {
	status := &stored.Status
	switch status.Phase {
	case v1alpha1.BackupPhaseFailed:
		if stored.Annotations[AnnotationPhase] == string(v1alpha1.BackupPhaseCancelled) {
			return v1alpha1.BackupPhaseCancelled, nil
		}
		return status.Phase, nil
	case v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed:
		return status.Phase, nil
	case "", "New", "Queued", "ReadyToStart", "InProgress",
		"WaitingForPluginOperations", "WaitingForPluginOperationsPartiallyFailed",
		"Finalizing", "FinalizingPartiallyFailed":
		if status.Expiration != nil && status.Expiration.Time.Before(now) {
			return v1alpha1.BackupPhasePartiallyFailed, nil
		}
		return "", fmt.Errorf("%w: its phase in the store is %q", ErrUnfinished, status.Phase)
	default:
		return "", fmt.Errorf("the metadata's phase %q is no phase of a stored backup", status.Phase)
	}
}

func decodeAnnotations(stored map[string]string) map[string]string {
	annotations := maps.Clone(stored)
	for _, key := range []string{
		AnnotationOriginNamespace, AnnotationOriginNamespaceUID, AnnotationOriginName, AnnotationRequester,
		AnnotationScheduleUID, AnnotationQueuedAt, AnnotationPhase, AnnotationClusterUID, AnnotationPublicKey, AnnotationSignature, AnnotationSecretsLeftOut, AnnotationMessage, AnnotationVolumesLeftOut, AnnotationEncryption,
	} {
		delete(annotations, key)
	}
	if len(annotations) == 0 {
		return nil
	}
	return annotations
}

// uidSpace is the random namespace of derived uids.
var uidSpace = uuid.MustParse("5b9d3c0e-4a58-4a7c-9c5e-0c7f1e3a8d21")

// DerivedUID returns the UUID of version 5 (RFC 9562) of a kind and identity.
func DerivedUID(kind string, identity ...string) types.UID {
	// No name has NUL, so ("a", "b/c") and ("a/b", "c") differ.
	name := strings.Join(append([]string{kind}, identity...), "\x00")
	return types.UID(uuid.NewSHA1(uidSpace, []byte(name)).String())
}

// maxMessageBytes exceeds the result of Findings; others' messages are cut.
const maxMessageBytes = 2 << 10

func boundedMessage(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessageBytes)], "")
}

// EndConditions returns an ended backup's conditions.
func EndConditions(status *v1alpha1.BackupStatus) []metav1.Condition {
	at, message := endOf(status), cmp.Or(status.FailureReason, strings.Join(status.ValidationErrors, "; "), status.Message, Unnamed(status.Errors, status.Warnings))
	succeeded := metav1.ConditionFalse
	if status.Phase == v1alpha1.BackupPhaseCompleted {
		succeeded = metav1.ConditionTrue
	}
	return []metav1.Condition{
		{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: string(status.Phase), Message: message, LastTransitionTime: at},
		{Type: v1alpha1.ConditionSucceeded, Status: succeeded, Reason: string(status.Phase), Message: message, LastTransitionTime: at},
	}
}

// SecretsLeftOut returns the condition for missing selected Secrets.
func SecretsLeftOut(status *v1alpha1.BackupStatus, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionSecretsLeftOut, Status: metav1.ConditionTrue,
		Reason: "OwnNamespaces", Message: message, LastTransitionTime: endOf(status)}
}

func secretsLeftOut(conditions []metav1.Condition) string {
	if condition := meta.FindStatusCondition(conditions, v1alpha1.ConditionSecretsLeftOut); condition != nil {
		return condition.Message
	}
	return ""
}

func endOf(status *v1alpha1.BackupStatus) metav1.Time {
	return *cmp.Or(status.CompletionTimestamp, status.StartTimestamp, &metav1.Time{})
}
