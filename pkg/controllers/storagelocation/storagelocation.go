// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storagelocation finds out whether storage locations can be reached, and whether
// their stores are those that they have had until now. It says so in their condition
// Available, and writes on a change only. It gives an id to a store that has none. It claims
// each store for its process, and notices when another cluster with the same uid does.
//
// A store may answer each check and not the run that is to start. Its location is then held:
// it is unavailable for a while, longer each time, and the queue passes its runs by.
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
	"github.com/holdfast-io/holdfast/pkg/liveness"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// A store that answers is asked again after checkInterval. One that does not
	// holds backups back, so it is asked more often.
	checkInterval = time.Minute
	retryInterval = 5 * time.Second
	checkTimeout  = 10 * time.Second
	// A location is held for firstHold, and twice as long each time that it is held again soon
	// after.
	firstHold, longestHold = 10 * time.Second, 5 * time.Minute
	// One slow store must not delay the others.
	workers = 4
)

// Config is what a Controller needs.
type Config struct {
	Locations engineclient.StorageLocationsGetter
	// Secrets with the credentials of the locations.
	Secrets location.Secrets
	// ClusterUID is this cluster's, Identity this process's, and Before who led before it.
	ClusterUID, Identity string
	Before               liveness.Predecessor
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
	before     liveness.Predecessor
	events     events.EventRecorder
	check      Check
	lister     enginelisters.StorageLocationLister
	queue      *loop.Loop[cache.ObjectName]
	clock      clock.PassiveClock
	// nonce is in the claims of this process on stores.
	nonce string

	mu sync.Mutex
	// holds are the locations that are held, or were the last time.
	holds map[cache.ObjectName]hold
	// claims are by the location's name.
	claims map[string]*claimant
}

// Check asks the store of a location. It returns the store's id for the status of the location,
// and what is to be said about other clusters that claim the store; nil if that is as it was.
type Check func(ctx context.Context, record *enginev1alpha1.StorageLocation) (condition metav1.Condition, storeID string, cloned *metav1.Condition)

// hold is why and until when a location is unavailable, though its store answers checks.
type hold struct {
	uid        types.UID
	generation int64 // of the record: a change may have mended it
	reason     string
	length     time.Duration
	until      time.Time
}

func (h hold) isOf(location *enginev1alpha1.StorageLocation) bool {
	return h.uid == location.UID && h.generation == location.Generation
}

// New returns a Controller.
func New(config Config) (*Controller, error) { return NewWithCheck(config, nil) }

// NewWithCheck returns a Controller that asks the stores by check; nil if as New does.
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
		c.check = c.ask
	}
	registerMetrics(c)
	return c, c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
		if after != nil && (before == nil || before.Generation != after.Generation || givenUp(before) != givenUp(after) || takeOver(before) != takeOver(after)) {
			c.queue.Add(cache.MetaObjectToName(after))
		}
	}))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.Check) }

// Hold brings the condition of a location up to date whose store did not answer a run that
// was to start. If it answers the check, the location is unavailable for a while all the same,
// for this reason. Hold returns the record as it is then; nil if there is none, or nothing was
// found out. One that is held already is not held for longer: the run was let start before all
// knew.
func (c *Controller) Hold(ctx context.Context, key cache.ObjectName, reason error) (*enginev1alpha1.StorageLocation, error) {
	return c.update(ctx, key, reason)
}

// held returns the hold of a location; false if it is not held. With a reason it is held
// from now on.
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

// Check asks the store of a location and writes what came of it. A controller that
// could not reach the store calls it, so that all know of that at once.
func (c *Controller) Check(ctx context.Context, key cache.ObjectName) error {
	_, err := c.update(ctx, key, nil)
	return err
}

// update asks the store of a location, holds it for the reason, if there is one, and returns
// the record as written.
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
		return nil, nil // the check was cut short and says nothing
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

// lookAgain has the claim on a store looked at with the next check, since what was to be said of
// it was not written.
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

// forget drops what is known of a location that is gone.
func (c *Controller) forget(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holds, key)
	delete(c.claims, key.Name)
}

// ask is the Check of a Controller.
func (c *Controller) ask(ctx context.Context, record *enginev1alpha1.StorageLocation) (condition metav1.Condition, storeID string, cloned *metav1.Condition) {
	// What nobody can encrypt for must not look like a protection. The API server can't tell a
	// mistyped key.
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
	message := "the store answers"
	if !record.Spec.IsLonghorn() {
		storeID, err = c.identify(ctx, bucket, record)
		if refused, ok := errors.AsType[*noWritesError](err); ok {
			message += "; " + refused.Error()
		} else if err == nil {
			cloned = c.claim(ctx, bucket, record, storeID)
		} else {
			return unavailable(err, enginev1alpha1.ReasonUnreachable), known, nil
		}
	}
	return metav1.Condition{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue,
		Reason: enginev1alpha1.ReasonReachable, Message: message}, storeID, cloned
}

// rivals says which other locations are marked as default, beside one that is.
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
	case errors.Is(err, store.ErrUnavailable):
		reason = enginev1alpha1.ReasonUnreachable // a folder is looked at when it is opened
	}
	if reason != enginev1alpha1.ReasonInvalid {
		message = store.Reason(err)
	}
	return metav1.Condition{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}
