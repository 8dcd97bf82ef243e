// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package projection computes what the API server shows, from the records, the
// queue and the catalogue of the stores, and commits the differences to one log
// per resource. It writes to nothing else.
//
// A backup is shown by its record until that says that it is stored. From then on
// the store has the last word: the backup is shown as recorded until the store was
// heard of it, and then as the catalogue has it, or not at all, whether or not the
// record is still there. Records and stores are all that this follows from, so a
// restart shows what was shown before it, as soon as the stores have been read.
// What a server can't know after a restart is what lies in a store that does not
// answer; it says so.
package projection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilresourceversion "k8s.io/apimachinery/pkg/util/resourceversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

const (
	// publishInterval is the shortest time between two publications of the queue.
	publishInterval = 100 * time.Millisecond
	// MaxQueueEvents bounds what the queue sends to each watcher, in events a second
	// on average. A start moves everyone behind it up; with 10,000 waiting, watchers
	// see that every 10 s.
	MaxQueueEvents = 1000
)

// storeDelay is how long after its end a backup may not be seen by all in its store,
// as when a folder lies on another machine that remembers that it was not there.
const storeDelay = 2 * time.Minute

// pause is how long the queue is not to be published again after a publication of
// so many events, which took so long: a fifth of the time is enough for it.
func pause(events int, took time.Duration) time.Duration {
	return max(publishInterval, time.Duration(events)*time.Second/MaxQueueEvents, 4*took)
}

// Config is what a Projector needs.
type Config struct {
	// SystemNamespace is where the records live.
	SystemNamespace string
	// PollInterval is how often the stores are listed; zero means once.
	PollInterval time.Duration
	Clock        clock.WithTickerAndDelayedExecution
	// Secrets hold the credentials of the stores.
	Secrets location.Secrets
	// Authorizer tells who may list all backups, and so be told of the stores.
	Authorizer authorizer.Authorizer

	Runs       engineinformers.BackupRunInformer
	Locations  engineinformers.StorageLocationInformer
	Namespaces coreinformers.NamespaceInformer
	// Settings is an informer of the ConfigMap records.SettingsName alone.
	Settings cache.SharedIndexInformer
	// Identity is an informer of the ConfigMap identity.Name alone.
	Identity cache.SharedIndexInformer
}

// Projector fills the logs.
type Projector struct {
	// The logs, one for each resource.
	Backups       *logstore.Log[*v1alpha1.Backup]
	Queue         *logstore.Log[*v1alpha1.BackupQueueEntry]
	Volumes       *logstore.Log[*v1alpha1.BackupVolume]
	VolumeBackups *logstore.Log[*v1alpha1.VolumeBackup]

	Config
	catalog   *catalog.Catalog
	refresher *refresh.Refresher
	synced    []cache.InformerSynced
	// stale wakes the publication of the queue.
	stale chan struct{}
	// started is true when the records are there. The stores are asked after that, so
	// that the first answer of each is its word on all that the records say of it.
	started atomic.Bool
	// complete is true when every store has been read once, or does not count any more.
	complete atomic.Bool

	// placing is held from the look at the namespaces to the placing by them.
	placing sync.Mutex

	// mu guards the fields below, and is held from a change of them to the commit
	// of what follows from it, so that no commit overtakes a later one.
	mu sync.Mutex
	// runs are the records by backup, each in its latest version.
	runs map[backupKey]*enginev1alpha1.BackupRun
	// removedRuns are the uids of the last records that were removed. The answer to
	// a client's write of one of them may come after that.
	removedRuns *lru.Cache
	// namespaces are those that exist.
	namespaces map[string]types.UID
	// unread are the backups that are stored, as their records said, and of which the
	// store has not been heard yet. They are shown as recorded until it has, whether
	// or not the record is still there. Then the store has the last word.
	unread map[backupKey]unread
	// planner knows the runs, and what else the queue follows from as last published.
	planner *records.Planner
	// entries are the places in the queue as last published, by the record's uid, as
	// they may be shown where the backup lies.
	entries map[types.UID]queue.Entry
}

// backupKey identifies a Backup.
type backupKey = types.NamespacedName

// unread is a backup that is to be read in its store.
type unread struct {
	run *enginev1alpha1.BackupRun
	// since is from when on the store's word counts.
	since time.Time
}

