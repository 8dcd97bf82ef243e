// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// VeleroLayout reads one location with backups of Velero or Holdfast. An entry is a backup's folder,
// with expiration changes beside it. It reads the metadata, unknown lists of volumes, and of Velero's
// backups up to three lists of snapshots. Velero may rewrite metadata, so polls compare versions.
type VeleroLayout struct {
	Location string
	// SystemNamespace gets backups that belong to no namespace here.
	SystemNamespace string
	Clock           clock.PassiveClock
	// Vouches reports whether a trusted cluster has signed a backup; nil trusts all. Others are read
	// within bounds.
	Vouches func(origin *v1alpha1.BackupOrigin) bool
}

const (
	// Of rare large metadata and large untrusted lists, at most largeAtOnce are in memory.
	largeMetadata = 64 << 10
	largeAtOnce   = 4
)

var large = semaphore.NewWeighted(largeAtOnce)

var (
	_ Parted  = &VeleroLayout{}
	_ Watched = &VeleroLayout{}
)

// Keys of Content.Versions.
const (
	versionMetadata = "metadata"
	versionVolumes  = "volumes"
	// reading changes if lists are decoded differently.
	reading = "1 "
)

// pageSize is about a shard's size, S3's page.
const pageSize = 1000

// List implements Layout. A shard is about a page, its position the last key. It never ends between a
// change and its backup's folder, and omits changes without one.
func (l *VeleroLayout) List(ctx context.Context, from store.Ranger, after string) iter.Seq[Shard] {
	return func(yield func(Shard) bool) {
		waiting := changes{} // changes precede their entries' folders
		begin, last := after, after
		var shard Shard
		count := 0
		end := func() bool {
			shard.Holds, shard.Position = holds(begin, last), last
			if !yield(shard) {
				return false
			}
			shard, count, begin = Shard{}, 0, last
			return true
		}
		for object, err := range from.List(ctx, format.BackupsPrefix, store.ListOptions{StartAfter: behind(after)}) {
			if err != nil {
				shard.Holds, shard.Err = holds(begin, ""), err
				yield(shard)
				return
			}
			waiting.forget(object.Key)
			if count >= pageSize && len(waiting) == 0 && !end() {
				return
			}
			count++
			last = object.Key
			if storeName, ok := format.StoreNameOf(object.Key); ok {
				shard.Entries = append(shard.Entries, Entry{Name: storeName, Beside: waiting.take(storeName)})
				if count >= pageSize && len(waiting) == 0 && !end() {
					return
				}
			} else if storeName, _, _, ok := format.ParseExpirationKey(object.Key); ok && !object.IsFolder {
				waiting.add(storeName, object.Key)
			}
		}
		shard.Holds = holds(begin, "")
		yield(shard)
	}
}

// changes are the listed changes of the few store names whose folders may follow: each name begins the
// next.
type changes map[string]*listedChanges

type listedChanges struct {
	keys  []string
	crowd hash.Hash // of all keys; nil for few
}

func (c changes) add(storeName, key string) {
	of := c[storeName]
	if of == nil {
		of = &listedChanges{}
		c[storeName] = of
	}
	if of.crowd == nil {
		if of.keys = append(of.keys, key); len(of.keys) <= catalog.MaxChanges {
			return
		}
		of.crowd, key = sha256.New(), strings.Join(of.keys, "\n")
		of.keys = nil
	}
	_, _ = io.WriteString(of.crowd, key+"\n")
}

func (c changes) take(storeName string) []string {
	of := c[storeName]
	delete(c, storeName)
	switch {
	case of == nil:
		return nil
	case of.crowd != nil:
		return []string{catalog.Crowd(storeName, of.crowd.Sum(nil))}
	}
	return of.keys
}

// forget removes names whose folders precede a listed key. Between the changes and the folder of a,
// keys may begin with "a.", such as the folder of a.b.
func (c changes) forget(key string) {
	key = strings.TrimPrefix(key, format.BackupsPrefix)
	for storeName := range c {
		rest, begins := strings.CutPrefix(key, storeName)
		if !begins || rest != "/" && !strings.HasPrefix(rest, ".") {
			delete(c, storeName)
		}
	}
}

// Position implements Parted.
func (l *VeleroLayout) Position(name string) string { return format.BackupPrefix(name) }

