// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package encryption encrypts the tarballs of backups with age, and reads them: docs/format.md
// ("Encryption").
//
//   - A tarball is encrypted for the location's recovery keys, and for a key of the cluster.
//   - The cluster's private key is in a Secret. Keys recovered from a store are in another one, and
//     only decrypt: nothing is encrypted for a key that a store has named.
//   - Holdfast reads with the cluster's key only, since the manifest's digests depend on it.
package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/format"
)

const (
	// SecretName has the cluster's own private keys.
	SecretName = "holdfast-encryption-key"
	// RecoveredSecretName has private keys that were recovered from stores.
	RecoveredSecretName = "holdfast-recovered-encryption-keys"
	// SecretKey is the key in both Secrets' data: private keys of age, one a line. The first of the
	// cluster's own encrypts backups.
	SecretKey = "age-identities"

	maxKeys = 256
)

// Keys are private keys of clusters. They do not print themselves.
type Keys struct{ identities []*age.X25519Identity }

// NewKeys makes a key.
func NewKeys() (Keys, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return Keys{}, fmt.Errorf("make a key that encrypts backups: %w", err)
	}
	return Keys{[]*age.X25519Identity{identity}}, nil
}

// ParseKeys reads private keys, one a line. The error does not quote them.
func ParseKeys(text []byte) (keys Keys, err error) {
	found, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil {
		return Keys{}, errors.New("want private keys of age, one a line: they begin with AGE-SECRET-KEY-1")
	}
	if len(found) > maxKeys {
		return Keys{}, fmt.Errorf("it has %d keys, more than %d", len(found), maxKeys)
	}
	for i, identity := range found {
		of, ok := identity.(*age.X25519Identity)
		if !ok {
			return Keys{}, fmt.Errorf("key %d is of another kind than X25519: want one that begins with AGE-SECRET-KEY-1", i+1)
		}
		keys.identities = append(keys.identities, of)
	}
	return keys, nil
}

// Text returns the private keys for ParseKeys.
func (k Keys) Text() []byte {
	var text bytes.Buffer
	for _, identity := range k.identities {
		fmt.Fprintln(&text, identity.String())
	}
	return text.Bytes()
}

// Public returns the public keys, in order.
func (k Keys) Public() []string {
	public := make([]string, len(k.identities))
	for i, identity := range k.identities {
		public[i] = identity.Recipient().String()
	}
	return public
}

// With returns these keys, and then the others' new ones.
func (k Keys) With(others Keys) Keys {
	all := Keys{slices.Clone(k.identities)}
	known := all.Public()
	for i, public := range others.Public() {
		if !slices.Contains(known, public) {
			all.identities, known = append(all.identities, others.identities[i]), append(known, public)
		}
	}
	return all
}

// String implements fmt.Stringer.
func (k Keys) String() string { return "encryption keys of " + strings.Join(k.Public(), ", ") }

// GoString implements fmt.GoStringer.
func (k Keys) GoString() string { return k.String() }

func (k Keys) of(public string) *age.X25519Identity {
	for _, identity := range k.identities {
		if identity.Recipient().String() == public {
			return identity
		}
	}
	return nil
}

// Secrets reads Secrets of the system namespace.
type Secrets interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Secret, error)
}

// SecretMaker reads and creates Secrets of the system namespace.
type SecretMaker interface {
	Secrets
	Create(ctx context.Context, secret *corev1.Secret, options metav1.CreateOptions) (*corev1.Secret, error)
}

// Own returns the cluster's own keys, if need be a new one.
func Own(ctx context.Context, secrets SecretMaker) (Keys, error) {
	keys, err := read(ctx, secrets, SecretName)
	if !apierrors.IsNotFound(err) {
		return keys, err
	}
	if keys, err = NewKeys(); err != nil {
		return Keys{}, err
	}
	_, err = secrets.Create(ctx, secretOf(SecretName, keys), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return Keys{}, fmt.Errorf("create the Secret %s with the key that encrypts backups: %w", SecretName, err)
	}
	// Another process may have been first.
	return read(ctx, secrets, SecretName)
}

// Source returns the keys that may decrypt a backup.
type Source func(ctx context.Context) (Keys, error)

// Stored returns the Source of both Secrets. A missing one has no keys.
func Stored(secrets Secrets) Source {
	return func(ctx context.Context) (all Keys, err error) {
		for _, name := range []string{SecretName, RecoveredSecretName} {
			keys, err := read(ctx, secrets, name)
			if err != nil && !apierrors.IsNotFound(err) {
				return Keys{}, err
			}
			all = all.With(keys)
		}
		return all, nil
	}
}

// Recovered returns the recovered keys.
func Recovered(ctx context.Context, secrets Secrets) (Keys, error) {
	keys, err := read(ctx, secrets, RecoveredSecretName)
	if apierrors.IsNotFound(err) {
		return Keys{}, nil
	}
	return keys, err
}

// RecoveredSecret returns the Secret with recovered keys.
func RecoveredSecret(keys Keys) *corev1.Secret { return secretOf(RecoveredSecretName, keys) }

func read(ctx context.Context, secrets Secrets, name string) (Keys, error) {
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Keys{}, fmt.Errorf("read the Secret %s with keys of encrypted backups: %w", name, err)
	}
	keys, err := ParseKeys(secret.Data[SecretKey])
	if err != nil {
		return Keys{}, fmt.Errorf("the Secret %s: %s: %w: bring the keys back", name, SecretKey, err)
	}
	return keys, nil
}

func secretOf(name string, keys Keys) *corev1.Secret {
	return &corev1.Secret{
		// Its readers could decrypt other backups.
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{format.LabelExclude: "true"}},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{SecretKey: keys.Text()},
	}
}
