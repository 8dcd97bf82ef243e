// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"encoding/hex"
	"math"
	"slices"
	"sync"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

type row struct {
	shape unique.Handle[shape]
	odd   *oddity
	// snapshot is the id if it has 32 hexadecimal digits; else the oddity has it.
	snapshot          [16]byte
	size, incremental int64
	// started and ended are Unix seconds; zero if unknown, or in the oddity.
	started, ended uint32
	repeat         uint32
	state          uint8
	// displaced rows are listed in the system namespace.
	displaced bool
}

type shape struct {
	namespace, namespaceUID, claimName, podName, podVolume, node, volumeName, method, message string
	labels                                                                                    Labels
	volumeSize                                                                                int64
	volumeCreated                                                                             time.Time
}

// oddity has values that our completed volume backups lack.
type oddity struct {
	backupName, snapshotName, snapshotID, state string
	bytesDone                                   int64
	created, snapshotCreated, started, ended    time.Time
	size, incremental                           int64
	repeat                                      uint32
}

// packedRows are an entry's immutable rows, or nil. There may be a million: so cells have no pointers,
// which the garbage collector would scan.
type packedRows struct {
	cells []cell
	// shapes has one for each row, or for all. Lists of the same volumes share them.
	shapes []unique.Handle[shape]
	odd    []oddRow
}

type cell struct {
	snapshot          [16]byte
	size, incremental size
	started, ended    uint32
	state             uint8
	displaced         bool
}

const cellBytes = 40

// size is a number below 2^48, without an int64's alignment.
type size [3]uint16

type oddRow struct {
	index uint32
	oddity
}

func packSize(n int64) (s size, ok bool) {
	if n < 0 || n >= 1<<48 {
		return size{}, false
	}
	return size{uint16(n), uint16(n >> 16), uint16(n >> 32)}, true
}

func (s size) bytes() int64 { return int64(s[0]) | int64(s[1])<<16 | int64(s[2])<<32 }

func pack(rows []row) *packedRows {
	packed := &packedRows{cells: make([]cell, len(rows)), shapes: sharedShapes(rows)}
	for i := range rows {
		r, to := &rows[i], &packed.cells[i]
		*to = cell{snapshot: r.snapshot, started: r.started, ended: r.ended, state: r.state, displaced: r.displaced}
		var odd oddity
		if r.odd != nil {
			odd = *r.odd
		}
		odd.size, odd.incremental, odd.repeat = 0, 0, r.repeat
		var ok bool
		if to.size, ok = packSize(r.size); !ok {
			odd.size = r.size
		}
		if to.incremental, ok = packSize(r.incremental); !ok {
			odd.incremental = r.incremental
		}
		if odd != (oddity{}) {
			packed.odd = append(packed.odd, oddRow{uint32(i), odd})
		}
	}
	packed.odd = slices.Clip(packed.odd)
	return packed
}

func (p *packedRows) len() int {
	if p == nil {
		return 0
	}
	return len(p.cells)
}

func (p *packedRows) shape(i int) unique.Handle[shape] { return p.shapes[min(i, len(p.shapes)-1)] }

func (p *packedRows) at(i int) row {
	of := &p.cells[i]
	r := row{
		shape: p.shape(i), snapshot: of.snapshot, size: of.size.bytes(), incremental: of.incremental.bytes(),
		started: of.started, ended: of.ended, state: of.state, displaced: of.displaced,
	}
	if r.odd = p.oddity(i); r.odd != nil {
		r.size, r.incremental, r.repeat = r.size+r.odd.size, r.incremental+r.odd.incremental, r.odd.repeat
	}
	return r
}

func (p *packedRows) oddity(i int) *oddity {
	switch len(p.odd) {
	case 0:
		return nil
	case len(p.cells):
		return &p.odd[i].oddity
	}
	at, found := slices.BinarySearchFunc(p.odd, uint32(i), func(odd oddRow, i uint32) int { return cmp.Compare(odd.index, i) })
	if !found {
		return nil
	}
	return &p.odd[at].oddity
}

func (p *packedRows) unpack() []row {
	rows := make([]row, p.len())
	for i := range rows {
		rows[i] = p.at(i)
	}
	return rows
}

func (p *packedRows) displace(isDisplaced func(i int) bool) *packedRows {
	displaced := p
	for i := range p.len() {
		is := isDisplaced(i)
		if is == displaced.cells[i].displaced {
			continue
		}
		if displaced == p {
			changed := *p
			changed.cells = slices.Clone(p.cells)
			displaced = &changed
		}
		displaced.cells[i].displaced = is
	}
	return displaced
}

