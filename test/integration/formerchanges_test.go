// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestFormerChanges: the records that the previous version left, as its API server wrote them, count
// and are carried out; a later request applies after them.
func TestFormerChanges(t *testing.T) {
	lab.Reconfigure(t, "--run-retention=1s")
	name := expiring(t, lab.Namespace(t, "former-ns"), time.Hour)
	backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record := func(kind, name, spec string, args ...any) {
		t.Helper()
		manifest := fmt.Sprintf(`{"apiVersion":"engine.holdfast.io/v1alpha1","kind":%q,"metadata":{"namespace":%q,"name":%q},"spec":{
			"ask":{"requester":{"username":"joe"},"timestamp":"2024-01-01T00:00:00Z"},%s}}`, kind, labtest.System, name, fmt.Sprintf(spec, args...))
		if _, stderr, err := lab.TryKubectl(t, manifest, "create", "-f", "-"); err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
	}
	record("ExpirationChange", name, `"backupRef":{"namespace":%q,"name":%q},"uid":%q,"storageLocation":%q,"reason":"evidence","hold":true`,
		backup.Namespace, backup.Name, backup.UID, backup.Spec.StorageLocation)
	labtest.Eventually(t, "the hold", func() error {
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (backup.Status.Hold == nil || backup.Status.Hold.Requester != "joe") {
			err = fmt.Errorf("it has %+v", backup.Status)
		}
		return err
	})
	awaitEvent(t, name, "Held", "evidence")
	labtest.Eventually(t, "the record of the hold to be done", func() error {
		change, err := lab.Engine.EngineV1alpha1().ExpirationChanges(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (change.Status.ObservedGeneration != change.Generation || change.Status.Number != 1) {
			err = fmt.Errorf("it says %+v", change.Status)
		}
		return err
	})
	release := false
	if err := changeExpiration(t, name, &v1alpha1.BackupExpiration{Hold: &release}); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, name, "Released", "has released the backup")

	record("VolumeDeletion", "former-"+name, `"namespace":"shop","volume":"none","listedIn":"shop","targets":[{"storageLocation":%q,"storeName":%q,"uid":%q}]`,
		backup.Spec.StorageLocation, name, backup.UID)
	labtest.Eventually(t, "the deletion to be refused", func() error {
		deletion, err := lab.Engine.EngineV1alpha1().VolumeDeletions(labtest.System).Get(t.Context(), "former-"+name, metav1.GetOptions{})
		if err == nil && (deletion.Status.CompletionTimestamp == nil || len(deletion.Status.Refused) != 1 || !strings.Contains(deletion.Status.Refused[0].Message, "no such volume")) {
			err = fmt.Errorf("it says %+v", deletion.Status)
		}
		return err
	})
}
