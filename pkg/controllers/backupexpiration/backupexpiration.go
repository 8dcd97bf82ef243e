// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupexpiration writes requested changes of a backup's expiration and hold into the
// store.
//
// A request is an ExpirationChange, which counts at once. The package makes it a signed object
// beside the backup's folder, which survives the cluster; the record is deleted some time later.
//
//   - Nothing is removed or rewritten. A change is created under the next number, by a conditional
//     write; the loser takes a later number. It has the whole state: what a request omits stays.
//   - It may be stopped anywhere: the record's uid and generation in the object prevent a second
//     write.
//   - It is written beside the backup of the requested uid only. If that is deleted at the same
//     time, a change may remain, which concerns no other backup.
package backupexpiration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	firstRetry     = time.Second
	lastRetry      = 5 * time.Minute
	workers        = 4
	requestTimeout = time.Minute
	// retention is how long a completed record stays, until the catalogues have read the change.
	retention = 30 * time.Minute
	// appears is how long after the request an incomplete or missing backup may still appear: the
	// store may answer late.
	appears = 10 * time.Minute
)

// Config is what a Controller needs.
type Config struct {
	Namespace string
	Cluster   format.Cluster
	// Keys are all public keys of the cluster.
	Keys    []string
	Changes engineclient.ExpirationChangeInterface
	Secrets location.Secrets
	Events  events.EventRecorder
	Clock   clock.WithTicker

	ChangeInformer   engineinformers.ExpirationChangeInformer
	LocationInformer engineinformers.StorageLocationInformer
}

type bucket interface {
	store.Reader
	io.Closer
	Create(ctx context.Context, key string, content []byte) error
}

// Controller writes changes of expirations into the stores.
type Controller struct {
	Config
	locations enginelisters.StorageLocationNamespaceLister
	queue     *loop.Loop[string]
	open      func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error)
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:    config,
		locations: config.LocationInformer.Lister().StorageLocations(config.Namespace),
		queue: loop.New[string](loop.Config{
			Controller: "backupexpiration", Workers: workers, FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock,
		}),
		open: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error) {
			return location.Open(ctx, config.Secrets, record)
		},
	}
	changes := config.ChangeInformer.Lister().ExpirationChanges(config.Namespace)
	return c, errors.Join(
		c.queue.Watch(config.ChangeInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.ExpirationChange) {
			if after != nil && (before == nil || before.UID != after.UID || before.Generation != after.Generation) {
				c.queue.Soon(after.Name)
			}
		})),
		c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
			if after != nil && (before == nil || before.UID != after.UID || before.Closed() && !after.Closed()) {
				loop.Wake(c.queue, changes, func(change *enginev1alpha1.ExpirationChange) bool {
					return change.Spec.StorageLocation == after.Name && !change.Done()
				})
			}
		})))
}

// Run works until ctx ends, and returns when all work has stopped.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

type gone struct{ reason string }

func (g *gone) Error() string { return g.reason }

func (c *Controller) sync(ctx context.Context, name string) error {
	change, err := c.Changes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading ExpirationChange %s: %w", name, err)
	case change.Done():
		return c.retire(ctx, change)
	}
	written, err := c.write(ctx, change)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	impossible, isGone := errors.AsType[*gone](err)
	status := enginev1alpha1.ExpirationChangeStatus{}
	switch {
	case isGone:
		status.ObservedGeneration, status.Message = change.Generation, impossible.reason
	case err != nil:
		if err := c.say(ctx, change, err); err != nil {
			return err
		}
		return err
	default:
		status.ObservedGeneration, status.Number = change.Generation, written.Number
	}
	status.Timestamp = &metav1.Time{Time: c.Clock.Now()}
	changed := change.DeepCopy()
	changed.Status = status
	if _, err = c.Changes.UpdateStatus(ctx, changed, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing what came of ExpirationChange %s: %w", name, err)
	}
	c.tell(change, written, impossible)
	c.queue.AddAfter(name, retention)
	return nil
}

func (c *Controller) retire(ctx context.Context, change *enginev1alpha1.ExpirationChange) error {
	if at := change.Status.Timestamp; at != nil {
		if wait := at.Add(retention).Sub(c.Clock.Now()); wait > 0 {
			c.queue.AddAfter(change.Name, min(wait, retention))
			return nil
		}
	}
	err := c.Changes.Delete(ctx, change.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &change.UID, ResourceVersion: &change.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing ExpirationChange %s, which is done: %w", change.Name, err)
	}
	return nil
}

