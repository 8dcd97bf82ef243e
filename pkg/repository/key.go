// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"crypto/hkdf"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"sync/atomic"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
)

// Key is the password of a repository. It prints as a placeholder, so that it
// can't reach a log by accident.
type Key string

// String implements fmt.Stringer without telling the key.
func (Key) String() string { return "(repository key)" }

// GoString implements fmt.GoStringer without telling the key.
func (Key) GoString() string { return "(repository key)" }

// keyBytes is the length of a generated key: 256 bits.
const keyBytes = 32

// NewKey returns a random key of 256 bits, as 43 characters of base64url.
func NewKey() Key {
	raw := make([]byte, keyBytes)
	rand.Read(raw)
	return Key(base64.RawURLEncoding.EncodeToString(raw))
}

// generated gives the bytes of a key that NewKey has made, and false for one that a person may
// have chosen.
func (k Key) generated() ([]byte, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(string(k))
	return raw, err == nil && len(raw) == keyBytes
}

const (
	fingerprintBytes      = 16
	fingerprintIterations = 600_000
)

// Fingerprint tells the key of a namespace's repository from others, as 32 hexadecimal digits
// that anybody may read. That of a generated key is the beginning of its SHA-256. One that a
// person chose could be guessed by that, so its fingerprint costs as much as an attempt to open
// the repository.
func (k Key) Fingerprint(namespace string) (string, error) {
	if _, generated := k.generated(); generated {
		sum := sha256.Sum256([]byte(k))
		return hex.EncodeToString(sum[:fingerprintBytes]), nil
	}
	sum, err := pbkdf2.Key(sha256.New, string(k), []byte("holdfast.io/repository/"+namespace), fingerprintIterations, fingerprintBytes)
	return hex.EncodeToString(sum), err
}

// The format of a new repository. Kopia records it in the repository, so that
// every reader, Velero's among them, follows it.
const (
	// Five times as fast as Kopia's default BLAKE2B, which bounds an upload.
	hash = "BLAKE3-256-128"
	// Kopia's default: hardware does it at several GB/s.
	encryption = "AES256-GCM-HMAC-SHA256"
	// Kopia's default. Fixed-size chunks would cost less time, but store a file
	// anew once a byte is inserted into it, as dumps and rotated logs do.
	splitter = "DYNAMIC-4M-BUZHASH"
	// A random key of 256 bits gains nothing from a slow derivation, and the
	// default (scrypt) needs 128 MB of memory on each opening.
	keyDerivation = "pbkdf2-sha256-600000"
)

// The lengths of Kopia's inner keys, in bytes.
const (
	masterKeyBytes  = 32
	hmacSecretBytes = 32
)

// newRepositoryOptions says how the repository of a namespace is initialised.
//
// In a store that takes a conditional write for an ordinary one, of two
// initialisations at once the later wins, and with Kopia's random inner keys it would
// make unreadable what was stored under the earlier. A generated key therefore
// determines the inner keys too: any number of initialisations give the same
// repository. A key that a person chose is not strong enough for that, and keeps
// Kopia's random inner keys.
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

// derivations is full while a key is derived. With Velero's repositories that takes 64 MB
// of memory, so that it is done for one at a time.
var derivations = make(chan struct{}, 1)

// inTurn is a storage for an opening that waits for its turn to derive the key. Kopia does
// so between reading the format and reading something else.
type inTurn struct {
	blob.Storage
	opened, derives atomic.Bool
}

// GetBlob implements blob.Storage.
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

// derived gives the turn to the next.
func (t *inTurn) derived() {
	if t.derives.CompareAndSwap(true, false) {
		<-derivations
	}
}
