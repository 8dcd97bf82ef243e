// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// A change is listed with the folder of its backup, however many folders lie between them.
func TestAChangeIsNotPartedFromItsFolder(t *testing.T) {
	s := storetest.Memory(t)
	put := func(key string) {
		if err := s.Put(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	const others = 2500
	for i := range others {
		put(format.OwnerKey(fmt.Sprintf("prod.n%04d", i)))
	}
	put(format.OwnerKey("prod"))
	put(format.OwnerKey("q"))
	change := format.ExpirationKey("prod", "01234567-89ab-cdef-0123-456789abcdef", 1)
	put(change)
	// Nobody knows whether there is a folder yet.
	put(format.ExpirationKey("none", "01234567-89ab-cdef-0123-456789abcdef", 1))

	l := &refresh.VeleroLayout{Location: "default", SystemNamespace: "holdfast", Clock: clock.RealClock{}}
	found, position := 0, ""
	for {
		var shard refresh.Shard
		for shard = range l.List(t.Context(), ranged{s}, position) {
			break // a poll lists one
		}
		for _, entry := range shard.Entries {
			found++
			if want := entry.Name == "prod"; slices.Contains(entry.Beside, change) != want {
				t.Errorf("beside %s lie %q", entry.Name, entry.Beside)
			}
		}
		if position = shard.Position; position == "" {
			break
		}
	}
	if found != others+2 {
		t.Errorf("%d entries", found)
	}
}

// generated lists keys that need no memory, and counts them.
type generated struct {
	ranged
	changes int
	change  func(i int) string
	folder  string
	listed  int
	// kept is how many bytes more are in use after the last change than before the first.
	kept int64
}

func (g *generated) List(_ context.Context, _ string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		before := heapInUse()
		for i := range g.changes {
			key := g.change(i)
			if key <= options.StartAfter {
				continue
			}
			if g.listed++; !yield(store.Object{Key: key}, nil) {
				return
			}
		}
		g.kept = heapInUse() - before
		if g.folder > options.StartAfter {
			g.listed++
			yield(store.Object{Key: g.folder, IsFolder: true}, nil)
		}
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestManyChangesTakeNoMemory: somebody who can write to the bucket can't fill the memory by changes,
// with or without folders. A poll of changes without folders ends with a page, and the folder behind
// all of them is listed.
func TestManyChangesTakeNoMemory(t *testing.T) {
	const changes = 100_000
	uid := func(i int) types.UID { return types.UID(fmt.Sprintf("%08x-89ab-cdef-0123-456789abcdef", i)) }
	for name, test := range map[string]struct {
		change func(i int) string
		page   bool
		beside int
	}{
		"without folders":         {func(i int) string { return format.ExpirationKey(fmt.Sprintf("a%06d", i), uid(i), 1) }, true, 0},
		"no changes":              {func(i int) string { return format.BackupsPrefix + fmt.Sprintf("file-%06d", i) }, true, 0},
		"of one folder":           {func(i int) string { return format.ExpirationKey("z", uid(i), 1) }, false, 1},
		"of one backup":           {func(i int) string { return format.ExpirationKey("z", uid(0), int64(100_000+i)) }, false, 1},
		"without folders, nested": {func(i int) string { return format.ExpirationKey(fmt.Sprintf("z.a%06d", i), uid(i), 1) }, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := &generated{changes: changes, change: test.change, folder: format.BackupPrefix("z")}
			l := &refresh.VeleroLayout{Location: "default", SystemNamespace: "holdfast", Clock: clock.RealClock{}}
			for shard := range l.List(t.Context(), g, "") {
				if test.page && (g.listed > 1001 || shard.Position == "" || len(shard.Entries) > 0) {
					t.Errorf("a poll lists %d keys up to %q with %d entries", g.listed, shard.Position, len(shard.Entries))
				}
				break
			}
			g.listed, g.kept = 0, 0
			var found []refresh.Entry
			position, holders := "", 0
			for shard := range l.List(t.Context(), g, "") {
				found = append(found, shard.Entries...)
				if shard.Holds("z") {
					holders++
				}
				if position = shard.Position; position == "" && shard.Err != nil {
					t.Error(shard.Err)
				}
			}
			if g.kept > 1<<20 {
				t.Errorf("%d changes keep %d bytes, want 1 MiB at most", changes, g.kept)
			}
			if len(found) != 1 {
				t.Fatalf("found %d entries", len(found))
			}
			if found[0].Name != "z" || len(found[0].Beside) != test.beside || holders != 1 || position != "" {
				t.Errorf("found %d entries in %d shards, up to %q, and beside the first lie %d keys", len(found), holders, position, len(found[0].Beside))
			}
			if g.listed != changes+1 {
				t.Errorf("%d keys are listed in all, want each once", g.listed)
			}
		})
	}
}

// TestACrowdOfChanges: a backup among so many changes that they are not kept is read with its own. It is
// read again when there is one more, and only then.
func TestACrowdOfChanges(t *testing.T) {
	s, by := storetest.NewFaulty(storetest.Memory(t), clock.RealClock{}), madeBy(t, "here")
	put := func(key string, content []byte, err error) {
		t.Helper()
		if err == nil {
			err = s.Put(t.Context(), key, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const uid = "90000000-89ab-cdef-0123-456789abcdef"
	at := metav1.Unix(1_700_000_000, 0)
	backup := &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "daily", UID: uid, CreationTimestamp: at},
		Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &at, CompletionTimestamp: &at}}
	metadata, err := format.EncodeBackup(backup, nil, by)
	put(format.MetadataKey("daily"), metadata, err)
	put(format.OwnerKey("later"), []byte("x"), nil)
	hold := func(number int64) {
		change, err := format.EncodeExpiration(format.Expiration{StoreName: "daily", UID: uid, Number: number, Timestamp: at, Hold: &format.Hold{Timestamp: at, Reason: fmt.Sprint(number)}}, by)
		put(format.ExpirationKey("daily", uid, number), change, err)
	}
	l := &refresh.VeleroLayout{Location: "default", SystemNamespace: system, Clock: clock.RealClock{}}
	list := func() (daily refresh.Entry) {
		t.Helper()
		for shard := range l.List(t.Context(), ranged{s}, "") {
			for _, entry := range shard.Entries {
				if entry.Name == "daily" {
					daily = entry
				} else if len(entry.Beside) > 0 {
					t.Errorf("beside %s lie %q", entry.Name, entry.Beside)
				}
			}
		}
		return daily
	}
	c := catalog.New(system, nil)
	observe := func(of refresh.Entry) bool {
		c.Observe("default", []string{"daily", "later"}, time.Unix(1, 0), time.Unix(1, 0))
		return slices.Contains(c.ObserveChanges("default", nil, of.Beside), "daily")
	}
	read := func(of refresh.Entry) (catalog.Content, error) {
		return l.Read(t.Context(), ranged{s}, "daily", refresh.KnownEntry{MayRead: true, Beside: func(of types.UID) []string { return c.Changes("default", "daily", of) }})
	}
	observe(refresh.Entry{})
	for i := range catalog.MaxChanges {
		put(format.ExpirationKey("daily", types.UID(fmt.Sprintf("%08x-89ab-cdef-0123-456789abcdef", i)), 1), []byte("x"), nil)
	}
	for i := range int64(120) {
		hold(i + 1)
	}
	before := refresh.Entry{}
	for _, want := range []int64{120, 121} {
		of := list()
		if len(of.Beside) != 1 || !catalog.IsCrowd(of.Beside[0]) || slices.Equal(of.Beside, before.Beside) {
			t.Fatalf("beside it lie %d keys, want one crowd, and another one than before", len(of.Beside))
		}
		before = of
		if observe(of) != (want > 120) { // it was never read before the first
			t.Errorf("with the change %d: it is to be read: %t", want, want <= 120)
		}
		s.Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrUnavailable})
		if _, err := read(of); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("without a list of its changes: %v", err)
		}
		s.Inject()
		content, err := read(of)
		if err != nil || len(content.Changes) != 1 || content.Changes[0].Number != want || content.Changes[0].Hold == nil {
			t.Fatalf("read %+v, %v", content.Changes, err)
		}
		c.Put("default", "daily", content, time.Unix(2, 0))
		if held := c.Backup(system, "daily"); held == nil || held.Status.Hold == nil || held.Status.Hold.Reason != fmt.Sprint(want) {
			t.Errorf("listed is %+v", held)
		}
		if observe(list()) {
			t.Errorf("with the change %d it is read twice", want)
		}
		hold(want + 1)
	}
	s.Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrDenied})
	var unreadable *refresh.UnreadableError
	if _, err := read(before); !errors.As(err, &unreadable) || !strings.Contains(err.Error(), "a change of its expiration can't be read") {
		t.Errorf("refused a list of its changes: %v", err)
	}
}