// say records, once, that a change waits.
func (c *Controller) say(ctx context.Context, change *enginev1alpha1.ExpirationChange, why error) error {
	const message = "the change counts, and waits to be written into the store"
	if change.Status.Message == message {
		return nil
	}
	changed := change.DeepCopy()
	changed.Status.Message = message
	_, err := c.Changes.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing what ExpirationChange %s waits for: %w", change.Name, err)
	}
	c.Events.Eventf(reference(change), nil, corev1.EventTypeWarning, "ExpirationChangeWaiting", "ChangeExpiration",
		"The change of the expiration counts in this cluster, and can't be written into the store yet")
	klog.FromContext(ctx).Info("A change of an expiration waits for its store", "expirationChange", klog.KObj(change), "reason", why.Error())
	return nil
}

// write writes a change into the store, and returns the newest there.
func (c *Controller) write(ctx context.Context, change *enginev1alpha1.ExpirationChange) (*format.Expiration, error) {
	spec := &change.Spec
	record, err := c.locations.Get(spec.StorageLocation)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no storage location %q", spec.StorageLocation)
	case err != nil:
		return nil, err
	case record.Closed():
		return nil, fmt.Errorf("the storage location %q is not available: %s", record.Name, record.WhyClosed())
	}
	target, err := c.open(ctx, record)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	of := &folder.Folder{
		Place: format.Place{StoreName: change.Name, Location: record.Name, SystemNamespace: c.Namespace},
		Clock: c.Clock, UID: spec.UID, Store: target, Try: try,
	}
	written, err := of.Change(ctx, target, c.Cluster, c.Keys, func(_ *v1alpha1.Backup, stands *format.Expiration) (bool, error) {
		if stands.Request == request(change) {
			return false, nil // written by a process that did not record it
		}
		apply(stands, change)
		return true, nil
	})
	switch {
	case errors.Is(err, folder.ErrUnreadable):
		return nil, c.goneFor(change, "the backup's metadata can't be read")
	case errors.Is(err, folder.ErrGone):
		return nil, c.goneFor(change, err.Error())
	case errors.Is(err, folder.ErrTooMany):
		return nil, &gone{err.Error()}
	}
	return written, err
}

func (c *Controller) goneFor(change *enginev1alpha1.ExpirationChange, reason string) error {
	if c.Clock.Since(change.Spec.Ask.Timestamp.Time).Abs() < appears {
		return errors.New(reason)
	}
	return &gone{reason}
}

func request(change *enginev1alpha1.ExpirationChange) string {
	return fmt.Sprintf("%s/%d", change.UID, change.Generation)
}

func apply(stands *format.Expiration, change *enginev1alpha1.ExpirationChange) {
	spec := &change.Spec
	stands.Requester, stands.Timestamp, stands.Request = spec.Ask.Requester.Username, spec.Ask.Timestamp, request(change)
	if spec.Expiration != nil {
		stands.Expiration = spec.Expiration
	}
	switch {
	case spec.Hold == nil:
	case *spec.Hold:
		stands.Hold = &format.Hold{Requester: spec.Ask.Requester.Username, Timestamp: spec.Ask.Timestamp, Reason: spec.Reason}
	default:
		stands.Hold = nil
	}
}

func try(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}

func (c *Controller) tell(change *enginev1alpha1.ExpirationChange, written *format.Expiration, impossible *gone) {
	by, spec := change.Spec.Ask.Requester.Username, &change.Spec
	say := func(kind, reason, text string) {
		c.Events.Eventf(reference(change), nil, kind, reason, "ChangeExpiration", "%.1000s", text)
	}
	if impossible != nil {
		say(corev1.EventTypeWarning, "ExpirationNotChanged", "What "+by+" asked for about the expiration was not done: "+impossible.reason)
		return
	}
	if spec.Hold != nil {
		if *spec.Hold {
			text := by + " holds the backup: it neither expires nor can be deleted until it is released"
			if spec.Reason != "" {
				text += " (" + spec.Reason + ")"
			}
			say(corev1.EventTypeNormal, "Held", text)
		} else {
			say(corev1.EventTypeNormal, "Released", by+" has released the backup")
		}
	}
	if spec.Expiration != nil {
		say(corev1.EventTypeNormal, "ExpirationChanged", by+" lets the backup expire at "+written.Expiration.UTC().Format(time.RFC3339))
	}
}

func reference(change *enginev1alpha1.ExpirationChange) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Backup",
		Namespace: change.Spec.BackupRef.Namespace, Name: change.Spec.BackupRef.Name, UID: change.Spec.UID,
	}
}
