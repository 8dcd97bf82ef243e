// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/test/integration/history"
)

// forge writes audit logs of things that should not happen.
type forge struct {
	t       *testing.T
	version int
	events  []auditv1.Event
	runs    map[string]*enginev1alpha1.BackupRun
	ledger  *corev1.ConfigMap
}

func newForge(t *testing.T) *forge {
	return &forge{t: t, version: 100, runs: map[string]*enginev1alpha1.BackupRun{},
		ledger: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: records.LedgerName, UID: "ledger", ResourceVersion: "1"}}}
}

func (f *forge) raw(object any) *runtime.Unknown {
	raw, err := json.Marshal(object)
	if err != nil {
		f.t.Fatal(err)
	}
	return &runtime.Unknown{Raw: raw}
}

// write forges a request that gives an object its next version.
func (f *forge) write(verb, resource string, object metav1.Object, code int32) {
	event := auditv1.Event{
		Verb: verb, Stage: auditv1.StageResponseComplete,
		ObjectRef:      &auditv1.ObjectReference{Resource: resource, Name: object.GetName(), ResourceVersion: object.GetResourceVersion()},
		ResponseStatus: &metav1.Status{Code: code},
		RequestObject:  f.raw(object),
	}
	f.version++
	object.SetResourceVersion(strconv.Itoa(f.version))
	event.ResponseObject = f.raw(object)
	if code >= 400 {
		event.ResponseObject = nil
	}
	f.events = append(f.events, event)
}

func (f *forge) create(name string, namespaces ...string) {
	f.runs[name] = &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name)},
		Spec:       enginev1alpha1.BackupRunSpec{Backup: v1alpha1.BackupSpec{IncludedNamespaces: namespaces, StorageLocation: "s3"}},
	}
	f.write("create", "backupruns", f.runs[name], 201)
}

func (f *forge) change(name string, change func(*enginev1alpha1.BackupRun)) {
	change(f.runs[name])
	f.write("update", "backupruns", f.runs[name], 200)
}

func (f *forge) phase(name string, phase v1alpha1.BackupPhase) {
	f.change(name, func(run *enginev1alpha1.BackupRun) { run.Status.Phase = phase })
}

func (f *forge) queue(name string, ticket int64) {
	f.change(name, func(run *enginev1alpha1.BackupRun) {
		run.Status.Phase, run.Status.Ticket = v1alpha1.BackupPhaseQueued, ticket
	})
}

// start forges a ledger of these runs, by the process that leads.
func (f *forge) start(names ...string) {
	var starts []records.Start
	for _, name := range names {
		starts = append(starts, records.Start{Name: name, UID: types.UID("uid of " + name)})
	}
	ledger, err := records.WithLedger(f.ledger, starts)
	if err != nil {
		f.t.Fatal(err)
	}
	f.ledger = ledger
	f.ledger.Data[records.LeaderKey] = "one"
	f.write("update", "configmaps", f.ledger, 200)
}

func (f *forge) claim(name, by string) {
	f.change(name, func(run *enginev1alpha1.BackupRun) {
		run.Status.Phase, run.Status.Executor = v1alpha1.BackupPhaseInProgress, by
	})
}

func (f *forge) remove(name string) {
	run := f.runs[name]
	f.events = append(f.events, auditv1.Event{
		Verb: "delete", Stage: auditv1.StageResponseComplete,
		ObjectRef:      &auditv1.ObjectReference{Resource: "backupruns", Name: name},
		ResponseStatus: &metav1.Status{Code: 200},
		RequestObject:  f.raw(metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &run.UID, ResourceVersion: &run.ResourceVersion}}),
	})
	delete(f.runs, name)
}

func (f *forge) read() (*history.History, error) {
	var existing []enginev1alpha1.BackupRun
	for _, run := range f.runs {
		existing = append(existing, *run)
	}
	return history.Read(f.events, existing)
}

// location forges what the controller writes of the storage location of all backups.
func (f *forge) location(available bool) {
	status := metav1.ConditionFalse
	if available {
		status = metav1.ConditionTrue
	}
	location := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: "s3", UID: "s3"}}
	location.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: status}}
	f.write("update", "storagelocations", location, 200)
}

