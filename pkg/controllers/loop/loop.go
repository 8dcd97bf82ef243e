// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loop is common to controllers: informers fill a workqueue with names, and workers sync each.
//
// One worker handles a name at a time, and again if it was added meanwhile. Work begins after the
// handlers have seen all objects. Failures are repeated with growing delays. Run returns when all work
// has stopped.
package loop

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Config configures a Loop.
type Config struct {
	Controller string
	// Workers run concurrently. Default 1.
	Workers int
	// Failures are repeated after FirstRetry, then less often up to LastRetry. Defaults: 10 ms, 10 s.
	FirstRetry, LastRetry time.Duration
	Clock                 clock.WithTicker
	// Synced is an additional condition to begin. Optional.
	Synced cache.InformerSynced
}

// Loop is a controller's workqueue, with its workers.
type Loop[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]
	config Config
	synced []cache.InformerSynced
}

// New returns a Loop.
func New[K comparable](config Config) *Loop[K] {
	if config.FirstRetry == 0 {
		config.FirstRetry, config.LastRetry = 10*time.Millisecond, 10*time.Second
	}
	l := &Loop[K]{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[K](config.FirstRetry, config.LastRetry),
			workqueue.TypedRateLimitingQueueConfig[K]{Name: config.Controller, Clock: config.Clock}),
		config: config,
	}
	if config.Synced != nil {
		l.synced = append(l.synced, config.Synced)
	}
	return l
}

// OnChange returns a handler of changes of one type: before is nil for a new object, after for a
// deleted one. If an object was replaced unseen, the uids differ.
func OnChange[T any](changed func(before, after *T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(nil, obj.(*T)) },
		UpdateFunc: func(before, after any) { changed(before.(*T), after.(*T)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if gone, ok := obj.(*T); ok {
				changed(gone, nil)
			}
		},
	}
}

// Watch adds a handler to an informer. It must precede Run.
func (l *Loop[K]) Watch(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
	registration, err := informer.AddEventHandler(handler)
	if err == nil {
		l.synced = append(l.synced, registration.HasSynced)
	}
	return err
}

// Synced reports whether the handlers have seen all objects.
func (l *Loop[K]) Synced() bool {
	for _, synced := range l.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// Soon adds a name without its retry delay.
func (l *Loop[K]) Soon(name K) {
	l.Forget(name)
	l.Add(name)
}

// Wake enqueues every listed object for which waits is true.
func Wake[T metav1.Object](l *Loop[string], lister interface {
	List(labels.Selector) ([]T, error)
}, waits func(T) bool) {
	listed, err := lister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err)
		return
	}
	for _, object := range listed {
		if waits(object) {
			l.Soon(object.GetName())
		}
	}
}

// Run works until ctx ends. An error of sync causes another attempt.
func (l *Loop[K]) Run(ctx context.Context, sync func(context.Context, K) error) {
	defer utilruntime.HandleCrashWithContext(ctx)
	stop := context.AfterFunc(ctx, l.ShutDown)
	defer stop()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, l.synced...) {
		return
	}
	var running wait.Group
	for range max(1, l.config.Workers) {
		running.StartWithContext(ctx, func(ctx context.Context) {
			for l.next(ctx, sync) {
			}
		})
	}
	running.Wait()
}

func (l *Loop[K]) next(ctx context.Context, sync func(context.Context, K) error) bool {
	name, shutdown := l.Get()
	if shutdown {
		return false
	}
	defer l.Done(name)
	if ctx.Err() != nil {
		return true
	}
	err := sync(ctx, name)
	if err == nil || ctx.Err() != nil {
		l.Forget(name)
		return true
	}
	if !apierrors.IsConflict(err) { // a conflict means that the informer lags
		utilruntime.HandleErrorWithContext(ctx, err, "Not done yet; it will be tried again", "controller", l.config.Controller, "name", name)
	}
	l.AddRateLimited(name)
	return true
}
