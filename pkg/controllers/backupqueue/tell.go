// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"fmt"
	"slices"
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
	// conflict is the last one that was logged.
	conflict string
}

// tell says why runs wait: in the log when one is passed over, once for each
// conflict, and by events when it takes longer, once for each reason.
func (c *Controller) tell(ctx context.Context, d *decision) {
	before := c.told
	c.told = make(map[string]*told, len(before))
	lastStart := -1
	for i, entry := range d.plan.Entries {
		if entry.Reason == v1alpha1.QueueReasonNextToStart {
			lastStart = i
		}
	}
	now := c.clock.Now()
	for i, entry := range d.plan.Entries {
		if entry.State != v1alpha1.QueueStateQueued || entry.Reason == v1alpha1.QueueReasonNextToStart {
			continue
		}
		t := before[entry.UID]
		if t == nil {
			t = &told{}
		}
		c.told[entry.UID] = t
		if i < lastStart {
			t.overtaken = true
			logPassedOver(ctx, entry, t)
		}
		held := entry.Reason == v1alpha1.QueueReasonStorageUnavailable
		t.held = t.held && held // it is told again when it is held again
		if now.Sub(entry.WaitingSince) < worthTelling {
			continue
		}
		reason := ""
		switch {
		case held && !t.held:
			reason, t.held, t.queued = "Held", true, true
		case t.overtaken && !t.passedOver:
			reason, t.passedOver, t.queued = "PassedOver", true, true
		case !t.queued:
			reason, t.queued = "Queued", true
		}
		// What a process finds when it begins was told before.
		if reason != "" && before != nil {
			shown := queue.Redact(entry, c.namespace)
			c.events.Eventf(records.BackupReference(d.runs[entry.Key]), nil, corev1.EventTypeNormal, reason, "Queue",
				"%s", cut(fmt.Sprintf("The backup waits at position %d: %s", shown.Position, shown.Message)))
		}
	}
}

func logPassedOver(ctx context.Context, entry queue.Entry, t *told) {
	logger := klog.FromContext(ctx).V(2)
	var blockers []string
	for _, blocker := range entry.Blockers {
		blockers = append(blockers, blocker.Key)
	}
	conflict := strings.Join(slices.Concat([]string{string(entry.Reason)}, blockers, entry.ConflictNamespaces), " ")
	if conflict == t.conflict {
		return
	}
	t.conflict = conflict
	logger.Info("Backup is passed over", "backupRun", entry.Key, "reason", entry.Reason, "blockers", blockers, "namespaces", entry.ConflictNamespaces, "moreNamespaces", entry.MoreConflicts)
}

// cut shortens a note to what an event may hold.
func cut(note string) string {
	const longest = 1000
	if len(note) > longest {
		note = strings.ToValidUTF8(note[:longest], "")
	}
	return note
}
