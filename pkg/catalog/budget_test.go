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

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// unsignedBackup is one of which nothing says where it comes from, with so many bytes of text.
func unsignedBackup(storeName string, age, bytes int) *v1alpha1.Backup {
	backup := stored("default", storeName, age)
	backup.Annotations = map[string]string{"text": strings.Repeat("x", bytes)}
	backup.Status.Origin = &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForeign, Message: "its metadata is not signed"}
	return backup
}

// listedNames are the names of all backups of the location default that are listed, sorted.
func listedNames(c *Catalog) (names []string) {
	for _, e := range c.locations["default"] {
		if e.known() {
			names = append(names, e.storeName)
		}
	}
	slices.Sort(names)
	return names
}

// The metadata in memory of what nobody vouches for follows neither its number nor its size.
func TestMemoryOfForeignBackupsIsBounded(t *testing.T) {
	const budget, entries = 1 << 20, 1000
	manyNamespaces := make([]string, 5_000)
	for i := range manyNamespaces {
		manyNamespaces[i] = fmt.Sprintf("namespace-%d", i)
	}
	shapes := map[string]func(i int) Content{
		"huge annotations": func(i int) Content {
			return Content{Backup: unsignedBackup(fmt.Sprintf("b%d", i), i, 256<<10)}
		},
		"many annotations": func(i int) Content {
			backup := unsignedBackup(fmt.Sprintf("b%d", i), i, 0)
			for n := range 1000 {
				backup.Annotations[fmt.Sprintf("a%d-%d", i, n)] = "x"
			}
			return Content{Backup: backup}
		},
		"huge includedNamespaces": func(i int) Content {
			backup := unsignedBackup(fmt.Sprintf("b%d", i), i, 0)
			backup.Spec.IncludedNamespaces = slices.Clone(manyNamespaces)
			return Content{Backup: backup}
		},
		"a huge name of the cluster": func(i int) Content {
			backup := unsignedBackup(fmt.Sprintf("b%d", i), i, 0)
			backup.Status.Origin = &v1alpha1.BackupOrigin{ClusterUID: strings.Repeat("x", 256<<10), PublicKey: "a key"}
			return Content{Backup: backup}
		},
		"just below what is abridged": func(i int) Content {
			return Content{Backup: unsignedBackup(fmt.Sprintf("b%d", i), i, 12<<10)}
		},
		"many volumes": func(i int) Content {
			content := Content{Backup: unsignedBackup(fmt.Sprintf("b%d", i), i, 0)}
			for n := range 50 {
				content.Volumes = append(content.Volumes, claim("shop", fmt.Sprintf("data-%d-%d", i, n), int64(n), i))
			}
			return content
		},
		"unreadable": nil,
	}
	for name, content := range shapes {
		t.Run(name, func(t *testing.T) {
			// What is told to nobody is in nobody's lists.
			c := New(system, nil)
			c.SetIdentity(ours)
			c.SetForeignBytes(budget)
			before := heapInUse()
			for i := range entries {
				if content == nil {
					c.PutUnreadable("default", fmt.Sprintf("b%d", i), strings.Repeat("x", 256<<10), t0)
					continue
				}
				of := content(i)
				Abridge(of.Backup)
				c.Put("default", fmt.Sprintf("b%d", i), of, t0)
			}
			kept := heapInUse() - before
			left, newest := c.LeftOut("default")
			t.Logf("%d bytes are kept, %d of %d backups left out", kept, left, entries)
			most := int64(2*budget + entries<<10)
			if name == "many volumes" {
				most += maxKnownShapes * 400 // which are kept once, and not in each location
			}
			if kept > most {
				t.Errorf("%d bytes are kept of %d backups, want %d at most", kept, entries, most)
			}
			if left+len(listedNames(c)) != entries || c.Len("default") != entries {
				t.Errorf("%d are listed, %d left out, and %d known, want %d in all", len(listedNames(c)), left, c.Len("default"), entries)
			}
			if content != nil && left > 0 && newest != fmt.Sprintf("b%d", entries-left) {
				t.Errorf("the newest that is left out is %s, want b%d: the newest are kept", newest, entries-left)
			}
			runtime.KeepAlive(c)
		})
	}
}

