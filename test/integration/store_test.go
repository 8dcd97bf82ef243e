// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestStoreGoesAndComesBack: with the store away, what is known of it is served,
// with a warning; its backups wait, and start by themselves when it is back.
// Pitfall 24: nothing that waits is lost.
func TestStoreGoesAndComesBack(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "moving")
	namespace := lab.Namespace(t, "moving-ns")
	before, hasty, waiting, other := labtest.Name("before"), labtest.Name("hasty"), labtest.Name("waiting"), labtest.Name("other")
	spec := v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location}
	lab.Create(t, labtest.System, before, spec)
	lab.AwaitCompleted(t, before)
	lab.AwaitRunGone(t, before)
	about := func() string {
		t.Helper()
		response := lab.Request(t, http.MethodGet, api+"/backups", "")
		if response.Code != http.StatusOK || !strings.Contains(string(response.Body), before) {
			t.Errorf("the list is answered with %d, and without %s: %s", response.Code, before, response.Body)
		}
		for _, warning := range response.Header.Values("Warning") {
			if strings.Contains(warning, location) {
				return warning
			}
		}
		return ""
	}
	if warning := about(); warning != "" {
		t.Errorf("a list warns of a store that is there: %s", warning)
	}

	if err := os.Rename(folder, folder+"-away"); err != nil {
		t.Fatal(err)
	}
	// This one finds out, and is none the worse for it.
	lab.Create(t, labtest.System, hasty, spec)
	awaitStorageUnavailable(t, hasty, location)
	labtest.Eventually(t, "lists to warn", func() error {
		if about() == "" {
			return fmt.Errorf("there is no warning of %s", location)
		}
		return nil
	})
	if condition := lab.AwaitAvailable(t, location, metav1.ConditionFalse); condition.Reason != enginev1alpha1.ReasonUnreachable || condition.Message == "" {
		t.Errorf("the condition is %+v", condition)
	}
	body := fmt.Sprintf(manifest, waiting, labtest.System, fmt.Sprintf("{includedNamespaces: [%s], storageLocation: %s}", namespace, location))
	_, stderr, err := lab.TryKubectl(t, body, "create", "-f", "-")
	if err != nil || !strings.Contains(stderr, "Warning: spec.storageLocation") {
		t.Errorf("creating a backup there: %v: %s", err, stderr)
	}
	awaitStorageUnavailable(t, waiting, location)
	// It keeps its place, and holds up no one in another store.
	lab.Backup(t, other, lab.Namespace(t, "elsewhere"))
	lab.AwaitCompleted(t, other)
	lab.AwaitPhase(t, labtest.System, waiting, v1alpha1.BackupPhaseQueued)
	lab.AwaitCompleted(t, before)

	if err := os.Rename(folder+"-away", folder); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{hasty, waiting} {
		lab.AwaitCompleted(t, name)
		lab.AwaitRunGone(t, name)
		lab.AwaitCompleted(t, name)
	}
	labtest.Eventually(t, "lists to warn no more", func() error {
		if warning := about(); warning != "" {
			return fmt.Errorf("there is %s", warning)
		}
		return nil
	})
}

