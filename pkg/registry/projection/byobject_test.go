// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	clusteridentity "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/stored/storedtest"
)

// objectWorld is a Projector with a store in a folder, and a watcher of its queue.
type objectWorld struct {
	*Projector
	t      *testing.T
	maker  *fixture
	folder string
	bucket *store.Bucket
	stored int64
	// namespaceUID is that of the namespaces that backups are asked for in.
	namespaceUID types.UID

	list    *stream[*v1alpha1.BackupQueueEntry]
	watcher watch.Interface
	// told is what the watcher was told last of each entry.
	told map[backupKey]*v1alpha1.BackupQueueEntry
}

func byObjects(t *testing.T, test func(*objectWorld)) {
	synctest.Test(t, func(t *testing.T) {
		w := &objectWorld{t: t, maker: &fixture{t: t}, folder: filepath.Join(t.TempDir(), "store"), told: map[backupKey]*v1alpha1.BackupQueueEntry{}}
		if err := os.Mkdir(w.folder, 0o700); err != nil {
			t.Fatal(err)
		}
		location := &enginev1alpha1.StorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
			Spec:       enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: w.folder}},
			Status:     enginev1alpha1.StorageLocationStatus{Conditions: []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue}}},
		}
		var err error
		if w.bucket, err = store.Open(t.Context(), &location.Spec, nil); err != nil {
			t.Fatal(err)
		}
		defer w.bucket.Close()
		p, stop := boot(t, enginefake.NewSimpleClientset(location), time.Hour)
		defer stop()
		w.Projector = p
		time.Sleep(time.Second) // until the store is listed
		p.stores.catalog.SetIdentity(clusteridentity.Identity{UID: "cluster", Keys: []string{"key"}})
		w.list = &stream[*v1alpha1.BackupQueueEntry]{log: p.Queue, prefix: logstore.Prefix(v1alpha1.Resource("backupqueues")), empty: &v1alpha1.BackupQueueEntryList{}}
		version, _ := w.list.list(t)
		if w.watcher, err = p.Queue.Watch(t.Context(), w.list.prefix, storage.ListOptions{ResourceVersion: version, Recursive: true, Predicate: storage.Everything}); err != nil {
			t.Fatal(err)
		}
		defer w.watcher.Stop()
		test(w)
	})
}

// labelled is the next version of a record, of the objects in a namespace that have the label app,
// or of all if it is empty.
func (w *objectWorld) labelled(namespace, name, app, of string, status enginev1alpha1.BackupRunStatus) *enginev1alpha1.BackupRun {
	run := w.maker.run(namespace, name, status, of)
	run.Spec.NamespaceUID = w.namespaceUID
	if app != "" {
		run.Spec.Backup.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	return run
}

// store stores a backup of ConfigMaps of the namespace shop, later than the ones before.
func (w *objectWorld) store(namespace, name, app string, configMaps ...string) *enginev1alpha1.BackupRun {
	w.t.Helper()
	run, content := w.write(namespace, name, app, configMaps...)
	w.stores.catalog.Put("default", run.Name, content, time.Now())
	return run
}

// write is store, as far as the catalogue has nothing to do with it.
func (w *objectWorld) write(namespace, name, app string, configMaps ...string) (*enginev1alpha1.BackupRun, catalog.Content) {
	w.t.Helper()
	w.stored++
	started := metav1.NewTime(time.Unix(100+w.stored, 0))
	run := w.labelled(namespace, name, app, "shop", enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, Stored: true, StartTimestamp: &started})
	objects := []storedtest.Object{{Kind: "v1/Namespace", Resource: "namespaces", Name: "shop"}}
	for _, name := range configMaps {
		objects = append(objects, storedtest.Object{Kind: "v1/ConfigMap", Resource: "configmaps", Namespace: "shop", Name: name})
	}
	storedtest.Write(w.t, w.bucket, run.Name, objects...)
	document, err := os.ReadFile(filepath.Join(w.folder, format.ManifestKey(run.Name)))
	if err != nil {
		w.t.Fatal(err)
	}
	return run, catalog.Content{Backup: storedOf(run), Digests: catalog.Digests{Manifest: format.NewContent(document).SHA256}}
}

