// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

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

// tell says that runs wait, and why: by events, once for each reason, and in the log
// when one is passed over for the first time. What there is no event left for is told
// later, if the run still waits then.
func (c *Controller) tell(ctx context.Context, d *decision) {
	c.planning.Lock()
	defer c.planning.Unlock()
	waiting := d.SlotsInUse + len(d.Start)
	if now := c.clock.Now(); !now.Before(c.nextTell) {
		c.tellWaits(waiting)
		c.nextTell = now.Add(backstop)
	}
	c.tellEnqueued(waiting)
	if n := len(d.Start); n > 0 {
		c.tellPassedOver(ctx, waiting, c.planner.Run(d.Start[n-1]).Status.Ticket)
	}
}

// tellWaits looks at all that wait: from this index on.
func (c *Controller) tellWaits(waiting int) {
	before := c.told
	c.told = make(map[types.UID]*told, len(before))
	for i := waiting; i < c.planner.Len(); i++ {
		run := c.planner.RunAt(i)
		t := before[run.UID]
		if t == nil {
			// Another process gave it its place, and has told that; or it was let start and
			// has come back. What is held when this process begins is taken as told.
			t = &told{queued: true, held: !c.toldOnce && c.isHeld(i)}
		}
		c.told[run.UID] = t
		c.tellNews(i, t)
	}
	c.toldOnce = true
}

// tellEnqueued looks at those that have got their place since people were told of
// such, and have not left it already.
func (c *Controller) tellEnqueued(waiting int) {
	var places []int
	for uid := range c.enqueued {
		if entry, ok := c.planner.Entry(uid); ok && entry.Position > 0 {
			places = append(places, waiting+entry.Position-1)
		}
	}
	clear(c.enqueued)
	slices.Sort(places)
	for _, i := range places {
		c.tellNews(i, c.toldOf(c.planner.RunAt(i).UID))
	}
}

// tellPassedOver looks at those of the waiting that are ahead of the last one that
// has started.
func (c *Controller) tellPassedOver(ctx context.Context, waiting int, ticket int64) {
	lines := 0
	for i := waiting; i < c.planner.Len() && c.planner.RunAt(i).Ticket < ticket; i++ {
		t := c.toldOf(c.planner.RunAt(i).UID)
		if !t.overtaken {
			t.overtaken = true
			c.tellNews(i, t)
		}
		if t.logged || lines == linesAtOnce {
			continue
		}
		t.logged = true
		lines++
		entry := c.planner.EntryAt(i)
		var blockers []string
		for _, blocker := range entry.Blockers {
			blockers = append(blockers, blocker.Namespace+"/"+blocker.Name)
		}
		klog.FromContext(ctx).Info("Backup is passed over", "backupRun", klog.KObj(c.planner.Run(entry.UID)), "reason", entry.Reason, "blockers", blockers,
			"namespaces", entry.ConflictNamespaces, "moreNamespaces", entry.MoreConflicts)
	}
}

func (c *Controller) toldOf(uid types.UID) *told {
	t := c.told[uid]
	if t == nil {
		t = &told{}
		c.told[uid] = t
	}
	return t
}

func (c *Controller) isHeld(i int) bool {
	return c.planner.ReasonAt(i) == v1alpha1.QueueReasonStorageUnavailable
}

// The reasons of events.
const (
	eventQueued     = "Queued"
	eventPassedOver = "PassedOver"
	eventHeld       = "Held"
)

// tellNews sends an event if there is something that people were not told of a run
// that waits. One that is about to start has its event from that.
func (c *Controller) tellNews(i int, t *told) {
	held := c.isHeld(i)
	t.held = t.held && held // it is told again when it is held again
	var event string
	switch {
	case held && !t.held:
		event = eventHeld
	case !t.queued:
		event = eventQueued
	case t.overtaken && !t.passedOver:
		event = eventPassedOver
	}
	if event == "" || c.planner.ReasonAt(i) == v1alpha1.QueueReasonNextToStart || !c.waitEvents.TryAccept() {
		return
	}
	t.queued = true // each says that it waits
	t.held = held
	t.passedOver = t.passedOver || event == eventPassedOver
	entry := queue.Redact(c.planner.EntryAt(i), c.namespace)
	note := fmt.Sprintf("The backup waits at position %d: %s", entry.Position, entry.Message)
	if event == eventPassedOver {
		note = fmt.Sprintf("Others have passed the backup, which waits at position %d: %s", entry.Position, entry.Message)
	}
	c.events.Eventf(records.BackupReference(c.planner.Run(entry.UID)), nil, corev1.EventTypeNormal, event, "Queue", "%s", note)
}
