// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loop is what controllers have in common: informers fill a workqueue with the
// names of what has changed, and workers bring one after the other up to date.
//
// What it promises: a name is worked on by one worker at a time, and again if it was
// added meanwhile; work begins when the handlers have seen all that there is; what fails
// is tried again, later each time; Run returns when all work has stopped.
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

// Config is how a controller's loop works.
type Config struct {
	// Controller is its name, for metrics and logs.
	Controller string
	// Workers work at once, so that one slow store does not delay the others. Default 1.
	Workers int
	// What fails is tried again after FirstRetry, and then less and less often, up to
	// LastRetry. Defaults: 10 ms and 10 s.
	FirstRetry, LastRetry time.Duration
	Clock                 clock.WithTicker
	// Synced is what work waits for besides the handlers. Optional.
	Synced cache.InformerSynced
}

// Loop is the workqueue of a controller, and who works on it.
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

// OnChange is a handler of each change of objects of one type: before is nil for what
// is new, and after for what is gone. What was replaced while nobody watched has another
// uid after than before.
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

// Watch has a handler see what an informer sees, before Run.
func (l *Loop[K]) Watch(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
	registration, err := informer.AddEventHandler(handler)
	if err == nil {
		l.synced = append(l.synced, registration.HasSynced)
	}
	return err
}

// Synced reports whether the handlers have seen all that there is.
func (l *Loop[K]) Synced() bool {
	for _, synced := range l.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// Soon has a name brought up to date without the delay that it may have earned.
func (l *Loop[K]) Soon(name K) {
	l.Forget(name)
	l.Add(name)
}

// Wake has those of the listed objects brought up to date soon that wait for something
// which has changed.
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

// Run works until ctx ends. The error of sync means that it is worth another attempt.
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
		return true // what is left is not begun
	}
	err := sync(ctx, name)
	if err == nil || ctx.Err() != nil {
		l.Forget(name)
		return true
	}
	if !apierrors.IsConflict(err) { // then the informer is behind
		utilruntime.HandleErrorWithContext(ctx, err, "Not done yet; it will be tried again", "controller", l.config.Controller, "name", name)
	}
	l.AddRateLimited(name)
	return true
}
