// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestLostPacks: packs that somebody has removed from a bucket make their repository and the
// backups that need them Damaged. The next backup stores anew what they held, and all is whole.
func TestLostPacks(t *testing.T) {
	t.Parallel()
	location, store := lab.Location(t, "lost")
	namespace := lab.Namespace(t, "lost")
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	name := enginev1alpha1.RepositoryName(namespace, location)
	backUp := func() (backup string) {
		backup = labtest.Name("lost")
		lab.Create(t, labtest.System, backup, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location, DefaultVolumesToFsBackup: new(true)})
		lab.AwaitCompleted(t, backup)
		lab.AwaitRunGone(t, backup)
		return backup
	}
	verify := func(want metav1.ConditionStatus) {
		t.Helper()
		answer, err := lab.Holdfast.HoldfastV1alpha1().MaintenanceRequests(labtest.System).Create(t.Context(), &v1alpha1.MaintenanceRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MaintenanceRequestSpec{Verify: true},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lab.Kubectl(t, "wait", "--for=condition=Maintained", "--timeout=2m", "-n", labtest.System, "hfrepo/"+name)
		record, err := lab.Engine.EngineV1alpha1().VolumeRepositories(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		condition := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionDamaged)
		if condition == nil || condition.Status != want || record.Status.LastVerificationTime == nil {
			t.Fatalf("after %s the record says %+v", answer.Status.Job, record.Status)
		}
	}
	expect := func(backup, phase string) {
		t.Helper()
		labtest.Eventually(t, "the volume of "+backup+" to be "+phase, func() error {
			stored, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), backup, metav1.GetOptions{})
			if err != nil {
				return err
			}
			got := volumeHistory(t, namespace, backup).Status.Phase
			if damaged := meta.IsStatusConditionTrue(stored.Status.Conditions, v1alpha1.ConditionVolumesDamaged); got != phase || damaged != (phase == v1alpha1.VolumeBackupDamaged) {
				return fmt.Errorf("it is %s, and the backup has %+v", got, stored.Status.Conditions)
			}
			return nil
		})
	}
	first := backUp()
	verify(metav1.ConditionFalse)
	expect(first, v1alpha1.VolumeBackupCompleted)

	packs, err := filepath.Glob(filepath.Join(store, "kopia", namespace, "p*"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("there are no packs in %s: %v", store, err)
	}
	for _, pack := range packs {
		if err := os.RemoveAll(pack); err != nil {
			t.Fatal(err)
		}
	}
	verify(metav1.ConditionTrue)
	expect(first, v1alpha1.VolumeBackupDamaged)
	if listed := lab.Kubectl(t, "get", "volumebackups", "-n", namespace, "--field-selector", "status.phase=Damaged"); !strings.Contains(listed, "Damaged") {
		t.Errorf("kubectl lists %s", listed)
	}

	second := backUp()
	expect(second, v1alpha1.VolumeBackupCompleted)
	verify(metav1.ConditionFalse)
	expect(first, v1alpha1.VolumeBackupCompleted)
	expect(second, v1alpha1.VolumeBackupCompleted)
}