// New returns a Projector.
func New(config Config) (*Projector, error) {
	planner, err := records.NewPlanner(records.DefaultConcurrentBackups)
	if err != nil {
		return nil, err
	}
	p := &Projector{
		Config:      config,
		planner:     planner,
		stale:       make(chan struct{}, 1),
		runs:        map[backupKey]*enginev1alpha1.BackupRun{},
		removedRuns: lru.New(1000),
		namespaces:  map[string]types.UID{},
		unread:      map[backupKey]unread{},
		entries:     map[types.UID]queue.Entry{},
	}
	p.catalog = catalog.New(config.SystemNamespace, p.storedChanged)
	p.refresher = refresh.New(p.catalog, refresh.Options{
		SystemNamespace: config.SystemNamespace,
		Interval:        config.PollInterval,
		Clock:           config.Clock,
		Asked:           p.asked,
	})
	options := func(resource, loading string) logstore.Options {
		return logstore.Options{Resource: v1alpha1.Resource(resource), Namespaced: true, Loading: loading, OnRead: p.warn(resource)}
	}
	p.Backups = logstore.New(func() *v1alpha1.Backup { return &v1alpha1.Backup{} }, options("backups", "the backups of the storage locations"))
	p.Volumes = logstore.New(func() *v1alpha1.BackupVolume { return &v1alpha1.BackupVolume{} }, options("backupvolumes", "the volumes of the storage locations"))
	p.VolumeBackups = logstore.New(func() *v1alpha1.VolumeBackup { return &v1alpha1.VolumeBackup{} }, options("volumebackups", "the volumes of the storage locations"))
	queueOptions := options("backupqueues", "the records of the waiting backups")
	queueOptions.OnRead = nil // the queue has nothing to do with what is stored
	p.Queue = logstore.New(func() *v1alpha1.BackupQueueEntry { return &v1alpha1.BackupQueueEntry{} }, queueOptions)

	wake := func(any) { p.wake() }
	identify := func(any) { p.identify() }
	relocate := func(any) {
		p.wake()
		if !p.started.Load() {
			return // not all are known
		}
		if err := p.setLocations(); err != nil {
			utilruntime.HandleError(err)
		}
	}
	relocated := func(before, after any) {
		relocate(after)
		was, is := before.(*enginev1alpha1.StorageLocation), after.(*enginev1alpha1.StorageLocation)
		if !available(was) && available(is) {
			p.refresher.Nudge(is.Name) // what it holds is asked for first of all
		}
	}
	for _, r := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandlerFuncs
	}{
		{config.Runs.Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { p.Observe(obj.(*enginev1alpha1.BackupRun)) },
			UpdateFunc: p.changed,
			DeleteFunc: p.removed,
		}},
		{config.Locations.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: relocate, UpdateFunc: relocated, DeleteFunc: relocate}},
		{config.Namespaces.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: wake, DeleteFunc: wake}},
		{config.Namespaces.Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { p.namespaceChanged(obj) },
			UpdateFunc: func(_, obj any) { p.namespaceChanged(obj) },
			DeleteFunc: p.namespaceGone,
		}},
		{config.Identity, cache.ResourceEventHandlerFuncs{AddFunc: identify, UpdateFunc: func(_, obj any) { identify(obj) }, DeleteFunc: identify}},
		{config.Settings, cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, obj any) { wake(obj) }, DeleteFunc: wake}},
	} {
		registration, err := r.informer.AddEventHandler(r.handler)
		if err != nil {
			return nil, err
		}
		p.synced = append(p.synced, registration.HasSynced)
	}
	return p, nil
}

// Run fills the logs until ctx ends. The informers must have been started.
func (p *Projector) Run(ctx context.Context) {
	var running wait.Group
	defer running.Wait()
	running.StartWithContext(ctx, p.refresher.Run)
	if !cache.WaitForNamedCacheSyncWithContext(ctx, p.synced...) {
		return
	}
	p.started.Store(true)
	// Before the stores are read, so that nothing is shown in a place where it is not
	// to stay.
	p.placeByNamespaces()
	if err := p.setLocations(); err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Reading the storage locations failed")
		return
	}
	if _, err := p.publish(); err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Publishing the queue failed")
	}
	// Live work is served from here on, whatever the stores do.
	p.Queue.SetReady()
	p.Backups.Open()
	p.Volumes.Open()
	p.VolumeBackups.Open()
	running.StartWithContext(ctx, p.awaitStores)
	p.runQueue(ctx)
}

// runQueue publishes the queue whenever it may have changed, within the bounds
// that pause sets.
func (p *Projector) runQueue(ctx context.Context) {
	publish := func() time.Duration {
		begin := p.Clock.Now()
		events, err := p.publish()
		if err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Publishing the queue failed")
		}
		return pause(events, p.Clock.Since(begin))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.stale:
		}
		select {
		case <-ctx.Done():
			return
		case <-p.Clock.After(publish()):
		}
	}
}

func (p *Projector) wake() {
	select {
	case p.stale <- struct{}{}:
	default:
	}
}

