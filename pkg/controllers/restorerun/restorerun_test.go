// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/restore"
)

const (
	system   = enginetest.System
	identity = "this process"
)

// work is a fake of the executor's. The zero value completes at once.
type work struct {
	execute     func(ctx context.Context) error
	unreachable error
	// foreign is set if the store keeps no backups.
	foreign bool

	mu                                  sync.Mutex
	executed, stops, forgotten, storing int
	// unstopped and unstored are how often stopping and storing are to fail.
	unstopped, unstored int
	stored              []v1alpha1.RestorePhase
	// before is what another process has stored, if one has.
	before v1alpha1.RestorePhase
	// replaced is what is said of what somebody else has put there.
	replaced string
}

func (w *work) Reach(context.Context, *enginev1alpha1.RestoreRun) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unreachable
}

func (w *work) Execute(ctx context.Context, run *enginev1alpha1.RestoreRun, _ *Progress) *restore.Ended {
	w.mu.Lock()
	w.executed++
	w.mu.Unlock()
	if w.execute != nil {
		if err := w.execute(ctx); err != nil {
			return restore.Fail(ctx, restore.Request{Run: run, SystemNamespace: system}, clock.RealClock{}, err)
		}
	}
	return &restore.Ended{Status: v1alpha1.RestoreStatus{Phase: v1alpha1.RestorePhaseCompleted, CompletionTimestamp: new(metav1.Now())}}
}

func (w *work) Stop(context.Context, *enginev1alpha1.RestoreRun) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stops++; w.stops <= w.unstopped {
		return errors.New("an agent does not answer")
	}
	return nil
}

func (w *work) Forget(context.Context, *enginev1alpha1.RestoreRun) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgotten++
	return nil
}

func (w *work) Store(_ context.Context, _ *enginev1alpha1.RestoreRun, ended *restore.Ended) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.storing++; w.foreign {
		return location.ErrForeign
	}
	if w.storing <= w.unstored {
		return errors.New("the store does not answer")
	}
	if w.before != "" {
		ended.Status.Phase = w.before
	}
	if len(w.stored) == 0 {
		ended.Replaced = w.replaced
	}
	w.stored = append(w.stored, ended.Status.Phase)
	ended.Digests = map[string]string{"log": "digest"}
	return nil
}

// harness runs a controller on a cluster with the run undo, which was let start.
type harness struct {
	*enginetest.Queue
	work      *work
	takenBack int
	held      []string
}

func newHarness(t *testing.T, w *work, change ...func(*enginev1alpha1.RestoreRun)) *harness {
	h := &harness{Queue: enginetest.NewQueue(t), work: w}
	run := &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "undo", UID: "uid-of-undo"},
		Spec:       enginev1alpha1.RestoreRunSpec{RestoreRef: v1alpha1.BackupReference{Namespace: system, Name: "undo"}},
		Status:     enginev1alpha1.RestoreRunStatus{Phase: v1alpha1.RestorePhaseQueued, Ticket: 1},
	}
	for _, c := range change {
		c(run)
	}
	h.Create(run)
	h.WriteLedger(records.Start{UID: run.UID, Name: run.Name})
	ledger := h.LedgerObject()
	ledger.Data[records.LeaderKey] = identity
	if _, err := h.Kube.CoreV1().ConfigMaps(system).Update(t.Context(), ledger, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *harness) TakeBack(context.Context, types.UID, *enginev1alpha1.StorageLocation) error {
	h.takenBack++
	h.WriteLedger()
	return nil
}

func (h *harness) Changed(string) {}

func (h *harness) start() {
	h.Helper()
	controller := h.controller()
	go controller.Run(h.Context())
	controller.Start("undo")
	time.Sleep(10 * time.Second) // the loop begins when informers have synced
	synctest.Wait()
}

func (h *harness) controller() *Controller {
	h.Helper()
	factory := enginefactory.NewSharedInformerFactory(h.Cluster, 0)
	controller, err := New(Config{
		Namespace: system, Workers: 1, Identity: identity, Queue: h, Engine: h.EngineV1alpha1(), ConfigMaps: h.Kube.CoreV1().ConfigMaps(system),
		Leads: func(context.Context) error { return nil }, Executor: h.work, HoldLocation: func(_ context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error) {
			h.held = append(h.held, reason.Error())
			return &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
		},
		Events: h.Events, Clock: clock.RealClock{}, RunInformer: factory.Engine().V1alpha1().RestoreRuns(),
	})
	if err != nil {
		h.Fatal(err)
	}
	factory.StartWithContext(h.Context())
	h.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(h.Context().Done())
	return controller
}

