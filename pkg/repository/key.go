// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"sync/atomic"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"

	holdfastformat "github.com/holdfast-io/holdfast/pkg/format"
)

// Key is the password of a repository. It prints as a placeholder.
type Key string

// String hides the key.
func (Key) String() string { return "(repository key)" }

// GoString hides the key.
func (Key) GoString() string { return "(repository key)" }

// NewKey returns a random key of 256 bits, as 43 characters of base64url.
func NewKey() Key {
	raw := make([]byte, holdfastformat.GeneratedKeyBytes)
	rand.Read(raw)
	return Key(base64.RawURLEncoding.EncodeToString(raw))
}

// generated returns the bytes of a key from NewKey, and false for a user's.
func (k Key) generated() ([]byte, bool) {
	return holdfastformat.GeneratedKey(string(k))
}

// Fingerprint identifies the key publicly, as 32 hexadecimal digits.
func (k Key) Fingerprint(namespace string) (string, error) {
	return holdfastformat.KeyFingerprint(string(k), namespace)
}

// The format of a new repository, which it records for all readers.
const (
	// Five times as fast as Kopia's default BLAKE2B, which limits an upload.
	hash = "BLAKE3-256-128"
	// Kopia's default: hardware does several GB/s.
	encryption = "AES256-GCM-HMAC-SHA256"
	// Kopia's default. Chunks of a fixed size cost less time, but an inserted byte, as in rotated
	// logs, would store the rest anew.
	splitter = "DYNAMIC-4M-BUZHASH"
	// A random key needs no slow derivation; the default scrypt takes 128 MB at each opening.
	keyDerivation = "pbkdf2-sha256-600000"
)

const (
	masterKeyBytes  = 32
	hmacSecretBytes = 32
)

// newRepositoryOptions returns the options of a namespace's new repository.
//
// If a store ignores the condition of a write, the later of two initialisations wins, and random
// inner keys would make earlier data unreadable. So a generated key determines them. A chosen key
// is too weak for that.
func newRepositoryOptions(namespace string, key Key) (*repo.NewRepositoryOptions, error) {
	opts := &repo.NewRepositoryOptions{
		BlockFormat:                       format.ContentFormat{Hash: hash, Encryption: encryption},
		ObjectFormat:                      format.ObjectFormat{Splitter: splitter},
		FormatBlockKeyDerivationAlgorithm: keyDerivation,
	}
	raw, generated := key.generated()
	if !generated {
		return opts, nil
	}
	pseudorandom, err := hkdf.Extract(sha256.New, raw, []byte("holdfast.io/repository/"+namespace))
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		into   *[]byte
		info   string
		length int
	}{
		{&opts.UniqueID, "unique id", format.UniqueIDLengthBytes},
		{&opts.BlockFormat.MasterKey, "master key", masterKeyBytes},
		{&opts.BlockFormat.HMACSecret, "hmac secret", hmacSecretBytes},
	} {
		if *part.into, err = hkdf.Expand(sha256.New, pseudorandom, part.info, part.length); err != nil {
			return nil, err
		}
	}
	return opts, nil
}

// derivations serialises key derivations: in Velero's repositories one takes 64 MB.
var derivations = make(chan struct{}, 1)

// inTurn makes an opening wait for its turn to derive the key. Kopia derives it between reading the
// format and the next read.
type inTurn struct {
	blob.Storage
	opened, derives atomic.Bool
}

func (t *inTurn) GetBlob(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) error {
	t.derived()
	err := t.Storage.GetBlob(ctx, id, offset, length, output)
	if err != nil || id != format.KopiaRepositoryBlobID || t.opened.Load() {
		return err
	}
	select {
	case derivations <- struct{}{}:
		t.derives.Store(true)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *inTurn) derived() {
	if t.derives.CompareAndSwap(true, false) {
		<-derivations
	}
}
