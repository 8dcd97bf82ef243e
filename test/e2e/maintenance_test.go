// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestMaintenance: a Job on a real node maintains a repository when it is due, and its end
// is in the record.
func TestMaintenance(t *testing.T) {
	step("A repository that is maintained")
	small(t, "kept", 1)
	lab.create(t, backup("kept", "kept"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "kept")
	repositories, err := lab.engine.EngineV1alpha1().VolumeRepositories(system).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := ""
	for i := range repositories.Items {
		if repositories.Items[i].Spec.VolumeNamespace == "kept" {
			name = repositories.Items[i].Name
		}
	}
	lab.must(t, "patch", "volumerepositories.engine.holdfast.io", name, "-n", system, "--type=merge", "-p", `{"spec":{"maintenanceFrequency":"10s"}}`)
	var first enginev1alpha1.MaintenanceRun
	eventually(t, "the repository was maintained", func(ctx context.Context) error {
		record, err := lab.engine.EngineV1alpha1().VolumeRepositories(system).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(record.Status.RecentMaintenance) == 0 {
			jobs, _ := lab.kubectl(ctx, "", "describe", "jobs,pods", "-n", enginev1alpha1.MaintenanceNamespace(system))
			return fmt.Errorf("it says %+v, and there are\n%s", record.Status, jobs)
		}
		first = record.Status.RecentMaintenance[len(record.Status.RecentMaintenance)-1]
		return nil
	})
	lab.must(t, "patch", "volumerepositories.engine.holdfast.io", name, "-n", system, "--type=merge", "-p", `{"spec":{"maintenanceFrequency":"24h"}}`)
	if first.Result != enginev1alpha1.MaintenanceSucceeded {
		t.Errorf("it came to %+v", first)
	}
	lab.mustShow(t, "get", "volumerepositories.engine.holdfast.io", name, "-n", system, "-o", "wide")
	if log := lab.must(t, "logs", "-n", enginev1alpha1.MaintenanceNamespace(system), "job/"+first.Job); !strings.Contains(log, `"repository":"`+name+`"`) {
		t.Errorf("the log of %s is\n%s", first.Job, log)
	}
}
