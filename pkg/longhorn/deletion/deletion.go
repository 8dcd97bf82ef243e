// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deletion removes volumes and backups from a Longhorn store by Longhorn's rules, so that both
// may work there: docs/longhorn.md ("Delete backups").
//
// A block is removed only if all backups of the volume were read, and none names the block or is
// unfinished. Their names must not have changed meanwhile, and our lock must have been valid
// throughout. A backup that Longhorn begins meanwhile sees the lock and gives up, or has slept and left
// an unfinished file.
//
// Unlike in Longhorn's library, LastBackupName names the newest good backup even beside bad ones, since
// otherwise the next backup is full.
package deletion

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	readsAtOnce    = 8
	removalsAtOnce = 16
	releaseTimeout = 10 * time.Second
)

// Store is the needed part of a store.
type Store interface {
	store.Reader
	store.Writer
	store.Remover
	// Remove removes any version: blocks' and locks' names are used once.
	Remove(ctx context.Context, key string) error
}

// Deleter deletes from one store.
type Deleter struct {
	Store Store
	Clock clock.WithTicker
}

// Result is a successful deletion's result.
type Result struct {
	// Kept says why unneeded blocks may remain, or is empty. A later deletion in the volume collects
	// them, if possible.
	Kept string
}

// Backup deletes a backup, and the blocks that no other needs.
func (d *Deleter) Backup(ctx context.Context, volume, backup string) (result Result, err error) {
	return d.Backups(ctx, volume, []string{backup}, false)
}

// Backups deletes backups of a volume, and the blocks that no other needs; with whole also the volume,
// unless it has other backups.
func (d *Deleter) Backups(ctx context.Context, volume string, backups []string, whole bool) (result Result, err error) {
	for _, backup := range backups {
		if !longhorn.ValidName(volume) || !longhorn.ValidName(backup) {
			return result, fmt.Errorf("there can't be a backup %q of a volume %q", backup, volume)
		}
	}
	lock, err := d.acquire(ctx, volume)
	if err != nil {
		return result, err
	}
	defer lock.release(ctx)
	for _, backup := range backups {
		if err := lock.check(); err != nil {
			return result, err
		}
		if err := d.deleteIfThere(ctx, longhorn.BackupKey(volume, backup)); err != nil {
			return result, err
		}
	}
	if whole {
		others, err := d.list(ctx, longhorn.BackupsPrefix(volume), isBackup)
		if err == nil && len(others) == 0 {
			err = d.clear(ctx, lock, volume)
		}
		if err != nil || len(others) == 0 {
			return result, err
		}
	}
	config, err := d.read(ctx, longhorn.VolumeKey(volume))
	if errors.Is(err, store.ErrNotFound) {
		return Result{Kept: "the volume.cfg of the volume is missing: delete the volume"}, nil
	}
	if err != nil {
		return result, err
	}
	described, err := longhorn.ReadVolume(bytes.NewReader(config))
	if err != nil {
		return Result{Kept: "the volume.cfg of the volume can't be read: " + err.Error()}, nil
	}
	names, err := d.list(ctx, longhorn.BackupsPrefix(volume), isBackup)
	if err != nil {
		return result, err
	}
	left, err := d.survey(ctx, names, readBackup)
	if err != nil {
		return result, err
	}
	var edit longhorn.VolumeEdit
	if !slices.ContainsFunc(names, func(object store.Object) bool { return object.Key == longhorn.BackupKey(volume, described.LastBackup) }) {
		last, at := left.last()
		edit.LastBackup, edit.LastBackupAt = &last, &at
		if err := d.edit(ctx, lock, volume, edit); err != nil {
			return result, err
		}
	}
	blocks, kept, err := d.collect(ctx, lock, left, longhorn.BlocksPrefix(volume), longhorn.BackupsPrefix(volume), isBackup, names)
	if err != nil || kept != "" {
		return Result{Kept: kept}, err
	}
	return result, d.edit(ctx, lock, volume, longhorn.VolumeEdit{Blocks: &blocks})
}

