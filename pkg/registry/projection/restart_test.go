// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// world is what Projectors look at: records, locations, and folders as stores.
type world struct {
	t       *testing.T
	rt      *rapid.T
	clients *enginefake.Clientset
	version int
	root    string
	runs    map[string]*enginev1alpha1.BackupRun
	places  map[string]bool // the locations that there are
	away    map[string]bool // the stores that are not reachable
}

func (w *world) must(err error) {
	if err != nil {
		w.rt.Fatal(err)
	}
}

func (w *world) next() string { w.version++; return strconv.Itoa(w.version) }

// folder is where a store lies, be it reachable or not.
func (w *world) folder(location string) string {
	if w.away[location] {
		return filepath.Join(w.root, location+"-away")
	}
	return filepath.Join(w.root, location)
}

func (w *world) metadata(location, name string) string {
	return filepath.Join(w.folder(location), filepath.FromSlash(format.MetadataKey(name)))
}

func (w *world) addLocation(location string) {
	w.places[location] = true
	_, err := w.clients.EngineV1alpha1().StorageLocations(system).Create(w.t.Context(), &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: location, ResourceVersion: w.next()},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider:   enginev1alpha1.StorageProviderFilesystem,
			Filesystem: &enginev1alpha1.FilesystemLocation{Path: filepath.Join(w.root, location)},
		},
	}, metav1.CreateOptions{})
	w.must(err)
}

// stored are the names that lie in a store, finished.
func (w *world) stored(location string) []string {
	found, err := filepath.Glob(w.metadata(location, "*"))
	w.must(err)
	for i, path := range found {
		found[i] = filepath.Base(filepath.Dir(path))
	}
	return found
}

// store writes a backup's metadata, as its end.
func (w *world) store(backup *v1alpha1.Backup) {
	metadata, err := format.EncodeBackup(backup, format.Contents{}, format.Cluster{SystemNamespace: system})
	w.must(err)
	path := w.metadata(backup.Spec.StorageLocation, backup.Name)
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.WriteFile(path, metadata, 0o644))
}

func (w *world) create(run *enginev1alpha1.BackupRun) {
	run.Namespace, run.ResourceVersion = system, w.next()
	run.Spec.BackupRef = v1alpha1.BackupReference{Namespace: system, Name: run.Name}
	w.runs[run.Name] = run
	_, err := w.clients.EngineV1alpha1().BackupRuns(system).Create(w.t.Context(), run, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) update(name string, change func(*enginev1alpha1.BackupRun)) {
	run := w.runs[name].DeepCopy()
	run.ResourceVersion = w.next()
	change(run)
	w.runs[name] = run
	_, err := w.clients.EngineV1alpha1().BackupRuns(system).Update(w.t.Context(), run, metav1.UpdateOptions{})
	w.must(err)
}

func (w *world) removeRun(name string) {
	delete(w.runs, name)
	w.must(w.clients.EngineV1alpha1().BackupRuns(system).Delete(w.t.Context(), name, metav1.DeleteOptions{}))
}

// pick draws one of the runs that are as told, or skips the action.
func (w *world) pick(rt *rapid.T, is func(*enginev1alpha1.BackupRun) bool) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(w.runs)) {
		if is(w.runs[name]) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		rt.Skip("there is none")
	}
	return rapid.SampledFrom(names).Draw(rt, "run")
}

// shown is what a list shows, in as far as a restart must not change it.
func shown(rt *rapid.T, p *Projector) map[string]string {
	list := &v1alpha1.BackupList{}
	err := p.Backups.GetList(context.Background(), logstore.Prefix(v1alpha1.Resource("backups")), storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list)
	if err != nil {
		rt.Fatal(err)
	}
	result := map[string]string{}
	for _, backup := range list.Items {
		backup.ResourceVersion = ""
		if backup.Status.Phase == v1alpha1.BackupPhaseDeleting {
			backup = v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: backup.Name, UID: backup.UID}, Status: v1alpha1.BackupStatus{Phase: backup.Status.Phase}}
		}
		text, err := json.Marshal(backup)
		if err != nil {
			rt.Fatal(err)
		}
		result[backup.Name] = string(text)
	}
	return result
}

// Whatever happens to records and stores, once the stores were heard the list has
// what they hold, and what has not ended; and a restart shows the same list.
func TestARestartShowsTheSameList(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failure any
		synctest.Test(t, func(t *testing.T) {
			defer func() { failure = recover() }() // which is for rapid
			history(t, rt)
		})
		switch {
		case rt.Failed(): // it tells failures apart by where they come from
			panic(failure)
		case failure != nil:
			panic(failure)
		}
	})
}

