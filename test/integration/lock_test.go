// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// isNeeded reports whether a restore needs the object of a key, and its lock.
func isNeeded(key string) bool {
	name := filepath.Base(key)
	switch {
	case strings.HasPrefix(key, "backups/"), key == "metadata/holdfast/store.json":
		return true
	case strings.HasPrefix(key, "kopia/"):
		return name == "kopia.repository" || strings.ContainsAny(name[:1], "pqx")
	}
	return false
}

// TestALockOutlivesABackup: in a locked bucket, a backup that is deleted, and one that an attacker with
// the writer's keys deletes and overwrites, are still there, byte for byte.
func TestALockOutlivesABackup(t *testing.T) {
	server := lab.S3(t)
	name := labtest.Name("lock")
	versions := server.LockedBucket(t, name)
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Data:       map[string][]byte{store.SecretAccessKeyID: []byte(server.AccessKeyID), store.SecretSecretAccessKey: []byte(server.SecretAccessKey)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	if _, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderS3,
			S3:       &enginev1alpha1.S3Location{Bucket: name, Endpoint: server.Endpoint, ForcePathStyle: true, CredentialsSecret: name},
			Lock:     &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockCompliance, Days: 30},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.AwaitAvailable(t, name, metav1.ConditionTrue)
	begin := time.Now()
	labtest.Eventually(t, "the condition Locked", func() error {
		record, err := locations.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		locked := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionLocked)
		if until := record.LockedUntil(); locked == nil || locked.Status != metav1.ConditionTrue || until == nil || until.Time.Before(begin.Add(29*24*time.Hour)) {
			return fmt.Errorf("it is %+v, until %s", locked, until)
		}
		return nil
	})

	namespace := lab.Namespace(t, "lock")
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	kept, deleted := labtest.Name("locked"), labtest.Name("locked")
	for _, backup := range []string{kept, deleted} {
		lab.Create(t, labtest.System, backup, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: name, DefaultVolumesToFsBackup: new(true)})
		lab.AwaitCompleted(t, backup)
		lab.AwaitRunGone(t, backup)
	}
	before, current := versions.All(t)
	needed := map[labtest.Version]string{}
	for key, version := range current {
		if !isNeeded(key) {
			continue
		}
		needed[version] = before[version]
		if until := versions.LockedUntil(t, version); until.Before(begin.Add(29 * 24 * time.Hour)) {
			t.Errorf("%s is locked until %s", key, until)
		}
	}
	if len(needed) < 20 {
		t.Fatalf("only %d objects are needed", len(needed))
	}
	stillThere := func(when string) {
		t.Helper()
		after, _ := versions.All(t)
		for version, content := range needed {
			if now, ok := after[version]; !ok || now != content {
				t.Errorf("%s, %s is there: %t, and as it was: %t", when, version.Key, ok, now == content)
			}
		}
	}

	path := fmt.Sprintf("%s/namespaces/%s/backups/%s/deletion", api, labtest.System, deleted)
	stdout, stderr, err := lab.TryKubectl(t, `{"apiVersion":"holdfast.io/v1alpha1","kind":"BackupDeletion"}`, "create", "--raw", path, "-f", "-")
	if err != nil || !strings.Contains(stdout, "the bucket keeps their versions until at least") {
		t.Errorf("a deletion is answered with %q %q, %v", stdout, stderr, err)
	}
	lab.AwaitRunGone(t, deleted)
	labtest.Eventually(t, "the deletion of the backup", func() error {
		for key := range onlyCurrent(versions.All(t)) {
			if strings.HasPrefix(key, "backups/"+deleted+"/") {
				return fmt.Errorf("%s is there", key)
			}
		}
		return nil
	})
	stillThere("after a deletion")

	for key := range onlyCurrent(versions.All(t)) {
		versions.Put(t, key, "encrypted by an attacker")
		versions.Hide(t, key)
	}
	for version := range needed {
		if versions.TryRemove(t, version) == nil {
			t.Errorf("a locked version of %s was removed for good", version.Key)
		}
	}
	stillThere("after an attack")
	if err := locations.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func onlyCurrent(_ map[labtest.Version]string, current map[string]labtest.Version) map[string]labtest.Version {
	return current
}

// TestABucketWithoutLocks: a location with a lock is not available in a bucket that can't lock, and
// nothing is written there.
func TestABucketWithoutLocks(t *testing.T) {
	server := lab.S3(t)
	name := labtest.Name("unlocked")
	bucket := filepath.Join(server.Buckets, name)
	if err := os.Mkdir(bucket, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Data:       map[string][]byte{store.SecretAccessKeyID: []byte(server.AccessKeyID), store.SecretSecretAccessKey: []byte(server.SecretAccessKey)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
	if _, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderS3,
			S3:       &enginev1alpha1.S3Location{Bucket: name, Endpoint: server.Endpoint, ForcePathStyle: true, CredentialsSecret: name},
			Lock:     &enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 30},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	found := lab.AwaitAvailable(t, name, metav1.ConditionFalse)
	if found.Reason != enginev1alpha1.ReasonInvalid || !strings.Contains(found.Message, "without object lock") {
		t.Errorf("the location says %+v", found)
	}
	if entries, err := os.ReadDir(bucket); err != nil || len(entries) > 0 {
		t.Errorf("the bucket has %v, %v", entries, err)
	}
	if err := locations.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// TestLockIsValidated: the API server refuses locks that can't be kept, with the reason.
func TestLockIsValidated(t *testing.T) {
	t.Parallel()
	s3 := enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderS3, S3: &enginev1alpha1.S3Location{Bucket: "backups"}}
	plain := s3
	plain.S3 = &enginev1alpha1.S3Location{Bucket: "backups", ChecksumAlgorithm: enginev1alpha1.ChecksumNone}
	longhorn := s3
	longhorn.Format = enginev1alpha1.StorageFormatLonghorn
	for name, c := range map[string]struct {
		spec enginev1alpha1.StorageLocationSpec
		lock enginev1alpha1.StorageLock
		says string
	}{
		"governance":        {s3, enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 2}, ""},
		"compliance":        {s3, enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockCompliance, Days: 36500}, ""},
		"no mode":           {s3, enginev1alpha1.StorageLock{Days: 30}, "spec.lock.mode"},
		"another mode":      {s3, enginev1alpha1.StorageLock{Mode: "GOVERNANCE", Days: 30}, "spec.lock.mode"},
		"a day":             {s3, enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 1}, "spec.lock.days"},
		"more than a life":  {s3, enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 36501}, "spec.lock.days"},
		"without checksums": {plain, enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 30}, "needs a checksum"},
		"Longhorn's store":  {longhorn, enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 30}, "format holdfast only"},
		"Google's": {enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderGCS, GCS: &enginev1alpha1.GCSLocation{Bucket: "backups"}},
			enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 30}, "provider s3 only"},
		"Azure's": {enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderAzure, Azure: &enginev1alpha1.AzureLocation{StorageAccount: "account", Container: "backups"}},
			enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 30}, "provider s3 only"},
		"a folder": {enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: "/backups"}},
			enginev1alpha1.StorageLock{Mode: enginev1alpha1.LockGovernance, Days: 30}, "provider s3 only"},
	} {
		c.spec.Lock = &c.lock
		_, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Create(t.Context(), &enginev1alpha1.StorageLocation{
			ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("lock")}, Spec: c.spec,
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
}
