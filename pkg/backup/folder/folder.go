// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package folder reads and removes a backup's folder in its store. docs/design/fences.md explains the
// order of steps.
package folder

import (
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Folder is a backup's folder in its store.
type Folder struct {
	// Place is the folder and its reader; Clock tells Now.
	format.Place
	Clock clock.PassiveClock
	UID   types.UID
	Store store.Reader
	// Try makes a request and reads its answer, with retries or a time limit.
	Try func(ctx context.Context, request func(context.Context) error) error
}

// ErrUnreadable reports an unknown owner.
var ErrUnreadable = errors.New("its metadata can't be read")

// UnreadableError is ErrUnreadable for the object Key.
type UnreadableError struct {
	Key   string
	Cause error
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%v: %s: %v", ErrUnreadable, e.Key, e.Cause)
}

func (e *UnreadableError) Unwrap() []error { return []error{ErrUnreadable, e.Cause} }

// Owner returns the folder's owner; nil for none, as Velero's. Bad content is an UnreadableError.
func (f *Folder) Owner(ctx context.Context) (*format.Owner, error) {
	key := format.OwnerKey(f.StoreName)
	data, err := f.read(ctx, key, format.MaxOwnerBytes)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	owner, err := format.DecodeOwner(data)
	if err != nil {
		return nil, &UnreadableError{key, err}
	}
	return &owner, nil
}

// Metadata returns the stored backup of any uid, or nil. Bad content is an UnreadableError.
func (f *Folder) Metadata(ctx context.Context) (*v1alpha1.Backup, error) {
	return f.backup(ctx, format.MetadataKey(f.StoreName))
}

// Copy returns the last attempt's copy of our metadata, of any uid, or nil; earlier attempts are
// revoked. Bad content is an UnreadableError.
func (f *Folder) Copy(ctx context.Context) (backup *v1alpha1.Backup, err error) {
	for attempt := 1; attempt <= format.MaxAttemptKeys; attempt++ {
		backup, err = f.backup(ctx, format.AttemptKey(f.StoreName, attempt))
		if !errors.Is(err, format.ErrUnfinished) {
			return backup, err
		}
	}
	return nil, err
}

func (f *Folder) backup(ctx context.Context, key string) (*v1alpha1.Backup, error) {
	data, err := f.read(ctx, key, format.MaxMetadataBytes)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	place := f.Place
	place.Now = f.Clock.Now()
	found, err := format.DecodeBackup(data, place)
	if err != nil {
		return nil, &UnreadableError{key, err}
	}
	return found, nil
}

// List returns all objects in the folder, and dead writers' remains.
func (f *Folder) List(ctx context.Context) (objects []store.Object, err error) {
	err = f.Try(ctx, func(ctx context.Context) error {
		objects = nil
		for object, err := range f.Store.List(ctx, format.BackupPrefix(f.StoreName), store.ListOptions{Recursive: true, Unfinished: true}) {
			if err != nil {
				return err
			}
			objects = append(objects, object)
		}
		return nil
	})
	return objects, err
}

// Read passes an object's content to read.
func (f *Folder) Read(ctx context.Context, key string, read func(io.Reader) error) error {
	return f.Try(ctx, func(ctx context.Context) error {
		content, err := f.Store.Get(ctx, key)
		if err != nil {
			return err
		}
		defer content.Close()
		return read(content)
	})
}

// read returns at most one byte beyond the limit.
func (f *Folder) read(ctx context.Context, key string, limit int64) (data []byte, err error) {
	err = f.Read(ctx, key, func(r io.Reader) (err error) {
		data, err = io.ReadAll(io.LimitReader(r, limit+1))
		return err
	})
	return data, err
}

// Remove removes an object as listed. Another version stays.
func (f *Folder) Remove(ctx context.Context, remover store.Remover, object store.Object) error {
	err := f.Try(ctx, func(ctx context.Context) error { return remover.Delete(ctx, object) })
	if errors.Is(err, store.ErrChanged) {
		return nil
	}
	return err
}
