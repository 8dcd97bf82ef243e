// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/klog/v2"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// read reads one backup into the catalogue. Whatever is wrong with the backup is
// recorded there; an error says that the store could not be asked, and
// store.ErrNotFound that there is no finished backup. A refusal of access is the
// store's, unless readable says that the store lets others be read.
func (w *worker) read(ctx context.Context, from store.Reader, storeName string, readable bool) error {
	location := w.location.Name
	isStoreFailure := func(err error) bool {
		return isStoreFailure(err) || !readable && errors.Is(err, store.ErrDenied)
	}
	begun := w.options.Clock.Now()
	backup, err := w.readMetadata(ctx, from, storeName, format.MetadataKey(storeName))
	replaced := ""
	if errors.Is(err, format.ErrUnfinished) || err == nil && !isSigned(backup) {
		ours, whole, copyErr := w.readCopy(ctx, from, storeName)
		switch {
		case isStoreFailure(copyErr):
			return copyErr
		case ours != nil && whole:
			backup, err = ours, nil
			replaced = "velero-backup.json is another writer's by now, such as Velero's: this backup is what holdfast-backup.json says, and all of its objects have their sizes; let Velero use another prefix or other names"
			klog.FromContext(ctx).Info("Somebody has replaced the metadata of a backup, which is served from its copy", "location", location, "backup", storeName)
		case ours != nil:
			replaced = fmt.Sprintf("somebody, such as Velero, has replaced the backup with the uid %s, of which not all objects are left; let Velero use another prefix or other names", ours.UID)
			klog.FromContext(ctx).Info("Somebody has replaced a backup", "location", location, "backup", storeName, "uid", ours.UID)
		}
	}
	switch {
	case errors.Is(err, store.ErrNotFound) || errors.Is(err, format.ErrUnfinished):
		// A write is under way, or was given up. That is no fault.
		if err := w.record(func(now time.Time) { w.catalog.PutUnfinished(location, storeName, begun, now) }); err != nil {
			return err
		}
		return fmt.Errorf("there is no finished backup %s in the store: %w", storeName, store.ErrNotFound)
	case isStoreFailure(err):
		return err
	case err != nil:
		return w.record(func(now time.Time) {
			w.catalog.PutUnreadable(location, storeName, "velero-backup.json can't be read: "+store.Reason(err), now)
		})
	}
	content := catalog.Content{Backup: backup, Replaced: replaced}
	contents, err := format.TakeContents(backup)
	_, named := contents.Of(format.PodVolumeBackupsKey(storeName))
	if err == nil && (named || !isSigned(backup)) { // a list that the signature does not cover is not believed
		content.Volumes, err = w.readVolumes(ctx, from, storeName, contents)
	}
	switch {
	case errors.Is(err, errNotWhole):
		// Its metadata has come after it was deleted, see package backup, or somebody has
		// removed or replaced what lay beside it.
		backup.Status.Phase = holdfast.BackupPhaseUnreadable
		backup.Status.FailureReason = err.Error()
		backup.Status.Conditions = format.EndConditions(&backup.Status)
		content.Volumes = nil
	case errors.Is(err, store.ErrNotFound): // a backup without one has no volumes
	case isStoreFailure(err):
		return err
	case err != nil:
		content.Volumes, content.VolumesError = nil, store.Reason(err)
	}
	return w.record(func(now time.Time) { w.catalog.Put(location, storeName, content, now) })
}

