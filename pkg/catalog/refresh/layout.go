// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"errors"
	"iter"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// Layout is a way of storing backups. An entry is the folder of a backup, or of a volume in Longhorn's
// store. The store.Ranger bounds requests and time. A layout is stateless, and safe for concurrent use.
type Layout interface {
	// List lists the entries after a position (empty: all), shard by shard. The caller may stop, and
	// continue from any shard's position, even in another process.
	List(ctx context.Context, from store.Ranger, after string) iter.Seq[Shard]
	// Read fails with ErrUnfinished for a missing or unfinished entry, and with an *UnreadableError
	// for a permanent fault. Any other error is the store's.
	Read(ctx context.Context, from store.Ranger, name string, known KnownEntry) (catalog.Content, error)
	// Probe checks by the smallest request whether an entry is readable.
	Probe(ctx context.Context, from store.Ranger, name string) error
}

// Parted is a Layout that derives positions from names, to list ranges in parallel.
type Parted interface {
	Layout
	// Position returns the position after any name. Positions compare by bytes.
	Position(name string) string
}

// Watched is a Layout that also shows replaced objects.
type Watched interface {
	Layout
	// Watch lists, in about one request, present versions after a position, as in Content.Versions. It
	// returns the next start; empty at the end, and with store.ErrDenied. Then versions has the entries
	// before the refusal.
	Watch(ctx context.Context, from store.Ranger, after string) (versions map[string]map[string]string, position string, err error)
}

// Shard is a part of the entries, listed as one.
type Shard struct {
	// Holds reports whether the shard covers a name.
	Holds   func(name string) bool
	Entries []Entry
	// Beside has keys beside entries of other shards.
	Beside []string
	// Err is why the shard is incomplete: missing entries don't count.
	Err error
	// Suspicion is, in stable words, why a complete shard's missing entries are doubted; or empty.
	Suspicion string
	// Position is the next shard's start; empty for the last.
	Position string
}

// Entry is a listed entry.
type Entry struct {
	Name string
	// Versions are as in Content.Versions; nil if not listed. A difference to the last read causes a
	// read.
	Versions map[string]string
	// Beside has keys beside the entry, as of expiration changes.
	Beside []string
}

// KnownEntry is what is known of an entry to read.
type KnownEntry struct {
	// Versions are from the last read.
	Versions map[string]string
	Volumes  func() []catalog.Volume
	// Beside returns the listed keys beside a backup's entry.
	Beside func(backup types.UID) []string
	// MayRead is true if other entries can be read. Then a refusal is the entry's fault, and may be an
	// *UnreadableError.
	MayRead bool
}

// ErrUnfinished means that a folder has no finished backup.
var ErrUnfinished = errors.New("there is no finished backup")

// UnreadableError is an entry's fault.
type UnreadableError struct {
	// Reason has stable words.
	Reason string
}

func (e *UnreadableError) Error() string { return e.Reason }
