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

// told is what people were told of a run that waits.
type told struct {
	queued, passedOver, held bool
	// overtaken is set once another run has started from behind it.
	overtaken bool
}

// tell says why runs wait: in the log when one is passed over for the first time,
// and by events when it takes longer, once for each reason.
func (c *Controller) tell(ctx context.Context, d *decision) {
	c.planning.Lock()
	defer c.planning.Unlock()
	now := c.clock.Now()
	if !now.Before(c.nextTell) {
		c.tellWaits(now, d)
		c.nextTell = now.Add(backstop)
	}
	if len(d.Start) > 0 {
		c.tellPassedOver(ctx, now, d)
	}
}

// tellWaits looks at all that wait.
func (c *Controller) tellWaits(now time.Time, d *decision) {
	before := c.told
	c.told = make(map[string]*told, len(before))
	for i := d.SlotsInUse; i < c.planner.Len(); i++ {
		reason := c.planner.ReasonAt(i)
		if reason == v1alpha1.QueueReasonNextToStart {
			continue
		}
		uid := c.planner.RunAt(i).UID
		t := before[uid]
		if t == nil {
			t = &told{}
		}
		c.told[uid] = t
		// What a process finds when it begins was told before.
		if word := t.next(reason, c.waited(now, i)); before != nil {
			c.tellWait(i, word)
		}
	}
}

// tellPassedOver looks at those ahead of the last one that starts.
func (c *Controller) tellPassedOver(ctx context.Context, now time.Time, d *decision) {
	last, _ := c.planner.Entry(d.Start[len(d.Start)-1])
	for i := d.SlotsInUse; i < d.SlotsInUse+last.Position-1; i++ {
		t := c.told[c.planner.RunAt(i).UID]
		if t != nil && t.overtaken {
			continue
		}
		entry := c.planner.EntryAt(i)
		if entry.Reason == v1alpha1.QueueReasonNextToStart {
			continue
		}
		if t == nil {
			t = &told{}
			c.told[entry.UID] = t
		}
		t.overtaken = true
		var blockers []string
		for _, blocker := range entry.Blockers {
			blockers = append(blockers, blocker.Key)
		}
		klog.FromContext(ctx).Info("Backup is passed over", "backupRun", entry.Key, "reason", entry.Reason, "blockers", blockers,
			"namespaces", entry.ConflictNamespaces, "moreNamespaces", entry.MoreConflicts)
		c.tellWait(i, t.next(entry.Reason, c.waited(now, i)))
	}
}

func (c *Controller) waited(now time.Time, i int) time.Duration {
	run := c.planner.RunAt(i)
	return now.Sub(run.WaitingSince())
}

// next is what to tell of a run that waits, now that it has for so long; "" for
// nothing new.
func (t *told) next(reason v1alpha1.QueueReason, waited time.Duration) string {
	held := reason == v1alpha1.QueueReasonStorageUnavailable
	t.held = t.held && held // it is told again when it is held again
	switch {
	case waited < worthTelling:
		return ""
	case held && !t.held:
		t.held, t.queued = true, true
		return "Held"
	case t.overtaken && !t.passedOver:
		t.passedOver, t.queued = true, true
		return "PassedOver"
	case !t.queued:
		t.queued = true
		return "Queued"
	}
	return ""
}

func (c *Controller) tellWait(i int, reason string) {
	if reason == "" {
		return
	}
	entry := queue.Redact(c.planner.EntryAt(i), c.namespace)
	c.events.Eventf(records.BackupReference(c.known[entry.Key]), nil, corev1.EventTypeNormal, reason, "Queue",
		"%s", cut(fmt.Sprintf("The backup waits at position %d: %s", entry.Position, entry.Message)))
}

// cut shortens a note to what an event may hold.
func cut(note string) string {
	const longest = 1000
	if len(note) > longest {
		note = strings.ToValidUTF8(note[:longest], "")
	}
	return note
}