// awaitStorageUnavailable waits until a backup says that it waits for its store.
func awaitStorageUnavailable(t *testing.T, name, location string) {
	t.Helper()
	labtest.Eventually(t, name+" to say what it waits for", func() error {
		found, err := lab.Holdfast.HoldfastV1alpha1().BackupQueueEntries(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (found.Status.Reason != v1alpha1.QueueReasonStorageUnavailable || !strings.Contains(found.Status.Message, location)) {
			err = fmt.Errorf("its entry is %+v", found.Status)
		}
		return err
	})
}

// TestStoreThatNeverAnswers: an endpoint of S3 that accepts connections and says nothing
// stops nobody who uses another location, not even while the API server is new.
func TestStoreThatNeverAnswers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	location := labtest.Name("silent")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: location}, Data: map[string][]byte{
		store.SecretAccessKeyID: []byte("id"), store.SecretSecretAccessKey: []byte("key"),
	}}
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	if _, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: location},
		Spec: enginev1alpha1.StorageLocationSpec{
			AllowedNamespaces: &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}},
			Provider:          enginev1alpha1.StorageProviderS3,
			S3:                &enginev1alpha1.S3Location{Bucket: "backups", Endpoint: "http://" + silent.Addr().String(), ForcePathStyle: true, CredentialsSecret: location},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := locations.Delete(context.Background(), location, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()

	lab.Kill(t, labtest.APIServer)
	lab.Start(t, labtest.APIServer)
	name, stuck, namespace := labtest.Name("elsewhere"), labtest.Name("stuck"), lab.Namespace(t, "elsewhere")
	began := time.Now()
	lab.Create(t, labtest.System, stuck, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location})
	lab.Backup(t, name, lab.Namespace(t, "other"))
	lab.AwaitCompleted(t, name)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a backup to another location ended after %s", took)
	}
	labtest.Eventually(t, "a list to warn of the silent location", func() error {
		response := lab.Request(t, http.MethodGet, api+"/backups", "")
		if response.Code != http.StatusOK || !strings.Contains(fmt.Sprint(response.Header.Values("Warning")), location) {
			return fmt.Errorf("it is answered with %d and %v", response.Code, response.Header.Values("Warning"))
		}
		return nil
	})
	cancelBackup(t, stuck)
}

// TestStoreGoesWhileABackupRuns: the backup waits some seconds for it, then fails
// and says why. Its failure is stored when the store is back.
func TestStoreGoesWhileABackupRuns(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "fading")
	namespace := lab.Namespace(t, "fading-ns")
	lab.Pod(t, namespace, labtest.Unattended)
	held := lab.HoldSpec(t, labtest.Name("held"), v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location})
	if err := os.Rename(folder, folder+"-away"); err != nil {
		t.Fatal(err)
	}
	held.LetGo(t)
	failed := lab.AwaitPhase(t, labtest.System, held.Name, v1alpha1.BackupPhaseFailed)
	if !strings.Contains(failed.Status.FailureReason, "the folder of the storage location does not exist") {
		t.Errorf("it failed for the reason %q", failed.Status.FailureReason)
	}
	if err := os.Rename(folder+"-away", folder); err != nil {
		t.Fatal(err)
	}
	lab.AwaitRunGone(t, held.Name)
	lab.AwaitPhase(t, labtest.System, held.Name, v1alpha1.BackupPhaseFailed)
	want := []string{held.Name + "-logs.gz", held.Name + "-results.gz", "holdfast-owner.json", "velero-backup.json"}
	if diff := cmp.Diff(want, files(t, filepath.Join(folder, format.BackupPrefix(held.Name)))); diff != "" {
		t.Errorf("what the store holds of it (-want +got):\n%s", diff)
	}
	next := labtest.Name("next")
	lab.Create(t, labtest.System, next, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location})
	lab.AwaitCompleted(t, next)
}

// TestUnreadableBackup: a file that can't be read is one bad row, and hides
// nothing beside it.
func TestUnreadableBackup(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "damaged")
	namespace := lab.Namespace(t, "damaged-ns")
	sound, broken, cut := labtest.Name("sound"), labtest.Name("broken"), labtest.Name("cut")
	lab.Create(t, labtest.System, sound, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location})
	lab.AwaitCompleted(t, sound)
	lab.AwaitRunGone(t, sound)
	metadata, err := os.ReadFile(filepath.Join(folder, format.MetadataKey(sound)))
	if err != nil {
		t.Fatal(err)
	}
	put(t, folder, format.MetadataKey(broken), []byte("this is no JSON"))
	put(t, folder, format.MetadataKey(cut), metadata[:len(metadata)/2])
	for _, name := range []string{broken, cut} {
		found := lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseUnreadable)
		if found.Status.FailureReason == "" || found.Spec.StorageLocation != location {
			t.Errorf("%s says %q, and is in %q", name, found.Status.FailureReason, found.Spec.StorageLocation)
		}
	}
	lab.AwaitCompleted(t, sound)
	table := lab.Kubectl(t, "get", "backups", "-n", labtest.System, "--field-selector", "spec.storageLocation="+location)
	if strings.Count(table, "Unreadable") != 2 || strings.Count(table, "Completed") != 1 {
		t.Errorf("kubectl get backups prints\n%s", table)
	}
	// Its name is taken, whatever it is.
	if status := create(t, fmt.Sprintf(manifest, broken, labtest.System, "{}"), ""); status.Reason != metav1.StatusReasonAlreadyExists {
		t.Errorf("creating a backup of that name is answered with %q", status.Message)
	}
}