func (p *packedRows) equal(other *packedRows) bool {
	if p == other || p.len()+other.len() == 0 {
		return true
	}
	return p.len() == other.len() && slices.Equal(p.cells, other.cells) && slices.Equal(p.shapes, other.shapes) && slices.Equal(p.odd, other.odd)
}

// knownShapes interns lists of shapes, by their first: a schedule's backups mostly have the same
// volumes.
var knownShapes struct {
	mu    sync.Mutex
	lists map[unique.Handle[shape]][]unique.Handle[shape]
	kept  int // shapes in all lists; guarded by mu
}

// maxKnownShapes needs some 300 bytes each.
const maxKnownShapes = 64 << 10

// sharedShapes returns the rows' shapes, or one for all, if possible from knownShapes.
func sharedShapes(rows []row) []unique.Handle[shape] {
	if len(rows) == 0 {
		return nil
	}
	first, distinct := rows[0].shape, len(rows)
	if !slices.ContainsFunc(rows, func(r row) bool { return r.shape != first }) {
		distinct = 1
	}
	knownShapes.mu.Lock()
	defer knownShapes.mu.Unlock()
	known := knownShapes.lists[first]
	if len(known) == distinct && sameShapes(known, rows) {
		return known
	}
	shapes := make([]unique.Handle[shape], distinct)
	for i := range shapes {
		shapes[i] = rows[i].shape
	}
	if knownShapes.kept += distinct - len(known); knownShapes.lists == nil || knownShapes.kept > maxKnownShapes {
		knownShapes.lists, knownShapes.kept = map[unique.Handle[shape]][]unique.Handle[shape]{}, distinct
	}
	knownShapes.lists[first] = shapes
	return shapes
}

func sameShapes(shapes []unique.Handle[shape], rows []row) bool {
	for i := range shapes {
		if shapes[i] != rows[i].shape {
			return false
		}
	}
	return true
}

var states = []string{v1alpha1.VolumeBackupCompleted, v1alpha1.VolumeBackupFailed, v1alpha1.VolumeBackupInProgress, v1alpha1.VolumeBackupUnreadable, v1alpha1.VolumeBackupDamaged}

const (
	stateCompleted = 0
	stateDamaged   = 4
	stateOdd       = math.MaxUint8
)

// newRow packs a volume backup. like may be nil, or have the same shape.
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

func (r row) volume() Volume {
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

func (r row) stateName() string {
	switch {
	case r.state != stateOdd:
		return states[r.state]
	case r.odd == nil: // it has none
		return ""
	}
	return r.odd.state
}

func (r row) bytesDone() int64 {
	if r.odd == nil {
		return r.size
	}
	return r.size + r.odd.bytesDone
}

func (r row) backupName() string {
	if r.odd == nil {
		return ""
	}
	return r.odd.backupName
}

// at returns the end, or else the start, or zero, in Unix seconds.
func (r row) at() uint32 {
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

func packID(s string) (id [16]byte, ok bool) {
	if s == "" {
		return id, true
	}
	if len(s) != 2*len(id) {
		return id, false
	}
	for i := range len(s) {
		if c := s[i]; c >= 'A' && c <= 'F' { // unpacking would change it
			return [16]byte{}, false
		}
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil || id == ([16]byte{}) {
		return [16]byte{}, false
	}
	return id, true
}

func plain(t metav1.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0)
}

// packTime returns seconds, or an instant with a fraction unpacked.
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

// Rows are packed, immutable volume backups.
type Rows struct{ rows *packedRows }

// Len returns the number.
func (r Rows) Len() int { return r.rows.len() }

// Volumes returns a copy, as packed.
func (r Rows) Volumes() []Volume { return r.rows.volumes() }

// Packer packs the volumes of entries, fastest after the same volumes. It is not safe for concurrent
// use.
type Packer struct{ before []row }

// Pack packs an entry's rows, and numbers repetitions of a volume.
func (p *Packer) Pack(volumes []Volume) Rows {
	rows := make([]row, len(volumes))
	alike := len(p.before) == len(rows)
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
	return Rows{pack(rows)}
}

func (p *packedRows) volumes() []Volume {
	volumes := make([]Volume, p.len())
	for i := range volumes {
		volumes[i] = p.at(i).volume()
	}
	return volumes
}
