// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

var update = flag.Bool("update", false, "rewrite the golden file")

const goldenDigest = "65482e398b133e3f48c08aec6117c5bd0cddaa118350431527b335286ad6b04f"

func newKeys(t *testing.T) Keys {
	t.Helper()
	keys, err := NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// bucket counts the requests for content, and fails once with err.
type bucket struct {
	*store.Bucket
	requests int
	err      error
}

func (b *bucket) asked() error {
	b.requests++
	err := b.err
	b.err = nil
	return err
}

func (b *bucket) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := b.asked(); err != nil {
		return nil, err
	}
	return b.Bucket.Get(ctx, key)
}

func (b *bucket) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if err := b.asked(); err != nil {
		return nil, err
	}
	return b.Bucket.GetRange(ctx, key, offset, length)
}

func source(keys Keys) Source { return func(context.Context) (Keys, error) { return keys, nil } }

func encrypted(t *testing.T, to *Recipients, plain []byte) []byte {
	t.Helper()
	var content bytes.Buffer
	w, err := to.Encrypt(&content)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return content.Bytes()
}

// Whatever part is asked for of a tarball of any size, in its store encrypted or not, it is the
// same, in a bounded number of requests.
func TestRanges(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	numbers := rand.New(random)
	keys, recovery := newKeys(t), newKeys(t)
	for _, size := range []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, headBytes - 500, headBytes, 3*chunkBytes + 17, 5 * chunkBytes, 1<<20 + 3} {
		plain := make([]byte, size)
		_, _ = random.Read(plain)
		for _, to := range []*Recipients{nil, keys.For(recovery.Public())} {
			bucket := &bucket{Bucket: storetest.Memory(t)}
			object := encrypted(t, to, plain)
			if err := bucket.Put(t.Context(), to.Key("b"), object); err != nil {
				t.Fatal(err)
			}
			tarball, err := Open(t.Context(), bucket, "b", to.Status(), source(newKeys(t).With(keys)))
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			opening := bucket.requests
			if most := map[bool]int{true: 2, false: 1}[len(object) > headBytes]; to == nil && opening > 0 || opening > most {
				t.Errorf("%d bytes: opening took %d requests", size, opening)
			}
			if got := tarball.Bytes(int64(len(object))); got != int64(size) {
				t.Errorf("%d bytes are told to be %d", size, got)
			}
			whole, err := tarball.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(whole); err != nil || !bytes.Equal(got, plain) || whole.Close() != nil {
				t.Errorf("%d bytes: all is %d bytes, %v", size, len(got), err)
			}
			for range 60 {
				offset := int64(numbers.IntN(size + 1))
				length := []int64{1, chunkBytes, int64(size), 1 + int64(numbers.IntN(size+1)), int64(size) - offset, -1}[numbers.IntN(6)]
				if length == 0 {
					continue
				}
				before := bucket.requests
				part, err := tarball.GetRange(t.Context(), offset, length)
				if offset == int64(size) && err != nil {
					if !errors.Is(err, store.ErrRange) {
						t.Errorf("%d bytes from %d of %d: %v", length, offset, size, err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				want := plain[offset:]
				if length >= 0 && length < int64(len(want)) {
					want = want[:length]
				}
				if got, err := io.ReadAll(part); err != nil || !bytes.Equal(got, want) || part.Close() != nil {
					t.Fatalf("%d bytes from %d of %d: %d bytes, %v", length, offset, size, len(got), err)
				}
				if got := bucket.requests - before; got > 1 {
					t.Errorf("%d bytes from %d of %d took %d requests", length, offset, size, got)
				}
			}
			// Age itself decrypts it, with the recovery key.
			if to == nil {
				continue
			}
			// Fewer bytes than these occur by chance.
			if size >= 16 && bytes.Contains(object, plain) {
				t.Errorf("%d bytes are there as they are", size)
			}
			for _, of := range []Keys{keys, recovery} {
				byAge, err := age.Decrypt(bytes.NewReader(object), of.identities[0])
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(byAge); err != nil || !bytes.Equal(got, plain) {
					t.Errorf("%d bytes: age reads %d bytes, %v", size, len(got), err)
				}
			}
		}
	}
}

// Without the cluster's key, the error says for which keys a tarball is encrypted; what was changed
// is told from that, and never read as if it were whole.
func TestWhatCannotBeDecrypted(t *testing.T) {
	keys, recovery := newKeys(t), newKeys(t)
	to := keys.For(recovery.Public())
	plain := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	object := encrypted(t, to, plain)
	bucket := &bucket{Bucket: storetest.Memory(t)}
	put := func(content []byte) {
		t.Helper()
		if err := bucket.Put(t.Context(), to.Key("b"), content); err != nil {
			t.Fatal(err)
		}
	}
	put(object)
	for name, keys := range map[string]Source{"nothing": nil, "no key": source(Keys{}), "another cluster's": source(newKeys(t)), "the recovery key alone": source(recovery)} {
		_, err := Open(t.Context(), bucket, "b", to.Status(), keys)
		if !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), to.by.ClusterKey) || !strings.Contains(err.Error(), recovery.Public()[0]) || !strings.Contains(err.Error(), "holdfast repo-key recover") {
			t.Errorf("with %s: %v", name, err)
		}
	}
	failing := func(context.Context) (Keys, error) { return Keys{}, io.ErrNoProgress }
	if _, err := Open(t.Context(), bucket, "b", to.Status(), failing); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("without the Secrets: %v", err)
	}
	if _, err := Open(t.Context(), bucket, "other", to.Status(), source(keys)); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("of another backup: %v", err)
	}
	bucket.err = store.ErrUnavailable
	if _, err := Open(t.Context(), bucket, "b", to.Status(), source(keys)); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, ErrDamaged) {
		t.Errorf("of a store that fails: %v", err)
	}
	read := func() error {
		tarball, err := Open(t.Context(), bucket, "b", to.Status(), source(keys))
		if err != nil {
			return err
		}
		part, err := tarball.GetRange(t.Context(), 2*chunkBytes+5, 4*chunkBytes)
		if err != nil {
			return err
		}
		defer part.Close()
		_, err = io.Copy(io.Discard, part)
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	flipped := func(at int) []byte {
		content := bytes.Clone(object)
		content[at] ^= 1
		return content
	}
	others := encrypted(t, newKeys(t).For(recovery.Public()), plain)
	for name, content := range map[string][]byte{
		"the header":         flipped(70),
		"a chunk":            flipped(4 * sealedBytes),
		"the last chunk":     flipped(len(object) - 1),
		"a cut":              object[:len(object)-9],
		"a cut at a chunk":   object[:len(object)-len(object)%sealedBytes],
		"half of the header": object[:100],
		"nothing":            {},
		"no age":             bytes.Repeat([]byte("x"), 300_000),
		"a long header":      append([]byte("age-encryption.org/v1\n-> X25519 "), bytes.Repeat([]byte("A"), 300_000)...),
		"for others":         others,
	} {
		put(content)
		if err := read(); err == nil || errors.Is(err, ErrNoKey) {
			t.Errorf("%s: %v", name, err)
		} else if name != "a chunk" && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: it is not told to be damaged: %v", name, err)
		}
	}
}