// put writes a file of a store at once, as stores do.
func put(t *testing.T, folder, key string, content []byte) {
	t.Helper()
	path := filepath.Join(folder, filepath.FromSlash(key))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".tmp", content, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

// TestBackupsOfOthers: what another cluster, or Velero, puts into the store shows
// up by itself, with its volumes, and goes when it is removed there.
func TestBackupsOfOthers(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "shared")
	name, namespace := labtest.Name("imported"), labtest.Name("far-away")
	theirs := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: name, UID: "0a4f6c5e-0b8e-4f2b-9a55-4f6d3c1b2a19",
			CreationTimestamp: metav1.Date(2026, time.March, 1, 1, 0, 0, 0, time.UTC),
			Labels:            map[string]string{"velero.io/schedule-name": "nightly"},
		},
		Spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: "their-name-of-it"},
		Status: v1alpha1.BackupStatus{
			Phase:               v1alpha1.BackupPhaseCompleted,
			StartTimestamp:      &metav1.Time{Time: time.Date(2026, time.March, 1, 1, 0, 1, 0, time.UTC)},
			CompletionTimestamp: &metav1.Time{Time: time.Date(2026, time.March, 1, 1, 5, 0, 0, time.UTC)},
			Progress:            &v1alpha1.BackupProgress{TotalItems: 7, ItemsBackedUp: 7},
		},
	}
	// The system namespace is theirs, so the name in the store is the backup's own.
	metadata, err := format.EncodeBackup(theirs, nil, format.Cluster{SystemNamespace: "velero", UID: "of-another-cluster"})
	if err != nil {
		t.Fatal(err)
	}
	var volumes bytes.Buffer
	err = format.WritePodVolumeBackups(&volumes, []format.PodVolumeBackup{format.NewPodVolumeBackup(theirs, name, format.Volume{
		Pod:       enginev1alpha1.PodReference{Namespace: namespace, Name: "db-0", UID: "7d5a"},
		Node:      "their-node",
		Name:      "data",
		ClaimName: "data-db-0", ClaimUID: "52c1", PersistentVolume: "pv-1",
		Status: enginev1alpha1.VolumeUploadStatus{
			Phase:      enginev1alpha1.VolumePhaseCompleted,
			SnapshotID: "k1234",
			Progress:   enginev1alpha1.VolumeProgress{TotalBytes: 4096, BytesDone: 4096},
		},
	})})
	if err != nil {
		t.Fatal(err)
	}
	// An own one beside it, so that the store is not suddenly empty when theirs goes.
	own := labtest.Name("own")
	lab.Create(t, labtest.System, own, v1alpha1.BackupSpec{IncludedNamespaces: []string{lab.Namespace(t, "own-ns")}, StorageLocation: location})
	lab.AwaitCompleted(t, own)

	put(t, folder, format.PodVolumeBackupsKey(name), volumes.Bytes())
	put(t, folder, format.MetadataKey(name), metadata)
	var shown *v1alpha1.Backup
	labtest.Eventually(t, name+" to show up", func() (err error) {
		shown, err = lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		return err
	})
	if shown.UID != theirs.UID || !shown.CreationTimestamp.Equal(&theirs.CreationTimestamp) || shown.Status.Phase != theirs.Status.Phase ||
		shown.Spec.StorageLocation != location || shown.Labels["velero.io/schedule-name"] != "nightly" {
		t.Errorf("it is shown as %+v", shown)
	}
	if origin := shown.Status.Origin; origin == nil || origin.Trust != v1alpha1.BackupTrustForeign || origin.ClusterUID != "of-another-cluster" {
		t.Errorf("its origin is %+v", origin)
	}
	history := lab.Kubectl(t, "get", "volumebackups", "-n", labtest.System, "--field-selector", "spec.volumeName=data-db-0@"+namespace+",status.node=their-node", "-o", "wide")
	if !strings.Contains(history, "k1234") {
		t.Errorf("the history of their volume is\n%s", history)
	}
	if volumes := lab.Kubectl(t, "get", "backupvolumes", "-n", labtest.System, "data-db-0@"+namespace); !strings.Contains(volumes, "4.0Ki") {
		t.Errorf("their volumes are\n%s", volumes)
	}

	if err := os.RemoveAll(filepath.Join(folder, format.BackupPrefix(name))); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, name+" to go", func() error {
		_, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading it: %v", err)
		}
		_, err = lab.Holdfast.HoldfastV1alpha1().BackupVolumes(labtest.System).Get(t.Context(), "data-db-0@"+namespace, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading its volume: %v", err)
		}
		return nil
	})
	lab.AwaitCompleted(t, own)
}

