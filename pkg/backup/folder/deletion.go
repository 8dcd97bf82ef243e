// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const labelBackupUID = "velero.io/backup-uid"

// ErrOther reports another backup's folder or object.
var ErrOther = errors.New("it is another backup")

// Refusal says why a deletion needs an administrator.
type Refusal struct {
	text  string
	cause error
}

func (r *Refusal) Error() string { return r.text }

func (r *Refusal) Unwrap() error { return r.cause }

func refused(cause error, text string, args ...any) error {
	return &Refusal{fmt.Sprintf(text, args...), cause}
}

// Deletion removes a backup from its folder, also an earlier deletion's rest. Look comes first, then
// RemoveMetadata, so that no reader begins, then RemoveRest. Each object is listed before its owner is
// checked.
type Deletion struct {
	Folder
	Remover store.Remover
	// Present fails if the deletion is over: the name may be another backup's. It is called before each
	// removal.
	Present func() error

	// Snapshots are ids by their repository's namespace. Look sets it.
	Snapshots map[string][]string

	// Stored is the backup by its metadata, or by its copy if another writer has replaced that; nil
	// without both. Look sets it.
	Stored *v1alpha1.Backup

	metadata *store.Object
	// named are the only objects to remove if another writer has replaced the metadata; else nil.
	named format.Contents
}

// Look reads the folder's owner and the snapshots. Another backup's folder is ErrOther.
func (d *Deletion) Look(ctx context.Context) error {
	var err error
	d.metadata, err = d.describe(ctx)
	if errors.Is(err, ErrOther) {
		err = d.beneath(ctx, err)
	}
	if err != nil {
		return err
	}
	owner, err := d.owner(ctx)
	switch {
	case err != nil:
		return err
	case owner == "" || owner == d.UID:
		d.Snapshots, err = d.snapshots(ctx)
		return err
	case d.metadata == nil:
		return d.other(format.OwnerKey(d.StoreName), owner)
	}
	// A paused process wrote the metadata after this backup's deletion. The rest is the owner's.
	return nil
}

// RemoveMetadata removes the metadata that Look found.
func (d *Deletion) RemoveMetadata(ctx context.Context) error {
	if d.metadata == nil {
		return nil
	}
	return d.remove(ctx, *d.metadata)
}

func (d *Deletion) owner(ctx context.Context) (types.UID, error) {
	owner, err := d.Owner(ctx)
	if unreadable, ok := errors.AsType[*UnreadableError](err); ok {
		return "", refused(nil, "it is not certain whose %s is, so nothing is removed: %v", unreadable.Key, unreadable.Cause)
	}
	if owner == nil {
		return "", err
	}
	return owner.UID, nil
}

func (d *Deletion) other(key string, uid types.UID) error {
	return refused(ErrOther, "%s belongs to another backup of this name, with the uid %s instead of %s, so nothing is removed; give the deletion up by removing the BackupRun %s", key, uid, d.UID, d.StoreName)
}

// describe returns the metadata object, or nil, and fails for another backup's. It is described before
// it is read, so an object replaced in between stays.
func (d *Deletion) describe(ctx context.Context) (*store.Object, error) {
	var described store.Object
	err := d.Try(ctx, func(ctx context.Context) (err error) {
		described, err = d.Store.Attributes(ctx, format.MetadataKey(d.StoreName))
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	found, err := d.Metadata(ctx)
	unreadable, ok := errors.AsType[*UnreadableError](err)
	switch {
	case ok:
		var cause error
		if errors.Is(err, format.ErrUnfinished) {
			cause = ErrOther // ours is never unfinished
		}
		return nil, refused(cause, "it is not certain that %s is the metadata of this backup, so nothing is removed: %v", unreadable.Key, unreadable.Cause)
	case found == nil:
		return nil, err
	case found.UID != d.UID:
		return nil, d.other(format.MetadataKey(d.StoreName), found.UID)
	}
	d.Stored = found
	return &described, nil
}

// beneath finds out whether another writer, such as Velero, has replaced this backup's metadata. Then
// the attempt's copy names its objects. With neither copy nor owner nothing of it is left. Otherwise it
// returns other.
func (d *Deletion) beneath(ctx context.Context, other error) error {
	backup, err := d.Copy(ctx)
	if err != nil && !errors.Is(err, ErrUnreadable) {
		return err
	}
	gone := backup == nil && err == nil
	switch owner, err := d.owner(ctx); {
	case err != nil:
		return err
	case gone && owner == "":
		d.named = format.Contents{}
		return nil
	case owner != "" && owner != d.UID, backup == nil, backup.UID != d.UID:
		return other
	}
	named, err := format.TakeContents(backup)
	if err != nil {
		return other
	}
	objects, err := d.List(ctx)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if content, ok := named.Of(object.Key); ok && content.Size != object.Size {
			return refused(nil, "another writer, such as Velero, has replaced the metadata of this backup, and %s, so it is not certain whose the rest is: delete that writer's backup, if it is not wanted, and remove the folder %s from the store by hand; or give the deletion up by removing the BackupRun %s",
				object.Key, format.BackupPrefix(d.StoreName), d.StoreName)
		}
	}
	d.Stored, d.named = backup, named
	if named == nil {
		d.named = format.Contents{}
	}
	return nil
}

func (d *Deletion) isOurs(object store.Object) bool {
	if d.named == nil || object.Key == format.OwnerKey(d.StoreName) || format.IsAttemptKey(d.StoreName, object.Key) {
		return true
	}
	content, named := d.named.Of(object.Key)
	return named && content.Size == object.Size
}

func (d *Deletion) snapshots(ctx context.Context) (map[string][]string, error) {
	key := format.PodVolumeBackupsKey(d.StoreName)
	if _, named := d.named.Of(key); d.named != nil && !named {
		return nil, nil
	}
	ids := map[string][]string{}
	var bad error // the list exists and is wrong
	err := d.Read(ctx, key, func(r io.Reader) error {
		bad = format.ReadPodVolumeBackups(r, func(volume format.PodVolumeBackup) error {
			namespace := volume.Spec.Pod.Namespace
			switch of := volume.Labels[labelBackupUID]; {
			case of != "" && of != string(d.UID):
				return refused(ErrOther, "%s lists volumes of another backup, with the uid %s instead of %s, so they are not removed; give the deletion up by removing the BackupRun %s", key, of, d.UID, d.StoreName)
			case volume.Status.SnapshotID == "":
				if _, known := ids[namespace]; !known && volume.Spec.UploaderType == format.UploaderKopia {
					ids[namespace] = nil // an upload may have left snapshots there
				}
			case volume.Spec.UploaderType != format.UploaderKopia:
				klog.FromContext(ctx).Info("The data of a volume stays, since it was not uploaded with Kopia", "backupRun", d.StoreName, "namespace", namespace, "pod", volume.Spec.Pod.Name, "volume", volume.Spec.Volume)
			default:
				ids[namespace] = append(ids[namespace], volume.Status.SnapshotID)
			}
			return nil
		})
		return bad
	})
	refusal, isRefusal := errors.AsType[*Refusal](err)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case isRefusal:
		return nil, refusal
	case err == nil:
	case bad == nil || errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDenied) || errors.Is(err, context.Canceled):
		return nil, err
	default:
		return nil, refused(nil, unusable, key, bad)
	}
	return ids, d.moved(ctx, ids)
}

