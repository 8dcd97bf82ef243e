// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// ErrNameTaken says that another backup has the name in the store.
var ErrNameTaken = errors.New("another backup has this name in the store")

// ErrUnreadable says that nobody knows which backup has the name.
var ErrUnreadable = errors.New("its metadata can't be read")

// end stores what is to be known of the backup, and velero-backup.json last. The
// failure is why there is no tarball, or nil.
func (e *execution) end(ctx context.Context, failure error) (Outcome, error) {
	if ctx.Err() != nil {
		// Whoever cancelled may already be cleaning up: write nothing more.
		return Outcome{Status: e.status(ctx.Err())}, ctx.Err()
	}
	if failure == nil {
		failure = e.storeContents(ctx)
	}
	if failure != nil {
		e.findings.fail(subject{}, failure.Error())
	}
	if err := e.storeReport(ctx, e.status(failure).Phase); err != nil {
		// The objects can be restored without it.
		e.findings.fail(subject{}, err.Error())
	}
	if e.Confirm != nil {
		if err := e.Confirm(ctx); err != nil {
			return Outcome{Status: e.status(err)}, err
		}
	}
	status, err := e.storeMetadata(ctx, e.status(failure))
	switch {
	case ctx.Err() != nil:
		return Outcome{Status: e.status(ctx.Err())}, ctx.Err()
	case err != nil:
		return Outcome{Status: e.status(errors.Join(failure, err))}, err
	}
	return Outcome{Status: status, Stored: true}, nil
}

// storeContents stores the side files that a restore rests on.
func (e *execution) storeContents(ctx context.Context) error {
	uploads := make([]format.PodVolumeBackup, 0, len(e.volumes))
	infos := e.skipped
	for _, volume := range e.volumes {
		uploads = append(uploads, format.NewPodVolumeBackup(e.request.Backup, e.storeName, volume))
		infos = append(infos, format.NewVolumeInfo(volume))
	}
	for _, file := range []struct {
		key   string
		write func(io.Writer) error
	}{
		{format.ResourceListKey(e.storeName), func(w io.Writer) error { return format.WriteResourceList(w, e.list) }},
		{format.PodVolumeBackupsKey(e.storeName), func(w io.Writer) error { return format.WritePodVolumeBackups(w, uploads) }},
		{format.VolumeInfoKey(e.storeName), func(w io.Writer) error { return format.WriteVolumeInfo(w, infos) }},
		{format.VolumeSnapshotsKey(e.storeName), format.WriteEmptyList},
		{format.ItemOperationsKey(e.storeName), format.WriteEmptyList},
	} {
		if err := e.put(ctx, file.key, file.write); err != nil {
			return err
		}
	}
	return nil
}

// storeReport stores the results and the log, which nothing can be added to then.
func (e *execution) storeReport(ctx context.Context, phase holdfast.BackupPhase) error {
	errorCount, warnings := e.findings.counts()
	e.log.write(slog.LevelInfo, "the backup ends", slog.String("phase", string(phase)), slog.Int("errors", int(errorCount)), slog.Int("warnings", int(warnings)))
	err := e.put(ctx, format.ResultsKey(e.storeName), func(w io.Writer) error { return format.WriteResults(w, e.findings.results) })
	if err != nil {
		return err
	}
	return e.put(ctx, format.LogKey(e.storeName), func(w io.Writer) error {
		_, err := w.Write(e.log.close())
		return err
	})
}

func (e *execution) put(ctx context.Context, key string, write func(io.Writer) error) error {
	var content bytes.Buffer
	if err := write(&content); err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	return e.retry(ctx, func() error { return e.Store.Put(ctx, key, content.Bytes()) })
}

