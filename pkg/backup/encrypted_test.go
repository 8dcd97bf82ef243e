// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	plainSecret  = "correct-horse-battery-staple"
	plainSetting = "kept-in-a-configmap"
)

// encrypts has a fixture's backups encrypted. The private key outside of the cluster is returned.
func (f *fixture) encrypts(t *testing.T) (encryption.Keys, *age.X25519Identity) {
	t.Helper()
	keys, err := encryption.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	private, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	f.deps.Encryption = func(context.Context) (*encryption.Recipients, error) {
		return keys.For([]string{private.Recipient().String()}), nil
	}
	return keys, private
}

func (f *fixture) secrets() {
	f.add("secrets", fmt.Sprintf(`{"metadata":{"name":"password","namespace":"shop","uid":"s-1"},"data":{"password":%q}}`, base64.StdEncoding.EncodeToString([]byte(plainSecret))))
	f.add("configmaps", fmt.Sprintf(`{"metadata":{"name":"settings","namespace":"shop","uid":"c-1"},"data":{"x":%q}}`, plainSetting))
}

// values are the objects in which a value is found, in any form that it may have.
func (f *fixture) values(t *testing.T) (found []string) {
	t.Helper()
	for _, key := range f.keys(t) {
		content := f.read(t, key)
		if plain, err := gzip.NewReader(bytes.NewReader(content)); err == nil {
			inside, err := io.ReadAll(plain)
			if err != nil {
				t.Fatal(err)
			}
			content = append(content, inside...)
		}
		for _, value := range []string{plainSecret, base64.StdEncoding.EncodeToString([]byte(plainSecret)), plainSetting} {
			if bytes.Contains(content, []byte(value)) {
				found = append(found, key)
			}
		}
	}
	return found
}

