// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestWhatIsMissingIsTold shows that a partial backup says what it lacks where people look first,
// also when its record is gone and another API server has read it from the store.
func TestWhatIsMissingIsTold(t *testing.T) {
	namespace, gone, name := lab.Namespace(t, "told"), labtest.Name("gone"), labtest.Name("partial")
	lab.Backup(t, name, namespace, gone)
	backup := lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhasePartiallyFailed)
	want := "1 error: namespaces " + gone + ": the backup includes it, but it does not exist"
	told := func(backup *v1alpha1.Backup) error {
		for _, of := range []string{v1alpha1.ConditionComplete, v1alpha1.ConditionSucceeded} {
			if c := meta.FindStatusCondition(backup.Status.Conditions, of); c == nil || c.Message != want {
				return fmt.Errorf("the condition %s is %+v", of, c)
			}
		}
		if p := backup.Status.Progress; p == nil || p.TotalItems != p.ItemsBackedUp+1 {
			return fmt.Errorf("its progress is %+v", p)
		}
		return nil
	}
	if err := told(backup); err != nil {
		t.Error(err)
	}
	labtest.Eventually(t, "the event about its end", func() error {
		if events := lab.Kubectl(t, "get", "events", "-n", labtest.System, "--field-selector", "involvedObject.name="+name+",reason=PartiallyFailed"); !strings.Contains(events, "The backup has ended with "+want) {
			return fmt.Errorf("the events are %s", events)
		}
		return nil
	})
	lab.AwaitRunGone(t, name)
	for _, when := range []string{"its record to be gone", "another API server"} {
		labtest.Eventually(t, "the reasons, after "+when, func() error {
			backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil {
				err = told(backup)
			}
			return err
		})
		if when == "its record to be gone" {
			lab.Kill(t, labtest.APIServer)
			lab.Start(t, labtest.APIServer)
		}
	}
	if table := lab.Kubectl(t, "get", "hfb", name, "-n", labtest.System, "-o", "wide"); !strings.Contains(table, want) {
		t.Errorf("kubectl get prints %s", table)
	}
}

// TestWaitsAreTold shows that a restore says within some seconds what it waits for: here a pod that
// no node takes, since this cluster has no scheduler.
func TestWaitsAreTold(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "waiting")
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	lab.Create(t, namespace, "own", v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true)})
	lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
	to := lab.Namespace(t, "elsewhere")
	restores := lab.Holdfast.HoldfastV1alpha1().Restores(labtest.System)
	restore, err := restores.Create(t.Context(), &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("stuck")},
		Spec:       v1alpha1.RestoreSpec{BackupNamespace: namespace, BackupName: "own", NamespaceMapping: map[string]string{namespace: to}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "the restore to say what it waits for", func() error {
		live, err := restores.Get(t.Context(), restore.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		want := "waits for pod holdfast-restore-"
		if c := meta.FindStatusCondition(live.Status.Conditions, v1alpha1.ConditionComplete); c == nil || !strings.HasPrefix(c.Message, want) || !strings.Contains(c.Message, to) {
			return fmt.Errorf("it is %+v", live.Status)
		}
		if table := lab.Kubectl(t, "get", "hfr", restore.Name, "-n", labtest.System, "-o", "wide"); !strings.Contains(table, want) {
			return fmt.Errorf("kubectl get prints %s", table)
		}
		return nil
	})
	lab.Kubectl(t, "patch", "restorerun", restore.Name, "-n", labtest.System, "--type=merge", "-p", `{"spec":{"cancellation":{"timestamp":"2026-01-01T00:00:00Z"}}}`)
}

// TestNoControllerIsTold shows that a backup which is created while no controller works says so,
// and goes on as if nothing had been when one does.
func TestNoControllerIsTold(t *testing.T) {
	namespace, name := lab.Namespace(t, "alone"), labtest.Name("alone")
	lab.Kill(t, labtest.Controller)
	lab.Backup(t, name, namespace)
	labtest.Eventually(t, "the backup to say that no controller is heard of", func() error {
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := meta.FindStatusCondition(backup.Status.Conditions, v1alpha1.ConditionQueued); c == nil || c.Reason != v1alpha1.ReasonNoController || !strings.HasPrefix(c.Message, "no controller was heard of since 2") {
			return fmt.Errorf("it is %+v", backup.Status)
		}
		return nil
	})
	lab.Start(t, labtest.Controller)
	lab.AwaitCompleted(t, name)
}
