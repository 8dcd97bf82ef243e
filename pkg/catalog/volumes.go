// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

const (
	ConditionMetadataReplaced = v1alpha1.ConditionMetadataReplaced
	ConditionVolumesListed    = v1alpha1.ConditionVolumesListed
)

const reasonUnreadable = "Unreadable"

// Volume is a volume backup, as read.
type Volume struct {
	// Namespace is the claim's and pod's. Without one, the volume is listed in the system namespace.
	Namespace, NamespaceUID string
	ClaimName               string
	// PodName and PodVolume gave access to it.
	PodName, PodVolume string
	Node               string
	// VolumeName is the persistent volume's, or the storage system's. It names only volumes without a
	// known claim or pod.
	VolumeName string
	// BackupName is its unique name in a bare entry.
	BackupName   string
	SnapshotID   string
	SnapshotName string
	Method       string
	Labels       Labels
	State        string
	Message      string
	// In bytes; VolumeSize is the capacity.
	SizeBytes, BytesDone, IncrementalBytes, VolumeSize int64
	// Zero if unknown. Created is the request's, for bare entries.
	Start, Completion, Created, SnapshotCreated, VolumeCreated metav1.Time
}

func (v *Volume) completed() bool { return v.State == v1alpha1.VolumeBackupCompleted }

// Labels is canonical JSON of labels, comparable; or empty.
type Labels string

// NewLabels returns a set of labels.
func NewLabels(of map[string]string) Labels {
	if len(of) == 0 {
		return ""
	}
	encoded, err := json.Marshal(of)
	if err != nil {
		panic(err)
	}
	return Labels(intern(string(encoded)))
}

// Map returns the labels, or nil.
func (l Labels) Map() map[string]string {
	var of map[string]string
	if l == "" || json.Unmarshal([]byte(l), &of) != nil {
		return nil
	}
	return of
}

func valid(of map[string]string) map[string]string {
	var valid map[string]string
	for key, value := range of {
		if len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			continue
		}
		if valid == nil {
			valid = make(map[string]string, len(of))
		}
		valid[key] = value
	}
	return valid
}

