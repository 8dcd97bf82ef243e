// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// ErrNameTaken reports another backup of this name in the store.
var ErrNameTaken = errors.New("another backup has this name in the store")

// ErrTakenOver reports that a later attempt makes the backup.
var ErrTakenOver = errors.New("another process has taken over the backup")

var errInTheWay = errors.New("holds what this process has not written")

const maxInTheWay = 5

// ErrUnreadable reports a backup that can't be identified.
var ErrUnreadable = folder.ErrUnreadable

func (e *execution) begin(ctx context.Context) (Outcome, error) {
	if outcome, err := e.stored(ctx); err != nil || outcome.Stored {
		return outcome, err
	}
	first, err := e.takeFolder(ctx)
	if err != nil {
		return Outcome{Status: e.status(err)}, err
	}
	if first {
		return Outcome{}, nil
	}
	return e.stored(ctx)
}

// takeFolder creates the folder's owner, and reports whether it was first. Another owner is
// ErrNameTaken.
func (e *execution) takeFolder(ctx context.Context) (first bool, err error) {
	owner, err := format.EncodeOwner(format.Owner{UID: e.request.Backup.UID, ClusterUID: e.request.Cluster.UID})
	if err != nil {
		return false, err
	}
	err = e.retry(ctx, func() error { return e.Store.Create(ctx, format.OwnerKey(e.storeName), owner) })
	if !errors.Is(err, store.ErrExists) {
		return err == nil, err
	}
	return false, e.owns(ctx)
}

func (e *execution) owns(ctx context.Context) error {
	key := format.OwnerKey(e.storeName)
	owner, err := e.folder.Owner(ctx)
	switch {
	case errors.Is(err, ErrUnreadable):
		return fmt.Errorf("%w, and %w: choose another name", ErrNameTaken, err)
	case err != nil:
		return err
	case owner == nil:
		return fmt.Errorf("%s is gone: somebody has deleted the backup", key)
	case owner.UID != e.folder.UID:
		return fmt.Errorf("%w: %s belongs to the backup with the uid %s of the cluster %q: choose another name, or delete that backup; if it will never end, since its cluster is lost, remove its folder from the store", ErrNameTaken, key, owner.UID, owner.ClusterUID)
	}
	return nil
}

// stored returns an ended backup's outcome. Another uid is ErrNameTaken.
func (e *execution) stored(ctx context.Context) (Outcome, error) {
	found, err := e.metadata(ctx)
	if err != nil {
		return Outcome{Status: e.status(err)}, err
	}
	if found == nil {
		return Outcome{}, nil
	}
	return Outcome{Status: found.Status, Stored: true}, nil
}

func (e *execution) metadata(ctx context.Context) (*v1alpha1.Backup, error) {
	found, err := e.folder.Metadata(ctx)
	switch {
	case errors.Is(err, ErrUnreadable):
		return nil, fmt.Errorf("%w, and %w: choose another name", ErrNameTaken, err)
	case found != nil && found.UID != e.folder.UID:
		return nil, fmt.Errorf("%w: %s: choose another name, or delete that backup first", ErrNameTaken, format.MetadataKey(e.storeName))
	}
	return found, err
}

func (e *execution) create(ctx context.Context, key string, data []byte) error {
	for tries := 1; ; tries++ {
		err := e.retry(ctx, func() error { return e.Store.Create(ctx, key, data) })
		err = e.created(ctx, key, format.NewContent(data), err)
		if !errors.Is(err, errInTheWay) || e.request.Attempt <= 1 || tries == maxInTheWay {
			return err
		}
		if failure := e.removeEarlierAt(ctx, key); failure != nil {
			return errors.Join(err, failure)
		}
	}
}

