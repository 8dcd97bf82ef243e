// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package layout is what package refresh asks of a way to lay out a store: to list it
// apart from reading it, shard by shard, and to read one entry. An entry is what is listed
// and read as one: the folder of a backup, or of a volume in Longhorn's store.
//
// A layout is given a store.Ranger whose requests are counted, bounded in time, and held
// back while the store is overloaded, so it may ask for as much at once as it likes. It has
// no way to write or remove anything.
package layout

import (
	"context"
	"errors"
	"iter"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Layout is a way to lay out a store. It is safe for concurrent use, and keeps nothing of
// what it has listed or read.
type Layout interface {
	// List lists the entries, shard by shard, from the one that follows the position after;
	// all of them if that is empty. Whoever asks may stop after any shard, and go on from its
	// position another time, in another process even.
	List(ctx context.Context, from store.Ranger, after string) iter.Seq[Shard]
	// Read reads an entry. The error is ErrUnfinished if there is none, or one that its
	// writer is still at; an *UnreadableError if the fault is the entry's, which asking
	// again will not mend; and any other one if it is the store's: nothing is said of the
	// entry then.
	Read(ctx context.Context, from store.Ranger, name string, known Known) (catalog.Content, error)
	// Probe makes the least request that tells whether an entry may be read.
	Probe(ctx context.Context, from store.Ranger, name string) error
}

// Parted is a Layout whose positions follow from the names of entries, so that parts of it can
// be listed at once.
type Parted interface {
	Layout
	// Position is that behind an entry, whether or not there is one of the name. Positions
	// compare as they are listed, by their bytes.
	Position(name string) string
}

// Watched is a Layout whose lists of entries don't tell when something was put in the place of
// what was read of them. Another list does, of which a part is listed now and then.
type Watched interface {
	Layout
	// Watch lists, in one request or so, the present versions of what entries were read from,
	// from the position after on: by name of an entry, as Content.Versions has them, so far as
	// they are in this part. The position is where the next one begins; empty at the end, and
	// with an error store.ErrDenied, with which the versions are those before what is refused.
	Watch(ctx context.Context, from store.Ranger, after string) (versions map[string]map[string]string, position string, err error)
}

// Shard is a part of the entries that is listed as one.
type Shard struct {
	// Holds reports whether an entry of this name would be listed here.
	Holds func(name string) bool
	// Entries are those that were found.
	Entries []Entry
	// Beside are the keys of objects beside entries that another shard holds.
	Beside []string
	// Err is why not all were found; nil if the shard is complete. What an incomplete one
	// lacks is not missed.
	Err error
	// Suspicion is why what a complete shard lacks is not missed either, in stable words;
	// empty if there is none.
	Suspicion string
	// Position is where the next shard begins; empty if this is the last one.
	Position string
}

// Entry is an entry as it is listed.
type Entry struct {
	Name string
	// Versions are those of the objects that the entry's content follows from, by what the
	// layout calls them in Content.Versions. When one differs from what was read, or is new,
	// or gone, the entry is read again. Nil if the listing does not tell.
	Versions map[string]string
	// Beside are the keys of objects beside the entry that say more of it, such as changes
	// of its expiration.
	Beside []string
}

// Known is what is known of an entry that is to be read.
type Known struct {
	// Versions are those of what was read of it before, as Content.Versions had them.
	Versions map[string]string
	// Volumes gives what was read of its volumes before. The layout may change the result.
	Volumes func() []catalog.Volume
	// Beside gives the keys of objects beside the entry that say more of the backup with
	// this uid, as the last listing had them.
	Beside func(backup types.UID) []string
	// MayRead is true if the store lets other entries be read: a refusal is the entry's own
	// trouble then, and an *UnreadableError where it is of any consequence.
	MayRead bool
}

// ErrUnfinished says that a folder holds no finished backup.
var ErrUnfinished = errors.New("there is no finished backup")

// UnreadableError says what is wrong with an entry.
type UnreadableError struct {
	// Reason is in stable words.
	Reason string
}

func (e *UnreadableError) Error() string { return e.Reason }
