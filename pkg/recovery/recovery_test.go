// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"filippo.io/age"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func pair(t *testing.T) (*age.X25519Identity, string) {
	t.Helper()
	identity := must[*age.X25519Identity](t)(age.GenerateX25519Identity())
	return identity, identity.Recipient().String()
}

func aRepository(t *testing.T) Repository {
	t.Helper()
	key := must[*format.SigningKey](t)(format.NewSigningKey(rand.Reader))
	return Repository{Cluster: format.Cluster{UID: "cluster", Key: key}, VolumeNamespace: "shop", Location: "default"}
}

func find(t *testing.T, st store.Reader) (found []format.WrappedKey, spoilt []error) {
	t.Helper()
	found, err := Find(t.Context(), st, func(err error) { spoilt = append(spoilt, err) })
	if err != nil {
		t.Fatal(err)
	}
	return found, spoilt
}

func keep(t *testing.T, st Writer, of Repository, key repository.Key, recoveryKeys ...string) {
	t.Helper()
	if err := Keep(t.Context(), st, of, key, recoveryKeys); err != nil {
		t.Fatal(err)
	}
}

// Each of the private keys gets the key back, and no other one does. It lies there once for
// each key and set of recovery keys, and nothing of it can be read.
func TestKeptForEach(t *testing.T) {
	st := storetest.NewFaulty(storetest.Memory(t), clock.RealClock{})
	first, firstPublic := pair(t)
	second, secondPublic := pair(t)
	stranger, _ := pair(t)
	of := aRepository(t)
	for i, key := range []repository.Key{repository.NewKey(), "chosen by a person"} {
		for range 2 {
			keep(t, st, of, key, firstPublic, secondPublic)
			keep(t, st, of, key, secondPublic, firstPublic)
		}
		if got := st.Count(storetest.Create); got != i+1 {
			t.Errorf("%d writes for %d keys", got, i+1)
		}
		found, spoilt := find(t, st)
		if len(found) != i+1 || len(spoilt) != 0 {
			t.Fatalf("found: %+v, %v", found, spoilt)
		}
		fingerprint := must[string](t)(key.Fingerprint("shop"))
		for _, wrapped := range found {
			if wrapped.Fingerprint != fingerprint {
				continue
			}
			if wrapped.ClusterUID != "cluster" || wrapped.VolumeNamespace != "shop" || wrapped.Location != "default" || wrapped.PublicKey != of.Cluster.Key.PublicKey() {
				t.Errorf("it says %+v", wrapped)
			}
			for _, identity := range []age.Identity{first, second} {
				if got, err := Unwrap(&wrapped, []age.Identity{stranger, identity}); err != nil || got != key {
					t.Errorf("it is %q, %v", string(got), err)
				}
			}
			if got, err := Unwrap(&wrapped, []age.Identity{stranger}); !errors.Is(err, ErrOtherIdentity) || got != "" {
				t.Errorf("a stranger reads %q, %v", string(got), err)
			}
		}
		content := must[*format.WrappedKey](t)(readOne(t.Context(), st, found[i].Key()))
		if strings.Contains(content.Encrypted, string(key)) {
			t.Error("the key is there as it is")
		}
	}
	// Other recovery keys get another copy, and the old one stays.
	keep(t, st, of, "chosen by a person", secondPublic)
	found, _ := find(t, st)
	if len(found) != 3 {
		t.Errorf("found: %+v", found)
	}
}

func readOne(ctx context.Context, st store.Reader, key string) (*format.WrappedKey, error) {
	wrapped, _, err := read(ctx, st, key)
	return wrapped, err
}

