// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebackup

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

const (
	// MaxItems bounds a page, and a list without a limit.
	MaxItems   = 10000
	countBound = 1 << 20 // of a list's remaining items

	// A paged version is kept until keptAge after its last page, within these numbers of versions and copied
	// bytes. Paging ends in any case, so that deleted entries disappear.
	keptAge      = 5 * time.Minute
	keptMost     = 15 * time.Minute
	keptVersions = 64
	keptBytes    = 64 << 20

	// The client's context is checked once in so many rows and volumes.
	rowsPerLook = 1024
)

// Histories are a catalogue's versions.
type Histories interface {
	Snapshot() *catalog.History
	Version() uint64
	Begin(version uint64)
}

// Options configure a Storage. Loading and OnRead are as in logstore.Options.
type Options struct {
	Loading string
	OnRead  func(context.Context)
	Clock   clock.WithDelayedExecution
	// Snapshots are the cluster's records of snapshots; nil if it makes none.
	Snapshots *snapshots.Records
}

// Storage serves up to a million volume backups of a catalogue: it makes objects only for a page. It implements
// get and list, like a logstore.Log:
//
//  1. A resourceVersion grows with every change of the catalogue, in terms as a log's. An object's is the
//     version at which its backup was listed.
//  2. All pages of a list show one version. It is kept for 5 minutes after its last page, at most 15 minutes,
//     and not after something in it was withdrawn. A page of any other version is 410 with a token that
//     continues at the present one. A list of exactly such a version is 410 without a token.
//  3. Before everything was read, guarantee 4 of logstore.Log holds.
//  4. A page costs the rows that it reads; the end of the client's context ends it. A list or page has at
//     most MaxItems. A longer list without a limit is an error.
//  5. status.localSnapshot is of the moment of the answer. Its changes have no version.
type Storage struct {
	storage.Interface // none: no verb needs the rest of it

	rows    Histories
	options Options
	prefix  string
	born    time.Time

	mu          sync.Mutex
	open, ready bool
	first       uint64           // the oldest version that a client may have seen
	kept        map[uint64]*kept // by version
	timed       bool             // forget will be called
}

type kept struct {
	*catalog.History
	since, used time.Time // when it was last the present one, by the last check
}

func (k *kept) expired(now time.Time) bool {
	return now.Sub(k.used) >= keptAge || now.Sub(k.since) >= keptMost
}

// NewStorage returns a Storage that is not open.
func NewStorage(rows Histories, options Options) *Storage {
	s := &Storage{
		rows: rows, options: options, prefix: logstore.Prefix(Resource.GroupResource),
		born: options.Clock.Now(), kept: map[uint64]*kept{},
	}
	rows.Begin(logstore.FirstVersion(s.born))
	return s
}

// Open is like a log's Open.
func (s *Storage) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openLocked()
}

func (s *Storage) openLocked() {
	if !s.open {
		s.open, s.first = true, s.rows.Version()
	}
}

// SetReady is like a log's SetReady.
func (s *Storage) SetReady() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openLocked()
	s.ready = true
}

// Begin is like a log's Begin.
func (s *Storage) Begin(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows.Begin(version)
	s.first = s.rows.Version()
	clear(s.kept)
}

// Version returns the present version.
func (s *Storage) Version() uint64 { return s.rows.Version() }

// Row returns the present row of a volume backup.
func (s *Storage) Row(namespace, name string) (catalog.Row, bool) {
	return s.rows.Snapshot().Find(namespace, name)
}

// Versioner implements storage.Interface.
func (s *Storage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

// ReadinessCheck implements storage.Interface.
func (s *Storage) ReadinessCheck() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		return nil
	}
	return s.tooEarly()
}

func (s *Storage) tooEarly() error {
	return logstore.TooEarly(Resource.GroupResource, s.options.Loading, s.options.Clock.Since(s.born))
}

func (s *Storage) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// Get implements storage.Interface.
func (s *Storage) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	if err := s.ReadinessCheck(); err != nil {
		return err
	}
	ready := s.isReady() // before the present rows are read
	history, err := s.notOlder(opts.ResourceVersion)
	if err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(strings.TrimPrefix(key, s.prefix), "/")
	row, found := history.Find(namespace, name)
	switch {
	case !found && !ready:
		return s.tooEarly() // it may be there
	case !found:
		return storage.NewKeyNotFoundError(key, int64(history.Version))
	}
	s.onRead(ctx)
	*out.(*v1alpha1.VolumeBackup) = *s.object(row)
	return nil
}

