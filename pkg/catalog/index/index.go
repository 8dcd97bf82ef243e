// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package index keeps what was read of a location's backups in a few objects, so that who
// starts anew need not read each backup again: in the store, where the controller that leads
// publishes it for all, and in a folder of the API server's own. Package format says how its
// objects are named and signed.
//
// An index is derived, and only saves time. Its promises:
//
//  1. It says nothing that was not read. What a cluster's index says of a backup counts if
//     the same key has signed the backup, whose word it then is in any case, or if the
//     cluster is one's own.
//  2. It shows nothing that is not in the store: entries count only for names that a listing
//     has.
//  3. Missing, old, cut off, spoilt or hostile, it costs time: what it does not say well is
//     read. So no step of writing it needs another one, and who is killed between leaves
//     nothing worse than an index that is older.
//  4. No object is written twice, so that it can be kept in a bucket with object lock. Two
//     who write one cluster's index at once, as leaders do that do not know of each other,
//     lose entries of the index at most.
//
// What remains: an entry is as old as its index, until its backup is read again.
package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// attempts is how many heads of one cluster are read, from the newest on, until one is
	// good.
	attempts = 3
	// fetches is how many segments are read at once.
	fetches = 16
	// maxObjects is how many objects in the folder of indexes are looked at: far more than
	// there are, unless somebody means harm.
	maxObjects = 20_000
)

// Standing is what a reader thinks of who signs an index.
type Standing int

const (
	// Ignored is an index that is not read.
	Ignored Standing = iota
	// Others is one of another cluster: it counts for the backups that its key has signed.
	Others
	// Own is one's own: it counts.
	Own
)

// Index is what is in a store. Open finds it.
type Index struct {
	from  store.Reader
	heads []opened
}

type opened struct {
	*format.IndexHead
	number   int64
	standing Standing
	newest   []byte
}

// Open finds the newest index of each cluster. clusterCounts tells, before any of a cluster is
// read, whether that is worth while, and judge what the signature is worth. An index without
// anything in it is no error; an error is the store's.
func Open(ctx context.Context, from store.Reader, clusterCounts func(clusterUID string) bool, judge func(clusterUID, publicKey string) Standing) (*Index, error) {
	numbers := map[string][]int64{}
	objects := 0
	for object, err := range from.List(ctx, format.IndexesPrefix, store.ListOptions{Recursive: true}) {
		if err != nil {
			return nil, err
		}
		if objects++; objects > maxObjects {
			break
		}
		if clusterUID, number, digest, ok := format.ParseIndexKey(object.Key); ok && digest == "" && clusterCounts(clusterUID) {
			numbers[clusterUID] = append(numbers[clusterUID], number)
		}
	}
	index := &Index{from: from}
	for clusterUID, of := range numbers {
		slices.Sort(of)
		slices.Reverse(of)
		for _, number := range of[:min(len(of), attempts)] {
			data, err := read(ctx, from, format.IndexHeadKey(clusterUID, number), format.MaxIndexHeadBytes)
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, errCorrupt) {
				continue
			}
			if err != nil {
				return nil, err
			}
			head, newest, err := format.DecodeIndexHead(data, clusterUID)
			if err != nil {
				continue
			}
			if standing := judge(clusterUID, head.PublicKey); standing != Ignored {
				index.heads = append(index.heads, opened{head, number, standing, newest})
				break
			}
		}
	}
	// One's own comes first, and then the order is that of the names, so that it is none of
	// chance.
	slices.SortFunc(index.heads, func(a, b opened) int {
		if a.standing != b.standing {
			return int(b.standing) - int(a.standing)
		}
		return strings.Compare(a.ClusterUID, b.ClusterUID)
	})
	return index, nil
}

// Empty reports whether there is no index.
func (i *Index) Empty() bool { return len(i.heads) == 0 }

// Boundaries part the names of a listing into ranges of about a page, as the first index has
// them.
func (i *Index) Boundaries() []string {
	for _, head := range i.heads {
		if len(head.Boundaries) > 0 {
			return head.Boundaries
		}
	}
	return nil
}

// Fetched are the objects of an index, as they lie in the store, the newest first.
type Fetched struct {
	objects []*fetched
	reading *sync.WaitGroup
}

type fetched struct {
	head opened
	data []byte
	// read is closed when there is data, or will be none.
	read chan struct{}
}

