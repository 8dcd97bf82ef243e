// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"testing"
	"testing/synctest"
	"time"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
)

// TestWhatABackupWaitsFor shows that the record says within ten seconds what a backup waits for,
// in one write for as long as that is the same, and no more when it has ended.
func TestWhatABackupWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backupOf{volumes: []string{"one"}}
		h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
		h.start(1)
		synctest.Wait()
		want := func(message string) {
			t.Helper()
			time.Sleep(2 * runs.ProgressInterval)
			synctest.Wait()
			if got := h.Run("a").Status.Message; got != message {
				t.Errorf("it says %q, want %q", got, message)
			}
		}
		want("waits for the data of claim claim-of-one in shop: the agent of node node-1 has not begun")
		before := h.writes("a")
		want("waits for the data of claim claim-of-one in shop: the agent of node node-1 has not begun")
		if after := h.writes("a"); after != before {
			t.Errorf("the record was written %d times though nothing is new", after-before)
		}
		h.report("one", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
		want("waits for the data of claim claim-of-one in shop, which the agent of node node-1 reads")
		h.report("one", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		h.expect("a", v1alpha1.BackupPhaseCompleted, true)
		want("")
	})
}
