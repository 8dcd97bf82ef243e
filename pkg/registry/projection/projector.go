// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package projection computes the API server's objects from the records, the queue and the catalogue, and commits
// the differences to one log per resource.
//
// A backup is shown as recorded until its store has answered about it. Then the catalogue decides, with or without
// the record. So a restart shows the same objects once the stores are read.
//
// Locks are taken in this order: Projector.placing and deleting, the catalogue's for changes, Projector.mu, the
// catalogue's for a read, and a log's. So the holder of mu may read the catalogue, and must not change it.
package projection

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	"github.com/holdfast-io/holdfast/pkg/registry/volumebackup"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Config is the configuration of a Projector.
type Config struct {
	SystemNamespace string
	// PollInterval is how often stores without notifications are polled. Zero: they are listed once, and on
	// request.
	PollInterval time.Duration
	// CacheDir keeps the read contents of stores for the next process; empty for none.
	CacheDir string
	// ForeignBytes bounds a location's kept backups without a trusted signature. Zero is
	// catalog.DefaultForeignBytes.
	ForeignBytes int64
	Clock        clock.WithTickerAndDelayedExecution
	Secrets      location.Secrets
	// Authorizer decides about the right to list all backups, which includes knowledge of the stores.
	Authorizer authorizer.Authorizer

	Runs     engineinformers.BackupRunInformer
	Restores engineinformers.RestoreRunInformer
	Changes  engineinformers.BackupChangeInformer // perhaps not in the store yet
	// The previous version's Changes.
	FormerExpirations engineinformers.ExpirationChangeInformer
	FormerDeletions   engineinformers.VolumeDeletionInformer
	Locations         engineinformers.StorageLocationInformer
	Repositories      engineinformers.VolumeRepositoryInformer // reports lost contents; optional
	Namespaces        coreinformers.NamespaceInformer
	Ledger            cache.SharedIndexInformer // of the ConfigMap records.LedgerName
	Identity          cache.SharedIndexInformer // of the ConfigMap identity.Name
	Leader            Leader                    // optional
	Snapshots         *snapshots.Records        // of the cluster; nil if it makes none
}

// Subscriber is told of changes by each set field. All but Refreshed are called under a lock.
type Subscriber struct {
	// Refreshed is called when the answer of State may have changed.
	Refreshed func()
	// Backup is called with each backup as it is now shown, or nil. It must not change the backup.
	Backup   func(name types.NamespacedName, backup *v1alpha1.Backup)
	Restores func(places map[types.UID]Place) // by uid
	// Unheard is called with the reason why runs wait for a controller that is not heard of, or "".
	Unheard func(message string)
	// Past shows restores without records. Only one subscriber has it.
	Past PastRestores
}

// Subscribe adds a subscriber. Call it before Run.
func (p *Projector) Subscribe(s Subscriber) {
	p.subscribers = append(p.subscribers, s)
	if s.Past != nil {
		p.stores.past = s.Past
	}
}

func (p *Projector) refreshed() {
	for _, s := range p.subscribers {
		if s.Refreshed != nil {
			s.Refreshed()
		}
	}
}

// PastRestores are the restores in the stores. It judges them by Judge, whose answer each call may change.
type PastRestores interface {
	SetLocations(stores map[string]string)
	ReadStore(ctx context.Context, location, of string, from store.Reader) error
	JudgeAgain(namespace string)
	SetSuccessions(successions clusteridentity.Successions)
}

// Leader returns since when no controller is heard of, with a message for users. A zero time means that one is.
type Leader interface {
	Unheard() (since time.Time, message string)
}

// Projector fills the logs.
type Projector struct {
	Backups *logstore.Log[*v1alpha1.Backup]
	Queue   *logstore.Log[*v1alpha1.BackupQueueEntry]
	Volumes *logstore.Log[*v1alpha1.BackupVolume]
	// VolumeBackups reads the catalogue.
	VolumeBackups *volumebackup.Storage

	Config
	subscribers []Subscriber

	stores stores
	synced []cache.InformerSynced
	// started is true when the records are known. The stores are asked later, so that their answers cover these.
	started atomic.Bool

	deleting  sync.Mutex // guards deletions; held until the catalogue knows of them
	deletions *recorded.Set[types.UID, *enginev1alpha1.BackupChange]

	// placing is held while everything is placed by the namespaces.
	placing sync.Mutex

	// mu guards the fields below, from their change to its commit, so that commits keep their order.
	mu              sync.Mutex
	runs            *runs
	queue           publishedQueue
	unheard         string   // says that no controller is heard of, or ""
	changes, former *changes // of expirations by name; former are the previous version's
}