// two are two backups that wait, a with the smaller ticket.
func (f *forge) two(a, b string) {
	f.create("a", a)
	f.create("b", b)
	f.queue("a", 1)
	f.queue("b", 2)
}

const (
	completed = v1alpha1.BackupPhaseCompleted
	moving    = v1alpha1.BackupPhaseWaitingForPluginOperations
)

// execute forges all of a backup that waits.
func (f *forge) execute(name string) {
	f.start(name)
	f.claim(name, "one")
	f.phase(name, completed)
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		forge func(f *forge)
		want  string // empty: nothing is wrong
	}{
		"one after the other": {func(f *forge) { f.two("x", "x"); f.execute("a"); f.execute("b"); f.remove("a") }, ""},
		"two at once": {func(f *forge) {
			f.two("x", "y")
			f.start("a", "b")
			f.claim("b", "one")
			f.claim("a", "one")
			f.phase("a", completed)
			f.phase("b", completed)
		}, ""},
		"passed by one that it does not overlap": {func(f *forge) { f.two("x", "y"); f.execute("b"); f.execute("a") }, ""},
		"passed when it is cancelled": {func(f *forge) {
			f.two("x", "x")
			f.change("a", func(run *enginev1alpha1.BackupRun) { run.Spec.Cancellation = &enginev1alpha1.Ask{} })
			f.execute("b")
			f.phase("a", v1alpha1.BackupPhaseCancelled)
		}, ""},
		"passed while its location is down": {func(f *forge) {
			f.two("x", "x")
			f.location(false)
			f.execute("b")
			f.location(true)
			f.execute("a")
		}, ""},
		"passed by one that overlaps it, while it moves data": {func(f *forge) {
			f.two("x", "x")
			f.start("a")
			f.claim("a", "one")
			f.phase("a", moving)
			f.start()
			f.execute("b")
			f.change("a", func(run *enginev1alpha1.BackupRun) { run.Status.Executor, run.Status.Attempts = "two", 2 })
			f.phase("a", completed)
		}, ""},
		"moving, and begun": {func(f *forge) {
			f.two("x", "y")
			f.execute("b")
			f.start("a")
			f.claim("a", "one")
			f.phase("a", moving)
			f.claim("a", "one")
			f.phase("a", completed)
		}, "a was begun 2 times"},
		"moving, but never begun": {func(f *forge) { f.two("x", "y"); f.execute("b"); f.phase("a", moving); f.phase("a", completed) }, `a went from "Queued" to "WaitingForPluginOperations"`},
		"put back": {func(f *forge) {
			f.two("x", "x")
			f.start("a")
			f.start()
			f.execute("a")
			f.execute("b")
		}, ""},
		"the deletion of one that had ended before": {func(f *forge) {
			f.create("a")
			f.events = nil
			f.create("b")
			f.events = nil
			f.change("a", func(run *enginev1alpha1.BackupRun) { run.Spec.Deletion = &enginev1alpha1.Deletion{} })
			f.remove("a")
		}, ""},
		"overlapping": {func(f *forge) {
			f.two("x", "x")
			f.start("a")
			f.claim("a", "one")
			f.start("a", "b")
			f.phase("a", completed)
			f.claim("b", "one")
			f.phase("b", completed)
		}, "b and a overlap, and both hold a slot"},
		"overlapping in one write": {func(f *forge) {
			f.two("x*", "xy")
			f.start("a", "b")
			f.claim("a", "one")
			f.phase("a", completed)
			f.claim("b", "one")
			f.phase("b", completed)
		}, "overlap, and both hold a slot"},
		"too many": {func(f *forge) {
			f.two("x", "y")
			f.create("c", "z")
			f.queue("c", 3)
			f.start("a", "b", "c")
			for _, name := range []string{"a", "b", "c"} {
				f.claim(name, "one")
				f.phase(name, completed)
			}
		}, "3 backups hold a slot, and the limit is 2"},
		"overtaken": {func(f *forge) { f.two("x", "x"); f.execute("b"); f.execute("a") }, "b with ticket 2 was let start, and a with ticket 1"},
		"overtaken, and its location was down before it waited": {func(f *forge) {
			f.location(false)
			f.location(true)
			f.two("x", "x")
			f.execute("b")
			f.execute("a")
		}, "b with ticket 2 was let start, and a with ticket 1"},
		"overtaken, and its location was down until a write without an answer": {func(f *forge) {
			f.location(false)
			down := f.version
			f.two("x", "x")
			f.execute("b")
			f.location(true)
			f.replaces(down)
			f.answer(504)
			f.execute("a")
		}, ""},
		"ended twice": {func(f *forge) {
			f.two("x", "y")
			f.execute("a")
			f.execute("b")
			f.phase("a", v1alpha1.BackupPhaseFailed)
		}, "a had ended as Completed, and became Failed"},
		"ended, and begun": {func(f *forge) { f.two("x", "y"); f.execute("a"); f.execute("b"); f.execute("a") }, "a had ended as Completed, and became InProgress"},
		"begun twice": {func(f *forge) {
			f.two("x", "y")
			f.execute("b")
			f.start("a")
			f.claim("a", "one")
			f.phase("a", v1alpha1.BackupPhaseQueued)
			f.claim("a", "one")
			f.phase("a", completed)
		}, "a was begun 2 times"},
		"begun by another": {func(f *forge) {
			f.two("x", "y")
			f.execute("b")
			f.start("a")
			f.claim("a", "two")
			f.phase("a", completed)
		}, "a was begun by two, and one led"},
		"taken over while it was executed": {func(f *forge) {
			f.two("x", "y")
			f.execute("b")
			f.start("a")
			f.claim("a", "one")
			f.claim("a", "two")
			f.phase("a", completed)
		}, "a was executed by one, and then by two"},
		"begun without a start": {func(f *forge) {
			f.two("x", "y")
			f.execute("b")
			f.claim("a", "one")
			f.phase("a", completed)
		}, "a was begun without a start"},
		"left the ledger too early": {func(f *forge) {
			f.two("x", "y")
			f.execute("b")
			f.start("a")
			f.claim("a", "one")
			f.start()
			f.phase("a", completed)
		}, "a left the ledger while it was in progress"},
		"ended, but never begun": {func(f *forge) { f.two("x", "y"); f.execute("b"); f.phase("a", completed) }, `a went from "Queued" to "Completed"`},
		"another ticket":         {func(f *forge) { f.two("x", "y"); f.queue("a", 3); f.execute("b"); f.execute("a") }, "a had the ticket 1, and then 3"},
		"not ended":              {func(f *forge) { f.two("x", "y"); f.execute("a") }, `b has not ended: its phase is "Queued"`},
		"removed before its end": {func(f *forge) { f.two("x", "y"); f.execute("a"); f.remove("b") }, "b has not ended"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newForge(t)
			c.forge(f)
			h, err := f.read()
			if err != nil {
				t.Fatal(err)
			}
			errs := h.Check(2)
			if c.want == "" && len(errs) > 0 {
				t.Fatalf("it finds %v", errs)
			}
			found := c.want == ""
			for _, err := range errs {
				found = found || strings.Contains(err.Error(), c.want)
			}
			if !found {
				t.Errorf("it finds %v, not %q", errs, c.want)
			}
		})
	}
}

