// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"math"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// PlannedPlace returns a new backup's present place in the queue, redacted for its namespace, or nil if the queue
// is unknown.
func (p *Projector) PlannedPlace(run *enginev1alpha1.BackupRun) *v1alpha1.PlannedPlace {
	run = run.DeepCopy()
	run.Status.Phase, run.Status.Ticket = v1alpha1.BackupPhaseQueued, math.MaxInt64
	selected := records.Select(run)
	p.mu.Lock()
	defer p.mu.Unlock()
	planner := p.queue.planner
	if planner.Run(run.UID) != nil {
		return nil
	}
	planner.UpdateRun(run, selected)
	defer planner.RemoveRun(run.UID)
	for _, entry := range planner.Plan().Entries {
		if entry.UID == run.UID {
			entry = queue.Redact(entry, p.SystemNamespace)
			return &v1alpha1.PlannedPlace{Position: int32(entry.Position), Reason: entry.Reason, Message: entry.Message}
		}
	}
	return nil
}
