// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupqueue gives waiting runs their tickets and lets them start, by
// the rules of pkg/queue. A ticket and a start are one write each; everything
// else about the queue is computed.
package backupqueue

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	// theQueue is the only key: a decision about one run is one about all.
	theQueue = "queue"
	// backstop is how long after a decision the queue is looked at again while runs
	// wait. Every change wakes it at once; this is for a change that got lost.
	backstop = time.Minute
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Limit is how many backups may run at once: at least 1.
	Limit      int
	Runs       engineclient.BackupRunInterface
	ConfigMaps coreclient.ConfigMapInterface
	Clock      clock.WithTicker

	RunInformer       engineinformers.BackupRunInformer
	LocationInformer  engineinformers.BackupStorageLocationInformer
	NamespaceInformer coreinformers.NamespaceInformer
}

// Controller decides on the queue.
type Controller struct {
	namespace  string
	limit      int
	runs       engineclient.BackupRunInterface
	configMaps coreclient.ConfigMapInterface
	clock      clock.WithTicker

	runLister       enginelisters.BackupRunNamespaceLister
	locationLister  enginelisters.BackupStorageLocationNamespaceLister
	namespaceLister corelisters.NamespaceLister
	synced          []cache.InformerSynced
	queue           workqueue.TypedRateLimitingInterface[string]

	compiler *records.Compiler
	// The fields below belong to the one worker.

	// written are runs as this controller last wrote them: the informer may not
	// have seen that yet, and a decision must not be taken twice. Nil is a run that
	// was found to be gone.
	written map[types.UID]*enginev1alpha1.BackupRun
	// unsure is set when the fate of a write is unknown. The next decision is then
	// taken on a list read from the cluster.
	unsure     bool
	lastTicket int64
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	if config.Limit < 1 {
		return nil, queue.ErrLimit
	}
	c := &Controller{
		namespace:       config.Namespace,
		limit:           config.Limit,
		runs:            config.Runs,
		configMaps:      config.ConfigMaps,
		clock:           config.Clock,
		runLister:       config.RunInformer.Lister().BackupRuns(config.Namespace),
		locationLister:  config.LocationInformer.Lister().BackupStorageLocations(config.Namespace),
		namespaceLister: config.NamespaceInformer.Lister(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](10*time.Millisecond, 10*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "backupqueue", Clock: config.Clock}),
		compiler: records.NewCompiler(),
		written:  map[types.UID]*enginev1alpha1.BackupRun{},
	}
	registerMetrics()
	wake := func(any) { c.queue.Add(theQueue) }
	update := func(_, obj any) { wake(obj) }
	for _, r := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandlerFuncs
	}{
		{config.RunInformer.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: update, DeleteFunc: c.runDeleted}},
		{config.LocationInformer.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: update, DeleteFunc: wake}},
		// Only the names of namespaces matter.
		{config.NamespaceInformer.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: wake, DeleteFunc: wake}},
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
	// Another leader may have written what this informer has not seen.
	c.unsure = true
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := c.publishLimit(ctx); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Telling the API server the limit of concurrent backups failed; it will be tried again")
			return
		}
		c.queue.Add(theQueue)
		for c.processNext(ctx) {
		}
	}, time.Second)
}

func (c *Controller) runDeleted(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if run, ok := obj.(*enginev1alpha1.BackupRun); ok {
		c.compiler.Forget(run.UID)
	}
	c.queue.Add(theQueue)
}

func (c *Controller) processNext(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	if err := c.sync(ctx); err != nil {
		c.unsure = true
		utilruntime.HandleErrorWithContext(ctx, err, "Working on the queue failed; it will be tried again")
		c.queue.AddRateLimited(key)
		return true
	}
	c.queue.Forget(key)
	return true
}

