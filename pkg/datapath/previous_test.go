// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// disguise gives a file another content, and has its size, time, mode and owner as they were.
func disguise(t *testing.T, path, content string) {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	if int64(len(content)) != info.Size() {
		t.Fatalf("%q has another size than %s", content, path)
	}
	must(t, os.WriteFile(path, []byte(content), 0o644))
	must(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// aged writes a file that has an old time.
func aged(t *testing.T, path, content string) {
	t.Helper()
	write(t, path, content)
	at := time.Date(2020, 1, 2, 3, 4, 5, 6, time.UTC)
	must(t, os.Chtimes(path, at, at))
}

func (s store) expectContent(t *testing.T, id, file, want string) {
	t.Helper()
	target := t.TempDir()
	s.restore(t, id, target)
	if got, err := os.ReadFile(filepath.Join(target, file)); err != nil || string(got) != want {
		t.Errorf("%s of the snapshot has %q, %v, want %q", file, got, err, want)
	}
}

// A file whose content has changed is in the next snapshot, also when its size and time are those
// of before.
func TestChangeThatKeepsSizeAndTime(t *testing.T) {
	for _, file := range []string{"folder/file", "file beside a folder"} {
		t.Run(file, func(t *testing.T) {
			s, dir := newStore(t), t.TempDir()
			aged(t, filepath.Join(dir, file), "before")
			aged(t, filepath.Join(dir, "folder/other"), "the same")
			s.upload(t, dir, web)
			disguise(t, filepath.Join(dir, file), "behind")
			s.expectContent(t, s.upload(t, dir, web).SnapshotID, file, "behind")
		})
	}
}

// So is a file that has changed after a snapshot of the volume was cut, and before its upload began.
func TestChangeBetweenCutAndUpload(t *testing.T) {
	was := racy
	racy = -time.Hour // files of the last hour count as old
	t.Cleanup(func() { racy = was })
	for name, test := range map[string]struct {
		cut  time.Time
		want string
	}{
		"an upload of live files":               {time.Time{}, "before"},
		"a cut, and its upload":                 {time.Now(), "before"},
		"a cut, and its upload two hours later": {time.Now().Add(-2 * time.Hour), "behind"},
		"a cut by a clock that is ahead a day":  {time.Now().Add(24 * time.Hour), "before"},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newStore(t), t.TempDir()
			aged(t, filepath.Join(dir, "file"), "before")
			_, err := Upload(t.Context(), s.client(t), UploadRequest{Path: dir, Source: web, Cut: test.cut}, new(Progress))
			must(t, err)
			disguise(t, filepath.Join(dir, "file"), "behind")
			s.expectContent(t, s.upload(t, dir, web).SnapshotID, "file", test.want)
		})
	}
}

// A file is read again if its content or its inode has changed in or after the unit of time in which
// the previous snapshot began, or was cut.
func TestRecentFiles(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 500_000_000, time.UTC)
	man := &snapshot.Manifest{StartTime: fs.UTCTimestampFromTime(start)}
	vol := &volume{since: basis{complete: man, spare: []*snapshot.Manifest{man}}.since()}
	cut := &snapshot.Manifest{StartTime: fs.UTCTimestampFromTime(start.Add(time.Hour)), Tags: map[string]string{tagCut: start.Add(skew).Format(time.RFC3339)}}
	for name, b := range map[string]basis{"snapshot": {complete: cut}, "checkpoint": {spare: []*snapshot.Manifest{cut}}} {
		if got := b.since(); got != vol.since {
			t.Errorf("the %s of a cut has %d, want %d", name, got, vol.since)
		}
	}
	for _, test := range []struct {
		mtime, ctime time.Duration // after the start
		mode         uint32
		want         bool
	}{
		{-time.Hour, -time.Hour, unix.S_IFREG, false},
		{-3 * time.Second, -3 * time.Second, unix.S_IFREG, false},
		{-2 * time.Second, -time.Hour, unix.S_IFREG, true},
		{-time.Hour, -2 * time.Second, unix.S_IFREG, true},
		{-time.Hour, time.Minute, unix.S_IFREG, true},
		{24 * time.Hour, -time.Hour, unix.S_IFREG, true}, // a time of the future
		{-time.Hour, time.Minute, unix.S_IFLNK, true},
		{time.Minute, time.Minute, unix.S_IFDIR, false}, // it is always looked at
	} {
		stat := unix.Stat_t{Mode: test.mode, Mtim: unix.NsecToTimespec(start.Add(test.mtime).UnixNano()), Ctim: unix.NsecToTimespec(start.Add(test.ctime).UnixNano())}
		if e := newVolumeEntry(vol, nil, "file", &stat); e.recent != test.want {
			t.Errorf("changed %s and %s after the start, mode %o: got %t", test.mtime, test.ctime, test.mode, e.recent)
		}
	}
	if since := (basis{}).since(); since != math.MaxInt64 {
		t.Errorf("without a previous snapshot it is %d", since)
	}
}