// settle lets pass what takes seconds, and reads what the watcher is told.
func (w *objectWorld) settle() {
	time.Sleep(10 * time.Second)
	for {
		synctest.Wait()
		select {
		case event := <-w.watcher.ResultChan():
			if entry, ok := event.Object.(*v1alpha1.BackupQueueEntry); ok {
				w.told[backupKey{Namespace: entry.Namespace, Name: entry.Name}] = entry
			}
		default:
			return
		}
	}
}

// says checks what the watcher was told of a backup that waits, and what a list has.
func (w *objectWorld) says(when, namespace, name, want string) {
	w.t.Helper()
	_, listed := w.list.list(w.t)
	key := backupKey{Namespace: namespace, Name: name}
	for who, entries := range map[string]map[backupKey]*v1alpha1.BackupQueueEntry{"the watcher": w.told, "a list": listed} {
		if entries[key] == nil {
			w.t.Errorf("%s: %s has no entry of %s", when, who, name)
		} else if got := entries[key].Status.Message; got != want {
			w.t.Errorf("%s: %s has of %s %q, want %q", when, who, name, got, want)
		}
	}
}

const apart = ", they would not overlap by object"

func TestQueueByObject(t *testing.T) {
	byObjects(t, func(w *objectWorld) {
		w.store("shop", "db-0", "db", "db", "web")
		w.store("shop", "db-1", "db", "db")
		w.store("shop", "web-1", "web", "web")
		w.store("shop", "all-1", "", "db", "web")
		w.Observe(w.labelled("shop", "db-2", "db", "shop", running))
		w.Observe(w.labelled("shop", "web-2", "web", "shop", queued(1)))
		w.Observe(w.labelled("shop", "all-2", "", "shop", queued(2)))
		w.Observe(w.labelled("shop", "db-3", "db", "shop", queued(3)))
		w.Observe(w.labelled("shop", "new", "new", "shop", queued(4)))
		w.settle()
		plain := "overlaps db-2 (running) in shop"
		w.says("at once", "shop", "web-2", plain+"; going by the stored backups web-1 and db-1"+apart)
		for _, name := range []string{"all-2", "db-3", "new"} {
			w.says("at once", "shop", name, plain)
		}
		if condition := w.shown("shop", "web-2").Status.Conditions[0]; !strings.HasSuffix(condition.Message, apart) {
			t.Errorf("the backup says %q", condition.Message)
		}

		// The newest of a kind counts, as soon as it is known.
		run := w.store("shop", "web-1b", "web", "db", "web")
		w.settle()
		w.says("with a later one that overlaps", "shop", "web-2", plain)
		w.stores.catalog.Remove("default", run.Name)
		w.settle()
		w.says("without it", "shop", "web-2", plain+"; going by the stored backups web-1 and db-1"+apart)

		// One of which nobody knows that the manifest is its own says nothing.
		run, content := w.write("shop", "web-1c", "web", "web")
		content.Digests = catalog.Digests{}
		w.stores.catalog.Put("default", run.Name, content, time.Now())
		w.settle()
		w.says("with one without a manifest", "shop", "web-2", plain)
		w.mu.Lock()
		w.queue.byObject.notes = map[string]string{"what was": "asked"}
		w.mu.Unlock()
		for i, name := range []string{"db-2", "all-2", "db-3", "new"} {
			w.removed(w.labelled("shop", name, "", "shop", queued(int64(i))))
		}
		w.settle()
		w.mu.Lock()
		defer w.mu.Unlock()
		if o := &w.queue.byObject; len(o.questions)+len(o.notes) != 0 {
			t.Errorf("with nothing that runs there are the questions %v and the notes %v", o.questions, o.notes)
		}
	})
}

func (w *objectWorld) shown(namespace, name string) *v1alpha1.Backup {
	backup, _ := w.Backups.GetObject(namespace, name)
	return backup
}

