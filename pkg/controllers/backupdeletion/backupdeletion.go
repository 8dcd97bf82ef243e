// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupdeletion removes backups from their stores on request.
//
//   - Nothing is removed of a waiting or running backup, or of another uid: see folder.Deletion.
//   - First the store gets a removal for each repository with snapshots, for its maintenance. Then the
//     metadata is removed, the other objects, the list of snapshots, the folder's owner, and last the
//     record. The store shows what is left, so another process can continue.
//   - Held backups stay, and expired ones that are kept longer by now: changes recorded and stored are
//     read before the first removal. Later requests are refused (registry/backup.NewExpirationREST).
//   - The run's status and an event say, once, what a deletion waits for. It does not try a store known
//     not to answer.
package backupdeletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/backupchange"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// askAgain is when removals are written again: well before maintenance.MaxUpload, when they may be
	// dropped.
	askAgain = 12 * time.Hour
	workers  = 4
)

// Config configures a Controller.
type Config struct {
	Namespace string

	Runs     engineclient.BackupRunsGetter
	Restores engineclient.RestoreRunsGetter
	Secrets  location.Secrets
	// Changes has changes of expirations that may not be stored yet.
	Changes backupchange.Getter
	// ClusterUID and Keys are as in package identity.
	ClusterUID string
	Keys       []string
	// EnsureRepository is as repository.EnsureRecord.
	EnsureRepository func(ctx context.Context, namespace, location string) error
	// DiscardSnapshots begins to delete snapshots that a backup keeps in its volumes' storage; nil for
	// none.
	DiscardSnapshots func(ctx context.Context, backup types.UID, isOf func(snapshots.Place) bool) error
	// AdoptSnapshots records stored snapshots that only a backup names. nil with DiscardSnapshots.
	AdoptSnapshots func(ctx context.Context, lost []snapshots.Lost) error
	CheckLocation  func(ctx context.Context, name string) error
	Events         events.EventRecorder
	Clock          clock.WithTicker

	RunInformer        engineinformers.BackupRunInformer
	LocationInformer   engineinformers.StorageLocationInformer
	RepositoryInformer engineinformers.VolumeRepositoryInformer
	ChangeInformer     engineinformers.BackupChangeInformer
	FormerInformer     engineinformers.ExpirationChangeInformer
}

// Controller removes backups.
type Controller struct {
	Config
	runs         engineclient.BackupRunInterface
	runLister    enginelisters.BackupRunNamespaceLister
	locations    enginelisters.StorageLocationNamespaceLister
	repositories enginelisters.VolumeRepositoryNamespaceLister
	queue        *loop.Loop[string]
	open         func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error)

	mu    sync.Mutex
	asked map[request]answered
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:       config,
		asked:        map[request]answered{},
		runs:         config.Runs.BackupRuns(config.Namespace),
		runLister:    config.RunInformer.Lister().BackupRuns(config.Namespace),
		locations:    config.LocationInformer.Lister().StorageLocations(config.Namespace),
		repositories: config.RepositoryInformer.Lister().VolumeRepositories(config.Namespace),
		queue: loop.New[string](loop.Config{
			Controller: "backupdeletion", Workers: workers, FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock,
		}),
		open: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error) {
			return location.Open(ctx, config.Secrets, record)
		},
	}
	changed := func(before, after *enginev1alpha1.BackupChange) {
		if before != nil && after != nil && before.Generation == after.Generation {
			return
		}
		// A deletion may wait for this.
		if run, err := c.runLister.Get(cmp.Or(after, before).Name); err == nil && removable(run) {
			c.queue.Soon(run.Name)
		}
	}
	return c, errors.Join(
		c.queue.Watch(config.ChangeInformer.Informer(), loop.OnChange(changed)),
		c.queue.Watch(config.FormerInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.ExpirationChange) {
			changed((*enginev1alpha1.BackupChange)(before), (*enginev1alpha1.BackupChange)(after))
		})),
		c.queue.Watch(config.RunInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.BackupRun) {
			// Ignores our own writes.
			if after != nil && removable(after) && (before == nil || before.UID != after.UID || !removable(before)) {
				c.queue.Add(after.Name)
			}
		})),
		c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
			if before == nil || after == nil || before.UID != after.UID || before.Closed() && !after.Closed() ||
				!equality.Semantic.DeepEqual(before.Spec, after.Spec) {
				name := cmp.Or(after, before).Name
				loop.Wake(c.queue, c.runLister, func(run *enginev1alpha1.BackupRun) bool {
					return run.Spec.Backup.StorageLocation == name && removable(run)
				})
			}
		})))
}

// Run works until ctx ends and all work has stopped.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

// removable reports that deletion was requested, and no process works on the backup.
func removable(run *enginev1alpha1.BackupRun) bool {
	if run.Spec.Deletion == nil {
		return false
	}
	phase := run.Status.Phase
	standsForStored := run.Spec.Deletion.Stored != nil && (phase == "" || phase == v1alpha1.BackupPhaseNew)
	return phase.Ended() || standsForStored
}

func (c *Controller) sync(ctx context.Context, name string) error {
	// Read from the cluster, since a removal is final.
	run, err := c.runs.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading BackupRun %s: %w", name, err)
	case !removable(run):
		return nil
	}
	err = c.remove(ctx, run)
	if err == nil || ctx.Err() != nil {
		return err
	}
	o, ok := errors.AsType[*obstacle](err)
	if refusal, refuses := errors.AsType[*folder.Refusal](err); refuses {
		o, ok = refused("%v", refusal), true
	}
	switch {
	case !ok:
		return err
	case o.attempted:
		return errors.Join(err, c.report(ctx, run, o))
	}
	return c.report(ctx, run, o)
}
