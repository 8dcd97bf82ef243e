// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// History is all volume backups at one version, ordered by namespace, volume and time. It is immutable,
// and free to take: later changes copy.
type History struct {
	Version uint64
	// Copied totals the bytes copied for Histories. Differences estimate their memory.
	Copied uint64
	// Withdrawn changes when a row leaves a namespace that an older History still lists: the namespace
	// was recreated, or the signer lost trust.
	Withdrawn uint64
	floor     uint64
	tree      *btree.BTree[*volume]
}

// Snapshot returns all present volume backups.
func (c *Catalog) Snapshot() *History {
	c.mu.RLock()
	taken := c.taken
	c.mu.RUnlock()
	if taken != nil {
		return taken
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == nil {
		c.epoch++
		c.taken = &History{Version: c.version, Copied: c.copied, Withdrawn: c.withdrawn, floor: c.floor, tree: c.volumes.Clone()}
	}
	return c.taken
}

// Version returns the present History's version.
func (c *Catalog) Version() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.version
}

// Begin raises the version of later Histories and objects to at least version.
func (c *Catalog) Begin(version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = max(c.version+1, version)
	c.floor = c.version
	c.taken = nil
}

// Position is a place between rows. It reveals nothing of other namespaces.
type Position struct {
	Namespace, Volume string
	// At is the earlier row's time; Skip counts earlier rows of that time.
	At   uint32
	Skip int
}

// Row is one volume backup of a History.
type Row struct {
	volume *volume
	index  int
	floor  uint64
	named  bool
}

// VolumeRows are a volume's rows.
type VolumeRows struct{ volume *volume }

// Namespace returns the listing namespace.
func (v VolumeRows) Namespace() string { return v.volume.name.Namespace }

// Name returns the BackupVolume's name.
func (v VolumeRows) Name() string { return v.volume.name.Name }

// HasPhase reports whether a row may have a phase.
func (v VolumeRows) HasPhase(phase string) bool {
	i := slices.Index(states, phase)
	return v.volume.states>>oddState&1 == 1 || i >= 0 && v.volume.states>>i&1 == 1
}

// MayBeAlike reports whether a row may have a wanted Likeness.
func (v VolumeRows) MayBeAlike(wanted func(Likeness) bool) bool {
	return v.volume.varied || slices.ContainsFunc(v.volume.shapes, func(s unique.Handle[shape]) bool { return wanted(Likeness{s}) })
}

// Likeness is the common part of many rows. It is comparable.
type Likeness struct{ shape unique.Handle[shape] }

// PodName returns the pod that gave access.
func (l Likeness) PodName() string { return l.shape.Value().podName }

// Node returns the node that read the data.
func (l Likeness) Node() string { return l.shape.Value().node }

// Method returns how the data was stored.
func (l Likeness) Method() string { return l.shape.Value().method }

// Labels returns the objects' labels.
func (l Likeness) Labels() map[string]string { return valid(l.shape.Value().labels.Map()) }

// Rows yields, from a position, wanted volumes' rows of a namespace, or of all if empty, with all
// names.
func (h *History) Rows(namespace string, from Position, wanted func(VolumeRows) bool) iter.Seq[Row] {
	return func(yield func(Row) bool) {
		if from.Namespace == "" {
			from.Namespace = namespace
		}
		h.tree.AscendGreaterOrEqual(&volume{name: types.NamespacedName{Namespace: from.Namespace, Name: from.Volume}}, func(v *volume) bool {
			if namespace != "" && v.name.Namespace != namespace {
				return false
			}
			if !wanted(VolumeRows{v}) {
				return true
			}
			for i := v.first(from); i < len(v.members); i++ {
				if !yield(Row{v, i, h.floor, namespace == ""}) {
					return false
				}
			}
			return true
		})
	}
}

// Count counts rows from a position, up to bound, of a namespace, or of all if empty.
func (h *History) Count(namespace string, from Position, bound int) int {
	if from.Namespace == "" {
		from.Namespace = namespace
	}
	count := 0
	h.tree.AscendGreaterOrEqual(&volume{name: types.NamespacedName{Namespace: from.Namespace, Name: from.Volume}}, func(v *volume) bool {
		if namespace != "" && v.name.Namespace != namespace {
			return false
		}
		count += len(v.members) - v.first(from)
		return count < bound
	})
	return min(count, bound)
}

// VolumesOf returns the possible volumes of a row's name.
func VolumesOf(name string) []string {
	_, of, _ := strings.Cut(name, ":") // backups' names have no colon
	candidates := []string{of}
	if i := strings.LastIndex(of, ":"); i >= 0 {
		candidates = append(candidates, of[:i])
	}
	return candidates
}

