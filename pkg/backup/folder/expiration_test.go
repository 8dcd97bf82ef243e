// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder_test

import (
	"bytes"
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// kept is the uid of a backup that has changes: these are of real uids only.
const kept = types.UID("0c7d5b1e-2f0a-4a57-9d0e-6f6b1a2f3c4d")

// us has made the backup; older is us with another key, and them is another cluster.
var (
	us    = format.Cluster{SystemNamespace: system, UID: "us", Key: signingKey('u')}
	older = format.Cluster{SystemNamespace: system, UID: "us", Key: signingKey('o')}
	them  = format.Cluster{SystemNamespace: system, UID: "them", Key: signingKey('t')}
)

func signingKey(seed byte) *format.SigningKey {
	key, err := format.ParseSigningKey(bytes.Repeat([]byte{seed}, 32))
	if err != nil {
		panic(err)
	}
	return key
}

// newKept is the folder of the backup "a", which us has made.
func newKept(t *testing.T) *scene {
	s := newScene(t, storetest.Memory(t))
	s.deletion.UID = kept
	s.storeBy(us, kept)
	return s
}

// change puts a change that a cluster has signed beside the folder.
func (s *scene) change(number int64, requester string, by format.Cluster) {
	s.Helper()
	content, err := format.EncodeExpiration(format.Expiration{StoreName: "a", UID: kept, Number: number, Requester: requester, Timestamp: instant}, by)
	must(s, err)
	must(s, s.Put(s.Context(), format.ExpirationKey("a", kept, number), content))
}

// revoke puts what takes the place of the copies of attempts.
func (s *scene) revoke(attempts ...int) {
	s.Helper()
	for _, attempt := range attempts {
		content, err := format.EncodeRevocation("a", kept)
		must(s, err)
		must(s, s.Put(s.Context(), format.AttemptKey("a", attempt), content))
	}
}

func (s *scene) find() *v1alpha1.Backup {
	s.Helper()
	backup, err := s.deletion.Find(s.Context())
	must(s, err)
	if backup == nil {
		s.Fatal("the backup is not found")
	}
	return backup
}

// TestBelievedChanges: a change counts if the cluster that has made the backup has made it, and
// else it is as if it were not there.
func TestBelievedChanges(t *testing.T) {
	forged := func(s *scene) {
		s.put("metadata", strings.Replace(string(s.metadata()), `"namespace":"velero"`, `"namespace":"other"`, 1))
	}
	for name, c := range map[string]struct {
		prepare func(s *scene)
		by      format.Cluster
		reader  string
		keys    []string
		want    bool
	}{
		"by the key of the backup":             {nil, us, "them", nil, true},
		"by another key of ours":               {nil, older, "us", []string{older.Key.PublicKey()}, true},
		"by a key that is not ours any more":   {nil, older, "us", []string{us.Key.PublicKey()}, false},
		"by a key of the reader's, elsewhere":  {nil, older, "them", []string{older.Key.PublicKey()}, false},
		"by another cluster":                   {nil, them, "us", []string{us.Key.PublicKey()}, false},
		"by another cluster, which reads it":   {nil, them, "them", []string{them.Key.PublicKey()}, false},
		"in another cluster's name, by us":     {nil, format.Cluster{UID: "them", Key: us.Key}, "us", []string{us.Key.PublicKey()}, false},
		"in our name, by another cluster":      {nil, format.Cluster{UID: "us", Key: them.Key}, "us", []string{us.Key.PublicKey()}, false},
		"of a backup that nobody has signed":   {func(s *scene) { s.storeBy(format.Cluster{SystemNamespace: system, UID: "us"}, kept) }, us, "us", []string{us.Key.PublicKey()}, false},
		"of a backup that was changed by hand": {forged, us, "us", []string{us.Key.PublicKey()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newKept(t)
			if c.prepare != nil {
				c.prepare(s)
			}
			s.change(7, "jane", c.by)
			newest, last, err := s.deletion.NewestExpiration(t.Context(), s.find(), c.reader, c.keys)
			if err != nil || last != 7 || (newest != nil) != c.want || newest != nil && newest.Requester != "jane" {
				t.Errorf("%+v, %d, %v", newest, last, err)
			}
		})
	}
	s := newKept(t)
	s.change(1, "jane", us)
	backup := s.find()
	backup.Status.Origin = nil
	if newest, _, err := s.deletion.NewestExpiration(t.Context(), backup, "us", nil); newest != nil || err != nil {
		t.Errorf("without an origin: %+v, %v", newest, err)
	}
}

// TestNewestChange: the last that is believed counts, of this backup alone; and what can't be
// read now is no reason to go by an earlier one.
func TestNewestChange(t *testing.T) {
	newest := format.ExpirationKey("a", kept, 10)
	for name, c := range map[string]struct {
		prepare func(s *scene)
		want    string
		last    int64
		err     error
	}{
		"in the order of the numbers": {func(*scene) {}, "ten", 10, nil},
		"after one that is not ours":  {func(s *scene) { s.change(11, "eleven", them) }, "ten", 11, nil},
		"after one that is none": {func(s *scene) {
			must(s, s.Put(s.Context(), format.ExpirationKey("a", kept, 12), []byte("{}")))
		}, "ten", 12, nil},
		"after one that is too long": {func(s *scene) {
			must(s, s.Put(s.Context(), format.ExpirationKey("a", kept, 12), bytes.Repeat([]byte(" "), format.MaxExpirationBytes+1)))
		}, "ten", 12, nil},
		"beside those of others": {func(s *scene) {
			for _, key := range []string{
				format.ExpirationKey("a", "1"+kept[1:], 20), format.ExpirationKey("a.b", kept, 20), format.ExpirationKey("a.expiration-"+string(kept)+"-4.json", kept, 20),
			} {
				must(s, s.Put(s.Context(), key, []byte("{}")))
			}
		}, "ten", 10, nil},
		"which goes meanwhile": {func(s *scene) {
			s.Inject(storetest.Fault{Operation: storetest.Get, Key: newest, Err: store.ErrNotFound})
		}, "nine", 10, nil},
		"which is denied": {func(s *scene) {
			s.Inject(storetest.Fault{Operation: storetest.Get, Key: newest, Err: store.ErrDenied})
		}, "", 0, store.ErrDenied},
		"of a list that is denied": {func(s *scene) { s.Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrDenied}) }, "", 0, store.ErrDenied},
		"of a list that breaks off": {func(s *scene) {
			s.Inject(storetest.Fault{Operation: storetest.List, Truncate: true, After: 1, Err: store.ErrUnavailable})
		}, "", 0, store.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := newKept(t)
			s.change(9, "nine", us)
			s.change(10, "ten", us)
			backup := s.find()
			c.prepare(s)
			got, last, err := s.deletion.NewestExpiration(t.Context(), backup, "us", nil)
			requester := ""
			if got != nil {
				requester = got.Requester
			}
			if requester != c.want || last != c.last || !errors.Is(err, c.err) {
				t.Errorf("%q, %d, %v", requester, last, err)
			}
		})
	}
}

