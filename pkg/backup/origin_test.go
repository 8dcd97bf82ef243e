// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Whose a backup and its volumes are is stored, and signed.
func TestTheOriginIsStored(t *testing.T) {
	yes := true
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, DefaultVolumesToFsBackup: &yes})
	f.add("namespaces", `{"metadata":{"name":"shop","uid":"uid-of-shop"}}`)
	f.add("pods", podWith("p", "", "scratch"+emptyDir))
	key, err := format.ParseSigningKey(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	f.request.Cluster.Key = key
	f.request.Backup.Status.Origin = &v1alpha1.BackupOrigin{NamespaceUID: "uid-of-holdfast"}
	f.run(t)

	owner, err := format.DecodeOwner(f.read(t, format.OwnerKey("b")))
	if want := (format.Owner{UID: f.request.Backup.UID, ClusterUID: "c-1"}); err != nil || owner != want {
		t.Errorf("the owner is %+v, %v, want %+v", owner, err, want)
	}
	stored := f.stored(t)
	want := v1alpha1.BackupOrigin{
		ClusterUID: "c-1", PublicKey: key.PublicKey(), Namespace: "holdfast", NamespaceUID: "uid-of-holdfast", Name: "b", ClaimedRequester: "ada",
	}
	if *stored.Status.Origin != want {
		t.Errorf("stored %+v, want %+v", *stored.Status.Origin, want)
	}
	volumes := 0
	err = format.ReadPodVolumeBackups(bytes.NewReader(f.read(t, format.PodVolumeBackupsKey("b"))), func(volume format.PodVolumeBackup) error {
		if volumes++; volume.NamespaceUID() != "uid-of-shop" {
			t.Errorf("volume %s is of the namespace %q", volume.Spec.Volume, volume.NamespaceUID())
		}
		return nil
	})
	if err != nil || volumes != 1 {
		t.Errorf("%d volumes, %v", volumes, err)
	}
}
