// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// left is a store that a lost cluster has left behind.
type left struct {
	*testing.T
	location *enginev1alpha1.StorageLocation
	folder   string
	private  *age.X25519Identity
	// decryption are the last keys that were recovered and decrypt backups.
	decryption encryption.Keys
}

func leaveBehind(t *testing.T) *left {
	t.Helper()
	private, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	return &left{T: t, folder: folder, private: private, location: &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder}},
	}}
}

func (l *left) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *left) cluster(uid string) format.Cluster {
	l.Helper()
	key, err := format.NewSigningKey(rand.Reader)
	l.must(err)
	return format.Cluster{UID: uid, Key: key}
}

// keep has a cluster write the key of a namespace's repository, which is maybe the present one.
func (l *left) keep(cluster format.Cluster, namespace string, key repository.Key, present bool, recoveryKeys ...string) {
	l.Helper()
	if present {
		l.must(repository.Create(l.Context(), repository.Location{Spec: l.location.Spec}, namespace, key))
	}
	if len(recoveryKeys) == 0 {
		recoveryKeys = []string{l.private.Recipient().String()}
	}
	bucket, err := store.Open(l.Context(), &l.location.Spec, nil)
	l.must(err)
	l.must(recovery.Keep(l.Context(), bucket, recovery.Repository{Cluster: cluster, VolumeNamespace: namespace, Location: "there"}, key, recoveryKeys))
	l.must(bucket.Close())
}

// recover gets keys back, and returns them by the names of their Secrets, and what is told.
func (l *left) recover(change func(*keyRecovery)) (keys map[string]repository.Key, told string, err error) {
	l.Helper()
	var secrets, notes bytes.Buffer
	recovery := &keyRecovery{system: "holdfast", location: l.location, identities: []recovery.Identity{l.private}, secrets: &secrets, notes: &notes}
	change(recovery)
	err = recovery.run(l.Context())
	keys = map[string]repository.Key{}
	for _, document := range strings.Split(secrets.String(), "---\n")[1:] {
		var secret corev1.Secret
		l.must(yaml.UnmarshalStrict([]byte(document), &secret))
		if secret.Name == encryption.RecoveredSecretName && secret.Namespace == "holdfast" && secret.Labels[format.LabelExclude] == "true" {
			var err error
			l.decryption, err = encryption.ParseKeys(secret.Data[encryption.SecretKey])
			l.must(err)
			continue
		}
		if secret.Namespace != "holdfast-repositories" || secret.Kind != "Secret" || secret.Labels[format.LabelExclude] != "true" {
			l.Errorf("a Secret is %+v", secret.ObjectMeta)
		}
		keys[secret.Name] = repository.Key(secret.Data["repository-password"])
	}
	return keys, notes.String(), err
}

func nothing(*keyRecovery) {}

// Of each namespace the key comes back that opens its repository, from whatever cluster it is and
// however many it had, and the new cluster is told whom to trust.
func TestKeysAreRecovered(t *testing.T) {
	l := leaveBehind(t)
	lost, other := l.cluster("lost-uid"), l.cluster("other-uid")
	shop, bank := repository.NewKey(), repository.Key("chosen by a person")
	l.keep(lost, "shop", "a former one", false)
	l.keep(lost, "shop", shop, true)
	l.keep(lost, "bank", bank, true)
	l.keep(other, "bank", bank, false)
	l.keep(lost, "gone", repository.NewKey(), false)
	keys, told, err := l.recover(nothing)
	if err != nil || len(keys) != 2 || keys["shop.default.key"] != shop || keys["bank.default.key"] != bank {
		t.Errorf("%v, %v, %s", keys, err, told)
	}
	for _, says := range []string{
		"namespace gone: left out",
		"compare the public\nkey",
		`kubectl patch storagelocation default -n holdfast --type=merge -p '{"spec":{"trustedClusters":[{"name":"lost","uid":"lost-uid","publicKey":"` + lost.Key.PublicKey() + `"},{"name":"lost-2","uid":"other-uid","publicKey":"` + other.Key.PublicKey() + `"}]}}'`,
	} {
		if !strings.Contains(told, says) {
			t.Errorf("it says\n%s\nand not %q", told, says)
		}
	}
	for _, secret := range []string{string(shop), string(bank), "a former one", l.private.String()} {
		if strings.Contains(told, secret) {
			t.Errorf("it tells a secret: %s", told)
		}
	}
	// Who is known is not named anew, and stays.
	l.location.Spec.TrustedClusters = []enginev1alpha1.TrustedCluster{{Name: "old", UID: "lost-uid", PublicKey: lost.Key.PublicKey()}}
	_, told, err = l.recover(func(r *keyRecovery) {
		r.own = identity.Identity{UID: "other-uid", Keys: []string{other.Key.PublicKey()}}
	})
	if err != nil || strings.Contains(told, "kubectl patch") {
		t.Errorf("%v, %s", err, told)
	}
	_, told, err = l.recover(nothing)
	if err != nil || !strings.Contains(told, `[{"name":"old"`) || !strings.Contains(told, `{"name":"lost","uid":"other-uid"`) {
		t.Errorf("%v, %s", err, told)
	}
	keys, _, err = l.recover(func(r *keyRecovery) { r.namespace = "bank" })
	if err != nil || len(keys) != 1 || keys["bank.default.key"] != bank {
		t.Errorf("of one namespace: %v, %v", keys, err)
	}
}

