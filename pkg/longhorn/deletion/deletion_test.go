// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/longhorn/deletion"
	"github.com/holdfast-io/holdfast/pkg/longhorn/longhorntest"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// hurried is a clock that waits for nothing, and may be set ahead.
type hurried struct {
	clock.RealClock
	ahead atomic.Int64
	ticks chan time.Time // of its tickers, unless nil
}

type ticker struct {
	clock.Ticker
	ticks chan time.Time
}

func (t ticker) C() <-chan time.Time { return t.ticks }

func (h *hurried) NewTicker(d time.Duration) clock.Ticker {
	t := h.RealClock.NewTicker(d)
	if h.ticks == nil {
		return t
	}
	return ticker{t, h.ticks}
}

func (h *hurried) Now() time.Time { return h.RealClock.Now().Add(time.Duration(h.ahead.Load())) }

func (h *hurried) NewTimer(time.Duration) clock.Timer { return h.RealClock.NewTimer(0) }

// fixture is the store that Longhorn's library wrote, in a folder. Its lock in db-data is
// so old.
func fixture(t *testing.T, lockAge time.Duration) (*store.Bucket, string) {
	t.Helper()
	folder := t.TempDir()
	for _, file := range longhorntest.Fixture(t) {
		path := filepath.Join(folder, file.Key)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, file.Content, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, isLock := longhorn.LockOf(file.Key); isLock {
			written := time.Now().Add(-lockAge)
			if err := os.Chtimes(path, written, written); err != nil {
				t.Fatal(err)
			}
		}
	}
	return storetest.Open(t, enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder}}, nil), folder
}

func content(t *testing.T, s store.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for object, err := range s.List(t.Context(), "", store.ListOptions{Recursive: true}) {
		if err != nil {
			t.Fatal(err)
		}
		all[object.Key] = get(t, s, object.Key)
	}
	return all
}

