// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"encoding/hex"
	"math"
	"slices"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// row is a volume backup at rest. There may be a million, so it has what differs in each
// of them; what does not is in a shape, and what most lack is in an oddity.
type row struct {
	shape unique.Handle[shape]
	odd   *oddity
	// snapshot is the id of its snapshot, if that is 32 hexadecimal digits; else none, or
	// the oddity has it.
	snapshot          [16]byte
	size, incremental int64
	// started and ended are in seconds since 1970; zero if unknown, or in the oddity.
	started, ended uint32
	// repeat counts those of the same volume before it in the entry.
	repeat uint32
	// state is an index of states.
	state uint8
	// displaced is true if it is not listed in its namespace, but in the system one.
	displaced bool
}

// shape is what many volume backups share. Equal ones share their memory.
type shape struct {
	namespace, namespaceUID, claimName, podName, podVolume, node, volumeName, method, message string
	labels                                                                                    Labels
	volumeSize                                                                                int64
	volumeCreated                                                                             time.Time
}

// oddity is what our own completed volume backups lack.
type oddity struct {
	backupName, snapshotName, snapshotID, state string
	bytesDone                                   int64 // what differs from the size
	created, snapshotCreated, started, ended    time.Time
}

var states = []string{holdfast.VolumeBackupCompleted, holdfast.VolumeBackupFailed, holdfast.VolumeBackupInProgress, holdfast.VolumeBackupUnreadable}

const (
	stateCompleted = 0
	stateOdd       = math.MaxUint8
)

// newRow packs a volume backup. Like may be a row of the same shape, or nil.
func newRow(v *Volume, like *row) row {
	r := row{size: v.SizeBytes, incremental: v.IncrementalBytes, state: stateOdd}
	of := shape{
		namespace: v.Namespace, namespaceUID: v.NamespaceUID, claimName: v.ClaimName, podName: v.PodName, podVolume: v.PodVolume,
		node: v.Node, volumeName: v.VolumeName, method: v.Method, message: v.Message, labels: v.Labels, volumeSize: v.VolumeSize, volumeCreated: plain(v.VolumeCreated),
	}
	if like != nil && like.shape.Value() == of {
		r.shape = like.shape
	} else {
		r.shape = unique.Make(of)
	}
	odd := oddity{
		backupName: v.BackupName, snapshotName: v.SnapshotName, bytesDone: v.BytesDone - v.SizeBytes,
		created: plain(v.Created), snapshotCreated: plain(v.SnapshotCreated),
	}
	if i := slices.Index(states, v.State); i >= 0 {
		r.state = uint8(i)
	} else {
		odd.state = v.State
	}
	if id, ok := packID(v.SnapshotID); ok {
		r.snapshot = id
	} else {
		odd.snapshotID = v.SnapshotID
	}
	r.started, odd.started = packTime(v.Start)
	r.ended, odd.ended = packTime(v.Completion)
	if odd != (oddity{}) {
		r.odd = &odd
	}
	return r
}

// volume is the volume backup that was packed. It shares its strings.
func (r *row) volume() Volume {
	s := r.shape.Value()
	v := Volume{
		Namespace: s.namespace, NamespaceUID: s.namespaceUID, ClaimName: s.claimName, PodName: s.podName, PodVolume: s.podVolume,
		Node: s.node, VolumeName: s.volumeName, Method: s.method, Message: s.message, Labels: s.labels, VolumeSize: s.volumeSize, VolumeCreated: metav1.NewTime(s.volumeCreated),
		SizeBytes: r.size, BytesDone: r.size, IncrementalBytes: r.incremental,
		Start: unpackTime(r.started), Completion: unpackTime(r.ended),
		State: r.stateName(),
	}
	if r.snapshot != ([16]byte{}) {
		v.SnapshotID = hex.EncodeToString(r.snapshot[:])
	}
	if odd := r.odd; odd != nil {
		v.BackupName, v.SnapshotName = odd.backupName, odd.snapshotName
		v.BytesDone += odd.bytesDone
		v.Created, v.SnapshotCreated = metav1.NewTime(odd.created), metav1.NewTime(odd.snapshotCreated)
		if odd.snapshotID != "" {
			v.SnapshotID = odd.snapshotID
		}
		if !odd.started.IsZero() {
			v.Start = metav1.NewTime(odd.started)
		}
		if !odd.ended.IsZero() {
			v.Completion = metav1.NewTime(odd.ended)
		}
	}
	return v
}

