// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
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

// Volume is one volume in one backup, at rest: there may be a million.
type Volume struct {
	// Namespace is that of the pod, and so of the claim, and NamespaceUID its uid.
	Namespace, NamespaceUID string
	// ClaimName is empty for a volume without a claim.
	ClaimName string
	// PodName and PodVolume say through which pod it was read.
	PodName, PodVolume string
	Node               string
	// SnapshotID is Kopia's; empty if the upload failed.
	SnapshotID string
	// Message says why the upload failed, or why it can't be restored.
	Message string
	// All in bytes.
	SizeBytes, BytesDone, IncrementalBytes int64
	// Start and Completion are zero if unknown.
	Start, Completion metav1.Time
	Completed         bool
	// displaced is true if it is not listed in its namespace, but in the system one.
	displaced bool
	// repeat counts the entries of the same volume before it in the backup.
	repeat int
}

// ReadVolumes reads the list of a backup's volumes, as the object of
// format.PodVolumeBackupsKey holds it.
func ReadVolumes(r io.Reader) ([]Volume, error) {
	var volumes []Volume
	seen := map[types.NamespacedName]int{}
	err := format.ReadPodVolumeBackups(r, func(pvb format.PodVolumeBackup) error {
		v, err := newVolume(&pvb)
		if err != nil {
			return err
		}
		name := types.NamespacedName{Namespace: v.Namespace, Name: v.bareName()}
		v.repeat = seen[name]
		seen[name]++
		volumes = append(volumes, v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return slices.Clip(volumes), nil
}

func newVolume(pvb *format.PodVolumeBackup) (Volume, error) {
	claim := pvb.ClaimName()
	// They become parts of names in the API.
	if len(validation.IsDNS1123Label(pvb.Spec.Pod.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(pvb.Spec.Pod.Name)) > 0 ||
		len(validation.IsDNS1123Label(pvb.Spec.Volume)) > 0 || claim != "" && len(validation.IsDNS1123Subdomain(claim)) > 0 {
		return Volume{}, fmt.Errorf("it names a volume that can't exist: %q of pod %q in namespace %q, claim %q", pvb.Spec.Volume, pvb.Spec.Pod.Name, pvb.Spec.Pod.Namespace, claim)
	}
	status := &pvb.Status
	v := Volume{
		Namespace:        intern(pvb.Spec.Pod.Namespace),
		NamespaceUID:     intern(string(pvb.NamespaceUID())),
		ClaimName:        intern(claim),
		PodName:          intern(pvb.Spec.Pod.Name),
		PodVolume:        intern(pvb.Spec.Volume),
		Node:             intern(pvb.Spec.Node),
		SnapshotID:       status.SnapshotID,
		Message:          intern(status.Message),
		SizeBytes:        status.Progress.TotalBytes,
		BytesDone:        status.Progress.BytesDone,
		IncrementalBytes: status.IncrementalBytes,
		Completed:        status.Phase == engine.VolumePhaseCompleted,
	}
	if status.StartTimestamp != nil {
		v.Start = *status.StartTimestamp
	}
	if status.CompletionTimestamp != nil {
		v.Completion = *status.CompletionTimestamp
	}
	switch {
	case v.Message != "":
	case !v.Completed && status.Phase != engine.VolumePhaseFailed:
		v.Message = fmt.Sprintf("the upload ended in the phase %q", status.Phase)
	case v.Completed && pvb.Spec.UploaderType != format.UploaderKopia:
		v.Message = "it was not uploaded with Kopia and can't be restored by Holdfast"
	}
	return v, nil
}

// intern lets equal strings share their memory: the same names come again in
// every backup.
func intern(s string) string { return unique.Make(s).Value() }

// bareName is that of the BackupVolume in the volume's own namespace.
func (v *Volume) bareName() string {
	if v.ClaimName == "" {
		return "pod:" + v.PodName + ":" + v.PodVolume
	}
	return v.ClaimName
}

// name is that of the BackupVolume where it is listed. In the system namespace it says
// of which namespace the volume was; no claim's name has an @.
func (v *Volume) name(systemNamespace string) types.NamespacedName {
	if v.displaced {
		return types.NamespacedName{Namespace: systemNamespace, Name: v.bareName() + "@" + v.Namespace}
	}
	return types.NamespacedName{Namespace: v.Namespace, Name: v.bareName()}
}

// describe completes a backup with what follows from its volumes.
func describe(content Content, now time.Time) *holdfast.Backup {
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
		return backup
	}
	if len(content.Volumes) == 0 {
		return backup
	}
	sum := &holdfast.BackupVolumesProgress{Total: int32(len(content.Volumes))}
	for i := range content.Volumes {
		v := &content.Volumes[i]
		sum.TotalBytes += v.SizeBytes
		sum.BytesDone += v.BytesDone
		if v.Completed {
			sum.Completed++
		} else {
			sum.Failed++
		}
	}
	backup.Status.Volumes = sum
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

// mayName reports whether what lies in a namespace may name an entry's backup. One
// of another namespace is another backup there, since who may read the one need not
// know of the other.
func (e *entry) mayName(namespace string) bool {
	return namespace == e.backup.Namespace || namespace == e.systemNamespace
}

// pseudonym stands for an entry where it may not be named. It follows from the
// backup's uid, too, so that no name can be tried by computing it.
func (e *entry) pseudonym() string {
	uid := format.DerivedUID("another backup", e.location, e.storeName, string(e.backup.UID))
	return "another-" + strings.ReplaceAll(string(uid), "-", "")[:20]
}

func (e *entry) volumeBackupName(i int) types.NamespacedName {
	v := &e.volumes[i]
	volume := v.name(e.systemNamespace)
	name := e.storeName
	switch {
	case !e.mayName(volume.Namespace):
		name = e.pseudonym()
	case e.shadowed:
		name += "@" + e.location
	}
	name += ":" + volume.Name
	if v.repeat > 0 {
		name += ":" + strconv.Itoa(v.repeat+1)
	}
	return types.NamespacedName{Namespace: volume.Namespace, Name: name}
}

func (e *entry) volumeBackup(i int) *holdfast.VolumeBackup {
	v := &e.volumes[i]
	name := e.volumeBackupName(i)
	phase := engine.VolumePhaseFailed
	if v.Completed {
		phase = engine.VolumePhaseCompleted
	}
	var of holdfast.BackupReference
	if e.mayName(name.Namespace) {
		of = holdfast.BackupReference{Namespace: e.row.Namespace, Name: e.row.Name}
	}
	return &holdfast.VolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         name.Namespace,
			Name:              name.Name,
			UID:               format.DerivedUID("volumebackup", e.location, e.storeName, string(e.backup.UID), v.Namespace, v.bareName(), strconv.Itoa(v.repeat)),
			CreationTimestamp: e.backup.CreationTimestamp,
		},
		Spec: holdfast.VolumeBackupSpec{
			VolumeName:      v.name(e.systemNamespace).Name,
			Backup:          of,
			BackupUID:       e.row.UID,
			PodName:         v.PodName,
			PodVolume:       v.PodVolume,
			StorageLocation: e.location,
		},
		Status: holdfast.VolumeBackupStatus{
			Phase:               string(phase),
			SnapshotID:          v.SnapshotID,
			SizeBytes:           v.SizeBytes,
			IncrementalBytes:    v.IncrementalBytes,
			Node:                v.Node,
			StartTimestamp:      optional(v.Start),
			CompletionTimestamp: optional(v.Completion),
			Message:             v.Message,
		},
	}
}

func optional(t metav1.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// volume is what all entries together hold of one claim or pod volume.
type volume struct {
	members []member
	// The rest follows from members. After a removal it is stale until recount.
	stale     bool
	locations []string // sorted, each once
	completed int32
	last      member // the latest completed one; its entry is nil if there is none
	created   metav1.Time
}

// member is one Volume of an entry.
type member struct {
	entry *entry
	index int
}

func (m member) volume() *Volume { return &m.entry.volumes[m.index] }

func (v *volume) empty() bool { return len(v.members) == 0 }

func (v *volume) add(m member) {
	v.members = append(v.members, m)
	if !v.stale { // else last may be a member that is gone
		v.count(m)
	}
}

func (v *volume) remove(gone member) {
	v.members = slices.DeleteFunc(v.members, func(m member) bool { return m == gone })
	v.stale = true
}

func (v *volume) recount() {
	if !v.stale {
		return
	}
	*v = volume{members: v.members}
	for _, m := range v.members {
		v.count(m)
	}
}

func (v *volume) count(m member) {
	if i, found := slices.BinarySearch(v.locations, m.entry.location); !found {
		v.locations = slices.Insert(v.locations, i, m.entry.location)
	}
	if created := m.entry.backup.CreationTimestamp; v.created.IsZero() || created.Before(&v.created) {
		v.created = created
	}
	if !m.volume().Completed {
		return
	}
	v.completed++
	if v.last.entry == nil || v.last.before(m) {
		v.last = m
	}
}

// before orders members by their end; equal ones by what identifies them, so
// that the order of reading does not matter.
func (m member) before(other member) bool {
	a, b := m.volume().Completion, other.volume().Completion
	if !a.Equal(&b) {
		return a.Before(&b)
	}
	if order := strings.Compare(m.entry.storeName, other.entry.storeName); order != 0 {
		return order < 0
	}
	if order := strings.Compare(m.entry.location, other.entry.location); order != 0 {
		return order < 0
	}
	return m.index < other.index
}

func (v *volume) object(name types.NamespacedName) *holdfast.BackupVolume {
	object := &holdfast.BackupVolume{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         name.Namespace,
			Name:              name.Name,
			UID:               format.DerivedUID("volume", name.Namespace, name.Name),
			CreationTimestamp: v.created,
		},
		Status: holdfast.BackupVolumeStatus{
			Backups:          v.completed,
			Failures:         int32(len(v.members)) - v.completed,
			StorageLocations: slices.Clone(v.locations),
		},
	}
	if any := v.members[0].volume(); any.ClaimName != "" {
		object.Spec.ClaimName = any.ClaimName
	} else {
		object.Spec.PodName, object.Spec.PodVolume = any.PodName, any.PodVolume
	}
	if v.last.entry != nil {
		row, last := v.last.entry.row, v.last.volume()
		if v.last.entry.mayName(name.Namespace) {
			object.Status.LastBackup = &holdfast.BackupReference{Namespace: row.Namespace, Name: row.Name}
		}
		object.Status.LastBackupTimestamp = optional(last.Completion)
		object.Status.SizeBytes = last.SizeBytes
	}
	return object
}