// TestMemoryOfVolumeFoldersIsBounded: of a store in Longhorn's format, the volumes with the newest
// backups are listed as far as there is room. One that is left out is no loss, is not read again
// until it has changed, and is listed when there is room.
func TestMemoryOfVolumeFoldersIsBounded(t *testing.T) {
	const budget, folders, rows = 1 << 20, 200, 100
	c := New(system, nil)
	c.SetForeignBytes(budget)
	var names []string
	put := func(i int, at time.Time) {
		content := Content{Versions: map[string]string{"backups": fmt.Sprint(i)}}
		for n := range rows {
			of := claim("shop", fmt.Sprint("data-", i), int64(n), i)
			of.BackupName, of.SnapshotName = fmt.Sprintf("backup-%d-%d", i, n), strings.Repeat("s", 64)
			of.Completion = metav1.NewTime(minute(-i))
			content.Volumes = append(content.Volumes, of)
		}
		c.Put("default", fmt.Sprintf("v%03d", i), content, at)
	}
	before := heapInUse()
	for i := range folders {
		names = append(names, fmt.Sprintf("v%03d", i))
		put(i, t0)
	}
	kept := heapInUse() - before
	left, newest := c.LeftOut("default")
	t.Logf("%d bytes are kept, %d of %d folders left out", kept, left, folders)
	if most := int64(3*budget + folders<<10); kept > most {
		t.Errorf("%d bytes are kept, want %d at most", kept, most)
	}
	if left == 0 || left == folders || left+len(listedNames(c)) != folders || c.Len("default") != folders || newest != fmt.Sprintf("v%03d", folders-left) {
		t.Fatalf("%d are listed, %d left out, the newest of them %s, and %d known, want %d in all", len(listedNames(c)), left, newest, c.Len("default"), folders)
	}
	if versions := c.Versions("default", newest); versions["backups"] != fmt.Sprint(folders-left) {
		t.Errorf("what is left out is known in the versions %v, and so read again and again", versions)
	}
	if found := c.Observe("default", names, minute(1), minute(1)); len(found.Read)+len(found.Gone) > 0 || found.Suspicion != "" {
		t.Errorf("the next listing finds %+v", found)
	}
	// Some of those that are listed go, with two listings in a row.
	fewer := names[5:]
	for i := range 3 {
		c.Observe("default", fewer, minute(2+i), minute(2+i))
	}
	found := c.Observe("default", fewer, minute(5), minute(5))
	if !slices.Contains(found.Read, newest) {
		t.Fatalf("%s is not read though there is room: %+v", newest, found)
	}
	put(folders-left, minute(6))
	if !slices.Contains(listedNames(c), newest) {
		t.Errorf("%s is not listed though there is room", newest)
	}
	runtime.KeepAlive(c)
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// A name in the store without anything that can be read costs little.
func TestMemoryOfEmptyFolders(t *testing.T) {
	const folders = 100_000
	names := make([]string, folders)
	for i := range names {
		names[i] = fmt.Sprintf("folder-%d", i)
	}
	c := newCatalog(nil)
	before := heapInUse()
	for _, name := range c.Observe("default", names, t0, t0).Read {
		c.PutUnfinished("default", name, t0, t0)
	}
	if each := (heapInUse() - before) / folders; each > 600 {
		t.Errorf("an empty folder keeps %d bytes, want some 0.5 KiB", each)
	}
	if got := c.Unfinished("default"); got != folders || c.Len("default") != 0 {
		t.Errorf("%d folders are unfinished, want %d, and %d backups are known", got, folders, c.Len("default"))
	}
	c.Put("default", names[0], Content{Backup: stored("default", names[0], 1)}, t0)
	if got := c.Unfinished("default"); got != folders-1 {
		t.Errorf("with a backup in one, %d are unfinished", got)
	}
	runtime.KeepAlive(c)
}

// Which backups are left out follows from what is stored, and not from when it was read. None
// that is vouched for is, and none of those counts as lost.
func TestWhatIsLeftOutIsCertain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const budget = 64 << 10
		c := newCatalog(nil)
		c.SetForeignBytes(budget)
		type item struct {
			age, bytes int
			own        bool
		}
		store := map[string]item{}
		put := func(name string) {
			if of := store[name]; of.own {
				c.Put("default", name, Content{Backup: stored("default", name, of.age)}, t0)
			} else {
				c.Put("default", name, Content{Backup: unsignedBackup(name, of.age, of.bytes)}, t0)
			}
		}
		now := 0
		observe := func() {
			// Twice, so that what is missing goes, and what has room is there.
			for range 3 {
				now++
				findings := c.ObserveListing("default", Listing{Names: sortedKeys(store), Begun: minute(now), Accepted: minute(now)}, minute(now))
				for _, name := range rapid.Permutation(findings.Read).Draw(t, "order") {
					put(name)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				store[fmt.Sprintf("b%d", rapid.IntRange(0, 30).Draw(t, "name"))] = item{
					rapid.IntRange(0, 10).Draw(t, "age"), rapid.IntRange(0, 12<<10).Draw(t, "bytes"), rapid.IntRange(0, 3).Draw(t, "own") == 0}
			},
			"read again": func(t *rapid.T) {
				if len(store) > 0 {
					put(rapid.SampledFrom(sortedKeys(store)).Draw(t, "name"))
				}
			},
			"remove": func(t *rapid.T) {
				if len(store) > 0 {
					delete(store, rapid.SampledFrom(sortedKeys(store)).Draw(t, "name"))
				}
			},
			"": func(t *rapid.T) {
				observe()
				for _, name := range sortedKeys(store) { // what was replaced in its place is read too
					put(name)
				}
				observe()
				var want, order []string
				for name, of := range store {
					if of.own {
						want = append(want, name)
					} else {
						order = append(order, name)
					}
				}
				weightOf := func(name string) *entry {
					e := &entry{storeName: name}
					placed, _, _ := c.placeLocked(&entry{location: "default", storeName: name, claims: unsignedBackup(name, 0, 0).Status.Origin}, unsignedBackup(name, store[name].age, store[name].bytes), nil)
					e.weight = e.weigh(placed, nil)
					return e
				}
				slices.SortFunc(order, func(a, b string) int { return compareForeign(weightOf(a), weightOf(b)) })
				bytes := int64(0)
				for _, name := range order {
					if bytes += weightOf(name).weight.bytes; bytes > budget {
						break
					}
					want = append(want, name)
				}
				slices.Sort(want)
				if diff := cmp.Diff(want, listedNames(c)); diff != "" {
					t.Fatalf("listed (-want +got):\n%s", diff)
				}
				if got := c.Len("default"); got != len(store) {
					t.Fatalf("%d backups are known, want %d", got, len(store))
				}
				if left, newest := c.LeftOut("default"); left != len(store)-len(want) || (left > 0) != (newest != "") {
					t.Fatalf("%d are left out, the newest is %q, want %d", left, newest, len(store)-len(want))
				}
			},
		})
	})
}

