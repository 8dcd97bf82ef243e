// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"github.com/holdfast-io/holdfast/pkg/maintenance"
)

// What has ended is counted for its repository until that is gone, and who waits too long is
// told though nothing happens.
func TestMetrics(t *testing.T) {
	for _, counter := range []interface{ Reset() }{maintenanceTotal, successTotal, failedTotal, reclaimedTotal, sweptTotal} {
		counter.Reset() // of other tests
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.repository("metrics", metav1.ConditionTrue)
		h.run()
		defer h.stop()
		h.end(h.next(), true, said(maintenance.Result{Repository: "metrics.default", Kind: "full", ReclaimedBytes: 42, SweptSnapshots: 2, MissingBackups: 3, Check: &maintenance.Check{Packs: 9, MissingPacks: 1}}.String()))
		h.end(h.next(), false, terminated(1, "Error", "no"))
		ended := h.status("metrics").LastMaintenanceTime
		// The Jobs that follow never begin, so they fail, too.
		time.Sleep(time.Until(ended.Add(4 * time.Hour)))
		failed := len(h.status("metrics").RecentMaintenance) - 1
		if failed != 3 {
			t.Fatalf("%d have failed", failed)
		}
		want := `
# HELP holdfast_repositories_damaged [ALPHA] Repositories whose store has lost data of them, as of their last check.
# TYPE holdfast_repositories_damaged gauge
holdfast_repositories_damaged 1
# HELP holdfast_repo_maintenance_doubted_repositories [ALPHA] Repositories with snapshots of so many backups that are missing from the store, or don't list them, that they stay.
# TYPE holdfast_repo_maintenance_doubted_repositories gauge
holdfast_repo_maintenance_doubted_repositories 1
# HELP holdfast_repo_maintenance_failed_total [ALPHA] Maintenances of repositories that have failed.
# TYPE holdfast_repo_maintenance_failed_total counter
holdfast_repo_maintenance_failed_total{location="default",repository_namespace="metrics"} 3
# HELP holdfast_repo_maintenance_oldest_seconds [ALPHA] How long ago the repository was maintained with success that was for longest not, or was made if it never was.
# TYPE holdfast_repo_maintenance_oldest_seconds gauge
holdfast_repo_maintenance_oldest_seconds 14400
# HELP holdfast_repo_maintenance_overdue_repositories [ALPHA] Repositories that have not been maintained with success for three of their periods.
# TYPE holdfast_repo_maintenance_overdue_repositories gauge
holdfast_repo_maintenance_overdue_repositories 1
# HELP holdfast_repo_maintenance_reclaimed_bytes_total [ALPHA] Bytes that maintenances have removed from the stores.
# TYPE holdfast_repo_maintenance_reclaimed_bytes_total counter
holdfast_repo_maintenance_reclaimed_bytes_total{location="default",repository_namespace="metrics"} 42
# HELP holdfast_repo_maintenance_success_total [ALPHA] Maintenances of repositories that have succeeded.
# TYPE holdfast_repo_maintenance_success_total counter
holdfast_repo_maintenance_success_total{location="default",repository_namespace="metrics"} 1
# HELP holdfast_repo_maintenance_swept_snapshots_total [ALPHA] Snapshots of backups that are gone which maintenances have removed.
# TYPE holdfast_repo_maintenance_swept_snapshots_total counter
holdfast_repo_maintenance_swept_snapshots_total{location="default",repository_namespace="metrics"} 2
# HELP holdfast_repo_maintenance_total [ALPHA] Maintenances of repositories that have ended.
# TYPE holdfast_repo_maintenance_total counter
holdfast_repo_maintenance_total{location="default",repository_namespace="metrics"} 4
`
		names := []string{subsystem + "_total", subsystem + "_success_total", subsystem + "_failed_total", subsystem + "_reclaimed_bytes_total", subsystem + "_swept_snapshots_total", subsystem + "_oldest_seconds", subsystem + "_overdue_repositories", subsystem + "_doubted_repositories", "holdfast_repositories_damaged"}
		if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
		if err := h.config.Repositories.VolumeRepositories(system).Delete(t.Context(), "metrics.default", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(""), names[:5]...); err != nil {
			t.Errorf("of a repository that is gone: %v", err)
		}
	})
}
