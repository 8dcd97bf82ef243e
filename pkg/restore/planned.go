// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// The bounds of a plan for a person, which then takes less than 1 MB.
const (
	maxPlanRows    = 500
	maxPlanText    = 512
	maxPlanReasons = 20
)

// Plan computes what a restore would do now, by Run's code with planOnly and the same rights. It
// writes nothing. If ctx ends, the plan is not Complete.
func Plan(ctx context.Context, request Request, deps Dependencies) *v1alpha1.RestorePlan {
	request.Run = request.Run.DeepCopy()
	request.Run.Spec.Restore.PlanOnly = true
	e := newExecution(ctx, request, deps)
	e.planned = &planned{counts: map[v1alpha1.PlannedActions]int64{}}
	e.report.told = e.planned.problem
	err := e.contain(func() error { return e.run(ctx) })
	if err != nil && ctx.Err() == nil {
		e.report.fail(subject{}, err.Error())
	}
	e.report.end()
	plan := e.planned.plan()
	plan.Errors, plan.Warnings = e.report.counts()
	plan.Message = e.report.message()
	unplanned(ctx, plan, err)
	return plan
}

// Unplanned is the plan of a restore that can't begin.
func Unplanned(ctx context.Context, reason error) *v1alpha1.RestorePlan {
	plan := &v1alpha1.RestorePlan{}
	unplanned(ctx, plan, reason)
	return plan
}

func unplanned(ctx context.Context, plan *v1alpha1.RestorePlan, err error) {
	var refused *Refused
	switch {
	case err == nil:
		plan.Complete = true
	case errors.As(err, &refused):
		plan.Complete = true
		plan.Refused = refused.Reasons[:min(len(refused.Reasons), maxPlanReasons)]
		plan.Message = "the restore would be refused: " + refused.Error()
	case ctx.Err() != nil:
		plan.Message = "the plan was not computed in the time that it may take, and has what was decided until then: create the restore with planOnly, or name fewer objects"
	default:
		plan.Message = "the restore would fail: " + err.Error()
	}
	plan.Message = shortened(plan.Message)
}

func shortened(text string) string {
	if len(text) <= maxPlanText {
		return text
	}
	return strings.ToValidUTF8(text[:maxPlanText], "") + "..."
}

// planned gathers a plan. A nil one, of a restore that runs, gathers nothing.
type planned struct {
	mu       sync.Mutex
	total    int64
	counts   map[v1alpha1.PlannedActions]int64
	volumes  []v1alpha1.PlannedRestoreVolume
	problems []v1alpha1.PlannedProblem
	omitted  v1alpha1.RestorePlanOmissions
}

func (p *planned) problem(about subject, isError bool, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.problems) == maxPlanRows {
		p.omitted.Problems++
		return
	}
	severity := v1alpha1.ProblemWarning
	if isError {
		severity = v1alpha1.ProblemError
	}
	p.problems = append(p.problems, v1alpha1.PlannedProblem{Severity: severity, Resource: about.resource, Namespace: about.namespace, Name: about.name, Message: shortened(text)})
}

func (p *planned) decided(e *execution, item *manifest.Item, about subject, a action, reason string) {
	if p == nil {
		return
	}
	volumes := e.plannedVolumes(item, about, a, reason)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total++
	p.counts[v1alpha1.PlannedActions{Resource: about.resource, Namespace: about.namespace, Action: actionNames[a]}]++
	for _, volume := range volumes {
		if len(p.volumes) == maxPlanRows {
			p.omitted.Volumes++
			continue
		}
		p.volumes = append(p.volumes, volume)
	}
}

func (e *execution) plannedVolumes(item *manifest.Item, about subject, a action, reason string) (rows []v1alpha1.PlannedRestoreVolume) {
	fresh := a == actionCreate || a == actionRecreate
	row := func(data v1alpha1.RestoredData, bytes int64, why string) *v1alpha1.PlannedRestoreVolume {
		rows = append(rows, v1alpha1.PlannedRestoreVolume{Namespace: about.namespace, Data: data, Bytes: bytes, Reason: shortened(why)})
		return &rows[len(rows)-1]
	}
	if volume := e.volumeOf(item); volume != nil {
		data, why := v1alpha1.RestoredDataWritten, ""
		switch {
		case e.keepsData[item]:
			data, why = v1alpha1.RestoredDataKept, "the claim exists, and existingVolumePolicy is keep"
		case a == actionLeave || a == actionForbidden || a == actionRefused || a == actionError:
			data, why = v1alpha1.RestoredDataNone, reason
		case volume.Problem != "":
			data, why = v1alpha1.RestoredDataNone, "it is not in the backup: "+volume.Problem
		case fresh:
			why = cmp.Or(reason, "the claim is created")
		case e.spec.ExistingVolumePolicy == v1alpha1.ExistingVolumeReplace:
			data, why = v1alpha1.RestoredDataReplaced, "the claim exists, and existingVolumePolicy is replace"
		case e.writesOver():
			data, why = v1alpha1.RestoredDataOverwritten, "the claim exists, and existingVolumePolicy is overwrite"
		default:
			why = "the claim exists, and lacks its data"
		}
		row(data, volume.Status.Progress.TotalBytes, why).Claim = about.name
	}
	for _, volume := range e.scratchOf(item) {
		data, why := v1alpha1.RestoredDataNone, cmp.Or(reason, "the pod exists")
		switch {
		case volume.Problem != "":
			why = "it is not in the backup: " + volume.Problem
		case e.isSpared(types.UID(item.UID), volume.Name):
			why = "others may use what is there: existingVolumePolicy is neither overwrite nor replace"
		case fresh:
			data, why = v1alpha1.RestoredDataWritten, "the pod is created"
		}
		of := row(data, volume.Status.Progress.TotalBytes, why)
		of.Pod, of.Volume = about.name, volume.Name
	}
	return rows
}

func (p *planned) plan() *v1alpha1.RestorePlan {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan := &v1alpha1.RestorePlan{TotalItems: p.total, Volumes: p.volumes, Problems: p.problems}
	for of, count := range p.counts {
		of.Count = count
		plan.Objects = append(plan.Objects, of)
	}
	slices.SortFunc(plan.Objects, func(a, b v1alpha1.PlannedActions) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Action, b.Action))
	})
	if more := len(plan.Objects) - maxPlanRows; more > 0 {
		plan.Objects, p.omitted.Objects = plan.Objects[:maxPlanRows], int64(more)
	}
	slices.SortFunc(plan.Volumes, func(a, b v1alpha1.PlannedRestoreVolume) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Volume, b.Volume))
	})
	slices.SortStableFunc(plan.Problems, func(a, b v1alpha1.PlannedProblem) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name))
	})
	if p.omitted != (v1alpha1.RestorePlanOmissions{}) {
		plan.Omitted = &p.omitted
	}
	return plan
}
