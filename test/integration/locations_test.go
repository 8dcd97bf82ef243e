// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestLocationsForSome: a tenant's backups, schedules and restores use the locations only that are for
// their namespace, by its name or its labels. An administrator's use all.
func TestLocationsForSome(t *testing.T) {
	ann := labtest.Name("ann")
	orchard := lab.Namespace(t, "orchard")
	lab.Grant(t, ann, "edit", orchard)
	location, _ := lab.Location(t, "for-some")
	lab.Create(t, orchard, "own", v1alpha1.BackupSpec{StorageLocation: location})
	lab.AwaitPhase(t, orchard, "own", v1alpha1.BackupPhaseCompleted)

	allow := func(allowed string) {
		t.Helper()
		patch := []byte(fmt.Sprintf(`{"spec":{"allowedNamespaces":%s}}`, allowed))
		if _, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Patch(t.Context(), location, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	backup := fmt.Sprintf(`{"apiVersion":"holdfast.io/v1alpha1","kind":"Backup","metadata":{"name":"more","namespace":%q},"spec":{"storageLocation":%q}}`, orchard, location)
	restore := fmt.Sprintf(restoreManifest, "back", orchard, "{backupName: own}")
	dry := func(manifest string) error {
		_, stderr, err := lab.TryKubectl(t, manifest, "create", "--dry-run=server", "-f", "-", "--as="+ann)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, stderr)
		}
		return err
	}
	refused := func() {
		t.Helper()
		labtest.Eventually(t, "a refusal", func() error {
			if dry(backup) == nil {
				return fmt.Errorf("the backup is taken")
			}
			return nil
		})
		lab.Refused(t, backup, []string{"create", "-f", "-", "--as=" + ann}, "spec.storageLocation", "not for this namespace", "spec.allowedNamespaces.names")
		lab.Refused(t, restore, []string{"create", "-f", "-", "--as=" + ann}, "spec.backupName", "not for this namespace")
	}
	taken := func() {
		t.Helper()
		labtest.Eventually(t, "a backup and a restore", func() error {
			if err := dry(backup); err != nil {
				return err
			}
			return dry(restore)
		})
	}
	allow(`{"names":["cellar"]}`)
	refused()
	lab.Create(t, labtest.System, labtest.Name("of-all"), v1alpha1.BackupSpec{StorageLocation: location, IncludedNamespaces: []string{orchard}})
	allow(fmt.Sprintf(`{"names":["cellar",%q]}`, orchard))
	taken()
	allow(`{"names":[],"selector":{"matchLabels":{"fruit":"yes"}}}`)
	refused()
	if _, err := lab.Kube.CoreV1().Namespaces().Patch(t.Context(), orchard, types.MergePatchType, []byte(`{"metadata":{"labels":{"fruit":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	taken()
	allow("null") // it is not the default one
	refused()
}