func sortedKeys[V any](of map[string]V) []string {
	names := make([]string, 0, len(of))
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// What is left out is there: that the store lists it, and others, is neither a loss nor a reason
// to read it again and again.
func TestWhatIsLeftOutIsNoLoss(t *testing.T) {
	c := newCatalog(nil)
	c.SetForeignBytes(40 << 10)
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("b%02d", i))
	}
	names = append(names, "ours")
	for i, name := range c.Observe("default", names, minute(1), minute(1)).Read {
		if name == "ours" {
			c.Put("default", name, Content{Backup: stored("default", name, 1000)}, minute(1))
			continue
		}
		c.Put("default", name, Content{Backup: unsignedBackup(name, i, 4<<10)}, minute(1))
	}
	left, _ := c.LeftOut("default")
	if left < 90 {
		t.Fatalf("%d are left out, want 90 at least", left)
	}
	for at := 2; at < 6; at++ {
		findings := c.Observe("default", names, minute(at), minute(at))
		if len(findings.Read)+len(findings.Gone) > 0 || findings.Suspicion != "" {
			t.Errorf("a listing of all finds %+v, want nothing", findings)
		}
	}
	if c.Backup(system, "ours") == nil {
		t.Error("our own backup is not listed, though older than all others")
	}
	// Most of those that are left out go away.
	few := append(slices.Clone(names[:20]), "ours")
	for at := 6; at < 9; at++ {
		if findings := c.Observe("default", few, minute(at), minute(at)); findings.Suspicion != "" {
			t.Errorf("that backups go that are not listed is suspicious: %s", findings.Suspicion)
		}
	}
	if got := c.Len("default"); got != len(few) {
		t.Errorf("%d are known, want %d", got, len(few))
	}
}

