// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const system = "holdfast"

var instant = metav1.Unix(1_700_000_000, 0)

// deletion is that of a backup, whose record stays.
func deletion(target storetest.Store, storeName string, uid types.UID) *folder.Deletion {
	return &folder.Deletion{
		Folder: folder.Folder{
			Place: format.Place{StoreName: storeName, Location: "default"},
			Clock: clocktesting.NewFakePassiveClock(instant.Time),
			UID:   uid,
			Store: target,
			Try:   func(ctx context.Context, request func(context.Context) error) error { return request(ctx) },
		},
		Remover: target,
		Present: func() error { return nil },
	}
}

const mine = types.UID("mine")

// scene is the folder of the backup "a", and the deletion of the backup with the uid mine.
type scene struct {
	*testing.T
	*storetest.Faulty
	deletion *folder.Deletion
	removed  []string
	// then, if not nil, is called after each removal.
	then func(what string)
}

// Delete implements store.Remover.
func (s *scene) Delete(ctx context.Context, object store.Object) error {
	err := s.Faulty.Delete(ctx, object)
	if err == nil {
		what := named(object.Key)
		if s.removed = append(s.removed, what); s.then != nil {
			s.then(what)
		}
	}
	return err
}

var keys = map[string]string{
	"owner": format.OwnerKey("a"), "metadata": format.MetadataKey("a"), "copy": format.CopyKey("a"),
	"tarball": format.TarballKey("a"), "results": format.ResultsKey("a"), "list": format.PodVolumeBackupsKey("a"),
}

func named(key string) string {
	for name := range keys {
		if keys[name] == key {
			return name
		}
	}
	return path.Base(key)
}

func newScene(t *testing.T, target storetest.Store) *scene {
	s := &scene{T: t, Faulty: storetest.NewFaulty(target, clocktesting.NewFakeClock(instant.Time))}
	s.deletion = deletion(s, "a", mine)
	return s
}

func (s *scene) put(what, content string) {
	s.Helper()
	must(s, s.Put(s.Context(), cmp.Or(keys[what], format.BackupPrefix("a")+what), []byte(content)))
}

func (s *scene) remove(what string) {
	s.Helper()
	object, err := s.Attributes(s.Context(), keys[what])
	must(s, err)
	must(s, s.Faulty.Delete(s.Context(), object))
}

// fail lets the reading of something fail.
func (s *scene) fail(what string, fault storetest.Fault) {
	fault.Operation, fault.Key = storetest.Get, keys[what]
	s.Inject(fault)
}

// store stores a backup as the executor does.
func (s *scene) store(uid types.UID, volumes ...format.PodVolumeBackup) {
	s.Helper()
	s.storeBy(format.Cluster{SystemNamespace: system}, uid, volumes...)
}

func (s *scene) storeBy(cluster format.Cluster, uid types.UID, volumes ...format.PodVolumeBackup) {
	s.Helper()
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "a", UID: uid, CreationTimestamp: instant},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, CompletionTimestamp: &instant, Expiration: &instant},
	}
	s.own(uid)
	var list bytes.Buffer
	must(s, format.WritePodVolumeBackups(&list, volumes))
	contents := format.Contents{}
	for what, content := range map[string]string{"tarball": "objects", "results": "results", "list": list.String()} {
		s.put(what, content)
		contents.Set(keys[what], format.NewContent([]byte(content)))
	}
	metadata, err := format.EncodeBackup(backup, contents, cluster)
	must(s, err)
	s.put("metadata", string(metadata))
	s.put("copy", string(metadata))
}

func (s *scene) own(uid types.UID) {
	s.Helper()
	owner, err := format.EncodeOwner(format.Owner{UID: uid})
	must(s, err)
	s.put("owner", string(owner))
}

// replace puts Velero's metadata in the place of ours, with a file of its own.
func (s *scene) replace() {
	s.Helper()
	s.put("metadata", `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"of-velero"},"status":{"phase":"Completed"}}`)
	s.put("velero.json", "Velero's")
}

