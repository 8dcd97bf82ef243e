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

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Conditions of what was read.
const (
	ConditionMetadataReplaced = holdfast.ConditionMetadataReplaced
	ConditionVolumesListed    = holdfast.ConditionVolumesListed
)

const reasonUnreadable = "Unreadable"

// Volume is one volume in one backup: a volume backup, as it was read.
type Volume struct {
	// Namespace is that of the pod, and so of the claim, and NamespaceUID its uid. A
	// volume without one is listed in the system namespace.
	Namespace, NamespaceUID string
	// ClaimName is empty for a volume without a claim.
	ClaimName string
	// PodName and PodVolume say through which pod it was read.
	PodName, PodVolume string
	Node               string
	// VolumeName is that of the persistent volume, or in the volume's storage system.
	// It names a volume of which no claim and no pod is known, and no other.
	VolumeName string
	// BackupName is its own in an entry that is no Backup; all of an entry differ.
	BackupName string
	// SnapshotID is Kopia's; empty if the upload failed.
	SnapshotID string
	// SnapshotName is that of the snapshot that it was made of.
	SnapshotName string
	// Method is how its data was stored, such as format.UploaderKopia.
	Method string
	// Labels are what the store keeps with it.
	Labels Labels
	// State is one of those of the API.
	State string
	// Message says why the upload failed, or why it can't be restored or read.
	Message string
	// All in bytes. VolumeSize is that of the volume itself.
	SizeBytes, BytesDone, IncrementalBytes, VolumeSize int64
	// All are zero if unknown. Created is when it was asked for, if its entry is no Backup.
	Start, Completion, Created, SnapshotCreated, VolumeCreated metav1.Time
}

func (v *Volume) completed() bool { return v.State == holdfast.VolumeBackupCompleted }

// Labels are a set of labels in JSON, so that equal ones are equal; empty if there are none.
type Labels string

// NewLabels returns the set of the given ones.
func NewLabels(of map[string]string) Labels {
	if len(of) == 0 {
		return ""
	}
	encoded, err := json.Marshal(of) // in the order of keys
	if err != nil {
		panic(err) // strings can always be written
	}
	return Labels(intern(string(encoded)))
}

// Map returns the labels; nil if there are none.
func (l Labels) Map() map[string]string {
	var of map[string]string
	if l == "" || json.Unmarshal([]byte(l), &of) != nil { // it may come from an index
		return nil
	}
	return of
}

// valid returns those that are labels in Kubernetes, too; nil if there are none.
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

// ReadVolumes reads the list of a backup's volumes, as the object of
// format.PodVolumeBackupsKey holds it.
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

// canExist reports whether the names are such as a pod's volume has: they become parts of names
// in the API.
func (v *Volume) canExist() bool {
	return len(validation.IsDNS1123Label(v.Namespace)) == 0 && len(validation.IsDNS1123Subdomain(v.PodName)) == 0 &&
		len(validation.IsDNS1123Label(v.PodVolume)) == 0 && (v.ClaimName == "" || len(validation.IsDNS1123Subdomain(v.ClaimName)) == 0)
}

// IsOfABackup reports whether it is such as ReadVolumes reads: what others say that they have
// read may be anything.
func (v *Volume) IsOfABackup() bool {
	return v.canExist() && v.BackupName == "" && (v.VolumeName == "" || v.ClaimName != "" && validVolumeName(v.VolumeName)) &&
		(v.State == holdfast.VolumeBackupCompleted || v.State == holdfast.VolumeBackupFailed)
}

func validVolumeName(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

// known is what is stored of a volume itself, as far as it can be true.
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
	if at := itself.Created; at != nil && at.Unix() > 0 && at.UTC().Year() <= 9999 { // which JSON can hold
		k.created = *at
	}
	return k
}

// knownTexts keeps what was read last, by the text: the same come again in every backup, and to
// read and judge one takes as long as all the rest of its row.
var knownTexts struct {
	mu   sync.Mutex
	of   map[string]known
	size int
}

const maxKnownTexts = 8 << 20

// maxMessage is more than an agent's message has.
const maxMessage = 4 << 10

// know takes over what is stored of the volume itself.
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
		// What was read of it is about as long.
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
		State:            holdfast.VolumeBackupFailed,
	}
	if !v.canExist() {
		return Volume{}, fmt.Errorf("it names a volume that can't exist: %q of pod %q in namespace %q, claim %q", v.PodVolume, v.PodName, v.Namespace, v.ClaimName)
	}
	if v.ClaimName != "" {
		v.know(pvb.Itself())
	}
	if status.Phase == engine.VolumePhaseCompleted {
		v.State = holdfast.VolumeBackupCompleted
	}
	if status.StartTimestamp != nil {
		v.Start = *status.StartTimestamp
	}
	if status.CompletionTimestamp != nil {
		v.Completion = *status.CompletionTimestamp
	}
	switch {
	case v.Message != "":
	case !v.completed() && status.Phase != engine.VolumePhaseFailed:
		v.Message = fmt.Sprintf("the upload ended in the phase %q", bounded(string(status.Phase), maxName))
	case v.completed() && pvb.Spec.UploaderType != format.UploaderKopia:
		v.Message = "it was not uploaded with Kopia and can't be restored by Holdfast"
	}
	return v, nil
}

// intern lets equal strings share their memory: the same names come again in
// every backup.
func intern(s string) string { return unique.Make(s).Value() }

// bareName is that of the BackupVolume in the volume's own namespace.
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

// volumeName is that of the BackupVolume where a row is listed. In the system namespace
// it says of which namespace the volume was; no claim's name has an @.
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

