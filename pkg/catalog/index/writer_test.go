// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func cluster(t testing.TB, uid string) format.Cluster {
	t.Helper()
	key, err := format.NewSigningKey(bytes.NewReader(bytes.Repeat([]byte(uid[:1]), 32)))
	if err != nil {
		t.Fatal(err)
	}
	return format.Cluster{SystemNamespace: "holdfast", UID: uid, Key: key}
}

var begin = time.Unix(1_800_000_000, 0)

// signedBy is an entry of a backup that a cluster has made.
func signedBy(of format.Cluster, name string, volumes int) Entry {
	entry := many(1, volumes)[0]
	entry.StoreName = name
	entry.Content.Backup.Name = name
	entry.Content.Backup.Status.Origin = &v1alpha1.BackupOrigin{ClusterUID: of.UID, PublicKey: of.Key.PublicKey()}
	return entry
}

// believing gives all entries of those clusters that count, as one of them sees it.
func believing(t testing.TB, from store.Reader, own format.Cluster, trusted ...format.Cluster) map[string]Entry {
	t.Helper()
	judge := func(clusterUID, publicKey string) Standing {
		if clusterUID == own.UID && publicKey == own.Key.PublicKey() {
			return Own
		}
		for _, other := range trusted {
			if clusterUID == other.UID && publicKey == other.Key.PublicKey() {
				return Others
			}
		}
		return Ignored
	}
	index, err := Open(t.Context(), from, func(string) bool { return true }, judge)
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]Entry{}
	for entry := range index.Fetch(t.Context()).Entries(func(string) bool { return true }) {
		if _, twice := entries[entry.StoreName]; twice {
			t.Errorf("%s comes twice", entry.StoreName)
		}
		entry.Content.Volumes = entry.Content.Packed.Volumes()
		entries[entry.StoreName] = entry
	}
	return entries
}

func names(entries map[string]Entry) string {
	return strings.Join(slices.Sorted(maps.Keys(entries)), " ")
}

