// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestPodDeletedHalfway deletes a pod while its volume is uploaded, which the kubelet
// removes: the volume has failed with its reason, and the node's slot is free for others.
func TestPodDeletedHalfway(t *testing.T) {
	goes := workload{"garden", "goes", nodes[0], 512}
	stays := workload{"orchard", "stays", nodes[0], 1}
	step("A pod is deleted while its volume is uploaded")
	start(t, goes, stays)
	// Only what goes with its pod.
	lab.must(t, "annotate", "-n", goes.namespace, "pod/"+goes.pod, "backup.holdfast.io/backup-volumes-excludes=content")
	folder := lab.path("nodes", goes.node, "kubelet/pods", string(goes.live(t).UID), "volumes/kubernetes.io~empty-dir/scratch")
	if _, err := os.Stat(filepath.Join(folder, "index.html")); err != nil {
		t.Fatal(err)
	}
	lab.create(t, backup("garden", "garden"))
	resume := lab.pauseStore(t, "the volume is read", func(ctx context.Context) error {
		work, err := volumeWork(ctx, "garden")
		if err == nil && (len(work) != 1 || work[0].Status.Phase != enginev1alpha1.VolumePhaseInProgress || work[0].Status.Progress.BytesDone == 0) {
			err = fmt.Errorf("it is not read yet: %+v", work)
		}
		return err
	})
	lab.mustShow(t, "delete", "pod", "-n", goes.namespace, goes.pod, "--timeout=120s")
	eventually(t, "the kubelet has removed the volume", func(context.Context) error {
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	lab.create(t, backup("orchard", "orchard"))
	resume()
	awaitEnd(t, v1alpha1.BackupPhasePartiallyFailed, "garden")
	awaitStored(t, "garden")
	results := lab.must(t, "get", "--raw", "/apis/holdfast.io/v1alpha1/namespaces/"+system+"/backups/garden/results")
	if !strings.Contains(results, "scratch") || !strings.Contains(results, "the volume went away while it was read") {
		t.Errorf("the results are %s", results)
	}
	awaitEnd(t, v1alpha1.BackupPhaseCompleted, "orchard") // by the slot of the other one
	awaitStored(t, "orchard")
	for volume := range volumes {
		awaitHistory(t, stays, volume, "orchard")
	}
}