// describe completes a backup with what is wrong with it.
func describe(content *Content, now time.Time) *holdfast.Backup {
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

// lastInstant does not change when the same fault is found again.
func lastInstant(backup *holdfast.Backup, now time.Time) metav1.Time {
	if completed := backup.Status.CompletionTimestamp; completed != nil {
		return *completed
	}
	return metav1.NewTime(now)
}

// unreadable stands in for a backup of which nothing is known.
func unreadable(e *entry, systemNamespace, reason string, now time.Time) *holdfast.Backup {
	backup := &holdfast.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: systemNamespace,
			Name:      e.storeName,
			UID:       format.DerivedUID("backup", e.location, e.storeName),
		},
		Spec: holdfast.BackupSpec{StorageLocation: e.location},
		Status: holdfast.BackupStatus{
			Phase:         holdfast.BackupPhaseUnreadable,
			FailureReason: reason,
		},
	}
	backup.Status.Conditions = format.EndConditions(&backup.Status)
	for i := range backup.Status.Conditions {
		backup.Status.Conditions[i].LastTransitionTime = metav1.NewTime(now)
	}
	return backup
}

// held is an entry as it is listed. It never changes, so that whoever reads it need not
// hold a lock.
type held struct {
	location, storeName, systemNamespace string
	bare, shadowed                       bool
	// backup is as stored, in its place, and row as it is listed; nil if it is bare.
	backup, row *holdfast.Backup
	rows        *packedRows
	// version is the one at which it was listed.
	version uint64
}

// mayName reports whether what lies in a namespace may name an entry's backup. One
// of another namespace is another backup there, since who may read the one need not
// know of the other. What is no Backup is of nothing but its volume.
func (h *held) mayName(namespace string) bool {
	return h.bare || namespace == h.backup.Namespace || namespace == h.systemNamespace
}

// reference names the backup in a namespace; it is empty if that may not be, or there is none.
// Over all namespaces, any may be named.
func (h *held) reference(namespace string, all bool) holdfast.BackupReference {
	if h.row == nil || !all && !h.mayName(namespace) {
		return holdfast.BackupReference{}
	}
	return holdfast.BackupReference{Namespace: h.row.Namespace, Name: h.row.Name}
}

// pseudonym stands for an entry where it may not be named. It follows from the
// backup's uid, too, so that no name can be tried by computing it.
func (h *held) pseudonym() string {
	uid := format.DerivedUID("another backup", h.location, h.storeName, string(h.backup.UID))
	return "another-" + strings.ReplaceAll(string(uid), "-", "")[:20]
}

// objectName is that of a volume backup of a volume.
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

// created is when a volume backup was asked for.
func (h *held) created(r row) metav1.Time {
	switch {
	case !h.bare:
		return h.backup.CreationTimestamp
	case r.odd != nil:
		return metav1.NewTime(r.odd.created)
	}
	return metav1.Time{}
}

// volumeBackup makes the object of a row.
func (h *held) volumeBackup(r row, volume types.NamespacedName, all bool) *holdfast.VolumeBackup {
	v := r.volume()
	labels := v.Labels.Map()
	object := &holdfast.VolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         volume.Namespace,
			Name:              h.objectName(r, volume),
			CreationTimestamp: h.created(r),
			Labels:            valid(labels),
		},
		Spec: holdfast.VolumeBackupSpec{
			VolumeName:      volume.Name,
			BackupName:      v.BackupName,
			Backup:          h.reference(volume.Namespace, all),
			PodName:         v.PodName,
			PodVolume:       v.PodVolume,
			StorageLocation: h.location,
		},
		Status: holdfast.VolumeBackupStatus{
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

// url says where a volume backup lies. It names the location, of which everybody may
// know the name, and not the bucket.
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

// snapshotCreated is when the snapshot was made. Kopia's is as of when the upload began.
func (v *Volume) snapshotCreated() metav1.Time {
	if v.SnapshotCreated.IsZero() && v.SnapshotID != "" {
		return v.Start
	}
	return v.SnapshotCreated
}

// itself is what is known of the volume itself; nil if that is nothing.
func (v *Volume) itself() *holdfast.BackedUpVolume {
	itself := holdfast.BackedUpVolume{Name: v.VolumeName, SizeBytes: v.VolumeSize, CreationTimestamp: optional(v.VolumeCreated)}
	if itself == (holdfast.BackedUpVolume{}) {
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

// maxMessages is how many messages a volume bears.
const maxMessages = 5

// messages are those of what ended after the last completed backup, the newest first, and
// then those of what can't be read.
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
	add(func(m member) bool { return m.row().stateName() == holdfast.VolumeBackupUnreadable })
	return messages
}

// object makes the BackupVolume, of a volume that is not of a pod alone.
func (v *volume) object() *holdfast.BackupVolume {
	object := &holdfast.BackupVolume{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         v.name.Namespace,
			Name:              v.name.Name,
			UID:               volumeUID(v.name),
			CreationTimestamp: v.created,
		},
		Status: holdfast.BackupVolumeStatus{
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
		if of := h.reference(v.name.Namespace, false); of != (holdfast.BackupReference{}) {
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

// named returns a BackupVolume of object with the name of its last backup, for lists over all
// namespaces; nil if it has that name already, or there is no such backup.
func (v *volume) named(object *holdfast.BackupVolume) *holdfast.BackupVolume {
	if v.last.held == nil || object.Status.LastBackup != nil {
		return nil
	}
	of := v.last.held.reference(v.name.Namespace, true)
	if of == (holdfast.BackupReference{}) {
		return nil
	}
	named := *object
	named.Status.LastBackup = &of
	return &named
}