// Find returns the row of a name.
func (h *History) Find(namespace, name string) (Row, bool) {
	for _, candidate := range VolumesOf(name) {
		v, ok := h.tree.Get(&volume{name: types.NamespacedName{Namespace: namespace, Name: candidate}})
		if !ok {
			continue
		}
		for i := range v.members {
			if r := (Row{v, i, h.floor, false}); r.Name() == name {
				return r, true
			}
		}
	}
	return Row{}, false
}

func (v *volume) first(from Position) int {
	if v.name.Namespace != from.Namespace || v.name.Name != from.Volume {
		return 0
	}
	at, _ := slices.BinarySearchFunc(v.members, from.At, func(m member, at uint32) int { return cmp.Compare(m.at, at) })
	for skipped := 0; skipped < from.Skip && at < len(v.members) && v.members[at].at == from.At; skipped++ {
		at++
	}
	return at
}

func (r Row) member() *member { return &r.volume.members[r.index] }
func (r Row) held() *held     { return r.member().held }
func (r Row) row() row        { return r.member().row() }

// After returns the position behind the row.
func (r Row) After() Position {
	p := Position{Namespace: r.Namespace(), Volume: r.VolumeName(), At: r.member().at, Skip: 1}
	for i := r.index - 1; i >= 0 && r.volume.members[i].at == p.At; i-- {
		p.Skip++
	}
	return p
}

// Namespace returns the listing namespace.
func (r Row) Namespace() string { return r.volume.name.Namespace }

// VolumeName returns the BackupVolume's name.
func (r Row) VolumeName() string { return r.volume.name.Name }

// Name returns the object's name.
func (r Row) Name() string { return r.held().objectName(r.row(), r.volume.name) }

// Backup returns the backup's name, if it may be named there.
func (r Row) Backup() v1alpha1.BackupReference { return r.held().reference(r.Namespace(), r.named) }

// BackupUID returns the backup's uid; empty for a bare entry.
func (r Row) BackupUID() string {
	if row := r.held().row; row != nil {
		return string(row.UID)
	}
	return ""
}

// BackupName returns the own name in a bare entry.
func (r Row) BackupName() string { return r.row().backupName() }

// StorageLocation returns the location's name.
func (r Row) StorageLocation() string { return r.held().location }

// Phase returns the state.
func (r Row) Phase() string { return r.row().stateName() }

// Likeness returns the common part.
func (r Row) Likeness() Likeness { return Likeness{r.held().rows.shape(int(r.member().index))} }

// OfVolume returns all rows of its volume.
func (r Row) OfVolume() VolumeRows { return VolumeRows{r.volume} }

// Version returns the version since which it is listed.
func (r Row) Version() uint64 { return max(r.held().version, r.floor) }

// InBackup identifies the stored backup and its volume.
func (r Row) InBackup() VolumeInBackup {
	h := r.held()
	of := BackupID{Location: h.location, StoreName: h.storeName}
	if h.backup != nil {
		of.UID = h.backup.UID
	}
	return VolumeInBackup{Backup: of, Volume: r.row().id(), BackupName: r.row().backupName()}
}

// OwnVolume is a claim's volume in a backup of this cluster.
type OwnVolume struct {
	Cluster          string
	Backup           types.UID
	Namespace, Claim string
}

// OwnVolume returns false for backups that this cluster has not signed, and for volumes without a claim.
func (r Row) OwnVolume() (v OwnVolume, ok bool) { return r.member().ownVolume() }

func (m member) ownVolume() (v OwnVolume, ok bool) {
	backup, of := m.held.backup, m.row().shape.Value()
	if backup == nil || backup.Status.Origin == nil || backup.Status.Origin.Trust != v1alpha1.BackupTrustOwn || of.claimName == "" {
		return OwnVolume{}, false
	}
	return OwnVolume{Cluster: backup.Status.Origin.ClusterUID, Backup: backup.UID, Namespace: of.namespace, Claim: of.claimName}, true
}

// Object returns the VolumeBackup.
func (r Row) Object() *v1alpha1.VolumeBackup {
	return r.held().volumeBackup(r.row(), r.volume.name, r.named)
}

