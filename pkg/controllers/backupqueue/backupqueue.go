// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupqueue gives waiting runs, of backups and of restores, their tickets
// and lets them start, by the rules of pkg/queue. A ticket and a start are one write
// each; everything else about the queue is computed.
//
// # Two leaders
//
// Two processes that both believe that they lead, of which one may have been
// paused for minutes, never let overlapping runs run at once, nor more of a class than
// its limit. A start is one write to one object: the ledger, in the ConfigMap
// records.LedgerName, which lists the runs that were let start and have not ended. It
// holds because
//
//  1. every run that is executed is in the ledger, from before its claim until it
//     has ended or its executor has stopped;
//  2. the ledger is changed by compare-and-swap alone, by this package alone, and each
//     change is decided against the very version that it replaces: of two decisions that
//     were taken at once one fails, and is taken anew;
//  3. the ledger names the process that leads. Whoever is elected writes its name before
//     it decides anything, into a version that it had read before the cluster said that
//     it leads still: so nobody who was elected later had written by then. From that
//     write on all writes of leaders before it fail, and when these read the ledger they
//     find that they lead no more;
//  4. another process is elected when the one before has stopped (pkg/liveness). So what
//     this one does not execute is read by nobody, and an entry goes as soon as its
//     record is gone, or has ended, and this process does not execute it. A record that
//     is deleted by hand frees nothing that is still being read;
//  5. a claim is a compare-and-swap of the run, after which the executor reads the
//     ledger once more: a run that is not in it, or that another process leads by then,
//     goes back to its place without having been executed. An entry that this process
//     finds there stays until it has stopped reading. So a claim does no harm that was
//     held back while its start was taken back, while another process took over, or while
//     the ledger was lost and made anew: of the runs that are in progress after it was;
//  6. what else a decision rests on may be outdated and does no harm. Words of a
//     selection do not change, and an end is final. A run is read before it is let
//     start, so that none does that is cancelled or gone. One that ends or goes after
//     that, and is not known to, holds its slot a little longer; nobody executes it.
//
// While the ledger can't be read, nothing starts. What remains is an executor that was
// paused until another process was elected, and reads on for a moment when it wakes up,
// until it notices. Whether its backup exists, or has ended as the other process says, is
// decided in the store, by one write that only one of them can make (pkg/backup).
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
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
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
	// theQueue is the only key: a decision about one run is one about all.
	theQueue = "queue"
	// backstop is how long after a decision the queue is looked at again while there are
	// runs in it. Every change wakes it at once, unless it got lost.
	backstop = 10 * time.Second
	// refusedRetry is how long after a refusal a record is written again that has not
	// changed.
	refusedRetry = 10 * time.Second
	// ticketsAtOnce is how many tickets are written before the next decision. After a
	// burst of thousands, starts and cancellations do not wait for all of them.
	ticketsAtOnce = 50
	// refusalsAtOnce is how many records are tried in vain before the next decision: of those that are
	// to end, and of those that are to get a ticket.
	refusalsAtOnce = 3
	// eventsAtOnce is how many events about waiting are sent at once, and then in
	// each backstop: of thousands that wait for the same, nobody reads all.
	eventsAtOnce = 100
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Limits are how many backups and restores may run at once: at least 1 each.
	Limits queue.Slots
	// Identity is this process, which leads.
	Identity string
	// Leads asks the cluster whether it does still: nil if so.
	Leads      func(ctx context.Context) error
	Runs       engineclient.BackupRunInterface
	Restores   engineclient.RestoreRunInterface
	ConfigMaps coreclient.ConfigMapInterface
	Events     events.EventRecorder
	Clock      clock.WithTicker

	RunInformer       engineinformers.BackupRunInformer
	RestoreInformer   engineinformers.RestoreRunInformer
	LocationInformer  engineinformers.StorageLocationInformer
	NamespaceInformer coreinformers.NamespaceInformer
	// LedgerInformer knows the ConfigMap records.LedgerName.
	LedgerInformer coreinformers.ConfigMapInformer
}

// Executor executes, in this process, what the queue lets start of one kind.
type Executor[R any] interface {
	// Start has a run claimed and executed that is in the ledger. It is called again and
	// again until the run is claimed, and does not block.
	Start(name string)
	// Executing are the runs that are being worked on, by name, from before they are read
	// for their claim until nothing of them is read any more: nil before they are known, and
	// InProgress from before they are claimed. When a run whose record is gone is not worked
	// on any more, the executor calls Changed.
	Executing() map[string]R
}

// Controller decides on the queue.
type Controller struct {
	Config
	kinds           [2]*kind // by class
	locationLister  enginelisters.StorageLocationNamespaceLister
	namespaceLister corelisters.NamespaceLister
	ledgerLister    corelisters.ConfigMapNamespaceLister
	queue           *loop.Loop[string]

	// changing guards changed, the runs that have changed since the last decision, and held.
	changing sync.Mutex
	changed  sets.Set[key]
	// held are the locations whose store did not answer a run that was taken back, as written
	// then, by name, until the informer has seen that.
	held map[string]*enginev1alpha1.StorageLocation

	// planning guards planner. The worker changes it; the metrics read it, too.
	planning sync.Mutex
	planner  *records.Planner

	// The fields below belong to the one worker.

	// known are the runs as the planner has them.
	known map[key]record
	// unadmitted are those that have changed since admit saw them.
	unadmitted sets.Set[key]
	// written are runs as this controller last wrote or read them: the informer may not
	// have seen that yet, and a decision must not be taken twice.
	written map[key]record
	// refused are the runs whose record may not be written.
	refused map[key]refusal
	// unsure is set when the fate of a write is unknown. The next decision is then
	// taken on a list read from the cluster.
	unsure bool
	// ledger is the latest version that was read or written; nil when in doubt.
	ledger *corev1.ConfigMap
	// unannounced are the runs that have got their place, in order of tickets, and have no
	// event of that yet.
	unannounced []types.UID
	// passedOver is what was logged of runs when others passed them by.
	passedOver map[types.UID]string
	// waitEvents bounds the events about waiting.
	waitEvents flowcontrol.PassiveRateLimiter
	// nextCheck is when all runs are compared with the informer.
	nextCheck time.Time
	// unreadable is the version of the ledger that was reported to be.
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
		// It says what is in conflict, and no more.
		c.queue.Watch(config.NamespaceInformer.Informer(), cache.ResourceEventHandlerFuncs{}))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context, backups Executor[*enginev1alpha1.BackupRun], restores Executor[*enginev1alpha1.RestoreRun]) {
	executedBy(c.kinds[queue.Backup], backups)
	executedBy(c.kinds[queue.Restore], restores)
	c.queue.Add(theQueue)
	c.queue.Run(ctx, func(ctx context.Context, _ string) error { return c.sync(ctx) })
}

// Changed wakes the queue when a run has changed, or is not worked on any more whose
// record is gone. It may be of either class, and it costs nothing to look at both.
func (c *Controller) Changed(name string) {
	c.changing.Lock()
	c.changed.Insert(key{queue.Backup, name}, key{queue.Restore, name})
	c.changing.Unlock()
	c.queue.Add(theQueue)
}

// sync brings the queue one decision further.
func (c *Controller) sync(ctx context.Context) error {
	err := c.step(ctx)
	if err != nil && !apierrors.IsConflict(err) {
		c.unsure = true // of what was written
	}
	return err
}

// step decides and acts. Cancellations and tickets come first, since a run can only
// start from its place in the queue. A run whose record can't be written holds nobody up.
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
	if err == nil || d.unreadable != nil || records.Refused(err) { // the latter for as long as somebody likes
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