// Only the snapshots of a claim itself spare the reading of its files, not those of another claim
// that had its name, and not those of a volume without one. Of Velero's newer snapshots nobody
// knows the claim.
func TestSnapshotsOfAnotherClaim(t *testing.T) {
	settled(t) // the times of the files spare their reading
	before := Source{Namespace: namespace, Pod: "web-0", Volume: "content", ClaimName: "data", ClaimUID: "one"}
	anew := before
	anew.ClaimUID = "two"
	s, dir := newStore(t), t.TempDir()
	aged(t, filepath.Join(dir, "file"), "of one")
	s.upload(t, dir, before)
	disguise(t, filepath.Join(dir, "file"), "of two")
	s.expectContent(t, s.upload(t, dir, anew).SnapshotID, "file", "of two")

	for name, test := range map[string]struct {
		labels map[string]string
		uid    types.UID
		known  bool
	}{
		"ours":                          {map[string]string{tagClaim: "one", tagRecord: "record"}, "one", true},
		"ours, of a volume without one": {map[string]string{tagRecord: "record"}, "", true},
		"Velero's, up to 1.16":          {map[string]string{veleroClaim: "one"}, "one", true},
		"Velero's":                      {map[string]string{tagRequester: requester}, "", false},
	} {
		if uid, known := claimOf(test.labels); uid != test.uid || known != test.known {
			t.Errorf("%s: got %q, %t", name, uid, known)
		}
	}
}

// An upload reads every file when that was last done so long ago, and notes that.
func TestFullRead(t *testing.T) {
	settled(t) // else the change below would be seen
	s, dir := newStore(t), t.TempDir()
	aged(t, filepath.Join(dir, "folder/file"), "before")
	upload := func(every time.Duration) (*snapshot.Manifest, UploadResult) {
		t.Helper()
		got, err := Upload(t.Context(), s.client(t), UploadRequest{Path: dir, Source: web, FullReadEvery: every}, new(Progress))
		must(t, err)
		all := s.snapshots(t)
		return all[slices.IndexFunc(all, func(m *snapshot.Manifest) bool { return string(m.ID) == got.SnapshotID })], got
	}
	first, _ := upload(time.Hour)
	disguise(t, filepath.Join(dir, "folder/file"), "behind")
	for _, every := range []time.Duration{time.Hour, 0} {
		man, _ := upload(every)
		s.expectContent(t, string(man.ID), "folder/file", "before")
		if man.Tags[tagFullRead] != first.Tags[tagFullRead] {
			t.Errorf("with %s, the last full read was at %s, want %s", every, man.Tags[tagFullRead], first.Tags[tagFullRead])
		}
	}
	man, got := upload(1)
	s.expectContent(t, string(man.ID), "folder/file", "behind")
	if got.IncrementalBytes != 0 || got.TotalBytes != 6 {
		t.Errorf("by what their times say, %d of %d bytes are new", got.IncrementalBytes, got.TotalBytes)
	}
}

// TestBasis: what spares the reading of files, and when all were read the last time.
func TestBasis(t *testing.T) {
	now := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	// man is a snapshot that began some time ago, as the last full read did.
	man := func(begun, read time.Duration) *snapshot.Manifest {
		m := &snapshot.Manifest{StartTime: fs.UTCTimestampFromTime(now.Add(-begun))}
		if read != begun {
			m.Tags = map[string]string{tagFullRead: now.Add(-read).Format(time.RFC3339)}
		}
		return m
	}
	for name, test := range map[string]struct {
		complete, checkpoint *snapshot.Manifest
		every                time.Duration
		spare                string
		read                 time.Duration
		full                 bool
	}{
		"nothing":                           {nil, nil, 7 * day, "", 0, false},
		"a snapshot":                        {man(day, 3*day), nil, 7 * day, "complete", 3 * day, false},
		"a snapshot that does not say":      {man(day, day), nil, 7 * day, "complete", day, false},
		"it is due":                         {man(day, 7*day), nil, 7 * day, "", 0, true},
		"it is due, never":                  {man(day, 700*day), nil, 0, "complete", 700 * day, false},
		"a checkpoint":                      {nil, man(day, day), 7 * day, "checkpoint", day, false},
		"both":                              {man(2*day, 3*day), man(day, 3*day), 7 * day, "complete, checkpoint", 3 * day, false},
		"it is due, and was begun":          {man(2*day, 9*day), man(day, 0), 7 * day, "checkpoint", 0, true},
		"it is due, also at the checkpoint": {man(2*day, 9*day), man(day, 9*day), 7 * day, "", 0, true},
		"a clock was ahead":                 {man(-day, 0), nil, 7 * day, "", 0, true},
		"a clock was ahead, never due":      {man(day, -day), nil, 0, "", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := basisOf(test.complete, test.checkpoint, now, test.every)
			var spare []string
			for _, m := range b.spare {
				spare = append(spare, map[*snapshot.Manifest]string{test.complete: "complete", test.checkpoint: "checkpoint"}[m])
			}
			if got := strings.Join(spare, ", "); got != test.spare || now.Sub(b.fullRead) != test.read || b.isFullRead() != test.full {
				t.Errorf("got %q, the last full read %s ago, full now: %t", got, now.Sub(b.fullRead), b.isFullRead())
			}
		})
	}
}

