// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// A folder of one volume, which is no Backup, shows the volume and its backups alone.
func TestAVolumesOwnFolder(t *testing.T) {
	c, m := newMirror(t)
	row := func(name string, age int) Volume {
		at := metav1.NewTime(minute(-age))
		return Volume{
			Namespace: "shop", ClaimName: "data", VolumeName: "pvc-1", BackupName: name, SnapshotName: "s-" + name,
			SizeBytes: 10, IncrementalBytes: 5, VolumeSize: 16, State: v1alpha1.VolumeBackupCompleted,
			Labels:  NewLabels(map[string]string{"job": "daily", "KubernetesStatus": `{"pvName":"x"}`}),
			Created: at, Completion: at, SnapshotCreated: at, VolumeCreated: metav1.NewTime(minute(-90)),
		}
	}
	lost := row("b3", 1)
	lost.State, lost.Message = v1alpha1.VolumeBackupInProgress, "it runs, or has failed"
	content := Content{Volumes: []Volume{row("b1", 9), row("b2", 5), lost}, Trusted: true}
	c.Put("long", "pvc-1", content, t0)
	c.Put("long", "pvc-1", content, minute(1))
	m.check(c)
	if m.calls != 1 {
		t.Errorf("%d changes for one content", m.calls)
	}
	want(t, "backups", names(c.Backups()), "")
	want(t, "volumes", names(c.Volumes()), "shop/data")
	want(t, "history", names(c.VolumeBackups()), "shop/pvc-1.b1:data shop/pvc-1.b2:data shop/pvc-1.b3:data")
	if c.Len("long") != 1 || c.Readable("long") != "" {
		t.Errorf("%d are listed, and %q is readable", c.Len("long"), c.Readable("long"))
	}
	ended, made := metav1.NewTime(minute(-5)), metav1.NewTime(minute(-90))
	itself := &v1alpha1.BackedUpVolume{Name: "pvc-1", SizeBytes: 16, CreationTimestamp: &made}
	labels := map[string]string{"job": "daily", "KubernetesStatus": `{"pvName":"x"}`}
	if diff := cmp.Diff(v1alpha1.BackupVolumeStatus{
		LastVolumeBackup: "pvc-1.b2:data", LastBackupTimestamp: &ended, SizeBytes: 10, DataStoredBytes: 10, Volume: itself, Labels: labels,
		Backups: 2, Failures: 1, Messages: []string{"it runs, or has failed"}, StorageLocations: []string{"long"},
	}, c.Volumes()[0].Status); diff != "" {
		t.Errorf("volume (-want +got):\n%s", diff)
	}
	object := c.VolumeBackups()[1]
	if diff := cmp.Diff(v1alpha1.VolumeBackupStatus{
		Phase: "Completed", URL: "store://long/?backup=b2&volume=pvc-1", SnapshotName: "s-b2", SnapshotTimestamp: &ended,
		Volume: itself, Labels: labels, SizeBytes: 10, IncrementalBytes: 5, CompletionTimestamp: &ended,
	}, object.Status); diff != "" {
		t.Errorf("volume backup (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"job": "daily"}, object.Labels); diff != "" || object.Spec.BackupName != "b2" || !object.CreationTimestamp.Equal(&ended) {
		t.Errorf("%+v", object)
	}

	// A backup with the folder's name has nothing to do with it.
	c.Put("default", "pvc-1", Content{Backup: stored("default", "pvc-1", 3)}, t0)
	m.check(c)
	want(t, "backups", names(c.Backups()), "holdfast/pvc-1")
	// A copy of the store is another one.
	c.Put("long-copy", "pvc-1", content, t0)
	m.check(c)
	want(t, "history", names(c.VolumeBackups()), "shop/pvc-1.b1:data shop/pvc-1.b1@long-copy:data shop/pvc-1.b2:data shop/pvc-1.b2@long-copy:data shop/pvc-1.b3:data shop/pvc-1.b3@long-copy:data")
	c.Forget("long-copy")

	// Without trust, or without a claim, they are the administrator's.
	unknown := row("b1", 9)
	unknown.Namespace, unknown.ClaimName = "", ""
	for i, test := range []struct {
		content Content
		want    string
	}{
		{Content{Volumes: []Volume{row("b1", 9)}}, "holdfast/data@shop holdfast/pvc-1.b1:data@shop"},
		{Content{Volumes: []Volume{unknown}, Trusted: true}, "holdfast/volume:pvc-1 holdfast/pvc-1.b1:volume:pvc-1"},
	} {
		c.Remove("long", "pvc-1")
		c.Put("long", "pvc-1", test.content, minute(i))
		m.check(c)
		want(t, fmt.Sprint(i), names(c.Volumes())+" "+names(c.VolumeBackups()), test.want)
	}
	c.Remove("long", "pvc-1")
	m.check(c)
	want(t, "at the end", lists(c), "holdfast/pvc-1; ; ")
}

// folder is a volume's own, of which each refresh lists the folder and reads what it holds.
type folder struct {
	*Catalog
	clock    int
	accepted time.Time
	asked    bool // whether the last listing has asked for it
}

// refresh gives the backups that are listed after those were read.
func (f *folder) refresh(backups string) (listed string) {
	f.clock++
	found := f.ObserveListing("long", Listing{Names: []string{"v"}, Begun: minute(f.clock), Accepted: f.accepted}, minute(f.clock))
	f.asked = len(found.Read) > 0
	return f.read(backups)
}

// read does so without a listing. One in capitals has not ended.
func (f *folder) read(backups string) string {
	content := Content{Versions: map[string]string{"backups": backups}}
	for _, name := range strings.Fields(backups) {
		state := v1alpha1.VolumeBackupCompleted
		if name == strings.ToUpper(name) {
			state = v1alpha1.VolumeBackupInProgress
		}
		content.Volumes = append(content.Volumes, Volume{VolumeName: "v", BackupName: name, State: state})
	}
	f.clock++
	f.Put("long", "v", content, minute(f.clock))
	return f.listed()
}

func (f *folder) listed() string {
	var names []string
	items, _ := f.History(system, "volume:v")
	for _, item := range items {
		names = append(names, item.BackupName)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// readsAgain reports whether the entry is read with the next listing, though it says the same.
func (f *folder) readsAgain(backups string) bool {
	return f.Versions("long", "v")["backups"] != backups
}

// Whatever was read of a volume's own folder, a backup leaves when it was missing in two
// refreshes in a row, and the last one was not empty.
func TestLossesWithinAFolder(t *testing.T) {
	for _, test := range []struct{ name, refreshes, want string }{
		{"one of two", "a b, b", "a b"},
		{"confirmed", "a b, b, b", "b"},
		{"found again", "a b, b, a b, b", "a b"},
		{"most of many", "a b c d e f g h i j k l m, m, m", "m"},
		{"half a page after nothing", "a b c, , b c, b c", "b c"},
		{"nothing", "a b, , , ", "a b"},
		{"another one in its place", "a, b, b", "b"},
		{"the only one fails", "A, , ", ""},
	} {
		f := &folder{Catalog: New(system, nil)}
		last := ""
		for _, last = range strings.Split(test.refreshes, ", ") {
			f.refresh(strings.TrimSpace(last))
		}
		want(t, test.name, f.listed(), test.want)
	}

	f := &folder{Catalog: New(system, nil)}
	f.refresh("a b c")
	f.refresh("b c")
	for range 3 {
		want(t, "read again in the same refresh", f.read("b c"), "a b c")
	}
	if !f.readsAgain("b c") {
		t.Error("what is missing is not asked for again")
	}
	want(t, "in the next one", f.refresh("b c"), "b c")
	if f.readsAgain("b c") || f.Emptied("long") != "" {
		t.Errorf("it is asked for for ever, and said is %q", f.Emptied("long"))
	}

	// What was deleted here leaves at once.
	of := BackupID{Location: "long", StoreName: "v"}
	f.SetVolumeDeletion("record", []VolumeInBackup{{Backup: of, BackupName: "b"}})
	f.EndVolumeDeletion("record")
	want(t, "deleted", f.refresh("c"), "c")
	if f.readsAgain("c") || len(f.deletions) > 0 {
		t.Error("what was deleted here is missed")
	}
}

// A folder that has nothing any more is doubted until something is found again, or the loss is
// accepted, or explained. That takes no request.
func TestAnEmptyFolderIsDoubted(t *testing.T) {
	const suspicion = "the store lacks all backups of 1 of 2 known volumes, which stay in the list until some are found again, or their loss is accepted"
	begin := func() *folder {
		f := &folder{Catalog: New(system, nil)}
		f.Put("long", "other", Content{Volumes: []Volume{{VolumeName: "other", BackupName: "o"}}}, t0)
		f.refresh("a b")
		want(t, "nothing", f.refresh(""), "a b")
		if f.Emptied("long") != suspicion || f.readsAgain("") {
			t.Errorf("said is %q", f.Emptied("long"))
		}
		return f
	}
	f := begin()
	f.refresh("a b")
	if f.Emptied("long") != "" {
		t.Errorf("all were found again: %q", f.Emptied("long"))
	}

	f = begin()
	f.accepted = minute(f.clock - 1) // too early
	if want(t, "an earlier loss is accepted", f.refresh(""), "a b"); f.asked {
		t.Error("it is read in vain")
	}
	f.accepted = minute(f.clock)
	if want(t, "accepted", f.refresh(""), ""); !f.asked || f.Emptied("long") != "" || f.readsAgain("") {
		t.Errorf("read is %t, and said is %q", f.asked, f.Emptied("long"))
	}
	if f.refresh(""); f.asked {
		t.Error("it is read again")
	}

	f = begin()
	f.accepted = minute(f.clock)
	want(t, "accepted, and found", f.refresh("a b"), "a b")
	f.refresh("")
	want(t, "lost later", f.refresh(""), "a b")

	f = begin()
	of := BackupID{Location: "long", StoreName: "v"}
	f.SetVolumeDeletion("record", []VolumeInBackup{{Backup: of, BackupName: "a"}, {Backup: of, BackupName: "b"}})
	if f.listed() != "" || f.Emptied("long") != "" {
		t.Errorf("all were deleted, and said is %q", f.Emptied("long"))
	}
}

// Whatever the store yields, and however often it is asked meanwhile: what is listed follows
// from what was read.
func TestLossesWithinAFolderAgainstOracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := &folder{Catalog: New(system, nil)}
		type reading struct {
			refresh int
			backups string
		}
		var readings []reading
		refreshes := 0
		holds := func(r reading, name string) bool { return slices.Contains(strings.Fields(r.backups), name) }
		rt.Repeat(map[string]func(*rapid.T){
			"read": func(rt *rapid.T) {
				backups := strings.Join(rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.ID[string]).Draw(rt, "backups"), " ")
				got := ""
				if rapid.Bool().Draw(rt, "refresh") {
					refreshes++
					got = f.refresh(backups)
				} else {
					got = f.read(backups)
				}
				readings = append(readings, reading{refreshes, backups})
				var listed []string
				for _, name := range []string{"a", "b", "c", "d"} {
					is, lacking := false, -1 // since which refresh
					for _, r := range readings {
						switch {
						case holds(r, name):
							is, lacking = true, -1
						case is && lacking < 0:
							lacking = r.refresh
						case is && r.refresh > lacking && r.backups != "":
							is = false
						}
					}
					if is {
						listed = append(listed, name)
					}
				}
				if want := strings.Join(listed, " "); got != want {
					rt.Fatalf("listed are %q, want %q after %v", got, want, readings)
				}
			},
		})
	})
}
