// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// WrappedKeysPrefix has all wrapped keys.
	WrappedKeysPrefix = HoldfastPrefix + "keys/"
	// MaxWrappedKeyBytes bounds a WrappedKey.
	MaxWrappedKeyBytes = 64 << 10

	wrappedKeyKind           = "WrappedRepositoryKey"
	wrappedEncryptionKeyKind = "WrappedEncryptionKey"
	// encryptionKeyFolder can't be a namespace.
	encryptionKeyFolder = "encryption.key"

	wrappedKeyAPIVersion = "holdfast.io/v1"
)

// WrappedKey is a repository's key, or the keys that decrypt a cluster's backups, encrypted for
// recovery keys, whose private halves are outside the cluster. Its cluster signs it, since a recovery
// key suffices to encrypt.
type WrappedKey struct {
	// ClusterUID and PublicKey are the signer's, for the reader to judge.
	ClusterUID, PublicKey string
	// Location is the storage location in that cluster. VolumeNamespace is the repository's, or "".
	Location, VolumeNamespace string
	Fingerprint               string
	RecoveryKeys              []string
	// Encrypted is an armored file of age.
	Encrypted string
}

type storedWrappedKey struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        storedWrappedKeyMetadata `json:"metadata"`
	Spec            storedWrappedKeySpec     `json:"spec"`
}

type storedWrappedKeyMetadata struct {
	Annotations map[string]string `json:"annotations"`
}

type storedWrappedKeySpec struct {
	VolumeNamespace string   `json:"volumeNamespace,omitempty"`
	Location        string   `json:"location"`
	Fingerprint     string   `json:"fingerprint"`
	RecoveryKeys    []string `json:"recoveryKeys"`
	Encrypted       string   `json:"encrypted"`
}

var fingerprints = regexp.MustCompile(`^[0-9a-f]{32}$`)

// DecryptsBackups reports whether it has keys that decrypt backups.
func (w WrappedKey) DecryptsBackups() bool { return w.VolumeNamespace == "" }

func (w WrappedKey) kind() string {
	if w.DecryptsBackups() {
		return wrappedEncryptionKeyKind
	}
	return wrappedKeyKind
}

// Key returns the key in the store, by cluster, repository, its key, and recovery keys.
func (w WrappedKey) Key() string {
	folder := cmp.Or(w.VolumeNamespace, encryptionKeyFolder)
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(w.RecoveryKeys)), "\n")))
	return fmt.Sprintf("%s%s/%s/%s-%s.json", WrappedKeysPrefix, w.ClusterUID, folder, w.Fingerprint, hex.EncodeToString(sum[:8]))
}

func (w WrappedKey) validate() error {
	switch {
	case !w.DecryptsBackups() && len(validation.IsDNS1123Label(w.VolumeNamespace)) > 0:
		return fmt.Errorf("%q is not the name of a namespace", w.VolumeNamespace)
	case w.ClusterUID == "" || strings.Contains(w.ClusterUID, "/"):
		return fmt.Errorf("%q is not the uid of a cluster", w.ClusterUID)
	case !fingerprints.MatchString(w.Fingerprint):
		return fmt.Errorf("%q is not a fingerprint", w.Fingerprint)
	case len(w.RecoveryKeys) == 0 || w.Encrypted == "":
		return errors.New("nothing is encrypted in it, or for nobody")
	}
	return nil
}

// EncodeWrappedKey encodes and signs a wrapped key.
func EncodeWrappedKey(wrapped WrappedKey, cluster Cluster) ([]byte, error) {
	if cluster.Key == nil {
		return nil, errors.New("the cluster has no key to sign with")
	}
	wrapped.ClusterUID, wrapped.PublicKey = cluster.UID, cluster.Key.PublicKey()
	if err := wrapped.validate(); err != nil {
		return nil, err
	}
	stored := storedWrappedKey{
		TypeMeta: metav1.TypeMeta{APIVersion: wrappedKeyAPIVersion, Kind: wrapped.kind()},
		Metadata: storedWrappedKeyMetadata{Annotations: map[string]string{AnnotationClusterUID: wrapped.ClusterUID, AnnotationPublicKey: wrapped.PublicKey}},
		Spec: storedWrappedKeySpec{
			VolumeNamespace: wrapped.VolumeNamespace, Location: wrapped.Location, Fingerprint: wrapped.Fingerprint,
			RecoveryKeys: slices.Sorted(slices.Values(wrapped.RecoveryKeys)), Encrypted: wrapped.Encrypted,
		},
	}
	plain, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	if stored.Metadata.Annotations[AnnotationSignature], err = cluster.Key.sign(plain); err != nil {
		return nil, err
	}
	// Indented, since people read it in an emergency.
	data, err := json.MarshalIndent(stored, "", "  ")
	if err != nil {
		return nil, err
	}
	if len(data) > MaxWrappedKeyBytes {
		return nil, fmt.Errorf("the wrapped key has %d bytes, more than the %d that are read", len(data), MaxWrappedKeyBytes)
	}
	return append(data, '\n'), nil
}

// DecodeWrappedKey fails for a wrong signature or key.
func DecodeWrappedKey(key string, data []byte) (*WrappedKey, error) {
	if len(data) > MaxWrappedKeyBytes {
		return nil, fmt.Errorf("it has more than %d bytes", MaxWrappedKeyBytes)
	}
	canonical, err := verify(data)
	if err != nil {
		return nil, err
	}
	stored := &storedWrappedKey{}
	if err := utiljson.Unmarshal(canonical, stored); err != nil {
		return nil, err
	}
	wrapped := &WrappedKey{
		ClusterUID: stored.Metadata.Annotations[AnnotationClusterUID], PublicKey: stored.Metadata.Annotations[AnnotationPublicKey],
		Location: stored.Spec.Location, VolumeNamespace: stored.Spec.VolumeNamespace, Fingerprint: stored.Spec.Fingerprint,
		RecoveryKeys: stored.Spec.RecoveryKeys, Encrypted: stored.Spec.Encrypted,
	}
	if stored.APIVersion != wrappedKeyAPIVersion || stored.Kind != wrapped.kind() {
		return nil, fmt.Errorf("it is of kind %q in %q", stored.Kind, stored.APIVersion)
	}
	if err := wrapped.validate(); err != nil {
		return nil, err
	}
	if wrapped.Key() != key {
		return nil, fmt.Errorf("it belongs to %s", wrapped.Key())
	}
	return wrapped, nil
}
