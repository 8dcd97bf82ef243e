// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
)

// noBlobs has every blob, or none.
type noBlobs struct {
	blob.Storage
	err error
}

func (s noBlobs) GetBlob(context.Context, blob.ID, int64, int64, blob.OutputBuffer) error {
	return s.err
}

// A fingerprint tells keys apart. Only that of a random key is quickly computed, since who
// guesses could compare.
func TestFingerprint(t *testing.T) {
	generated, err := Key("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8").Fingerprint("app")
	if err != nil || generated != "ea866a757e4c38babfa8127cbe9a409d" {
		t.Errorf("%s, %v", generated, err)
	}
	seen := map[string]bool{generated: true}
	for _, of := range []struct {
		key       Key
		namespace string
	}{{"chosen by a person", "app"}, {"chosen by a person", "other"}, {"another", "app"}, {NewKey(), "app"}} {
		fingerprint, err := of.key.Fingerprint(of.namespace)
		if err != nil || len(fingerprint) != 32 || seen[fingerprint] {
			t.Errorf("%s, %v", fingerprint, err)
		}
		seen[fingerprint] = true
	}
	sum := sha256.Sum256([]byte("chosen by a person"))
	if seen[hex.EncodeToString(sum[:16])] {
		t.Error("a chosen key can be guessed as fast as a digest is computed")
	}
}

// Of openings at once one derives its key, until it reads something else or has ended.
func TestKeysAreDerivedInTurn(t *testing.T) {
	begin := func(ctx context.Context, s *inTurn) error {
		return s.GetBlob(ctx, format.KopiaRepositoryBlobID, 0, -1, nil)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	first, second := &inTurn{Storage: noBlobs{}}, &inTurn{Storage: noBlobs{}}
	for _, next := range []func(){
		func() { _ = first.GetBlob(t.Context(), format.KopiaBlobCfgBlobID, 0, -1, nil) },
		first.derived,
	} {
		if err := begin(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := begin(ended, second); !errors.Is(err, context.Canceled) {
			t.Errorf("the second got its turn: %v", err)
		}
		turn := make(chan error)
		go func() { turn <- begin(t.Context(), second) }()
		next()
		if err := <-turn; err != nil {
			t.Error(err)
		}
		second.derived()
		second.derived()
	}
	// What is read later, or is not there, derives nothing.
	first.opened.Store(true)
	second.Storage = noBlobs{err: blob.ErrBlobNotFound}
	if err := errors.Join(begin(t.Context(), first), begin(t.Context(), &inTurn{Storage: noBlobs{}})); err != nil {
		t.Error(err)
	}
	<-derivations
	if err := begin(t.Context(), second); !errors.Is(err, blob.ErrBlobNotFound) || len(derivations) != 0 {
		t.Errorf("%v, and %d derive a key", err, len(derivations))
	}
}