type volume struct {
	name types.NamespacedName
	// members are in order; a History has them, too, if shared.
	members []member
	shared  bool
	// epoch is the catalogue's at creation. A later catalogue's means that a History has this volume.
	epoch uint64
	// loose is the first unsorted member's index during a change, or zero.
	loose int

	// Computed from members; stale after a removal, until recount.
	stale     bool
	locations []string
	completed int32
	stored    int64
	last      member // the latest completed one; held may be nil
	created   metav1.Time
	states    uint8
	// shapes are distinct; varied replaces more than maxShapes.
	shapes []unique.Handle[shape]
	varied bool
}

const (
	oddState = 7
	// maxShapes bounds shapes: more would cost as much as the rows.
	maxShapes = 16
)

const memberBytes = 16

type member struct {
	held  *held
	index uint32
	at    uint32
}

func newMember(h *held, i int) member {
	r := h.rows.at(i)
	at := r.at()
	if at == 0 {
		at = clamp(h.created(r).Time)
	}
	return member{h, uint32(i), at}
}

func (m member) row() row { return m.held.rows.at(int(m.index)) }

// compareMembers makes the order of reads irrelevant.
func compareMembers(a, b member) int {
	if order := cmp.Compare(a.at, b.at); order != 0 {
		return order
	}
	return cmp.Or(strings.Compare(a.held.storeName, b.held.storeName), strings.Compare(a.held.location, b.held.location), cmp.Compare(a.index, b.index))
}

func (c *Catalog) volumeLocked(name types.NamespacedName) *volume {
	c.sought.name = name
	v, ok := c.volumes.Get(&c.sought)
	switch {
	case !ok:
		v = &volume{name: name, epoch: c.epoch}
	case v.epoch == c.epoch:
		return v
	default:
		changed := *v
		changed.epoch, changed.shared = c.epoch, true
		changed.locations = slices.Clone(v.locations)
		v = &changed
	}
	c.volumes.ReplaceOrInsert(v)
	return v
}

func (c *Catalog) addLocked(v *volume, m member) {
	if last := len(v.members) - 1; last >= 0 && v.loose == 0 && compareMembers(v.members[last], m) > 0 {
		v.loose = len(v.members)
	}
	v.members = append(v.members, m)
	if !v.stale { // else last may be removed
		v.count(m)
	}
}

func (c *Catalog) settleLocked(v *volume) {
	if v.loose == 0 {
		return
	}
	c.ownLocked(v)
	added := slices.Clone(v.members[v.loose:])
	slices.SortFunc(added, compareMembers)
	to, left := len(v.members), v.loose // merged after to; left of the others remain before
	for _, m := range slices.Backward(added) {
		if left > 0 && compareMembers(v.members[left-1], m) > 0 {
			at, _ := slices.BinarySearchFunc(v.members[:left], m, compareMembers)
			to -= copy(v.members[to-(left-at):to], v.members[at:left])
			left = at
		}
		to--
		v.members[to] = m
	}
	v.loose = 0
}

func (c *Catalog) removeLocked(m member, name types.NamespacedName) {
	v := c.volumeLocked(name)
	c.settleLocked(v)
	c.ownLocked(v)
	if at, found := slices.BinarySearchFunc(v.members, m, compareMembers); found {
		v.members = slices.Delete(v.members, at, at+1)
	}
	v.stale = true
	if len(v.members) == 0 {
		c.volumes.Delete(v)
	}
}

func (c *Catalog) ownLocked(v *volume) {
	if v.shared {
		v.members, v.shared = slices.Clone(v.members), false
		c.copied += uint64(len(v.members)) * memberBytes
	}
}

func (v *volume) recount() {
	if !v.stale {
		return
	}
	*v = volume{name: v.name, members: v.members, shared: v.shared, epoch: v.epoch}
	for _, m := range v.members {
		v.count(m)
	}
}

func (v *volume) count(m member) {
	if i, found := slices.BinarySearch(v.locations, m.held.location); !found {
		v.locations = slices.Insert(v.locations, i, m.held.location)
	}
	r := m.row()
	if created := m.held.created(r); v.created.IsZero() || !created.IsZero() && created.Before(&v.created) {
		v.created = created
	}
	v.states |= 1 << min(r.state, oddState)
	if !v.varied && !slices.Contains(v.shapes, r.shape) {
		if v.varied = len(v.shapes) == maxShapes; v.varied {
			v.shapes = nil
		} else { // the array may be shared
			v.shapes = append(slices.Clip(v.shapes), r.shape)
		}
	}
	if r.state != stateCompleted {
		return
	}
	v.completed++
	v.stored += r.incremental
	if v.last.held == nil || compareMembers(v.last, m) < 0 {
		v.last = m
	}
}
