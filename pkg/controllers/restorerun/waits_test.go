// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

// TestWhatARestoreWaitsFor shows that the record says within ten seconds what a restore waits for,
// and no more when it has ended.
func TestWhatARestoreWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := newHarness(t, &work{execute: func(ctx context.Context) error {
			defer waits.For(ctx, "shop", "pod web in shop: it is on no node").End()
			<-release
			return nil
		}})
		h.start()
		time.Sleep(2 * runs.ProgressInterval)
		synctest.Wait()
		if run := h.run(); run.Status.Message != "waits for pod web in shop: it is on no node" || run.Status.Phase != v1alpha1.RestorePhaseInProgress {
			t.Errorf("it is %s, and says %q", run.Status.Phase, run.Status.Message)
		}
		before := h.run().ResourceVersion
		time.Sleep(time.Minute)
		synctest.Wait()
		if after := h.run().ResourceVersion; after != before {
			t.Error("the record was written though nothing is new")
		}
		close(release)
		time.Sleep(runs.ProgressInterval)
		synctest.Wait()
		if run := h.run(); run.Status.Message != "" || run.Status.Phase != v1alpha1.RestorePhaseCompleted {
			t.Errorf("in the end it is %s, and says %q", run.Status.Phase, run.Status.Message)
		}
	})
}
