// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupqueue gives waiting runs their tickets and lets them start, by
// the rules of pkg/queue. A ticket and a start are one write each; everything
// else about the queue is computed.
//
// # Two leaders
//
// Two processes that both believe that they lead, of which one may have been
// paused for minutes, never let overlapping backups run at once, nor more than the
// limit. A start is one write to one object: the ledger, in the ConfigMap
// records.SettingsName, which lists the runs that were let start and have not
// ended. It holds because
//
//  1. every run that is executed is in the ledger, from before its claim until it
//     has ended or its executor has stopped;
//  2. the ledger is changed by compare-and-swap alone, and each change is decided
//     against the very version that it replaces: of two decisions that were taken
//     at once one fails, and is taken anew;
//  3. what else a decision rests on may be outdated and does no harm. Words of a
//     selection do not change, and an end is final. A run that has ended and is not
//     known to holds its slot a little longer; one in the ledger that can't be
//     found overlaps everything;
//  4. an entry names one process, which alone may claim the run (pkg/controllers/
//     backuprun), and which alone removes the entry when the record was deleted:
//     so a deletion by hand frees nothing that is still being read. Another process
//     takes both over when that one is gone for good (pkg/liveness);
//  5. a claim is a compare-and-swap of the run, prepared by reading the run and
//     then the ledger. A start is taken back by changing the run and then the
//     ledger. So a claim that was held back meanwhile fails;
//  6. the ledger is read once more after the claim, and a run that is not in it goes
//     back to its place without having been executed. So a ledger that was lost is
//     made anew, in two writes, of the runs that are in progress after it was lost: a
//     claim that came before is among them, and one that comes later finds out.
//
// While the ledger can't be read, nothing starts. What remains is an executor that was
// paused until it was taken for dead, and reads on for a moment when it wakes up,
// until it notices. Before it makes the backup exist it asks the cluster whether the
// run is still its own (pkg/controllers/backuprun).
package backupqueue

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	// theQueue is the only key: a decision about one run is one about all.
	theQueue = "queue"
	// backstop is how long after a decision the queue is looked at again while runs
	// wait, to tell people. Every change wakes it at once, unless it got lost.
	backstop = 10 * time.Second
	// recheck is how long after a decision the queue is looked at again that depends
	// on another process being gone.
	recheck = 2 * time.Second
	// refusedRetry is how long after a refusal a record is written again that has not
	// changed.
	refusedRetry = 10 * time.Second
	// ticketsAtOnce is how many tickets are written before the next decision. After a
	// burst of thousands, starts and cancellations do not wait for all of them.
	ticketsAtOnce = 50
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Limit is how many backups may run at once: at least 1.
	Limit int
	// Identity is this process, which executes what it lets start.
	Identity string
	// Gone reports whether another process has ended for good.
	Gone       func(ctx context.Context, identity string) (bool, error)
	Runs       engineclient.BackupRunInterface
	ConfigMaps coreclient.ConfigMapInterface
	Events     events.EventRecorder
	Clock      clock.WithTicker

	RunInformer       engineinformers.BackupRunInformer
	LocationInformer  engineinformers.StorageLocationInformer
	NamespaceInformer coreinformers.NamespaceInformer
	// SettingsInformer knows the ConfigMap records.SettingsName.
	SettingsInformer coreinformers.ConfigMapInformer
}