// creator may do something before an object is created.
type creator struct {
	*scene
	before func(key string) error
}

func (c creator) Create(ctx context.Context, key string, content []byte) error {
	if c.before != nil {
		if err := c.before(key); err != nil {
			return err
		}
	}
	return c.Faulty.Create(ctx, key, content)
}

// TestChange: each change is made of how things stand, takes the next number, and replaces none.
func TestChange(t *testing.T) {
	s := newKept(t)
	ctx := t.Context()
	ask := func(by format.Cluster, before func(string) error, next func(*format.Expiration) (bool, error)) (*format.Expiration, error) {
		return s.deletion.Change(ctx, creator{s, before}, by, nil, func(backup *v1alpha1.Backup, stands *format.Expiration) (bool, error) {
			if backup.UID != kept {
				t.Errorf("it is asked of %s", backup.UID)
			}
			return next(stands)
		})
	}
	by := func(requester string) func(*format.Expiration) (bool, error) {
		return func(stands *format.Expiration) (bool, error) {
			stands.Requester = requester
			return true, nil
		}
	}
	stored := func(want string, number int64) {
		t.Helper()
		got, last, err := s.deletion.NewestExpiration(ctx, s.find(), "us", nil)
		if err != nil || got == nil || got.Requester != want || got.Number != number || last < number {
			t.Errorf("%+v counts, up to %d, %v", got, last, err)
		}
	}
	got, err := ask(us, nil, func(stands *format.Expiration) (bool, error) {
		if stands.StoreName != "a" || stands.UID != kept || !stands.Expiration.Equal(&instant) || stands.Number != 0 || stands.Hold != nil {
			t.Errorf("it stands at %+v", stands)
		}
		return by("jane")(stands)
	})
	if err != nil || got.Number != 1 || got.Requester != "jane" {
		t.Errorf("%+v, %v", got, err)
	}
	stored("jane", 1)
	if got, err = ask(us, nil, func(stands *format.Expiration) (bool, error) {
		return false, nil
	}); err != nil || got == nil || got.Requester != "jane" {
		t.Errorf("%+v, %v", got, err)
	}
	errNo := errors.New("no")
	if got, err := ask(us, nil, func(*format.Expiration) (bool, error) { return true, errNo }); !errors.Is(err, errNo) || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
	stored("jane", 1)

	// Another one takes the number: this one is asked again, of what that one has made.
	var saw []string
	got, err = ask(us, func(key string) error {
		if key == format.ExpirationKey("a", kept, 2) {
			s.change(2, "joe", us)
		}
		return nil
	}, func(stands *format.Expiration) (bool, error) {
		saw = append(saw, stands.Requester)
		return by("jim")(stands)
	})
	if err != nil || got.Number != 3 || !slices.Equal(saw, []string{"jane", "joe"}) {
		t.Errorf("%+v, %v, after %q", got, err, saw)
	}
	stored("jim", 3)
	asked := 0
	if got, err := ask(us, func(string) error { return store.ErrExists }, func(stands *format.Expiration) (bool, error) {
		asked++
		return by("jack")(stands)
	}); err == nil || got != nil || asked < 2 || asked > 10 {
		t.Errorf("%+v, %v, asked %d times", got, err, asked)
	}
	if got, err := ask(us, func(string) error { return store.ErrDenied }, by("jack")); !errors.Is(err, store.ErrDenied) || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ask(format.Cluster{UID: "us"}, nil, by("jack")); err == nil || got != nil {
		t.Errorf("without a key: %+v", got)
	}
	stored("jim", 3)

	s.Inject(storetest.Fault{Operation: storetest.Get, Key: format.ExpirationKey("a", kept, 3), Err: store.ErrDenied})
	if got, err := ask(us, nil, by("jack")); !errors.Is(err, store.ErrDenied) || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
	s.fail("metadata", storetest.Fault{Err: store.ErrDenied})
	if got, err := ask(us, nil, by("jack")); !errors.Is(err, store.ErrDenied) || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
	s.Inject()
	s.change(format.MaxExpirations-1, "jill", us)
	if got, err := ask(us, nil, by("jane")); err != nil || got.Number != format.MaxExpirations {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ask(us, nil, by("joe")); !errors.Is(err, folder.ErrTooMany) || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
	s.remove("metadata")
	s.remove("copy")
	if got, err := ask(us, nil, by("joe")); !errors.Is(err, folder.ErrGone) || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestFind: the backup is that with its uid, in the metadata or beneath another writer's, and
// what can't be read is not missing.
func TestFind(t *testing.T) {
	unfinished := func(s *scene) {
		s.put("metadata", `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"of-velero"},"status":{"phase":"InProgress"}}`)
	}
	for name, c := range map[string]struct {
		prepare     func(s *scene)
		found, fail bool
	}{
		"it is there":                          {func(s *scene) { s.remove("copy") }, true, false},
		"beneath Velero's":                     {func(s *scene) { s.replace() }, true, false},
		"beneath what Velero has not finished": {unfinished, true, false},
		"beneath Velero's, by a third attempt": {func(s *scene) {
			s.put(path.Base(format.AttemptKey("a", 3)), string(s.metadata()))
			s.revoke(1, 2)
			s.replace()
		}, true, false},
		"beneath Velero's, and each attempt is revoked": {func(s *scene) {
			for attempt := range format.MaxAttemptKeys {
				s.revoke(attempt + 1)
			}
			s.replace()
		}, false, false},
		"it is gone":                            {func(s *scene) { s.remove("metadata"); s.remove("copy") }, false, false},
		"its copy is left":                      {func(s *scene) { s.remove("metadata") }, true, false},
		"another one":                           {func(s *scene) { s.storeBy(us, "another") }, false, false},
		"metadata that is denied":               {func(s *scene) { s.fail("metadata", storetest.Fault{Err: store.ErrDenied}) }, false, true},
		"metadata that can't be read":           {func(s *scene) { s.put("metadata", "{") }, false, true},
		"a copy that is denied beneath another": {func(s *scene) { s.replace(); s.fail("copy", storetest.Fault{Err: store.ErrDenied}) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newKept(t)
			c.prepare(s)
			backup, err := s.deletion.Find(t.Context())
			if (backup != nil) != c.found || (err != nil) != c.fail || backup != nil && backup.UID != kept {
				t.Errorf("%v, %v", backup, err)
			}
		})
	}
}

// The changes go with the backup, and none but its own; and none goes after its deletion is over.
func TestChangesAreRemoved(t *testing.T) {
	s := newKept(t)
	for number := range int64(3) {
		s.change(number+1, "jane", us)
	}
	others := format.ExpirationKey("a", "1"+kept[1:], 1)
	must(t, s.Put(t.Context(), others, []byte("{}")))
	left := func() (n int) {
		t.Helper()
		objects, err := s.deletion.Expirations(t.Context())
		must(t, err)
		return len(objects)
	}
	errOver := errors.New("it is over")
	asked := 0
	if err := s.deletion.RemoveExpirations(t.Context(), s, func() error {
		if asked++; asked > 1 {
			return errOver
		}
		return nil
	}); !errors.Is(err, errOver) || left() != 2 {
		t.Errorf("%v, and %d are left", err, left())
	}
	present := func() error { return nil }
	s.Inject(storetest.Fault{Operation: storetest.Delete, Err: store.ErrDenied})
	if err := s.deletion.RemoveExpirations(t.Context(), s, present); !errors.Is(err, store.ErrDenied) || left() != 2 {
		t.Errorf("%v, and %d are left", err, left())
	}
	s.Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrDenied})
	if err := s.deletion.RemoveExpirations(t.Context(), s, present); !errors.Is(err, store.ErrDenied) {
		t.Error(err)
	}
	s.Inject()
	must(t, s.deletion.RemoveExpirations(t.Context(), s, present))
	if left() != 0 {
		t.Errorf("%d are left", left())
	}
	_, err := s.Attributes(t.Context(), others)
	must(t, err)
}

