// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sys/unix"
)

// surplus removes or counts files that the snapshot lacks: a newer log beside older tables may
// damage a database.
type surplus struct {
	remove bool
	// device is the volume's file system; others mounted below are not touched.
	device          uint64
	first, why      string
	stayed, removed int64
	// most bounds the names in memory.
	most int
}

const (
	surplusAtOnce = 100_000
	// lostAndFound is made by the file system in each new volume.
	lostAndFound = "lost+found"
)

func (s *surplus) begin(root *confined, remove bool) error {
	stat, err := handle{int(root.top.Fd()), ".", root.calls}.stat()
	if err != nil {
		return fmt.Errorf("read the volume's folder: %w", err)
	}
	s.remove, s.device, s.most = remove, stat.Dev, surplusAtOnce
	return nil
}

func (s *surplus) stays(rel, why string) {
	if s.stayed++; s.stayed == 1 {
		s.first, s.why = rel, why
	}
}

func (s *surplus) tell(to *notes) {
	if s.stayed == 0 {
		return
	}
	text := "is not in the backup, and stays"
	if s.why != "" {
		text = "is not in the backup, and could not be removed: " + s.why
	}
	switch {
	case s.stayed == 2:
		text += "; so does 1 other file"
	case s.stayed > 2:
		text += fmt.Sprintf("; so do %d other files", s.stayed-1)
	}
	to.add(s.first, text)
}

// settleSurplus removes or counts what a folder has besides its stored entries, with all below.
// With remove, a folder in the place of a stored file is surplus.
func (o *output) settleSurplus(ctx context.Context, rel string, stored []*snapshot.DirEntry) error {
	byName := func(entry *snapshot.DirEntry, name string) int { return cmp.Compare(entry.Name, name) }
	if !slices.IsSortedFunc(stored, func(a, b *snapshot.DirEntry) int { return byName(a, b.Name) }) {
		stored = slices.SortedFunc(slices.Values(stored), func(a, b *snapshot.DirEntry) int { return byName(a, b.Name) })
	}
	isSurplus := func(name string, isFolder bool) bool {
		if rel == "" && name == lostAndFound && isFolder {
			return false
		}
		i, found := slices.BinarySearchFunc(stored, name, byName)
		return !found || o.surplus.remove && isFolder && stored[i].Type != snapshot.EntryTypeDirectory
	}
	for {
		found, err := o.listSurplus(ctx, rel, isSurplus)
		if err != nil {
			return err
		}
		before := o.surplus.removed
		for i := range found {
			if err := o.settleFile(ctx, path.Join(rel, found[i].name), found[i].isFolder, found[i].isMount); err != nil {
				return err
			}
		}
		if len(found) < o.surplus.most || o.surplus.removed == before {
			return nil
		}
	}
}

type surplusFile struct {
	name              string
	isFolder, isMount bool
}

func (o *output) listSurplus(ctx context.Context, rel string, isSurplus func(name string, isFolder bool) bool) (found []surplusFile, err error) {
	folder := &volumeDir{volumeEntry: volumeEntry{volume: &volume{root: o.root, notes: &o.notes}}, path: name(rel)}
	it, err := folder.open()
	if err != nil {
		return nil, o.unlisted(rel, err)
	}
	defer it.Close()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		name, stat, err := it.listed()
		if err != nil || name == "" {
			return found, o.unlisted(rel, err)
		}
		isFolder := stat.Mode&unix.S_IFMT == unix.S_IFDIR
		if !isSurplus(name, isFolder) {
			continue
		}
		if !o.surplus.remove && !isFolder {
			o.surplus.stays(path.Join(rel, name), "")
			continue
		}
		found = append(found, surplusFile{name, isFolder, stat.Dev != o.surplus.device})
		if o.surplus.remove && len(found) == o.surplus.most {
			return found, nil
		}
	}
}

func (o *output) unlisted(rel string, err error) error {
	if errors.Is(err, errVanished) {
		return nil
	}
	return o.permitted(err, name(rel), "could not be listed: it may hold files that the backup does not have")
}

func (o *output) settleFile(ctx context.Context, rel string, isFolder, isMount bool) error {
	if isFolder {
		switch {
		case isMount:
			o.surplus.stays(rel, "another file system is mounted there")
			return nil
		case len(rel) > longestPath:
			return fmt.Errorf("look into %.500q: %w", rel, errTooLong)
		}
		if err := o.settleSurplus(ctx, rel, nil); err != nil {
			return err
		}
	}
	if !o.surplus.remove {
		return nil
	}
	err := o.root.Remove(rel)
	switch {
	case err == nil:
		o.surplus.removed++
	case errors.Is(err, os.ErrNotExist):
	case isFolder && (errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)):
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EROFS), errors.Is(err, unix.EBUSY):
		o.surplus.stays(rel, errnoOf(err).Error())
	default:
		return fmt.Errorf("remove %q, which the backup does not have: %w", rel, err)
	}
	return nil
}

func errnoOf(err error) error {
	var failed *os.PathError
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}
