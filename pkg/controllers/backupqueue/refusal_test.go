// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// A webhook may refuse what it does not like, for as long as it likes, and in any
// words.
func TestARefusedRecordHoldsNobodyUp(t *testing.T) {
	enginetest.Each(t, map[string]error{
		"forbidden":         apierrors.NewForbidden(v1alpha1.Resource("backupruns"), "disliked", errors.New("denied the request")),
		"bad request":       apierrors.NewBadRequest("denied the request"),
		"too large":         apierrors.NewRequestEntityTooLargeError("denied the request"),
		"teapot":            apierrors.NewGenericServerResponse(418, "update", v1alpha1.Resource("backupruns"), "disliked", "denied the request", 0, true),
		"it can't be asked": apierrors.NewInternalError(errors.New("failed calling webhook: denied the request")),
		"it says not found": apierrors.NewGenericServerResponse(404, "update", v1alpha1.Resource("backupruns"), "disliked", "denied the request", 0, true),
	}, func(t *testing.T, refusal error) {
		h := newHarness(t, location("default", metav1.ConditionTrue))
		var attempts int
		h.FaultRuns(enginetest.Fault{Err: refusal}, func(run *enginev1alpha1.BackupRun) bool {
			if strings.HasPrefix(run.Name, "disliked") {
				attempts++
			}
			return strings.HasPrefix(run.Name, "disliked")
		})
		h.start(3)
		h.Create(newRun("disliked", 1, "a"))
		dropped := newRun("disliked-and-cancelled", 2, "b")
		dropped.Spec.Cancellation = &enginev1alpha1.Ask{}
		h.Create(dropped)
		h.Create(newRun("fine", 3, "a"))
		h.expect(ready, "fine")
		if event := <-h.Events.Events; !strings.Contains(event, "Warning RecordRefused") {
			t.Errorf("the event says %q", event)
		}
		before, began := attempts, time.Now()
		h.Create(newRun("overlaps", 4, "b"))
		h.expect(ready, "fine", "overlaps")
		h.AtOnce(began)
		time.Sleep(time.Hour)
		synctest.Wait()
		if most := 2 * int(time.Hour/refusedRetry); attempts-before > most {
			t.Errorf("%d attempts in an hour, more than %d", attempts-before, most)
		}
		h.Fault(nil)
		time.Sleep(refusedRetry)
		h.expect(queued, "disliked")
		h.expect(cancelled, "disliked-and-cancelled")
	})
}

// A record that changes is tried again at once.
func TestARefusedRecordThatChangesIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue))
		denied := apierrors.NewForbidden(v1alpha1.Resource("backupruns"), "a", errors.New("a team is missing"))
		h.FaultRuns(enginetest.Fault{Err: denied}, func(run *enginev1alpha1.BackupRun) bool {
			return run.Status.Phase == queued && run.Labels["team"] == ""
		})
		h.start(1)
		h.Create(newRun("a", 1, "a"))
		h.expect(isNew, "a")
		began := time.Now()
		run := h.Run("a")
		run.Labels = map[string]string{"team": "shop"}
		h.Update(run)
		h.expect(ready, "a")
		h.AtOnce(began)
	})
}

// While the API server does not answer, nobody gets a place ahead of others.
func TestAnOutageChangesNoOrder(t *testing.T) {
	enginetest.Each(t, map[string]error{
		"no answer":   errors.New("connection refused"),
		"overloaded":  apierrors.NewTooManyRequests("later", 1),
		"unavailable": apierrors.NewServiceUnavailable("starting"),
		"conflict":    apierrors.NewConflict(v1alpha1.Resource("backupruns"), "first", errors.New("the object has been modified")),
	}, func(t *testing.T, outage error) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("first", 1, "a"), newRun("second", 2, "a"))
		failures := 3
		h.FaultRuns(enginetest.Fault{Err: outage}, func(run *enginev1alpha1.BackupRun) bool {
			if run.Name == "first" {
				failures--
			}
			return run.Name == "first" && failures >= 0
		})
		h.start(1)
		time.Sleep(time.Minute)
		h.expect(ready, "first")
		if first, second := h.Run("first").Status.Ticket, h.Run("second").Status.Ticket; first >= second {
			t.Errorf("the first has ticket %d, the second %d", first, second)
		}
	})
}

// A webhook that times out is asked a few times, and then what may start does, and what is
// cancelled ends. All that the webhook refuses get their turn.
func TestAWebhookThatTimesOutHoldsUpLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const runs = 100
		h := newHarness(t, location("default", metav1.ConditionTrue))
		for i := range runs {
			h.Create(newRun(fmt.Sprintf("new-%03d", i), 1, "a"))
		}
		waits, dropped := newRun("waits", 0, "b"), newRun("dropped", 0, "b")
		for i, run := range []*enginev1alpha1.BackupRun{waits, dropped} {
			run.Status.Phase, run.Status.Ticket = queued, int64(i+1)
			h.Create(run)
		}
		var (
			asked   []string // of the webhook, in this order
			started bool
		)
		h.Observe(func(action clienttesting.Action, _ runtime.Object) { started = started || isStart(action, "waits") })
		h.FaultRuns(enginetest.Fault{Err: apierrors.NewInternalError(errors.New("failed calling webhook: timeout"))}, func(run *enginev1alpha1.BackupRun) bool {
			if !strings.HasPrefix(run.Name, "new-") {
				return false
			}
			asked = append(asked, run.Name)
			if !started && len(asked) > refusalsAtOnce {
				t.Errorf("%d attempts before anything starts", len(asked))
			}
			return true
		})
		h.start(1)
		h.expect(ready, "waits")
		if n := len(asked); n < refusalsAtOnce {
			t.Errorf("%d attempts", n)
		}
		cancel := h.Run("dropped")
		cancel.Spec.Cancellation = &enginev1alpha1.Ask{}
		h.Update(cancel)
		h.expect(cancelled, "dropped")
		time.Sleep(refusedRetry)
		synctest.Wait()
		if n := sets.New(asked...).Len(); n != runs {
			t.Errorf("%d of %d have had a turn", n, runs)
		}
		if first := asked[runs : runs+refusalsAtOnce]; !slices.Equal(first, asked[:refusalsAtOnce]) {
			t.Errorf("%q are tried again first, want those that were refused first: %q", first, asked[:refusalsAtOnce])
		}
	})
}