// What is not good for one namespace is told, and leaves the others alone.
func TestKeysThatCannotBeRecovered(t *testing.T) {
	l := leaveBehind(t)
	stranger, err := age.GenerateX25519Identity()
	l.must(err)
	lost, forger := l.cluster("lost-uid"), l.cluster("lost-uid")
	if _, _, err := l.recover(nothing); err == nil || !strings.Contains(err.Error(), "metadata/holdfast/keys/") {
		t.Errorf("of an empty store: %v", err)
	}
	good := repository.NewKey()
	l.keep(lost, "good", good, true)
	l.keep(lost, "theirs", repository.NewKey(), true, stranger.Recipient().String())
	l.keep(lost, "other", repository.NewKey(), false)
	l.must(repository.Create(l.Context(), repository.Location{Spec: l.location.Spec}, "other", repository.NewKey()))
	spoilt := filepath.Join(l.folder, "metadata/holdfast/keys/lost-uid/good/spoilt.json")
	l.must(os.WriteFile(spoilt, []byte("{}"), 0o600))
	keys, told, err := l.recover(nothing)
	if len(keys) != 1 || keys["good.default.key"] != good || err == nil || !strings.Contains(told, "left out: metadata/holdfast/keys/lost-uid/good/spoilt.json") ||
		!strings.Contains(err.Error(), "namespace theirs: ") || !strings.Contains(err.Error(), "encrypted for other recovery keys: "+stranger.Recipient().String()) ||
		!strings.Contains(err.Error(), "namespace other: none of the 1 keys opens") {
		t.Errorf("%v, %v, %s", keys, err, told)
	}

	// Somebody puts a repository of theirs in the place of a namespace's, and its key beside it.
	l.keep(forger, "forged", "the forger's", true)
	keys, told, err = l.recover(func(r *keyRecovery) { r.namespace = "forged"; r.signers = []string{lost.Key.PublicKey()} })
	if len(keys) != 0 || err == nil || !strings.Contains(told, "it is signed with "+forger.Key.PublicKey()) {
		t.Errorf("what was forged: %v, %v, %s", keys, err, told)
	}
}