func (h *harness) run() *enginev1alpha1.RestoreRun {
	h.Helper()
	run, err := h.EngineV1alpha1().RestoreRuns(system).Get(h.Context(), "undo", metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return run
}

// writes breaks the writes of a run's status of which which is true, so many times.
func (h *harness) writes(times int, fault enginetest.Fault, which func(*enginev1alpha1.RestoreRun) bool) {
	var mu sync.Mutex
	h.Fault(func(action clienttesting.Action) enginetest.Fault {
		update, ok := action.(clienttesting.UpdateAction)
		if !ok {
			return enginetest.Fault{}
		}
		run, ok := update.GetObject().(*enginev1alpha1.RestoreRun)
		mu.Lock()
		defer mu.Unlock()
		if !ok || times == 0 || !which(run) {
			return enginetest.Fault{}
		}
		times--
		return fault
	})
}

func hasEnded(run *enginev1alpha1.RestoreRun) bool { return run.Status.Phase.Ended() }
func isClaimed(run *enginev1alpha1.RestoreRun) bool {
	return run.Status.Phase == v1alpha1.RestorePhaseInProgress
}

// TestAnotherEndIsStored: where another process has stored how a run ended, the record says that
// in the end, though the store did not answer when this one wrote it.
func TestAnotherEndIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{unstored: 1, before: v1alpha1.RestorePhasePartiallyFailed})
		h.start()
		time.Sleep(2 * storeRetry)
		synctest.Wait()
		if status := h.run().Status; status.Phase != v1alpha1.RestorePhasePartiallyFailed || !status.Stored {
			t.Errorf("the record says %s, stored: %t", status.Phase, status.Stored)
		}
	})
}

// TestOverwrittenEndIsTold: what was overwritten in the store is told once, and changes no end.
func TestOverwrittenEndIsTold(t *testing.T) {
	for name, unstored := range map[string]int{"at once": 0, "late": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, &work{unstored: unstored, replaced: "somebody writes there"})
				h.start()
				time.Sleep(2 * storeRetry)
				synctest.Wait()
				if status := h.run().Status; status.Phase != v1alpha1.RestorePhaseCompleted || !status.Stored {
					t.Errorf("the record says %s, stored: %t", status.Phase, status.Stored)
				}
				told := 0
				for _, event := range h.Told() {
					if strings.Contains(event, "EndReplaced somebody writes there") {
						told++
					}
				}
				if told != 1 {
					t.Errorf("it is told %d times", told)
				}
			})
		})
	}
}

// TestRetries: whatever is refused or lost, a run is executed to its end, once, and its end
// stands in the store and in the record.
func TestRetries(t *testing.T) {
	down, conflict := errors.New("connection refused"), apierrors.NewConflict(enginev1alpha1.Resource("restoreruns"), "undo", errors.New("changed"))
	for name, breaks := range map[string]func(h *harness){
		"nothing":                      func(*harness) {},
		"the claim is refused":         func(h *harness) { h.writes(3, enginetest.Fault{Err: down}, isClaimed) },
		"the answer to it is lost":     func(h *harness) { h.writes(1, enginetest.Fault{Err: down, Lost: true}, isClaimed) },
		"the end is refused":           func(h *harness) { h.writes(5, enginetest.Fault{Err: down}, hasEnded) },
		"the end meets a conflict":     func(h *harness) { h.writes(2, enginetest.Fault{Err: conflict}, hasEnded) },
		"the answer to it is lost too": func(h *harness) { h.writes(1, enginetest.Fault{Err: down, Lost: true}, hasEnded) },
		"agents do not stop":           func(h *harness) { h.work.unstopped = 4 },
		"the store is away":            func(h *harness) { h.work.unstored = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, &work{})
				breaks(h)
				h.start()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				run := h.run()
				if run.Status.Phase != v1alpha1.RestorePhaseCompleted || !run.Status.Stored || run.Status.Digests["log"] != "digest" || run.Status.Attempts != 1 {
					t.Errorf("it is %+v", run.Status)
				}
				if h.work.executed != 1 || len(h.work.stored) != 1 || h.work.forgotten != 1 {
					t.Errorf("executed %d, stored %q, forgotten %d times", h.work.executed, h.work.stored, h.work.forgotten)
				}
			})
		})
	}
}