func (s *Storage) object(row catalog.Row) *v1alpha1.VolumeBackup {
	made := row.Object()
	made.ResourceVersion = strconv.FormatUint(row.Version(), 10)
	made.Status.LocalSnapshot = s.localSnapshot(row, &made.Status)
	return made
}

// localSnapshot says whether the cluster has the record of a volume's snapshot. A missing one matters only
// without moved data: beside that, older snapshots leave.
func (s *Storage) localSnapshot(row catalog.Row, status *v1alpha1.VolumeBackupStatus) string {
	kept := status.Method == catalog.MethodInStorage
	if s.options.Snapshots == nil || !kept && status.Method != catalog.MethodMoved ||
		status.Phase != v1alpha1.VolumeBackupCompleted && status.Phase != v1alpha1.VolumeBackupDamaged {
		return ""
	}
	own, ok := row.OwnVolume()
	if !ok {
		return ""
	}
	switch found, known := s.options.Snapshots.Has(own.Cluster, own.Backup, own.Namespace, own.Claim, !kept); {
	case found:
		return v1alpha1.LocalSnapshotStored
	case known && kept:
		return v1alpha1.LocalSnapshotMissing
	}
	return ""
}

// GetList implements storage.Interface.
func (s *Storage) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	if err := s.ReadinessCheck(); err != nil {
		return err
	}
	if opts.Recursive && !strings.HasSuffix(key, "/") {
		key += "/"
	}
	// A token contains the namespace: not every page of a list by namespace has the same key.
	exactly, continueKey, err := storage.ValidateListOptions(s.prefix, s.Versioner(), opts)
	if err != nil {
		return err
	}
	history, past, err := s.historyFor(opts, uint64(exactly), continueKey)
	if err != nil {
		return err
	}
	s.onRead(ctx)
	list := listObj.(*v1alpha1.VolumeBackupList)
	namespace, name, _ := strings.Cut(strings.TrimPrefix(key, s.prefix), "/")
	wanted := newMatcher(opts.Predicate.Label, opts.Predicate.Field)
	if !opts.Recursive {
		list.Items = []v1alpha1.VolumeBackup{}
		if row, found := history.Find(namespace, name); found && wanted.volume(row.OfVolume()) && wanted.matches(row) {
			list.Items = append(list.Items, *s.object(row))
		}
		return s.Versioner().UpdateList(list, history.Version, "", nil)
	}
	from, err := parsePosition(strings.TrimPrefix(continueKey, s.prefix), namespace)
	if err != nil {
		return err
	}
	rows, more, err := page(ctx, history, namespace, from, wanted, opts.Predicate.Limit)
	if err != nil {
		return err
	}
	list.Items = make([]v1alpha1.VolumeBackup, len(rows))
	for i, row := range rows {
		list.Items[i] = *s.object(row)
	}
	token, remaining := "", (*int64)(nil)
	if more {
		after := rows[len(rows)-1].After()
		if token, err = storage.EncodeContinue(s.prefix+formatPosition(after), s.prefix, int64(history.Version)); err != nil {
			return err
		}
		if opts.Predicate.Empty() {
			if count := int64(history.Count(namespace, after, countBound)); count < countBound {
				remaining = &count
			}
		}
		if !past {
			s.keep(history)
		}
	}
	return s.Versioner().UpdateList(list, history.Version, token, remaining)
}

func page(ctx context.Context, history *catalog.History, namespace string, from catalog.Position, wanted *matcher, limit int64) (rows []catalog.Row, more bool, err error) {
	most := MaxItems
	if limit > 0 {
		most = int(min(limit, MaxItems))
	}
	looked, ended := 0, false
	look := func() bool {
		looked++
		ended = ended || looked%rowsPerLook == 0 && ctx.Err() != nil
		return ended
	}
	for row := range history.Rows(namespace, from, func(of catalog.VolumeRows) bool { return look() || wanted.volume(of) }) {
		if look() {
			return nil, false, ctx.Err()
		}
		if !wanted.matches(row) {
			continue
		}
		if len(rows) == most {
			if limit <= 0 {
				return nil, false, apierrors.NewBadRequest(fmt.Sprintf("there are more than %d %s: list them with a limit, and go on with the continue token of each page until there is none "+
					"(kubectl does so unless it is told --chunk-size=0), or select some by a namespace, a field selector or a label selector", MaxItems, Resource.GroupResource.Resource))
			}
			return rows, true, nil
		}
		rows = append(rows, row)
	}
	return rows, false, nil
}