// TestVolumes: the list is believed if it is the one that was stored, and whoever can't read it
// knows nothing of it.
func TestVolumes(t *testing.T) {
	one, two, three := volume("shop", format.UploaderKopia, "1", kept), volume("shop", format.UploaderKopia, "2", kept), volume("web", format.UploaderKopia, "", kept)
	errOdd := errors.New("something else")
	for name, c := range map[string]struct {
		prepare func(s *scene)
		err     error
		unknown bool // it is not said that there is no list
	}{
		"as it was stored":           {func(*scene) {}, nil, false},
		"missing":                    {func(s *scene) { s.remove("list") }, folder.ErrNoList, false},
		"another one":                {func(s *scene) { s.put("list", compressed(s, one)) }, folder.ErrNoList, false},
		"one with more behind it":    {func(s *scene) { s.put("list", compressed(s, one, two, three)+"x") }, folder.ErrNoList, false},
		"no list":                    {func(s *scene) { s.put("list", "<html>") }, folder.ErrNoList, false},
		"denied":                     {func(s *scene) { s.fail("list", storetest.Fault{Err: store.ErrDenied}) }, store.ErrDenied, true},
		"away":                       {func(s *scene) { s.fail("list", storetest.Fault{Err: store.ErrUnavailable}) }, store.ErrUnavailable, true},
		"broken in another way":      {func(s *scene) { s.fail("list", storetest.Fault{Err: errOdd}) }, errOdd, true},
		"broken":                     {func(s *scene) { s.fail("list", storetest.Fault{Err: context.DeadlineExceeded}) }, context.DeadlineExceeded, true},
		"it breaks off":              {func(s *scene) { s.fail("list", storetest.Fault{Truncate: true, After: 30, Err: store.ErrUnavailable}) }, store.ErrUnavailable, true},
		"it is denied in the middle": {func(s *scene) { s.fail("list", storetest.Fault{Truncate: true, After: 30, Err: store.ErrDenied}) }, store.ErrDenied, true},
		"it is not waited for": {func(s *scene) {
			s.fail("list", storetest.Fault{Truncate: true, After: 30, Err: context.DeadlineExceeded})
		}, context.DeadlineExceeded, true},
		"half of it, of an earlier write": {func(s *scene) { s.fail("list", storetest.Fault{Truncate: true, After: 30}) }, folder.ErrNoList, false},
		"at the second time": {func(s *scene) {
			s.fail("list", storetest.Fault{Truncate: true, After: 120, Err: store.ErrUnavailable})
			s.deletion.Try = func(ctx context.Context, request func(context.Context) error) error {
				if err := request(ctx); !errors.Is(err, store.ErrUnavailable) {
					return errors.New("the first time does not fail")
				}
				s.Inject()
				return request(ctx)
			}
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newKept(t)
			s.storeBy(us, kept, one, two, three)
			backup := s.find()
			c.prepare(s)
			got, err := s.deletion.Volumes(t.Context(), backup)
			if !errors.Is(err, c.err) || c.unknown && errors.Is(err, folder.ErrNoList) {
				t.Errorf("the error is %v", err)
			}
			name := one.VolumeName()
			if c.err == nil && (len(got) != 3 || got[format.VolumeID{Namespace: "shop", Name: name}] != "1" || got[format.VolumeID{Namespace: "shop", Name: name, Repeat: 1}] != "2") {
				t.Errorf("the volumes are %v", got)
			}
			if c.err != nil && got != nil {
				t.Errorf("with an error the volumes are %v", got)
			}
		})
	}
	s := newKept(t)
	backup := s.find()
	delete(backup.Annotations, format.AnnotationContents)
	if got, err := s.deletion.Volumes(t.Context(), backup); got != nil || err != nil {
		t.Errorf("without a list: %v, %v", got, err)
	}
	backup.Annotations = map[string]string{format.AnnotationContents: "7"}
	if got, err := s.deletion.Volumes(t.Context(), backup); got != nil || !errors.Is(err, folder.ErrNoList) {
		t.Errorf("with contents that are none: %v, %v", got, err)
	}
}