// Observe takes note of a run, as an informer or a client got it.
func (p *Projector) Observe(run *enginev1alpha1.BackupRun) {
	selected := p.selected(run)
	p.mu.Lock()
	defer p.mu.Unlock()
	key := p.keyOfLocked(run)
	known := p.runs[key]
	if known != nil && known.UID == run.UID && !newer(run, known) {
		return
	}
	if _, removed := p.removedRuns.Get(run.UID); removed {
		return
	}
	if u := p.unread[key].run; u != nil && u.UID != run.UID {
		delete(p.unread, key) // another backup has the name
	}
	p.runs[key] = run
	if changed := p.planner.UpdateRun(run, selected); changed || known == nil || known.UID != run.UID {
		p.wake() // not by progress, of which the queue shows nothing
	}
	wasStored := known != nil && known.UID == run.UID && known.Status.Stored
	if location, since := run.Spec.Backup.StorageLocation, p.heardFrom(run); run.Status.Stored && !wasStored && !p.catalog.Knows(location, run.Name, run.UID, since) {
		p.unread[key] = unread{run, since}
		p.refresher.ReadSoon(location, run.Name)
	}
	p.projectLocked(key)
}

// heardFrom is from when on the word of a store counts about a run that is stored.
// It takes some time until all see in a store what one of them has just written.
func (p *Projector) heardFrom(run *enginev1alpha1.BackupRun) time.Time {
	now := p.Clock.Now()
	if ended := run.Status.CompletionTimestamp; ended != nil && now.Sub(ended.Time) < storeDelay {
		return now.Add(storeDelay)
	}
	return now
}

// asked takes note that a store has answered, or has not.
func (p *Projector) asked(location string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.askedLocked(location)
}

func (p *Projector) askedLocked(location string) {
	_, err := p.Locations.Lister().StorageLocations(p.SystemNamespace).Get(location)
	for key, u := range p.unread {
		if u.run.Spec.Backup.StorageLocation != location {
			continue
		}
		if apierrors.IsNotFound(err) || p.catalog.Knows(location, u.run.Name, u.run.UID, u.since) {
			delete(p.unread, key)
			p.projectLocked(key)
		}
	}
}

// selected reads what a run selects, unless that is known. That may take
// milliseconds, for which nobody need wait.
func (p *Projector) selected(run *enginev1alpha1.BackupRun) *records.Selection {
	p.mu.Lock()
	known := p.planner.Knows(run)
	p.mu.Unlock()
	if known {
		return nil
	}
	return records.Select(&run.Spec.Backup)
}

// Load is that of the planner.
func (p *Projector) Load(namespace string, coming sets.Set[string]) records.Load {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planner.Load(namespace, coming)
}

// changed takes note of what an informer says of a record. After a gap, it tells of
// one that was replaced as of one that changed.
func (p *Projector) changed(before, after any) {
	was, is := before.(*enginev1alpha1.BackupRun), after.(*enginev1alpha1.BackupRun)
	if was.UID != is.UID {
		p.removed(was)
	}
	p.Observe(is)
}