// storeMetadata makes the backup exist, and returns the status that it exists
// with. That it exists already is fine when it is this one: an answer may have been
// lost, or somebody else has ended it, whose word then stands.
func (e *execution) storeMetadata(ctx context.Context, status holdfast.BackupStatus) (holdfast.BackupStatus, error) {
	backup := e.request.Backup.DeepCopy()
	backup.Status = status
	metadata, err := format.EncodeBackup(backup, nil, e.request.Cluster)
	if err != nil {
		return status, err
	}
	err = e.retry(ctx, func() error { return e.Store.Create(ctx, format.MetadataKey(e.storeName), metadata) })
	if !errors.Is(err, store.ErrExists) {
		return status, err
	}
	outcome, err := e.stored(ctx)
	if err == nil && !outcome.Stored {
		err = errors.New("the store says that the backup's metadata exists, but has none: check the storage location")
	}
	return outcome.Status, err
}

// stored reads the backup from the store if it is there, and fails with
// ErrNameTaken when the one that is there has another uid.
func (e *execution) stored(ctx context.Context) (Outcome, error) {
	var metadata []byte
	key := format.MetadataKey(e.storeName)
	err := e.retry(ctx, func() error {
		content, err := e.Store.Get(ctx, key)
		if err != nil {
			return err
		}
		defer content.Close()
		metadata, err = io.ReadAll(io.LimitReader(content, format.MaxMetadataBytes+1))
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return Outcome{}, nil
	}
	if err != nil {
		return Outcome{Status: e.status(err)}, err
	}
	found, err := format.DecodeBackup(metadata, format.Place{
		StoreName:       e.storeName,
		Location:        e.request.Backup.Spec.StorageLocation,
		SystemNamespace: e.request.Cluster.SystemNamespace,
		Now:             e.Clock.Now(),
	})
	if err == nil && found.UID == e.request.Backup.UID {
		return Outcome{Status: found.Status, Stored: true}, nil
	}
	taken := fmt.Errorf("%w: %s: choose another name, or delete that backup first", ErrNameTaken, key)
	if err != nil {
		taken = fmt.Errorf("%w, and %w: %s: %w: choose another name", ErrNameTaken, ErrUnreadable, key, err)
	}
	return Outcome{Status: e.status(taken)}, taken
}

// retry tries again what failed because the store was unavailable.
func (e *execution) retry(ctx context.Context, try func() error) error {
	backoff := e.Retry
	for {
		err := try()
		if !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil || backoff.Steps <= 1 {
			return err
		}
		if err := sleep(ctx, &backoff); err != nil {
			return err
		}
	}
}

// Fail stores the failure of a backup that did not end, such as one whose
// controller was killed, after Discard has removed what it left. Of the
// dependencies it needs store and clock. A backup that has ended after all is
// returned as it is. The error is that of Run.
func Fail(ctx context.Context, request Request, deps Dependencies, reason string) (Outcome, error) {
	e := newExecution(ctx, request, deps)
	if outcome, err := e.stored(ctx); err != nil || outcome.Stored {
		return outcome, err
	}
	return e.end(ctx, errors.New(reason))
}

// Find returns a backup as it is stored. The outcome is empty if it is not, also when
// another one has its name; an error says that this is not known. Of the dependencies
// it needs store and clock.
func Find(ctx context.Context, request Request, deps Dependencies) (Outcome, error) {
	outcome, err := newExecution(ctx, request, deps).stored(ctx)
	if errors.Is(err, ErrNameTaken) && !errors.Is(err, ErrUnreadable) {
		return Outcome{}, nil
	}
	return outcome, err
}

// DiscardStore is what Discard needs of a storage location.
type DiscardStore interface {
	store.Reader
	store.Remover
}

// Discard removes what a backup that did not end has left in the store. It does
// nothing, and returns false, if velero-backup.json is there: then the backup has
// ended. It must not be called while the backup may still run.
func Discard(ctx context.Context, target DiscardStore, storeName string) (bool, error) {
	if _, err := target.Attributes(ctx, format.MetadataKey(storeName)); !errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	return true, target.DeletePrefix(ctx, format.BackupPrefix(storeName))
}