// Who is trusted later has all of its backups read anew, and shown whole.
func TestWhatIsLeftOutIsReadWhenItsClusterIsTrusted(t *testing.T) {
	c := newCatalog(nil)
	c.SetForeignBytes(20 << 10)
	theirs := func(name string, age int) *v1alpha1.Backup {
		backup := stored("default", name, age)
		backup.Annotations = map[string]string{"text": strings.Repeat("x", 100<<10)}
		backup.Status.Origin.ClusterUID, backup.Status.Origin.PublicKey = "their-cluster", "their-key"
		return backup
	}
	names := []string{"b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9"}
	read := func(at int, abridged bool) {
		for i, name := range c.Observe("default", names, minute(at), minute(at)).Read {
			backup := theirs(name, i)
			if abridged {
				Abridge(backup)
			}
			c.Put("default", name, Content{Backup: backup}, minute(at))
		}
	}
	read(1, true)
	if left, _ := c.LeftOut("default"); left == 0 || left == len(names) {
		t.Fatalf("%d are left out, want some", left)
	}
	c.SetTrustedClusters(map[string][]enginev1alpha1.TrustedCluster{"default": {{Name: "theirs", UID: "their-cluster", PublicKey: "their-key"}}})
	read(2, false)
	if left, _ := c.LeftOut("default"); left != 0 {
		t.Errorf("%d are left out of a cluster that is trusted, want none", left)
	}
	if diff := cmp.Diff(names, listedNames(c)); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	for _, e := range c.locations["default"] {
		if IsAbridged(e.backup) || len(e.backup.Annotations["text"]) != 100<<10 {
			t.Errorf("%s is still abridged", e.storeName)
		}
	}
}

func TestAbridge(t *testing.T) {
	small := unsignedBackup("small", 1, 1<<10)
	before := small.DeepCopy()
	if Abridge(small); !cmp.Equal(before, small) {
		t.Error("small metadata is abridged")
	}
	large := unsignedBackup("large", 1, 1<<20)
	large.Labels = map[string]string{v1alpha1.LabelScheduleName: "nightly", "app": "x"}
	large.Spec.IncludedNamespaces, large.Spec.ExcludedNamespaces = []string{"shop"}, []string{"test"}
	large.Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	large.UID = types.UID(strings.Repeat("u", 1<<20))
	large.Annotations[format.AnnotationContents] = "{}"
	Abridge(large)
	want := unsignedBackup("large", 1, 0)
	want.Labels = map[string]string{v1alpha1.LabelScheduleName: "nightly"}
	want.Annotations = map[string]string{format.AnnotationContents: "{}"}
	want.Spec.IncludedNamespaces, want.Spec.ExcludedNamespaces = []string{"shop"}, []string{"test"}
	if want.UID = large.UID; len(large.UID) > maxName {
		t.Errorf("the uid has %d bytes", len(large.UID))
	}
	if !IsAbridged(large) {
		t.Error("nothing says that it is abridged")
	}
	want.Status.Conditions = large.Status.Conditions
	if diff := cmp.Diff(want, large); diff != "" {
		t.Errorf("abridged (-want +got):\n%s", diff)
	}
	// A selection that is cut is not taken for less than it is.
	many := unsignedBackup("many", 1, 0)
	for i := range 10_000 {
		many.Spec.ExcludedNamespaces = append(many.Spec.ExcludedNamespaces, fmt.Sprintf("n%d", i))
	}
	many.Spec.IncludedNamespaces = []string{"shop"}
	Abridge(many)
	if diff := cmp.Diff(v1alpha1.BackupSpec{StorageLocation: "default", IncludedNamespaces: []string{"*"}}, many.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}
