// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package index keeps the contents of a location's backups in a few objects, to start a process without
// reading each backup. They are in the store, by package publish, and in a local folder of the API
// server. Package format defines their names and signatures. See docs/catalogue.md.
//
//   - An entry counts if a listing has its name, and if the same key has signed the backup, or the
//     index is this cluster's own.
//   - A missing, old, damaged or hostile index only costs time. A killed writer leaves an older index.
//   - No object is written twice. Two writers for one cluster lose entries at most.
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

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// attempts bounds the heads that are read.
	attempts = 3
	fetches  = 16
	// maxObjects bounds the listing, against malicious writers.
	maxObjects = 20_000
)

// Standing is the reader's trust in an index's signer.
type Standing int

const (
	Ignored Standing = iota
	// Others are other clusters', and count for backups signed by the same key.
	Others
	Own
)

// Index is a store's index.
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

// Open finds the newest index that judge trusts of each cluster that clusterCounts accepts before
// reading. An index may be empty; an error is the store's.
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

// Boundaries divide names into ranges of about a page.
func (i *Index) Boundaries() []string {
	for _, head := range i.heads {
		if len(head.Boundaries) > 0 {
			return head.Boundaries
		}
	}
	return nil
}

// Fetched are an index's objects, newest first.
type Fetched struct {
	objects []*fetched
	reading *sync.WaitGroup
}

type fetched struct {
	head opened
	data []byte
	// read is closed once data is set, or will not be.
	read chan struct{}
}

// Fetch starts to read all segments, several at once, except missing and damaged ones.
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

// Wait waits for all reads, which end soon after Fetch's context.
func (f Fetched) Wait() { f.reading.Wait() }

// Entries decodes the newest wanted entry of each name that counts, packed, without errors. want is
// called concurrently.
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
		tokens := make(chan struct{}, runtime.GOMAXPROCS(0))
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

func (o *opened) bears(entry *Entry) bool {
	backup := entry.Content.Backup
	// An entry without a Backup, of another layout, has other names.
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

// Indexable reports whether the content is final.
func Indexable(content *catalog.Content) bool {
	return content.Replaced == "" && content.VolumesError == "" &&
		(content.Backup == nil || content.Backup.Status.Phase != v1alpha1.BackupPhaseUnreadable)
}

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
