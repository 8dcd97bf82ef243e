// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
)

// Plan computes the contents of a run's backup, with its rights. The run has no record. each may be
// nil, and gets each object.
func (e *Executor) Plan(ctx context.Context, run *enginev1alpha1.BackupRun, each func(v1alpha1.PlannedRelated) error) *v1alpha1.BackupPlan {
	return backup.Plan(ctx, e.request(run, backup.PostHooks{}), backup.Dependencies{
		Discovery:     e.Discovery,
		Client:        e.Client,
		Hooks:         runHooks{Pods: e.Pods, run: run},
		Policies:      reviewed{e.Kube, run.Spec.Requester},
		Clock:         e.Clock,
		PageSizes:     &e.pageSizes,
		BlockWorkers:  e.BlockWorkers,
		HookTime:      e.HookTime,
		Timeout:       e.Timeout,
		HostPathRoots: e.HostPathRoots,

		KeepSnapshots:   e.KeepSnapshots,
		SnapshotClasses: e.SnapshotClasses,
		MayChooseClass:  reviewed{e.Kube, run.Spec.Requester}.MayChooseClass,
	}, backup.DefaultPlanLimits, each)
}
