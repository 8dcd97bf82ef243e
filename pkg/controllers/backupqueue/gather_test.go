// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What no event tells of is found all the same.
func TestALostEventIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, location("default", metav1.ConditionTrue), newRun("a", 1, "a"), newRun("b", 2, "b"))
		c := h.prepare(1)
		defer c.queue.ShutDown()
		mustSync := func() {
			if err := c.sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		mustSync()
		h.expect(ready, "a")
		mustSync() // its own writes have come back
		h.end("a")
		synctest.Wait()
		c.changed.Clear() // lost
		mustSync()
		h.expect(ready)
		time.Sleep(backstop)
		mustSync()
		h.expect(ready, "b")
	})
}