// Controller decides on the queue.
type Controller struct {
	namespace  string
	limit      int
	identity   string
	gone       func(context.Context, string) (bool, error)
	runs       engineclient.BackupRunInterface
	configMaps coreclient.ConfigMapInterface
	events     events.EventRecorder
	clock      clock.WithTicker

	runLister       enginelisters.BackupRunNamespaceLister
	locationLister  enginelisters.StorageLocationNamespaceLister
	namespaceLister corelisters.NamespaceLister
	settingsLister  corelisters.ConfigMapNamespaceLister
	synced          []cache.InformerSynced
	queue           workqueue.TypedRateLimitingInterface[string]

	news news

	// planning guards planner. The worker changes it; the metrics read it, too.
	planning sync.Mutex
	planner  *records.Planner

	// The fields below belong to the one worker.

	// known are the runs by name, as the planner was told of them.
	known map[string]*enginev1alpha1.BackupRun
	// unsettled are the names of those that have changed since settle saw them.
	unsettled sets.Set[string]
	// blockers are the uids of what stands for runs that were not found.
	blockers []types.UID
	// written are runs by name, as this controller last wrote them: the informer may
	// not have seen that yet, and a decision must not be taken twice.
	written map[string]version
	// refused are the runs, by name, whose record may not be written.
	refused map[string]refusal
	// unsure is set when the fate of a write is unknown. The next decision is then
	// taken on a list read from the cluster.
	unsure bool
	// settings are the latest version that was read or written; nil when in doubt.
	settings *corev1.ConfigMap
	// told is what people know, by the uid of a run that waits.
	told map[types.UID]*told
	// toldOnce is set when all that wait were looked at for the first time.
	toldOnce bool
	// enqueued are the uids of runs that got their place, or may have, since people
	// were told of such.
	enqueued sets.Set[types.UID]
	// waitEvents bounds the events about waiting.
	waitEvents flowcontrol.PassiveRateLimiter
	// nextCheck and nextTell are when all runs are compared with the informer, and when
	// the waits are looked at.
	nextCheck, nextTell time.Time
	// nextPublish is when the limit may be published again.
	nextPublish time.Time
	// unreadable is the version of the settings that was reported to be.
	unreadable string
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	planner, err := records.NewPlanner(config.Limit)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		namespace:       config.Namespace,
		limit:           config.Limit,
		identity:        config.Identity,
		gone:            config.Gone,
		runs:            config.Runs,
		configMaps:      config.ConfigMaps,
		events:          config.Events,
		clock:           config.Clock,
		runLister:       config.RunInformer.Lister().BackupRuns(config.Namespace),
		locationLister:  config.LocationInformer.Lister().StorageLocations(config.Namespace),
		namespaceLister: config.NamespaceInformer.Lister(),
		settingsLister:  config.SettingsInformer.Lister().ConfigMaps(config.Namespace),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](10*time.Millisecond, 10*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "backupqueue", Clock: config.Clock}),
		news:      news{runs: sets.New[string](), ended: sets.New[types.UID]()},
		planner:   planner,
		known:     map[string]*enginev1alpha1.BackupRun{},
		unsettled: sets.New[string](),
		written:   map[string]version{},
		refused:   map[string]refusal{},
		told:      map[types.UID]*told{},
		enqueued:  sets.New[types.UID](),
		waitEvents: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(
			float32(eventsAtOnce/backstop.Seconds()), eventsAtOnce, config.Clock),
	}
	registerMetrics(c)
	for _, r := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandlerFuncs
	}{
		{config.RunInformer.Informer(), c.noting(c.news.runChanged)},
		{config.LocationInformer.Informer(), c.noting(c.news.locationChanged)},
		{config.NamespaceInformer.Informer(), c.noting(c.news.namespaceChanged)},
		// Others change it, too: executors put runs back.
		{config.SettingsInformer.Informer(), c.noting(func(_, _ any) bool { return true })},
	} {
		if _, err := r.informer.AddEventHandler(r.handler); err != nil {
			return nil, err
		}
		c.synced = append(c.synced, r.informer.HasSynced)
	}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	go func() {
		<-ctx.Done()
		c.queue.ShutDown()
	}()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		// Another leader may have written what this informer has not seen.
		c.unsure = true
		if err := c.publishLimit(ctx); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Telling the API server the limit of concurrent backups failed; it will be tried again")
			return
		}
		c.queue.Add(theQueue)
		for c.processNext(ctx) {
		}
	}, time.Second)
}

// noting returns handlers that take note of what changed, and wake the worker if it
// matters. The new state of what was removed is nil.
func (c *Controller) noting(note func(before, after any) bool) cache.ResourceEventHandlerFuncs {
	changed := func(before, after any) {
		if note(before, after) {
			c.queue.Add(theQueue)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(nil, obj) },
		UpdateFunc: changed,
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			changed(obj, nil)
		},
	}
}

func (c *Controller) processNext(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	refusals, err := c.sync(ctx)
	if refusals != nil {
		utilruntime.HandleErrorWithContext(ctx, refusals, "Records may not be written; their backups wait, and the others do not wait for them")
	}
	switch {
	case err == nil:
		c.queue.Forget(key)
	case apierrors.IsConflict(err):
		klog.FromContext(ctx).V(2).Info("Somebody else was faster; it is decided anew", "err", err)
		c.queue.AddRateLimited(key)
	default:
		c.unsure = true // of what was written
		utilruntime.HandleErrorWithContext(ctx, err, "Working on the queue failed; it will be tried again")
		c.queue.AddRateLimited(key)
	}
	return true
}

// sync brings the queue one decision further. Cancellations and tickets come
// first, since a run can only start from its place in the queue. A run whose record
// can't be written holds nobody up, and is among the refusals.
func (c *Controller) sync(ctx context.Context) (refusals, err error) {
	d, err := c.decide(ctx)
	if err != nil {
		return refusals, err
	}
	changed, refusals, err := c.settle(ctx, d)
	if err != nil {
		return refusals, err
	}
	for {
		if changed {
			if d, err = c.decide(ctx); err != nil {
				return refusals, err
			}
		}
		if d.unreadable != nil {
			c.tell(ctx, d)
			return refusals, d.unreadable
		}
		if changed, err = c.refresh(ctx, d); err != nil {
			return refusals, err
		}
		if !changed {
			break
		}
	}
	if err := c.writeLedger(ctx, d); err != nil {
		if records.Refused(err) { // for as long as somebody likes
			d.Start = nil
			c.tell(ctx, d)
		}
		return refusals, err
	}
	c.tell(ctx, d)
	if err := c.correctLimit(ctx); err != nil {
		return refusals, err
	}
	if d.ledger.others {
		c.queue.AddAfter(theQueue, recheck)
	}
	if c.planner.Len() > 0 {
		c.queue.AddAfter(theQueue, backstop)
	}
	return refusals, nil
}

// refresh reads the runs that are to start, and reports whether one of them has
// changed. What is gone or has ended must not come into the ledger again.
func (c *Controller) refresh(ctx context.Context, d *decision) (bool, error) {
	changed := false
	for _, uid := range d.Start {
		run := c.planner.Run(uid)
		live, err := c.runs.Get(ctx, run.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && live.UID != run.UID:
			c.written[run.Name] = version{uid: run.UID}
			changed = true
		case err != nil:
			return false, fmt.Errorf("reading BackupRun %s: %w", run.Name, err)
		case live.ResourceVersion != run.ResourceVersion:
			c.written[live.Name] = version{live.UID, live}
			changed = true
		}
	}
	return changed, nil
}