// What somebody else wrote in its place does not count, and is replaced; nor does what the
// cluster signed with a key that it has no more.
func TestKeptAgain(t *testing.T) {
	st := storetest.Memory(t)
	identity, public := pair(t)
	of := aRepository(t)
	key := repository.NewKey()
	keep(t, st, of, key, public)
	found, _ := find(t, st)
	at := found[0].Key()
	good := func(signer Repository) {
		t.Helper()
		keep(t, st, signer, key, public)
		wrapped := must[*format.WrappedKey](t)(readOne(t.Context(), st, at))
		if got, err := Unwrap(wrapped, []age.Identity{identity}); err != nil || got != key || wrapped.PublicKey != signer.Cluster.Key.PublicKey() {
			t.Errorf("it is %q, %v, signed by %s", string(got), err, wrapped.PublicKey)
		}
	}
	good(of)
	forger := aRepository(t)
	other := must[string](t)(encrypt("the forger's", must[[]age.Recipient](t)(recipients([]string{public}))))
	forged := found[0]
	forged.Encrypted = other
	for _, content := range [][]byte{
		nil, []byte("{}"), bytes.Repeat([]byte("x"), format.MaxWrappedKeyBytes+1),
		must[[]byte](t)(format.EncodeWrappedKey(forged, forger.Cluster)),
	} {
		if err := st.Put(t.Context(), at, content); err != nil {
			t.Fatal(err)
		}
		good(of)
	}
	if err := st.Put(t.Context(), at, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if found, spoilt := find(t, st); len(found) != 0 || len(spoilt) != 1 || !strings.Contains(spoilt[0].Error(), at) {
		t.Errorf("of what is spoilt: %+v, %v", found, spoilt)
	}
	good(forger) // who has the cluster's name and another key, as after the loss of the first
	// The fingerprint is that of what is encrypted.
	if got, err := Unwrap(&forged, []age.Identity{identity}); err == nil {
		t.Errorf("of another key it gives %q", string(got))
	}
}

// A store that fails is told, and nothing is written over what could not be read.
func TestKeepOfAStoreThatFails(t *testing.T) {
	st := storetest.NewFaulty(storetest.Memory(t), clock.RealClock{})
	_, public := pair(t)
	for _, operation := range []storetest.Operation{storetest.Get, storetest.Create} {
		st.Inject(storetest.Fault{Operation: operation, Err: store.ErrUnavailable})
		if err := Keep(t.Context(), st, aRepository(t), "a key", []string{public}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", operation, err)
		}
	}
	if found, spoilt := find(t, st); len(found)+len(spoilt) != 0 || st.Count(storetest.Put) != 0 {
		t.Errorf("there are %v, %v", found, spoilt)
	}
}

// What is no public key is refused, without being told again.
func TestValidate(t *testing.T) {
	identity, public := pair(t)
	if err := Validate([]string{public}); err != nil {
		t.Error(err)
	}
	if err := Validate(nil); err != nil {
		t.Error(err)
	}
	broken := []byte(public)
	broken[20] ^= 1
	for name, c := range map[string]struct{ key, says string }{
		"a private key":                  {identity.String(), "is a private key, which must not be in the cluster"},
		"a private key in small letters": {strings.ToLower(identity.String()), "is a private key"},
		"a mistyped letter":              {string(broken), "is not a public key of age"},
		"another kind":                   {"age1pq1" + public[4:], "is not a public key of age"},
		"an SSH key":                     {"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA", "is not a public key of age"},
		"nothing":                        {"", "is not a public key of age"},
		"for which nobody encrypts":      {"age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq5cu47z", "is not a public key of age"},
		"two of them":                    {public + " " + public, "is not a public key of age"},
	} {
		err := Validate([]string{public, c.key})
		if err == nil || !strings.Contains(err.Error(), "spec.recoveryKeys[1] "+c.says) || c.key != "" && strings.Contains(err.Error(), c.key) {
			t.Errorf("%s: %v", name, err)
		}
		if err := Keep(t.Context(), storetest.Memory(t), aRepository(t), "a key", []string{public, c.key}); err == nil {
			t.Errorf("%s: something was kept", name)
		}
	}
}

func TestIdentities(t *testing.T) {
	identity, public := pair(t)
	got, err := Identities(strings.NewReader("# created: today\n# public key: " + public + "\n" + identity.String() + "\n"))
	if err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for name, c := range map[string]struct{ file, says string }{
		"a public key":       {public, "no private key"},
		"half of a key":      {identity.String()[:40], "no private key"},
		"nothing":            {"", "no private key"},
		"an encrypted one":   {"-----BEGIN AGE ENCRYPTED FILE-----\n", "age -d"},
		"an encrypted one 2": {"age-encryption.org/v1\n", "age -d"},
	} {
		if _, err := Identities(strings.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "AGE-SECRET-KEY-1"+identity.String()[16:30]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