func compressed(t testing.TB, volumes ...format.PodVolumeBackup) string {
	t.Helper()
	var list bytes.Buffer
	must(t, format.WritePodVolumeBackups(&list, volumes))
	return list.String()
}

func TestDeletedVolumes(t *testing.T) {
	s := newKept(t)
	deleted := []format.DeletedVolume{{VolumeID: format.VolumeID{Namespace: "shop", Name: "data"}, SnapshotID: "1", Timestamp: instant}}
	read := func(want int, wantErr error) {
		t.Helper()
		got, err := s.deletion.DeletedVolumes(t.Context(), "us", nil)
		if len(got) != want || !errors.Is(err, wantErr) || want > 0 && got[0].VolumeID != deleted[0].VolumeID {
			t.Errorf("%v, %v", got, err)
		}
	}
	read(0, nil)
	content, err := format.EncodeExpiration(format.Expiration{StoreName: "a", UID: kept, Number: 1, Deleted: deleted, Timestamp: instant}, us)
	must(t, err)
	must(t, s.Put(t.Context(), format.ExpirationKey("a", kept, 1), content))
	read(1, nil)
	s.fail("metadata", storetest.Fault{Err: store.ErrDenied})
	read(0, store.ErrDenied)
	s.Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrUnavailable})
	read(0, store.ErrUnavailable)
	s.Inject()
	s.remove("metadata")
	s.remove("copy")
	read(0, nil)
}
