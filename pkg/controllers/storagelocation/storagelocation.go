// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storagelocation checks whether storage locations are reachable and have their former store,
// and reports it in the condition Available, on changes. It gives new stores an id, claims each store
// for its process, and detects another cluster with the same uid. At a SyncRequest it writes, reads,
// lists and deletes a probe, and reports it in the condition Probed.
//
// A store may answer checks, but not the run that starts. Its location is then held, so that the queue
// passes its runs over.
package storagelocation

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// A store is checked each checkInterval; more often if it does not answer, since backups wait.
	checkInterval = time.Minute
	retryInterval = 5 * time.Second
	checkTimeout  = 10 * time.Second
	// A location is held for firstHold, doubled each time that it is held again soon.
	firstHold, longestHold = 10 * time.Second, 5 * time.Minute
	workers                = 4
)

// Config configures a Controller.
type Config struct {
	Locations engineclient.StorageLocationsGetter
	Secrets   location.Secrets
	// ClusterUID is this cluster's, Identity this process's, Before the former leader.
	ClusterUID, Identity string
	Before               lease.Predecessor
	Events               events.EventRecorder
	Clock                clock.WithTicker

	LocationInformer engineinformers.StorageLocationInformer
}

// Controller checks the locations of one namespace.
type Controller struct {
	locations  engineclient.StorageLocationsGetter
	secrets    location.Secrets
	clusterUID string
	identity   string
	before     lease.Predecessor
	events     events.EventRecorder
	check      Check
	probe      Probe
	lister     enginelisters.StorageLocationLister
	queue      *loop.Loop[cache.ObjectName]
	clock      clock.PassiveClock
	nonce      string

	mu     sync.Mutex
	holds  map[cache.ObjectName]hold
	claims map[string]*claimant
}

// Check checks a location's store. It returns the store's id for the status, and the condition about
// other clusters' claims; nil if unchanged.
type Check func(ctx context.Context, record *enginev1alpha1.StorageLocation) (condition metav1.Condition, storeID string, cloned *metav1.Condition)

// hold says why and until when a location is unavailable, though its store answers checks.
type hold struct {
	uid        types.UID
	generation int64 // of the record: a change may have fixed it
	reason     string
	length     time.Duration
	until      time.Time
}

func (h hold) isOf(location *enginev1alpha1.StorageLocation) bool {
	return h.uid == location.UID && h.generation == location.Generation
}

// New returns a Controller.
func New(config Config) (*Controller, error) { return NewWithCheck(config, nil) }

// NewWithCheck returns a Controller that asks stores by check, and makes no probes; nil is as New.
func NewWithCheck(config Config, check Check) (*Controller, error) {
	c := &Controller{
		locations:  config.Locations,
		secrets:    config.Secrets,
		clusterUID: config.ClusterUID,
		identity:   config.Identity,
		before:     config.Before,
		events:     config.Events,
		check:      check,
		lister:     config.LocationInformer.Lister(),
		queue:      loop.New[cache.ObjectName](loop.Config{Controller: "storagelocation", Workers: workers, Clock: config.Clock}),
		clock:      config.Clock,
		nonce:      strings.ToLower(rand.Text()),
		holds:      map[cache.ObjectName]hold{},
		claims:     map[string]*claimant{},
	}
	if check == nil {
		c.check, c.probe = c.ask, c.tryOut
	}
	registerMetrics(c)
	return c, c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
		if after != nil && (before == nil || before.Generation != after.Generation || givenUp(before) != givenUp(after) || takeOver(before) != takeOver(after)) {
			c.queue.Add(cache.MetaObjectToName(after))
		}
	}))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.checkAndProbe) }

// Hold checks a location whose store did not answer a run. If it answers the check, the location is
// held with this reason anyway, unless already held. It returns the written record; nil if there is
// none, or nothing was decided.
func (c *Controller) Hold(ctx context.Context, key cache.ObjectName, reason error) (*enginev1alpha1.StorageLocation, error) {
	return c.update(ctx, key, reason)
}

func (c *Controller) held(key cache.ObjectName, location *enginev1alpha1.StorageLocation, reason error) (hold, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, last := c.clock.Now(), c.holds[key]
	switch {
	case last.isOf(location) && now.Before(last.until):
		return last, true
	case reason == nil:
		return hold{}, false
	}
	next := hold{uid: location.UID, generation: location.Generation, length: firstHold,
		reason: fmt.Sprintf("the store answers, but did not answer a backup or restore that was to start: %v", reason)}
	if last.isOf(location) && now.Sub(last.until) < checkInterval {
		next.length = min(2*last.length, longestHold)
	}
	next.until = now.Add(next.length)
	c.holds[key] = next
	return next, true
}

// Check checks a location's store and writes the result. Controllers call it after a failure, to inform
// all.
func (c *Controller) Check(ctx context.Context, key cache.ObjectName) error {
	_, err := c.update(ctx, key, nil)
	return err
}

