// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestNothingStaysOfAnUnfinishedBackup: one volume is uploaded and the other one waits
// when the backup is cancelled, or its controller or its record goes. Then the snapshot
// goes too, and nothing is left of the backup in the store but how it ended.
func TestNothingStaysOfAnUnfinishedBackup(t *testing.T) {
	for how, c := range map[string]struct {
		end   func(t *testing.T, name string)
		phase v1alpha1.BackupPhase
	}{
		"cancelled": {func(t *testing.T, name string) { cancelBackup(t, name) }, v1alpha1.BackupPhaseCancelled},
		"killed, and cancelled": {func(t *testing.T, name string) { // the next controller would go on with it
			lab.Kill(t, labtest.Controller)
			lab.Start(t, labtest.Controller)
			cancelBackup(t, name)
		}, v1alpha1.BackupPhaseCancelled},
		"removed by hand": {func(t *testing.T, name string) {
			if err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(how, func(t *testing.T) {
			uploaded, waiting := lab.Namespace(t, "uploaded"), lab.Namespace(t, "waiting")
			_, folder := lab.Pod(t, uploaded, labtest.Node)
			lab.Pod(t, waiting, labtest.Unattended)
			if err := os.WriteFile(filepath.Join(folder, "file"), []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
			name := labtest.Name("unfinished")
			backup := lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{
				IncludedNamespaces:       []string{uploaded, waiting},
				DefaultVolumesToFsBackup: new(true),
			})
			selected := metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRun + "=" + string(backup.UID)}
			labtest.Eventually(t, "one volume to be uploaded, and the other to wait", func() error {
				list, err := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System).List(t.Context(), selected)
				if err != nil {
					return err
				}
				completed := 0
				for i := range list.Items {
					if list.Items[i].Status.Phase == enginev1alpha1.VolumePhaseCompleted {
						completed++
					}
				}
				if len(list.Items) != 2 || completed != 1 {
					return fmt.Errorf("of %d, %d are uploaded", len(list.Items), completed)
				}
				return nil
			})
			if n := snapshots(t, uploaded, backup.UID); n != 1 {
				t.Fatalf("there are %d snapshots", n)
			}
			c.end(t, name)
			if c.phase != "" {
				lab.AwaitPhase(t, labtest.System, name, c.phase)
			}
			labtest.Eventually(t, "the snapshots to be gone after a maintenance", func() error {
				sweep(t, uploaded)
				if n := snapshots(t, uploaded, backup.UID); n != 0 {
					return fmt.Errorf("there are %d", n)
				}
				return nil
			})
			reduced(t, name)
		})
	}
}

// sweep has the repository of a namespace maintained, which removes the snapshots that no
// backup lists.
func sweep(t *testing.T, namespace string) {
	t.Helper()
	if _, message, err := maintain(t, "--repo-name="+namespace, "--backup-storage-location=default"); err != nil {
		t.Errorf("maintaining the repository of %s: %v: %s", namespace, err, message)
	}
}

// snapshots is how many there are for a backup in the repository of a namespace.
func snapshots(t *testing.T, namespace string, backup types.UID) int {
	t.Helper()
	return snapshotsAt(t, "default", namespace, backup)
}

func snapshotsAt(t *testing.T, location, namespace string, backup types.UID) int {
	t.Helper()
	stored, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Get(t.Context(), location, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := opener.OpenAt(t.Context(), lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)),
		lab.Kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(labtest.System)), stored, namespace, repository.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := opened.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	all, err := datapath.Snapshots(t.Context(), opened)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, snapshot := range all {
		if snapshot.Backup == backup {
			if location == "default" && (snapshot.StoreName == "" || snapshot.ClusterUID == "") {
				t.Errorf("snapshot %s does not say of which backup of which cluster it is: %+v", snapshot.ID, snapshot)
			}
			n++
		}
	}
	return n
}
