// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// volumeWork are the VolumeUploads of a backup of the system namespace.
func volumeWork(ctx context.Context, backup string) ([]enginev1alpha1.VolumeUpload, error) {
	run, err := lab.engine.EngineV1alpha1().BackupRuns(system).Get(ctx, backup, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	list, err := lab.engine.EngineV1alpha1().VolumeUploads(system).List(ctx, metav1.ListOptions{
		LabelSelector: enginev1alpha1.LabelRun + "=" + string(run.UID),
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// uploading says on which nodes volumes of a backup are being uploaded.
func uploading(ctx context.Context, backup string) (map[string]bool, error) {
	work, err := volumeWork(ctx, backup)
	on := map[string]bool{}
	for _, w := range work {
		if w.Status.Phase == enginev1alpha1.VolumePhaseInProgress {
			on[w.Spec.Node] = true
		}
	}
	return on, err
}

// pauseUploads waits until both nodes upload volumes of a backup, and pauses the
// store, so that they go on until resume is called.
func pauseUploads(t *testing.T, backup string) (resume func()) {
	t.Helper()
	return lab.pauseStore(t, "both nodes upload volumes", func(ctx context.Context) error {
		on, err := uploading(ctx, backup)
		if err == nil && len(on) < len(nodes) {
			err = fmt.Errorf("only %v", on)
		}
		return err
	})
}

// TestAgentsEnd kills one agent, and deletes the pod of the other one, in the
// middle of a backup that both work for.
func TestAgentsEnd(t *testing.T) {
	left := workload{"farm", "left", nodes[0], 96}
	right := workload{"farm", "right", nodes[1], 96}
	step("Two agents at work: one is killed, the other one's pod is deleted")
	start(t, left, right)
	lab.create(t, backup("farm-interrupted", "farm"))
	resume := pauseUploads(t, "farm-interrupted")
	agents := lab.mustPods(t, "node-agent", 2)
	kill(t, podOn(t, agents, nodes[0]))
	lab.mustShow(t, "delete", "pod", "-n", agentsNamespace, podOn(t, agents, nodes[1]).Name, "--timeout=60s")
	// Each works on one volume at a time, and the next one begins it anew, or has put it
	// back to where it waits.
	eventually(t, "the next agents begin anew", func(ctx context.Context) error {
		work, err := volumeWork(ctx, "farm-interrupted")
		again := map[string]int{}
		for _, w := range work {
			if w.Status.Phase == enginev1alpha1.VolumePhaseInProgress && w.Status.Attempts == 2 || w.Status.Phase == enginev1alpha1.VolumePhaseNew && w.Status.Attempts == 1 {
				again[w.Spec.Node]++
			}
		}
		if err == nil && (again[nodes[0]] != 1 || again[nodes[1]] != 1) {
			err = fmt.Errorf("by node: %v", again)
		}
		return err
	})
	resume()
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "farm-interrupted")
	lab.mustShow(t, "get", "backup", "-n", system, "farm-interrupted")

	awaitStored(t, "farm-interrupted")

	step("The agents are back, and the next backup is whole")
	lab.mustShow(t, "rollout", "status", "-n", agentsNamespace, "daemonset/holdfast-node-agent", "--timeout=120s")
	before := map[string]string{}
	for volume := range volumes {
		before[volume] = left.fingerprint(t, volume)
	}
	lab.create(t, backup("farm", "farm"))
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "farm")
	awaitStored(t, "farm")
	for volume := range volumes {
		left.lose(t, volume)
	}
	restore(t, "farm", left)
	for volume := range volumes {
		if got := left.fingerprint(t, volume); got != before[volume] {
			t.Errorf("volume %s differs:\n%s\nwant:\n%s", volume, got, before[volume])
		}
	}
}

// TestControllerEnds deletes the pod of the controller in the middle of a backup,
// while others wait.
func TestControllerEnds(t *testing.T) {
	left := workload{"yard", "left", nodes[0], 96}
	right := workload{"yard", "right", nodes[1], 96}
	step("The pod of the controller is deleted in the middle of a backup")
	start(t, left, right)
	names := []string{"yard-interrupted", "yard-first", "yard-second", "yard-third"}
	for _, name := range names {
		lab.create(t, backup(name, "yard"))
	}
	resume := pauseUploads(t, names[0])
	eventually(t, "the others wait in order", func(ctx context.Context) error {
		var errs []error
		for i, name := range names[1:] {
			entry, err := queued(ctx, name, v1alpha1.QueueStateQueued)
			if err == nil && entry.Status.Position != int32(i+1) {
				err = fmt.Errorf("%s has position %d, want %d", name, entry.Status.Position, i+1)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	lab.mustShow(t, "get", "backupqueue", "-n", system)
	controller := lab.mustPods(t, "controller", 1)[0]
	lab.mustShow(t, "delete", "pod", "-n", system, controller.Name, "--timeout=60s")
	resume()

	others := awaitEnd(t, v1alpha1.BackupPhaseCompleted, names...)
	lab.mustShow(t, "get", "backups", "-n", system)
	for i := 1; i < len(names); i++ {
		before, after := others[names[i-1]], others[names[i]]
		if after.Status.StartTimestamp.Before(before.Status.CompletionTimestamp) {
			t.Errorf("%s started at %s, and %s, which was ahead of it, ended at %s", after.Name, after.Status.StartTimestamp, before.Name, before.Status.CompletionTimestamp)
		}
	}
	awaitStored(t, names...)
	if err := listsAll(t.Context(), names...); err != nil {
		t.Error(err)
	}
	// Nothing works any more for them.
	work, err := lab.engine.EngineV1alpha1().VolumeUploads(system).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range work.Items {
		t.Errorf("VolumeUpload %s is left, %s", w.Name, w.Status.Phase)
	}
}