func (r *row) stateName() string {
	if r.state == stateOdd {
		return r.odd.state
	}
	return states[r.state]
}

func (r *row) bytesDone() int64 {
	if r.odd == nil {
		return r.size
	}
	return r.size + r.odd.bytesDone
}

func (r *row) backupName() string {
	if r.odd == nil {
		return ""
	}
	return r.odd.backupName
}

// at is when it ended, or began if that is not known, in seconds since 1970; zero if
// neither is.
func (r *row) at() uint32 {
	for _, seconds := range []uint32{r.ended, r.started} {
		if seconds != 0 {
			return seconds
		}
	}
	if r.odd == nil {
		return 0
	}
	for _, t := range []time.Time{r.odd.ended, r.odd.started, r.odd.created} {
		if !t.IsZero() {
			return clamp(t)
		}
	}
	return 0
}

func (r *row) equal(other *row) bool {
	a, b := *r, *other
	if (a.odd == nil) != (b.odd == nil) || a.odd != nil && *a.odd != *b.odd {
		return false
	}
	a.odd, b.odd = nil, nil
	return a == b
}

func equalRows(a, b []row) bool {
	return slices.EqualFunc(a, b, func(x, y row) bool { return x.equal(&y) })
}

func packID(s string) (id [16]byte, ok bool) {
	if s == "" {
		return id, true
	}
	if len(s) != 2*len(id) {
		return id, false
	}
	for i := range len(s) {
		if c := s[i]; c >= 'A' && c <= 'F' { // it would be another string when it is unpacked
			return [16]byte{}, false
		}
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil || id == ([16]byte{}) {
		return [16]byte{}, false
	}
	return id, true
}

// plain is an instant that equals itself, however it was read.
func plain(t metav1.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0)
}

// packTime gives an instant in seconds, or else as it is.
func packTime(t metav1.Time) (uint32, time.Time) {
	if seconds := clamp(t.Time); seconds != 0 && t.Equal(new(unpackTime(seconds))) {
		return seconds, time.Time{}
	}
	return 0, plain(t)
}

func unpackTime(seconds uint32) metav1.Time {
	if seconds == 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(time.Unix(int64(seconds), 0).UTC())
}

func clamp(t time.Time) uint32 { return uint32(min(max(t.Unix(), 0), math.MaxUint32)) }

// Rows are volume backups at rest. They never change.
type Rows struct{ rows []row }

// Len is how many there are.
func (r Rows) Len() int { return len(r.rows) }

// Volumes are a copy of them as they were packed.
func (r Rows) Volumes() []Volume { return unpacked(r.rows) }

// Packer packs the volumes of entries. What follows another entry of the same volumes costs
// least. It is not safe for concurrent use.
type Packer struct{ before []row }

// Pack makes the rows of an entry, and tells apart what it holds twice of one volume.
func (p *Packer) Pack(volumes []Volume) Rows {
	rows := make([]row, len(volumes))
	alike := len(p.before) == len(rows) // whether they name the same volumes, in this order
	for i := range volumes {
		var like *row
		if i < len(p.before) {
			like = &p.before[i]
		}
		rows[i] = newRow(&volumes[i], like)
		alike = alike && rows[i].shape == like.shape && rows[i].backupName() == "" && like.backupName() == ""
	}
	if alike {
		for i := range rows {
			rows[i].repeat = p.before[i].repeat
		}
	} else {
		type name struct{ namespace, volume, backup string }
		seen := make(map[name]uint32, len(volumes))
		for i := range volumes {
			v := &volumes[i]
			of := name{v.Namespace, v.bareName(), v.BackupName}
			rows[i].repeat = seen[of]
			seen[of]++
		}
	}
	p.before = rows
	return Rows{rows}
}

func unpacked(rows []row) []Volume {
	volumes := make([]Volume, len(rows))
	for i := range rows {
		volumes[i] = rows[i].volume()
	}
	return volumes
}