// ReadVolumes reads format.PodVolumeBackupsKey.
func ReadVolumes(r io.Reader) ([]Volume, error) {
	var volumes []Volume
	err := format.ReadPodVolumeBackups(r, func(pvb format.PodVolumeBackup) error {
		v, err := newVolume(&pvb)
		if err != nil {
			return err
		}
		volumes = append(volumes, v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return slices.Clip(volumes), nil
}

// canExist reports whether the names are valid, since they become names in the API.
func (v *Volume) canExist() bool {
	inPod := len(validation.IsDNS1123Subdomain(v.PodName)) == 0 && len(validation.IsDNS1123Label(v.PodVolume)) == 0
	noPod := v.PodName == "" && v.PodVolume == "" && v.ClaimName != ""
	return len(validation.IsDNS1123Label(v.Namespace)) == 0 && (inPod || noPod) && (v.ClaimName == "" || len(validation.IsDNS1123Subdomain(v.ClaimName)) == 0)
}

// IsOfABackup reports whether ReadVolumes could return it: an index may have anything.
func (v *Volume) IsOfABackup() bool {
	return v.canExist() && v.BackupName == "" && (v.VolumeName == "" || v.ClaimName != "" && validVolumeName(v.VolumeName)) &&
		(v.State == v1alpha1.VolumeBackupCompleted || v.State == v1alpha1.VolumeBackupFailed)
}

func validVolumeName(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

type known struct {
	name    string
	size    int64
	created metav1.Time
	labels  Labels
}

func newKnown(text string) known {
	itself := format.DecodeVolumeItself(text)
	k := known{size: max(itself.SizeBytes, 0), labels: NewLabels(valid(itself.Labels))}
	if validVolumeName(itself.Name) {
		k.name = intern(itself.Name)
	}
	if at := itself.Created; at != nil && at.Unix() > 0 && at.UTC().Year() <= 9999 { // JSON can hold it
		k.created = *at
	}
	return k
}

// knownTexts caches decoded texts: each backup repeats them, and decoding dominates a row's cost.
var knownTexts struct {
	mu   sync.Mutex
	of   map[string]known
	size int
}

const maxKnownTexts = 8 << 20

const maxMessage = 4 << 10

func (v *Volume) know(text string) {
	if text == "" {
		return
	}
	knownTexts.mu.Lock()
	k, found := knownTexts.of[text]
	knownTexts.mu.Unlock()
	if !found {
		k = newKnown(text)
		knownTexts.mu.Lock()
		if knownTexts.size += 2 * len(text); knownTexts.of == nil || knownTexts.size > maxKnownTexts {
			knownTexts.of, knownTexts.size = map[string]known{}, 2*len(text)
		}
		knownTexts.of[text] = k
		knownTexts.mu.Unlock()
	}
	v.VolumeName, v.VolumeSize, v.VolumeCreated, v.Labels = k.name, k.size, k.created, k.labels
}

func newVolume(pvb *format.PodVolumeBackup) (Volume, error) {
	status := &pvb.Status
	v := Volume{
		Namespace:        intern(pvb.Spec.Pod.Namespace),
		NamespaceUID:     intern(bounded(string(pvb.NamespaceUID()), maxName)),
		ClaimName:        intern(pvb.ClaimName()),
		PodName:          intern(pvb.Spec.Pod.Name),
		PodVolume:        intern(pvb.Spec.Volume),
		Node:             intern(bounded(pvb.Spec.Node, maxName)),
		Method:           intern(bounded(cmp.Or(pvb.Spec.UploaderType, format.UploaderRestic), maxName)),
		SnapshotID:       bounded(status.SnapshotID, maxName),
		Message:          intern(bounded(status.Message, maxMessage)),
		SizeBytes:        status.Progress.TotalBytes,
		BytesDone:        status.Progress.BytesDone,
		IncrementalBytes: status.IncrementalBytes,
		State:            v1alpha1.VolumeBackupFailed,
	}
	if !v.canExist() {
		return Volume{}, fmt.Errorf("it names a volume that can't exist: %q of pod %q in namespace %q, claim %q", v.PodVolume, v.PodName, v.Namespace, v.ClaimName)
	}
	if v.ClaimName != "" {
		v.know(pvb.Itself())
	}
	inStorage := pvb.SnapshotHandle() != "" && v.SnapshotID == ""
	switch {
	case v.Method != format.UploaderKopia || pvb.SnapshotDriver() == "":
	case inStorage:
		v.Method, v.SnapshotName = MethodInStorage, bounded(pvb.SnapshotHandle(), maxText)
	default:
		v.Method = MethodMoved
	}
	if status.Phase == enginev1alpha1.VolumePhaseCompleted {
		v.State = v1alpha1.VolumeBackupCompleted
	}
	if status.StartTimestamp != nil {
		v.Start = *status.StartTimestamp
	}
	if status.CompletionTimestamp != nil {
		v.Completion = *status.CompletionTimestamp
	}
	switch {
	case v.Message != "":
	case v.completed() && inStorage:
		v.Message = format.KeptInStorage
	case !v.completed() && status.Phase != enginev1alpha1.VolumePhaseFailed:
		v.Message = fmt.Sprintf("the upload ended in the phase %q", bounded(string(status.Phase), maxName))
	case v.completed() && pvb.Spec.UploaderType != format.UploaderKopia:
		v.Message = "it was not uploaded with Kopia and can't be restored by Holdfast"
	}
	return v, nil
}

func intern(s string) string { return unique.Make(s).Value() }

func (v *Volume) bareName() string {
	return bareName(v.ClaimName, v.PodName, v.PodVolume, v.VolumeName)
}

func bareName(claim, pod, podVolume, volume string) string {
	if claim == "" && pod == "" {
		return "volume:" + volume
	}
	return format.VolumeName(claim, pod, podVolume)
}

func (s *shape) bareName() string { return bareName(s.claimName, s.podName, s.podVolume, s.volumeName) }

// volumeName names the BackupVolume. In the system namespace it has a suffix @NAMESPACE, which no claim
// has.
func (r row) volumeName(systemNamespace string) types.NamespacedName {
	s := r.shape.Value()
	switch {
	case s.namespace == "":
		return types.NamespacedName{Namespace: systemNamespace, Name: s.bareName()}
	case r.displaced:
		return types.NamespacedName{Namespace: systemNamespace, Name: s.bareName() + "@" + s.namespace}
	}
	return types.NamespacedName{Namespace: s.namespace, Name: s.bareName()}
}

func describe(content *Content, now time.Time) *v1alpha1.Backup {
	backup := content.Backup.DeepCopy()
	if content.Replaced != "" {
		backup.Status.Conditions = append(backup.Status.Conditions, metav1.Condition{
			Type:               ConditionMetadataReplaced,
			Status:             metav1.ConditionTrue,
			Reason:             "ReplacedInStore",
			Message:            content.Replaced,
			LastTransitionTime: lastInstant(backup, now),
		})
	}
	if content.VolumesError != "" {
		backup.Status.Conditions = append(backup.Status.Conditions, metav1.Condition{
			Type:               ConditionVolumesListed,
			Status:             metav1.ConditionFalse,
			Reason:             reasonUnreadable,
			Message:            "the list of its volumes can't be read: " + content.VolumesError,
			LastTransitionTime: lastInstant(backup, now),
		})
	}
	return backup
}

// lastInstant returns the same time for the same fault.
func lastInstant(backup *v1alpha1.Backup, now time.Time) metav1.Time {
	if completed := backup.Status.CompletionTimestamp; completed != nil {
		return *completed
	}
	return metav1.NewTime(now)
}

func unreadable(e *entry, systemNamespace, reason string, now time.Time) *v1alpha1.Backup {
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: systemNamespace,
			Name:      e.storeName,
			UID:       format.DerivedUID("backup", e.location, e.storeName),
		},
		Spec: v1alpha1.BackupSpec{StorageLocation: e.location},
		Status: v1alpha1.BackupStatus{
			Phase:         v1alpha1.BackupPhaseUnreadable,
			FailureReason: reason,
		},
	}
	backup.Status.Conditions = format.EndConditions(&backup.Status)
	for i := range backup.Status.Conditions {
		backup.Status.Conditions[i].LastTransitionTime = metav1.NewTime(now)
	}
	return backup
}

// held is an entry as listed. It is immutable, so readers need no lock.
type held struct {
	location, storeName, systemNamespace string
	bare, shadowed                       bool
	// backup has the stored name, row the listed one; nil for a bare entry.
	backup, row *v1alpha1.Backup
	rows        *packedRows
	version     uint64
}

// mayName reports whether a namespace's objects may name the backup. A bare entry belongs to its volume
// only.
func (h *held) mayName(namespace string) bool {
	return h.bare || namespace == h.backup.Namespace || namespace == h.systemNamespace
}

// reference returns the backup's name for a namespace, unless it may not be named. all permits any.
func (h *held) reference(namespace string, all bool) v1alpha1.BackupReference {
	if h.row == nil || !all && !h.mayName(namespace) {
		return v1alpha1.BackupReference{}
	}
	return v1alpha1.BackupReference{Namespace: h.row.Namespace, Name: h.row.Name}
}

// pseudonym replaces a name that may not be named, by its uid, which can't be guessed.
func (h *held) pseudonym() string {
	uid := format.DerivedUID("another backup", h.location, h.storeName, string(h.backup.UID))
	return "another-" + strings.ReplaceAll(string(uid), "-", "")[:20]
}

func (h *held) objectName(r row, volume types.NamespacedName) string {
	name := h.storeName
	if h.bare {
		name += "." + r.backupName()
	}
	switch {
	case !h.mayName(volume.Namespace):
		name = h.pseudonym()
	case h.shadowed:
		name += "@" + h.location
	}
	name += ":" + volume.Name
	if r.repeat > 0 {
		name += ":" + strconv.Itoa(int(r.repeat)+1)
	}
	return name
}

func (h *held) created(r row) metav1.Time {
	switch {
	case !h.bare:
		return h.backup.CreationTimestamp
	case r.odd != nil:
		return metav1.NewTime(r.odd.created)
	}
	return metav1.Time{}
}

func (h *held) volumeBackup(r row, volume types.NamespacedName, all bool) *v1alpha1.VolumeBackup {
	v := r.volume()
	labels := v.Labels.Map()
	object := &v1alpha1.VolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         volume.Namespace,
			Name:              h.objectName(r, volume),
			CreationTimestamp: h.created(r),
			Labels:            valid(labels),
		},
		Spec: v1alpha1.VolumeBackupSpec{
			VolumeName:      volume.Name,
			BackupName:      v.BackupName,
			Backup:          h.reference(volume.Namespace, all),
			PodName:         v.PodName,
			PodVolume:       v.PodVolume,
			StorageLocation: h.location,
		},
		Status: v1alpha1.VolumeBackupStatus{
			Phase:               v.State,
			Method:              v.Method,
			URL:                 h.url(&v),
			SnapshotID:          v.SnapshotID,
			SnapshotName:        cmp.Or(v.SnapshotName, v.SnapshotID),
			SnapshotTimestamp:   optional(v.snapshotCreated()),
			Volume:              v.itself(),
			Labels:              labels,
			SizeBytes:           v.SizeBytes,
			IncrementalBytes:    v.IncrementalBytes,
			Node:                v.Node,
			StartTimestamp:      optional(v.Start),
			CompletionTimestamp: optional(v.Completion),
			Message:             v.Message,
		},
	}
	repeat := strconv.Itoa(int(r.repeat))
	if h.bare {
		object.UID = format.DerivedUID("volumebackup", h.location, h.storeName, v.BackupName, repeat)
		return object
	}
	object.UID = format.DerivedUID("volumebackup", h.location, h.storeName, string(h.backup.UID), v.Namespace, v.bareName(), repeat)
	object.Spec.BackupUID = h.row.UID
	return object
}

