// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupchange writes requested changes of stored backups into the stores: expirations, holds,
// and deletions of volumes.
//
// A BackupChange counts at once. The package makes it a signed object beside each backup's folder
// (folder.Change), which survives the cluster; the record is deleted later.
//
//   - Nothing is removed or rewritten. A change is created under the next number, by a conditional write;
//     the loser takes a later number. It has the whole state, with omitted fields and earlier deletions.
//   - It may be stopped anywhere, or run twice: an object has its request, and no request is written
//     twice.
package backupchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	firstRetry     = time.Second
	lastRetry      = 5 * time.Minute
	requestTimeout = time.Minute
	// expirationRetention is how long a completed expiration's record stays, until catalogues have read
	// the change.
	expirationRetention = 30 * time.Minute
	// deletionRetention is the same for a deletion, for catalogues and their caches. An API server that
	// was down longer lists the store.
	deletionRetention = 24 * time.Hour
)

// Config configures a Controller.
type Config struct {
	Namespace string
	Cluster   format.Cluster
	Keys      []string
	Engine    engineclient.EngineV1alpha1Interface
	Secrets   location.Secrets
	// EnsureRepository is as repository.EnsureRecord.
	EnsureRepository func(ctx context.Context, namespace, location string) error
	// LeaveSnapshots is snapshots.Client.LeaveLocal; nil if the cluster makes no snapshots.
	LeaveSnapshots func(ctx context.Context, namespace, claim string, isOf func(backup types.UID, at snapshots.Place) bool) error
	Events         events.EventRecorder
	Clock          clock.WithTicker

	ChangeInformer   engineinformers.BackupChangeInformer
	LocationInformer engineinformers.StorageLocationInformer
	// FormerExpirations and FormerDeletions are of the previous version.
	FormerExpirations engineinformers.ExpirationChangeInformer
	FormerDeletions   engineinformers.VolumeDeletionInformer
}

type bucket interface {
	store.Reader
	io.Closer
	folder.Creator
	Put(ctx context.Context, key string, content []byte) error
}

// Controller writes changes of backups into the stores.
type Controller struct {
	Config
	locations    enginelisters.StorageLocationNamespaceLister
	changes      records
	open         func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error)
	openLonghorn func(ctx context.Context, record *enginev1alpha1.StorageLocation) (longhornStore, error)

	expirations, deletions *lane
}

// lane has one of the two kinds of requests, so that no hold waits for the deletion of a long history.
// One worker has all records of a name.
type lane struct {
	*Controller
	queue     *loop.Loop[string]
	former    records
	deletes   bool
	retention time.Duration
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:    config,
		locations: config.LocationInformer.Lister().StorageLocations(config.Namespace),
		changes:   recordsOf("BackupChange", config.Engine.BackupChanges(config.Namespace)),
		open: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error) {
			return location.Open(ctx, config.Secrets, record)
		},
		openLonghorn: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (longhornStore, error) {
			return location.OpenAny(ctx, config.Secrets, record)
		},
	}
	queue := func(name string, workers int) *loop.Loop[string] {
		return loop.New[string](loop.Config{Controller: name, Workers: workers, FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock})
	}
	c.expirations = &lane{
		Controller: c, queue: queue("backupexpiration", 4), retention: expirationRetention,
		former: recordsOf("ExpirationChange", config.Engine.ExpirationChanges(config.Namespace)),
	}
	c.deletions = &lane{
		Controller: c, queue: queue("volumedeletion", 2), retention: deletionRetention, deletes: true,
		former: recordsOf("VolumeDeletion", config.Engine.VolumeDeletions(config.Namespace)),
	}
	changes := config.ChangeInformer.Informer()
	return c, errors.Join(
		c.expirations.watch(changes, config.FormerExpirations.Informer()),
		c.deletions.watch(changes, config.FormerDeletions.Informer()))
}

// Run works until ctx ends and all work has stopped.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.deletions.queue.Run(ctx, c.deletions.sync) })
	c.expirations.queue.Run(ctx, c.expirations.sync)
}

func (l *lane) watch(informers ...cache.SharedIndexInformer) error {
	changed := func(before, after *enginev1alpha1.BackupChange) {
		if after.Deletes() == l.deletes && (before == nil || before.UID != after.UID || before.Generation != after.Generation) {
			l.queue.Soon(after.Name)
		}
	}
	var errs []error
	for _, informer := range informers {
		errs = append(errs, l.queue.Watch(informer, cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { changed(nil, enginev1alpha1.AsBackupChange(obj)) },
			UpdateFunc: func(before, after any) {
				changed(enginev1alpha1.AsBackupChange(before), enginev1alpha1.AsBackupChange(after))
			},
		}))
	}
	errs = append(errs, l.queue.Watch(l.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
		if after == nil || before != nil && before.UID == after.UID && (!before.Closed() || after.Closed()) {
			return
		}
		for _, informer := range informers {
			for _, obj := range informer.GetStore().List() {
				if change := enginev1alpha1.AsBackupChange(obj); change.Deletes() == l.deletes && !change.Done() && change.At(after.Name) {
					l.queue.Soon(change.Name)
				}
			}
		}
	})))
	return errors.Join(errs...)
}

