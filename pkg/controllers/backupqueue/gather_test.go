// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// An informer that was cut off for a while sees a record that was replaced as one
// that has changed. What had ended holds nothing.
func TestARecordThatWasReplacedUnnoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), inPhase(newRun("a", 1, "a"), ended, 1))
		h.alive("another process")
		before := h.run("a")
		h.writeLedger(records.Start{UID: before.UID, Name: "a", By: "another process"})
		h.remove("a")
		h.Create(newRun("a", 2, "b"))

		c := h.prepare(1) // its informers have not seen the first one
		defer c.queue.ShutDown()
		after := h.run("a")
		c.news.runChanged(before, after)
		if _, err := c.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.expect(ready, "a")
		if ledger := h.ledger(); len(ledger) != 1 || ledger[0].UID != after.UID {
			t.Errorf("the ledger has %v", ledger)
		}
	})
}

// What no event tells of is found all the same.
func TestALostEventIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"), newRun("b", 2, "b"))
		c := h.prepare(1)
		defer c.queue.ShutDown()
		mustSync := func() {
			if _, err := c.sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		mustSync()
		h.expect(ready, "a")
		mustSync() // its own writes have come back
		h.end("a")
		synctest.Wait()
		c.news.take() // lost
		mustSync()
		h.expect(ready)
		time.Sleep(backstop)
		mustSync()
		h.expect(ready, "b")
	})
}