// TestSameNameInTwoStores: both are listed, under names of their own that do not
// change, and can be restored.
func TestSameNameInTwoStores(t *testing.T) {
	t.Parallel()
	first, firstFolder := lab.Location(t, "a-copy")
	second, secondFolder := lab.Location(t, "b-copy")
	name, namespace := labtest.Name("twin"), lab.Namespace(t, "twin-ns")
	lab.Kubectl(t, "create", "configmap", "conf", "-n", namespace, "--from-literal=a=1")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: second})
	original := lab.AwaitCompleted(t, name)
	lab.AwaitRunGone(t, name)
	if err := os.CopyFS(filepath.Join(firstFolder, "backups"), os.DirFS(filepath.Join(secondFolder, "backups"))); err != nil {
		t.Fatal(err)
	}
	labtest.Eventually(t, "both to be listed", func() error {
		list, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var found []string
		for _, backup := range list.Items {
			if strings.HasPrefix(backup.Name, name) {
				found = append(found, backup.Name+" in "+backup.Spec.StorageLocation)
			}
		}
		if want := []string{name + " in " + first, name + "@" + second + " in " + second}; !slices.Equal(want, found) {
			return fmt.Errorf("they are %v, not %v", found, want)
		}
		return nil
	})
	lab.Kubectl(t, "get", "backup", "-n", labtest.System, name+"@"+second)
	copied := lab.AwaitCompleted(t, name)
	renamed := lab.AwaitCompleted(t, name+"@"+second)
	if copied.UID != original.UID || renamed.UID == original.UID {
		t.Errorf("the uid of the original is %s, that of its copy %s, and of the one with the new name %s", original.UID, copied.UID, renamed.UID)
	}
	for _, backup := range []string{copied.Name, renamed.Name} {
		lab.Kubectl(t, "delete", "configmap", "conf", "-n", namespace)
		if ended := restoredInto(t, lab, labtest.System, labtest.Name("twin"), backup); ended.Status.Phase != v1alpha1.RestorePhaseCompleted {
			t.Errorf("the restore of %s is %s: %s", backup, ended.Status.Phase, ended.Status.Message)
		}
		lab.Kubectl(t, "get", "configmap", "conf", "-n", namespace)
	}
}

