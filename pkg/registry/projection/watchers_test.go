// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// waiting is how many wait in TestWatchersOfALongQueue at any time.
const waiting = 10_000

// stream is a watch of all objects of a log, and what its client makes of it.
type stream[T logstore.Object] struct {
	log      *logstore.Log[T]
	prefix   string
	empty    runtime.Object // a list
	position func(T) int32

	known  map[backupKey]T
	events int
	failed runtime.Object
	// backlog is what a client that reads MaxQueueEvents a second has yet to read, and
	// burst the most that this ever was. So in any s seconds at most
	// burst + s*MaxQueueEvents events came.
	backlog, burst float64
	last           time.Time
}

// follow starts the watch where a list ends.
func (s *stream[T]) follow(t *testing.T) *stream[T] {
	t.Helper()
	var version string
	version, s.known = s.list(t)
	watcher, err := s.log.Watch(t.Context(), s.prefix, storage.ListOptions{ResourceVersion: version, Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	s.last = time.Now()
	go func() {
		for event := range watcher.ResultChan() {
			s.receive(event)
		}
	}()
	return s
}

func (s *stream[T]) list(t *testing.T) (version string, objects map[backupKey]T) {
	t.Helper()
	list := s.empty.DeepCopyObject()
	if err := s.log.GetList(t.Context(), s.prefix, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
		t.Fatal(err)
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		t.Fatal(err)
	}
	objects = map[backupKey]T{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object := item.(T)
		objects[backupKey{Namespace: object.GetNamespace(), Name: object.GetName()}] = object
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return accessor.GetResourceVersion(), objects
}

func (s *stream[T]) receive(event watch.Event) {
	object, ok := event.Object.(T)
	if !ok {
		s.failed = event.Object
		return
	}
	now := time.Now()
	s.backlog = max(0, s.backlog-MaxQueueEvents*now.Sub(s.last).Seconds()) + 1
	s.burst, s.last = max(s.burst, s.backlog), now
	s.events++
	key := backupKey{Namespace: object.GetNamespace(), Name: object.GetName()}
	if event.Type == watch.Deleted {
		delete(s.known, key)
	} else {
		s.known[key] = object
	}
}

// check compares what came, while the queue moved for so long, with the bound, and what
// is known by it with what a list shows now.
func (s *stream[T]) check(t *testing.T, moved time.Duration, most int) {
	t.Helper()
	t.Logf("%s: %d events, %.0f of them beyond %d a second", s.prefix, s.events, s.burst, MaxQueueEvents)
	if s.failed != nil {
		t.Fatalf("%s: the watch ended: %v", s.prefix, s.failed)
	}
	if s.burst > float64(most) {
		t.Errorf("%s: up to %.0f events beyond %d a second, want %d at most", s.prefix, s.burst, MaxQueueEvents, most)
	}
	if least := MaxQueueEvents * moved.Seconds() / 2; float64(s.events) < least {
		t.Errorf("%s: %d events, want at least %.0f: the queue moved for %s", s.prefix, s.events, least, moved)
	}
	_, shown := s.list(t)
	if len(s.known) != len(shown) {
		t.Errorf("%s: a list shows %d objects, the watcher knows %d", s.prefix, len(shown), len(s.known))
	}
	var positions []int32
	for key, object := range shown {
		if !equality.Semantic.DeepEqual(s.known[key], object) {
			t.Fatalf("%s: a list shows %+v, the watcher was told %+v", s.prefix, object, s.known[key])
		}
		if p := s.position(object); p > 0 {
			positions = append(positions, p)
		}
	}
	if len(positions) != waiting {
		t.Errorf("%s: %d have a position, want %d", s.prefix, len(positions), waiting)
	}
	slices.Sort(positions)
	for i, p := range positions {
		if p != int32(i+1) {
			t.Fatalf("%s: position %d where %d should be", s.prefix, p, i+1)
		}
	}
}

// Each start moves everyone up. However often that happens, in any s seconds a watcher
// gets at most s*MaxQueueEvents events, and one of each entry besides.
func TestWatchersOfALongQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t}
		record := func(i int, status enginev1alpha1.BackupRunStatus) *enginev1alpha1.BackupRun {
			// The second half waits for the first, so that reasons and blockers change, too.
			return f.run(system, fmt.Sprintf("backup-%06d", i), status, fmt.Sprintf("namespace-%d", i%(waiting/2)))
		}
		objects := []runtime.Object{&enginev1alpha1.StorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
			Spec: enginev1alpha1.StorageLocationSpec{
				Provider:   enginev1alpha1.StorageProviderFilesystem,
				Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()},
			},
			Status: enginev1alpha1.StorageLocationStatus{Conditions: []metav1.Condition{
				{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue},
			}},
		}, record(0, running)}
		for i := range waiting {
			objects = append(objects, record(i+1, queued(int64(i+1))))
		}
		clientset := enginefake.NewSimpleClientset(objects...)
		f.Projector = start(t, clientset)
		time.Sleep(time.Minute) // until all have been told where they are

		queue := (&stream[*v1alpha1.BackupQueueEntry]{
			log: f.Queue, prefix: logstore.Prefix(v1alpha1.Resource("backupqueues")), empty: &v1alpha1.BackupQueueEntryList{},
			position: func(entry *v1alpha1.BackupQueueEntry) int32 { return entry.Status.Position },
		}).follow(t)
		backups := (&stream[*v1alpha1.Backup]{
			log: f.Backups, prefix: logstore.Prefix(v1alpha1.Resource("backups")), empty: &v1alpha1.BackupList{},
			position: func(backup *v1alpha1.Backup) int32 { return backup.Status.QueuePosition },
		}).follow(t)
		began, writes := time.Now(), 0
		runs := clientset.EngineV1alpha1().BackupRuns(system)
		update := func(run *enginev1alpha1.BackupRun) {
			writes++
			_, err := runs.UpdateStatus(t.Context(), run, metav1.UpdateOptions{})
			f.add(err)
		}
		for i := 0; time.Since(began) < time.Minute; i++ {
			update(record(i, enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted}))
			update(record(i+1, running))
			writes++
			_, err := runs.Create(t.Context(), record(i+1+waiting, queued(int64(i+1+waiting))), metav1.CreateOptions{})
			f.add(err)
			time.Sleep(700 * time.Millisecond)
		}
		moved := time.Since(began)
		time.Sleep(time.Minute) // until all that has happened is told
		synctest.Wait()
		// The one that runs has an entry as well, and each write of a record may be told by itself.
		most := waiting + 1 + writes
		queue.check(t, moved, most)
		backups.check(t, moved, most)
	})
}
