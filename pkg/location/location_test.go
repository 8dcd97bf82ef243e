// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package location_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// namespace is that of the credentials.
const namespace = "holdfast-locations"

func onS3(secret string) *enginev1alpha1.StorageLocation {
	return &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast"}, Spec: enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderS3,
		S3:       &enginev1alpha1.S3Location{Bucket: "backups", CredentialsSecret: secret},
	}}
}

func TestSettings(t *testing.T) {
	settings := func(change func(*enginev1alpha1.StorageLocationSpec)) string {
		record := onS3("keys")
		change(&record.Spec)
		settings, err := location.Settings(record)
		if err != nil {
			t.Fatal(err)
		}
		return settings
	}
	before := settings(func(*enginev1alpha1.StorageLocationSpec) {})
	if after := settings(func(spec *enginev1alpha1.StorageLocationSpec) {
		spec.TrustedClusters, spec.RecoveryKeys = []enginev1alpha1.TrustedCluster{{Name: "other"}}, []string{"age1"}
		spec.PollInterval, spec.SyncRequest, spec.Default = &metav1.Duration{Duration: 1}, &enginev1alpha1.Ask{}, true
	}); after != before {
		t.Errorf("what needs no other store changes %s to %s", before, after)
	}
	for name, change := range map[string]func(*enginev1alpha1.StorageLocationSpec){
		"bucket":      func(spec *enginev1alpha1.StorageLocationSpec) { spec.S3.Bucket = "other" },
		"credentials": func(spec *enginev1alpha1.StorageLocationSpec) { spec.S3.CredentialsSecret = "other" },
		"provider": func(spec *enginev1alpha1.StorageLocationSpec) {
			spec.Provider, spec.S3, spec.GCS = enginev1alpha1.StorageProviderGCS, nil, &enginev1alpha1.GCSLocation{Bucket: "backups", CredentialsSecret: "keys"}
		},
		"prefix": func(spec *enginev1alpha1.StorageLocationSpec) { spec.Prefix = "other" },
	} {
		if settings(change) == before {
			t.Errorf("%s: a change of it changes nothing", name)
		}
	}
}

// A location whose store has an id opens that one and no other, and one that has had none
// opens any.
func TestOpensTheStoreThatItHasHad(t *testing.T) {
	folder := t.TempDir()
	record := &enginev1alpha1.StorageLocation{Spec: enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder},
	}}
	open := func() error {
		bucket, err := location.Open(t.Context(), nil, record)
		if err == nil {
			err = bucket.Close()
		}
		return err
	}
	before, err := location.Settings(record)
	if err == nil {
		err = open()
	}
	if err != nil {
		t.Fatal(err)
	}
	record.Status.StoreID = "a"
	if after, err := location.Settings(record); err != nil || after == before {
		t.Errorf("a store with another id would not be opened anew: %s, %v", after, err)
	}
	if err := open(); !errors.Is(err, store.ErrOther) {
		t.Errorf("it opens a store without an id: %v", err)
	}
	bucket, err := location.OpenUnverified(t.Context(), nil, record)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	if record.Status.StoreID, err = bucket.Identify(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := open(); err != nil {
		t.Error(err)
	}
}

func TestCredentials(t *testing.T) {
	secret := func(namespace, name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"accessKeyID": []byte(namespace)}}
	}
	kube := kubefake.NewClientset(secret(namespace, "keys"), secret("holdfast", "theirs"))
	secrets := kube.CoreV1().Secrets(namespace)

	got, err := location.Credentials(t.Context(), secrets, onS3("keys"))
	if err != nil || string(got["accessKeyID"]) != namespace {
		t.Errorf("Credentials: %q, %v", got, err)
	}
	if _, err := location.Credentials(t.Context(), secrets, onS3("theirs")); err == nil ||
		!strings.Contains(err.Error(), `"theirs"`) || !strings.Contains(err.Error(), namespace) || !strings.Contains(err.Error(), store.SecretAccessKeyID) || !strings.Contains(err.Error(), "spec.s3.credentialsSecret") {
		t.Errorf("a Secret of another namespace: %v", err)
	}

	kube.ClearActions()
	folder := &enginev1alpha1.StorageLocation{Spec: enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem}}
	for _, record := range []*enginev1alpha1.StorageLocation{folder, onS3("")} {
		if got, err := location.Credentials(t.Context(), secrets, record); got != nil || err != nil || len(kube.Actions()) != 0 {
			t.Errorf("a location that names no Secret: %q, %v, %v", got, err, kube.Actions())
		}
	}

	broken := errors.New("the connection broke")
	kube.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, broken })
	if _, err := location.Credentials(t.Context(), secrets, onS3("keys")); !errors.Is(err, broken) {
		t.Errorf("Credentials: %v", err)
	}
	if _, err := location.Open(t.Context(), secrets, onS3("keys")); !errors.Is(err, broken) {
		t.Errorf("Open: %v", err)
	}
}

func TestOpen(t *testing.T) {
	record := &enginev1alpha1.StorageLocation{Spec: enginev1alpha1.StorageLocationSpec{
		Provider:   enginev1alpha1.StorageProviderFilesystem,
		Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()},
	}}
	bucket, err := location.Open(t.Context(), nil, record)
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := bucket.Close(); err != nil {
		t.Error(err)
	}
	record.Spec.Provider = "tape"
	if _, err := location.Open(t.Context(), nil, record); err == nil {
		t.Error("an unknown provider was opened")
	}
}

// What keeps backups in a store, or removes them, does not get at another's.
func TestAStoreOfAnotherFormat(t *testing.T) {
	record := &enginev1alpha1.StorageLocation{Spec: enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: t.TempDir()}, Format: enginev1alpha1.StorageFormatLonghorn,
	}}
	if _, err := location.Open(t.Context(), nil, record); !errors.Is(err, location.ErrForeign) {
		t.Errorf("Open: %v", err)
	}
	if _, err := location.Credentials(t.Context(), nil, record); !errors.Is(err, location.ErrForeign) {
		t.Errorf("Credentials: %v", err)
	}
	bucket, err := location.OpenAny(t.Context(), nil, record)
	if err != nil {
		t.Fatalf("OpenAny: %v", err)
	}
	if err := bucket.Close(); err != nil {
		t.Error(err)
	}
}