func get(t *testing.T, s store.Reader, key string) string {
	t.Helper()
	r, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// run does what a command of Longhorn's does.
func run(ctx context.Context, d *deletion.Deleter, command string) (deletion.Result, error) {
	words := strings.Fields(command)
	target, err := url.Parse(words[len(words)-1])
	if err != nil {
		return deletion.Result{}, err
	}
	switch query := target.Query(); {
	case strings.HasPrefix(command, "backup rm --volume "):
		return deletion.Result{}, d.Volume(ctx, words[3])
	case strings.HasPrefix(command, "backup rm-backing-image "):
		return d.Image(ctx, query.Get("backingImage"))
	case strings.HasPrefix(command, "backup rm "):
		return d.Backup(ctx, query.Get("volume"), query.Get("backup"))
	case strings.HasPrefix(command, "system-backup delete "):
		parts := strings.Split(target.Path, "/")
		return deletion.Result{}, d.SystemBackup(ctx, parts[len(parts)-2], parts[len(parts)-1])
	}
	return deletion.Result{}, errors.New("no such command: " + command)
}

// Each deletion removes and changes what Longhorn's library does, key by key, but for
// LastBackupName, see the package.
func TestDeletesAsTheLibraryDoes(t *testing.T) {
	expect := longhorntest.Expect(t)
	if len(expect.Deletions) != 16 {
		t.Fatalf("%d deletions", len(expect.Deletions))
	}
	test := func(want longhorntest.Deletion, skew time.Duration) {
		t.Run(fmt.Sprintf("%s, by a clock that is ahead by %s", want.What, skew), func(t *testing.T) {
			t.Parallel()
			clock := &hurried{}
			clock.ahead.Store(int64(skew))
			age := 170 * time.Second
			if strings.Contains(want.What, "0 s old") {
				age = 0
			}
			s, _ := fixture(t, age)
			if strings.Contains(want.What, "volume.cfg was removed before") {
				if err := s.Remove(t.Context(), longhorn.VolumeKey("pvc-b8e04c7d-15a2-4f39-8d6c-90f1e2d3c4b5")); err != nil {
					t.Fatal(err)
				}
			}
			before := content(t, s)
			d := &deletion.Deleter{Store: s, Clock: clock}
			var err error
			for _, command := range want.Commands {
				if _, err = run(t.Context(), d, command); err != nil {
					break
				}
			}
			if locked := strings.Contains(want.Error, "failed to acquire lock"); locked != errors.Is(err, deletion.ErrLocked) || !locked && err != nil {
				t.Errorf("%v, and the library says %q", err, want.Error)
			}
			after := content(t, s)
			var removed []string
			rewritten := map[string]string{}
			for key, text := range before {
				if now, found := after[key]; !found {
					removed = append(removed, key)
				} else if now != text {
					rewritten[key] = now
				}
				delete(after, key)
			}
			slices.Sort(removed)
			if wanted := slices.Sorted(slices.Values(want.Removed)); !slices.Equal(removed, wanted) {
				t.Errorf("removed\n%s\nwant\n%s", strings.Join(removed, "\n"), strings.Join(wanted, "\n"))
			}
			if len(after) > 0 {
				t.Errorf("added %v", slices.Sorted(maps.Keys(after)))
			}
			if len(rewritten) != len(want.Rewritten) {
				t.Errorf("rewritten %v, want %v", rewritten, want.Rewritten)
			}
			for key, text := range want.Rewritten {
				var got, wanted map[string]any
				if err := errors.Join(json.Unmarshal([]byte(rewritten[key]), &got), json.Unmarshal(text, &wanted)); err != nil {
					t.Errorf("%s: %v", key, err)
					continue
				}
				if strings.HasPrefix(want.What, "last backup beside backups in progress") {
					// The library forgets it, and the next backup is a full one.
					wanted["LastBackupName"], wanted["LastBackupAt"] = "backup-d7e8f90a1b2c3d4e", "2026-10-29T06:00:00Z"
				}
				if !reflect.DeepEqual(got, wanted) {
					t.Errorf("%s is now\n%v, want\n%v", key, got, wanted)
				}
			}
		})
	}
	for _, want := range expect.Deletions {
		test(want, 0)
		if strings.Contains(want.What, "lock") { // whose age is as the store's clock says
			test(want, 10*time.Minute)
			test(want, -10*time.Minute)
		}
	}
}

// Why blocks stay is said.
func TestSaysWhatStays(t *testing.T) {
	s, _ := fixture(t, time.Hour)
	d := &deletion.Deleter{Store: s, Clock: &hurried{}}
	for backup, want := range map[string]string{"backup-e8f90a1b2c3d4e5f": "backup_backup-0b1c2d3e4f506172.cfg: it has not ended"} {
		if result, err := d.Backup(t.Context(), "db-data", backup); err != nil || !strings.Contains(result.Kept, want) {
			t.Errorf("%s: %+v, %v", backup, result, err)
		}
	}
	for _, bad := range []string{"", "..", "a/b", "BACKINGIMAGE"} {
		if err := d.Volume(t.Context(), bad); err == nil {
			t.Errorf("the volume %q was deleted", bad)
		}
	}
}

// hooked calls back before each listing of a folder.
type hooked struct {
	*store.Bucket
	before func(folder string)
}

func (h hooked) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	h.before(folder)
	return h.Bucket.List(ctx, folder, options)
}

// A process that has slept, so that its lock has expired, removes nothing more.
func TestASleeperRemovesNothing(t *testing.T) {
	s, _ := fixture(t, time.Hour)
	before := content(t, s)
	h := &hurried{}
	d := &deletion.Deleter{Clock: h, Store: hooked{s, func(folder string) {
		if strings.HasSuffix(folder, "/blocks/") {
			h.ahead.Store(int64(time.Hour))
		}
	}}}
	const volume, backup = "pvc-3f1c9a52-7d0e-4b6e-9c1b-2a8d5e6f7a01", "backup-3d4e5f60718293a4"
	if _, err := d.Backup(t.Context(), volume, backup); err == nil {
		t.Error("it says that it has succeeded")
	}
	after := content(t, s)
	for key := range before {
		if _, found := after[key]; !found && key != longhorn.BackupKey(volume, backup) {
			t.Errorf("%s is gone", key)
		}
	}
	// Tried again, it ends what it began.
	h.ahead.Store(0)
	d.Store = s
	if result, err := d.Backup(t.Context(), volume, backup); err != nil || result.Kept != "" {
		t.Errorf("again: %+v, %v", result, err)
	}
	if left := content(t, s); len(left) != len(before)-2 {
		t.Errorf("%d objects are left of %d", len(left), len(before))
	}
}

