// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestS3 keeps a store's promises, and a backup's, on a real S3 server.
func TestS3(t *testing.T) {
	server := lab.S3(t)
	if err := os.Mkdir(filepath.Join(server.Buckets, "backups"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderS3,
		S3:       &enginev1alpha1.S3Location{Bucket: "backups", Endpoint: server.Endpoint, ForcePathStyle: true, CredentialsSecret: "s3-credentials"},
	}
	secret := map[string][]byte{
		store.SecretAccessKeyID:     []byte(server.AccessKeyID),
		store.SecretSecretAccessKey: []byte(server.SecretAccessKey),
	}

	t.Run("store", func(t *testing.T) {
		var prefixes atomic.Int32
		storetest.Run(t, func(t *testing.T) storetest.Store {
			spec := *spec.DeepCopy()
			spec.Prefix = fmt.Sprintf("suite/%d", prefixes.Add(1))
			bucket, err := store.Open(t.Context(), &spec, secret)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = bucket.Close() })
			return bucket
		})
	})

	t.Run("backup", func(t *testing.T) {
		name := labtest.Name("s3")
		spec.Prefix = "production"
		locations := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System)
		spec.AllowedNamespaces = &enginev1alpha1.AllowedNamespaces{Names: []string{"*"}}
		if _, err := locations.Create(t.Context(), &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		without := lab.AwaitAvailable(t, name, metav1.ConditionFalse)
		if without.Reason != enginev1alpha1.ReasonInvalid || !strings.Contains(without.Message, "s3-credentials") {
			t.Errorf("without its Secret the location says %+v", without)
		}
		if _, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(labtest.System)).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s3-credentials"}, Data: secret}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		lab.AwaitAvailable(t, name, metav1.ConditionTrue)

		namespace := lab.Namespace(t, "s3")
		pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
		fill(t, folder)
		before := tree(t, folder)
		lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{
			IncludedNamespaces: []string{namespace}, StorageLocation: name, DefaultVolumesToFsBackup: new(true),
		})
		lab.AwaitCompleted(t, name)
		lab.AwaitRunGone(t, name)
		if _, err := os.Stat(filepath.Join(server.Buckets, "backups/production/backups", name, "velero-backup.json")); err != nil {
			t.Error(err)
		}
		empty(t, folder)
		restoreFrom(t, name, pod, namespace+"-data", volumeHistory(t, namespace, name).Status.SnapshotID)
		if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
			t.Errorf("what came back differs (-before +after):\n%s", diff)
		}
		secretsAreNowhere(t, server.SecretAccessKey)
		if err := locations.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// secretsAreNowhere looks for a secret, and for the keys of all repositories, in what
// Holdfast's processes have logged, and in every record, backup and event.
func secretsAreNowhere(t *testing.T, secret string) {
	t.Helper()
	secrets := []string{secret}
	keys, err := lab.Kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(labtest.System)).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(keys.Items) == 0 {
		t.Fatalf("%d keys of repositories, %v", len(keys.Items), err)
	}
	for _, key := range keys.Items {
		secrets = append(secrets, string(key.Data[enginev1alpha1.KeySecretKey]))
	}
	logs, err := filepath.Glob(filepath.Join(lab.Dir, "logs", "holdfast-*.log"))
	if err != nil || len(logs) < 3 {
		t.Fatalf("the logs are %v, %v", logs, err)
	}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		mustNotContain(t, log, string(text), secrets)
	}
	const resources = "events,backups.holdfast.io,backupqueues,backupvolumes,volumebackups,backupruns,volumerepositories,storagelocations,volumeuploads,volumerestores,leases,configmaps"
	mustNotContain(t, resources, lab.Kubectl(t, "get", resources, "-A", "-o", "yaml"), secrets)
}

// TestRoleIsValidated: the API server refuses what can't be a role, and a role beside keys.
func TestRoleIsValidated(t *testing.T) {
	t.Parallel()
	const arn = "arn:aws:iam::111122223333:role/a/backups"
	for name, c := range map[string]struct {
		s3   enginev1alpha1.S3Location
		says string
	}{
		"a role":                   {enginev1alpha1.S3Location{RoleARN: arn, ExternalID: "holdfast-1"}, ""},
		"another partition":        {enginev1alpha1.S3Location{RoleARN: "arn:aws-cn:iam::111122223333:role/backups"}, ""},
		"another store's":          {enginev1alpha1.S3Location{RoleARN: "arn:minio:iam:::role/idp"}, ""},
		"keys":                     {enginev1alpha1.S3Location{CredentialsSecret: "keys"}, ""},
		"a name only":              {enginev1alpha1.S3Location{RoleARN: "backups"}, "spec.s3.roleARN"},
		"a user":                   {enginev1alpha1.S3Location{RoleARN: "arn:aws:iam::111122223333:user/x"}, "spec.s3.roleARN"},
		"a role and keys":          {enginev1alpha1.S3Location{RoleARN: arn, CredentialsSecret: "keys"}, "leave out credentialsSecret"},
		"an id without a role":     {enginev1alpha1.S3Location{ExternalID: "holdfast-1"}, "externalID is for roleARN"},
		"an id with a space in it": {enginev1alpha1.S3Location{RoleARN: arn, ExternalID: "a b"}, "spec.s3.externalID"},
	} {
		c.s3.Bucket = "backups"
		_, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Create(t.Context(), &enginev1alpha1.StorageLocation{
			ObjectMeta: metav1.ObjectMeta{Name: labtest.Name("role")},
			Spec:       enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderS3, S3: &c.s3},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
}