// answer changes the answer to the last request.
func (f *forge) answer(code int32) {
	last := &f.events[len(f.events)-1]
	last.ResponseStatus, last.ResponseObject = &metav1.Status{Code: code}, nil
}

// replaces makes the last write one of the version of its object with this number.
func (f *forge) replaces(version int) {
	last := &f.events[len(f.events)-1]
	location := &enginev1alpha1.StorageLocation{}
	if err := json.Unmarshal(last.RequestObject.Raw, location); err != nil {
		f.t.Fatal(err)
	}
	location.ResourceVersion = strconv.Itoa(version)
	last.RequestObject = f.raw(location)
}

// TestUnanswered: a write whose answer was lost is known by what came behind it.
func TestUnanswered(t *testing.T) {
	f := newForge(t)
	f.start() // what the ledger was before is not in the log
	f.two("x", "x")
	f.start("a")
	f.answer(500)
	f.claim("a", "one")
	f.answer(0)
	f.phase("a", completed)
	f.answer(504)
	f.remove("a")
	f.start("b")
	f.claim("b", "one")
	f.phase("b", completed)
	f.answer(500)
	h, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	if errs := h.Check(1); len(errs) > 0 {
		t.Errorf("it finds %v", errs)
	}
	runs := h.Runs()
	if h.Unanswered != 4 || len(runs) != 2 || runs[0].Name != "a" || runs[1].Status.Phase != completed {
		t.Errorf("%d were not answered, and the runs are %v", h.Unanswered, runs)
	}
}