// Watch implements Watched.
func (l *VeleroLayout) Watch(ctx context.Context, from store.Ranger, after string) (versions map[string]map[string]string, position string, err error) {
	versions = map[string]map[string]string{}
	count := 0
	for object, err := range from.List(ctx, format.BackupsPrefix, store.ListOptions{Recursive: true, StartAfter: after}) {
		if err != nil {
			if errors.Is(err, store.ErrDenied) { // maybe to one folder only
				return versions, "", err
			}
			return nil, after, err
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(object.Key, format.BackupsPrefix), "/")
		if object.Key == format.MetadataKey(name) {
			versions[name] = map[string]string{versionMetadata: object.Version}
		}
		if count++; count == pageSize {
			return versions, object.Key, nil
		}
	}
	return versions, "", nil
}

func holds(after, last string) func(name string) bool {
	return func(name string) bool {
		key := format.BackupPrefix(name)
		return key > after && (last == "" || key <= last)
	}
}

// behind returns a key between a folder's content and later keys.
func behind(folder string) string {
	if name, ok := strings.CutSuffix(folder, "/"); ok {
		return name + string('/'+1)
	}
	return folder
}

// Probe implements Layout.
func (l *VeleroLayout) Probe(ctx context.Context, from store.Ranger, name string) error {
	_, _, err := l.readMetadata(ctx, from, name, format.MetadataKey(name))
	return err
}

// Read implements Layout.
func (l *VeleroLayout) Read(ctx context.Context, from store.Ranger, name string, known KnownEntry) (content catalog.Content, err error) {
	isStoreFailure := func(err error) bool {
		return isStoreFailure(err) || !known.MayRead && errors.Is(err, store.ErrDenied)
	}
	backup, version, err := l.readMetadata(ctx, from, name, format.MetadataKey(name))
	if errors.Is(err, format.ErrUnfinished) || err == nil && !isSigned(backup) {
		ours, whole, copyErr := l.readCopy(ctx, from, name)
		switch {
		case isStoreFailure(copyErr):
			return content, copyErr
		case ours != nil && whole:
			backup, err = ours, nil
			content.Replaced = "velero-backup.json is another writer's by now, such as Velero's: this backup is what holdfast-backup.json says, and all of its objects have their sizes; let Velero use another prefix or other names"
			klog.FromContext(ctx).Info("Somebody has replaced the metadata of a backup, which is served from its copy", "location", l.Location, "backup", name)
		case ours != nil:
			content.Replaced = fmt.Sprintf("somebody, such as Velero, has replaced the backup with the uid %s, of which not all objects are left; let Velero use another prefix or other names", ours.UID)
			klog.FromContext(ctx).Info("Somebody has replaced a backup", "location", l.Location, "backup", name, "uid", ours.UID)
		}
	}
	switch {
	case errors.Is(err, store.ErrNotFound) || errors.Is(err, format.ErrUnfinished):
		// A write is running, or was given up.
		return content, ErrUnfinished
	case isStoreFailure(err):
		return content, err
	case err != nil:
		return content, &UnreadableError{Reason: "velero-backup.json can't be read: " + store.Reason(err)}
	}
	content.Backup, content.ChangesRead = backup, known.Beside(backup.UID)
	changes := content.ChangesRead
	if slices.ContainsFunc(changes, catalog.IsCrowd) {
		changes, err = l.listChanges(ctx, from, name, backup.UID)
	}
	if err == nil {
		content.Changes, err = l.readChanges(ctx, from, name, backup, changes)
	}
	if err != nil {
		if known.MayRead && errors.Is(err, store.ErrDenied) { // it may have a hold, so the backup must not expire
			err = &UnreadableError{Reason: "a change of its expiration can't be read: " + store.Reason(err)}
		}
		return content, err
	}
	bounded := l.bounded(ctx, backup)
	contents, err := format.TakeContents(backup)
	list, named := contents.Of(format.PodVolumeBackupsKey(name))
	if isSigned(backup) {
		content.Digests = catalog.Digests{
			Log:      contents[path.Base(format.LogKey(name))].SHA256,
			Results:  contents[path.Base(format.ResultsKey(name))].SHA256,
			Manifest: contents[path.Base(format.ManifestKey(name))].SHA256,
		}
	}
	if version != "" {
		content.Versions = map[string]string{versionMetadata: version}
		if named {
			content.Versions[versionVolumes] = reading + list.SHA256
		}
	}
	switch {
	case err != nil || !named && isSigned(backup): // the signature must cover the list
	case named && isSigned(backup) && known.Versions[versionVolumes] == reading+list.SHA256: // a list without a signature also needs snapshots
		content.Volumes = known.Volumes()
	default:
		content.Volumes, err = l.readVolumes(ctx, from, name, contents, bounded)
	}
	if err != nil {
		delete(content.Versions, versionVolumes)
	}
	switch {
	case errors.Is(err, errNotWhole):
		// Its metadata was written after its deletion (package backup), or objects were removed or
		// replaced.
		backup.Status.Phase = v1alpha1.BackupPhaseUnreadable
		backup.Status.FailureReason = err.Error()
		backup.Status.Conditions = format.EndConditions(&backup.Status)
		content.Volumes = nil
	case errors.Is(err, store.ErrNotFound): // a backup without the list has no volumes
	case isStoreFailure(err):
		return content, err
	case err != nil:
		content.Volumes, content.VolumesError = nil, store.Reason(err)
	}
	if !isSigned(backup) {
		snapshots, err := l.readSnapshots(ctx, from, name, bounded)
		if err != nil && isStoreFailure(err) {
			return content, err
		}
		if err != nil {
			content.VolumesError = cmp.Or(content.VolumesError, store.Reason(err))
		}
		content.Volumes = append(content.Volumes, snapshots...)
	}
	return content, nil
}

