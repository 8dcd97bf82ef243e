// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// worthTelling is how long a run waits before events say so. An event costs a
// write, and the backup's conditions say it at once.
const worthTelling = time.Minute

const (
	// eventsAtOnce is how many events are sent each time: of thousands that wait for
	// the same, nobody reads all.
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

// tell says why runs wait: in the log when one is passed over for the first time,
// and by events when it takes longer, once for each reason.
func (c *Controller) tell(ctx context.Context, d *decision) {
	c.planning.Lock()
	defer c.planning.Unlock()
	if now := c.clock.Now(); !now.Before(c.nextTell) {
		c.tellWaits(now, d)
		c.nextTell = now.Add(backstop)
	}
	if len(d.Start) > 0 {
		c.tellPassedOver(ctx, d)
	}
}

// tellPassedOver looks at those ahead of the last one that starts.
func (c *Controller) tellPassedOver(ctx context.Context, d *decision) {
	last, _ := c.planner.Entry(d.Start[len(d.Start)-1])
	lines := 0
	for i := d.SlotsInUse; i < d.SlotsInUse+last.Position-1; i++ {
		t := c.toldOf(c.planner.RunAt(i).UID)
		if t.overtaken && (t.logged || lines == linesAtOnce) || c.planner.ReasonAt(i) == v1alpha1.QueueReasonNextToStart {
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

// tellWaits looks at all that wait.
func (c *Controller) tellWaits(now time.Time, d *decision) {
	before := c.told
	c.told = make(map[string]*told, len(before))
	events := 0
	for i := d.SlotsInUse; i < c.planner.Len(); i++ {
		reason := c.planner.ReasonAt(i)
		if reason == v1alpha1.QueueReasonNextToStart {
			continue
		}
		run := c.planner.RunAt(i)
		t := before[run.UID]
		if t == nil {
			t = &told{}
		}
		c.told[run.UID] = t
		held := reason == v1alpha1.QueueReasonStorageUnavailable
		t.held = t.held && held // it is told again when it is held again
		word := t.next(held)
		if word == "" || now.Sub(run.WaitingSince()) < worthTelling {
			continue
		}
		// What a process finds when it begins was told before.
		if before != nil {
			if events == eventsAtOnce {
				continue
			}
			events++
			c.tellWait(i, word)
		}
		t.mark(word)
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

func (t *told) mark(event string) {
	t.queued = true // each says that it waits
	t.held = t.held || event == eventHeld
	t.passedOver = t.passedOver || event == eventPassedOver
}

func (c *Controller) tellWait(i int, event string) {
	entry := queue.Redact(c.planner.EntryAt(i), c.namespace)
	note := fmt.Sprintf("The backup waits at position %d: %s", entry.Position, entry.Message)
	if event == eventPassedOver {
		note = fmt.Sprintf("Others have passed the backup, which waits at position %d: %s", entry.Position, entry.Message)
	}
	c.events.Eventf(records.BackupReference(c.known[entry.Key]), nil, corev1.EventTypeNormal, event, "Queue", "%s", cut(note))
}

// cut shortens a note to what an event may hold.
func cut(note string) string {
	const longest = 1000
	if len(note) > longest {
		note = strings.ToValidUTF8(note[:longest], "")
	}
	return note
}
