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
	// named are the objects of a backup that lies beneath another writer's metadata, and
	// all that is removed; else it is nil.
	named format.Contents
}

// owner is the uid of the backup whose the folder is; empty if it is nobody's, as
// Velero's are.
func (f *folder) owner(ctx context.Context) (types.UID, error) {
	key := format.OwnerKey(f.storeName)
	content, err := f.read(ctx, key, format.MaxOwnerBytes)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "", nil
	case err != nil:
		return "", storeFailure(f.location, err)
	}
	owner, err := format.DecodeOwner(content)
	if err != nil {
		return "", refused("it is not certain whose %s is, so nothing is removed: %v", key, err)
	}
	return owner.UID, nil
}

// other is the obstacle of a folder that is another backup's.
func (f *folder) other(key string, uid types.UID) *obstacle {
	o := refused("%s belongs to another backup of this name, with the uid %s instead of %s, so nothing is removed; give the deletion up by removing the BackupRun %s", key, uid, f.uid, f.storeName)
	o.cause = errOther
	return o
}

// metadata describes the metadata, if it is there, and fails if it is not that of the
// backup that is meant. What is read was there after what is described: if both are
// not the same, that is not removed.
func (f *folder) metadata(ctx context.Context, now time.Time) (found *store.Object, err error) {
	key := format.MetadataKey(f.storeName)
	var described store.Object
	err = bounded(ctx, func(ctx context.Context) (err error) {
		described, err = f.Attributes(ctx, key)
		return err
	})
	var content []byte
	if err == nil {
		content, err = f.read(ctx, key, format.MaxMetadataBytes)
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, storeFailure(f.location, err)
	}
	backup, err := format.DecodeBackup(content, format.Place{StoreName: f.storeName, Location: f.location, Now: now})
	switch {
	case err == nil && backup.UID == f.uid:
		return &described, nil
	case err == nil:
		return nil, f.other(key, backup.UID)
	}
	o := refused("it is not certain that %s is the metadata of this backup, so nothing is removed: %v", key, err)
	if errors.Is(err, format.ErrUnfinished) {
		o.cause = errOther // ours is never unfinished
	}
	return nil, o
}

// beneath finds out whether the backup lies beneath the metadata of another writer, such
// as Velero, which replaces metadata without looking. Then the copy of its own says what
// belongs to it, and nothing has been put in the place of that. With neither copy nor
// owner nothing is left of it. Else the other's metadata is what is in the way.
func (f *folder) beneath(ctx context.Context, now time.Time, other error) error {
	content, err := f.read(ctx, format.CopyKey(f.storeName), format.MaxMetadataBytes)
	gone := errors.Is(err, store.ErrNotFound)
	if err != nil && !gone {
		return storeFailure(f.location, err)
	}
	switch owner, err := f.owner(ctx); {
	case err != nil:
		return err
	case gone && owner == "":
		f.named = format.Contents{}
		return nil
	case owner != "" && owner != f.uid:
		return other
	}
	backup, err := format.DecodeBackup(content, format.Place{StoreName: f.storeName, Location: f.location, Now: now})
	if err != nil || backup.UID != f.uid {
		return other
	}
	named, err := format.TakeContents(backup)
	if err != nil {
		return other
	}
	objects, err := f.list(ctx)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if content, ok := named.Of(object.Key); ok && content.Size != object.Size {
			return refused("another writer, such as Velero, has replaced the metadata of this backup, and %s, so it is not certain whose the rest is: delete that writer's backup, if it is not wanted, and remove the folder %s from the store by hand; or give the deletion up by removing the BackupRun %s",
				object.Key, format.BackupPrefix(f.storeName), f.storeName)
		}
	}
	f.named = named
	if named == nil {
		f.named = format.Contents{}
	}
	return nil
}

// isOurs reports whether an object of the folder belongs to the backup.
func (f *folder) isOurs(object store.Object) bool {
	if f.named == nil || object.Key == format.OwnerKey(f.storeName) || object.Key == format.CopyKey(f.storeName) {
		return true
	}
	content, named := f.named.Of(object.Key)
	return named && content.Size == object.Size
}

// snapshots are the ids of the backup's snapshots, by the namespace of their
// repository.
func (f *folder) snapshots(ctx context.Context) (map[string][]string, error) {
	key := format.PodVolumeBackupsKey(f.storeName)
	if _, named := f.named.Of(key); f.named != nil && !named {
		return nil, nil
	}
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

// deleteRest removes what is left of the folder: after all else the list of volumes, and
// the owner last: as long as it is there, nobody else begins to write. Beneath others'
// metadata nobody does, and the copy of its own is last, which says what is left. What is
// removed was listed before it was asked for. Anything may take long, also for another
// process, so present is asked before each removal.
func (f *folder) deleteRest(ctx context.Context, now time.Time, present func() error) error {
	for range 10 {
		objects, err := f.list(ctx)
		if err != nil {
			return err
		}
		switch owner, err := f.owner(ctx); {
		case err != nil:
			return err
		case owner != "" && owner != f.uid:
			return nil // it is another backup's by now, so that of this one nothing is left
		}
		last := make([]store.Object, 3)
		beneath := f.named != nil
		removed := false
		for _, object := range objects {
			if !f.isOurs(object) {
				continue
			}
			switch object.Key {
			case format.MetadataKey(f.storeName):
				// It was gone a moment ago: a late write of this backup, or somebody else's.
				if _, err := f.metadata(ctx, now); err != nil {
					return err
				}
			case format.PodVolumeBackupsKey(f.storeName):
				last[0] = object
				continue
			case format.OwnerKey(f.storeName):
				last[1] = object
				continue
			case format.CopyKey(f.storeName):
				if beneath {
					last[2] = object
					continue
				}
			}
			removed = true
			if err := f.delete(ctx, object, present); err != nil {
				return err
			}
		}
		if removed {
			continue // until nothing comes any more
		}
		for _, object := range last {
			if object.Key == "" {
				continue
			}
			if err := f.delete(ctx, object, present); err != nil {
				return err
			}
		}
		return nil
	}
	return refused("what was removed from %s comes back again and again", format.BackupPrefix(f.storeName))
}

// list describes all that lies in the folder.
func (f *folder) list(ctx context.Context) (objects []store.Object, err error) {
	err = bounded(ctx, func(ctx context.Context) error {
		for object, err := range f.List(ctx, format.BackupPrefix(f.storeName), store.ListOptions{Recursive: true, Unfinished: true}) {
			if err != nil {
				return err
			}
			objects = append(objects, object)
		}
		return nil
	})
	if err != nil {
		return nil, storeFailure(f.location, err)
	}
	return objects, nil
}

// delete removes an object as it was described. Another one in its place stays.
func (f *folder) delete(ctx context.Context, object store.Object, present func() error) error {
	if err := present(); err != nil {
		return err
	}
	err := bounded(ctx, func(ctx context.Context) error { return f.Delete(ctx, object) })
	if err != nil && !errors.Is(err, store.ErrChanged) {
		return storeFailure(f.location, err)
	}
	return nil
}

// read reads a small object: one byte more than the limit at most.
func (f *folder) read(ctx context.Context, key string, limit int64) (content []byte, err error) {
	err = f.get(ctx, key, func(r io.Reader) (err error) {
		content, err = io.ReadAll(io.LimitReader(r, limit+1))
		return err
	})
	return content, err
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