// The keys that decrypt the backups of all clusters of the store come back in one Secret, which keeps
// those that are in it. Whom to trust is told of a cluster without repositories too.
func TestKeysOfEncryptedBackupsAreRecovered(t *testing.T) {
	l := leaveBehind(t)
	stranger, err := age.GenerateX25519Identity()
	l.must(err)
	keep := func(cluster format.Cluster, recoveryKey *age.X25519Identity) encryption.Keys {
		keys, err := encryption.NewKeys()
		l.must(err)
		bucket, err := store.Open(l.Context(), &l.location.Spec, nil)
		l.must(err)
		l.must(recovery.KeepEncryptionKeys(l.Context(), bucket, cluster, "there", keys, []string{recoveryKey.Recipient().String()}))
		l.must(bucket.Close())
		return keys
	}
	lost, other := l.cluster("lost-uid"), l.cluster("other-uid")
	first, second := keep(lost, l.private), keep(other, l.private)
	keys, told, err := l.recover(nothing)
	if err != nil || len(keys) != 0 || l.decryption.String() != first.With(second).String() || !strings.Contains(told, "kubectl patch storagelocation") || strings.Contains(told, "lacks some") {
		t.Errorf("%v, %v, %v, %s", keys, l.decryption, err, told)
	}
	for _, public := range append(first.Public(), second.Public()...) {
		if !strings.Contains(told, "the key "+public+" decrypts them, and is signed by the cluster ") {
			t.Errorf("it says\n%s\nand not %s", told, public)
		}
	}
	if strings.Contains(told, "SECRET") {
		t.Errorf("it tells a secret: %s", told)
	}
	before, err := encryption.NewKeys()
	l.must(err)
	received := func(r *keyRecovery) { r.decryption = before }
	if _, told, err := l.recover(received); err != nil || l.decryption.String() != before.With(first).With(second).String() || !strings.Contains(told, "kubectl apply -f -") {
		t.Errorf("%v, %v, %s", l.decryption, err, told)
	}
	// What another key has signed, or is for others, is left out.
	if _, _, err := l.recover(func(r *keyRecovery) { r.signers = []string{lost.Key.PublicKey()} }); err != nil || l.decryption.String() != first.String() {
		t.Errorf("of one signer: %v, %v", l.decryption, err)
	}
	keep(l.cluster("third-uid"), stranger)
	if _, _, err := l.recover(nothing); err == nil || !strings.Contains(err.Error(), "encrypted for other recovery keys: "+stranger.Recipient().String()) || l.decryption.String() != first.With(second).String() {
		t.Errorf("%v, %v", l.decryption, err)
	}
	// One namespace's key is one repository's.
	l.keep(lost, "shop", repository.NewKey(), true)
	l.decryption = encryption.Keys{}
	if keys, _, err := l.recover(func(r *keyRecovery) { r.namespace = "shop" }); err != nil || len(keys) != 1 || len(l.decryption.Public()) != 0 {
		t.Errorf("of one namespace: %v, %v, %v", keys, l.decryption, err)
	}
}

// A copy of the store need not be whole.
func TestKeysAreRecoveredFromACopy(t *testing.T) {
	l := leaveBehind(t)
	key := repository.NewKey()
	l.keep(l.cluster("lost-uid"), "shop", key, false)
	copied := func(r *keyRecovery) { r.copied = true }
	keys, told, err := l.recover(copied)
	if err != nil || keys["shop.default.key"] != key || !strings.Contains(told, "kopia/shop/kopia.repository is not in the copy") {
		t.Errorf("%v, %v, %s", keys, err, told)
	}
	l.keep(l.cluster("lost-uid"), "shop", "a former one", false)
	if keys, _, err := l.recover(copied); len(keys) != 0 || err == nil || !strings.Contains(err.Error(), "which of 2 keys") {
		t.Errorf("of two keys: %v, %v", keys, err)
	}
}

func TestRecoverFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "recovery.key")
	if err := os.WriteFile(file, []byte("AGE-SECRET-KEY-1QQQ"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*repoKeyOptions)
		says   string
	}{
		"no location":     {func(o *repoKeyOptions) { o.location = "" }, "--backup-storage-location must be set"},
		"no private key":  {func(o *repoKeyOptions) { o.recovery.identity = "" }, "--identity must be set"},
		"no such file":    {func(o *repoKeyOptions) { o.recovery.identity = "/nowhere" }, "/nowhere"},
		"half of a key":   {func(*repoKeyOptions) {}, "no private key of age"},
		"a bad namespace": {func(o *repoKeyOptions) { o.repoName = "a.b" }, "--repo-name must be"},
	} {
		options := &repoKeyOptions{client: clientOptions{namespace: "holdfast"}, location: "default", recovery: recoverOptions{identity: file, folder: t.TempDir()}}
		c.change(options)
		if err := options.recover(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "QQQ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