// Of what others' backups hold, the entry of a tenant says nothing.
func TestATenantIsNotToldOfOthersObjects(t *testing.T) {
	byObjects(t, func(w *objectWorld) {
		w.store(system, "admin-1", "db", "db")
		w.store("shop", "web-1", "web", "web")
		w.Observe(w.labelled(system, "admin-2", "db", "shop", running))
		w.Observe(w.labelled("shop", "web-2", "web", "shop", queued(1)))
		w.settle()
		w.says("a tenant", "shop", "web-2", "overlaps another backup in shop")
		w.removed(w.labelled("shop", "web-2", "web", "shop", queued(1)))
		w.removed(w.labelled(system, "admin-2", "db", "shop", running))

		w.Observe(w.labelled("shop", "web-3", "web", "shop", running))
		w.Observe(w.labelled(system, "admin-3", "db", "shop", queued(2)))
		w.settle()
		w.says("an administrator", system, "admin-3", "overlaps shop/web-3 (running) in shop; going by the stored backups admin-1 and shop/web-1"+apart)
		w.removed(w.labelled("shop", "web-3", "web", "shop", running))
		w.removed(w.labelled(system, "admin-3", "db", "shop", queued(2)))

		// What was asked for in a namespace that was made anew since is an administrator's.
		former := w.labelled("shop", "db-2", "db", "shop", running)
		former.Spec.NamespaceUID = "former"
		w.namespaceUID = "present"
		w.namespaceChanged(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: w.namespaceUID}})
		w.store("shop", "web-4", "web", "web")
		w.Observe(former)
		w.Observe(w.labelled("shop", "web-5", "web", "shop", queued(3)))
		w.settle()
		w.says("a tenant of the present namespace", "shop", "web-5", "overlaps db-2 (running) in shop")
	})
}

// The queue needs no store. One that is away is asked again after ten minutes, and not before.
func TestQueueByObjectWithoutAStore(t *testing.T) {
	byObjects(t, func(w *objectWorld) {
		w.store("shop", "db-1", "db", "db")
		w.store("shop", "web-1", "web", "web")
		if err := os.Rename(w.folder, w.folder+".away"); err != nil {
			t.Fatal(err)
		}
		w.Observe(w.labelled("shop", "db-2", "db", "shop", running))
		w.Observe(w.labelled("shop", "web-2", "web", "shop", queued(1)))
		w.settle()
		plain := "overlaps db-2 (running) in shop"
		w.says("without a store", "shop", "web-2", plain)
		if err := os.Rename(w.folder+".away", w.folder); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retryInterval / 2)
		w.Observe(w.labelled("shop", "db-3", "db", "shop", queued(2))) // something else is asked
		w.settle()
		w.says("before it is asked again", "shop", "web-2", plain)
		time.Sleep(retryInterval / 2)
		w.settle()
		w.says("after that", "shop", "web-2", plain+"; going by the stored backups web-1 and db-1"+apart)
	})
}

// However many wait, manifests are compared for the first of them only, and for none that waits
// for very many.
func TestQueueByObjectIsBounded(t *testing.T) {
	f := newFixture(t, "shop")
	f.Observe(f.run("shop", "running", running, "shop"))
	for i := range 2 * maxQuestions {
		f.Observe(f.run("shop", "waiting-"+strings.Repeat("x", i), queued(int64(i+1)), "shop"))
	}
	f.mustPublish()
	questions := f.queue.byObject.questions
	if len(questions) != maxQuestions || len(f.queue.byObject.asked) != 1 {
		t.Fatalf("there are %d questions", len(questions))
	}
	<-f.queue.byObject.asked
	f.Observe(f.run("shop", "later", queued(1000), "shop"))
	f.mustPublish()
	if len(f.queue.byObject.asked) != 0 {
		t.Error("the same questions are asked again")
	}
	for i := range maxBlockers {
		f.Observe(f.run("shop", "running-"+strings.Repeat("x", i), running, "shop"))
	}
	f.mustPublish()
	if questions := f.queue.byObject.questions; len(questions) != 0 {
		t.Errorf("of those that wait for %d there are %d questions", maxBlockers+1, len(questions))
	}
}
