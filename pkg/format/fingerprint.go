// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
)

// GeneratedKeyBytes is the length of keys that Holdfast made.
const GeneratedKeyBytes = 32

const (
	fingerprintBytes      = 16
	fingerprintIterations = 600_000
)

// GeneratedKey returns the bytes of a key that Holdfast made; false for one that may have been chosen.
func GeneratedKey(key string) ([]byte, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(key)
	return raw, err == nil && len(raw) == GeneratedKeyBytes
}

// KeyFingerprint identifies a repository's key publicly, as 32 hexadecimal digits: the beginning of a
// generated key's SHA-256. That could reveal a chosen key, so its fingerprint costs as much as an
// attempt to open the repository.
func KeyFingerprint(key, namespace string) (string, error) {
	if _, generated := GeneratedKey(key); generated {
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:fingerprintBytes]), nil
	}
	sum, err := pbkdf2.Key(sha256.New, key, []byte("holdfast.io/repository/"+namespace), fingerprintIterations, fingerprintBytes)
	return hex.EncodeToString(sum), err
}
