// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

type recoverOptions struct {
	identity   string
	folder     string
	publicKeys []string
}

func (o *recoverOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.identity, "identity", "", "File with the private key, as age-keygen writes it; - is the standard input.")
	flags.StringVar(&o.folder, "folder", "", "Folder with a copy of the store below its prefix: metadata/holdfast/keys, and kopia.repository of each folder below kopia. Then no cluster is needed.")
	flags.StringArrayVar(&o.publicKeys, "public-key", nil, "Public key of the lost cluster, from a copy of its ConfigMap holdfast-identity: then only its signatures count. May be repeated.")
}

func (o *repoKeyOptions) recover(ctx context.Context) error {
	err := o.client.validate()
	if o.repoName != "" {
		for _, problem := range validation.IsDNS1123Label(o.repoName) {
			err = errors.Join(err, fmt.Errorf("--repo-name must be the name of a namespace, but is %q: %s", o.repoName, problem))
		}
	}
	if o.location == "" {
		err = errors.Join(err, errors.New("--backup-storage-location must be set: to the name that the storage location has in the new cluster"))
	}
	if o.recovery.identity == "" {
		err = errors.Join(err, errors.New("--identity must be set: to the file with the private key"))
	}
	if err != nil {
		return err
	}
	keys := keyRecovery{system: o.client.namespace, namespace: o.repoName, signers: o.recovery.publicKeys, secrets: os.Stdout, notes: os.Stderr}
	if keys.identities, err = o.recovery.identities(); err != nil {
		return err
	}
	if o.recovery.folder != "" {
		folder, err := filepath.Abs(o.recovery.folder)
		if err != nil {
			return err
		}
		keys.copied = true
		keys.location = &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: o.location}, Spec: enginev1alpha1.StorageLocationSpec{
			Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder},
		}}
		return keys.run(ctx)
	}
	clients, err := o.clients()
	if err != nil {
		return err
	}
	if keys.location, err = clients.engine.EngineV1alpha1().StorageLocations(o.client.namespace).Get(ctx, o.location, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("reading the storage location: %w", err)
	}
	keys.credentials = clients.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(o.client.namespace))
	published, err := clients.kube.CoreV1().ConfigMaps(o.client.namespace).Get(ctx, identity.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finding out which cluster this is: %w", err)
	}
	keys.own = identity.Of(published)
	if keys.decryption, err = encryption.Recovered(ctx, clients.kube.CoreV1().Secrets(o.client.namespace)); err != nil {
		return err
	}
	return keys.run(ctx)
}

func (o *recoverOptions) identities() (_ []recovery.Identity, err error) {
	file := os.Stdin
	if o.identity != "-" {
		if file, err = os.Open(o.identity); err != nil {
			return nil, err
		}
		defer file.Close()
	}
	identities, err := recovery.Identities(file)
	if err != nil {
		return nil, fmt.Errorf("--identity=%s: %w", o.identity, err)
	}
	return identities, nil
}

type keyRecovery struct {
	system      string
	location    *enginev1alpha1.StorageLocation
	credentials location.Secrets // nil without a Secret
	// copied says that the location is a copy of the store, perhaps without some repositories.
	copied     bool
	namespace  string // namespace and signers restrict the keys; empty means all
	signers    []string
	identities []recovery.Identity
	// own receives the keys. decryption are keys for backups that it has already.
	own        identity.Identity
	decryption encryption.Keys

	secrets, notes io.Writer
}

func (r *keyRecovery) say(format string, arguments ...any) {
	fmt.Fprintf(r.notes, format+"\n", arguments...)
}

func (r *keyRecovery) run(ctx context.Context) error {
	bucket, err := location.Open(ctx, r.credentials, r.location)
	if err != nil {
		return err
	}
	found, err := recovery.Find(ctx, bucket, func(err error) { r.say("left out: %v", err) })
	if err := errors.Join(err, bucket.Close()); err != nil {
		return err
	}
	ofNamespace := map[string][]format.WrappedKey{}
	var namespaces []string
	var decryption, signing []format.WrappedKey
	for _, wrapped := range found {
		namespace := wrapped.VolumeNamespace
		switch {
		case r.namespace != "" && namespace != r.namespace:
		case len(r.signers) > 0 && !slices.Contains(r.signers, wrapped.PublicKey):
			r.say("left out: %s: it is signed with %s", wrapped.Key(), wrapped.PublicKey)
		case wrapped.DecryptsBackups():
			decryption = append(decryption, wrapped)
		default:
			if ofNamespace[namespace] == nil {
				namespaces = append(namespaces, namespace)
			}
			ofNamespace[namespace] = append(ofNamespace[namespace], wrapped)
		}
	}
	if len(namespaces)+len(decryption) == 0 {
		return fmt.Errorf("no wrapped key was found below %s in the store: check that the prefix is right, and that spec.recoveryKeys was set in the lost cluster", format.WrappedKeysPrefix)
	}
	slices.Sort(namespaces)
	var errs []error
	for _, namespace := range namespaces {
		of, err := r.one(ctx, namespace, ofNamespace[namespace])
		if err != nil {
			errs = append(errs, fmt.Errorf("namespace %s: %w", namespace, err))
			continue
		}
		for _, wrapped := range of {
			r.say("namespace %s: its key has the fingerprint %s, and is signed by the cluster %s with %s", namespace, wrapped.Fingerprint, wrapped.ClusterUID, wrapped.PublicKey)
		}
		signing = append(signing, of...)
	}
	of, err := r.decrypting(decryption)
	r.sayTrust(r.unknown(append(signing, of...)))
	return errors.Join(append(errs, err)...)
}

