// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupqueue gives waiting backups and restores their tickets and starts, by the rules of
// pkg/queue. Each is one write; everything else is computed.
//
// A start is an update of one ConfigMap, the ledger (records.LedgerName), which lists started runs
// until they end. While it can't be read, nothing starts. Two leading processes never run overlapping
// runs at once, nor more of a class than its limit: docs/design/fences.md, "The ledger of the queue".
package backupqueue

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	// theQueue is the only key: each decision is about all runs.
	theQueue = "queue"
	// backstop is the time until the next decision, in case a change was lost.
	backstop     = 10 * time.Second
	refusedRetry = 10 * time.Second
	// ticketsAtOnce bounds a decision's tickets: in a burst, starts and cancellations don't wait.
	ticketsAtOnce = 50
	// refusalsAtOnce bounds a decision's refused writes, for ends and for tickets each.
	refusalsAtOnce = 3
	// eventsAtOnce bounds the events about waiting runs, at once and per backstop.
	eventsAtOnce = 100
)

// Config configures a Controller.
type Config struct {
	Namespace string
	// Limits are at least 1 each.
	Limits   queue.Slots
	Identity string
	// Leads asks the cluster whether this process still leads: nil if so.
	Leads      func(ctx context.Context) error
	Runs       engineclient.BackupRunInterface
	Restores   engineclient.RestoreRunInterface
	ConfigMaps corev1client.ConfigMapInterface
	Events     events.EventRecorder
	Clock      clock.WithTicker

	// Snapshots says that backups may make snapshots of volumes.
	Snapshots bool

	RunInformer       engineinformers.BackupRunInformer
	RestoreInformer   engineinformers.RestoreRunInformer
	LocationInformer  engineinformers.StorageLocationInformer
	NamespaceInformer coreinformers.NamespaceInformer
	LedgerInformer    coreinformers.ConfigMapInformer
}

// Executor executes one kind's started runs in this process.
type Executor[R any] interface {
	// Start claims and executes a run of the ledger, without blocking. It is repeated until the run is
	// claimed.
	Start(name string)
	// Executing returns the runs in work by name, from before they are read for their claim until
	// nothing is read for them. They are nil before they are known, and InProgress before they are
	// claimed. After work on a run without a record, the executor calls Changed.
	Executing() map[string]R
}

// Controller decides on the queue.
type Controller struct {
	Config
	kinds           [2]*kind
	locationLister  enginelisters.StorageLocationNamespaceLister
	namespaceLister corelisters.NamespaceLister
	ledgerLister    corelisters.ConfigMapNamespaceLister
	queue           *loop.Loop[string]

	// changing guards changed, the runs changed since the last decision, and held.
	changing sync.Mutex
	changed  sets.Set[key]
	// held has locations whose store did not answer a returned run, as then written, until the informer
	// shows that.
	held map[string]*enginev1alpha1.StorageLocation

	// planning guards planner, which the worker changes and metrics read.
	planning sync.Mutex
	planner  *records.Planner

	// The only worker owns the fields below.

	known map[key]record
	// unadmitted has runs changed since admit saw them.
	unadmitted sets.Set[key]
	// written has runs as last written or read, until the informer shows that.
	written map[key]record
	refused map[key]refusal
	// unsure follows a write with unknown result. The next decision lists the cluster.
	unsure bool
	// ledger is the latest known version; nil in doubt.
	ledger *corev1.ConfigMap
	// unannounced has queued runs without an event, by ticket.
	unannounced []types.UID
	passedOver  map[types.UID]string
	waitEvents  flowcontrol.PassiveRateLimiter
	nextCheck   time.Time
	// unreadable is the ledger version reported as unreadable.
	unreadable string
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	planner, err := records.NewPlanner(config.Limits)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		Config: config,
		kinds: [...]*kind{
			queue.Backup: newKind[*enginev1alpha1.BackupRun, *enginev1alpha1.BackupRunList](
				"BackupRun", config.Namespace, config.Runs, config.RunInformer.Informer().GetStore()),
			queue.Restore: newKind[*enginev1alpha1.RestoreRun, *enginev1alpha1.RestoreRunList](
				"RestoreRun", config.Namespace, config.Restores, config.RestoreInformer.Informer().GetStore()),
		},
		locationLister:  config.LocationInformer.Lister().StorageLocations(config.Namespace),
		namespaceLister: config.NamespaceInformer.Lister(),
		ledgerLister:    config.LedgerInformer.Lister().ConfigMaps(config.Namespace),
		queue:           loop.New[string](loop.Config{Controller: "backupqueue", Clock: config.Clock}),

		changed:    sets.New[key](),
		held:       map[string]*enginev1alpha1.StorageLocation{},
		planner:    planner,
		known:      map[key]record{},
		unadmitted: sets.New[key](),
		written:    map[key]record{},
		refused:    map[key]refusal{},
		passedOver: map[types.UID]string{},
		waitEvents: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(
			float32(eventsAtOnce/backstop.Seconds()), eventsAtOnce, config.Clock),
	}
	registerMetrics(c)
	return c, errors.Join(
		c.queue.Watch(config.RunInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.BackupRun) {
			c.Changed(cmp.Or(before, after).Name)
		})),
		c.queue.Watch(config.RestoreInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.RestoreRun) {
			c.Changed(cmp.Or(before, after).Name)
		})),
		c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(_, _ *enginev1alpha1.StorageLocation) { c.queue.Add(theQueue) })),
		c.queue.Watch(config.LedgerInformer.Informer(), loop.OnChange(func(_, _ *corev1.ConfigMap) { c.queue.Add(theQueue) })),
		// Only names conflicts.
		c.queue.Watch(config.NamespaceInformer.Informer(), cache.ResourceEventHandlerFuncs{}))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context, backups Executor[*enginev1alpha1.BackupRun], restores Executor[*enginev1alpha1.RestoreRun]) {
	executedBy(c.kinds[queue.Backup], backups)
	executedBy(c.kinds[queue.Restore], restores)
	c.queue.Add(theQueue)
	c.queue.Run(ctx, func(ctx context.Context, _ string) error { return c.sync(ctx) })
}

// Changed wakes the queue after a change of a run of either class, or after work on a run without a
// record.
func (c *Controller) Changed(name string) {
	c.changing.Lock()
	c.changed.Insert(key{queue.Backup, name}, key{queue.Restore, name})
	c.changing.Unlock()
	c.queue.Add(theQueue)
}

func (c *Controller) sync(ctx context.Context) error {
	err := c.step(ctx)
	if err != nil && !apierrors.IsConflict(err) {
		c.unsure = true
	}
	return err
}

// step decides and acts. Ends and tickets come first, since a run starts from its place in the queue. A
// refused record delays no other.
func (c *Controller) step(ctx context.Context) error {
	d, err := c.decide(ctx)
	if err != nil {
		return err
	}
	written, err := c.admit(ctx, d)
	if err != nil {
		return err
	}
	if written {
		if d, err = c.decide(ctx); err != nil {
			return err
		}
	}
	err = c.writeStarts(ctx, d)
	if err == nil || d.unreadable != nil || records.Refused(err) { // a refusal may last
		c.announce()
	}
	if err != nil {
		return err
	}
	for _, start := range d.holding {
		if run := c.known[startKey(start)]; run != nil && records.Unclaimed(run) {
			c.kinds[start.Class()].start(start.Name)
		}
	}
	if c.planner.Len() > 0 {
		c.queue.AddAfter(theQueue, backstop)
	}
	return nil
}