func (l *lane) sync(ctx context.Context, name string) error {
	change, err := l.changes.get(ctx, name)
	if err != nil {
		return err
	}
	if change != nil && change.Deletes() != l.deletes {
		change = nil
	}
	former, err := l.former.get(ctx, name)
	if err != nil {
		return err
	}
	for _, one := range enginev1alpha1.InOrder(change, former) {
		w := &work{lane: l, records: l.former, change: one, opened: map[string]bucket{}}
		if one == change {
			w.records = l.changes
		}
		if err := w.carryOut(ctx); err != nil {
			return err
		}
	}
	return nil
}

type work struct {
	*lane
	records records
	change  *enginev1alpha1.BackupChange

	mu     sync.Mutex
	opened map[string]bucket // by location; guarded by mu
}

func (w *work) carryOut(ctx context.Context) error {
	defer func() {
		for _, target := range w.opened {
			_ = target.Close()
		}
	}()
	switch {
	case w.change.Done():
		return w.retire(ctx)
	case w.deletes:
		return w.deleteVolumes(ctx)
	}
	return w.changeExpiration(ctx)
}

func (w *work) retire(ctx context.Context) error {
	if at := w.change.DoneAt(); at != nil {
		if wait := at.Add(w.retention).Sub(w.Clock.Now()); wait > 0 {
			w.queue.AddAfter(w.change.Name, min(wait, w.retention))
			return nil
		}
	}
	return w.records.delete(ctx, w.change)
}

func (w *work) finish(ctx context.Context) error {
	w.change.Status.ObservedGeneration, w.change.Status.CompletionTimestamp = w.change.Generation, &metav1.Time{Time: w.Clock.Now()}
	if err := w.update(ctx); err != nil {
		return err
	}
	w.queue.AddAfter(w.change.Name, w.retention)
	return nil
}

func (w *work) update(ctx context.Context) error {
	updated, err := w.records.updateStatus(ctx, w.change)
	if err == nil {
		w.change = updated
	}
	return err
}

// waits records, once, that a request waits, and returns why to try again.
func (w *work) waits(ctx context.Context, message string, why error) error {
	if ctx.Err() != nil || w.change.Status.Message == message {
		return why
	}
	w.change.Status.Message = message
	if err := w.update(ctx); err != nil {
		return errors.Join(why, err)
	}
	klog.FromContext(ctx).Info("A change of stored backups waits", "record", klog.KObj(w.change), "message", message, "reason", fmt.Sprint(why))
	if w.deletes {
		w.event(corev1.EventTypeWarning, "DeletionWaiting", "The deletion of volume backups waits: %s", message)
	} else {
		w.event(corev1.EventTypeWarning, "ExpirationChangeWaiting", "The change of the expiration counts in this cluster, and can't be written into the store yet")
	}
	return why
}

func (w *work) event(kind, reason, text string, args ...any) {
	spec, action := &w.change.Spec, "ChangeExpiration"
	about := &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Backup", Namespace: spec.BackupRef.Namespace, Name: spec.BackupRef.Name, UID: spec.UID,
	}
	if w.deletes {
		about.Kind, about.Namespace, about.Name, action = "BackupVolume", spec.ListedIn, spec.Volume, "Delete"
		if spec.Namespace != "" && spec.Namespace != spec.ListedIn {
			about.Name += "@" + spec.Namespace
		}
	}
	w.Events.Eventf(about, nil, kind, reason, action, "%.1000s", fmt.Sprintf(text, args...))
}

type refusal string

func (r refusal) Error() string { return string(r) }

type asOf string

func (a asOf) Error() string {
	return fmt.Sprintf("the storage location %q shows its bucket as of an earlier time, and nothing is written to it: name the backup in the location without spec.s3.asOf", string(a))
}

type noLocation string

func (n noLocation) Error() string { return fmt.Sprintf("there is no storage location %q", string(n)) }

func (w *work) bucket(ctx context.Context, name string) (bucket, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if opened := w.opened[name]; opened != nil {
		return opened, nil
	}
	record, err := w.locations.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, noLocation(name)
	case err != nil:
		return nil, err
	case record.Spec.AsOf() != nil:
		return nil, asOf(name)
	case record.Closed():
		return nil, fmt.Errorf("the storage location %q is not available: %s", name, record.WhyClosed())
	}
	opened, err := w.open(ctx, record)
	if err != nil {
		return nil, err
	}
	w.opened[name] = opened
	return opened, nil
}

func (w *work) folder(opened bucket, target *enginev1alpha1.BackupChangeTarget) *folder.Folder {
	return &folder.Folder{
		Place: format.Place{StoreName: target.StoreName, Location: target.StorageLocation, SystemNamespace: w.Namespace},
		Clock: w.Clock, UID: target.UID, Store: opened, Try: try,
	}
}

func try(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}