func (e *execution) removeEarlierAt(ctx context.Context, key string) error {
	object, err := e.Store.Attributes(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := e.mayRemove(ctx); err != nil {
		return err
	}
	return e.folder.Remove(ctx, e.Remover, object)
}

// mayRemove fails if an object listed before may be another backup's or a later attempt's:
// docs/design/fences.md.
func (e *execution) mayRemove(ctx context.Context) error {
	if err := e.owns(ctx); err != nil {
		return err
	}
	key := format.AttemptKey(e.storeName, e.request.Attempt)
	err := e.retry(ctx, func() error {
		_, err := e.Store.Attributes(ctx, key)
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: %s says so", ErrTakenOver, key)
}

// created returns a conditional write's error; nil for equal content: an answer was lost.
func (e *execution) created(ctx context.Context, key string, content format.Content, err error) error {
	if errors.Is(err, store.ErrExists) {
		var found format.Content
		if found, err = e.content(ctx, key); err == nil && found != content {
			err = fmt.Errorf("%s %w: a process that was taken for dead may have, or somebody else: delete this backup, and make another one", key, errInTheWay)
		}
	}
	if err == nil {
		e.contents.Set(key, content)
	}
	return err
}

func (e *execution) content(ctx context.Context, key string) (found format.Content, err error) {
	err = e.folder.Read(ctx, key, func(r io.Reader) error {
		sum := sha256.New()
		size, err := io.Copy(sum, r)
		found = format.ContentOf(size, sum)
		return err
	})
	return found, err
}

func (e *execution) verify(ctx context.Context) error {
	objects, err := e.folder.List(ctx)
	if err != nil {
		return err
	}
	missing := len(e.contents)
	for _, object := range objects {
		content, ours := e.contents.Of(object.Key)
		if ours && content.Size != object.Size {
			return fmt.Errorf("%s has %d bytes in the store, and %d were written", object.Key, object.Size, content.Size)
		}
		if ours {
			missing--
		}
	}
	if missing > 0 {
		return fmt.Errorf("%d of the objects that were written are not in the store any more", missing)
	}
	return nil
}

// takeOver revokes earlier attempts, and removes their objects unless they have read all. An attempt
// with a copy of the metadata has decided the outcome.
func (e *execution) takeOver(ctx context.Context) (Outcome, error) {
	for attempt := 1; attempt < e.request.Attempt; attempt++ {
		decided, err := e.revoke(ctx, attempt)
		if err != nil {
			return Outcome{Status: e.status(err)}, fmt.Errorf("take over from attempt %d: %w", attempt, err)
		}
		if decided == nil {
			continue
		}
		err = e.retry(ctx, func() error { return e.Store.Create(ctx, format.MetadataKey(e.storeName), decided) })
		if err != nil && !errors.Is(err, store.ErrExists) {
			return Outcome{Status: e.status(err)}, err
		}
		// The attempt may have died while it wrote the metadata.
		if err := e.removeUnfinished(ctx); err != nil {
			e.logger.Info("What an attempt has left unfinished stays beside the backup", "err", err)
		}
		return e.stored(ctx)
	}
	if e.request.Moving {
		return Outcome{}, nil
	}
	if err := e.removeEarlier(ctx, true); err != nil {
		return Outcome{Status: e.status(err)}, err
	}
	if e.request.Attempt > 1 {
		e.log.write(slog.LevelInfo, "the process that executed the backup is gone, and it begins anew", slog.Int("attempt", e.request.Attempt))
	}
	return Outcome{}, nil
}

// revoke creates a revocation in place of an attempt's copy of the metadata, or returns that copy.
// Another object is ErrNameTaken.
func (e *execution) revoke(ctx context.Context, attempt int) (decided []byte, err error) {
	key := format.AttemptKey(e.storeName, attempt)
	revocation, err := format.EncodeRevocation(e.storeName, e.request.Backup.UID)
	if err != nil {
		return nil, err
	}
	err = e.retry(ctx, func() error { return e.Store.Create(ctx, key, revocation) })
	if !errors.Is(err, store.ErrExists) {
		return nil, err
	}
	err = e.folder.Read(ctx, key, func(r io.Reader) (err error) {
		decided, err = io.ReadAll(io.LimitReader(r, format.MaxMetadataBytes+1))
		return err
	})
	if err != nil || bytes.Equal(decided, revocation) {
		return nil, err
	}
	place := e.folder.Place
	place.Now = e.Clock.Now()
	found, err := format.DecodeBackup(decided, place)
	switch {
	case errors.Is(err, format.ErrUnfinished):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %s can't be read: %w: choose another name", ErrNameTaken, key, err)
	case found.UID != e.folder.UID:
		return nil, fmt.Errorf("%w: %s belongs to the backup with the uid %s: choose another name", ErrNameTaken, key, found.UID)
	}
	return decided, nil
}

// removeUnfinished removes dead writers' unfinished uploads. It precedes this attempt's writes, except
// of decided metadata.
func (e *execution) removeUnfinished(ctx context.Context) error {
	objects, err := e.folder.List(ctx)
	if err != nil {
		return err
	}
	if err := e.owns(ctx); err != nil {
		return err
	}
	for _, object := range objects {
		if store.IsUnfinished(object.Key) {
			if err := e.folder.Remove(ctx, e.Remover, object); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeEarlier removes earlier attempts' objects. It lists before it checks the owner, so each object
// was written while the folder was this backup's. An attempt that still writes can at worst make this
// one fail.
func (e *execution) removeEarlier(ctx context.Context, unfinished bool) error {
	if e.request.Attempt <= 1 {
		return nil
	}
	objects, err := e.folder.List(ctx)
	if err != nil {
		return err
	}
	if err := e.mayRemove(ctx); err != nil {
		return err
	}
	for _, object := range objects {
		switch key := object.Key; {
		case key == format.OwnerKey(e.storeName), key == format.MetadataKey(e.storeName), format.IsAttemptKey(e.storeName, key):
		case store.IsUnfinished(key) && !unfinished:
		default:
			if err := e.folder.Remove(ctx, e.Remover, object); err != nil {
				return fmt.Errorf("remove what an earlier attempt has left: %w", err)
			}
		}
	}
	return nil
}

// commit ends the backup, unless a later attempt has taken over, as the copy of the metadata decides.
// It also keeps the backup when Velero replaces the metadata.
func (e *execution) commit(ctx context.Context, status v1alpha1.BackupStatus) (v1alpha1.BackupStatus, error) {
	key := format.AttemptKey(e.storeName, e.request.Attempt)
	metadata, err := e.encode(status)
	if err != nil {
		return status, err
	}
	err = e.retry(ctx, func() error { return e.Store.Create(ctx, key, metadata) })
	if errors.Is(err, store.ErrExists) {
		var found format.Content
		if found, err = e.content(ctx, key); err == nil && found != format.NewContent(metadata) {
			err = fmt.Errorf("%w: %s says so", ErrTakenOver, key)
		}
	}
	if err != nil {
		return status, err
	}
	return e.storeMetadata(ctx, status, metadata)
}

func (e *execution) encode(status v1alpha1.BackupStatus) ([]byte, error) {
	backup := e.request.Backup.DeepCopy()
	backup.Status = status
	return format.EncodeBackup(backup, e.contents, e.request.Cluster)
}

// storeMetadata creates the metadata, and returns the stored status. This backup's existing metadata
// stays: an answer was lost, or another process ended it.
func (e *execution) storeMetadata(ctx context.Context, status v1alpha1.BackupStatus, metadata []byte) (v1alpha1.BackupStatus, error) {
	err := e.retry(ctx, func() error { return e.Store.Create(ctx, format.MetadataKey(e.storeName), metadata) })
	if !errors.Is(err, store.ErrExists) {
		return status, err
	}
	outcome, err := e.stored(ctx)
	if err == nil && !outcome.Stored {
		err = errors.New("the store says that the backup's metadata exists, but has none: check the storage location")
	}
	return outcome.Status, err
}

func restorable(phase v1alpha1.BackupPhase) bool {
	return phase == v1alpha1.BackupPhaseCompleted || phase == v1alpha1.BackupPhasePartiallyFailed
}

// Abandon ends a backup without an executor as Failed or Cancelled, with a reason, or returns the
// outcome if it has ended. Then it removes unneeded objects. Any process may repeat it, also while the
// executor writes. It needs only store and clock. The error is one of Run's, or says that objects
// remain.
func Abandon(ctx context.Context, request Request, deps Dependencies, remover store.Remover, phase v1alpha1.BackupPhase, reason string) (Outcome, error) {
	e := newExecution(ctx, request, deps)
	outcome, err := e.abandon(ctx, phase, reason)
	if errors.Is(err, ErrNameTaken) {
		if failure := e.release(ctx, remover); failure != nil {
			return outcome, fmt.Errorf("give up the name of a backup that another one has: %w", failure)
		}
	}
	if err != nil || restorable(outcome.Status.Phase) {
		return outcome, err
	}
	contents, err := e.clean(ctx, remover)
	if err != nil {
		return outcome, fmt.Errorf("remove what the backup does not need: %w", err)
	}
	if _, told := contents.Of(format.LogKey(e.storeName)); told {
		return outcome, nil
	}
	if err := e.storeReport(ctx, outcome.Status.Phase); err != nil {
		e.logger.Info("The backup has ended, and its log could not be stored", "err", err)
	}
	return outcome, nil
}

func (e *execution) abandon(ctx context.Context, phase v1alpha1.BackupPhase, reason string) (Outcome, error) {
	if outcome, err := e.begin(ctx); err != nil || outcome.Stored {
		return outcome, err
	}
	if phase == v1alpha1.BackupPhaseCancelled {
		e.log.write(slog.LevelInfo, "the backup is "+reason)
	} else {
		e.findings.fail(subject{}, reason)
	}
	e.tellPostHooks()
	status := e.status(errors.New(reason))
	status.Phase = phase
	status.Conditions = format.EndConditions(&status)
	metadata, err := e.encode(status)
	if err == nil {
		status, err = e.storeMetadata(ctx, status, metadata)
	}
	return Outcome{Status: status, Stored: err == nil}, err
}

// clean removes a failed backup's objects, except the metadata and the returned objects that it names.
// It lists first, as removeEarlier.
func (e *execution) clean(ctx context.Context, remover store.Remover) (format.Contents, error) {
	found, err := e.metadata(ctx)
	if err != nil || found == nil {
		return nil, err
	}
	contents, err := format.TakeContents(found)
	if err != nil {
		return nil, err
	}
	objects, err := e.folder.List(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.owns(ctx); err != nil {
		return nil, err
	}
	for _, object := range objects {
		_, named := contents.Of(object.Key)
		switch object.Key {
		case format.OwnerKey(e.storeName), format.MetadataKey(e.storeName):
			continue
		}
		if named {
			continue
		}
		if err := e.folder.Remove(ctx, remover, object); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

// Release gives up a folder whose name a backup without an owner object has. It needs only store and
// clock.
func Release(ctx context.Context, request Request, deps Dependencies, remover store.Remover) error {
	return newExecution(ctx, request, deps).release(ctx, remover)
}

func (e *execution) release(ctx context.Context, remover store.Remover) error {
	owner, err := e.Store.Attributes(ctx, format.OwnerKey(e.storeName))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := e.owns(ctx); err != nil {
		return nil
	}
	return e.folder.Remove(ctx, remover, owner)
}

// Find returns a stored backup; an empty outcome if missing, or if another backup has its name. An
// error says that this is unknown. It needs only store and clock.
func Find(ctx context.Context, request Request, deps Dependencies) (Outcome, error) {
	outcome, err := newExecution(ctx, request, deps).stored(ctx)
	if errors.Is(err, ErrNameTaken) && !errors.Is(err, ErrUnreadable) {
		return Outcome{}, nil
	}
	return outcome, err
}

func (e *execution) marked(write func(io.Writer) error) ([]byte, error) {
	var content bytes.Buffer
	if err := write(&content); err != nil {
		return nil, err
	}
	return format.Mark(content.Bytes(), e.mark()), nil
}

func (e *execution) mark() types.UID {
	if e.request.Attempt <= 1 {
		return e.request.Backup.UID
	}
	return types.UID(fmt.Sprintf("%s/%d", e.request.Backup.UID, e.request.Attempt))
}
