// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"errors"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// labelBackupUID is, on a stored volume, the uid of its backup, whoever made it.
const labelBackupUID = "velero.io/backup-uid"

// errOther says that the folder belongs to another backup.
var errOther = errors.New("it is another backup")

// folder is that of a backup in its store.
type folder struct {
	bucket
	storeName string
	uid       types.UID
	location  string
}

// metadata reports whether the metadata is there, and fails if it is not that of
// the backup that is meant.
func (f *folder) metadata(ctx context.Context, now time.Time) (bool, error) {
	key := format.MetadataKey(f.storeName)
	var content []byte
	err := f.get(ctx, key, func(r io.Reader) (err error) {
		content, err = io.ReadAll(io.LimitReader(r, format.MaxMetadataBytes+1))
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, nil
	case err != nil:
		return false, storeFailure(f.location, err)
	}
	found, err := format.DecodeBackup(content, format.Place{StoreName: f.storeName, Location: f.location, Now: now})
	switch {
	case err != nil:
		return false, refused("it is not certain that %s is the metadata of this backup, so nothing is removed: %v", key, err)
	case found.UID != f.uid:
		o := refused("%s belongs to another backup of this name, with the uid %s instead of %s, so nothing is removed; give the deletion up by removing the BackupRun %s", key, found.UID, f.uid, f.storeName)
		o.cause = errOther
		return false, o
	}
	return true, nil
}

// snapshots are the ids of the backup's snapshots, by the namespace of their
// repository.
func (f *folder) snapshots(ctx context.Context) (map[string][]string, error) {
	key := format.PodVolumeBackupsKey(f.storeName)
	ids := map[string][]string{}
	var other string
	err := f.get(ctx, key, func(r io.Reader) error {
		return format.ReadPodVolumeBackups(r, func(volume format.PodVolumeBackup) error {
			namespace := volume.Spec.Pod.Namespace
			switch of := volume.Labels[labelBackupUID]; {
			case of != "" && of != string(f.uid):
				other = of
				return errOther
			case volume.Status.SnapshotID == "":
				if _, known := ids[namespace]; !known && volume.Spec.UploaderType == format.UploaderKopia {
					ids[namespace] = nil // what its upload has left is found there
				}
			case volume.Spec.UploaderType != format.UploaderKopia:
				klog.FromContext(ctx).Info("The data of a volume stays, since it was not uploaded with Kopia", "backupRun", f.storeName, "namespace", namespace, "pod", volume.Spec.Pod.Name, "volume", volume.Spec.Volume)
			default:
				ids[namespace] = append(ids[namespace], volume.Status.SnapshotID)
			}
			return nil
		})
	})
	switch {
	case errors.Is(err, store.ErrNotFound): // a backup without one has no volumes
	case errors.Is(err, errOther):
		o := refused("%s lists volumes of another backup, with the uid %s instead of %s, so they are not removed; give the deletion up by removing the BackupRun %s", key, other, f.uid, f.storeName)
		o.cause = errOther
		return nil, o
	case isStoreFailure(err):
		return nil, storeFailure(f.location, err)
	case err != nil:
		return nil, refused("%s can't be used, which says where the data of the volumes is: %v; remove that object by hand to delete the backup and keep the data", key, err)
	}
	return ids, nil
}

// isStoreFailure tells a store that can't be asked from a file that is bad.
func isStoreFailure(err error) bool {
	_, ok := errors.AsType[*obstacle](err)
	return ok || errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDenied) || errors.Is(err, context.Canceled)
}

// deleteRest removes what is left of the folder: the list of volumes last, and
// with it what listings leave out. Anything may take long, also for another process,
// so present is asked before each removal.
func (f *folder) deleteRest(ctx context.Context, present func() error) error {
	prefix := format.BackupPrefix(f.storeName)
	var keys []string
	err := bounded(ctx, func(ctx context.Context) error {
		for object, err := range f.List(ctx, prefix, store.ListOptions{Recursive: true}) {
			if err != nil {
				return err
			}
			keys = append(keys, object.Key)
		}
		return nil
	})
	if err != nil {
		return storeFailure(f.location, err)
	}
	for _, key := range keys {
		switch key {
		case format.MetadataKey(f.storeName):
			// It was gone a moment ago, so it is somebody else's.
			return refused("%s was written while the backup was removed: is another cluster using the storage location %q?", key, f.location)
		case format.PodVolumeBackupsKey(f.storeName):
			continue
		}
		if err := present(); err != nil {
			return err
		}
		if err := f.delete(ctx, key); err != nil {
			return err
		}
	}
	if err := present(); err != nil {
		return err
	}
	err = bounded(ctx, func(ctx context.Context) error { return f.DeletePrefix(ctx, prefix) })
	if err != nil {
		return storeFailure(f.location, err)
	}
	return nil
}

func (f *folder) delete(ctx context.Context, key string) error {
	err := bounded(ctx, func(ctx context.Context) error { return f.Delete(ctx, key) })
	if err != nil {
		return storeFailure(f.location, err)
	}
	return nil
}

func (f *folder) get(ctx context.Context, key string, read func(io.Reader) error) error {
	return bounded(ctx, func(ctx context.Context) error {
		content, err := f.Get(ctx, key)
		if err != nil {
			return storeFailure(f.location, err)
		}
		defer content.Close()
		return read(content)
	})
}

// bounded limits the time of a request, its content included.
func bounded(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}
