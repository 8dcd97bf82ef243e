// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package longhorn reads stores in Longhorn's layout: an entry is a volume's folder, with its backups.
// See docs/longhorn.md.
//
// A full listing takes up to 65,793 requests, and one for each volume; finding one volume takes one.
// Names show changes. A finished backup is final, so its file is read once, up to its list of blocks.
// The volume's file is written later, so it is read after each change of names, and an hour later.
// Nothing is signed, so volumes are in their namespaces only if the location trusts these.
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

	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	format "github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	atOnce    = 64
	maxPassed = 1000
	// maxBackups bounds a volume's backups, in the order of names.
	maxBackups = 100_000
	// settled after the last backup, the volume's file is final, with a margin for clocks.
	settled = time.Hour
)

// Layout is Longhorn's, for one location.
type Layout struct {
	// TrustNamespaces lists volumes in the namespaces that they name.
	TrustNamespaces bool
	Clock           clock.PassiveClock
}

var _ refresh.Layout = &Layout{}

// List implements refresh.Layout. The first shard, for polls, is one volume, by a request for each
// 1,000 backups. The others are the folders of the first level, listed in parallel.
func (l *Layout) List(ctx context.Context, from store.Ranger, after string) iter.Seq[refresh.Shard] {
	return func(yield func(refresh.Shard) bool) {
		lister := lister{from: from, tokens: make(chan struct{}, atOnce)}
		// It may meet folders of blocks, whose errors don't matter.
		if first, err := l.next(ctx, from, after); err == nil {
			if !yield(first) || first.Position == "" {
				return
			}
			after = first.Position
		}
		found, err := lister.list(ctx, format.VolumesPrefix, store.ListOptions{})
		if err != nil {
			yield(refresh.Shard{Holds: holds(after, ""), Err: err})
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
			yield(refresh.Shard{Holds: holds(after, "")})
			return
		}
		yieldAs := func(shard refresh.Shard, i int) bool {
			position := ""
			if i < len(firsts)-1 {
				position = past(firsts[i])
			}
			shard.Holds, shard.Position = holds(after, position), position
			shard.Entries = slices.DeleteFunc(shard.Entries, func(entry refresh.Entry) bool { return !shard.Holds(entry.Name) })
			after = position
			return yield(shard)
		}
		// Alone: a poll that found no volume needs no other shard.
		if !yieldAs(l.shard(ctx, &lister, firsts[0]), 0) {
			return
		}
		var running sync.WaitGroup
		defer running.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		shards := make([]chan refresh.Shard, len(firsts))
		for i := 1; i < len(firsts); i++ {
			shards[i] = make(chan refresh.Shard, 1)
			running.Go(func() { shards[i] <- l.shard(ctx, &lister, firsts[i]) })
		}
		for i := 1; i < len(firsts); i++ {
			if !yieldAs(<-shards[i], i) {
				return
			}
		}
	}
}

func past(folder string) string { return strings.TrimSuffix(folder, "/") + string('/'+1) }

func holds(after, last string) func(name string) bool {
	return func(name string) bool {
		folder := strings.TrimPrefix(format.VolumePrefix(name), format.VolumesPrefix)
		return folder > after && (last == "" || folder <= last)
	}
}

// next lists the volume after a position: its backups come before its blocks. Without a volume, it is
// the last shard. A request full of other objects is an empty shard.
func (l *Layout) next(ctx context.Context, from store.Reader, after string) (refresh.Shard, error) {
	options := store.ListOptions{Recursive: true}
	if after != "" {
		options.StartAfter = format.VolumesPrefix + after
	}
	volume, folder, position, passed := "", "", "", 0
	var backups []store.Object
	for object, err := range from.List(ctx, format.VolumesPrefix, options) {
		if err != nil {
			return refresh.Shard{}, err
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
	shard := refresh.Shard{Holds: func(name string) bool { return name == volume }, Position: position}
	if volume != "" {
		shard.Entries = []refresh.Entry{{Name: volume, Versions: l.versions(backups)}}
	}
	return shard, nil
}

func isSpread(name string) bool {
	return len(name) == 2 && strings.Trim(name, "0123456789abcdef") == ""
}

func (l *Layout) shard(ctx context.Context, lister *lister, first string) refresh.Shard {
	seconds, err := lister.list(ctx, format.VolumesPrefix+first, store.ListOptions{})
	if err != nil {
		return refresh.Shard{Err: err}
	}
	var mu sync.Mutex
	var shard refresh.Shard // guarded by mu
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
	slices.SortFunc(shard.Entries, func(a, b refresh.Entry) int {
		return cmp.Compare(format.VolumePrefix(a.Name), format.VolumePrefix(b.Name))
	})
	return shard
}

// entries lists the volumes in a folder of the second level; with an error, some.
func (l *Layout) entries(ctx context.Context, lister *lister, folder string) (entries []refresh.Entry, failed error) {
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
			entries = append(entries, refresh.Entry{Name: name, Versions: l.versions(backups)})
		case errors.Is(err, store.ErrDenied): // its reader decides about the refusal
			entries = append(entries, refresh.Entry{Name: name})
		default:
			failed = err
		}
	}
	return entries, failed
}

// versions identifies what is read of an entry: names and versions of backups, and the settled volume
// file.
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

func (l *lister) backups(ctx context.Context, volume string) ([]store.Object, error) {
	objects, err := l.list(ctx, format.BackupsPrefix(volume), store.ListOptions{})
	return slices.DeleteFunc(objects, func(object store.Object) bool {
		_, ok := format.BackupOf(object.Key)
		return !ok || object.IsFolder
	}), err
}