// Volume deletes a volume with all its backups, and last its file and our lock.
func (d *Deleter) Volume(ctx context.Context, volume string) error {
	if !longhorn.ValidName(volume) || volume == longhorn.ImagesVolume {
		return fmt.Errorf("there can't be a volume %q", volume)
	}
	if there, err := d.list(ctx, longhorn.VolumePrefix(volume), nil); err != nil || len(there) == 0 {
		return err
	}
	lock, err := d.acquire(ctx, volume)
	if err != nil {
		return err
	}
	defer lock.release(ctx)
	return d.clear(ctx, lock, volume)
}

func (d *Deleter) clear(ctx context.Context, lock *lock, volume string) error {
	if err := d.empty(ctx, lock, longhorn.BackupsPrefix(volume)); err != nil {
		return err
	}
	if err := d.empty(ctx, lock, longhorn.BlocksPrefix(volume)); err != nil {
		return err
	}
	if err := d.empty(ctx, lock, longhorn.VolumePrefix(volume), lock.key, longhorn.VolumeKey(volume)); err != nil {
		return err
	}
	return d.remove(ctx, lock, []string{longhorn.VolumeKey(volume)})
}

// Image deletes a backing image, and the blocks that no other needs.
func (d *Deleter) Image(ctx context.Context, image string) (result Result, err error) {
	if !longhorn.ValidName(image) {
		return result, fmt.Errorf("there can't be a backing image %q", image)
	}
	lock, err := d.acquire(ctx, longhorn.ImagesVolume)
	if err != nil {
		return result, err
	}
	defer lock.release(ctx)
	if err := d.deleteIfThere(ctx, longhorn.ImageKey(image)); err != nil {
		return result, err
	}
	names, err := d.list(ctx, longhorn.ImagesPrefix, isImage)
	if err != nil {
		return result, err
	}
	left, err := d.survey(ctx, names, readImage)
	if err != nil {
		return result, err
	}
	_, result.Kept, err = d.collect(ctx, lock, left, longhorn.ImageBlocksPrefix, longhorn.ImagesPrefix, isImage, names)
	return result, err
}

// SystemBackup deletes a backup of Longhorn's own objects.
func (d *Deleter) SystemBackup(ctx context.Context, version, name string) error {
	if !longhorn.ValidName(version) || !longhorn.ValidName(name) {
		return fmt.Errorf("there can't be a system backup %q of the version %q", name, version)
	}
	folder := longhorn.SystemBackupsPrefix + version + "/" + name + "/"
	if err := d.deleteIfThere(ctx, folder+"system-backup.cfg"); err != nil {
		return err
	}
	return d.deleteIfThere(ctx, folder+"system-backup.zip")
}

func isBackup(key string) bool {
	_, ok := longhorn.BackupOf(key)
	return ok
}

func isImage(key string) bool { return strings.HasSuffix(key, "/backing-image.cfg") }

