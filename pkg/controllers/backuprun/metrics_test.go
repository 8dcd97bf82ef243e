// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
)

// hack/alerts reads from here what the controller serves.
const exposition = `
holdfast_backup_duration_seconds_bucket{le="60"} 1
holdfast_backup_duration_seconds_count 1
holdfast_backups_total{phase="Cancelled"} 0
holdfast_backups_total{phase="Completed"} 0
holdfast_backups_total{phase="Failed"} 0
holdfast_backups_total{phase="FailedValidation"} 0
holdfast_backups_total{phase="PartiallyFailed"} 1
holdfast_pod_frozen_seconds_bucket{volumes="snapshots",le="2.5"} 1
holdfast_pod_frozen_seconds_count{volumes="snapshots"} 1
holdfast_volumes_given_up_total{reason="AgentGone"} 1
`

// TestMetrics: each phase is served from the start, so that its first backup is an increase.
func TestMetrics(t *testing.T) {
	registerMetrics()
	backupsTotal.Reset()
	begin()
	volumesGivenUp.Reset()
	volumesGivenUp.WithLabelValues("AgentGone").Inc()
	podFrozen.Reset()
	observeFrozen(2100*time.Millisecond, backup.ReadSnapshots)
	start := metav1.Now()
	end := metav1.NewTime(start.Add(30 * time.Second))
	run := &enginev1alpha1.BackupRun{}
	run.Status.StartTimestamp = &start
	observeEnd(run, &v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhasePartiallyFailed, CompletionTimestamp: &end})
	response := httptest.NewRecorder()
	legacyregistry.Handler().ServeHTTP(response, httptest.NewRequest("GET", "/metrics", nil))
	served := "\n" + response.Body.String()
	for line := range strings.Lines(strings.TrimSpace(exposition)) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "_duration_") { // other tests count there too
			line, _, _ = strings.Cut(line, " ")
		}
		if !strings.Contains(served, "\n"+line) {
			t.Errorf("it does not serve %s", line)
		}
	}
}