// historyFor returns the version for a list, the present one or exactly's unless zero, and whether it is past.
func (s *Storage) historyFor(opts storage.ListOptions, exactly uint64, continueKey string) (history *catalog.History, past bool, err error) {
	s.mu.Lock()
	ready, first := s.ready, s.first
	s.mu.Unlock()
	now := s.rows.Snapshot()
	if exactly == 0 || exactly == now.Version {
		if continueKey != "" {
			return now, false, nil
		}
		if atLeast, err := s.version(opts.ResourceVersion); err == nil && opts.ResourceVersion != "" && atLeast < first && !ready {
			return nil, false, s.tooEarly() // such a client may know more than is loaded
		}
		history, err = s.notOlder(opts.ResourceVersion)
		return history, false, err
	}
	if history := s.of(exactly, now.Withdrawn); history != nil {
		return history, true, nil
	}
	switch {
	case continueKey != "":
		return nil, false, logstore.ExpiredContinue(continueKey, s.prefix)
	case exactly > now.Version:
		return nil, false, storage.NewTooLargeResourceVersionError(exactly, now.Version, 0)
	}
	return nil, false, apierrors.NewResourceExpired(fmt.Sprintf(
		"The resourceVersion for the provided list is too old. Version %d is not remembered; list without a resourceVersion.", exactly))
}

// notOlder returns the present version, if it is not older than version.
func (s *Storage) notOlder(version string) (*catalog.History, error) {
	atLeast, err := s.version(version)
	if err != nil {
		return nil, err
	}
	history := s.rows.Snapshot()
	if atLeast > history.Version {
		return nil, storage.NewTooLargeResourceVersionError(atLeast, history.Version, 0)
	}
	return history, nil
}

func (s *Storage) version(text string) (uint64, error) {
	version, err := s.Versioner().ParseResourceVersion(text)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resourceVersion %q: use one that a get or list returned", text))
	}
	return version, nil
}

func (s *Storage) onRead(ctx context.Context) {
	if s.options.OnRead != nil {
		s.options.OnRead(ctx)
	}
}

func (s *Storage) keep(history *catalog.History) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Clock.Now()
	if history.Version < s.first {
		return // a term has begun meanwhile
	}
	s.kept[history.Version] = &kept{history, now, now}
	s.forgetLocked(now, history.Copied)
	s.timeLocked()
}

func (s *Storage) timeLocked() {
	if len(s.kept) > 0 && !s.timed {
		s.timed = true
		s.options.Clock.AfterFunc(keptAge, s.forget)
	}
}

// of returns a kept version, or nil. withdrawn is the present count.
func (s *Storage) of(version, withdrawn uint64) *catalog.History {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, now := s.kept[version], s.options.Clock.Now()
	if k == nil || k.expired(now) || k.Withdrawn != withdrawn {
		return nil
	}
	k.used = now
	return k.History
}

func (s *Storage) forget() {
	copied := s.rows.Snapshot().Copied
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timed = false
	s.forgetLocked(s.options.Clock.Now(), copied)
	s.timeLocked()
}

func (s *Storage) forgetLocked(now time.Time, copied uint64) {
	for {
		var oldest *kept
		for _, k := range s.kept {
			if oldest == nil || k.Version < oldest.Version {
				oldest = k
			}
			if k.expired(now) {
				delete(s.kept, k.Version)
			}
		}
		if oldest == nil || len(s.kept) <= keptVersions && copied-min(copied, oldest.Copied) <= keptBytes {
			return
		}
		delete(s.kept, oldest.Version)
	}
}

// A position in a continue token is namespace/volume/time.skip, which has to be a clean path.
func formatPosition(p catalog.Position) string {
	return fmt.Sprintf("%s/%s/%d.%d", p.Namespace, p.Volume, p.At, p.Skip)
}