func (d *Deleter) list(ctx context.Context, folder string, wanted func(key string) bool) (objects []store.Object, err error) {
	for object, err := range d.Store.List(ctx, folder, store.ListOptions{Recursive: wanted != nil}) {
		if err != nil {
			return nil, err
		}
		if wanted == nil || wanted(object.Key) {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

func (d *Deleter) deleteIfThere(ctx context.Context, key string) error {
	object, err := d.Store.Attributes(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.Store.Delete(ctx, object)
}

func (d *Deleter) read(ctx context.Context, key string) ([]byte, error) {
	content, err := d.Store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(io.LimitReader(content, longhorn.MaxConfigBytes+1))
}

func (d *Deleter) edit(ctx context.Context, lock *lock, volume string, edit longhorn.VolumeEdit) error {
	key := longhorn.VolumeKey(volume)
	before, err := d.read(ctx, key)
	if err != nil {
		return err
	}
	after, err := edit.Apply(before)
	if err != nil || bytes.Equal(before, after) {
		return err
	}
	if err := lock.check(); err != nil {
		return err
	}
	return d.Store.Put(ctx, key, after)
}

type remains struct {
	spoilt string

	mu   sync.Mutex
	used map[longhorn.Checksum]bool // guarded by mu
	good []*longhorn.Backup         // guarded by mu
}

func (r *remains) last() (name, at string) {
	if len(r.good) == 0 {
		return "", ""
	}
	last := slices.MaxFunc(r.good, func(a, b *longhorn.Backup) int {
		return cmp.Or(a.SnapshotCreated.Compare(b.SnapshotCreated), cmp.Compare(a.Name, b.Name))
	})
	return last.Name, last.SnapshotCreated.Format(time.RFC3339)
}

func (r *remains) use(c longhorn.Checksum) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[c] = true
	return nil
}

// errUnfinished: it may need blocks that it does not name yet.
var errUnfinished = errors.New("it has not ended")

func readBackup(r io.Reader, left *remains) error {
	b, err := longhorn.ReadBackup(r, left.use)
	switch {
	case err != nil:
		return err
	case !b.Finished:
		return errUnfinished
	}
	left.mu.Lock()
	defer left.mu.Unlock()
	left.good = append(left.good, b)
	return nil
}

func readImage(r io.Reader, left *remains) error {
	complete, err := longhorn.ReadImage(r, left.use)
	if err == nil && !complete {
		return errUnfinished
	}
	return err
}

func (d *Deleter) survey(ctx context.Context, names []store.Object, read func(io.Reader, *remains) error) (*remains, error) {
	left := &remains{used: map[longhorn.Checksum]bool{}}
	troubles := make([]string, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for i, object := range names {
		group.Go(func() error {
			content, err := d.Store.Get(ctx, object.Key)
			if err != nil {
				return err
			}
			defer content.Close()
			if err := read(content, left); err != nil {
				if isStores(err) {
					return err
				}
				troubles[i] = fmt.Sprintf("%s: %s: delete it, too, or wait until it has ended", object.Key, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if spoilt := slices.IndexFunc(troubles, func(text string) bool { return text != "" }); spoilt >= 0 {
		left.spoilt = troubles[spoilt]
	}
	return left, nil
}

func isStores(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrNotFound) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// collect removes unneeded blocks and counts the others, or says why it removes none.
func (d *Deleter) collect(ctx context.Context, lock *lock, left *remains, blocksPrefix, namesPrefix string, wanted func(string) bool, names []store.Object) (used int64, kept string, err error) {
	if left.spoilt != "" {
		return 0, left.spoilt, nil
	}
	var unused []string
	for object, err := range d.Store.List(ctx, blocksPrefix, store.ListOptions{Recursive: true}) {
		if err != nil {
			return 0, "", err
		}
		checksum, ok := longhorn.ChecksumOf(object.Key)
		switch {
		case !ok || longhorn.BlockKey(blocksPrefix, checksum) != object.Key:
		case left.used[checksum]:
			used++
		default:
			unused = append(unused, object.Key)
		}
	}
	again, err := d.list(ctx, namesPrefix, wanted)
	if err != nil {
		return 0, "", err
	}
	if !slices.EqualFunc(names, again, func(a, b store.Object) bool { return a.Key == b.Key && a.Version == b.Version }) {
		return 0, "others have come or gone meanwhile", nil
	}
	return used, "", d.remove(ctx, lock, unused)
}

func (d *Deleter) empty(ctx context.Context, lock *lock, folder string, except ...string) error {
	var keys []string
	for object, err := range d.Store.List(ctx, folder, store.ListOptions{Recursive: true}) {
		if err != nil {
			return err
		}
		if slices.Contains(except, object.Key) {
			continue
		}
		if keys = append(keys, object.Key); len(keys) == 1000 {
			if err := d.remove(ctx, lock, keys); err != nil {
				return err
			}
			keys = nil
		}
	}
	return d.remove(ctx, lock, keys)
}

func (d *Deleter) remove(ctx context.Context, lock *lock, keys []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(removalsAtOnce)
	for _, key := range keys {
		group.Go(func() error {
			if err := cmp.Or(ctx.Err(), lock.check()); err != nil {
				return err
			}
			return d.Store.Remove(ctx, key)
		})
	}
	return group.Wait()
}