// TestGoneOnWith: a run that another process left is claimed and executed, but not more often
// than any process survives. Those do not count that were told to stop.
func TestGoneOnWith(t *testing.T) {
	for _, c := range []struct {
		attempts, givenBack int32
		phase               v1alpha1.RestorePhase
		reason              string
	}{
		{1, 0, v1alpha1.RestorePhaseCompleted, ""},
		{maxAttempts, 0, v1alpha1.RestorePhaseFailed, "the controller stopped 10 times while it executed the restore: "},
		{maxAttempts, 1, v1alpha1.RestorePhaseCompleted, ""},
		{runs.MaxGiven - 1, runs.MaxGiven - 2, v1alpha1.RestorePhaseCompleted, ""},
		{runs.MaxGiven, runs.MaxGiven - 1, v1alpha1.RestorePhaseFailed, "the controller stopped 20 times while it executed the restore, and 19 times it was told to: "},
	} {
		synctest.Test(t, func(t *testing.T) {
			attempts, phase := c.attempts, c.phase
			h := newHarness(t, &work{}, func(run *enginev1alpha1.RestoreRun) {
				run.Status.Phase, run.Status.Executor, run.Status.Attempts = v1alpha1.RestorePhaseInProgress, "a process before", attempts
				run.Status.GivenBack = c.givenBack
			})
			h.start()
			run := h.run()
			if run.Status.Phase != phase || !strings.HasPrefix(run.Status.FailureReason, c.reason) || run.Status.Attempts != attempts+1 || run.Status.Executor != identity {
				t.Errorf("after %d attempts: %+v", attempts, run.Status)
			}
		})
	}
}

// TestProcessThatIsToldToStop: an attempt whose process is told to stop is given back. One whose
// process has lost its Lease is not.
func TestProcessThatIsToldToStop(t *testing.T) {
	for cause, given := range map[error]int32{context.Canceled: 1, lease.ErrLost: 0} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, &work{execute: func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}})
			ctx, stop := context.WithCancelCause(t.Context())
			stopped := make(chan struct{})
			controller := h.controller()
			go func() {
				defer close(stopped)
				controller.Run(ctx)
			}()
			controller.Start("undo")
			time.Sleep(10 * time.Second)
			stop(cause)
			<-stopped
			if status := h.run().Status; status.Phase != v1alpha1.RestorePhaseInProgress || status.Attempts != 1 || status.GivenBack != given {
				t.Errorf("stopped by %v: %+v", cause, status)
			}
		})
	}
}

// TestTakenOver: what another process writes that has taken a run over goes on.
func TestTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h *harness
		h = newHarness(t, &work{execute: func(ctx context.Context) error {
			run, err := h.EngineV1alpha1().RestoreRuns(system).Get(ctx, "undo", metav1.GetOptions{})
			if err != nil {
				return err
			}
			run.Status.Executor = "the next one"
			_, err = h.EngineV1alpha1().RestoreRuns(system).UpdateStatus(ctx, run, metav1.UpdateOptions{})
			h.WriteLedger() // the queue has it in its own
			return err
		}})
		h.start()
		if run := h.run(); h.work.executed != 1 || h.work.stops+h.work.storing+h.work.forgotten > 0 || run.Status.Executor != "the next one" || run.Status.Phase.Ended() {
			t.Errorf("stopped %d times, stored %d times: %+v", h.work.stops, h.work.storing, run.Status)
		}
	})
}

// TestStoreThatIsAway: a run that has not begun goes back to its place.
func TestStoreThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{unreachable: errors.New("no route to host")})
		h.start()
		if run := h.run(); run.Status.Phase != v1alpha1.RestorePhaseQueued || h.takenBack != 1 || len(h.held) != 1 || h.work.executed > 0 {
			t.Errorf("it is %s, taken back %d times, its location held for %q, executed %d times", run.Status.Phase, h.takenBack, h.held, h.work.executed)
		}
	})
}

// TestLocationThatKeepsNoBackups: a location was made anew in another format. The run ends, and
// its end is not tried to be stored for ever.
func TestLocationThatKeepsNoBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{unreachable: location.ErrForeign, foreign: true, execute: func(context.Context) error { return location.ErrForeign }})
		h.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		h.work.mu.Lock()
		storing := h.work.storing
		h.work.mu.Unlock()
		if run := h.run(); run.Status.Phase != v1alpha1.RestorePhaseFailed || run.Status.Stored || h.takenBack != 0 || storing > 3 {
			t.Errorf("it is %s, stored: %t, taken back %d times, tried to be stored %d times", run.Status.Phase, run.Status.Stored, h.takenBack, storing)
		}
	})
}

