// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package locks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// A pass has one request at a time, and at most so many a second: a million objects take six hours.
	requestsPerSecond = 50
	requestTimeout    = time.Minute
	pageSize          = 500
	mostFailures      = 10
)

type extension struct {
	store    bucket
	least    time.Duration
	limiter  flowcontrol.RateLimiter
	until    time.Time
	failures []error
	objects  int
}

// unlisted reports that the API server did not list the backups.
type unlisted struct{ error }

func (u *unlisted) Error() string { return "list the backups: " + u.error.Error() }

func (u *unlisted) Unwrap() error { return u.error }

// extend extends the locks of a location's objects, and returns when the first one ends; zero without
// an object.
func (c *Controller) extend(ctx context.Context, record *enginev1alpha1.StorageLocation) (until time.Time, err error) {
	target, err := c.open(ctx, record)
	if err != nil {
		return time.Time{}, err
	}
	defer target.Close()
	if err := target.CheckLock(ctx); err != nil {
		return time.Time{}, err
	}
	names, err := c.live(ctx, record.Name)
	if err != nil {
		return time.Time{}, &unlisted{err}
	}
	e := &extension{store: target, least: record.Spec.Lock.Period() / 2, limiter: flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, requestsPerSecond)}
	err = e.one(ctx, format.StoreIdentityKey)
	if err == nil {
		err = e.folder(ctx, format.WrappedKeysPrefix+c.ClusterUID+"/")
	}
	for _, name := range names {
		if err != nil {
			break
		}
		err = e.folder(ctx, format.BackupPrefix(name))
	}
	if err := errors.Join(append(e.failures, err)...); err != nil {
		return time.Time{}, err
	}
	klog.FromContext(ctx).V(1).Info("Locks extended", "storageLocation", record.Name, "backups", len(names), "objects", e.objects, "until", e.until)
	return e.until, nil
}

// live returns the store names of this cluster's own backups that are not being deleted. Running ones
// lock what they write.
func (c *Controller) live(ctx context.Context, location string) (names []string, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.Backups.List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if b := &page.Items[i]; b.Spec.StorageLocation == location && isLive(b) {
				bare, _, _ := strings.Cut(b.Name, "@") // with another location's backup of the name, it is NAME@LOCATION
				names = append(names, format.StoreName(b.Namespace, bare, c.Namespace))
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return names, nil
		}
	}
}

func isLive(b *v1alpha1.Backup) bool {
	return b.Status.Origin != nil && b.Status.Origin.Trust == v1alpha1.BackupTrustOwn && b.Status.FormatVersion != "" && b.Status.Phase.Ended()
}

func (e *extension) folder(ctx context.Context, folder string) error {
	for object, err := range e.store.List(ctx, folder, store.ListOptions{Recursive: true}) {
		if err != nil {
			return fmt.Errorf("list the objects of %s: %w", folder, err)
		}
		if object.IsFolder {
			continue
		}
		if err := e.one(ctx, object.Key); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// one fails if other objects would fail, too.
func (e *extension) one(ctx context.Context, key string) error {
	if err := e.limiter.Wait(ctx); err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	until, err := e.store.ExtendLock(timed, key, e.least)
	switch {
	case errors.Is(err, store.ErrNotFound): // deleted meanwhile
		return nil
	case errors.Is(err, store.ErrDenied), errors.Is(err, store.ErrUnavailable), ctx.Err() != nil:
		return err
	case err != nil:
		if e.failures = append(e.failures, err); len(e.failures) == mostFailures {
			return errors.New("there are more such objects, perhaps: this pass has ended")
		}
		return nil
	}
	e.objects++
	if e.until.IsZero() || until.Before(e.until) {
		e.until = until
	}
	return nil
}