func (c *Controller) update(ctx context.Context, key cache.ObjectName, reason error) (*enginev1alpha1.StorageLocation, error) {
	location, err := c.lister.StorageLocations(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.forget(key)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	condition, storeID, cloned := c.check(timed, location)
	if ctx.Err() != nil {
		return nil, nil
	}
	again := checkInterval
	if condition.Status != metav1.ConditionTrue {
		again = retryInterval
	} else if hold, held := c.held(key, location, reason); held {
		again = hold.until.Sub(c.clock.Now())
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable, hold.reason
	} else {
		condition.Message += c.rivals(location)
	}
	c.queue.AddAfter(key, again)

	changed := location.DeepCopy()
	condition.ObservedGeneration = location.Generation
	condition.LastTransitionTime = metav1.NewTime(c.clock.Now())
	changed.Status.StoreID = storeID
	differs := meta.SetStatusCondition(&changed.Status.Conditions, condition) || storeID != location.Status.StoreID
	if cloned != nil {
		cloned.ObservedGeneration, cloned.LastTransitionTime = location.Generation, condition.LastTransitionTime
		differs = meta.SetStatusCondition(&changed.Status.Conditions, *cloned) || differs
	}
	if !differs {
		return location, nil
	}
	written, err := c.locations.StorageLocations(key.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		c.lookAgain(key.Name)
		return nil, fmt.Errorf("writing the condition of StorageLocation %s: %w", key, err)
	}
	if cloned != nil && cloned.Status == metav1.ConditionTrue {
		c.events.Eventf(changed, nil, corev1.EventTypeWarning, enginev1alpha1.ConditionClonedCluster, "Claim", "%s", cloned.Message)
	}
	klog.FromContext(ctx).Info("Storage location changed", "storageLocation", key, "available", condition.Status, "reason", condition.Reason, "message", condition.Message, "storeID", storeID, "cloned", changed.Cloned())
	return written, nil
}

// lookAgain has the next check consider the claim again, as its condition was not written.
func (c *Controller) lookAgain(name string) {
	c.mu.Lock()
	of := c.claims[name]
	c.mu.Unlock()
	if of != nil {
		of.mu.Lock()
		of.next = time.Time{}
		of.mu.Unlock()
	}
}

func (c *Controller) forget(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holds, key)
	delete(c.claims, key.Name)
}

func (c *Controller) ask(ctx context.Context, record *enginev1alpha1.StorageLocation) (condition metav1.Condition, storeID string, cloned *metav1.Condition) {
	// An invalid recovery key must not look like a protection. The API server can't detect it.
	if err := recovery.Validate(record.Spec.RecoveryKeys); err != nil {
		return unavailable(err, enginev1alpha1.ReasonInvalid), record.Status.StoreID, nil
	}
	known := record.Status.StoreID
	bucket, err := location.OpenUnverified(ctx, c.secrets, record)
	if err != nil {
		return unavailable(err, enginev1alpha1.ReasonInvalid), known, nil
	}
	defer bucket.Close()
	if err := bucket.Check(ctx); err != nil {
		return unavailable(err, enginev1alpha1.ReasonUnreachable), known, nil
	}
	// A backup whose objects can't be locked would be a broken promise.
	if err := bucket.CheckLock(ctx); errors.Is(err, store.ErrNoLock) {
		return unavailable(err, enginev1alpha1.ReasonInvalid), known, nil
	} else if err != nil {
		return unavailable(err, enginev1alpha1.ReasonUnreachable), known, nil
	}
	message := "the store answers"
	if at := record.Spec.AsOf(); at != nil {
		if storeID, err = identifyAsOf(ctx, bucket, record); err != nil {
			return unavailable(err, enginev1alpha1.ReasonUnreachable), known, nil
		}
		message = fmt.Sprintf("the store answers; it is shown as of %s, and nothing is written to it", at.UTC().Format(time.RFC3339))
	} else if !record.Spec.IsLonghorn() {
		storeID, err = c.identify(ctx, bucket, record)
		if refused, ok := errors.AsType[*noWritesError](err); ok {
			message += "; " + refused.Error()
		} else if err == nil {
			cloned = c.claim(ctx, bucket, record, storeID)
			if !record.Cloned() && cloned == nil && c.claimant(record.Name, storeID).ignoresConditions(ctx, bucket) {
				message += "; " + conditionsIgnored
			}
		} else {
			return unavailable(err, enginev1alpha1.ReasonUnreachable), known, nil
		}
	}
	return metav1.Condition{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue,
		Reason: enginev1alpha1.ReasonReachable, Message: message}, storeID, cloned
}

func (c *Controller) rivals(record *enginev1alpha1.StorageLocation) string {
	locations, err := c.lister.StorageLocations(record.Namespace).List(labels.Everything())
	if defaults := location.Defaults(locations); err == nil && record.Spec.Default && len(defaults) > 1 {
		return fmt.Sprintf("; %s are all marked as default, and %q is taken", strings.Join(defaults, ", "), defaults[0])
	}
	return ""
}

func unavailable(err error, reason string) metav1.Condition {
	message := err.Error()
	switch {
	case errors.Is(err, store.ErrOther):
		reason = enginev1alpha1.ReasonOtherStore
	case errors.Is(err, store.ErrNoBucket):
		reason = enginev1alpha1.ReasonNoSuchBucket
	case errors.Is(err, store.ErrClock):
		reason = enginev1alpha1.ReasonClockSkew
	case errors.Is(err, store.ErrDenied):
		reason = enginev1alpha1.ReasonAccessDenied
	case errors.Is(err, store.ErrAsOf):
		return metav1.Condition{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionFalse, Reason: enginev1alpha1.ReasonInvalid, Message: store.Reason(err)}
	case errors.Is(err, store.ErrUnavailable):
		reason = enginev1alpha1.ReasonUnreachable // a folder is opened for the check
	}
	if reason != enginev1alpha1.ReasonInvalid {
		message = store.Reason(err)
	}
	return metav1.Condition{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}