// New returns a Projector.
func New(config Config) (*Projector, error) {
	p := &Projector{
		Config: config,
		stores: stores{secrets: config.Secrets, cacheDir: config.CacheDir, authorizer: config.Authorizer},
		runs:   newRuns(config.SystemNamespace),

		changes:   recorded.NewSet((*enginev1alpha1.BackupChange).GetName),
		former:    recorded.NewSet((*enginev1alpha1.BackupChange).GetName),
		deletions: recorded.NewSet((*enginev1alpha1.BackupChange).GetUID),
	}
	p.stores.catalog = catalog.New(config.SystemNamespace, p.storedChanged)
	p.stores.catalog.SetForeignBytes(cmp.Or(config.ForeignBytes, catalog.DefaultForeignBytes))
	p.stores.refresher = refresh.New(p.stores.catalog, refresh.Options{
		SystemNamespace: config.SystemNamespace,
		Interval:        config.PollInterval,
		Clock:           config.Clock,
		Asked:           p.asked,
	})
	options := func(resource, loading string) logstore.Options {
		return logstore.Options{Resource: v1alpha1.Resource(resource), Namespaced: true, Loading: loading, OnRead: p.stores.warn(resource)}
	}
	p.Backups = logstore.New(func() *v1alpha1.Backup { return &v1alpha1.Backup{} }, options("backups", "the backups of the storage locations"))
	volumeOptions := options("backupvolumes", "the volumes of the storage locations")
	// A first load changes each volume with each of its backups. Watchers that are further behind list again.
	volumeOptions.HistoryBytes = 8 << 20
	p.Volumes = logstore.New(func() *v1alpha1.BackupVolume { return &v1alpha1.BackupVolume{} }, volumeOptions)
	p.VolumeBackups = volumebackup.NewStorage(p.stores.catalog, volumebackup.Options{
		Loading: "the volumes of the storage locations", OnRead: p.stores.warn("volumebackups"), Clock: config.Clock,
		Snapshots: config.Snapshots,
	})
	queueOptions := options("backupqueues", "the records of what waits")
	queueOptions.OnRead = nil // the queue does not depend on stored backups
	p.Queue = logstore.New(func() *v1alpha1.BackupQueueEntry { return &v1alpha1.BackupQueueEntry{} }, queueOptions)

	var err error
	if p.queue, err = newPublishedQueue(p.Queue); err != nil {
		return nil, err
	}
	return p, p.watch()
}

func (p *Projector) watch() error {
	wake := func(any) { p.queue.wake() }
	identify := func(any) { p.identify() }
	relocate := func(any) {
		p.queue.wake()
		if !p.started.Load() {
			return
		}
		if err := p.setLocations(); err != nil {
			utilruntime.HandleError(err)
		}
	}
	relocated := func(before, after any) {
		relocate(after)
		was, is := before.(*enginev1alpha1.StorageLocation), after.(*enginev1alpha1.StorageLocation)
		if !available(was) && available(is) {
			p.stores.refresher.Nudge(is.Name) // its contents are asked for first
		}
	}
	type handler struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}
	handlers := []handler{
		{p.Runs.Informer(), recorded.Handler(p.Observe, p.removed)},
		{p.Restores.Informer(), recorded.Handler(p.restoreChanged, p.restoreRemoved)},
		{p.Locations.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: relocate, UpdateFunc: relocated, DeleteFunc: relocate}},
		{p.Namespaces.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: wake, DeleteFunc: wake}},
		{p.Namespaces.Informer(), clustercache.Handler(p.namespaceChanged, p.namespaceGone)},
		{p.Identity, cache.ResourceEventHandlerFuncs{AddFunc: identify, UpdateFunc: func(_, obj any) { identify(obj) }, DeleteFunc: identify}},
		{p.Ledger, cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, obj any) { wake(obj) }, DeleteFunc: wake}},
		{p.Changes.Informer(), recorded.Handler(p.ObserveChange, p.changeGone)},
		{p.FormerExpirations.Informer(), recorded.Handler(
			func(former *enginev1alpha1.ExpirationChange) {
				p.observeExpiration(p.former, enginev1alpha1.AsBackupChange(former))
			},
			func(former *enginev1alpha1.ExpirationChange) {
				p.expirationGone(p.former, enginev1alpha1.AsBackupChange(former))
			})},
		{p.FormerDeletions.Informer(), recorded.Handler(
			func(former *enginev1alpha1.VolumeDeletion) { p.observeDeletion(enginev1alpha1.AsBackupChange(former)) },
			func(former *enginev1alpha1.VolumeDeletion) { p.deletionGone(enginev1alpha1.AsBackupChange(former)) })},
	}
	if p.Repositories != nil {
		handlers = append(handlers, handler{p.Repositories.Informer(), p.onDamage()})
	}
	for _, h := range handlers {
		registration, err := h.informer.AddEventHandler(h.handler)
		if err != nil {
			return err
		}
		p.synced = append(p.synced, registration.HasSynced)
	}
	return nil
}

// Run fills the logs until ctx ends. The informers must have been started.
func (p *Projector) Run(ctx context.Context) {
	var running wait.Group
	defer running.Wait()
	running.StartWithContext(ctx, p.stores.refresher.Run)
	if !cache.WaitForNamedCacheSyncWithContext(ctx, p.synced...) {
		return
	}
	p.started.Store(true)
	// First, so that nothing is shown in a wrong place.
	p.placeByNamespaces()
	if err := p.setLocations(); err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Reading the storage locations failed")
		return
	}
	if _, err := p.publish(); err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Publishing the queue failed")
	}
	// Live work is served from now on. Lists of volumes wait for the first store; see storedChanged.
	p.Queue.SetReady()
	p.Backups.Open()
	running.StartWithContext(ctx, p.awaitStores)
	running.StartWithContext(ctx, p.listen)
	p.runQueue(ctx)
}
