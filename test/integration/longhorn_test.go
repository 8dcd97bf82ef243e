// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/longhorn"
	"github.com/holdfast-io/holdfast/pkg/longhorn/longhorntest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestLonghorn: a store that Longhorn's own library wrote, in a folder, is listed beside
// Holdfast's own, in the namespaces that it names once that is trusted, and nothing is written
// to it.
func TestLonghorn(t *testing.T) {
	t.Parallel()
	name := labtest.Name("longhorn")
	folder := filepath.Join(lab.Dir, "store-"+name)
	fixture := longhorntest.Fixture(t)
	for _, file := range fixture {
		path := filepath.Join(folder, file.Key)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, file.Content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	record := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder},
		Format: enginev1alpha1.StorageFormatLonghorn, Default: true,
	}}
	if _, err := locations.Create(t.Context(), record, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "can't be the default") {
		t.Errorf("as the default: %v", err)
	}
	record.Spec.Default = false
	if _, err := locations.Create(t.Context(), record, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locations.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	lab.AwaitAvailable(t, name, metav1.ConditionTrue)

	listed := func(namespace string, want ...string) {
		t.Helper()
		labtest.Eventually(t, "the volume backups in "+namespace, func() error {
			stdout, stderr, err := lab.TryKubectl(t, "", "get", "volumebackups", "-n", namespace, "--no-headers")
			if err != nil {
				return fmt.Errorf("%w: %s", err, stderr)
			}
			for _, text := range want {
				if !strings.Contains(stdout, text) {
					return fmt.Errorf("%q is not among\n%s", text, stdout)
				}
			}
			return nil
		})
	}
	listed(labtest.System, "legacy-disk.backup-93a4b5c6d7e8f90a:volume:legacy-disk", "db-data.backup-f90a1b2c3d4e5f60:db-data@ledger")

	// Whoever may write to the store has a say in the namespaces only if that is so wanted.
	labtest.Eventually(t, name+" to trust the labels", func() error {
		record, err := locations.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		record.Spec.Longhorn = &enginev1alpha1.LonghornLocation{TrustNamespaces: true}
		_, err = locations.Update(t.Context(), record, metav1.UpdateOptions{})
		return err
	})
	listed("shop", "backup-0a1b2c3d4e5f6071:data", "backup-3d4e5f60718293a4:data")
	listed("ledger", "InProgress", "Completed")
	if got := lab.Kubectl(t, "get", "backupvolumes", "-n", "media"); !strings.Contains(got, "uploads") {
		t.Errorf("the volumes of media are\n%s", got)
	}
	if got := lab.Kubectl(t, "get", "storagelocations", "-n", labtest.System, name); !strings.Contains(got, "longhorn") {
		t.Errorf("the location is shown as\n%s", got)
	}

	backup := fmt.Sprintf(`{"apiVersion":"holdfast.io/v1alpha1","kind":"Backup","metadata":{"name":"b","namespace":%q},"spec":{"includedNamespaces":["default"],"storageLocation":%q}}`, labtest.System, name)
	lab.Refused(t, backup, []string{"create", "-f", "-"}, "spec.storageLocation", "Longhorn writes this store")
	labtest.Eventually(t, "the format to be changed", func() error {
		record, err := locations.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		record.Spec.Format, record.Spec.Longhorn = enginev1alpha1.StorageFormatHoldfast, nil
		_, err = locations.Update(t.Context(), record, metav1.UpdateOptions{})
		if err == nil || !strings.Contains(err.Error(), "keeps its format") {
			return fmt.Errorf("it is answered with %v", err)
		}
		return nil
	})

	unchanged(t, folder, len(fixture))

	// Deleted is what is asked for, once the location allows it, and by Longhorn's rules.
	remove := func(resource, name string, want ...string) {
		t.Helper()
		path := api + "/namespaces/" + labtest.System + "/" + resource + "/" + name + "/deletion"
		body := `{"apiVersion":"holdfast.io/v1alpha1","kind":"VolumeDeletion"}`
		if len(want) > 0 {
			lab.Refused(t, body, []string{"create", "--raw", path, "-f", "-"}, want...)
		} else if _, stderr, err := lab.TryKubectl(t, body, "create", "--raw", path, "-f", "-"); err != nil {
			t.Fatalf("deleting %s: %v: %s", name, err, stderr)
		}
	}
	const one = "legacy-disk.backup-93a4b5c6d7e8f90a:volume:legacy-disk"
	remove("volumebackups", one, "allowDeletion")
	labtest.Eventually(t, name+" to allow deletion", func() error {
		record, err := locations.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		record.Spec.Longhorn.AllowDeletion = true
		_, err = locations.Update(t.Context(), record, metav1.UpdateOptions{})
		return err
	})
	labtest.Eventually(t, "the deletion to be allowed", func() error {
		path := api + "/namespaces/" + labtest.System + "/volumebackups/" + one + "/deletion"
		_, stderr, err := lab.TryKubectl(t, `{"apiVersion":"holdfast.io/v1alpha1","kind":"VolumeDeletion"}`, "create", "--raw", path, "-f", "-")
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	})
	if got := lab.Kubectl(t, "get", "volumebackups", "-n", labtest.System); strings.Contains(got, one) || !strings.Contains(got, "legacy-disk.backup-b5c6d7e8f90a1b2c") {
		t.Errorf("one was deleted, and listed are\n%s", got)
	}
	goes := func(path string) {
		t.Helper()
		labtest.Eventually(t, path+" to go from the store", func() error {
			if _, err := os.Stat(filepath.Join(folder, path)); !os.IsNotExist(err) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
	}
	goes(longhorn.BackupKey("legacy-disk", "backup-93a4b5c6d7e8f90a"))
	remove("backupvolumes", "volume:legacy-disk")
	if got := lab.Kubectl(t, "get", "volumebackups", "-n", labtest.System); strings.Contains(got, "legacy-disk") {
		t.Errorf("the volume was deleted, and listed are\n%s", got)
	}
	goes(longhorn.VolumePrefix("legacy-disk"))
}

// unchanged fails if there are not so many files.
func unchanged(t *testing.T, folder string, want int) {
	t.Helper()
	found := 0
	if err := filepath.WalkDir(folder, func(_ string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			found++
		}
		return err
	}); err != nil || found != want {
		t.Errorf("the store has %d files by now, and had %d: %v", found, want, err)
	}
}
