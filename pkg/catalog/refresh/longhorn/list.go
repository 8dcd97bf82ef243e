// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package longhorn reads stores that are laid out as Longhorn's backup store, see the package
// longhorn of the format: an entry is the folder of a volume, of which nothing is listed but
// its volume backups.
//
// Volumes lie two levels of folders deep, so it takes 1 + 256 + 65,536 requests at most to
// find them, and one more for each to name its backups: that many can't be had for less,
// since the data lies in between. One volume alone is found in one.
//
// Whether anything has changed follows from the names. What a backup says is final once it has ended, so its file is read once, and only up to the list of
// its blocks; the volume's own file is read again whenever the names have changed. It is
// written a moment later than they are, so also once more when nothing has changed for an
// hour.
//
// Whatever is wrong with one file is the trouble of one row: folders that are no volume's are
// passed over, and a file that can't be read is a backup that says why. Nothing in such a store
// is signed, so who may list a volume does not follow from what it says of its namespace, unless
// the storage location says that it does.
package longhorn

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/catalog/refresh/layout"
	format "github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// atOnce is how many requests are under way at once, for a listing and for each entry.
	atOnce = 64
	// maxPassed is how much that is no volume's a poll passes over.
	maxPassed = 1000
	// maxBackups is how many backups of one volume are looked at, in the order of names.
	maxBackups = 100_000
	// So long after the last backup the volume's own file is as it will stay, whatever the
	// difference between the clocks.
	settled = time.Hour
)

// Layout is that of one location.
type Layout struct {
	// TrustNamespaces says that volumes are listed in the namespaces that they name, and so
	// belong to whoever has rights there.
	TrustNamespaces bool
	Clock           clock.PassiveClock
}

var _ layout.Layout = &Layout{}

// List implements layout.Layout. The first shard is one volume, which takes a request for each
// 1,000 backups; the others are the folders of the first level, which are listed at once when
// they are asked for. Who polls asks for the first alone.
func (l *Layout) List(ctx context.Context, from store.Ranger, after string) iter.Seq[layout.Shard] {
	return func(yield func(layout.Shard) bool) {
		lister := lister{from: from, tokens: make(chan struct{}, atOnce)}
		// It looks into folders of blocks, too, and what is wrong with those does not matter.
		if first, err := l.next(ctx, from, after); err == nil {
			if !yield(first) || first.Position == "" {
				return
			}
			after = first.Position
		}
		found, err := lister.list(ctx, format.VolumesPrefix, store.ListOptions{})
		if err != nil {
			yield(layout.Shard{Holds: holds(after, ""), Err: err})
			return
		}
		var firsts []string
		for _, object := range found {
			folder := path.Base(object.Key) + "/"
			if object.IsFolder && isSpread(path.Base(object.Key)) && (folder > after || strings.HasPrefix(after, folder)) {
				firsts = append(firsts, folder)
			}
		}
		if len(firsts) == 0 {
			yield(layout.Shard{Holds: holds(after, "")})
			return
		}
		yieldAs := func(shard layout.Shard, i int) bool {
			position := ""
			if i < len(firsts)-1 {
				position = past(firsts[i])
			}
			shard.Holds, shard.Position = holds(after, position), position
			shard.Entries = slices.DeleteFunc(shard.Entries, func(entry layout.Entry) bool { return !shard.Holds(entry.Name) })
			after = position
			return yield(shard)
		}
		// Alone, since a poll that found no volume by itself asks for no other.
		if !yieldAs(l.shard(ctx, &lister, firsts[0]), 0) {
			return
		}
		var running sync.WaitGroup
		defer running.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		shards := make([]chan layout.Shard, len(firsts))
		for i := 1; i < len(firsts); i++ {
			shards[i] = make(chan layout.Shard, 1)
			running.Go(func() { shards[i] <- l.shard(ctx, &lister, firsts[i]) })
		}
		for i := 1; i < len(firsts); i++ {
			if !yieldAs(<-shards[i], i) {
				return
			}
		}
	}
}

// A position is behind all keys of a folder, and before those of the next: what is listed after
// it begins there.
func past(folder string) string { return strings.TrimSuffix(folder, "/") + string('/'+1) }

// holds tells the volumes after a position and up to another; the last, if empty.
func holds(after, last string) func(name string) bool {
	return func(name string) bool {
		folder := strings.TrimPrefix(format.VolumePrefix(name), format.VolumesPrefix)
		return folder > after && (last == "" || folder <= last)
	}
}