// No value of an object reaches the store of an encrypted backup, nor a digest by which it could be
// found by trying. With either private key all of it comes back.
func TestEncrypted(t *testing.T) {
	spec := v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop", "quiet"}}
	plain := newFixture(t, spec)
	plain.story()
	plain.secrets()
	plain.deps.Workers = 1
	plain.run(t)
	if found := plain.values(t); len(found) == 0 {
		t.Fatal("values are not found where they lie as they are")
	}

	f := newFixture(t, spec)
	f.story()
	f.secrets()
	f.deps.Workers = 1
	keys, private := f.encrypts(t)
	if outcome := f.run(t); outcome.Status.Encryption == nil || outcome.Status.Encryption.ClusterKey != keys.Public()[0] {
		t.Errorf("the outcome says %+v", outcome.Status.Encryption)
	}
	if found := f.values(t); len(found) > 0 {
		t.Errorf("values are in %v", found)
	}
	wantKeys := plain.keys(t)
	wantKeys[slices.Index(wantKeys, format.TarballKey("b"))] = format.EncryptedTarballKey("b")
	slices.Sort(wantKeys)
	if diff := gocmp.Diff(wantKeys, f.keys(t)); diff != "" {
		t.Errorf("the objects (-want +got):\n%s", diff)
	}
	f.wantWhole(t)
	want := &v1alpha1.BackupEncryption{ClusterKey: keys.Public()[0], RecoveryKeys: []string{private.Recipient().String()}}
	if diff := gocmp.Diff(want, f.stored(t).Status.Encryption); diff != "" {
		t.Errorf("the metadata (-want +got):\n%s", diff)
	}

	// As with age -d and tar.
	object := f.read(t, format.EncryptedTarballKey("b"))
	decrypted, err := age.Decrypt(bytes.NewReader(object), private)
	if err != nil {
		t.Fatal(err)
	}
	tarball, err := io.ReadAll(decrypted)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(tarListing(t, plain.read(t, format.TarballKey("b"))), tarListing(t, tarball)); diff != "" {
		t.Errorf("the tarball (-plain +decrypted):\n%s", diff)
	}

	// The digests are not those of the contents.
	known := map[string]bool{}
	for item, err := range manifest.Read(bytes.NewReader(plain.read(t, format.ManifestKey("b")))) {
		if err != nil {
			t.Fatal(err)
		}
		known[item.SHA256] = true
	}
	for item, err := range manifest.Read(bytes.NewReader(f.read(t, format.ManifestKey("b")))) {
		if err != nil {
			t.Fatal(err)
		}
		if known[item.SHA256] {
			t.Errorf("%s has the digest of its content", item)
		}
	}

	// A restore reads each object, with and without the manifest.
	bucket := storetest.Memory(t)
	for _, key := range f.keys(t) {
		if err := bucket.Put(t.Context(), key, f.read(t, key)); err != nil {
			t.Fatal(err)
		}
	}
	place := format.Place{StoreName: "b", Location: "default", SystemNamespace: "holdfast", Now: start}
	open := func(keys encryption.Source) (*source.Backup, error) {
		return source.Open(t.Context(), bucket, place, "", keys)
	}
	for _, way := range []string{"by the manifest", "by the tarball"} {
		backup, err := open(func(context.Context) (encryption.Keys, error) { return keys, nil })
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		for object, err := range backup.ObjectsOf(t.Context(), backup.Items) {
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			read++
			if object.Item.Name == "password" && !strings.Contains(fmt.Sprint(object.Content.Object["data"]), base64.StdEncoding.EncodeToString([]byte(plainSecret))) {
				t.Errorf("%s: the Secret is %v", way, object.Content.Object)
			}
		}
		if read != len(itemsOf(t, tarball)) || len(backup.Warnings) != map[string]int{"by the tarball": 1}[way] {
			t.Errorf("%s: %d objects, with %v", way, read, backup.Warnings)
		}
		if way == "by the manifest" {
			object, err := bucket.Attributes(t.Context(), format.ManifestKey("b"))
			if err == nil {
				err = bucket.Delete(t.Context(), object)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := open(nil); !errors.Is(err, encryption.ErrNoKey) || !strings.Contains(err.Error(), private.Recipient().String()) {
		t.Errorf("without the key: %v", err)
	}
}

// Without what encrypts, a backup fails, and nothing is stored as it is; a passing failure is
// tried again.
func TestEncryptionThatFails(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.story()
	f.secrets()
	f.deps.Encryption = func(context.Context) (*encryption.Recipients, error) { return nil, errBoom }
	outcome := f.run(t)
	if outcome.Status.Phase != v1alpha1.BackupPhaseFailed || !strings.Contains(outcome.Status.FailureReason, "prepare the encryption of the objects: "+errBoom.Error()) || outcome.Status.Encryption != nil {
		t.Errorf("got %+v", outcome.Status)
	}
	if found := f.values(t); len(found) > 0 {
		t.Errorf("values are in %v", found)
	}

	f = newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.story()
	f.encrypts(t)
	give, tries := f.deps.Encryption, 0
	f.deps.Encryption = func(ctx context.Context) (*encryption.Recipients, error) {
		if tries++; tries < 3 {
			return nil, fmt.Errorf("the wrapped key: %w", store.ErrUnavailable)
		}
		return give(ctx)
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || tries != 3 {
		t.Errorf("after %d tries: %+v", tries, outcome.Status)
	}
}

// Whenever a process is killed, the next attempt makes a whole backup: of an encrypted one too, and
// of one whose location began to encrypt between the attempts.
func TestKilledWhileItEncrypts(t *testing.T) {
	of := func() *fixture {
		f := shopOf(t, 3)
		f.request.Backup.Spec.IncludedResources = nil
		f.secrets()
		f.encrypts(t)
		return f
	}
	_, writes, err := of().attempt(t.Context(), 1, goOn)
	if err != nil {
		t.Fatal(err)
	}
	for _, switched := range []bool{false, true} {
		for at := 1; at <= writes+1; at++ {
			f := of()
			encrypt := f.deps.Encryption
			if switched {
				f.deps.Encryption = nil
			}
			ctx, end := context.WithCancel(t.Context())
			_, _, err := f.attempt(ctx, 1, kill(at, end))
			if end(); err == nil && at <= writes {
				t.Fatalf("it goes on when it is killed before write %d", at)
			}
			f.deps.Encryption = encrypt
			if outcome, _, err := f.attempt(t.Context(), 2, goOn); err != nil || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
				t.Fatalf("killed before write %d: %+v, %v", at, outcome, err)
			}
			f.wantWhole(t)
			encrypted := slices.Contains(f.keys(t), format.EncryptedTarballKey("b"))
			if encrypted == slices.Contains(f.keys(t), format.TarballKey("b")) || encrypted != (f.stored(t).Status.Encryption != nil) {
				t.Errorf("killed before write %d: %v, %+v", at, f.keys(t), f.stored(t).Status.Encryption)
			}
			if found := f.values(t); len(found) > 0 && encrypted || !encrypted && !switched {
				t.Errorf("killed before write %d: values are in %v", at, found)
			}
		}
	}
}