// TestUnansweredAndRefused: what was not written is not in the history.
func TestUnansweredAndRefused(t *testing.T) {
	f := newForge(t)
	f.two("x", "x")
	f.execute("a")
	b := *f.runs["b"]
	f.claim("b", "two")
	f.answer(500)
	f.claim("b", "two")
	f.answer(500)
	f.events[len(f.events)-1].RequestObject = nil
	f.runs["b"] = &b
	f.execute("b")
	h, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	if errs := h.Check(1); len(errs) > 0 || h.Unanswered != 0 {
		t.Errorf("it finds %v, and %d without an answer", errs, h.Unanswered)
	}
}

// TestTwoUnansweredWrites: of a report of progress and an end that had no answer, the report was written
// if another process goes on with the run.
func TestTwoUnansweredWrites(t *testing.T) {
	f := newForge(t)
	f.two("x", "x")
	f.start("a")
	f.claim("a", "one")
	run := *f.runs["a"]
	f.phase("a", completed)
	f.answer(504)
	f.version--
	f.runs["a"] = &run
	f.change("a", func(run *enginev1alpha1.BackupRun) { run.Status.Progress = &v1alpha1.BackupProgress{TotalItems: 1} })
	f.answer(504)
	written := f.version
	f.claim("a", "two")
	f.phase("a", completed)
	f.remove("a")
	f.execute("b")
	h, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	if h.Unanswered != 1 {
		t.Errorf("%d writes without an answer were made, want version %d alone", h.Unanswered, written)
	}
}

// TestUnansweredBeforeItsClaim: a run that waits in the queue, by a write without an answer, is claimed.
func TestUnansweredBeforeItsClaim(t *testing.T) {
	f := newForge(t)
	f.two("x", "x")
	f.change("a", func(run *enginev1alpha1.BackupRun) { run.Status.Phase = v1alpha1.BackupPhaseQueued })
	f.answer(504)
	f.start("a")
	f.claim("a", "one")
	f.phase("a", completed)
	f.remove("a")
	f.execute("b")
	h, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	if h.Unanswered != 1 {
		t.Errorf("%d writes without an answer were made, want 1", h.Unanswered)
	}
}

// TestTwoUnansweredWritesBeforeTheDeletion: of a report of progress and an end that had no answer, the
// end was written if the record is deleted.
func TestTwoUnansweredWritesBeforeTheDeletion(t *testing.T) {
	f := newForge(t)
	f.two("x", "x")
	f.start("a")
	f.claim("a", "one")
	run := *f.runs["a"]
	f.change("a", func(run *enginev1alpha1.BackupRun) { run.Status.Progress = &v1alpha1.BackupProgress{TotalItems: 1} })
	f.answer(504)
	f.version--
	f.runs["a"] = &run
	f.phase("a", completed)
	f.answer(504)
	f.remove("a")
	f.execute("b")
	h, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	if runs := h.Runs(); h.Unanswered != 1 || runs[0].Status.Phase != completed {
		t.Errorf("%d writes without an answer were made, and a is %q, want 1 and %q", h.Unanswered, runs[0].Status.Phase, completed)
	}
}

func TestIncompleteLog(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(f *forge)
		want string
	}{
		"a version that another one has replaced": {func(f *forge) { f.events = slices.Delete(f.events, 2, 3) }, "version 103 is not in the log"},
		"the last one":           {func(f *forge) { f.events = f.events[:len(f.events)-1] }, "is not in the log"},
		"an answer of a refusal": {func(f *forge) { f.answer(409) }, "is not in the log"},
		"no objects":             {func(f *forge) { f.events[0].ResponseObject = nil }, "--audit-objects"},
		"a patch":                {func(f *forge) { f.events[len(f.events)-1].Verb = "patch" }, "a patch does not say"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newForge(t)
			f.two("x", "x")
			f.execute("a")
			f.execute("b")
			c.lose(f)
			if _, err := f.read(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, not %q", err, c.want)
			}
		})
	}
}