// Fetch begins to read all segments, several at once. One that can't be had, or is not what its
// head has named, is left out.
func (i *Index) Fetch(ctx context.Context) Fetched {
	f := Fetched{reading: &sync.WaitGroup{}}
	var segments []func()
	for _, head := range i.heads {
		newest := &fetched{head: head, data: head.newest, read: make(chan struct{})}
		close(newest.read)
		f.objects = append(f.objects, newest)
		for _, segment := range slices.Backward(head.Segments) {
			if segment.Size > format.MaxIndexSegmentBytes {
				continue
			}
			object := &fetched{head: head, read: make(chan struct{})}
			f.objects = append(f.objects, object)
			segments = append(segments, func() {
				defer close(object.read)
				data, err := read(ctx, i.from, format.IndexSegmentKey(head.ClusterUID, segment.SHA256), segment.Size)
				if err == nil && segment.Bears(data) {
					object.data = data
				}
			})
		}
	}
	next := make(chan func(), len(segments))
	for _, segment := range segments {
		next <- segment
	}
	close(next)
	for range min(fetches, len(segments)) {
		f.reading.Go(func() {
			for segment := range next {
				segment()
			}
		})
	}
	return f
}

// Wait ends when nothing is read any more, as happens soon after the end of Fetch's context.
func (f Fetched) Wait() { f.reading.Wait() }

// Entries decodes the entries that count and whose names are wanted, each name once, the
// newest first, with their volumes packed. What can't be decoded is left out. As many objects
// are decoded at once as there are processors, so want is called at the same time.
func (f Fetched) Entries(want func(storeName string) bool) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		var decoding sync.WaitGroup
		defer decoding.Wait()
		stop := make(chan struct{})
		defer close(stop)
		await := func(c <-chan struct{}) bool {
			select {
			case <-c:
				return true
			case <-stop:
				return false
			}
		}
		tokens := make(chan struct{}, runtime.GOMAXPROCS(0)) // there may be many objects
		for range cap(tokens) {
			tokens <- struct{}{}
		}
		decoded := make([]chan []Entry, len(f.objects))
		for i := range decoded {
			decoded[i] = make(chan []Entry, 1)
		}
		decoding.Go(func() {
			for i, object := range f.objects {
				if !await(tokens) || !await(object.read) {
					return
				}
				decoding.Go(func() { decoded[i] <- object.entries(want) })
			}
		})
		seen := map[string]bool{}
		for i := range f.objects {
			for _, entry := range <-decoded[i] {
				if seen[entry.StoreName] {
					continue
				}
				seen[entry.StoreName] = true
				if !yield(entry) {
					return
				}
			}
			tokens <- struct{}{}
		}
	}
}

// entries are those of one object, up to the first that can't be decoded.
func (f *fetched) entries(want func(storeName string) bool) (entries []Entry) {
	segment, err := Decode(f.data)
	f.data = nil
	if err != nil {
		return nil
	}
	taken := map[string]bool{}
	var packer catalog.Packer
	var volumes []catalog.Volume
	for entry, err := range segment.entriesInto(&volumes, func(storeName string) bool { return !taken[storeName] && want(storeName) }) {
		if err != nil {
			break
		}
		if !f.head.bears(&entry) {
			continue
		}
		taken[entry.StoreName] = true
		entry.Content.Packed, entry.Content.Volumes = packer.Pack(entry.Content.Volumes), nil
		entries = append(entries, entry)
	}
	return entries
}

// bears reports whether the head's word counts for an entry.
func (o *opened) bears(entry *Entry) bool {
	backup := entry.Content.Backup
	// One without a Backup is a folder of another layout, which has names of its own.
	if backup != nil && format.ValidateStoreName(entry.StoreName) != nil || !Indexable(&entry.Content) {
		return false
	}
	if o.standing == Own {
		return true
	}
	if backup == nil || backup.Status.Origin == nil {
		return false
	}
	origin := backup.Status.Origin
	for i := range entry.Content.Volumes {
		if !entry.Content.Volumes[i].IsOfABackup() {
			return false
		}
	}
	return origin.Trust == "" && origin.ClusterUID == o.ClusterUID && origin.PublicKey == o.PublicKey
}

// Indexable reports whether what was read of a backup is worth keeping: nothing about it is
// to be looked at again.
func Indexable(content *catalog.Content) bool {
	return content.Replaced == "" && content.VolumesError == "" &&
		(content.Backup == nil || content.Backup.Status.Phase != holdfast.BackupPhaseUnreadable)
}

// read reads an object of at most so many bytes.
func read(ctx context.Context, from store.Reader, key string, most int64) ([]byte, error) {
	content, err := from.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	data, err := io.ReadAll(io.LimitReader(content, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%w: it has more than %d bytes", errCorrupt, most)
	}
	return data, err
}