// decrypting prints the Secret with the keys that decrypt backups, and returns the wrapped ones.
func (r *keyRecovery) decrypting(candidates []format.WrappedKey) (of []format.WrappedKey, err error) {
	all := r.decryption
	for _, wrapped := range candidates {
		keys, failure := recovery.UnwrapEncryptionKeys(&wrapped, r.identities)
		if failure != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", wrapped.Key(), failure))
			continue
		}
		of, all = append(of, wrapped), all.With(keys)
		r.say("encrypted backups: the key %s decrypts them, and is signed by the cluster %s with %s", strings.Join(keys.Public(), ", "), wrapped.ClusterUID, wrapped.PublicKey)
	}
	if len(of) == 0 {
		return nil, err
	}
	if known := len(r.decryption.Public()); known > 0 && known < len(all.Public()) {
		r.say("encrypted backups: the Secret %s exists and lacks some of these keys: give the output to kubectl apply -f -, which adds them", encryption.RecoveredSecretName)
	}
	secret := encryption.RecoveredSecret(all)
	secret.TypeMeta, secret.Namespace = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, r.system
	return of, errors.Join(err, printSecret(r.secrets, secret))
}

// unknown returns the keys' signers that the new cluster neither is nor trusts.
func (r *keyRecovery) unknown(of []format.WrappedKey) (signers []enginev1alpha1.TrustedCluster) {
	for _, wrapped := range of {
		signer := enginev1alpha1.TrustedCluster{Name: "lost", UID: wrapped.ClusterUID, PublicKey: wrapped.PublicKey}
		known := func(other enginev1alpha1.TrustedCluster) bool {
			return other.UID == signer.UID && other.PublicKey == signer.PublicKey
		}
		if own := r.own.UID == signer.UID && slices.Contains(r.own.Keys, signer.PublicKey); !own && !slices.ContainsFunc(signers, known) && !slices.ContainsFunc(r.location.Spec.TrustedClusters, known) {
			signers = append(signers, signer)
		}
	}
	return signers
}

// one prints the Secret of a namespace's key, and returns the wrapped keys with it.
func (r *keyRecovery) one(ctx context.Context, namespace string, candidates []format.WrappedKey) ([]format.WrappedKey, error) {
	of := map[repository.Key][]format.WrappedKey{}
	var keys []repository.Key
	var failed error
	for _, wrapped := range candidates {
		key, err := recovery.Unwrap(&wrapped, r.identities)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", wrapped.Key(), err))
			continue
		}
		if of[key] == nil {
			keys = append(keys, key)
		}
		of[key] = append(of[key], wrapped)
	}
	if len(keys) == 0 {
		return nil, failed
	}
	where, err := opener.Where(ctx, r.credentials, r.location)
	if err != nil {
		return nil, err
	}
	var opens repository.Key
	for _, key := range keys {
		err := repository.Opens(ctx, where, namespace, key)
		if err == nil {
			opens = key
			break
		}
		switch {
		case errors.Is(err, repository.ErrNotInitialized) && r.copied && len(keys) == 1:
			r.say("namespace %s: whether its key opens the repository is not known, since %skopia.repository is not in the copy", namespace, repository.Folder("", namespace))
			opens = key
		case errors.Is(err, repository.ErrNotInitialized) && !r.copied:
			r.say("namespace %s: left out, since the store has no repository of it any more", namespace)
			return nil, nil
		case errors.Is(err, repository.ErrNotInitialized):
			return nil, fmt.Errorf("%skopia.repository is missing: it shows which of %d keys is the present one", repository.Folder("", namespace), len(keys))
		case !errors.Is(err, repository.ErrWrongKey):
			return nil, err
		}
	}
	if opens == "" {
		return nil, errors.Join(fmt.Errorf("none of the %d keys opens the repository that is in the store", len(keys)), failed)
	}
	name := enginev1alpha1.RepositoryName(namespace, r.location.Name)
	return of[opens], printSecret(r.secrets, keySecret(r.system, name, map[string][]byte{enginev1alpha1.KeySecretKey: []byte(opens)}))
}

// sayTrust says how to trust the signers, so that their backups are listed in their namespaces.
func (r *keyRecovery) sayTrust(signers []enginev1alpha1.TrustedCluster) {
	if len(signers) == 0 {
		return
	}
	slices.SortFunc(signers, func(a, b enginev1alpha1.TrustedCluster) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.PublicKey, b.PublicKey))
	})
	for i := range signers[1:] {
		signers[i+1].Name = fmt.Sprintf("lost-%d", i+2)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"trustedClusters": append(slices.Clone(r.location.Spec.TrustedClusters), signers...)}})
	if err != nil {
		r.say("%v", err)
		return
	}
	r.say(`
Whoever may write to the store could have signed with a key of their own. So compare the public
key above with a copy of the lost cluster's ConfigMap holdfast-identity. If it is the same, this
lists the backups in the namespaces that they were made of:

    kubectl patch storagelocation %s -n %s --type=merge -p '%s'`, r.location.Name, r.system, patch)
}