// isStoreFailure tells a store that can't be asked from a file that is bad.
func isStoreFailure(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// readDenied reads again what could not be read because access was denied. Only if
// another backup can be read meanwhile is that the trouble of each of them;
// otherwise it is the store's, and nothing is said of any backup. It returns how
// many that leaves unread.
func (w *worker) readDenied(ctx context.Context, from store.Reader, storeNames []string) (int, error) {
	if len(storeNames) == 0 || !w.showsOthers(ctx, from) {
		return len(storeNames), nil
	}
	for i, storeName := range storeNames {
		if err := w.read(ctx, from, storeName, true); err != nil && !errors.Is(err, store.ErrNotFound) {
			return len(storeNames) - i, err
		}
	}
	return 0, nil
}

// showsOthers reports whether some backup that is known can be read now.
func (w *worker) showsOthers(ctx context.Context, from store.Reader) bool {
	storeName := w.catalog.Readable(w.location.Name)
	if storeName == "" {
		return false
	}
	_, err := w.readMetadata(ctx, from, storeName, format.MetadataKey(storeName))
	return err == nil
}

// isSigned reports whether metadata is as a Holdfast has signed it, in whichever
// cluster. Whatever else it says of its cluster, others may have copied, or changed.
func isSigned(backup *holdfast.Backup) bool {
	return backup.Status.Origin.Trust == ""
}

// readCopy reads the copy of our metadata beside another writer's, and reports whether
// what it names has its sizes in the store. It is nil if there is none to be used.
func (w *worker) readCopy(ctx context.Context, from store.Reader, storeName string) (ours *holdfast.Backup, whole bool, err error) {
	ours, err = w.readMetadata(ctx, from, storeName, format.CopyKey(storeName))
	if err != nil || !isSigned(ours) {
		return nil, false, err
	}
	contents, err := format.TakeContents(ours.DeepCopy())
	if err != nil || len(contents) == 0 {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, w.options.RequestTimeout)
	defer cancel()
	countRequest(w.location.Name, "list")
	left := len(contents)
	for object, err := range from.List(ctx, format.BackupPrefix(storeName), store.ListOptions{Recursive: true}) {
		if err != nil {
			return nil, false, err
		}
		if want, named := contents.Of(object.Key); named && want.Size == object.Size {
			left--
		}
	}
	return ours, left == 0, nil
}

func (w *worker) readMetadata(ctx context.Context, from store.Reader, storeName, key string) (*holdfast.Backup, error) {
	var backup *holdfast.Backup
	err := w.get(ctx, from, key, func(content io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(content, format.MaxMetadataBytes+1))
		if err != nil {
			return err
		}
		backup, err = format.DecodeBackup(data, format.Place{
			StoreName:       storeName,
			Location:        w.location.Name,
			SystemNamespace: w.options.SystemNamespace,
			Now:             w.options.Clock.Now(),
		})
		return err
	})
	return backup, err
}

// errNotWhole says that the store does not have what the metadata names.
var errNotWhole = errors.New("the backup is not whole")

// readVolumes reads the list of volumes, and fails with errNotWhole if it is not the
// one that the metadata names.
func (w *worker) readVolumes(ctx context.Context, from store.Reader, storeName string, contents format.Contents) ([]catalog.Volume, error) {
	key := format.PodVolumeBackupsKey(storeName)
	want, named := contents.Of(key)
	var volumes []catalog.Volume
	err := w.get(ctx, from, key, func(content io.Reader) (err error) {
		sum, size := sha256.New(), int64(0)
		seen := io.TeeReader(content, writerFunc(func(p []byte) (int, error) {
			size += int64(len(p))
			return sum.Write(p)
		}))
		volumes, err = catalog.ReadVolumes(seen)
		if !named || isStoreFailure(err) {
			return err
		}
		if _, err := io.CopyN(io.Discard, seen, max(0, want.Size-size)+1); err != nil && err != io.EOF {
			return err
		}
		if format.ContentOf(size, sum) != want {
			return fmt.Errorf("%w: %s is not what was stored with it; delete it", errNotWhole, key)
		}
		return err
	})
	if named && errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("%w: %s, which was stored with it, is gone; delete it", errNotWhole, key)
	}
	return volumes, err
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// get bounds the time of a request, its content included.
func (w *worker) get(ctx context.Context, from store.Reader, key string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, w.options.RequestTimeout)
	defer cancel()
	countRequest(w.location.Name, "get")
	content, err := from.Get(ctx, key)
	if err != nil {
		return err
	}
	defer content.Close()
	return read(content)
}
