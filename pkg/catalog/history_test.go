// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// What is packed comes out as it was, whatever a store says.
func TestRowsKeepEverything(t *testing.T) {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "0123456789abcdef0123456789abcdef", "00000000000000000000000000000000", "0123456789ABCDEF0123456789abcdef"}), rapid.String())
	size := rapid.OneOf(rapid.SampledFrom([]int64{0, 1, 7, 1<<48 - 1, 1 << 48}), rapid.Int64())
	instant := rapid.Custom(func(t *rapid.T) metav1.Time {
		seconds := rapid.OneOf(rapid.SampledFrom([]int64{0, 1, 1 << 32, 1<<32 - 1, -1}), rapid.Int64Range(-1<<33, 1<<34)).Draw(t, "seconds")
		return rapid.SampledFrom([]metav1.Time{{}, metav1.Unix(seconds, 0), metav1.Unix(seconds, 5)}).Draw(t, "time")
	})
	volume := rapid.Custom(func(t *rapid.T) Volume {
		return Volume{
			Namespace: text.Draw(t, "namespace"), NamespaceUID: text.Draw(t, "uid"), ClaimName: text.Draw(t, "claim"), PodName: text.Draw(t, "pod"),
			PodVolume: text.Draw(t, "volume"), Node: text.Draw(t, "node"), VolumeName: text.Draw(t, "name"), BackupName: text.Draw(t, "backup"),
			SnapshotID: text.Draw(t, "id"), SnapshotName: text.Draw(t, "snapshot"), Labels: Labels(text.Draw(t, "labels")),
			State: rapid.OneOf(rapid.SampledFrom(states), text).Draw(t, "state"), Message: text.Draw(t, "message"),
			SizeBytes: size.Draw(t, "size"), BytesDone: size.Draw(t, "done"), IncrementalBytes: size.Draw(t, "new"), VolumeSize: size.Draw(t, "whole"),
			Start: instant.Draw(t, "start"), Completion: instant.Draw(t, "end"), Created: instant.Draw(t, "created"),
			SnapshotCreated: instant.Draw(t, "snapshot created"), VolumeCreated: instant.Draw(t, "volume created"),
		}
	})
	// Most rows of most entries are as ours are, and a volume may be there more than once.
	plain := Volume{Namespace: "shop", ClaimName: "data", State: v1alpha1.VolumeBackupCompleted, SizeBytes: 5, BytesDone: 5, IncrementalBytes: 3}
	rapid.Check(t, func(t *rapid.T) {
		volumes := rapid.SliceOfN(rapid.OneOf(rapid.Just(plain), volume), 0, 6).Draw(t, "volumes")
		var packer Packer
		rows, again := packer.Pack(volumes).rows, packer.Pack(volumes).rows
		if diff := cmp.Diff(volumes, rows.volumes(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-before +after)\n%s", diff)
		}
		repeats := map[[3]string]uint32{}
		for i := range volumes {
			name := [3]string{volumes[i].Namespace, volumes[i].bareName(), volumes[i].BackupName}
			if got := rows.at(i).repeat; got != repeats[name] {
				t.Fatalf("%d repeats %d before it, not %d", i, got, repeats[name])
			}
			repeats[name]++
		}
		if !rows.equal(again) || !rows.equal(pack(rows.unpack())) {
			t.Fatal("two of one differ")
		}
		if len(volumes) == 0 {
			return
		}
		i := rapid.IntRange(0, len(volumes)-1).Draw(t, "changed")
		displaced := rows.displace(func(j int) bool { return j == i })
		if displaced.equal(rows) || !displaced.at(i).displaced || !displaced.displace(func(int) bool { return false }).equal(rows) || !rows.equal(again) {
			t.Fatal("one that is displaced does not differ, or has changed those that are not")
		}
		volumes[i].BytesDone++
		if new(Packer).Pack(volumes).rows.equal(rows) {
			t.Fatal("two that differ are equal")
		}
	})
}

// Whoever holds a History sees what was there when it was taken, page by page, whatever
// happens; and its size is what is counted.
func TestAHistoryNeverChanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCatalog(nil)
		type taken struct {
			*History
			names []string
		}
		var all []taken
		list := func(h *History, page int) []string {
			var names []string
			for from := (Position{}); ; {
				read := 0
				for row := range h.Rows("", from, everything) {
					names = append(names, fmt.Sprint(row.Namespace(), "/", row.Name(), row.Version(), row.Object().Status))
					from = row.After()
					if read++; read == page {
						break
					}
				}
				if read < page {
					return names
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				storeName := rapid.SampledFrom([]string{"a", "b", "c", "d", "n.a"}).Draw(rt, "backup")
				var volumes []Volume
				for range rapid.IntRange(0, 3).Draw(rt, "volumes") {
					volumes = append(volumes, claim("n", rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "claim"), 1, rapid.IntRange(1, 4).Draw(rt, "age")))
				}
				c.Put("default", storeName, Content{Backup: stored("default", storeName, 9), Volumes: volumes}, t0)
			},
			"remove": func(rt *rapid.T) {
				c.Remove("default", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "backup"))
			},
			"take": func(rt *rapid.T) {
				h := c.Snapshot()
				all = append(all, taken{h, list(h, 1000)})
				all = all[max(0, len(all)-3):]
			},
			"": func(rt *rapid.T) {
				for _, h := range all {
					page := rapid.IntRange(1, 4).Draw(rt, "page")
					if diff := cmp.Diff(h.names, list(h.History, page)); diff != "" {
						rt.Fatalf("when taken (-) and later, in pages of %d (+):\n%s", page, diff)
					}
					if got := h.Count("", Position{}, 1000); got != len(h.names) {
						rt.Fatalf("%d are counted of %d", got, len(h.names))
					}
				}
			},
		})
	})
}

