// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// backup is the manifest of a backup of namespaces.
func backup(name string, namespaces ...string) string {
	return fmt.Sprintf(`apiVersion: holdfast.io/v1alpha1
kind: Backup
metadata: {name: %s, namespace: holdfast}
spec: {includedNamespaces: [%s], defaultVolumesToFsBackup: true}
---
`, name, strings.Join(namespaces, ","))
}

// backups are those of the system namespace, by name.
func backups(ctx context.Context) (map[string]v1alpha1.Backup, error) {
	list, err := lab.holdfast.HoldfastV1alpha1().Backups(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	byName := map[string]v1alpha1.Backup{}
	for _, b := range list.Items {
		byName[b.Name] = b
	}
	return byName, nil
}

// awaitEnd waits until backups have ended, as a script would, checks how, and
// returns them by name.
func awaitEnd(t *testing.T, phase v1alpha1.BackupPhase, names ...string) map[string]*v1alpha1.Backup {
	t.Helper()
	args := []string{"wait", "--for=condition=" + v1alpha1.ConditionComplete, "--timeout=120s", "-n", system}
	for _, name := range names {
		args = append(args, "backup/"+name)
	}
	lab.mustShow(t, args...)
	ended := map[string]*v1alpha1.Backup{}
	for _, name := range names {
		// One replica of the API server may know a moment before the other one.
		eventually(t, name+" has ended for all replicas", func(ctx context.Context) error {
			b, err := lab.holdfast.HoldfastV1alpha1().Backups(system).Get(ctx, name, metav1.GetOptions{})
			if err == nil && !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionComplete) {
				err = fmt.Errorf("it is %s", b.Status.Phase)
			}
			ended[name] = b
			return err
		})
		status := ended[name].Status
		if status.Phase != phase {
			t.Errorf("backup %s is %s with %d errors (%s), want %s", name, status.Phase, status.Errors, status.FailureReason, phase)
		}
		if succeeded := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionSucceeded); succeeded != (phase == v1alpha1.BackupPhaseCompleted) {
			t.Errorf("backup %s is %s with the condition Succeeded %t", name, status.Phase, succeeded)
		}
	}
	return ended
}

// queued is the backup's entry in the queue, checked for its state.
func queued(ctx context.Context, name string, state v1alpha1.QueueState) (*v1alpha1.BackupQueueEntry, error) {
	entry, err := lab.holdfast.HoldfastV1alpha1().BackupQueueEntries(system).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if entry.Status.State != state {
		return nil, fmt.Errorf("%s is %s, want %s", name, entry.Status.State, state)
	}
	return entry, nil
}

// awaitStored waits until the records of backups are gone, and what is listed
// comes from the store.
func awaitStored(t *testing.T, names ...string) {
	t.Helper()
	eventually(t, "the records of the backups are removed", func(ctx context.Context) error {
		runs, err := lab.engine.EngineV1alpha1().BackupRuns(system).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, run := range runs.Items {
			if slices.Contains(names, run.Name) {
				return fmt.Errorf("%s is there, %s, stored: %t", run.Name, run.Status.Phase, run.Status.Stored)
			}
		}
		return nil
	})
}

// history is the entry of a workload's volume in a backup.
func history(ctx context.Context, w workload, volume, backup string) (*v1alpha1.VolumeBackup, error) {
	name := w.claim()
	if volume == "scratch" {
		name = "pod:" + w.pod + ":" + volume
	}
	of, err := lab.holdfast.HoldfastV1alpha1().Backups(system).Get(ctx, backup, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	list, err := lab.holdfast.HoldfastV1alpha1().VolumeBackups(w.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "spec.volumeName=" + name + ",spec.backupUID=" + string(of.UID),
	})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("%d entries of volume %s in backup %s, want 1", len(list.Items), name, backup)
	}
	entry := &list.Items[0]
	if entry.Status.Phase != string(v1alpha1.BackupPhaseCompleted) || entry.Status.SnapshotID == "" || entry.Status.Node != w.node {
		return nil, fmt.Errorf("volume %s in backup %s: %+v", name, backup, entry.Status)
	}
	return entry, nil
}

// awaitHistory is history, once the API server has read it from the store.
func awaitHistory(t *testing.T, w workload, volume, backup string) (entry *v1alpha1.VolumeBackup) {
	t.Helper()
	eventually(t, "the history of "+w.namespace+" is there", func(ctx context.Context) (err error) {
		entry, err = history(ctx, w, volume, backup)
		return err
	})
	return entry
}

// volumeRestore is the manifest of a record that asks an agent to write a workload's
// volume back from a backup, and the record's name.
func volumeRestore(t *testing.T, backup string, w workload, volume string) (name, manifest string) {
	t.Helper()
	entry := awaitHistory(t, w, volume, backup)
	persistentVolume := ""
	if volume == "content" {
		persistentVolume = w.persistentVolume()
	}
	name = fmt.Sprintf("%s-%s-%s-%s", backup, w.namespace, w.pod, volume)
	return name, fmt.Sprintf(`apiVersion: engine.holdfast.io/v1alpha1
kind: VolumeRestore
metadata:
  name: %[1]s
  namespace: holdfast
  labels: {engine.holdfast.io/node: %[2]s}
spec:
  node: %[2]s
  pod: {namespace: %[3]s, name: %[4]s, uid: %[5]s}
  volume: %[6]s
  persistentVolume: %[7]q
  backupStorageLocation: %[8]s
  repository: %[3]s.%[8]s
  snapshotID: %[9]s
---
`, name, w.node, w.namespace, w.pod, w.live(t).UID, volume, persistentVolume, location, entry.Status.SnapshotID)
}

// awaitRestored waits until records of restores say that they are complete.
func awaitRestored(t *testing.T, names ...string) {
	t.Helper()
	args := []string{"wait", "--for=jsonpath={.status.phase}=Completed", "--timeout=120s", "-n", system}
	for _, name := range names {
		args = append(args, "volumerestore/"+name)
	}
	lab.mustShow(t, args...)
}

// restore asks the agents to write the volumes of workloads back from a backup,
// and returns when they have.
func restore(t *testing.T, backup string, all ...workload) {
	t.Helper()
	var manifests strings.Builder
	var names []string
	for _, w := range all {
		for volume := range volumes {
			name, manifest := volumeRestore(t, backup, w, volume)
			names = append(names, name)
			manifests.WriteString(manifest)
		}
	}
	lab.create(t, manifests.String())
	awaitRestored(t, names...)
}

// listsAll returns an error unless all backups are listed that were created.
func listsAll(ctx context.Context, names ...string) error {
	listed, err := backups(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if _, ok := listed[name]; !ok {
			errs = append(errs, fmt.Errorf("backup %s is not listed", name))
		}
	}
	return errors.Join(errs...)
}
