// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
)

// open gives a cache, and the names that it has.
func open(t *testing.T, folder, ofStore, clusterUID string, now time.Time) (*LocalCache, *clocktesting.FakePassiveClock, string) {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(now)
	c := NewLocalCache(folder, ofStore, clusterUID, clock)
	entries, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for entry := range entries {
		names = append(names, fmt.Sprintf("%s(%d)", entry.StoreName, entry.Content.Rows()))
	}
	t.Cleanup(func() { _ = c.Close(t.Context(), all) })
	return c, clock, strings.Join(names, " ")
}

func all(string) bool { return true }

func content(volumes int) catalog.Content {
	return catalog.Content{Backup: &v1alpha1.Backup{Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted}}, Volumes: make([]catalog.Volume, volumes)}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFromOneProcessToTheNext(t *testing.T) {
	folder := t.TempDir()
	c, clock, found := open(t, folder, "s3 a", "here", begin)
	if found != "" {
		t.Errorf("a new one has %s", found)
	}
	must(t, c.Add(t.Context(), "a", content(1)))
	must(t, c.Add(t.Context(), "b", content(2)))
	must(t, c.Write(t.Context(), all))
	if _, _, found := open(t, folder, "s3 a", "here", begin); found != "" {
		t.Errorf("it was written at once: %s", found)
	}
	clock.SetTime(begin.Add(interval))
	must(t, c.Write(t.Context(), all))
	if _, _, found := open(t, folder, "s3 a", "here", begin); found != "a(1) b(2)" {
		t.Errorf("it has %s", found)
	}
	must(t, c.Add(t.Context(), "c", content(3)))
	must(t, c.Close(t.Context(), func(name string) bool { return name != "a" }))
	if _, _, found := open(t, folder, "s3 a", "here", begin.Add(time.Hour)); found != "b(2) c(3)" {
		t.Errorf("it has %s", found)
	}
	// What is of another store or cluster is not met.
	for _, of := range [][2]string{{"s3 b", "here"}, {"s3 a", "there"}} {
		if _, _, found := open(t, folder, of[0], of[1], begin); found != "" {
			t.Errorf("%v has %s", of, found)
		}
	}
	// Nobody else reads it, and what is not needed goes.
	files := 0
	must(t, filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		must(t, err)
		info, err := entry.Info()
		must(t, err)
		if path != folder && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %s", path, info.Mode())
		}
		if strings.Contains(path, "head-") {
			files++
		}
		return nil
	}))
	if files > 2 {
		t.Errorf("%d heads are left", files)
	}
}

// What was removed is not shown by the next process, whether this one ends or is killed, and
// however little of it that is. What is added again is.
func TestRemoved(t *testing.T) {
	for _, killed := range []bool{false, true} {
		folder := t.TempDir()
		c, clock, _ := open(t, folder, "s3 a", "here", begin)
		gone := map[string]bool{}
		lists := func(name string) bool { return !gone[name] }
		for i := range 1100 {
			must(t, c.Add(t.Context(), fmt.Sprintf("b%04d", i), content(1)))
		}
		clock.SetTime(begin.Add(interval))
		must(t, c.Write(t.Context(), lists))
		for i := range 100 {
			gone[fmt.Sprintf("b%04d", 7*i)] = true
		}
		for name := range gone {
			if killed {
				must(t, c.Remove(name))
			}
		}
		if !killed {
			must(t, c.Close(t.Context(), lists))
		}
		next, clock, found := open(t, folder, "s3 a", "here", begin.Add(time.Hour))
		if count := len(strings.Fields(found)); count != 1000 || strings.Contains(found, "b0007(") || !strings.Contains(found, "b0008(") {
			t.Errorf("killed %t: %d are shown", killed, count)
		}
		delete(gone, "b0007")
		must(t, next.Add(t.Context(), "b0007", content(2)))
		clock.SetTime(begin.Add(2 * time.Hour))
		must(t, next.Write(t.Context(), lists))
		if _, err := os.Stat(next.removedFile()); !os.IsNotExist(err) {
			t.Errorf("killed %t: names are left: %v", killed, err)
		}
		// A list that was cut short, and one that is asked for before it is opened.
		must(t, os.WriteFile(next.removedFile(), []byte("\n\"b00"), 0o600))
		must(t, NewLocalCache(folder, "s3 a", "here", clock).Remove("b0008"))
		if _, _, found := open(t, folder, "s3 a", "here", begin.Add(3*time.Hour)); len(strings.Fields(found)) != 1000 || !strings.Contains(found, "b0007(2)") || strings.Contains(found, "b0008(") {
			t.Errorf("killed %t: %d are shown then", killed, len(strings.Fields(found)))
		}
	}
	// Without a folder nothing is shown, and what can't be written is shown by nobody.
	must(t, NewLocalCache(filepath.Join(t.TempDir(), "none"), "s3 a", "here", clocktesting.NewFakePassiveClock(begin)).Remove("a"))
	folder := t.TempDir()
	c, clock, _ := open(t, folder, "s3 a", "here", begin)
	must(t, c.Add(t.Context(), "a", content(1)))
	clock.SetTime(begin.Add(interval))
	must(t, c.Write(t.Context(), all))
	must(t, os.Mkdir(c.removedFile(), 0o700))
	if err := c.Remove("a"); err == nil {
		t.Error("a folder was written as a file")
	}
	if _, _, found := open(t, folder, "s3 a", "here", begin.Add(time.Hour)); found != "" {
		t.Errorf("%s is shown", found)
	}
}

func TestSpoiltFolder(t *testing.T) {
	folder := t.TempDir()
	c, _, _ := open(t, folder, "s3 a", "here", begin)
	must(t, c.Add(t.Context(), "a", content(1)))
	must(t, c.Close(t.Context(), all))
	must(t, filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		must(t, err)
		if !entry.IsDir() {
			must(t, os.WriteFile(path, []byte("spoilt"), 0o600))
		}
		return nil
	}))
	c, _, found := open(t, folder, "s3 a", "here", begin.Add(time.Hour))
	if found != "" {
		t.Errorf("it has %s", found)
	}
	must(t, c.Add(t.Context(), "b", content(1)))
	must(t, c.Close(t.Context(), all))
	if _, _, found := open(t, folder, "s3 a", "here", begin.Add(2*time.Hour)); found != "b(1)" {
		t.Errorf("then it has %s", found)
	}
	// One that can't be written does nothing.
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	none := NewLocalCache(file, "s3 a", "here", clocktesting.NewFakePassiveClock(begin))
	if _, err := none.Open(t.Context()); err == nil {
		t.Error("a file was opened as a folder")
	}
	must(t, none.Add(t.Context(), "a", content(1)))
	must(t, none.Close(t.Context(), all))
}