func parsePosition(text, namespace string) (p catalog.Position, err error) {
	if text == "" {
		return p, nil
	}
	parts := strings.Split(text, "/")
	if len(parts) == 3 {
		p.Namespace, p.Volume = parts[0], parts[1]
		_, err = fmt.Sscanf(parts[2], "%d.%d", &p.At, &p.Skip)
	}
	if len(parts) != 3 || err != nil || namespace != "" && p.Namespace != namespace {
		return p, apierrors.NewBadRequest("invalid continue token: use one that a page of this list has returned")
	}
	return p, nil
}

// matcher selects rows, without making objects of them.
type matcher struct {
	// Requirements on the volume, on the row and, with labels, on the equal part of similar rows.
	ofVolume      []requirement[catalog.VolumeRows]
	ofRow         []requirement[catalog.Row]
	ofAlike       []requirement[catalog.Likeness]
	labels        labels.Selector
	unknown       bool                     // an unknown field is required: nothing matches
	phase         string                   // the wanted one, or empty
	volumes       func(volume string) bool // of a row with the wanted name; nil is any
	latest        catalog.Likeness         // the last checked part of similar rows
	latestMatches bool
}

type requirement[T any] struct {
	get     func(T) string
	value   string
	differs bool
}

func add[T any](to *[]requirement[T], of map[string]func(T) string, r fields.Requirement) bool {
	get := of[r.Field]
	if get != nil {
		*to = append(*to, requirement[T]{get, r.Value, r.Operator == selection.NotEquals})
	}
	return get != nil
}

var rowFields = map[string]func(catalog.Row) string{
	"metadata.name":         catalog.Row.Name,
	"spec.backup.name":      func(r catalog.Row) string { return r.Backup().Name },
	"spec.backup.namespace": func(r catalog.Row) string { return r.Backup().Namespace },
	"spec.backupName":       catalog.Row.BackupName,
	"spec.backupUID":        catalog.Row.BackupUID,
	"spec.storageLocation":  catalog.Row.StorageLocation,
	"status.phase":          catalog.Row.Phase,
}

var alikeFields = map[string]func(catalog.Likeness) string{
	"spec.podName":  catalog.Likeness.PodName,
	"status.node":   catalog.Likeness.Node,
	"status.method": catalog.Likeness.Method,
}

var volumeFields = map[string]func(catalog.VolumeRows) string{
	"metadata.namespace": catalog.VolumeRows.Namespace,
	"spec.volumeName":    catalog.VolumeRows.Name,
}

func newMatcher(label labels.Selector, field fields.Selector) *matcher {
	m := &matcher{}
	if label != nil && !label.Empty() {
		m.labels = label
	}
	if field == nil {
		return m
	}
	for _, r := range field.Requirements() {
		if r.Operator != selection.NotEquals {
			switch r.Field {
			case "metadata.name":
				of := catalog.VolumesOf(r.Value)
				m.volumes = func(volume string) bool { return slices.Contains(of, volume) }
			case "status.phase":
				m.phase = r.Value
			}
		}
		if !add(&m.ofVolume, volumeFields, r) && !add(&m.ofAlike, alikeFields, r) && !add(&m.ofRow, rowFields, r) {
			m.unknown = true
		}
	}
	return m
}

// volume reports whether a volume may have matching rows. It decides most narrow selections without reading rows.
func (m *matcher) volume(of catalog.VolumeRows) bool {
	return !m.unknown && meet(m.ofVolume, of) && (m.volumes == nil || m.volumes(of.Name())) &&
		(m.phase == "" || of.HasPhase(m.phase)) && (!m.looksAlike() || of.MayBeAlike(m.alike))
}

func (m *matcher) matches(row catalog.Row) bool {
	return (!m.looksAlike() || m.alike(row.Likeness())) && meet(m.ofRow, row)
}

func (m *matcher) looksAlike() bool { return len(m.ofAlike) > 0 || m.labels != nil }

func (m *matcher) alike(of catalog.Likeness) bool {
	if of != m.latest { // as mostly in a volume's rows
		m.latest, m.latestMatches = of, meet(m.ofAlike, of) && (m.labels == nil || m.labels.Matches(labels.Set(of.Labels())))
	}
	return m.latestMatches
}

func meet[T any](all []requirement[T], of T) bool {
	for i := range all {
		if r := &all[i]; (r.get(of) == r.value) == r.differs {
			return false
		}
	}
	return true
}