// url returns where a volume backup is stored, by the location's public name, not the bucket's.
func (h *held) url(v *Volume) string {
	u := url.URL{Scheme: "store", Host: h.location}
	switch {
	case h.bare:
		u.Path, u.RawQuery = "/", url.Values{"backup": {v.BackupName}, "volume": {h.storeName}}.Encode()
	case v.SnapshotID != "":
		u.Path, u.RawQuery = "/kopia/"+v.Namespace, url.Values{"snapshot": {v.SnapshotID}}.Encode()
	default:
		return ""
	}
	return u.String()
}

// snapshotCreated returns the snapshot's time; Kopia's is the start of the upload.
func (v *Volume) snapshotCreated() metav1.Time {
	if v.SnapshotCreated.IsZero() && v.SnapshotID != "" {
		return v.Start
	}
	return v.SnapshotCreated
}

func (v *Volume) itself() *v1alpha1.BackedUpVolume {
	itself := v1alpha1.BackedUpVolume{Name: v.VolumeName, SizeBytes: v.VolumeSize, CreationTimestamp: optional(v.VolumeCreated)}
	if itself == (v1alpha1.BackedUpVolume{}) {
		return nil
	}
	return &itself
}

func optional(t metav1.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

const maxMessages = 5

// messages returns up to maxMessages: of failures after the last completed backup, newest first, then
// of unreadable ones.
func (v *volume) messages() []string {
	var messages []string
	add := func(concerned func(m member) bool) {
		for _, m := range slices.Backward(v.members) {
			if len(messages) == maxMessages {
				return
			}
			if m.row().state != stateCompleted && concerned(m) {
				if text := m.row().shape.Value().message; text != "" && !slices.Contains(messages, text) {
					messages = append(messages, text)
				}
			}
		}
	}
	if int(v.completed) == len(v.members) {
		return nil
	}
	add(func(m member) bool { return v.last.held == nil || compareMembers(v.last, m) < 0 })
	add(func(m member) bool { return m.row().stateName() == v1alpha1.VolumeBackupUnreadable })
	return messages
}

func (v *volume) object() *v1alpha1.BackupVolume {
	object := &v1alpha1.BackupVolume{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         v.name.Namespace,
			Name:              v.name.Name,
			UID:               volumeUID(v.name),
			CreationTimestamp: v.created,
		},
		Status: v1alpha1.BackupVolumeStatus{
			Backups:          v.completed,
			Failures:         int32(len(v.members)) - v.completed,
			DataStoredBytes:  v.stored,
			Messages:         v.messages(),
			StorageLocations: slices.Clone(v.locations),
		},
	}
	if any := v.members[0].row().shape.Value(); any.claimName != "" {
		object.Spec.ClaimName = any.claimName
	} else {
		object.Spec.VolumeName = any.volumeName
	}
	if h := v.last.held; h != nil {
		last := v.last.row().volume()
		if of := h.reference(v.name.Namespace, false); of != (v1alpha1.BackupReference{}) {
			object.Status.LastBackup = &of
		}
		object.Status.LastVolumeBackup = h.objectName(v.last.row(), v.name)
		object.Status.LastBackupTimestamp = optional(last.Completion)
		object.Status.SizeBytes = last.SizeBytes
		object.Status.Volume = last.itself()
		object.Status.Labels = last.Labels.Map()
		object.Labels = valid(object.Status.Labels)
	}
	return object
}

// named returns a copy of the BackupVolume with its last backup's name, for lists over all namespaces,
// or nil.
func (v *volume) named(object *v1alpha1.BackupVolume) *v1alpha1.BackupVolume {
	if v.last.held == nil || object.Status.LastBackup != nil {
		return nil
	}
	of := v.last.held.reference(v.name.Namespace, true)
	if of == (v1alpha1.BackupReference{}) {
		return nil
	}
	named := *object
	named.Status.LastBackup = &of
	return &named
}