// sync brings the queue one decision further. Tickets come first, since a run
// can only start from its place in the queue.
func (c *Controller) sync(ctx context.Context) error {
	runs, plan, err := c.plan(ctx)
	if err != nil {
		return err
	}
	refused, err := c.refuseInvalid(ctx, runs)
	if err != nil {
		return err
	}
	tickets := 0
	for _, ticket := range plan.Tickets {
		if refused[ticket.Key] {
			continue
		}
		if err := c.enqueue(ctx, runs[ticket.Key], ticket.Ticket); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		tickets++
	}
	if tickets+len(refused) > 0 {
		if runs, plan, err = c.plan(ctx); err != nil {
			return err
		}
	}
	for _, key := range plan.Start {
		if err := c.start(ctx, runs[key]); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	observe(plan, c.clock.Now())
	if len(plan.Entries) > 0 {
		c.queue.AddAfter(theQueue, backstop)
	}
	return nil
}

// refuseInvalid ends the new runs whose spec can't be used. The API server
// creates none, so somebody wrote such a record by hand.
func (c *Controller) refuseInvalid(ctx context.Context, runs map[string]*enginev1alpha1.BackupRun) (map[string]bool, error) {
	refused := map[string]bool{}
	for key, run := range runs {
		if run.Status.Phase != "" && run.Status.Phase != v1alpha1.BackupPhaseNew {
			continue
		}
		errs := c.validate(run)
		if len(errs) == 0 {
			continue
		}
		refused[key] = true
		err := c.write(ctx, run, func(status *enginev1alpha1.BackupRunStatus) {
			now := metav1.NewTime(c.clock.Now())
			status.Phase = v1alpha1.BackupPhaseFailedValidation
			status.CompletionTimestamp = &now
			for _, err := range errs {
				status.ValidationErrors = append(status.ValidationErrors, err.Error())
			}
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return refused, nil
}

// validate checks a run as the API server checks the Backup that it stands for.
// Its name is the backup's name in the store, which no two runs may write to.
func (c *Controller) validate(run *enginev1alpha1.BackupRun) field.ErrorList {
	errs := validation.ValidateBackup(run.AsBackup())
	ref := run.Spec.BackupRef
	if name := format.StoreName(ref.Namespace, ref.Name, c.namespace); name != run.Name {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), ref.Name, fmt.Sprintf("its BackupRun must be called %q", name)))
	}
	return errs
}

func (c *Controller) enqueue(ctx context.Context, run *enginev1alpha1.BackupRun, ticket int64) error {
	c.lastTicket = max(c.lastTicket, ticket)
	return c.write(ctx, run, func(status *enginev1alpha1.BackupRunStatus) {
		now := metav1.NewTime(c.clock.Now())
		status.Phase = v1alpha1.BackupPhaseQueued
		status.Ticket = ticket
		status.QueuedTimestamp = &now
	})
}

func (c *Controller) start(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	now := metav1.NewTime(c.clock.Now())
	err := c.write(ctx, run, func(status *enginev1alpha1.BackupRunStatus) {
		status.Phase = v1alpha1.BackupPhaseReadyToStart
		status.ReadyTimestamp = &now
	})
	if err != nil {
		return err
	}
	waited := now.Sub(run.CreationTimestamp.Time)
	if run.Status.QueuedTimestamp != nil {
		waited = now.Sub(run.Status.QueuedTimestamp.Time)
	}
	queueWait.Observe(waited.Seconds())
	klog.FromContext(ctx).Info("Backup left the queue", "backupRun", klog.KObj(run), "waited", waited.Round(time.Millisecond))
	return nil
}

// write changes a run's status if nobody has changed the run since the decision
// was taken: the update carries its resourceVersion.
func (c *Controller) write(ctx context.Context, run *enginev1alpha1.BackupRun, change func(*enginev1alpha1.BackupRunStatus)) error {
	changed := run.DeepCopy()
	change(&changed.Status)
	updated, err := c.runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		// The informer will see that. Its neighbours need not wait for it.
		c.written[run.UID] = nil
		c.queue.Add(theQueue)
	}
	if err != nil {
		return fmt.Errorf("making BackupRun %s %s: %w", run.Name, changed.Status.Phase, err)
	}
	c.written[updated.UID] = updated
	return nil
}

// publishLimit tells the API server the number of slots, so that what it shows
// is what this controller does.
func (c *Controller) publishLimit(ctx context.Context) error {
	wanted := map[string]string{records.ConcurrentBackupsKey: strconv.Itoa(c.limit)}
	settings, err := c.configMaps.Get(ctx, records.SettingsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: records.SettingsName},
			Data:       wanted,
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil || settings.Data[records.ConcurrentBackupsKey] == wanted[records.ConcurrentBackupsKey] {
		return err
	}
	settings.Data = wanted
	_, err = c.configMaps.Update(ctx, settings, metav1.UpdateOptions{})
	return err
}