const unusable = "%s can't be used, which says where the data of the volumes is: %v; remove that object by hand to delete the backup and keep the data"

// moved adds snapshots uploaded by Velero's data mover, which Holdfast's backups lack.
func (d *Deletion) moved(ctx context.Context, ids map[string][]string) error {
	if d.named != nil || d.Stored != nil && d.Stored.Status.Origin != nil && d.Stored.Status.Origin.ClusterUID != "" {
		return nil
	}
	key := format.VolumeInfoKey(d.StoreName)
	var bad error
	err := d.Read(ctx, key, func(r io.Reader) error {
		bad = format.ReadVolumeInfos(r, func(info format.VolumeInfo) error {
			if by := info.DataMovementInfo; info.SnapshotDataMoved && by != nil && by.Stored() == "" && !slices.Contains(ids[info.PVCNamespace], by.SnapshotHandle) {
				ids[info.PVCNamespace] = append(ids[info.PVCNamespace], by.SnapshotHandle)
			}
			return nil
		})
		return bad
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err == nil || bad == nil || errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDenied) || errors.Is(err, context.Canceled):
		return err
	}
	return refused(nil, unusable, key, bad)
}

// RemoveRest removes the rest: the lists of volumes second to last, and the owner last, as no other
// backup writes while it exists. Beneath other metadata, the copy that names the rest is last.
func (d *Deletion) RemoveRest(ctx context.Context) error {
	// Without metadata, changes of the expiration are not needed.
	if err := d.RemoveExpirations(ctx, d.Remover, d.Present); err != nil {
		return err
	}
	for range 10 {
		objects, err := d.List(ctx)
		if err != nil {
			return err
		}
		switch owner, err := d.owner(ctx); {
		case err != nil:
			return err
		case owner != "" && owner != d.UID:
			return nil // by now another backup's
		}
		slices.SortStableFunc(objects, func(a, b store.Object) int { return cmp.Compare(d.rank(a.Key), d.rank(b.Key)) })
		again := false
		for _, object := range objects {
			switch {
			case !d.isOurs(object):
				continue
			case d.rank(object.Key) == 0:
				again = true // until no more appear
			case again:
				continue
			}
			if object.Key == format.MetadataKey(d.StoreName) {
				// It is new: this backup's late write, or another writer's.
				if _, err := d.describe(ctx); err != nil {
					return err
				}
			}
			if err := d.remove(ctx, object); err != nil {
				return err
			}
		}
		if !again {
			return nil
		}
	}
	return refused(nil, "what was removed from %s comes back again and again", format.BackupPrefix(d.StoreName))
}

func (d *Deletion) rank(key string) int {
	switch {
	case key == format.PodVolumeBackupsKey(d.StoreName), key == format.VolumeInfoKey(d.StoreName):
		return 1
	case key == format.OwnerKey(d.StoreName):
		return 2
	case format.IsAttemptKey(d.StoreName, key) && d.named != nil:
		return 3
	}
	return 0
}

func (d *Deletion) remove(ctx context.Context, object store.Object) error {
	if err := d.Present(); err != nil {
		return err
	}
	return d.Remove(ctx, d.Remover, object)
}
