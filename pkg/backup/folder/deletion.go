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

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// labelBackupUID is, on a stored volume, the uid of its backup, whoever made it.
const labelBackupUID = "velero.io/backup-uid"

// ErrOther says that the folder, or what lies there, is another backup's.
var ErrOther = errors.New("it is another backup")

// Refusal is why a deletion can't go on without somebody's hand.
type Refusal struct {
	text  string
	cause error
}

func (r *Refusal) Error() string { return r.text }

func (r *Refusal) Unwrap() error { return r.cause }

func refused(cause error, text string, args ...any) error {
	return &Refusal{fmt.Sprintf(text, args...), cause}
}

// Deletion removes a backup from its folder, whatever another process, or the same one
// before it died, has removed already. Look comes first; then RemoveMetadata, so that
// nobody begins to read what is going, and RemoveRest. What is removed was described before it was asked whose it is.
type Deletion struct {
	Folder
	Remover store.Remover
	// Present fails if the deletion is over, so that the name may be another backup's. It
	// is asked before each removal: anything may take long, also for another process.
	Present func() error

	// Snapshots are the ids of the backup's snapshots, by the namespace of their
	// repository. Look sets them.
	Snapshots map[string][]string

	// Stored is the backup as it was found in the store, by its metadata or, beneath another
	// writer's, by its copy; nil if there is nothing left to read. Look sets it.
	Stored *holdfast.Backup

	metadata *store.Object
	// named are the objects of a backup that lies beneath another writer's metadata, and
	// all that is removed; else it is nil.
	named format.Contents
}

// Look reads whose the folder is, and where the data of the volumes is. It removes nothing.
// The error is ErrOther if the folder is another backup's.
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
	// A process that was paused has written the metadata late, after this backup was
	// deleted. All else in the folder is its owner's.
	return nil
}

// RemoveMetadata removes the metadata that Look has found.
func (d *Deletion) RemoveMetadata(ctx context.Context) error {
	if d.metadata == nil {
		return nil
	}
	return d.remove(ctx, *d.metadata)
}

// owner is the uid of the backup whose the folder is; empty if it is nobody's.
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

// other is the refusal of a folder that is another backup's.
func (d *Deletion) other(key string, uid types.UID) error {
	return refused(ErrOther, "%s belongs to another backup of this name, with the uid %s instead of %s, so nothing is removed; give the deletion up by removing the BackupRun %s", key, uid, d.UID, d.StoreName)
}

// describe describes the metadata, if it is there, and fails if it is not that of the
// backup that is meant. What is read was there after what is described: if both are
// not the same, that is not removed.
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

// beneath finds out whether the backup lies beneath the metadata of another writer, such
// as Velero, which replaces metadata without looking. Then the copy of its own says what
// belongs to it, and nothing has been put in the place of that. With neither copy nor
// owner nothing is left of it. Else the other's metadata is what is in the way.
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

// isOurs reports whether an object of the folder belongs to the backup.
func (d *Deletion) isOurs(object store.Object) bool {
	if d.named == nil || object.Key == format.OwnerKey(d.StoreName) || format.IsAttemptKey(d.StoreName, object.Key) {
		return true
	}
	content, named := d.named.Of(object.Key)
	return named && content.Size == object.Size
}

// snapshots are the ids of the backup's snapshots, by the namespace of their
// repository.
func (d *Deletion) snapshots(ctx context.Context) (map[string][]string, error) {
	key := format.PodVolumeBackupsKey(d.StoreName)
	if _, named := d.named.Of(key); d.named != nil && !named {
		return nil, nil
	}
	ids := map[string][]string{}
	var bad error // what is wrong with the list, if it is there
	err := d.Read(ctx, key, func(r io.Reader) error {
		bad = format.ReadPodVolumeBackups(r, func(volume format.PodVolumeBackup) error {
			namespace := volume.Spec.Pod.Namespace
			switch of := volume.Labels[labelBackupUID]; {
			case of != "" && of != string(d.UID):
				return refused(ErrOther, "%s lists volumes of another backup, with the uid %s instead of %s, so they are not removed; give the deletion up by removing the BackupRun %s", key, of, d.UID, d.StoreName)
			case volume.Status.SnapshotID == "":
				if _, known := ids[namespace]; !known && volume.Spec.UploaderType == format.UploaderKopia {
					ids[namespace] = nil // what its upload has left is found there
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
	case errors.Is(err, store.ErrNotFound): // a backup without one has no volumes
	case isRefusal:
		return nil, refusal
	case err == nil:
	case bad == nil || errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDenied) || errors.Is(err, context.Canceled):
		return nil, err // the store can't be asked, which says nothing about the list
	default:
		return nil, refused(nil, "%s can't be used, which says where the data of the volumes is: %v; remove that object by hand to delete the backup and keep the data", key, bad)
	}
	return ids, nil
}

// RemoveRest removes what is left of the folder: after all else the list of volumes, and
// the owner last: as long as it is there, nobody else begins to write. Beneath others'
// metadata nobody does, and the copy of its own is last, which says what is left.
func (d *Deletion) RemoveRest(ctx context.Context) error {
	// Of those beside the folder nothing needs to know any more, now that no metadata is there.
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
			return nil // it is another backup's by now, so that of this one nothing is left
		}
		slices.SortStableFunc(objects, func(a, b store.Object) int { return cmp.Compare(d.rank(a.Key), d.rank(b.Key)) })
		again := false
		for _, object := range objects {
			switch {
			case !d.isOurs(object):
				continue
			case d.rank(object.Key) == 0:
				again = true // until nothing comes any more
			case again:
				continue
			}
			if object.Key == format.MetadataKey(d.StoreName) {
				// It was gone a moment ago: a late write of this backup, or somebody else's.
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

// rank is the order in which objects go; those of 0 in any.
func (d *Deletion) rank(key string) int {
	switch {
	case key == format.PodVolumeBackupsKey(d.StoreName):
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