// TestCancel: a run stops when it is cancelled, also while the record can't be written, and is
// Cancelled by whoever asked.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		h.start()
		run := h.run()
		run.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: metav1.Now()}
		if _, err := h.EngineV1alpha1().RestoreRuns(system).Update(t.Context(), run, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.writes(3, enginetest.Fault{Err: errors.New("connection refused")}, hasEnded)
		time.Sleep(time.Minute)
		synctest.Wait()
		if run := h.run(); run.Status.Phase != v1alpha1.RestorePhaseCancelled || !strings.Contains(run.Status.FailureReason, "cancelled by jane") || !run.Status.Stored {
			t.Errorf("it is %+v", run.Status)
		}
	})
}

// TestHooksAreBegunOnce: whatever is lost, the commands of a pod are begun by one process, and
// what became of them is known to the next.
func TestHooksAreBegunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, func(run *enginev1alpha1.RestoreRun) {
			run.Status.Phase, run.Status.Executor, run.Status.Attempts = v1alpha1.RestorePhaseInProgress, identity, 1
		})
		hooks := func() *runHooks { return &runHooks{runs: h.EngineV1alpha1().RestoreRuns(system), run: h.run()} }
		first := hooks()
		h.writes(2, enginetest.Fault{Err: errors.New("connection refused"), Lost: true}, isClaimed)
		if earlier, err := first.Begin(t.Context(), "db"); earlier != nil || err != nil {
			t.Fatalf("Begin, whose answer is lost: %+v, %v", earlier, err)
		}
		if earlier, err := first.Begin(t.Context(), "web"); earlier != nil || err != nil {
			t.Fatalf("Begin of another one: %+v, %v", earlier, err)
		}
		if err := first.End(t.Context(), enginev1alpha1.HookedPod{UID: "web", Ended: true, Failed: 1, Errors: []string{"no"}}); err != nil {
			t.Fatal(err)
		}
		run := h.run()
		run.Status.Executor, run.Status.Attempts = "the next one", 2
		if _, err := h.EngineV1alpha1().RestoreRuns(system).UpdateStatus(t.Context(), run, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := first.Begin(t.Context(), "more"); !errors.Is(err, errOthers) {
			t.Errorf("Begin by who leads no more: %v", err)
		}
		next := hooks()
		if earlier, err := next.Begin(t.Context(), "db"); err != nil || earlier == nil || earlier.Ended {
			t.Errorf("what had not ended: %+v, %v", earlier, err)
		}
		if earlier, err := next.Begin(t.Context(), "web"); err != nil || earlier == nil || !earlier.Ended || earlier.Failed != 1 || earlier.Errors[0] != "no" {
			t.Errorf("what had ended: %+v, %v", earlier, err)
		}
	})
}

// TestHooksThatTheRecordHasNoRoomFor: that they have ended is noted without their texts, and
// what can't be noted at all holds nobody up.
func TestHooksThatTheRecordHasNoRoomFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, func(run *enginev1alpha1.RestoreRun) {
			run.Status.Phase, run.Status.Executor, run.Status.Attempts = v1alpha1.RestorePhaseInProgress, identity, 1
		})
		hooks := &runHooks{runs: h.EngineV1alpha1().RestoreRuns(system), run: h.run()}
		if _, err := hooks.Begin(t.Context(), "db"); err != nil {
			t.Fatal(err)
		}
		tooLarge := enginetest.Fault{Err: apierrors.NewInternalError(errors.New("etcdserver: request is too large"))}
		h.writes(-1, tooLarge, func(run *enginev1alpha1.RestoreRun) bool { return len(run.Status.Hooked[0].Warnings) > 0 })
		ended := enginev1alpha1.HookedPod{UID: "db", Ended: true, Failed: 1, Warnings: []string{"no"}}
		if err := hooks.End(t.Context(), ended); err != nil {
			t.Error(err)
		}
		if noted := h.run().Status.Hooked; len(noted) != 1 || !noted[0].Ended || noted[0].Failed != 1 {
			t.Errorf("noted: %+v", noted)
		}
		h.writes(-1, tooLarge, isClaimed)
		if _, err := hooks.Begin(t.Context(), "web"); !errors.Is(err, tooLarge.Err) {
			t.Errorf("Begin: %v", err)
		}
		if err := hooks.End(t.Context(), ended); !errors.Is(err, tooLarge.Err) {
			t.Errorf("End: %v", err)
		}
	})
}
