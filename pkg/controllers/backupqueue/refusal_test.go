// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// A webhook may refuse what it does not like, for as long as it likes.
func TestARefusedRecordHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue))
		refused := func(action clienttesting.Action) enginetest.Fault {
			if run := written(action); run != nil && strings.HasPrefix(run.Name, "disliked") {
				return enginetest.Fault{Err: apierrors.NewForbidden(v1alpha1.Resource("backupruns"), run.Name, errors.New("admission webhook denied the request"))}
			}
			return enginetest.Fault{}
		}
		h.Fault(refused)
		h.start(3)
		h.Create(newRun("disliked", 1, "a"))
		dropped := newRun("disliked-and-cancelled", 2, "b")
		dropped.Spec.Cancellation = &enginev1alpha1.Ask{}
		h.Create(dropped)
		h.Create(newRun("fine", 3, "a"))
		began := time.Now()
		h.expect(ready, "fine")
		h.atOnce(began)
		if event := <-h.events.Events; !strings.Contains(event, "Warning RecordRefused") || !strings.Contains(event, "denied the request") {
			t.Errorf("the event says %q", event)
		}
		h.Create(newRun("overlaps", 4, "b"))
		h.expect(ready, "fine", "overlaps")
		h.Fault(nil)
		time.Sleep(backstop)
		h.expect(queued, "disliked")
		h.expect(cancelled, "disliked-and-cancelled")
	})
}