// TestAnotherStoreInItsPlace: a mount point whose disk is not mounted takes no backup. The backup
// that waits is made when the disk is back, or on the other disk if an administrator gives the
// first one up.
func TestAnotherStoreInItsPlace(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "unmounted")
	namespace := lab.Namespace(t, "unmounted")
	backUp := func() string {
		name := labtest.Name("unmounted")
		lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location})
		return name
	}
	unmount := func(disk string) {
		t.Helper()
		if err := errors.Join(os.Rename(folder, disk), os.Mkdir(folder, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	before := backUp()
	lab.AwaitCompleted(t, before)
	lab.AwaitRunGone(t, before)
	id := lab.Kubectl(t, "get", "storagelocation", location, "-n", labtest.System, "-o", "jsonpath={.status.storeID}")

	unmount(folder + "-disk")
	waiting := backUp()
	awaitStorageUnavailable(t, waiting, location)
	condition := lab.AwaitAvailable(t, location, metav1.ConditionFalse)
	if condition.Reason != enginev1alpha1.ReasonOtherStore || !strings.Contains(condition.Message, id) {
		t.Errorf("of the store %q the condition is %+v", id, condition)
	}
	lab.AwaitPhase(t, labtest.System, waiting, v1alpha1.BackupPhaseQueued)
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		t.Errorf("the mount point holds %v, %v", entries, err)
	}

	if err := errors.Join(os.Remove(folder), os.Rename(folder+"-disk", folder)); err != nil {
		t.Fatal(err)
	}
	lab.AwaitCompleted(t, waiting)
	lab.AwaitRunGone(t, waiting)
	if _, err := os.Stat(filepath.Join(folder, "backups", waiting)); err != nil {
		t.Error(err)
	}

	unmount(folder + "-first")
	waiting = backUp()
	awaitStorageUnavailable(t, waiting, location)
	lab.Kubectl(t, "annotate", "storagelocation", location, "-n", labtest.System, "--overwrite", enginev1alpha1.AnnotationGiveUpStore+"="+id)
	lab.AwaitCompleted(t, waiting)
	if got := lab.Kubectl(t, "get", "storagelocation", location, "-n", labtest.System, "-o", "jsonpath={.status.storeID}"); got == "" || got == id {
		t.Errorf("the store %q has the id %q", id, got)
	}
}

// TestACopyOfTheCluster: a controller whose cluster's records are older than the store, as in a
// copy of its etcd, starts no backup there, and takes backups elsewhere. An administrator has it
// go on.
func TestACopyOfTheCluster(t *testing.T) {
	location, folder := lab.Location(t, "copied")
	other, _ := lab.Location(t, "own")
	namespace := lab.Namespace(t, "copied")
	identity, err := lab.Kube.CoreV1().ConfigMaps(labtest.System).Get(t.Context(), "holdfast-identity", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim := filepath.Join(folder, filepath.FromSlash(format.ClaimKey(identity.Data["cluster-uid"])))
	labtest.Eventually(t, "the claim of the cluster", func() error {
		_, err := os.Stat(claim)
		return err
	})
	content, err := format.EncodeClaim(format.Claim{Nonce: "original", Holder: "original-pod", Renewals: 7, Written: time.Now().Add(time.Hour)})
	if err == nil {
		err = errors.Join(lab.Signal(labtest.Controller, syscall.SIGKILL), os.WriteFile(claim, content, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	lab.AwaitKilled(t, labtest.Controller)
	lab.Start(t, labtest.Controller)

	reason := func(want string) {
		t.Helper()
		labtest.Eventually(t, "the reason "+want, func() error {
			record, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Get(t.Context(), location, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if condition := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionClonedCluster); condition == nil || condition.Reason != want {
				return fmt.Errorf("the condition is %+v", condition)
			}
			return nil
		})
	}
	reason(enginev1alpha1.ReasonStateIsOlder)
	waiting, elsewhere := labtest.Name("copied"), labtest.Name("own")
	lab.Create(t, labtest.System, waiting, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location})
	awaitStorageUnavailable(t, waiting, location)
	lab.Create(t, labtest.System, elsewhere, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: other})
	lab.AwaitCompleted(t, elsewhere)
	lab.AwaitPhase(t, labtest.System, waiting, v1alpha1.BackupPhaseQueued)

	lab.Kubectl(t, "annotate", "hfl", location, "-n", labtest.System, "--overwrite", enginev1alpha1.AnnotationTakeOver+"="+time.Now().UTC().Format(time.RFC3339))
	lab.AwaitCompleted(t, waiting)
	reason(enginev1alpha1.ReasonClaimedHere)
}