// What an earlier release has encrypted is read, and its digests are the same, for ever.
func TestGolden(t *testing.T) {
	keys, err := ParseKeys([]byte("AGE-SECRET-KEY-1KR0NE9LTZNWLW5YHWE306J4YQ53Z7JDHUKUEWADMZWUZUDQM6UGQ84UHDV\n"))
	if err != nil {
		t.Fatal(err)
	}
	to := keys.For([]string{"age1qfltky2d4w5xq4ddz0vq5z4msa5q2astrjjqcwf25m7nedgkcuzqasm42x"})
	const content = "stored with the first release that encrypts\n"
	path := filepath.Join("testdata", "golden.age")
	if *update {
		if err := os.WriteFile(path, encrypted(t, to, []byte(content)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	object, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bucket := storetest.Memory(t)
	if err := bucket.Put(t.Context(), "backups/b/b.tar.gz.age", object); err != nil {
		t.Fatal(err)
	}
	tarball, err := Open(t.Context(), bucket, "b", to.Status(), source(keys))
	if err != nil {
		t.Fatal(err)
	}
	part, err := tarball.GetRange(t.Context(), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if got, err := io.ReadAll(part); err != nil || string(got) != content {
		t.Errorf("it is %q, %v", got, err)
	}
	if got := tarball.Digest([]byte(content)); got != goldenDigest {
		t.Errorf("the digest is %s, want %s", got, goldenDigest)
	}
}

// The digest of an object says nothing about it to those without the cluster's key, and is the same
// for the same object of that cluster.
func TestDigests(t *testing.T) {
	keys, recovery := newKeys(t), newKeys(t)
	content := []byte("a short Secret")
	plain := format.NewContent(content).SHA256
	var none *Recipients
	if got := none.Digest(content); got != plain {
		t.Errorf("of what is not encrypted: %s", got)
	}
	first, second := keys.For(recovery.Public()).Digest(content), keys.For(nil).Digest(content)
	if first != second || first == plain || first == newKeys(t).For(nil).Digest(content) || len(first) != len(plain) {
		t.Errorf("the digests are %s and %s", first, second)
	}
}

// The cluster's key is made once, and those that were recovered are for reading only.
func TestSecrets(t *testing.T) {
	secrets := fake.NewClientset().CoreV1().Secrets("holdfast")
	none, err := Stored(secrets)(t.Context())
	if err != nil || len(none.Public()) != 0 {
		t.Errorf("without Secrets there are %v, %v", none, err)
	}
	recovered := newKeys(t)
	if _, err := secrets.Create(t.Context(), RecoveredSecret(recovered), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	own, err := Own(t.Context(), secrets)
	again, failure := Own(t.Context(), secrets)
	if err != nil || failure != nil || len(own.Public()) != 1 || own.String() != again.String() || own.Public()[0] == recovered.Public()[0] {
		t.Errorf("its own are %v and %v, %v, %v", own, again, err, failure)
	}
	all, err := Stored(secrets)(t.Context())
	if err != nil || strings.Join(all.Public(), " ") != own.Public()[0]+" "+recovered.Public()[0] {
		t.Errorf("all are %v, %v", all, err)
	}
	secret, err := secrets.Get(t.Context(), SecretName, metav1.GetOptions{})
	if err != nil || secret.Labels[format.LabelExclude] != "true" {
		t.Errorf("the Secret is %+v, %v", secret.ObjectMeta, err)
	}
	// Another key in the first line encrypts from now on, and the former one still decrypts.
	next := newKeys(t)
	secret.Data[SecretKey] = next.With(own).Text()
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	rotated, err := Own(t.Context(), secrets)
	if err != nil || rotated.For(nil).by.ClusterKey != next.Public()[0] || len(rotated.Public()) != 2 {
		t.Errorf("after a rotation they are %v, %v", rotated, err)
	}
	for name, data := range map[string]string{"nothing": "", "a public key": own.Public()[0], "half of a key": string(own.Text())[:40],
		"another kind": "AGE-SECRET-KEY-PQ-1XYZ", "too many": strings.Repeat(string(own.Text()), maxKeys+1)} {
		secret.Data = map[string][]byte{SecretKey: []byte(data)}
		if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := Own(t.Context(), secrets); err == nil || !strings.Contains(err.Error(), SecretName) || data != "" && strings.Contains(err.Error(), data) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Stored(secrets)(t.Context()); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

// No way of printing keys prints a secret.
func TestKeysAreNotPrinted(t *testing.T) {
	keys := newKeys(t)
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(format, keys); strings.Contains(strings.ToUpper(text), "SECRET-KEY") {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

// What can't be encrypted for is refused, and nothing is encrypted for some of the keys alone.
func TestRecipientsThatAreNone(t *testing.T) {
	for _, key := range []string{"", "age1", "ssh-ed25519 AAAA"} {
		if w, err := newKeys(t).For([]string{key}).Encrypt(io.Discard); err == nil || w != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
}