// removed takes note that a run's record is gone.
func (p *Projector) removed(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	run, ok := obj.(*enginev1alpha1.BackupRun)
	if !ok {
		return
	}
	if run.Deleting() && p.isKnown(run) {
		// The record of a deletion goes when nothing is left in the store. The catalogue
		// passes that on, so it is told without the lock, and first: nobody is to see the
		// backup as it was before.
		p.catalog.Remove(run.Spec.Backup.StorageLocation, run.Name)
		if run.Status.FailureReason != "" {
			p.refresher.Nudge(run.Spec.Backup.StorageLocation) // it may have been given up
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := p.keyOfLocked(run)
	p.removedRuns.Add(run.UID, nil)
	if p.planner.RemoveRun(run.UID) {
		p.wake()
	}
	if known := p.runs[key]; known == nil || known.UID != run.UID {
		return
	}
	delete(p.runs, key)
	if run.Deleting() {
		delete(p.unread, key)
	}
	p.projectLocked(key)
}

// isKnown reports whether a record is the one that stands for its backup.
func (p *Projector) isKnown(run *enginev1alpha1.BackupRun) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.runs[p.keyOfLocked(run)]
	return known != nil && known.UID == run.UID
}

// projectLocked brings one backup in its log up to date: from its record, until
// that says that it is stored, and from then on from the catalogue. It passes from
// one to the other without vanishing in between.
func (p *Projector) projectLocked(key backupKey) {
	run, stored, unread := p.runs[key], p.catalog.Backup(key.Namespace, key.Name), p.unread[key].run
	var backup *v1alpha1.Backup
	switch {
	case run != nil && run.Deleting() && stored != nil:
		backup = deleting(stored, run)
	case run != nil && (run.Deleting() || !run.Status.Stored):
		var place *queue.Entry
		if entry, ok := p.entries[run.UID]; ok {
			place = &entry
		}
		backup = at(key, backupOf(run, place))
	case unread != nil && (stored == nil || stored.UID != unread.UID && stored.Status.Phase != v1alpha1.BackupPhaseUnreadable):
		// The catalogue may still have one of that name which was there before.
		backup = at(key, backupOf(unread, nil))
	case stored != nil:
		delete(p.unread, key)
		backup = stored
	}
	if backup == nil {
		p.Backups.Remove(key.Namespace, key.Name)
		return
	}
	replace(p.Backups, backup)
}

// at is a live backup in the place where it is shown.
func at(key backupKey, backup *v1alpha1.Backup) *v1alpha1.Backup {
	if of := nameOf(backup); of != key {
		backup.Namespace, backup.Name = key.Namespace, key.Name
		backup.Status.Origin.Namespace, backup.Status.Origin.Name = of.Namespace, of.Name
		backup.Status.Origin.Message = fmt.Sprintf("it was asked for in another namespace %q than the present one, which was made anew since", of.Namespace)
	}
	return backup
}

func nameOf(backup *v1alpha1.Backup) backupKey {
	return backupKey{Namespace: backup.Namespace, Name: backup.Name}
}

// replace commits an object.
func replace[T logstore.Object](log *logstore.Log[T], object T) {
	if _, err := log.Apply(object); err != nil {
		utilruntime.HandleError(err)
	}
}

// publish computes the queue, and commits what changed in it and in the backups
// that wait. It returns the number of changes in the queue.
func (p *Projector) publish() (int, error) {
	locations, err := p.Locations.Lister().StorageLocations(p.SystemNamespace).List(labels.Everything())
	if err != nil {
		return 0, err
	}
	namespaces, err := p.Namespaces.Lister().List(labels.Everything())
	if err != nil {
		return 0, err
	}
	settings := p.settings()
	_, err = records.Ledger(settings)
	unreadable := errors.Is(err, records.ErrLedger)

	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.planner.SetLimit(records.Limit(settings)); err != nil {
		return 0, err
	}
	p.planner.SetStarted(records.Started(settings))
	p.planner.SetStorageLocations(locations)
	p.planner.SetExistingNamespaces(namespaces)
	plan := p.planner.Plan()
	before := p.entries
	p.entries = make(map[types.UID]queue.Entry, len(plan.Entries))
	shown := make([]*v1alpha1.BackupQueueEntry, 0, len(plan.Entries))
	for _, entry := range plan.Entries {
		run := p.planner.Run(entry.UID)
		if p.runs[p.keyOfLocked(run)] != run {
			continue // another record says that it stands for this backup, too
		}
		entry = queue.Redact(entry, p.SystemNamespace)
		if unreadable && entry.Reason == v1alpha1.QueueReasonNextToStart {
			entry.Message = "starts when the ledger of started backups can be read again; an event of the ConfigMap " + records.SettingsName + " says more"
		}
		p.entries[entry.UID] = entry
		shown = append(shown, entryOf(p.keyOfLocked(run), run, entry, &plan))
	}
	events, err := p.Queue.Replace(shown)
	if err != nil {
		return 0, err
	}
	for uid, entry := range p.entries {
		if was := before[uid]; was.Position != entry.Position || was.Message != entry.Message || was.State != entry.State {
			p.projectLocked(p.keyOfLocked(p.planner.Run(uid)))
		}
	}
	return events, nil
}

func available(location *enginev1alpha1.StorageLocation) bool {
	return meta.IsStatusConditionTrue(location.Status.Conditions, enginev1alpha1.ConditionAvailable)
}

// settings are what the controller tells of the queue; nil while it has told nothing.
func (p *Projector) settings() *corev1.ConfigMap {
	for _, obj := range p.Settings.GetStore().List() {
		return obj.(*corev1.ConfigMap)
	}
	return nil
}

// newer reports whether a is a later version of a run than b.
func newer(a, b *enginev1alpha1.BackupRun) bool {
	order, err := utilresourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// keyOfLocked is where a run's backup is shown: where it was asked for, unless the
// namespace was made anew since. Then it is the administrator's, as what is stored.
func (p *Projector) keyOfLocked(run *enginev1alpha1.BackupRun) backupKey {
	ref := run.Spec.BackupRef
	present, exists := p.namespaces[ref.Namespace]
	if exists && run.Spec.NamespaceUID != "" && run.Spec.NamespaceUID != present {
		return backupKey{Namespace: p.SystemNamespace, Name: run.Name}
	}
	return backupKey{Namespace: ref.Namespace, Name: ref.Name}
}
