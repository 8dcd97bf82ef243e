// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupdeletion removes backups from their stores: those whose run says
// that somebody asked for it.
//
// What it promises:
//   - Nothing is removed of a backup that waits or runs, nor of one with another
//     uid than the one that was meant: what is removed was described before it was
//     asked whose it is, and goes as that version or not at all (store.Remover). So a
//     process that sleeps anywhere, while another one ends the deletion and a new
//     backup gets the name, removes nothing of that.
//   - Nothing is removed before the store holds, for each repository with snapshots of
//     the backup, that they are to go: the maintenance of the repository removes them
//     when the folder is empty (package maintenance), so that no repository is opened
//     here. Then the metadata goes first, so that nobody begins to read what is going;
//     then the other objects, the list of the snapshots, the owner of the folder, and
//     last the record. What is in the store says what is left to do, so that a process
//     may stop anywhere, and the next one goes on.
//   - Nothing is removed of a backup that somebody holds, nor, for the reason that it has
//     expired, of one that is kept for longer by now: a change that is recorded is looked for
//     in the cluster, and then one in the store, before the first removal. One that is asked
//     for later is told of the deletion (registry/backup.ExpirationREST).
//   - What a deletion waits for is in the run's status and in an event, once. A
//     store that is known not to answer is left alone until it does.
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
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
)

const (
	// A deletion that can't go on is tried again after firstRetry, and then less and
	// less often, up to lastRetry.
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// askAgain is after how long the removal of snapshots is asked for again: well before it may
	// be forgotten, which it is after maintenance.MaxUpload.
	askAgain = 12 * time.Hour
	// One slow store must not delay the others.
	workers = 4
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string

	Runs     engineclient.BackupRunsGetter
	Restores engineclient.RestoreRunsGetter
	// Secrets with the credentials of the locations.
	Secrets location.Secrets
	// Changes are those of expirations that may not be in the store yet.
	Changes engineclient.ExpirationChangesGetter
	// ClusterUID is that of package identity, and Keys are those that the cluster has signed
	// with.
	ClusterUID string
	Keys       []string
	// EnsureRepository makes a record of the repository of a namespace at a location, if
	// there is none.
	EnsureRepository func(ctx context.Context, namespace, location string) error
	// CheckLocation brings the condition of a storage location up to date at once.
	CheckLocation func(ctx context.Context, name string) error
	Events        events.EventRecorder
	Clock         clock.WithTicker

	RunInformer        engineinformers.BackupRunInformer
	LocationInformer   engineinformers.StorageLocationInformer
	RepositoryInformer engineinformers.VolumeRepositoryInformer
	ChangeInformer     engineinformers.ExpirationChangeInformer
}

// Controller removes backups.
type Controller struct {
	Config
	runs         engineclient.BackupRunInterface
	runLister    enginelisters.BackupRunNamespaceLister
	locations    enginelisters.StorageLocationNamespaceLister
	repositories enginelisters.VolumeRepositoryNamespaceLister
	queue        *loop.Loop[string]
	// open opens the store of a location; tests put one in its place that fails.
	open func(context.Context, *enginev1alpha1.StorageLocation) (bucket, error)

	mu sync.Mutex
	// asked are the removals of snapshots that this process has asked for.
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
	return c, errors.Join(
		c.queue.Watch(config.ChangeInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.ExpirationChange) {
			if before != nil && after != nil && before.Generation == after.Generation {
				return
			}
			// A deletion may wait for this, or, if there is none, nothing is done.
			if run, err := c.runLister.Get(cmp.Or(after, before).Name); err == nil && removable(run) {
				c.queue.Soon(run.Name)
			}
		})),
		c.queue.Watch(config.RunInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.BackupRun) {
			// Not our own writes, which say what a deletion waits for.
			if after != nil && removable(after) && (before == nil || before.UID != after.UID || !removable(before)) {
				c.queue.Add(after.Name)
			}
		})),
		c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
			if after != nil && (before == nil || before.UID != after.UID || before.Closed() && !after.Closed() ||
				!equality.Semantic.DeepEqual(before.Spec, after.Spec)) {
				loop.Wake(c.queue, c.runLister, func(run *enginev1alpha1.BackupRun) bool {
					return run.Spec.Backup.StorageLocation == after.Name && removable(run)
				})
			}
		})))
}

// Run works until ctx ends, and returns when all work has stopped.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

// removable reports whether a backup is to be removed: somebody asked for it, and
// nobody works on it.
func removable(run *enginev1alpha1.BackupRun) bool {
	if run.Spec.Deletion == nil {
		return false
	}
	phase := run.Status.Phase
	standsForStored := run.Spec.Deletion.Stored != nil && (phase == "" || phase == v1alpha1.BackupPhaseNew)
	return phase.Ended() || standsForStored
}

// sync removes a backup, or says why it can't. An error means that it is worth
// another attempt.
func (c *Controller) sync(ctx context.Context, name string) error {
	// Read from the cluster: what is decided here can't be taken back.
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
