// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

// Publisher fills a log with the schedules, with the fields that follow from their backups.
type Publisher struct {
	Log    *logstore.Log[object]
	clock  clock.PassiveClock
	synced cache.InformerSynced

	// mu is held from a change of the fields below to its commit.
	mu      sync.Mutex
	changed func(types.NamespacedName) // called for each schedule that changes, or whose backups do; optional
	entries *recorded.Set[types.NamespacedName, *enginev1alpha1.ScheduleEntry]
	// uids are by record; names is the inverse.
	uids  map[types.NamespacedName]types.UID
	names map[made]types.NamespacedName
	// outdated schedules have unpublished changes of backups; wake says that there are some.
	outdated sets.Set[types.NamespacedName]
	wake     chan struct{}
	backups  map[made]map[string]domain.Backup // by namespace and uid of the schedule
	by       map[types.NamespacedName]made
}

type made struct {
	namespace string
	schedule  types.UID
}

// NewPublisher returns a Publisher of an informer's records.
func NewPublisher(informer cache.SharedIndexInformer, clock clock.PassiveClock) (*Publisher, error) {
	p := &Publisher{
		Log: logstore.New(func() object { return &v1alpha1.Schedule{} },
			logstore.Options{Resource: Resource.GroupResource, Namespaced: true, Loading: "the schedules"}),
		clock:    clock,
		entries:  recorded.NewSet(nameOf),
		uids:     map[types.NamespacedName]types.UID{},
		names:    map[made]types.NamespacedName{},
		outdated: sets.New[types.NamespacedName](),
		wake:     make(chan struct{}, 1),
		backups:  map[made]map[string]domain.Backup{},
		by:       map[types.NamespacedName]made{},
	}
	registration, err := informer.AddEventHandler(recorded.Handler(p.Observe, p.Forget))
	if err != nil {
		return nil, err
	}
	p.synced = registration.HasSynced
	return p, nil
}

// publishPause is the least time between publications of changed backups. Each reads all of a schedule, and
// reading a store changes thousands.
const publishPause = 100 * time.Millisecond

// Run lets clients in when the records are known, and publishes changes of backups, until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, p.synced) {
		return
	}
	p.Log.SetReady()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		p.publishOutdated()
		select {
		case <-ctx.Done():
			return
		case <-time.After(publishPause):
		}
	}
}

func (p *Publisher) publishOutdated() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.outdated {
		p.publishLocked(key)
	}
}

// Notify calls changed, under a lock, for each schedule, and later for each that changes or whose backups do.
func (p *Publisher) Notify(changed func(types.NamespacedName)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = changed
	for name := range p.entries.All() {
		changed(name)
	}
}

func nameOf(entry *enginev1alpha1.ScheduleEntry) types.NamespacedName {
	return types.NamespacedName(entry.Spec.ScheduleRef)
}

// Observe notes a record.
func (p *Publisher) Observe(entry *enginev1alpha1.ScheduleEntry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, kept := p.entries.Observe(entry); kept {
		p.publishLocked(nameOf(entry))
	}
}

// Forget removes a deleted record.
func (p *Publisher) Forget(entry *enginev1alpha1.ScheduleEntry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.entries.Delete(entry) {
		return
	}
	key := nameOf(entry)
	delete(p.names, made{key.Namespace, p.uids[key]})
	delete(p.uids, key)
	p.outdated.Delete(key)
	p.Log.Remove(key.Namespace, key.Name)
	p.changedLocked(key)
}

// OnBackup notes a backup as it is shown, or nil.
func (p *Publisher) OnBackup(name types.NamespacedName, backup *v1alpha1.Backup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, listed := p.by[name]
	var is made
	if backup != nil {
		is = made{namespace: name.Namespace, schedule: MadeBy(backup)}
	}
	if listed && (backup == nil || is != was) {
		delete(p.by, name)
		delete(p.backups[was], name.Name)
		if len(p.backups[was]) == 0 {
			delete(p.backups, was)
		}
		p.madeLocked(was)
	}
	if is.schedule == "" {
		return
	}
	summary := summary(backup)
	if p.backups[is] == nil {
		p.backups[is] = map[string]domain.Backup{}
	}
	if known, ok := p.backups[is][name.Name]; ok && known == summary {
		return
	}
	p.by[name], p.backups[is][name.Name] = is, summary
	p.madeLocked(is)
}

func (p *Publisher) madeLocked(by made) {
	key, ok := p.names[by]
	if !ok {
		return
	}
	p.outdated.Insert(key)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	p.changedLocked(key)
}

func (p *Publisher) publishLocked(key types.NamespacedName) {
	p.outdated.Delete(key)
	entry := p.entries.Get(key)
	s, err := scheduleOf(entry)
	if err != nil {
		utilruntime.HandleError(err)
		return
	}
	delete(p.names, made{key.Namespace, p.uids[key]})
	p.uids[key], p.names[made{key.Namespace, s.UID}] = s.UID, key
	show(s, entry.Spec.Since, p.ofLocked(key.Namespace, s.UID), p.clock.Now())
	if _, err := p.Log.Apply(s); err != nil {
		utilruntime.HandleError(err)
	}
	p.changedLocked(key)
}

func (p *Publisher) changedLocked(key types.NamespacedName) {
	if p.changed != nil {
		p.changed(key)
	}
}

// Schedule returns a schedule as it is shown, with its record and its backups.
func (p *Publisher) Schedule(name types.NamespacedName) (*v1alpha1.Schedule, *enginev1alpha1.ScheduleEntry, []domain.Backup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entry := p.entries.Get(name)
	if entry == nil {
		return nil, nil, nil
	}
	if p.outdated.Has(name) {
		p.publishLocked(name)
	}
	s, ok := p.Log.GetObject(name.Namespace, name.Name)
	if !ok {
		return nil, nil, nil
	}
	return s, entry, p.ofLocked(name.Namespace, s.UID)
}

// load counts the schedules of a namespace, always with the coming ones.
func (p *Publisher) load(namespace string, coming sets.Set[string]) (records, unfinished int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := coming.Clone()
	for name := range p.entries.All() {
		if name.Namespace == namespace {
			names.Insert(name.Name)
		}
	}
	return names.Len(), names.Len()
}

// Names returns the names of all schedules, in order.
func (p *Publisher) Names() []types.NamespacedName {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make([]types.NamespacedName, 0, p.entries.Len())
	for name := range p.entries.All() {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return names
}

func (p *Publisher) ofLocked(namespace string, schedule types.UID) []domain.Backup {
	return slices.Collect(maps.Values(p.backups[made{namespace, schedule}]))
}
