// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"filippo.io/age"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	chunkBytes  = 64 << 10
	sealedBytes = chunkBytes + 16
	nonceBytes  = 16
	// headBytes are read first: 17 keys take 2 KiB, and many tarballs end here.
	headBytes = 128 << 10
)

var (
	// ErrNoKey means that no private key at hand decrypts a tarball.
	ErrNoKey = errors.New("no private key at hand decrypts the objects of the backup")
	// ErrDamaged means that Encrypt has not written this tarball so.
	ErrDamaged = errors.New("the encrypted tarball is damaged, or was replaced")
)

// Recipients are the keys that a backup's objects are encrypted for; nil for none. All methods accept
// nil.
type Recipients struct {
	by      v1alpha1.BackupEncryption
	digests digests
}

// For returns a new backup's recipients: the first key, and the recovery keys.
func (k Keys) For(recoveryKeys []string) *Recipients {
	return &Recipients{
		by:      v1alpha1.BackupEncryption{ClusterKey: k.Public()[0], RecoveryKeys: slices.Clone(recoveryKeys)},
		digests: digestsOf(k.identities[0]),
	}
}

// Status returns the keys as a Backup has them.
func (r *Recipients) Status() *v1alpha1.BackupEncryption {
	if r == nil {
		return nil
	}
	return r.by.DeepCopy()
}

// Key returns the tarball's key in the store.
func (r *Recipients) Key(storeName string) string { return tarballKey(storeName, r.Status()) }

// Digest returns an object's digest for the manifest.
func (r *Recipients) Digest(content []byte) string {
	if r == nil {
		return digests(nil).of(content)
	}
	return r.digests.of(content)
}

// Encrypt returns a writer that encrypts to another one. Its Close writes the end, and does not close
// the other.
func (r *Recipients) Encrypt(to io.Writer) (io.WriteCloser, error) {
	if r == nil {
		return plainWriter{to}, nil
	}
	var recipients []age.Recipient
	for _, key := range append([]string{r.by.ClusterKey}, r.by.RecoveryKeys...) {
		recipient, err := age.ParseX25519Recipient(key)
		if err != nil {
			return nil, fmt.Errorf("encrypt the tarball: %.100q is not a public key of age: %w", key, err)
		}
		recipients = append(recipients, recipient)
	}
	encrypted, err := age.Encrypt(to, recipients...)
	if err != nil {
		return nil, fmt.Errorf("encrypt the tarball: %w", err)
	}
	return encrypted, nil
}

type plainWriter struct{ io.Writer }

func (plainWriter) Close() error { return nil }

func tarballKey(storeName string, by *v1alpha1.BackupEncryption) string {
	if by == nil {
		return format.TarballKey(storeName)
	}
	return format.EncryptedTarballKey(storeName)
}

// digests is the key of a manifest's digests; nil for plain ones. With a key, no reader of the store
// learns a short Secret by trying. A cluster has one key, so that equal objects have equal digests.
type digests []byte

func digestsOf(identity *age.X25519Identity) digests {
	key, err := hkdf.Key(sha256.New, []byte(identity.String()), nil, "holdfast.io/object-digests", sha256.Size)
	if err != nil {
		panic(err) // only for wrong, constant sizes
	}
	return key
}

func (d digests) of(content []byte) string {
	if d == nil {
		return format.NewContent(content).SHA256
	}
	sum := hmac.New(sha256.New, d)
	sum.Write(content)
	return hex.EncodeToString(sum.Sum(nil))
}

// Store is the needed part of a store.
type Store interface {
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	Attributes(ctx context.Context, key string) (store.Object, error)
}

// Tarball is a backup's tarball in its store. Offsets and lengths count decrypted bytes.
type Tarball struct {
	// Key is its key in the store.
	Key string

	from    Store
	sealed  *sealed
	digests digests
}

type sealed struct {
	head, tail     []byte
	size           int64
	payload, plain int64
	identity       age.Identity
}

