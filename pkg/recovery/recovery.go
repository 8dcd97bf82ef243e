// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package recovery keeps repositories' keys, and the keys that decrypt backups, in their store,
// encrypted for recovery keys. These are public keys of age, whose private halves are outside the
// cluster.
package recovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"

	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const maxKeyBytes = 32 << 10

// ErrOtherIdentity means that no private key at hand decrypts a key.
var ErrOtherIdentity = errors.New("it is encrypted for other recovery keys")

// Validate fails unless all are recovery keys. The error quotes none, since it may be private.
func Validate(recoveryKeys []string) error {
	_, err := recipients(recoveryKeys)
	return err
}

func recipients(recoveryKeys []string) (parsed []age.Recipient, err error) {
	for i, key := range recoveryKeys {
		recipient, parseErr := age.ParseX25519Recipient(key)
		if parseErr == nil {
			// Points of low order can be parsed, but not used.
			_, parseErr = recipient.Wrap(make([]byte, 16))
		}
		switch {
		case strings.HasPrefix(strings.ToUpper(key), "AGE-SECRET-KEY-"):
			err = errors.Join(err, fmt.Errorf("spec.recoveryKeys[%d] is a private key, which must not be in the cluster: make another pair with age-keygen, and name its public key here, which begins with age1", i))
		case parseErr != nil:
			err = errors.Join(err, fmt.Errorf("spec.recoveryKeys[%d] is not a public key of age: age-keygen prints one, of 62 characters, which begins with age1", i))
		default:
			parsed = append(parsed, recipient)
		}
	}
	return parsed, err
}

// Writer is the part of a store that Keep needs.
type Writer interface {
	store.Reader
	Create(ctx context.Context, key string, content []byte) error
	Put(ctx context.Context, key string, content []byte) error
}

// Repository is a repository with a kept key.
type Repository struct {
	Cluster                   format.Cluster
	VolumeNamespace, Location string
}

// Keep ensures that the store has a repository's key, encrypted for all recovery keys and signed.
// Objects for other keys, or sets of recovery keys, stay.
func Keep(ctx context.Context, st Writer, of Repository, key repository.Key, recoveryKeys []string) error {
	fingerprint, err := key.Fingerprint(of.VolumeNamespace)
	if err != nil {
		return err
	}
	err = keepWrapped(ctx, st, of.Cluster, format.WrappedKey{
		VolumeNamespace: of.VolumeNamespace, Location: of.Location, Fingerprint: fingerprint, RecoveryKeys: recoveryKeys,
	}, string(key))
	if err != nil {
		return fmt.Errorf("the wrapped key of the repository: %w", err)
	}
	return nil
}

// KeepEncryptionKeys is Keep for the keys that decrypt a cluster's backups.
func KeepEncryptionKeys(ctx context.Context, st Writer, cluster format.Cluster, location string, keys encryption.Keys, recoveryKeys []string) error {
	wrapped := format.WrappedKey{Location: location, Fingerprint: fingerprintOf(keys), RecoveryKeys: recoveryKeys}
	err := keepWrapped(ctx, st, cluster, wrapped, string(keys.Text()))
	if errors.Is(err, store.ErrExists) { // another backup's, or a lost answer's
		err = keepWrapped(ctx, st, cluster, wrapped, string(keys.Text()))
	}
	if err != nil {
		return fmt.Errorf("the wrapped key of encrypted backups: %w", err)
	}
	return nil
}

func fingerprintOf(keys encryption.Keys) string {
	return format.NewContent([]byte(strings.Join(keys.Public(), "\n"))).SHA256[:32]
}

func keepWrapped(ctx context.Context, st Writer, cluster format.Cluster, wrapped format.WrappedKey, plain string) error {
	public, err := recipients(wrapped.RecoveryKeys)
	if err != nil {
		return err
	}
	wrapped.ClusterUID = cluster.UID
	write := st.Create
	there, spoilt, err := read(ctx, st, wrapped.Key())
	switch {
	case err == nil && there.PublicKey == cluster.Key.PublicKey():
		return nil
	case err == nil || spoilt:
		// The signing key has changed, or another writer wrote here.
		write = st.Put
	case !errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("look for it: %w", err)
	}
	if wrapped.Encrypted, err = encrypt(plain, public); err != nil {
		return fmt.Errorf("encrypt it: %w", err)
	}
	content, err := format.EncodeWrappedKey(wrapped, cluster)
	if err != nil {
		return err
	}
	// After another process's write or a lost answer, the next check decides.
	if err := write(ctx, wrapped.Key(), content); err != nil {
		return fmt.Errorf("write it: %w", err)
	}
	return nil
}