// readSnapshots reads which volumes Velero stored by snapshots: since 1.13 from one list, before from
// several.
func (l *VeleroLayout) readSnapshots(ctx context.Context, from store.Ranger, storeName string, bounded func(list io.Reader, read func(io.Reader) error) error) (volumes []catalog.Volume, err error) {
	type list struct {
		key  string
		read func(io.Reader) ([]catalog.Volume, error)
	}
	take := func(of list) (err error) {
		var found []catalog.Volume
		err = get(ctx, from, of.key, func(content io.Reader) (err error) {
			return bounded(content, func(list io.Reader) (err error) {
				found, err = of.read(list)
				return err
			})
		})
		if err == nil {
			volumes = append(volumes, found...)
		}
		return err
	}
	if err := take(list{format.VolumeInfoKey(storeName), catalog.ReadVolumeInfos}); !errors.Is(err, store.ErrNotFound) {
		return volumes, err
	}
	for _, of := range []list{{format.VolumeSnapshotsKey(storeName), catalog.ReadNativeSnapshots}, {format.CSISnapshotsKey(storeName), catalog.ReadCSISnapshots}} {
		if err := take(of); err != nil && !errors.Is(err, store.ErrNotFound) {
			return volumes, err
		}
	}
	return volumes, nil
}

func isStoreFailure(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func isSigned(backup *v1alpha1.Backup) bool {
	return backup.Status.Origin.Trust == ""
}

func (l *VeleroLayout) vouches(backup *v1alpha1.Backup) bool {
	return isSigned(backup) && (l.Vouches == nil || l.Vouches(backup.Status.Origin))
}

func (l *VeleroLayout) bounded(ctx context.Context, backup *v1alpha1.Backup) func(list io.Reader, read func(io.Reader) error) error {
	if l.vouches(backup) {
		return func(list io.Reader, read func(io.Reader) error) error { return read(list) }
	}
	return func(list io.Reader, read func(io.Reader) error) error {
		isLarge := false
		defer func() {
			if isLarge {
				large.Release(1)
			}
		}()
		return read(format.Foreign{Reader: list, Large: func() error {
			err := large.Acquire(ctx, 1)
			isLarge = err == nil
			return err
		}})
	}
}

// readCopy returns our copy of replaced metadata, or nil, and whether its objects have their sizes.
func (l *VeleroLayout) readCopy(ctx context.Context, from store.Ranger, storeName string) (ours *v1alpha1.Backup, whole bool, err error) {
	err = format.ErrUnfinished
	for attempt := 1; attempt <= format.MaxAttemptKeys && errors.Is(err, format.ErrUnfinished); attempt++ {
		ours, _, err = l.readMetadata(ctx, from, storeName, format.AttemptKey(storeName, attempt))
	}
	if err != nil || !isSigned(ours) {
		return nil, false, err
	}
	if phase := ours.Status.Phase; phase != v1alpha1.BackupPhaseCompleted && phase != v1alpha1.BackupPhasePartiallyFailed {
		return nil, false, nil
	}
	contents, err := format.TakeContents(ours.DeepCopy())
	if err != nil || len(contents) == 0 {
		return nil, false, err
	}
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

// readMetadata also returns the version; empty if unknown.
func (l *VeleroLayout) readMetadata(ctx context.Context, from store.Ranger, storeName, key string) (backup *v1alpha1.Backup, version string, err error) {
	err = get(ctx, from, key, func(content io.Reader) error {
		version = store.VersionOf(content)
		data, err := io.ReadAll(io.LimitReader(content, largeMetadata))
		if err == nil && len(data) == largeMetadata {
			if err := large.Acquire(ctx, 1); err != nil {
				return err
			}
			defer large.Release(1)
			var rest []byte
			rest, err = io.ReadAll(io.LimitReader(content, format.MaxMetadataBytes+1-largeMetadata))
			data = append(data, rest...)
		}
		if err != nil {
			return err
		}
		backup, err = format.DecodeBackup(data, format.Place{
			StoreName:       storeName,
			Location:        l.Location,
			SystemNamespace: l.SystemNamespace,
			Now:             l.Clock.Now(),
		})
		if err == nil && !l.vouches(backup) {
			catalog.Abridge(backup)
		}
		return err
	})
	return backup, version, err
}

// listChanges returns the newest of very many changes.
func (l *VeleroLayout) listChanges(ctx context.Context, from store.Reader, storeName string, backup types.UID) (newest []string, err error) {
	beginning := format.ExpirationsBeginning(storeName, backup)
	for object, err := range from.List(ctx, format.BackupsPrefix, store.ListOptions{Beginning: beginning}) {
		if err != nil {
			return nil, err
		}
		if newest = append(newest, object.Key); len(newest) == pageSize {
			newest = catalog.ChangesOf(newest, backup)
		}
	}
	return catalog.ChangesOf(newest, backup), nil
}

const maxSigners = 8

// readChanges reads the newest change of each signer of the backup's cluster, since each repeats
// earlier deletions. It ignores invalid signatures, and fails for unreadable changes, which may have a
// hold.
func (l *VeleroLayout) readChanges(ctx context.Context, from store.Reader, storeName string, backup *v1alpha1.Backup, keys []string) (changes []format.Expiration, err error) {
	if !isSigned(backup) {
		return nil, nil
	}
	origin := backup.Status.Origin
	for _, key := range keys {
		var data []byte
		err := get(ctx, from, key, func(content io.Reader) (err error) {
			data, err = io.ReadAll(io.LimitReader(content, format.MaxExpirationBytes+1))
			return err
		})
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		_, _, number, _ := format.ParseExpirationKey(key)
		change, err := format.DecodeExpiration(data, storeName, backup.UID, number)
		if err != nil {
			klog.FromContext(ctx).Info("A change of the expiration of a backup is not believed", "location", l.Location, "key", key, "reason", err.Error())
			continue
		}
		own := change.PublicKey == origin.PublicKey
		switch {
		case change.ClusterUID != origin.ClusterUID, !own && len(changes) >= maxSigners,
			slices.ContainsFunc(changes, func(newer format.Expiration) bool { return newer.PublicKey == change.PublicKey }):
			continue
		}
		changes = append(changes, *change)
		if own {
			break
		}
	}
	return changes, nil
}

var errNotWhole = errors.New("the backup is not whole")

// readVolumes fails with errNotWhole if the metadata names another list.
func (l *VeleroLayout) readVolumes(ctx context.Context, from store.Ranger, storeName string, contents format.Contents, bounded func(list io.Reader, read func(io.Reader) error) error) ([]catalog.Volume, error) {
	key := format.PodVolumeBackupsKey(storeName)
	want, named := contents.Of(key)
	var volumes []catalog.Volume
	err := get(ctx, from, key, func(content io.Reader) (err error) {
		sum, size := sha256.New(), int64(0)
		seen := io.TeeReader(content, writerFunc(func(p []byte) (int, error) {
			size += int64(len(p))
			return sum.Write(p)
		}))
		err = bounded(seen, func(list io.Reader) (err error) {
			volumes, err = catalog.ReadVolumes(list)
			return err
		})
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

func get(ctx context.Context, from store.Reader, key string, read func(io.Reader) error) error {
	content, err := from.Get(ctx, key)
	if err != nil {
		return err
	}
	defer content.Close()
	return read(content)
}