// Open opens a backup's tarball, which is encrypted if by is set: then by two requests up to 128 KiB,
// else three, otherwise by none. It fails with ErrNoKey, ErrDamaged, or an error of the store.
func Open(ctx context.Context, from Store, storeName string, by *v1alpha1.BackupEncryption, keys Source) (*Tarball, error) {
	t := &Tarball{Key: tarballKey(storeName, by), from: from}
	if by == nil {
		return t, nil
	}
	var all Keys
	if keys != nil {
		var err error
		if all, err = keys(ctx); err != nil {
			return nil, err
		}
	}
	identity := all.of(by.ClusterKey)
	if identity == nil {
		return nil, noKey(by)
	}
	t.digests = digestsOf(identity)
	object, err := from.Attributes(ctx, t.Key)
	if err != nil {
		return nil, err
	}
	s := &sealed{size: object.Size}
	if s.head, err = t.bytes(ctx, 0, min(s.size, headBytes)); err != nil {
		return nil, err
	}
	header, err := age.ExtractHeader(bytes.NewReader(s.head))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	fileKey, err := age.DecryptHeader(header, identity)
	if err != nil { // by a key that it was encrypted for
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	s.identity = age.NewInjectedFileKeyIdentity(fileKey)
	s.payload = int64(len(header)) + nonceBytes
	if s.size > int64(len(s.head)) {
		if s.tail, err = t.bytes(ctx, s.size-sealedBytes, sealedBytes); err != nil {
			return nil, err
		}
	}
	// The last chunk proves the size.
	if _, s.plain, err = age.DecryptReaderAt(&chunks{sealed: s}, s.size, s.identity); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	t.sealed = s
	return t, nil
}

func noKey(by *v1alpha1.BackupEncryption) error {
	return fmt.Errorf("%w: they are encrypted for the key %s of the cluster that made it, and for the recovery keys %s: "+
		"bring that cluster's key into this one with holdfast repo-key recover, as docs/install.md describes for a lost cluster", ErrNoKey, by.ClusterKey, strings.Join(by.RecoveryKeys, ", "))
}

func (t *Tarball) bytes(ctx context.Context, offset, length int64) ([]byte, error) {
	if length == 0 {
		return nil, nil
	}
	part, err := t.from.GetRange(ctx, t.Key, offset, length)
	if err != nil {
		return nil, err
	}
	content := make([]byte, length)
	if _, err := io.ReadFull(part, content); err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", t.Key, err), part.Close())
	}
	return content, part.Close()
}

// Digest returns an object's digest as in the manifest.
func (t *Tarball) Digest(content []byte) string { return t.digests.of(content) }

// Bytes returns the decrypted size, given the stored one.
func (t *Tarball) Bytes(stored int64) int64 {
	if t.sealed == nil {
		return stored
	}
	return t.sealed.plain
}

// Decrypt decrypts the whole object, as read from the store.
func (t *Tarball) Decrypt(stored io.Reader) (io.Reader, error) {
	if t.sealed == nil {
		return stored, nil
	}
	plain, err := age.Decrypt(stored, t.sealed.identity)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return plain, nil
}

// Get opens the whole tarball, in one request.
func (t *Tarball) Get(ctx context.Context) (io.ReadCloser, error) {
	stored, err := t.from.Get(ctx, t.Key)
	if err != nil {
		return nil, err
	}
	plain, err := t.Decrypt(stored)
	if err != nil {
		return nil, errors.Join(err, stored.Close())
	}
	return &part{plain, stored}, nil
}

type part struct {
	io.Reader
	io.Closer
}

// GetRange opens a part, in one request or none. A tarball that ends before the part fails with
// store.ErrRange; one that ends within gives less.
func (t *Tarball) GetRange(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
	s := t.sealed
	if s == nil {
		return t.from.GetRange(ctx, t.Key, offset, length)
	}
	if offset < 0 || length == 0 || offset >= s.plain {
		return nil, fmt.Errorf("%s ends at %d: %w", t.Key, s.plain, store.ErrRange)
	}
	if length < 0 || length > s.plain-offset {
		length = s.plain - offset
	}
	of := &chunks{sealed: s}
	of.at = s.payload + offset/chunkBytes*sealedBytes
	end := min(s.payload+((offset+length-1)/chunkBytes+1)*sealedBytes, s.size)
	for of.at+sealedBytes <= int64(len(s.head)) && of.at+sealedBytes < end {
		of.at += sealedBytes
	}
	if end > int64(len(s.head)) && of.at < s.size-int64(len(s.tail)) {
		var err error
		if of.body, err = t.from.GetRange(ctx, t.Key, of.at, end-of.at); err != nil {
			return nil, err
		}
	}
	plain, _, err := age.DecryptReaderAt(of, s.size, s.identity)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrDamaged, err), of.Close())
	}
	return &part{bufio.NewReaderSize(io.NewSectionReader(plain, offset, length), chunkBytes), of}, nil
}

// chunks reads a part's encrypted bytes in order, but the head and the tail at any time.
type chunks struct {
	*sealed
	body io.ReadCloser
	at   int64
}

// ReadAt implements io.ReaderAt.
func (c *chunks) ReadAt(p []byte, offset int64) (int, error) {
	if offset >= c.size {
		return 0, io.EOF
	}
	end := offset + int64(len(p))
	if end <= int64(len(c.head)) {
		return copy(p, c.head[offset:]), nil
	}
	if tail := c.size - int64(len(c.tail)); len(c.tail) > 0 && offset >= tail {
		n := copy(p, c.tail[offset-tail:])
		if n < len(p) {
			return n, io.EOF
		}
		return n, nil
	}
	if c.body == nil && offset < int64(len(c.head)) {
		return copy(p, c.head[offset:]), io.EOF
	}
	if c.body == nil || offset < c.at {
		return 0, fmt.Errorf("bytes %d to %d are outside of the part that is read", offset, end)
	}
	skipped, err := io.CopyN(io.Discard, c.body, offset-c.at)
	c.at += skipped
	if err != nil {
		return 0, err
	}
	n, err := io.ReadFull(c.body, p)
	c.at += int64(n)
	return n, err
}

// Close ends the request.
func (c *chunks) Close() error {
	if c.body == nil {
		return nil
	}
	return c.body.Close()
}
