// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

type noWritesError struct{ refusal error }

func (e *noWritesError) Error() string {
	return "it takes no object with an id, so another store in its place would not be noticed: " + store.Reason(e.refusal)
}

func (e *noWritesError) Unwrap() error { return e.refusal }

// identify returns a store's id, and creates it at the first use. It fails with store.ErrOther for
// another store than before, unless that was given up.
func (c *Controller) identify(ctx context.Context, bucket *store.Bucket, record *enginev1alpha1.StorageLocation) (string, error) {
	known := record.Status.StoreID
	found, err := bucket.Identity(ctx)
	has := err == nil
	switch {
	case has && found == known:
		return found, nil
	case !has && known == "" && errors.Is(err, store.ErrDenied):
		return "", &noWritesError{err}
	case !has && !errors.Is(err, store.ErrNotFound):
		return "", err
	}
	if givenUp(record) != cmp.Or(known, enginev1alpha1.UnknownStore) {
		if known != "" {
			return "", other(record, fmt.Sprintf("has had the store with the id %s until now", known), found)
		}
		if lost, err := lostAll(ctx, bucket, record, has); err != nil {
			return "", err
		} else if lost {
			return "", other(record, fmt.Sprintf("has had a store with %d backups until now, and here are none", record.Status.Catalogue.Backups), found)
		}
	}
	if has {
		return found, nil
	}
	id, err := bucket.Identify(ctx, c.clock.Now())
	if err != nil && !errors.Is(err, store.ErrUnavailable) {
		return "", &noWritesError{err}
	}
	return id, err
}

func identifyAsOf(ctx context.Context, bucket *store.Bucket, record *enginev1alpha1.StorageLocation) (string, error) {
	found, err := bucket.Identity(ctx)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "", fmt.Errorf("%w: as of %s it has no id, so Holdfast had not used it yet: make a location with a later spec.s3.asOf, or with the right spec.prefix",
			store.ErrOther, record.Spec.AsOf().UTC().Format(time.RFC3339))
	case err != nil:
		return "", err
	case record.Status.StoreID != "" && found != record.Status.StoreID:
		return "", other(record, fmt.Sprintf("has had the store with the id %s until now", record.Status.StoreID), found)
	}
	return found, nil
}

func lostAll(ctx context.Context, bucket *store.Bucket, record *enginev1alpha1.StorageLocation, has bool) (bool, error) {
	if has || record.Status.Catalogue == nil || record.Status.Catalogue.Backups == 0 {
		return false, nil
	}
	for _, err := range bucket.List(ctx, format.BackupsPrefix, store.ListOptions{}) {
		return false, err
	}
	return true, nil
}

func givenUp(record *enginev1alpha1.StorageLocation) string {
	return record.Annotations[enginev1alpha1.AnnotationGiveUpStore]
}

func other(record *enginev1alpha1.StorageLocation, until, found string) error {
	is := "the store that is there has no id, as an empty bucket, or a folder whose disk is not mounted"
	if found != "" {
		is = "the store that is there has the id " + found
	}
	remedy := ""
	if record.Spec.Lock != nil {
		remedy = " If objects were deleted, their locked versions are still there: docs/lock.md, After an attack."
	}
	return fmt.Errorf("%w: the location %s; %s. Mount or name the right one.%s If this one is to take its place, run: kubectl annotate storagelocation %s -n %s --overwrite %s=%s",
		store.ErrOther, until, is, remedy, record.Name, record.Namespace, enginev1alpha1.AnnotationGiveUpStore, cmp.Or(record.Status.StoreID, enginev1alpha1.UnknownStore))
}
