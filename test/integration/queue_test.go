// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// entry reads the place of a backup of the system namespace in the queue.
func entry(t *testing.T, name string) *v1alpha1.BackupQueueEntry {
	t.Helper()
	found, err := lab.Holdfast.HoldfastV1alpha1().BackupQueueEntries(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// awaitPosition waits until a backup of the system namespace has a place in the
// queue, which is published with a short delay.
func awaitPosition(t *testing.T, name string, position int32) *v1alpha1.BackupQueueEntry {
	t.Helper()
	var found *v1alpha1.BackupQueueEntry
	labtest.Eventually(t, fmt.Sprintf("place %d for %s", position, name), func() (err error) {
		found, err = lab.Holdfast.HoldfastV1alpha1().BackupQueueEntries(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && found.Status.Position != position {
			err = fmt.Errorf("its status is %+v", found.Status)
		}
		return err
	})
	return found
}

// explained is what an entry says of its wait, in a comparable form.
func explained(status v1alpha1.BackupQueueEntryStatus) string {
	var blockers []string
	for _, blocker := range status.Blockers {
		blockers = append(blockers, blocker.Namespace+"/"+blocker.Name)
	}
	return fmt.Sprintf("%d %s %s blockers=%v others=%d conflict=%v", status.Position, status.State, status.Reason,
		blockers, status.OtherBlockers, status.ConflictNamespaces)
}

// TestQueueLimit: as many run as there are slots; the others wait in order, and
// the first one starts as soon as there is a slot.
func TestQueueLimit(t *testing.T) {
	var running []*labtest.Held
	for range slots {
		running = append(running, lab.Hold(t, labtest.Name("running")))
	}
	starts := watchStarts(t)
	var waiting []string
	for i := range 3 {
		name := labtest.Name("waiting")
		lab.Backup(t, name, lab.Namespace(t, "waiting-ns"))
		waiting = append(waiting, name)
		e := awaitPosition(t, name, int32(i+1))
		want := fmt.Sprintf("%d Queued ConcurrencyLimit blockers=[] others=0 conflict=[]", i+1)
		if got := explained(e.Status); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if want := "waits for a slot: 2 in use, the limit is 2"; e.Status.Message != want {
			t.Errorf("%s: message %q, want %q", name, e.Status.Message, want)
		}
	}
	// The backup says the same as its entry.
	backup := lab.AwaitPhase(t, labtest.System, waiting[1], v1alpha1.BackupPhaseQueued)
	queued := meta.FindStatusCondition([]metav1.Condition(backup.Status.Conditions), v1alpha1.ConditionQueued)
	if backup.Status.QueuePosition != 2 || queued == nil || queued.Status != metav1.ConditionTrue || queued.Reason != "ConcurrencyLimit" ||
		queued.Message != "position 2: waits for a slot: 2 in use, the limit is 2" {
		t.Errorf("the backup has place %d and condition %+v", backup.Status.QueuePosition, queued)
	}
	if e := entry(t, waiting[1]); e.UID != backup.UID || !e.CreationTimestamp.Equal(&backup.CreationTimestamp) {
		t.Errorf("the entry has uid %s, its backup %s", e.UID, backup.UID)
	}
	if e := entry(t, running[0].Name); e.Status.State != v1alpha1.QueueStateRunning || e.Status.Position != 0 || e.Status.Since == nil {
		t.Errorf("the entry of a running backup is %+v", e.Status)
	}
	// The table has the running first, and then the queue in its order.
	var names []string
	for line := range strings.Lines(lab.Kubectl(t, "get", "backupqueue", "-n", labtest.System, "--no-headers")) {
		names = append(names, strings.Fields(line)[1])
	}
	if diff := cmp.Diff(waiting, names[min(slots, len(names)):]); diff != "" {
		t.Errorf("the table's order (-want +got):\n%s", diff)
	}

	running[0].Release(t)
	for _, name := range waiting {
		lab.AwaitCompleted(t, name)
	}
	if diff := cmp.Diff(waiting, starts.names()); diff != "" {
		t.Errorf("order of starts (-want +got):\n%s", diff)
	}
	labtest.Eventually(t, "the queue to have but one", func() error {
		list, err := lab.Holdfast.HoldfastV1alpha1().BackupQueueEntries("").List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(list.Items) != 1 || list.Items[0].Name != running[1].Name) {
			err = fmt.Errorf("it has %d", len(list.Items))
		}
		return err
	})
}

// TestQueueOverlap: a backup waits for those that run and for those ahead of it
// when they include one of its namespaces, and nobody else waits for it.
// Pitfall 23: what is behind a backup of everything starts after it.
func TestQueueOverlap(t *testing.T) {
	running := lab.Hold(t, labtest.Name("running"))
	shared := running.Namespace
	other, apart := lab.Namespace(t, "other"), lab.Namespace(t, "apart")
	starts := watchStarts(t)
	create := func(prefix string, namespaces ...string) string {
		t.Helper()
		name := labtest.Name(prefix)
		lab.Backup(t, name, namespaces...)
		return name
	}
	direct := create("direct", shared, other)
	awaitPosition(t, direct, 1)
	behind := create("behind", other)
	awaitPosition(t, behind, 2)
	pattern := create("pattern", shared[:len(shared)-1]+"?")
	awaitPosition(t, pattern, 3)
	everything := create("everything")
	awaitPosition(t, everything, 4)
	second := create("second", other, apart)
	awaitPosition(t, second, 5)

	in := labtest.System + "/"
	for name, want := range map[string]string{
		direct:  fmt.Sprintf("1 Queued NamespaceOverlap blockers=[%s] others=0 conflict=[%s]", in+running.Name, shared),
		behind:  fmt.Sprintf("2 Queued BehindOverlapping blockers=[%s] others=0 conflict=[%s]", in+direct, other),
		pattern: fmt.Sprintf("3 Queued NamespaceOverlap blockers=[%s] others=0 conflict=[%s]", in+running.Name, shared),
		second:  fmt.Sprintf("5 Queued BehindOverlapping blockers=[%s] others=0 conflict=[%s]", in+direct, other),
	} {
		if got := explained(entry(t, name).Status); got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
	if status := entry(t, everything).Status; status.Reason != v1alpha1.QueueReasonNamespaceOverlap || !slices.Contains(status.ConflictNamespaces, shared) {
		t.Errorf("the backup of everything: %+v", status)
	}
	if message := entry(t, direct).Status.Message; message != fmt.Sprintf("overlaps %s (running) in %s", running.Name, shared) {
		t.Errorf("message: %s", message)
	}

	// A backup of other namespaces passes all of them, but not the one of everything.
	running.Release(t)
	for _, name := range []string{direct, behind, pattern, everything, second} {
		lab.AwaitCompleted(t, name)
	}
	order := starts.names()
	before := func(first, next string) {
		t.Helper()
		if slices.Index(order, first) > slices.Index(order, next) {
			t.Errorf("%s started after %s, in the order %v", first, next, order)
		}
	}
	before(direct, behind)
	before(direct, pattern)
	before(behind, second)
	before(everything, second)
	for _, name := range []string{direct, behind, pattern} {
		before(name, everything)
	}
}

// TestQueueIsPassed: a backup that overlaps nothing starts past those that wait.
// Pitfall 20: two that read cluster-scoped resources overlap.
func TestQueueIsPassed(t *testing.T) {
	running := lab.Hold(t, labtest.Name("running"))
	blocked, free := labtest.Name("blocked"), labtest.Name("free")
	lab.Backup(t, blocked, running.Namespace)
	awaitPosition(t, blocked, 1)
	lab.Backup(t, free, lab.Namespace(t, "free-ns"))
	lab.AwaitCompleted(t, free)
	awaitPosition(t, blocked, 1)

	// Two that read cluster-scoped resources overlap too.
	first := labtest.Name("cluster")
	lab.Create(t, labtest.System, first, v1alpha1.BackupSpec{IncludedNamespaces: []string{running.Namespace}, IncludeClusterResources: new(true)})
	awaitPosition(t, first, 2)
	second := labtest.Name("cluster")
	lab.Create(t, labtest.System, second, v1alpha1.BackupSpec{IncludedNamespaces: []string{lab.Namespace(t, "cluster")}, IncludeClusterResources: new(true)})
	if got := awaitPosition(t, second, 3); got.Status.Reason != v1alpha1.QueueReasonBehindOverlapping || got.Status.Message != fmt.Sprintf("is behind %s (queued): both touch cluster-scoped resources", first) {
		t.Errorf("the second one with cluster-scoped resources: %+v", got.Status)
	}
	running.Release(t)
	for _, name := range []string{blocked, first, second} {
		lab.AwaitCompleted(t, name)
	}
}

// starts records in which order backups become InProgress.
type starts struct {
	mu    sync.Mutex
	order []string
}

// watchStarts records the starts of backups of the system namespace from now on.
func watchStarts(t *testing.T) *starts {
	t.Helper()
	runs := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System)
	list, err := runs.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &starts{}
	seen := map[string]bool{}
	for _, run := range list.Items {
		seen[run.Name] = run.Status.StartTimestamp != nil
	}
	watcher, err := runs.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			s.observe(event, seen)
		}
	}()
	t.Cleanup(func() { watcher.Stop(); <-done })
	return s
}

func (s *starts) observe(event watch.Event, seen map[string]bool) {
	record, ok := event.Object.(*enginev1alpha1.BackupRun)
	if !ok || record.Status.StartTimestamp == nil || seen[record.Name] {
		return
	}
	seen[record.Name] = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order = append(s.order, record.Name)
}

func (s *starts) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}