// The volumes of a backup are not all read again in the same one.
func TestFullReadsAreSpread(t *testing.T) {
	const week = 7 * 24 * time.Hour
	nights := map[time.Duration]int{}
	for i := range 1000 {
		source := web
		source.ClaimUID = types.UID(strings.Repeat("x", i))
		after := spread(week, source)
		if after < week*3/4 || after > week || after != spread(week, source) {
			t.Fatalf("every %s", after)
		}
		nights[after.Truncate(24*time.Hour)]++
	}
	if len(nights) != 2 || slices.Min([]int{nights[5*24*time.Hour], nights[6*24*time.Hour]}) < 300 {
		t.Errorf("they are divided as %v", nights)
	}
	if spread(0, web) != 0 {
		t.Error("never is not never")
	}
}

// An upload that finds no files where the claim's previous snapshot has some says so, once.
func TestVolumeThatLostItsFiles(t *testing.T) {
	claim := Source{Namespace: namespace, Pod: "web-0", Volume: "content", ClaimName: "data", ClaimUID: "one"}
	for name, test := range map[string]struct {
		source Source
		want   int
	}{
		"a claim":     {claim, 1},
		"an emptyDir": {web, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newStore(t), t.TempDir()
			write(t, filepath.Join(dir, "sub/file"), "content")
			must(t, os.Symlink("file", filepath.Join(dir, "sub/link")))
			if got := s.upload(t, dir, test.source); got.Warnings.Count != 0 {
				t.Errorf("with files: %v", got.Warnings)
			}
			must(t, os.RemoveAll(filepath.Join(dir, "sub")))
			got := s.upload(t, dir, test.source)
			if got.Warnings.Count != test.want || test.want == 1 && !strings.Contains(got.Warnings.String(), "has no files now") || test.want == 1 && !strings.Contains(got.Warnings.String(), "has 2") {
				t.Errorf("without: %v", got.Warnings)
			}
			if got := s.upload(t, dir, test.source); got.Warnings.Count != 0 {
				t.Errorf("the next time: %v", got.Warnings)
			}
		})
	}
}

// Of times that a snapshot can't hold one warning names the first file and how many there are.
// What comes back is the nearest time.
func TestTimesOutOfRange(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	at := time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, name := range []string{"one", "sub/two"} {
		write(t, filepath.Join(dir, name), "content")
		stamp := unix.Timespec{Sec: at.Unix()}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, name), []unix.Timespec{stamp, stamp}, 0))
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.ModTime().Equal(at) {
			t.Fatalf("the file system of the test has the time %v, %v, want %v", info.ModTime(), err, at)
		}
	}
	for range warningsKept {
		must(t, unix.Mkfifo(filepath.Join(dir, "pipe "+t.Name()+time.Now().Format(".000000000")), 0o600))
	}
	for range 2 { // the second one finds them unchanged
		got := s.upload(t, dir, web)
		if text := got.Warnings.String(); got.Warnings.Count != warningsKept+1 || !strings.HasPrefix(text, `"one" is the first of 2 `) && !strings.HasPrefix(text, `"sub/two" is the first of 2 `) {
			t.Errorf("the warnings are %v", got.Warnings)
		}
		s.restore(t, got.SnapshotID, target)
		if info, err := os.Stat(filepath.Join(target, "sub/two")); err != nil || info.ModTime().Unix() != latest.Unix() {
			t.Errorf("restored with the time %v, %v, want %v", info.ModTime(), err, latest)
		}
	}
	for _, test := range []struct {
		sec  int64
		want time.Time
	}{
		{at.Unix(), latest},
		{latest.Unix(), time.Unix(latest.Unix(), 0)},
		{time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), earliest},
		{earliest.Unix() + 1, time.Unix(earliest.Unix()+1, 0)},
		{math.MinInt64 / 4, earliest},
		{0, time.Unix(0, 0)},
	} {
		got, exact := timeOf(unix.Timespec{Sec: test.sec})
		if !got.Equal(test.want) || exact != (got.Unix() == test.sec) {
			t.Errorf("%d s: got %v, exactly %t, want %v", test.sec, got, exact, test.want)
		}
	}
}
