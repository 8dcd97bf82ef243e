// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
)

// The tickets of thousands take a minute.
func TestAStartDoesNotWaitForTheTicketsOfABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 2*ticketsAtOnce + ticketsAtOnce/2
		h := newHarness(t, location("default", metav1.ConditionTrue))
		for i := range burst {
			h.Create(newRun(fmt.Sprintf("run-%03d", i), i, "a"))
		}
		tickets, atStart := 0, 0
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if run := enginetest.Written(action); run != nil && run.Status.Phase == queued {
				tickets++
			}
			if atStart == 0 && isStart(action, "run-000") {
				atStart = tickets
			}
			return enginetest.Fault{}
		})
		began := time.Now()
		h.start(1)
		h.expect(ready, "run-000")
		h.AtOnce(began)
		if atStart != ticketsAtOnce {
			t.Errorf("%d tickets were written before the first start, want %d", atStart, ticketsAtOnce)
		}
		for i := range burst {
			name := fmt.Sprintf("run-%03d", i)
			if got := h.Run(name).Status.Ticket; got != int64(i+1) {
				t.Errorf("%s has the ticket %d, want %d", name, got, i+1)
			}
		}
		if tickets != burst {
			t.Errorf("%d writes of tickets for %d runs", tickets, burst)
		}
	})
}
