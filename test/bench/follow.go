// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// progress is what was seen of a run.
type progress struct {
	started, ended time.Time
	status         enginev1alpha1.BackupRunStatus
	// changes are those of the run since it left the queue.
	changes int

	queued, removed bool
}

// run creates backups and follows their runs until enough of them are removed. It
// calls queued when all of them have come into the queue. Those that end must be
// Completed.
func (l *lab) run(ctx context.Context, backups []*v1alpha1.Backup, enough int, queued func() error) (map[string]*progress, error) {
	runs := l.engine.EngineV1alpha1().BackupRuns(namespace)
	list, err := runs.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Now and then the server ends a watch that it finds too slow. It goes on where it
	// was, so that no change is missed.
	changes, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: runs.Watch,
	})
	if err != nil {
		return nil, err
	}
	defer changes.Stop()
	created := make(chan error, 1)
	go func() {
		created <- each(ctx, len(backups), func(ctx context.Context, i int) error {
			_, err := l.holdfast.HoldfastV1alpha1().Backups(namespace).Create(ctx, backups[i], metav1.CreateOptions{})
			return err
		})
	}()
	seen := make(map[string]*progress, len(backups))
	for _, b := range backups {
		seen[b.Name] = &progress{}
	}
	waiting, left := len(backups), enough
	for waiting > 0 || left > 0 {
		var event watch.Event
		var open bool
		select {
		case event, open = <-changes.ResultChan():
		case err := <-created:
			if err != nil {
				return nil, err
			}
			continue
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !open || event.Type == watch.Error {
			return nil, fmt.Errorf("the watch of the runs broke off: %v", event.Object)
		}
		run, ok := event.Object.(*enginev1alpha1.BackupRun)
		if !ok || seen[run.Name] == nil {
			continue
		}
		p := seen[run.Name]
		if err := p.see(event.Type, run); err != nil {
			return nil, err
		}
		if run.Status.Ticket > 0 && !p.queued {
			p.queued = true
			if waiting--; waiting == 0 {
				if err := queued(); err != nil {
					return nil, err
				}
			}
		}
		if event.Type == watch.Deleted && !p.removed {
			p.removed = true
			left--
		}
	}
	return seen, nil
}

func (p *progress) see(kind watch.EventType, run *enginev1alpha1.BackupRun) error {
	p.status = run.Status
	phase := run.Status.Phase
	if kind == watch.Modified && phase != v1alpha1.BackupPhaseQueued {
		p.changes++
	}
	if phase == v1alpha1.BackupPhaseInProgress && p.started.IsZero() {
		p.started = time.Now()
	}
	if phase.Ended() && p.ended.IsZero() {
		p.ended = time.Now()
		if phase != v1alpha1.BackupPhaseCompleted {
			return fmt.Errorf("backup %s is %s: %s", run.Name, phase, run.Status.FailureReason)
		}
	}
	if kind == watch.Deleted && p.ended.IsZero() {
		return fmt.Errorf("the run of backup %s was removed while it was %q", run.Name, phase)
	}
	return nil
}

func nothing() error { return nil }