// next lists the volume that follows a position: of its folder all backups come before the blocks.
// It is the last shard if there is none. What is no volume is passed over; so much of it that a
// request shows nothing else is a shard of its own. It holds no volume but the one: a folder
// without files is listed by its level alone.
func (l *Layout) next(ctx context.Context, from store.Reader, after string) (layout.Shard, error) {
	options := store.ListOptions{Recursive: true}
	if after != "" {
		options.StartAfter = format.VolumesPrefix + after
	}
	volume, folder, position, passed := "", "", "", 0
	var backups []store.Object
	for object, err := range from.List(ctx, format.VolumesPrefix, options) {
		if err != nil {
			return layout.Shard{}, err
		}
		key := strings.TrimPrefix(object.Key, format.VolumesPrefix)
		parts := strings.SplitN(key, "/", 4)
		of := strings.Join(parts[:len(parts)-1], "/") + "/"
		if volume == "" {
			name, ok := format.VolumeOf(format.VolumesPrefix + of)
			if !ok {
				if passed++; passed < maxPassed {
					continue
				}
				if position = key; len(parts) == 4 {
					position = past(of)
				}
				break
			}
			volume, folder, position = name, of, past(of)
		}
		file, isBackup := "", false
		if len(parts) == 4 {
			file, isBackup = strings.CutPrefix(parts[3], "backups/")
		}
		if of != folder || !isBackup && parts[3] > "backups/" || len(backups) == maxBackups {
			break
		}
		if _, ok := format.BackupOf(object.Key); isBackup && ok && !strings.Contains(file, "/") {
			backups = append(backups, object)
		}
	}
	shard := layout.Shard{Holds: func(name string) bool { return name == volume }, Position: position}
	if volume != "" {
		shard.Entries = []layout.Entry{{Name: volume, Versions: l.versions(backups)}}
	}
	return shard, nil
}

// isSpread reports whether a folder is one of those over which volumes are spread.
func isSpread(name string) bool {
	return len(name) == 2 && strings.Trim(name, "0123456789abcdef") == ""
}

// shard lists the volumes in one folder of the first level.
func (l *Layout) shard(ctx context.Context, lister *lister, first string) layout.Shard {
	seconds, err := lister.list(ctx, format.VolumesPrefix+first, store.ListOptions{})
	if err != nil {
		return layout.Shard{Err: err}
	}
	var mu sync.Mutex
	var shard layout.Shard // guarded by mu
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, second := range seconds {
		if !second.IsFolder || !isSpread(path.Base(second.Key)) {
			continue
		}
		group.Go(func() error {
			entries, err := l.entries(ctx, lister, second.Key)
			mu.Lock()
			defer mu.Unlock()
			shard.Entries = append(shard.Entries, entries...)
			return err
		})
	}
	shard.Err = group.Wait()
	slices.SortFunc(shard.Entries, func(a, b layout.Entry) int {
		return cmp.Compare(format.VolumePrefix(a.Name), format.VolumePrefix(b.Name))
	})
	return shard
}

// entries lists the volumes in one folder of the second level. With an error, those that it
// could list.
func (l *Layout) entries(ctx context.Context, lister *lister, folder string) (entries []layout.Entry, failed error) {
	objects, err := lister.list(ctx, folder, store.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		name, ok := format.VolumeOf(object.Key)
		if !ok || !object.IsFolder {
			continue
		}
		backups, err := lister.backups(ctx, name)
		switch {
		case err == nil:
			entries = append(entries, layout.Entry{Name: name, Versions: l.versions(backups)})
		case errors.Is(err, store.ErrDenied): // whoever reads it finds out whose trouble that is
			entries = append(entries, layout.Entry{Name: name})
		default:
			failed = err
		}
	}
	return entries, failed
}

// versions stands for all that is read of an entry: it differs when backups have come or gone,
// or their files were written anew, and once more when the volume's own has been since.
func (l *Layout) versions(backups []store.Object) map[string]string {
	sum := sha256.New()
	var last time.Time
	for _, object := range backups {
		fmt.Fprintf(sum, "%q %q\n", object.Key, object.Version)
		if object.ModTime.After(last) {
			last = object.ModTime
		}
	}
	version := hex.EncodeToString(sum.Sum(nil)[:16])
	if l.Clock.Since(last) < settled {
		version += " unsettled"
	}
	return map[string]string{"backups": version}
}

// lister lists one level of folders, so many at once.
type lister struct {
	from   store.Reader
	tokens chan struct{}
}

func (l *lister) list(ctx context.Context, folder string, options store.ListOptions) (objects []store.Object, err error) {
	select {
	case l.tokens <- struct{}{}:
		defer func() { <-l.tokens }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for object, err := range l.from.List(ctx, folder, options) {
		if err != nil {
			return nil, err
		}
		if objects = append(objects, object); len(objects) == maxBackups {
			break
		}
	}
	return objects, nil
}

// backups lists the files of a volume's backups.
func (l *lister) backups(ctx context.Context, volume string) ([]store.Object, error) {
	objects, err := l.list(ctx, format.BackupsPrefix(volume), store.ListOptions{})
	return slices.DeleteFunc(objects, func(object store.Object) bool {
		_, ok := format.BackupOf(object.Key)
		return !ok || object.IsFolder
	}), err
}
