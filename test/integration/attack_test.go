// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestAnAttackOnALockedBucket: an attacker with the writer's keys deletes and overwrites all objects
// of a locked bucket. A location as of an instant before that restores objects and volumes. It takes
// no backup, no deletion and no default.
func TestAnAttackOnALockedBucket(t *testing.T) {
	server := lab.S3(t)
	name := labtest.Name("attack")
	versions := server.LockedBucket(t, name)
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Data:       map[string][]byte{store.SecretAccessKeyID: []byte(server.AccessKeyID), store.SecretSecretAccessKey: []byte(server.SecretAccessKey)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	makeLocation := func(name string, change func(*enginev1alpha1.StorageLocationSpec)) error {
		spec := enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderS3,
			S3:       &enginev1alpha1.S3Location{Bucket: versions.Bucket(), Endpoint: server.Endpoint, ForcePathStyle: true, CredentialsSecret: versions.Bucket()},
		}
		change(&spec)
		_, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		return err
	}
	lock := &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 2}
	if err := makeLocation(name, func(spec *enginev1alpha1.StorageLocationSpec) { spec.Lock = lock }); err != nil {
		t.Fatal(err)
	}
	lab.AwaitAvailable(t, name, metav1.ConditionTrue)

	shop := &stand{lab: lab, namespace: lab.Namespace(t, "attack"), folders: map[string]string{}}
	shop.run(t)
	files := shop.fill(t)
	lab.Kubectl(t, "create", "configmap", "conf", "-n", shop.namespace, "--from-literal=a=1")
	backup := labtest.Name("attacked")
	lab.Create(t, labtest.System, backup, v1alpha1.BackupSpec{IncludedNamespaces: []string{shop.namespace}, StorageLocation: name, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitCompleted(t, backup)
	lab.AwaitRunGone(t, backup)

	before := time.Now().Truncate(time.Second).Add(time.Second) // all is stored, and times of the API have seconds
	labtest.Eventually(t, "the instant to pass", func() error {
		if left := time.Until(before.Add(time.Second)); left > 0 {
			return fmt.Errorf("it has %s left", left)
		}
		return nil
	})
	_, current := versions.All(t)
	for key, version := range current {
		versions.Put(t, key, "encrypted by an attacker")
		versions.Hide(t, key)
		if isNeeded(key) && versions.TryRemove(t, version) == nil {
			t.Errorf("a locked version of %s was removed for good", key)
		}
	}

	versions.CorrectTimes(t)

	past := "a-" + name // before the other location by name
	asOf := func(spec *enginev1alpha1.StorageLocationSpec) { spec.S3.AsOf = &metav1.Time{Time: before} }
	for says, change := range map[string]func(*enginev1alpha1.StorageLocationSpec){
		"can't be the default": func(spec *enginev1alpha1.StorageLocationSpec) { asOf(spec); spec.Default = true },
		"takes no lock":        func(spec *enginev1alpha1.StorageLocationSpec) { asOf(spec); spec.Lock = lock },
	} {
		if err := makeLocation(labtest.Name("refused"), change); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
	if err := makeLocation(past, asOf); err != nil {
		t.Fatal(err)
	}
	lab.AwaitAvailable(t, past, metav1.ConditionTrue)
	shown := backup + "@" + past
	labtest.Eventually(t, "the backup as of then to be listed", func() error {
		_, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), shown, metav1.GetOptions{})
		return err
	})
	_, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Create(t.Context(), &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("none")}, Spec: v1alpha1.BackupSpec{StorageLocation: past},
	}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "nothing is written there") {
		t.Errorf("a backup there is answered with %v", err)
	}
	path := fmt.Sprintf("%s/namespaces/%s/backups/%s/deletion", api, labtest.System, shown)
	if _, stderr, err := lab.TryKubectl(t, `{"apiVersion":"holdfast.io/v1alpha1","kind":"BackupDeletion"}`, "create", "--raw", path, "-f", "-"); err == nil || !strings.Contains(stderr, "delete the location") {
		t.Errorf("a deletion there is answered with %q, %v", stderr, err)
	}

	again := &stand{lab: lab, namespace: lab.Namespace(t, "again"), folders: map[string]string{}}
	restore, err := lab.Holdfast.HoldfastV1alpha1().Restores(labtest.System).Create(t.Context(), &v1alpha1.Restore{
		ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("again")},
		Spec:       v1alpha1.RestoreSpec{BackupName: shown, NamespaceMapping: map[string]string{shop.namespace: again.namespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again.warnings = 1 // each namespace of the lab has a ConfigMap of its own, which stays as it is
	again.await(t, restore.Name)
	lab.Kubectl(t, "get", "configmap", "conf", "-n", again.namespace)
	for claim, want := range files {
		if diff := cmp.Diff(want, tree(t, again.folders[claim])); diff != "" {
			t.Errorf("the claim %s differs (-before +after):\n%s", claim, diff)
		}
	}
	for _, location := range []string{past, name} {
		if err := locations.Delete(t.Context(), location, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}