func history(t *testing.T, rt *rapid.T) {
	w := &world{t: t, rt: rt, clients: enginefake.NewSimpleClientset(), root: t.TempDir(),
		runs: map[string]*enginev1alpha1.BackupRun{}, places: map[string]bool{}, away: map[string]bool{}}
	locations := []string{"one", "two"}
	for _, location := range locations {
		w.must(os.Mkdir(filepath.Join(w.root, location), 0o755))
		w.addLocation(location)
	}
	cacheDir := ""
	if rapid.Bool().Draw(rt, "with a cache") {
		cacheDir = t.TempDir()
	}
	p, stop := bootOn(t, w.clients, time.Minute, nil, cacheDir)
	synctest.Wait() // a fake client's watch lacks what happens between the list and it
	defer func() { stop() }()
	location := func(rt *rapid.T) string { return rapid.SampledFrom(locations).Draw(rt, "location") }
	uid := func() types.UID { return types.UID("uid-" + w.next()) }
	now := func() *metav1.Time { return &metav1.Time{Time: time.Now().Truncate(time.Second)} }
	isStored := func(run *enginev1alpha1.BackupRun) bool { return run.Status.Stored && run.Spec.Deletion == nil }
	isDeletion := func(run *enginev1alpha1.BackupRun) bool { return run.Spec.Deletion != nil }
	storedSomewhere := func(name string) bool {
		return slices.ContainsFunc(locations, func(l string) bool { return slices.Contains(w.stored(l), name) })
	}

	settle := func(rt *rapid.T) {
		for location := range w.away {
			w.must(os.Rename(w.folder(location), filepath.Join(w.root, location)))
			delete(w.away, location)
		}
		time.Sleep(5 * time.Minute)
		for location := range w.places { // whatever is doubted
			patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{%q:%q}}}`, w.next(), enginev1alpha1.AnnotationAcceptLoss, time.Now().Format(time.RFC3339))
			_, err := w.clients.EngineV1alpha1().StorageLocations(system).Patch(w.t.Context(), location, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			w.must(err)
		}
		time.Sleep(5 * time.Minute)
		before := shown(rt, p)
		want := map[string]bool{}
		for name, run := range w.runs {
			if !isStored(run) {
				want[name] = true
			}
		}
		for _, location := range locations {
			for _, name := range w.stored(location) {
				if w.places[location] {
					want[name] = true
				}
			}
		}
		got := map[string]bool{}
		for name := range before {
			got[name] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("what is there (-) and what is shown (+):\n%s", diff)
		}
		stop()
		p, stop = bootOn(t, w.clients, time.Minute, nil, cacheDir)
		synctest.Wait()
		time.Sleep(5 * time.Minute)
		if diff := cmp.Diff(before, shown(rt, p)); diff != "" {
			rt.Fatalf("before (-) and after (+) a restart:\n%s", diff)
		}
	}

	rt.Repeat(map[string]func(*rapid.T){
		"create": func(rt *rapid.T) {
			name, at := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(rt, "name"), location(rt)
			if w.runs[name] != nil || storedSomewhere(name) || !w.places[at] {
				rt.Skip("the name is taken")
			}
			w.create(&enginev1alpha1.BackupRun{
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid(), CreationTimestamp: *now()},
				Spec:       enginev1alpha1.BackupRunSpec{Backup: v1alpha1.BackupSpec{StorageLocation: at}},
				Status:     enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseInProgress, StartTimestamp: now()},
			})
		},
		"end": func(rt *rapid.T) {
			name := w.pick(rt, func(run *enginev1alpha1.BackupRun) bool { return run.Status.Phase == v1alpha1.BackupPhaseInProgress })
			at := w.runs[name].Spec.Backup.StorageLocation
			w.update(name, func(run *enginev1alpha1.BackupRun) {
				run.Status.Phase, run.Status.CompletionTimestamp = v1alpha1.BackupPhaseCompleted, now()
				if run.Status.Stored = !w.away[at] && w.places[at]; run.Status.Stored {
					w.store(run.AsBackup())
				} else {
					run.Status.Phase = v1alpha1.BackupPhaseFailed
				}
			})
		},
		"retire": func(rt *rapid.T) { w.removeRun(w.pick(rt, isStored)) },
		"touch": func(rt *rapid.T) {
			w.update(w.pick(rt, isStored), func(run *enginev1alpha1.BackupRun) { run.Labels = map[string]string{"touched": w.next()} })
		},
		"remove by hand": func(rt *rapid.T) {
			at := location(rt)
			names := w.stored(at)
			if len(names) == 0 {
				rt.Skip("there is none")
			}
			w.must(os.RemoveAll(filepath.Dir(w.metadata(at, rapid.SampledFrom(names).Draw(rt, "name")))))
		},
		"store by others": func(rt *rapid.T) {
			name, at := "of-others-"+w.next(), location(rt)
			w.store(&v1alpha1.Backup{
				ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: uid(), CreationTimestamp: *now()},
				Spec:       v1alpha1.BackupSpec{StorageLocation: at},
				Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: now(), CompletionTimestamp: now()},
			})
		},
		"ask for deletion": func(rt *rapid.T) {
			deletion := &enginev1alpha1.Deletion{Ask: enginev1alpha1.Ask{Timestamp: *now()}}
			if rapid.Bool().Draw(rt, "with a record") {
				w.update(w.pick(rt, isStored), func(run *enginev1alpha1.BackupRun) { run.Spec.Deletion = deletion })
				return
			}
			at := location(rt)
			names := slices.DeleteFunc(w.stored(at), func(name string) bool { return w.runs[name] != nil })
			if len(names) == 0 || !w.places[at] {
				rt.Skip("there is none")
			}
			name := rapid.SampledFrom(names).Draw(rt, "name")
			backup := p.stores.catalog.Backup(system, name) // which another goroutine may forget or read
			if backup == nil {
				rt.Skip("it is not known")
			}
			deletion.Stored = &enginev1alpha1.StoredBackup{UID: backup.UID, CreationTimestamp: backup.CreationTimestamp}
			w.create(&enginev1alpha1.BackupRun{
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid(), CreationTimestamp: *now()},
				Spec:       enginev1alpha1.BackupRunSpec{Backup: backup.Spec, Deletion: deletion},
			})
		},
		"delete": func(rt *rapid.T) {
			name := w.pick(rt, isDeletion)
			at := w.runs[name].Spec.Backup.StorageLocation
			w.must(os.RemoveAll(w.metadata(at, name)))
			if rapid.Bool().Draw(rt, "after a while") {
				time.Sleep(3 * time.Minute)
			}
			w.must(os.RemoveAll(filepath.Dir(w.metadata(at, name))))
			w.removeRun(name)
		},
		"give a deletion up": func(rt *rapid.T) {
			name := w.pick(rt, isDeletion)
			w.update(name, func(run *enginev1alpha1.BackupRun) { run.Status.FailureReason = "the store denies it" })
			w.removeRun(name)
		},
		"store goes": func(rt *rapid.T) {
			at := location(rt)
			if !w.away[at] {
				w.must(os.Rename(w.folder(at), w.folder(at)+"-away"))
				w.away[at] = true
			}
		},
		"location goes or comes": func(rt *rapid.T) {
			at := location(rt)
			if !w.places[at] {
				w.addLocation(at)
				return
			}
			delete(w.places, at)
			w.must(w.clients.EngineV1alpha1().StorageLocations(system).Delete(t.Context(), at, metav1.DeleteOptions{}))
		},
		"wait": func(rt *rapid.T) {
			time.Sleep(rapid.SampledFrom([]time.Duration{0, time.Second, 70 * time.Second, 3 * time.Minute}).Draw(rt, "for"))
			synctest.Wait()
		},
		"restart": func(*rapid.T) {
			stop()
			p, stop = bootOn(t, w.clients, time.Minute, nil, cacheDir)
			synctest.Wait()
		},
		"restart with a cache": func(rt *rapid.T) {
			if cacheDir == "" {
				rt.Skip("there is none")
			}
			time.Sleep(time.Second) // until it is served
			before := shown(rt, p)
			killed := rapid.Bool().Draw(rt, "by a kill")
			if killed { // what is on disk now is all that is left
				left := t.TempDir()
				w.must(os.CopyFS(left, os.DirFS(cacheDir)))
				cacheDir = left
			}
			stop()
			p, stop = bootOn(t, w.clients, time.Minute, nil, cacheDir)
			time.Sleep(time.Second)
			for name := range shown(rt, p) {
				if before[name] == "" && w.runs[name] == nil && !storedSomewhere(name) {
					rt.Fatalf("%s is shown after a restart, and was not before (by a kill: %t)", name, killed)
				}
			}
		},
		"settle": settle,
	})
	settle(rt)
}