func writer(t testing.TB, to Store, of format.Cluster) *Writer {
	t.Helper()
	w := NewWriter(to, of, nil, clocktesting.NewFakePassiveClock(begin))
	if err := w.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *Writer) must(t testing.TB, entries ...Entry) {
	t.Helper()
	for _, entry := range entries {
		if err := w.Add(t.Context(), entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// once is a store that fails the test when an object is written or removed that object lock
// would keep, and that dies after so many requests.
type once struct {
	Store
	t       testing.TB
	written map[string]bool
	left    int
}

var errDead = errors.New("killed")

func (o *once) dies() error {
	if o.left--; o.left < 0 {
		return errDead
	}
	return nil
}

func (o *once) Put(context.Context, string, []byte) error {
	o.t.Error("an object may be replaced")
	return errDead
}

func (o *once) Create(ctx context.Context, key string, data []byte) error {
	if err := o.dies(); err != nil {
		return err
	}
	err := o.Store.Create(ctx, key, data)
	if err == nil && o.written[key] {
		o.t.Errorf("%s is written again", key)
	}
	o.written[key] = true
	return err
}

func (o *once) Delete(ctx context.Context, object store.Object) error {
	if err := o.dies(); err != nil {
		return err
	}
	return o.Store.Delete(ctx, object)
}

func (o *once) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := o.dies(); err != nil {
		return nil, err
	}
	return o.Store.Get(ctx, key)
}

func (o *once) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	if err := o.dies(); err != nil {
		return func(yield func(store.Object, error) bool) { yield(store.Object{}, err) }
	}
	return o.Store.List(ctx, folder, options)
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	here := cluster(t, "here")
	o := &once{Store: storetest.Memory(t), t: t, written: map[string]bool{}, left: 1 << 30}
	w := writer(t, o, here)
	var want []string
	for i := range 45 { // of which each head holds 20 at most besides its segments
		w.must(t, signedBy(here, fmt.Sprintf("b%03d", i), 1000))
		want = append(want, fmt.Sprintf("b%03d", i))
	}
	if got := names(believing(t, o, here)); got != strings.Join(want, " ") {
		t.Errorf("read %s", got)
	}
	if count := len(w.head.Segments); count > 2 {
		t.Errorf("%d segments of 45,000 rows", count)
	}
	// A restarted writer goes on with it, and the newest word on a name counts.
	w = writer(t, o, here)
	again := signedBy(here, "b005", 1)
	again.Content.Backup.UID = "another"
	w.must(t, again)
	if w.Len() != 45 || !w.Has("b044", "") {
		t.Errorf("%d entries", w.Len())
	}
	if got := believing(t, o, here)["b005"]; got.Content.Backup.UID != "another" || len(got.Content.Volumes) != 1 {
		t.Errorf("read of b005: %s with %d volumes", got.Content.Backup.UID, len(got.Content.Volumes))
	}
	if err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	heads := len(o.written)
	if err := w.Commit(t.Context()); err != nil || len(o.written) != heads {
		t.Errorf("a head was written of what did not change: %v", err)
	}
	// Most are deleted.
	if err := w.Sweep(t.Context(), func(name string) bool { return name >= "b040" }); err != nil {
		t.Fatal(err)
	}
	w.must(t)
	if got := names(believing(t, o, here)); got != strings.Join(want[40:], " ") {
		t.Errorf("read %s", got)
	}
}

// Whoever is killed leaves an index that says nothing wrong, and whoever comes next goes on.
func TestKilledAtEachStep(t *testing.T) {
	const rows = newestRows/2 + 1
	here := cluster(t, "here")
	for step := 0; ; step++ {
		bucket := storetest.Memory(t)
		writer(t, bucket, here).must(t, signedBy(here, "old", 2), signedBy(here, "gone", 2))
		o := &once{Store: bucket, t: t, written: map[string]bool{}, left: step}
		w := NewWriter(o, here, nil, clocktesting.NewFakePassiveClock(begin))
		err := func() error {
			if err := w.Load(t.Context()); err != nil {
				return err
			}
			for i := range 2 {
				if err := w.Add(t.Context(), signedBy(here, fmt.Sprintf("b%d", i), rows)); err != nil {
					return err
				}
				if err := w.Commit(t.Context()); err != nil {
					return err
				}
			}
			if err := w.Sweep(t.Context(), func(name string) bool { return name != "gone" }); err != nil {
				return err
			}
			return errors.Join(w.Commit(t.Context()), w.Clean(t.Context()))
		}()
		for name, entry := range believing(t, bucket, here) {
			if strings.HasPrefix(name, "b") && len(entry.Content.Volumes) != rows {
				t.Errorf("killed at %d: %s has %d volumes", step, name, len(entry.Content.Volumes))
			}
		}
		next := writer(t, bucket, here)
		next.must(t, signedBy(here, "b0", rows), signedBy(here, "b1", rows))
		if err := next.Sweep(t.Context(), func(name string) bool { return name != "gone" }); err != nil {
			t.Fatal(err)
		}
		next.must(t)
		all := believing(t, bucket, here)
		delete(all, "gone") // which may stay, since no listing has it
		if got := names(all); got != "b0 b1 old" {
			t.Errorf("killed at %d: then there are %s", step, got)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, errDead) {
			t.Fatal(err)
		}
	}
}

// An index says no more of a backup than who has signed it may say.
func TestWhoIsBelieved(t *testing.T) {
	here, there, stranger := cluster(t, "here"), cluster(t, "there"), cluster(t, "stranger")
	bucket := storetest.Memory(t)
	writer(t, bucket, here).must(t, signedBy(here, "a", 1), signedBy(stranger, "of-a-stranger", 1))
	lies := signedBy(here, "a", 9)
	unsigned := signedBy(there, "unsigned", 1)
	unsigned.Content.Backup.Status.Origin.Trust = v1alpha1.BackupTrustForeign
	odd := signedBy(there, "odd", 2)
	odd.Content.Volumes[1].ClaimName = "data@holdfast"
	writer(t, bucket, there).must(t, odd, lies, signedBy(here, "invented", 1), signedBy(there, "b", 1), signedBy(stranger, "c", 1), unsigned)
	writer(t, bucket, stranger).must(t, signedBy(here, "d", 1), signedBy(stranger, "e", 1))
	got := believing(t, bucket, here, there)
	if names(got) != "a b of-a-stranger" || len(got["a"].Content.Volumes) != 1 {
		t.Errorf("believed: %s, and %d volumes of a", names(got), len(got["a"].Content.Volumes))
	}
	// Another cluster's index under one's own name is none.
	data, err := read(t.Context(), bucket, latest(t, bucket, "stranger"), format.MaxIndexHeadBytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Create(t.Context(), format.IndexHeadKey("here", 1<<61), data); err != nil {
		t.Fatal(err)
	}
	if got := believing(t, bucket, here, there); names(got) != "a b of-a-stranger" {
		t.Errorf("believed: %s", names(got))
	}
	writer(t, bucket, here).must(t, signedBy(here, "f", 1))
	if got := believing(t, bucket, here, there); names(got) != "a b f of-a-stranger" {
		t.Errorf("believed after it: %s", names(got))
	}
}

func latest(t testing.TB, bucket store.Reader, clusterUID string) (key string) {
	t.Helper()
	for object, err := range bucket.List(t.Context(), format.IndexPrefix(clusterUID), store.ListOptions{Recursive: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, _, digest, ok := format.ParseIndexKey(object.Key); ok && digest == "" {
			key = object.Key
		}
	}
	return key
}

// Whatever becomes of an index, what is left of it says the truth.
func TestSpoilt(t *testing.T) {
	here := cluster(t, "here")
	for name, spoil := range map[string]func([]byte) []byte{
		"cut":     func(data []byte) []byte { return data[:len(data)/2] },
		"empty":   func([]byte) []byte { return nil },
		"changed": func(data []byte) []byte { data[len(data)-3] ^= 1; return data },
		"longer":  func(data []byte) []byte { return append(data, 0) },
		"gone":    nil,
	} {
		bucket := storetest.Memory(t)
		w := writer(t, bucket, here)
		w.must(t, signedBy(here, "a", newestRows), signedBy(here, "b", 1))
		w.must(t, signedBy(here, "c", 1))
		if len(w.head.Segments) == 0 {
			t.Fatal("there is no segment")
		}
		for _, key := range []string{format.IndexSegmentKey("here", w.head.Segments[0].SHA256), latest(t, bucket, "here")} {
			data, err := read(t.Context(), bucket, key, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			if spoil == nil {
				err = bucket.Remove(t.Context(), key)
			} else {
				err = bucket.Put(t.Context(), key, spoil(data))
			}
			if err != nil {
				t.Fatal(err)
			}
			for name, entry := range believing(t, bucket, here) {
				if want := map[string]int{"a": newestRows, "b": 1, "c": 1}[name]; len(entry.Content.Volumes) != want {
					t.Errorf("%s: %s has %d volumes", name, name, len(entry.Content.Volumes))
				}
			}
		}
		next := writer(t, bucket, here)
		next.must(t, signedBy(here, "d", 1))
		if got := believing(t, bucket, here); got["d"].StoreName == "" {
			t.Errorf("%s: nothing can be written after it: %s", name, names(got))
		}
	}
}

// What nobody names any more goes, after a while, and of one's own only.
func TestClean(t *testing.T) {
	here, there := cluster(t, "here"), cluster(t, "there")
	bucket := storetest.Memory(t)
	aged := &aging{Store: bucket, now: begin}
	w := writer(t, aged, here)
	writer(t, aged, there).must(t, signedBy(there, "theirs", 1))
	for i := range 5 {
		w.must(t, signedBy(here, fmt.Sprintf("b%d", i), 1))
	}
	if err := w.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if count := aged.count(t); count != 6 {
		t.Errorf("%d objects while readers may be at them", count)
	}
	aged.now = begin.Add(2 * time.Hour)
	w.must(t, signedBy(here, "last", 1))
	if err := w.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if count := aged.count(t); count != 3 { // with the head that was the newest one until now
		t.Errorf("%d objects after it", count)
	}
	if got := names(believing(t, bucket, here, there)); got != "b0 b1 b2 b3 b4 last theirs" {
		t.Errorf("there are %s", got)
	}
	// One who was passed by removes nothing.
	late := writer(t, aged, here)
	aged.now = begin.Add(4 * time.Hour)
	w.must(t, signedBy(here, "more", 1))
	late.changed = true
	late.number -= 2
	if err := late.Clean(t.Context()); err != nil || aged.count(t) != 4 {
		t.Errorf("%d objects: %v", aged.count(t), err)
	}
}

// What was named until a moment ago stays for a while, however old it is.
func TestCleanLeavesReadersTheirSegments(t *testing.T) {
	here := cluster(t, "here")
	aged := &aging{Store: storetest.Memory(t), now: begin}
	w := writer(t, aged, here)
	w.must(t, signedBy(here, "gone", newestRows+1))
	index, err := Open(t.Context(), aged, func(string) bool { return true }, func(string, string) Standing { return Own })
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Sweep(t.Context(), func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0} {
		aged.now = aged.now.Add(2 * time.Hour)
		w.must(t, signedBy(here, fmt.Sprint("b", i), 1))
		if err := w.Clean(t.Context()); err != nil {
			t.Fatal(err)
		}
		count := 0
		for range index.Fetch(t.Context()).Entries(func(string) bool { return true }) {
			count++
		}
		if count != want {
			t.Errorf("%d hours after it was named last, a reader finds %d", 2*i, count)
		}
	}
}

// Two leaders that do not know of each other write one index, and one of them is paused at any
// request while the other one does all of its work, removal included. Nothing is written twice,
// whoever reads finds nothing that was not added, and the next writer puts back what was lost.
func TestTwoWriters(t *testing.T) {
	here := cluster(t, "here")
	added := map[string]Entry{}
	for name, rows := range map[string]int{"old": 2, "gone": 2, "a0": 1, "b0": 1, "a1": newestRows, "b1": 1} { // so that the one that is paused writes a segment
		added[name] = signedBy(here, name, rows)
	}
	later := func(by time.Duration) *clocktesting.FakePassiveClock {
		return clocktesting.NewFakePassiveClock(begin.Add(by))
	}
	work := func(w *Writer, names ...string) error {
		w.Grace = 0
		if err := w.Load(t.Context()); err != nil {
			return err
		}
		for _, name := range names {
			if err := w.Add(t.Context(), added[name]); err != nil {
				return err
			}
			if err := w.Commit(t.Context()); err != nil {
				return err
			}
		}
		if err := w.Sweep(t.Context(), func(name string) bool { return name != "gone" }); err != nil {
			return err
		}
		return errors.Join(w.Commit(t.Context()), w.Clean(t.Context()))
	}
	for step, paused := 0, true; paused; step++ {
		o := &once{Store: storetest.Memory(t), t: t, written: map[string]bool{}, left: 1 << 30}
		writer(t, o, here).must(t, added["old"], added["gone"])
		check := func(when string) {
			for name, entry := range believing(t, o, here) {
				if want, ok := added[name]; !ok || len(entry.Content.Volumes) != len(want.Content.Volumes) {
					t.Errorf("paused at %d, %s: %s has %d volumes", step, when, name, len(entry.Content.Volumes))
				}
			}
		}
		paused = false
		clock := later(time.Minute)
		p := &pausing{Store: o, left: step, pause: func() {
			paused = true
			if err := work(NewWriter(o, here, nil, later(2*time.Minute)), "b0", "b1"); err != nil {
				t.Fatal(err)
			}
			check("while it is")
			clock.SetTime(begin.Add(3 * time.Minute))
		}}
		if err := work(NewWriter(p, here, nil, clock), "a0", "a1"); err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Errorf("paused at %d: %v", step, err)
		}
		check("after it")
		next := NewWriter(o, here, nil, later(4*time.Minute))
		if err := next.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, entry := range added {
			if name != "gone" && !next.Has(name, "") {
				next.must(t, entry)
			}
		}
		next.must(t)
		if got := names(believing(t, o, here)); strings.Replace(got, "gone ", "", 1) != "a0 a1 b0 b1 old" {
			t.Errorf("paused at %d, and written by the next: %s", step, got)
		}
	}
}

// pausing is a store that pauses before one of its requests.
type pausing struct {
	Store
	left  int
	pause func()
}

func (p *pausing) request() {
	if p.left--; p.left == -1 {
		p.pause()
	}
}

func (p *pausing) Create(ctx context.Context, key string, data []byte) error {
	p.request()
	return p.Store.Create(ctx, key, data)
}

func (p *pausing) Delete(ctx context.Context, object store.Object) error {
	p.request()
	return p.Store.Delete(ctx, object)
}

func (p *pausing) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	p.request()
	return p.Store.Get(ctx, key)
}

func (p *pausing) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	p.request()
	return p.Store.List(ctx, folder, options)
}

// aging is a store whose clock is now.
type aging struct {
	Store
	now     time.Time
	written map[string]time.Time
}

func (a *aging) Create(ctx context.Context, key string, data []byte) error {
	if a.written == nil {
		a.written = map[string]time.Time{}
	}
	a.written[key] = a.now
	return a.Store.Create(ctx, key, data)
}

func (a *aging) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for object, err := range a.Store.List(ctx, folder, options) {
			object.ModTime = a.written[object.Key]
			if !yield(object, err) {
				return
			}
		}
	}
}

func (a *aging) count(t testing.TB) (count int) {
	t.Helper()
	for _, err := range a.List(t.Context(), format.IndexesPrefix, store.ListOptions{Recursive: true}) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	return count
}

// Nothing is kept that is to be looked at again.
func TestIndexable(t *testing.T) {
	good := signedBy(cluster(t, "here"), "a", 1).Content
	if !Indexable(&good) || !Indexable(&catalog.Content{}) {
		t.Error("a good one is not kept")
	}
	bad := []catalog.Content{good, good, good}
	bad[0].Replaced, bad[1].VolumesError = "x", "x"
	bad[2].Backup = good.Backup.DeepCopy()
	bad[2].Backup.Status.Phase = v1alpha1.BackupPhaseUnreadable
	for i := range bad {
		if Indexable(&bad[i]) {
			t.Errorf("bad[%d] is kept", i)
		}
	}
}