func encrypt(plain string, recipients []age.Recipient) (string, error) {
	var text strings.Builder
	armored := armor.NewWriter(&text)
	encrypted, err := age.Encrypt(armored, recipients...)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(encrypted, plain); err != nil {
		return "", err
	}
	if err := errors.Join(encrypted.Close(), armored.Close()); err != nil {
		return "", err
	}
	return text.String(), nil
}

// read reads a wrapped key. It is spoilt if it is none, or wrongly signed.
func read(ctx context.Context, st store.Reader, key string) (wrapped *format.WrappedKey, spoilt bool, err error) {
	content, err := st.Get(ctx, key)
	if err != nil {
		return nil, false, err
	}
	data, err := io.ReadAll(io.LimitReader(content, format.MaxWrappedKeyBytes+1))
	if err := errors.Join(err, content.Close()); err != nil {
		return nil, false, err
	}
	if wrapped, err = format.DecodeWrappedKey(key, data); err != nil {
		return nil, true, fmt.Errorf("%s: %w", key, err)
	}
	return wrapped, false, nil
}

// Find reads a store's wrapped keys, and tells spoilt ones.
func Find(ctx context.Context, st store.Reader, told func(error)) (found []format.WrappedKey, err error) {
	for object, err := range st.List(ctx, format.WrappedKeysPrefix, store.ListOptions{Recursive: true}) {
		if err != nil {
			return nil, fmt.Errorf("list the wrapped keys: %w", err)
		}
		if object.IsFolder {
			continue
		}
		wrapped, spoilt, err := read(ctx, st, object.Key)
		switch {
		case err == nil:
			found = append(found, *wrapped)
		case spoilt:
			told(err)
		case !errors.Is(err, store.ErrNotFound):
			return nil, fmt.Errorf("read a wrapped key: %w", err)
		}
	}
	return found, nil
}

// Identity is a private key.
type Identity = age.Identity

// Identities reads private keys from a file of age-keygen.
func Identities(file io.Reader) ([]Identity, error) {
	content, err := io.ReadAll(io.LimitReader(file, 1<<20))
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(content, []byte("age-encryption.org/")) || bytes.HasPrefix(content, []byte(armor.Header)) {
		return nil, errors.New("the private key is itself encrypted: decrypt it with age -d, and give the result")
	}
	found, err := age.ParseIdentities(bytes.NewReader(content))
	if err != nil {
		return nil, errors.New("there is no private key of age in it: a line that begins with AGE-SECRET-KEY-1 and is complete, and others that begin with #")
	}
	return found, nil
}

// Unwrap decrypts a repository's wrapped key. It fails with ErrOtherIdentity for other recovery keys.
func Unwrap(wrapped *format.WrappedKey, identities []Identity) (repository.Key, error) {
	key, err := decrypt(wrapped, identities)
	if err != nil {
		return "", fmt.Errorf("decrypt the key of the repository: %w", err)
	}
	fingerprint, err := repository.Key(key).Fingerprint(wrapped.VolumeNamespace)
	if err != nil {
		return "", err
	}
	if err := compare(wrapped, fingerprint); err != nil {
		return "", err
	}
	return repository.Key(key), nil
}

// UnwrapEncryptionKeys decrypts the keys that decrypt backups. It fails as Unwrap.
func UnwrapEncryptionKeys(wrapped *format.WrappedKey, identities []Identity) (encryption.Keys, error) {
	text, err := decrypt(wrapped, identities)
	if err != nil {
		return encryption.Keys{}, fmt.Errorf("decrypt the key of encrypted backups: %w", err)
	}
	keys, err := encryption.ParseKeys([]byte(text))
	if err != nil {
		return encryption.Keys{}, err
	}
	if err := compare(wrapped, fingerprintOf(keys)); err != nil {
		return encryption.Keys{}, err
	}
	return keys, nil
}

func decrypt(wrapped *format.WrappedKey, identities []Identity) (string, error) {
	plain, err := age.Decrypt(armor.NewReader(strings.NewReader(wrapped.Encrypted)), identities...)
	if _, others := errors.AsType[*age.NoIdentityMatchError](err); others {
		return "", fmt.Errorf("%w: %s", ErrOtherIdentity, strings.Join(wrapped.RecoveryKeys, ", "))
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(plain, maxKeyBytes))
	return string(text), err
}

func compare(wrapped *format.WrappedKey, fingerprint string) error {
	if fingerprint != wrapped.Fingerprint {
		return fmt.Errorf("what is encrypted has the fingerprint %s, not %s", fingerprint, wrapped.Fingerprint)
	}
	return nil
}