// A lock that has expired is none any more when it is written again: a backup that came meanwhile
// stays, and so does all that it may need.
func TestALostLockStaysLost(t *testing.T) {
	const volume, backup = "pvc-3f1c9a52-7d0e-4b6e-9c1b-2a8d5e6f7a01", "backup-3d4e5f60718293a4"
	s, _ := fixture(t, time.Hour)
	var all []string
	for key := range content(t, s) {
		if name, ok := longhorn.BackupOf(key); ok && strings.HasPrefix(key, longhorn.BackupsPrefix(volume)) {
			all = append(all, name)
		}
	}
	for name, c := range map[string]struct {
		asleep string // at which listing
		delete func(*deletion.Deleter) error
		goes   []string
	}{
		"before its first removal": {"/locks/", func(d *deletion.Deleter) error { _, err := d.Backup(t.Context(), volume, backup); return err }, nil},
		"before its blocks":        {"/blocks/", func(d *deletion.Deleter) error { _, err := d.Backup(t.Context(), volume, backup); return err }, []string{backup}},
		"before its file":          {"/backups/", func(d *deletion.Deleter) error { _, err := d.Backup(t.Context(), volume, backup); return err }, []string{backup}},
		"whole":                    {"/backups/", func(d *deletion.Deleter) error { _, err := d.Backups(t.Context(), volume, all, true); return err }, all},
		"the volume":               {"/backups/", func(d *deletion.Deleter) error { return d.Volume(t.Context(), volume) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := fixture(t, time.Hour)
			before := content(t, s)
			h := &hurried{ticks: make(chan time.Time)}
			slept := false
			err := c.delete(&deletion.Deleter{Clock: h, Store: hooked{s, func(folder string) {
				if slept || !strings.HasSuffix(folder, c.asleep) {
					return
				}
				slept = true
				h.ahead.Store(int64(time.Hour))
				if c.asleep == "/locks/" {
					return // it is written again without a tick
				}
				h.ticks <- time.Now()
				h.ticks <- time.Now() // after that it was written
			}}})
			if err == nil || !slept {
				t.Errorf("it says %v, and has slept: %t", err, slept)
			}
			after := content(t, s)
			for key, was := range before {
				name, isBackup := longhorn.BackupOf(key)
				if c.asleep == "/blocks/" && key == longhorn.VolumeKey(volume) {
					continue // which was changed before
				}
				if goes := isBackup && strings.HasPrefix(key, longhorn.BackupsPrefix(volume)) && slices.Contains(c.goes, name); !goes && after[key] != was {
					t.Errorf("%s has changed to %q", key, after[key])
				}
			}
		})
	}
}

// Longhorn compares the times of locks by the second, and then their names: of two in the same
// second ours gives way if Longhorn's has the smaller name, though it is a little younger.
func TestLocksOfTheSameSecond(t *testing.T) {
	const volume, backup = "pvc-3f1c9a52-7d0e-4b6e-9c1b-2a8d5e6f7a01", "backup-3d4e5f60718293a4"
	for name, want := range map[string]error{"lock-0": deletion.ErrLocked, "lock-z": nil} {
		s, folder := fixture(t, time.Hour)
		d := &deletion.Deleter{Clock: &hurried{}, Store: hooked{s, func(listed string) {
			if listed != longhorn.LocksPrefix(volume) {
				return
			}
			for own, err := range s.List(t.Context(), listed, store.ListOptions{}) {
				if err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(folder, longhorn.LockKey(volume, name))
				if err := os.WriteFile(path, (&longhorn.Lock{Name: name, Type: longhorn.LockBackup}).Encode(), 0o644); err != nil {
					t.Fatal(err)
				}
				written := own.ModTime.Truncate(time.Second).Add(time.Second - 1)
				if err := os.Chtimes(path, written, written); err != nil {
					t.Fatal(err)
				}
				return
			}
		}}}
		if _, err := d.Backup(t.Context(), volume, backup); !errors.Is(err, want) {
			t.Errorf("beside %s: %v, want %v", name, err, want)
		}
	}
}