// Several at once are what they are one by one, in whatever order, and one change.
func TestPutAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		changes := 0
		together, oneByOne := newCatalog(func(Changes) { changes++ }), newCatalog(nil)
		names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		for range rapid.IntRange(1, 4).Draw(t, "batches") {
			var items []Item
			var packer Packer
			for range rapid.IntRange(1, 8).Draw(t, "backups") {
				item := Item{StoreName: rapid.SampledFrom(names).Draw(t, "backup")}
				item.Content.Backup = stored("default", item.StoreName, 9)
				for range rapid.IntRange(0, 4).Draw(t, "volumes") {
					item.Content.Volumes = append(item.Content.Volumes, claim("n", rapid.SampledFrom([]string{"x", "y"}).Draw(t, "claim"), 1, rapid.IntRange(1, 9).Draw(t, "age")))
				}
				oneByOne.Put("default", item.StoreName, item.Content, t0)
				if rapid.Bool().Draw(t, "packed") {
					item.Content.Packed, item.Content.Volumes = packer.Pack(item.Content.Volumes), nil
				}
				items = append(items, item)
			}
			before := changes
			if together.PutAll("default", items, t0); changes > before+1 {
				t.Fatalf("%d backups are %d changes", len(items), changes-before)
			}
			if rapid.Bool().Draw(t, "taken") {
				together.Snapshot()
			}
		}
		if diff := cmp.Diff(oneByOne.Volumes(), together.Volumes()); diff != "" {
			t.Errorf("volumes, one by one (-) and together (+):\n%s", diff)
		}
		if diff := cmp.Diff(oneByOne.VolumeBackups(), together.VolumeBackups()); diff != "" {
			t.Errorf("their backups, one by one (-) and together (+):\n%s", diff)
		}
	})
}

// million fills a catalogue with backups of as many volumes each, of names as they are.
func million(c *Catalog, backups, volumes int) {
	for b := range backups {
		contents := make([]Volume, volumes)
		ended := metav1.NewTime(t0.Add(time.Duration(b) * time.Hour))
		for i := range contents {
			namespace := fmt.Sprintf("namespace-%03d", i%100)
			contents[i] = Volume{
				Namespace: intern(namespace), NamespaceUID: intern("f3b1c2d4-0000-4000-8000-00000000" + namespace[9:]), ClaimName: intern(fmt.Sprintf("data-database-%04d", i)),
				PodName: intern(fmt.Sprintf("database-%04d", i)), PodVolume: "data", Node: intern(fmt.Sprintf("node-%02d", i%50)),
				SnapshotID: fmt.Sprintf("%08x%024x", b, i), SizeBytes: int64(i) << 20, BytesDone: int64(i) << 20, IncrementalBytes: int64(b) << 10,
				Start: metav1.NewTime(ended.Add(-time.Minute)), Completion: ended, State: v1alpha1.VolumeBackupCompleted,
			}
		}
		storeName := fmt.Sprintf("daily-%06d", b)
		c.Put("default", storeName, Content{Backup: stored("default", storeName, 9), Volumes: contents}, t0)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// What a million volume backups take is known from a hundred thousand.
func TestBytesOfARow(t *testing.T) {
	const backups, volumes, limit = 100, 1000, 95
	before := heap()
	c := newCatalog(nil)
	million(c, backups, volumes)
	each := float64(heap()-before) / (backups * volumes)
	t.Logf("%.0f bytes for a row, all in", each)
	if each > limit {
		t.Errorf("a row takes %.0f bytes, and %d is the limit", each, limit)
	}
	if got := c.Resting(); got != backups*volumes*cellBytes || cellBytes != unsafe.Sizeof(cell{}) {
		t.Errorf("%d bytes of the rows rest; a cell has %d", got, unsafe.Sizeof(cell{}))
	}
	c.Remove("default", "daily-000007")
	if got := c.Resting(); got != (backups-1)*volumes*cellBytes {
		t.Errorf("without one of the backups %d bytes of the rows rest", got)
	}
	runtime.KeepAlive(c)
}

// One more backup copies nothing of a history that others hold, as it comes last.
func TestABackupThatEndsCopiesNothing(t *testing.T) {
	c := newCatalog(nil)
	million(c, 20, 50)
	held := c.Snapshot()
	c.Put("default", "latest", Content{Backup: stored("default", "latest", 0), Volumes: []Volume{
		claim("namespace-000", "data-database-0000", 1, -100000),
	}}, t0)
	if copied := c.Snapshot().Copied - held.Copied; copied != 0 {
		t.Errorf("%d bytes were copied", copied)
	}
	c.Remove("default", "daily-000003")
	if copied := c.Snapshot().Copied - held.Copied; copied == 0 || copied > 21*50*memberBytes {
		t.Errorf("%d bytes were copied for a removal", copied)
	}
}

// A place in the list says nothing of backups of other namespaces.
func TestAPositionNamesNoBackup(t *testing.T) {
	c := newCatalog(nil)
	c.Put("default", "secret", Content{Backup: stored("default", "secret", 5), Volumes: []Volume{claim("shop", "data", 1, 5)}}, t0)
	for row := range c.Snapshot().Rows("shop", Position{}, everything) {
		if position := fmt.Sprint(row.After()); strings.Contains(position, "secret") || !slices.Equal(strings.Fields(position)[:2], []string{"{shop", "data"}) {
			t.Error(position)
		}
	}
}
