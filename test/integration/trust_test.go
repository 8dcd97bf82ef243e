// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// storeFrom puts a backup of a namespace, with one volume, into a location's folder, as
// a cluster makes it.
func storeFrom(t *testing.T, folder string, cluster format.Cluster, namespace, name string) {
	t.Helper()
	ended := metav1.Date(2026, time.March, 1, 1, 5, 0, 0, time.UTC)
	storeName := format.StoreName(namespace, name, cluster.SystemNamespace)
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + storeName), CreationTimestamp: ended},
		Spec:       v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}},
		Status: v1alpha1.BackupStatus{
			Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &ended, CompletionTimestamp: &ended, Requester: "root-of-another",
			Origin: &v1alpha1.BackupOrigin{NamespaceUID: "uid-there"},
		},
	}
	var volumes bytes.Buffer
	if err := format.WritePodVolumeBackups(&volumes, []format.PodVolumeBackup{format.NewPodVolumeBackup(backup, storeName, format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: namespace, Name: "db-0", UID: "7d5a"}, NamespaceUID: "uid-there", Name: "data", ClaimName: "data",
		Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "k1234"},
	})}); err != nil {
		t.Fatal(err)
	}
	contents := format.Contents{}
	contents.Set(format.PodVolumeBackupsKey(storeName), format.NewContent(volumes.Bytes()))
	metadata, err := format.EncodeBackup(backup, contents, cluster)
	if err != nil {
		t.Fatal(err)
	}
	put(t, folder, format.PodVolumeBackupsKey(storeName), volumes.Bytes())
	put(t, folder, format.MetadataKey(storeName), metadata)
}

func anotherCluster(t *testing.T) format.Cluster {
	t.Helper()
	key, err := format.NewSigningKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return format.Cluster{SystemNamespace: labtest.System, UID: labtest.Name("cluster"), Key: key}
}

// TestALostClusterIsAdopted: a store that another cluster has left comes back to its
// tenants by one change of the location.
func TestALostClusterIsAdopted(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "left-behind")
	lost := anotherCluster(t)
	first, second := lab.Namespace(t, "adopted"), lab.Namespace(t, "adopted")
	for _, namespace := range []string{first, second} {
		storeFrom(t, folder, lost, namespace, "daily")
	}
	backups := lab.Holdfast.HoldfastV1alpha1()
	for _, namespace := range []string{first, second} {
		found := lab.AwaitCompleted(t, namespace+".daily")
		if origin := found.Status.Origin; origin == nil || origin.Trust != v1alpha1.BackupTrustForeign || origin.ClusterUID != lost.UID ||
			origin.PublicKey != lost.Key.PublicKey() || origin.ClaimedRequester != "root-of-another" || found.Status.Requester != "" {
			t.Errorf("the backup of %s says %+v, asked for by %q", namespace, origin, found.Status.Requester)
		}
		if _, err := backups.Backups(namespace).Get(t.Context(), "daily", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("reading it in %s: %v", namespace, err)
		}
	}
	if row := lab.Kubectl(t, "get", "backups", "-n", labtest.System, first+".daily", "-o", "wide"); !strings.Contains(row, "(root-of-another)") || !strings.Contains(row, "Foreign") {
		t.Errorf("it is shown as\n%s", row)
	}

	lab.Trust(t, location, enginev1alpha1.TrustedCluster{Name: "lost", UID: lost.UID, PublicKey: lost.Key.PublicKey()})
	for _, namespace := range []string{first, second} {
		labtest.Eventually(t, "the backups to be back in "+namespace, func() error {
			found, err := backups.Backups(namespace).Get(t.Context(), "daily", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if origin := found.Status.Origin; origin.Trust != v1alpha1.BackupTrustTrusted || origin.Cluster != "lost" || found.Status.Requester != "root-of-another" {
				return fmt.Errorf("its origin is %+v", origin)
			}
			_, err = backups.VolumeBackups(namespace).Get(t.Context(), namespace+".daily:data", metav1.GetOptions{})
			return err
		})
		if _, err := backups.Backups(labtest.System).Get(t.Context(), namespace+".daily", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("reading it in the system namespace, too: %v", err)
		}
	}

	lab.Trust(t, location, enginev1alpha1.TrustedCluster{Name: "lost", UID: lost.UID, PublicKey: lost.Key.PublicKey(), Namespaces: []string{second}})
	lab.AwaitCompleted(t, first+".daily")
	if _, err := backups.Backups(second).Get(t.Context(), "daily", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestForgedBackups: what is in this cluster's name, or was changed, is seen, and gives
// nobody rows or rights.
func TestForgedBackups(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "written-by-others")
	namespace := lab.Namespace(t, "target")
	lab.Create(t, namespace, "own", v1alpha1.BackupSpec{StorageLocation: location})
	lab.AwaitPhase(t, namespace, "own", v1alpha1.BackupPhaseCompleted)
	lab.AwaitRunGone(t, namespace+".own")
	key := format.MetadataKey(namespace + ".own")
	metadata, err := os.ReadFile(filepath.Join(folder, key))
	if err != nil {
		t.Fatal(err)
	}
	system, err := lab.Kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	inOurName := anotherCluster(t)
	inOurName.UID = string(system.UID)
	storeFrom(t, folder, inOurName, namespace, "claimed")
	changed := bytes.ReplaceAll(bytes.Replace(metadata, []byte("lab-admin"), []byte("lab-adnim"), 1), []byte(namespace+".own"), []byte(namespace+".changed"))
	list, err := os.ReadFile(filepath.Join(folder, format.PodVolumeBackupsKey(namespace+".own")))
	if err != nil {
		t.Fatal(err)
	}
	put(t, folder, format.PodVolumeBackupsKey(namespace+".changed"), list)
	put(t, folder, format.MetadataKey(namespace+".changed"), changed)
	for name, trust := range map[string]v1alpha1.BackupTrust{"claimed": v1alpha1.BackupTrustUnknownKey, "changed": v1alpha1.BackupTrustForged} {
		found := lab.AwaitCompleted(t, namespace+"."+name)
		if origin := found.Status.Origin; origin == nil || origin.Trust != trust || origin.Message == "" {
			t.Errorf("%s: its origin is %+v", name, origin)
		}
	}
	tenants, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(tenants.Items) != 1 || tenants.Items[0].Name != "own" || tenants.Items[0].Status.Origin.Trust != v1alpha1.BackupTrustOwn {
		t.Errorf("the tenant sees %+v", tenants.Items)
	}
}