// A backup that comes while blocks are looked through keeps them.
func TestANewBackupKeepsBlocks(t *testing.T) {
	s, _ := fixture(t, time.Hour)
	const volume, backup = "pvc-3f1c9a52-7d0e-4b6e-9c1b-2a8d5e6f7a01", "backup-3d4e5f60718293a4"
	d := &deletion.Deleter{Clock: &hurried{}, Store: hooked{s, func(folder string) {
		if strings.HasSuffix(folder, "/blocks/") {
			if err := s.Put(t.Context(), longhorn.BackupKey(volume, "backup-new"), []byte(`{"Name":"backup-new","CreatedTime":""}`)); err != nil {
				t.Error(err)
			}
		}
	}}}
	before := content(t, s)
	result, err := d.Backup(t.Context(), volume, backup)
	if err != nil || !strings.Contains(result.Kept, "come or gone") {
		t.Errorf("%+v, %v", result, err)
	}
	if after := content(t, s); len(after) != len(before) { // one has gone, one come
		t.Errorf("%d objects are left of %d", len(after), len(before))
	}
}

// Whatever request fails, what is needed stays, and another attempt ends what was begun.
func TestFailuresAnywhere(t *testing.T) {
	const volume, backup = "pvc-b8e04c7d-15a2-4f39-8d6c-90f1e2d3c4b5", "backup-8293a4b5c6d7e8f9"
	for at := 1; ; at++ {
		s, _ := fixture(t, time.Hour)
		before := content(t, s)
		f := &failing{Bucket: s, left: int64(at)}
		d := &deletion.Deleter{Clock: &hurried{}, Store: f}
		_, err := d.Backup(t.Context(), volume, backup)
		if f.left > 0 {
			if at < 10 {
				t.Errorf("it makes %d requests only", at)
			}
			return
		}
		f.left = 1 << 40
		if _, againErr := d.Backup(t.Context(), volume, backup); againErr != nil {
			t.Errorf("failure of request %d (%v), and then: %v", at, err, againErr)
		}
		after := content(t, s)
		for key, text := range after {
			if _, isLock := longhorn.LockOf(key); before[key] == "" && !isLock {
				t.Errorf("failure of request %d adds %s", at, key)
			}
			if !strings.Contains(key, "/backups/") || !strings.Contains(key, volume) {
				continue
			}
			if _, err := longhorn.ReadBackup(bytes.NewReader([]byte(text)), func(c longhorn.Checksum) error {
				if block := longhorn.BlockKey(longhorn.BlocksPrefix(volume), c); after[block] == "" {
					t.Errorf("failure of request %d: %s needs %s", at, key, block)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		described, err := longhorn.ReadVolume(strings.NewReader(after[longhorn.VolumeKey(volume)]))
		if err != nil || described.LastBackup != "backup-718293a4b5c6d7e8" {
			t.Errorf("failure of request %d leaves %+v, %v", at, described, err)
		}
	}
}

// failing fails one request.
type failing struct {
	*store.Bucket
	left int64
}

func (f *failing) fails() error {
	if atomic.AddInt64(&f.left, -1) == 0 {
		return store.ErrUnavailable
	}
	return nil
}

func (f *failing) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	if err := f.fails(); err != nil {
		return func(yield func(store.Object, error) bool) { yield(store.Object{}, err) }
	}
	return f.Bucket.List(ctx, folder, options)
}

func (f *failing) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	return f.Bucket.Get(ctx, key)
}

func (f *failing) Attributes(ctx context.Context, key string) (store.Object, error) {
	if err := f.fails(); err != nil {
		return store.Object{}, err
	}
	return f.Bucket.Attributes(ctx, key)
}

func (f *failing) Put(ctx context.Context, key string, content []byte) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Bucket.Put(ctx, key, content)
}

func (f *failing) Delete(ctx context.Context, object store.Object) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Bucket.Delete(ctx, object)
}

func (f *failing) Remove(ctx context.Context, key string) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Bucket.Remove(ctx, key)
}