// volume is one with a snapshot, or without.
func volume(namespace, uploader, snapshot string, of types.UID) format.PodVolumeBackup {
	v := format.PodVolumeBackup{Spec: format.PodVolumeBackupSpec{UploaderType: uploader}, Status: format.PodVolumeBackupStatus{SnapshotID: snapshot}}
	v.Spec.Pod.Namespace = namespace
	if of != "" {
		v.Labels = map[string]string{"velero.io/backup-uid": string(of)}
	}
	return v
}

// TestDeletion: what is the backup's goes, in order, and nothing else; what is not certain
// stays, all of it; and what can't be asked for is neither.
func TestDeletion(t *testing.T) {
	const (
		whole   = "metadata results tarball copy list owner"
		beneath = "results tarball list owner copy"
	)
	errGone, errBroken := errors.New("the record is gone"), errors.New("the store is broken")
	one := volume("app", format.UploaderKopia, "one", mine)
	stored := func(change func(s *scene)) func(s *scene) {
		return func(s *scene) {
			s.store(mine, one)
			change(s)
		}
	}
	replaced := func(change func(s *scene)) func(s *scene) {
		return stored(func(s *scene) {
			s.replace()
			change(s)
		})
	}
	for name, test := range map[string]struct {
		prepare   func(s *scene)
		removed   string
		snapshots map[string][]string
		err       error  // that it is
		refused   string // what a Refusal says
	}{
		"nothing": {prepare: func(*scene) {}, snapshots: map[string][]string{}},
		"all":     {prepare: stored(func(*scene) {}), removed: whole, snapshots: map[string][]string{"app": {"one"}}},
		"what an earlier attempt has left": {prepare: stored(func(s *scene) { s.remove("metadata") }),
			removed: "results tarball copy list owner", snapshots: map[string][]string{"app": {"one"}}},
		"what lies in nobody's folder": {prepare: stored(func(s *scene) { s.remove("owner") }),
			removed: "metadata results tarball copy list", snapshots: map[string][]string{"app": {"one"}}},
		"late metadata in another's folder": {prepare: stored(func(s *scene) { s.own("another") }), removed: "metadata"},

		"the snapshots of the list": {prepare: func(s *scene) {
			s.store(mine, one, volume("app", format.UploaderKopia, "", ""), volume("app", format.UploaderKopia, "two", ""),
				volume("lost", format.UploaderKopia, "", mine), volume("other", "restic", "three", mine), volume("none", "restic", "", mine))
		}, removed: whole, snapshots: map[string][]string{"app": {"one", "two"}, "lost": nil}},
		"no list": {prepare: stored(func(s *scene) { s.remove("list") }), removed: "metadata results tarball copy owner", snapshots: map[string][]string{}},
		"another's list": {prepare: func(s *scene) { s.store(mine, volume("app", format.UploaderKopia, "one", "another")) },
			err: folder.ErrOther, refused: "lists volumes of another backup, with the uid another instead of mine"},
		"a bad list":                {prepare: stored(func(s *scene) { s.put("list", "not gzip") }), refused: "remove that object by hand"},
		"half a list":               {prepare: stored(func(s *scene) { s.fail("list", storetest.Fault{Truncate: true, After: 30}) }), refused: "remove that object by hand"},
		"a list that breaks off":    {prepare: stored(func(s *scene) { s.fail("list", storetest.Fault{Truncate: true, After: 30, Err: store.ErrUnavailable}) }), err: store.ErrUnavailable},
		"a list that is shut":       {prepare: stored(func(s *scene) { s.fail("list", storetest.Fault{Truncate: true, After: 30, Err: store.ErrDenied}) }), err: store.ErrDenied},
		"a list that is not waited": {prepare: stored(func(s *scene) { s.fail("list", storetest.Fault{Truncate: true, After: 30, Err: context.Canceled}) }), err: context.Canceled},
		"a list that is denied":     {prepare: stored(func(s *scene) { s.fail("list", storetest.Fault{Err: store.ErrDenied}) }), err: store.ErrDenied},
		"a list that fails":         {prepare: stored(func(s *scene) { s.fail("list", storetest.Fault{Err: errBroken}) }), err: errBroken},

		"another's": {prepare: func(s *scene) { s.store("another") }, err: folder.ErrOther, refused: "with the uid another instead of mine"},
		"another's that is being written": {prepare: func(s *scene) {
			s.own("another")
			s.put("tarball", "its objects")
		}, err: folder.ErrOther, refused: "with the uid another instead of mine"},
		"bad metadata":              {prepare: stored(func(s *scene) { s.put("metadata", "{") }), refused: "it is not certain that " + keys["metadata"]},
		"metadata that is too long": {prepare: stored(func(s *scene) { s.put("metadata", strings.Repeat(" ", format.MaxMetadataBytes+1)) }), refused: "has more than"},
		"metadata that is denied":   {prepare: stored(func(s *scene) { s.fail("metadata", storetest.Fault{Err: store.ErrDenied}) }), err: store.ErrDenied},
		"metadata that breaks off": {prepare: stored(func(s *scene) {
			s.fail("metadata", storetest.Fault{Truncate: true, After: 30, Err: store.ErrUnavailable})
		}), err: store.ErrUnavailable},
		"metadata that shows late": {prepare: stored(func(s *scene) { s.Inject(storetest.Fault{Operation: storetest.Attributes, Err: store.ErrNotFound}) }),
			removed: "results tarball copy metadata list owner", snapshots: map[string][]string{"app": {"one"}}},
		"metadata that goes": {prepare: stored(func(s *scene) { s.fail("metadata", storetest.Fault{Err: store.ErrNotFound}) }),
			removed: "results tarball copy metadata list owner", snapshots: map[string][]string{"app": {"one"}}},
		"metadata that is away": {prepare: stored(func(s *scene) { s.Inject(storetest.Fault{Operation: storetest.Attributes, Err: store.ErrUnavailable}) }), err: store.ErrUnavailable},
		"a bad owner":           {prepare: stored(func(s *scene) { s.put("owner", "<html>") }), refused: "it is not certain whose " + keys["owner"]},
		"an owner that is away": {prepare: stored(func(s *scene) { s.fail("owner", storetest.Fault{Err: store.ErrUnavailable}) }), err: store.ErrUnavailable},

		// Beneath the metadata of another writer.
		"all but Velero's": {prepare: replaced(func(*scene) {}), removed: beneath, snapshots: map[string][]string{"app": {"one"}}},
		"all but Velero's in nobody's folder": {prepare: replaced(func(s *scene) { s.remove("owner") }),
			removed: "results tarball list copy", snapshots: map[string][]string{"app": {"one"}}},
		"all but what becomes Velero's": {prepare: replaced(func(s *scene) {
			s.put("empty.json", "")
			s.then = func(string) { s.put("tarball", "longer than ours") }
		}), removed: "results list owner copy", snapshots: map[string][]string{"app": {"one"}}},
		"what Velero has not finished": {prepare: stored(func(s *scene) {
			s.put("metadata", `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"of-velero"},"status":{"phase":"InProgress"}}`)
		}), removed: beneath, snapshots: map[string][]string{"app": {"one"}}},
		"what an earlier attempt has left of it": {prepare: replaced(func(s *scene) {
			for _, what := range []string{"tarball", "results", "list", "owner"} {
				s.remove(what)
			}
		}), removed: "copy", snapshots: map[string][]string{}},
		"nothing is left of it": {prepare: replaced(func(s *scene) {
			s.remove("copy")
			s.remove("owner")
		})},
		"what Velero will never finish": {prepare: stored(func(s *scene) {
			s.remove("copy")
			s.put("metadata", `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"of-velero"},"status":{"phase":"InProgress","expiration":"2001-02-03T04:05:06Z"}}`)
		}), err: folder.ErrOther, refused: "of-velero instead of mine"},
		"nothing but the owner":       {prepare: replaced(func(s *scene) { s.remove("copy") }), err: folder.ErrOther, refused: "of-velero instead of mine"},
		"a bad copy":                  {prepare: replaced(func(s *scene) { s.put("copy", "{") }), err: folder.ErrOther, refused: "of-velero instead of mine"},
		"a bad copy in nobody's":      {prepare: replaced(func(s *scene) { s.put("copy", "{"); s.remove("owner") }), err: folder.ErrOther, refused: "of-velero instead of mine"},
		"a copy that is denied":       {prepare: replaced(func(s *scene) { s.fail("copy", storetest.Fault{Err: store.ErrDenied}) }), err: store.ErrDenied},
		"its owner is away":           {prepare: replaced(func(s *scene) { s.fail("owner", storetest.Fault{Err: store.ErrUnavailable}) }), err: store.ErrUnavailable},
		"its folder is another's":     {prepare: replaced(func(s *scene) { s.own("another") }), err: folder.ErrOther, refused: "of-velero instead of mine"},
		"another's copy":              {prepare: func(s *scene) { s.store("another"); s.own(mine); s.replace() }, err: folder.ErrOther, refused: "of-velero instead of mine"},
		"a tarball that is Velero's":  {prepare: replaced(func(s *scene) { s.put("tarball", "longer than ours") }), refused: "another writer, such as Velero"},
		"a folder that can't be seen": {prepare: replaced(func(s *scene) { s.Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrDenied}) }), err: store.ErrDenied},
		"a copy that names nothing": {prepare: replaced(func(s *scene) {
			s.put("copy", `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"mine"},"status":{"phase":"Completed"}}`)
		}), removed: "owner copy"},
		"a copy that can't be understood": {prepare: replaced(func(s *scene) {
			s.put("copy", `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"a","uid":"mine","annotations":{"`+format.AnnotationContents+`":"7"}},"status":{"phase":"Completed"}}`)
		}), err: folder.ErrOther, refused: "of-velero instead of mine"},

		// What happens meanwhile.
		"the record goes": {prepare: stored(func(s *scene) { s.deletion.Present = func() error { return errGone } }), err: errGone, snapshots: map[string][]string{"app": {"one"}}},
		"the record goes later": {prepare: stored(func(s *scene) {
			s.deletion.Present = func() error {
				if len(s.removed) == 2 {
					return errGone
				}
				return nil
			}
		}), removed: "metadata results", err: errGone, snapshots: map[string][]string{"app": {"one"}}},
		"its metadata can't be removed": {prepare: stored(func(s *scene) {
			s.Inject(storetest.Fault{Operation: storetest.Delete, Key: keys["metadata"], Err: store.ErrDenied})
		}), err: store.ErrDenied, snapshots: map[string][]string{"app": {"one"}}},
		"a removal fails": {prepare: stored(func(s *scene) {
			s.Inject(storetest.Fault{Operation: storetest.Delete, Key: keys["tarball"], Err: store.ErrDenied})
		}), removed: "metadata results", err: store.ErrDenied, snapshots: map[string][]string{"app": {"one"}}},
		"an object is replaced": {prepare: stored(func(s *scene) {
			s.Inject(storetest.Fault{Operation: storetest.Delete, Key: keys["metadata"], Err: store.ErrChanged})
			s.then = func(string) { s.Inject() }
		}), removed: "results tarball copy metadata list owner", snapshots: map[string][]string{"app": {"one"}}},
		"the folder becomes another's": {prepare: stored(func(s *scene) { s.then = func(string) { s.own("another") } }),
			removed: "metadata", snapshots: map[string][]string{"app": {"one"}}},
		"its owner goes away": {prepare: stored(func(s *scene) {
			s.then = func(string) { s.fail("owner", storetest.Fault{Err: store.ErrUnavailable}) }
		}), removed: "metadata", err: store.ErrUnavailable, snapshots: map[string][]string{"app": {"one"}}},
		"its changes can't be seen": {prepare: stored(func(s *scene) {
			s.Inject(storetest.Fault{Operation: storetest.List, Key: format.BackupsPrefix, Err: store.ErrDenied})
		}), removed: "metadata", err: store.ErrDenied, snapshots: map[string][]string{"app": {"one"}}},
		"it alone can't be seen": {prepare: stored(func(s *scene) {
			s.Inject(storetest.Fault{Operation: storetest.List, Key: format.BackupPrefix("a"), Err: store.ErrDenied})
		}), removed: "metadata", err: store.ErrDenied, snapshots: map[string][]string{"app": {"one"}}},
		"the folder can't be seen then": {prepare: stored(func(s *scene) { s.Inject(storetest.Fault{Operation: storetest.List, Err: store.ErrDenied}) }),
			removed: "metadata", err: store.ErrDenied, snapshots: map[string][]string{"app": {"one"}}},
		"Velero's metadata comes": {prepare: stored(func(s *scene) {
			s.then = func(what string) {
				if what == "results" {
					s.replace()
				}
			}
		}), removed: "metadata results tarball copy", err: folder.ErrOther, refused: "of-velero instead of mine", snapshots: map[string][]string{"app": {"one"}}},
		"a write of its own comes late": {prepare: stored(func(s *scene) {
			s.then = func(what string) {
				if what == "copy" {
					s.put("tarball", "late")
				}
			}
		}), removed: "metadata results tarball copy tarball list owner", snapshots: map[string][]string{"app": {"one"}}},
		"one that always comes again": {prepare: func(s *scene) {
			s.own(mine)
			s.put("tarball", "late")
			s.then = func(string) { s.put("tarball", "later") }
		}, removed: strings.TrimSpace(strings.Repeat("tarball ", 10)), refused: "comes back again and again", snapshots: map[string][]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, storetest.Memory(t))
			test.prepare(s)
			s.removed = nil
			d := s.deletion
			err := d.Look(t.Context())
			if err == nil {
				if err = d.RemoveMetadata(t.Context()); err == nil {
					err = d.RemoveRest(t.Context())
				}
			}
			refusal, _ := errors.AsType[*folder.Refusal](err)
			switch {
			case (test.refused != "") != (refusal != nil) || refusal != nil && !strings.Contains(refusal.Error(), test.refused):
				t.Errorf("got %v, want a refusal that says %q", err, test.refused)
			case (test.err != nil || test.refused != "") != (err != nil) || test.err != nil && !errors.Is(err, test.err) || errors.Is(err, folder.ErrOther) && test.err == nil:
				t.Errorf("got %v, want %v", err, test.err)
			}
			if removed := strings.Join(s.removed, " "); removed != test.removed {
				t.Errorf("removed %q, want %q", removed, test.removed)
			}
			if found := d.Stored != nil && d.Stored.UID == mine; (test.removed == whole || test.removed == beneath) && !found {
				t.Errorf("what was found in the store is %v", d.Stored)
			}
			if !maps.EqualFunc(d.Snapshots, test.snapshots, slices.Equal) {
				t.Errorf("the snapshots are %q, want %q", d.Snapshots, test.snapshots)
			}
			if s.Reset(); s.Peak() > 0 {
				t.Errorf("%d objects are still open", s.Peak())
			}
		})
	}
}

// What lies in a folder is listed once, however often that is tried, with what lies deeper
// and what nobody has finished.
func TestList(t *testing.T) {
	target := storetest.Filesystem(t)
	s := newScene(t, target)
	for _, name := range []string{"one", "two", "deep/three", "deep/four"} {
		s.put(name, name)
	}
	unfinished, err := target.NewWriter(t.Context(), format.TarballKey("a"))
	must(t, err)
	defer unfinished.Abort()
	s.Inject(storetest.Fault{Operation: storetest.List, Truncate: true, After: 2, Err: store.ErrUnavailable})
	s.deletion.Try = func(ctx context.Context, request func(context.Context) error) error {
		must(t, func() error {
			if err := request(ctx); !errors.Is(err, store.ErrUnavailable) {
				return fmt.Errorf("the first time: %w", err)
			}
			return nil
		}())
		s.Inject()
		return request(ctx)
	}
	if objects, err := s.deletion.List(t.Context()); err != nil || len(objects) != 5 {
		t.Errorf("got %v, %v", objects, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
