// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// worthTelling is how long a run waits before events say more than that it does. An
// event costs a write, and the backup's conditions say it at once.
const worthTelling = time.Minute

const (
	// eventsAtOnce is how many events about waiting are sent at once, and then in
	// each backstop: of thousands that wait for the same, nobody reads all.
	eventsAtOnce = 100
	// linesAtOnce is how many lines of log a decision may cost.
	linesAtOnce = 20
)

// told is what people were told of a run that waits.
type told struct {
	queued, passedOver, held, logged bool
	// overtaken is set once another run has started from behind it.
	overtaken bool
}

// tell says why runs wait: by an event when one gets its place and does not start at
// once, by others when it takes longer, once for each reason, and in the log when one
// is passed over for the first time.
func (c *Controller) tell(ctx context.Context, d *decision) {
	c.planning.Lock()
	defer c.planning.Unlock()
	waiting := d.SlotsInUse + len(d.Start)
	if now := c.clock.Now(); !now.Before(c.nextTell) {
		c.tellWaits(now, waiting)
		c.nextTell = now.Add(backstop)
	}
	c.tellEnqueued()
	if n := len(d.Start); n > 0 {
		c.tellPassedOver(ctx, waiting, c.known[d.Start[n-1]].Status.Ticket)
	}
}

// tellPassedOver looks at those of the waiting that are ahead of the last one that
// has started.
func (c *Controller) tellPassedOver(ctx context.Context, waiting int, ticket int64) {
	lines := 0
	for i := waiting; i < c.planner.Len() && c.planner.RunAt(i).Ticket < ticket; i++ {
		t := c.toldOf(c.planner.RunAt(i).UID)
		if t.overtaken && (t.logged || lines == linesAtOnce) {
			continue
		}
		t.overtaken = true
		if t.logged || lines == linesAtOnce {
			continue
		}
		t.logged = true
		lines++
		entry := c.planner.EntryAt(i)
		var blockers []string
		for _, blocker := range entry.Blockers {
			blockers = append(blockers, blocker.Key)
		}
		klog.FromContext(ctx).Info("Backup is passed over", "backupRun", entry.Key, "reason", entry.Reason, "blockers", blockers,
			"namespaces", entry.ConflictNamespaces, "moreNamespaces", entry.MoreConflicts)
	}
}

func (c *Controller) toldOf(uid string) *told {
	t := c.told[uid]
	if t == nil {
		t = &told{}
		c.told[uid] = t
	}
	return t
}

// tellEnqueued looks at those that have got their place since the last decision, and
// have not left it already.
func (c *Controller) tellEnqueued() {
	for _, name := range c.enqueued {
		entry, ok := c.planner.Entry(name)
		if !ok || entry.Position == 0 {
			continue
		}
		if t := c.toldOf(entry.UID); !t.queued && c.waitEvents.TryAccept() {
			c.tellWait(entry, t, t.next(entry.Reason == v1alpha1.QueueReasonStorageUnavailable))
		}
	}
	c.enqueued = nil
}

// tellWaits looks at all that wait: from this index on.
func (c *Controller) tellWaits(now time.Time, waiting int) {
	before := c.told
	c.told = make(map[string]*told, len(before))
	first := c.nextTell.IsZero()
	for i := waiting; i < c.planner.Len(); i++ {
		run := c.planner.RunAt(i)
		held := c.planner.ReasonAt(i) == v1alpha1.QueueReasonStorageUnavailable
		t := before[run.UID]
		if t == nil {
			// What a process finds when it begins was told before.
			t = &told{queued: first, held: first && held}
		}
		c.told[run.UID] = t
		t.held = t.held && held // it is told again when it is held again
		event := t.next(held)
		if event == "" || t.queued && now.Sub(run.WaitingSince()) < worthTelling || !c.waitEvents.TryAccept() {
			continue
		}
		c.tellWait(c.planner.EntryAt(i), t, event)
	}
}

// The reasons of events.
const (
	eventQueued     = "Queued"
	eventPassedOver = "PassedOver"
	eventHeld       = "Held"
)

// next is what to tell of a run that waits; "" for nothing new.
func (t *told) next(held bool) string {
	switch {
	case held && !t.held:
		return eventHeld
	case t.overtaken && !t.passedOver:
		return eventPassedOver
	case !t.queued:
		return eventQueued
	}
	return ""
}

// tellWait sends one of them.
func (c *Controller) tellWait(entry queue.Entry, t *told, event string) {
	t.queued = true // each says that it waits
	t.held = t.held || event == eventHeld
	t.passedOver = t.passedOver || event == eventPassedOver

	entry = queue.Redact(entry, c.namespace)
	note := fmt.Sprintf("The backup waits at position %d: %s", entry.Position, entry.Message)
	if event == eventPassedOver {
		note = fmt.Sprintf("Others have passed the backup, which waits at position %d: %s", entry.Position, entry.Message)
	}
	c.events.Eventf(records.BackupReference(c.known[entry.Key]), nil, corev1.EventTypeNormal, event, "Queue", "%s", note)
}
