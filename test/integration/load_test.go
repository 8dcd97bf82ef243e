// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// load is people who create backups, and cancel and delete some of them.
type load struct {
	sync.WaitGroup
	t          *testing.T
	observer   *observer
	specs      map[string]v1alpha1.BackupSpec // by what they are for
	unattended string                         // a namespace with a volume that nobody uploads
	files      string                         // one with a volume that is uploaded
	longs      []string                       // names of those that long has created
}

func newLoad(t *testing.T, o *observer) *load {
	t.Helper()
	shared := []string{lab.Namespace(t, "shared"), lab.Namespace(t, "shared"), lab.Namespace(t, "shared")}
	files := lab.Namespace(t, "files")
	_, folder := lab.PodWithClaim(t, files, labtest.Node)
	fill(t, folder)
	l := &load{t: t, observer: o, unattended: lab.Namespace(t, "unattended"), files: files, specs: map[string]v1alpha1.BackupSpec{
		"left":    {IncludedNamespaces: shared[:2]},
		"right":   {IncludedNamespaces: shared[1:]},
		"middle":  {IncludedNamespaces: shared[1:2]},
		"pattern": {IncludedNamespaces: []string{"shared-*"}},
		"apart":   {IncludedNamespaces: []string{lab.Namespace(t, "apart")}},
		"away":    {IncludedNamespaces: []string{lab.Namespace(t, "away")}},
		"files":   {IncludedNamespaces: []string{files}, DefaultVolumesToFsBackup: new(true)},
	}}
	lab.Pod(t, l.unattended, labtest.Unattended)
	return l
}

// long creates a backup that stays InProgress until it is cancelled, or its
// controller was killed as often as it has attempts.
func (l *load) long(t *testing.T) {
	t.Helper()
	name := labtest.Name("long")
	l.longs = append(l.longs, name)
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{l.unattended}, DefaultVolumesToFsBackup: new(true)})
}

// cancelLong cancels those that long has created and that go on.
func (l *load) cancelLong(t *testing.T) {
	t.Helper()
	for _, name := range l.longs {
		labtest.Eventually(t, name+" to be cancelled", func() error {
			if l.observer.unfinished([]string{name}) == 0 {
				return nil
			}
			return request(t.Context(), name, "cancel", &v1alpha1.BackupCancellation{})
		})
	}
}

// start works until ctx ends, or a request fails. Wait for it.
func (l *load) start(ctx context.Context) {
	for kind, spec := range l.specs {
		l.Go(func() {
			if err := l.work(ctx, kind, spec); err != nil && ctx.Err() == nil {
				l.t.Errorf("backups of the kind %s: %v", kind, err)
			}
		})
	}
}

// work keeps two backups of a kind unfinished. Of each six, it cancels one, and
// deletes one when it has ended.
func (l *load) work(ctx context.Context, kind string, spec v1alpha1.BackupSpec) error {
	backups := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System)
	var names, doomed []string
	for {
		err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
			return l.observer.unfinished(names) < 2, nil
		})
		if err != nil {
			return err
		}
		name := labtest.Name(kind)
		if _, err := backups.Create(ctx, &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			return err
		}
		names = append(names, name)
		switch len(names) % 6 {
		case 2:
			err = request(ctx, name, "cancel", &v1alpha1.BackupCancellation{})
		case 4:
			doomed = append(doomed, name)
		}
		if len(doomed) > 0 && l.observer.unfinished(doomed[:1]) == 0 {
			err = request(ctx, doomed[0], "deletion", &v1alpha1.BackupDeletion{})
			doomed = doomed[1:]
		}
		// It had ended before it was cancelled, or the killer has deleted it.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("asking about a backup: %w", err)
		}
	}
}
