// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"gocloud.dev/blob"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const maxKeyBytes = 1024

const (
	SecretAccessKeyID     = "accessKeyID"
	SecretSecretAccessKey = "secretAccessKey"
	SecretSessionToken    = "sessionToken"
	// SecretServiceAccountKey has a service account's JSON key.
	SecretServiceAccountKey = "serviceAccountKey"
	// SecretAccountKey has an Azure storage account's key.
	SecretAccountKey = "accountKey"
	// SecretSASToken has an Azure shared access signature.
	SecretSASToken     = "sasToken"
	SecretTenantID     = "tenantID"
	SecretClientID     = "clientID"
	SecretClientSecret = "clientSecret"
)

// SecretKeys describes the keys of a provider's Secrets.
func SecretKeys(provider enginev1alpha1.StorageProvider) string {
	switch provider {
	case enginev1alpha1.StorageProviderGCS:
		return "the key " + SecretServiceAccountKey
	case enginev1alpha1.StorageProviderAzure:
		return "the key " + SecretAccountKey + ", the key " + SecretSASToken + ", or the keys " + SecretTenantID + ", " + SecretClientID + " and " + SecretClientSecret
	}
	return "the keys " + SecretAccessKeyID + " and " + SecretSecretAccessKey
}

// backend is a kind of store. Keys have the prefix, and are valid.
type backend interface {
	list(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error]
	// A negative length reads to the end.
	get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	attributes(ctx context.Context, key string) (Object, error)
	write(ctx context.Context, key string, content Content, options writeOptions) error
	newWriter(ctx context.Context, key string) (ObjectWriter, error)
	delete(ctx context.Context, key, version string) error
	remove(ctx context.Context, key string) error
	// removeUnfinished implements Bucket.RemoveUnfinished.
	removeUnfinished(ctx context.Context, folder string, before time.Time, dryRun bool) (keys []string, err error)
	folder(key string) (backend, string, error)
	check(ctx context.Context, folder string) error
	// now returns the store's time; zero without a clock.
	now(ctx context.Context, folder string) (time.Time, error)
	close() error
}

type writeOptions struct {
	exclusive bool // ErrExists for an object
	retention Retention
}

// Bucket is a location's store. It is safe for concurrent use.
type Bucket struct {
	backend backend
	prefix  string
}

var (
	_ Ranger  = (*Bucket)(nil)
	_ Writer  = (*Bucket)(nil)
	_ Remover = (*Bucket)(nil)
)

// Open returns a location's store, without a request; a folder must exist. Without its Secret's
// content, credentials come from the environment. The caller closes the Bucket.
func Open(ctx context.Context, location *enginev1alpha1.StorageLocationSpec, secret map[string][]byte) (*Bucket, error) {
	return OpenFollowing(ctx, location, secret, nil)
}

// OpenFollowing is Open with a Secret that is read again after a minute, and when the store refuses the
// credentials, unless the reader is nil.
func OpenFollowing(ctx context.Context, location *enginev1alpha1.StorageLocationSpec, secret map[string][]byte, again SecretReader) (*Bucket, error) {
	prefix, err := folderPrefix(location.Prefix)
	if err != nil {
		return nil, err
	}
	switch {
	case location.Provider == enginev1alpha1.StorageProviderFilesystem && location.Filesystem != nil:
		backend, err := openFilesystem(location.Filesystem.Path)
		if err != nil {
			return nil, err
		}
		return &Bucket{backend: backend, prefix: prefix}, nil
	case location.Provider == enginev1alpha1.StorageProviderS3 && location.S3 != nil:
		bucket, err := openS3(ctx, location.S3, newLocking(location.Lock, prefix), secret, again)
		if err != nil {
			return nil, err
		}
		if at := location.AsOf(); at != nil {
			return &Bucket{backend: newAsOf(bucket, at.Time), prefix: prefix}, nil
		}
		return &Bucket{backend: bucket, prefix: prefix}, nil
	case location.Provider == enginev1alpha1.StorageProviderGCS && location.GCS != nil:
		bucket, err := openGCS(ctx, location.GCS, secret, again)
		if err != nil {
			return nil, err
		}
		return &Bucket{backend: bucket, prefix: prefix}, nil
	case location.Provider == enginev1alpha1.StorageProviderAzure && location.Azure != nil:
		bucket, err := openAzure(location.Azure, secret, again)
		if err != nil {
			return nil, err
		}
		return &Bucket{backend: bucket, prefix: prefix}, nil
	default:
		return nil, fmt.Errorf("the storage location's spec.provider is %q: it must be filesystem, s3, gcs or azure, with the settings of the same name", location.Provider)
	}
}

// OverBlob returns a Bucket over a store of gocloud.dev, below a prefix without slashes at its ends.
// Close closes both.
func OverBlob(bucket *blob.Bucket, prefix string) (*Bucket, error) {
	prefix, err := folderPrefix(prefix)
	if err != nil {
		return nil, err
	}
	return &Bucket{backend: &blobBackend{bucket: bucket}, prefix: prefix}, nil
}

func folderPrefix(prefix string) (string, error) {
	if prefix == "" {
		return "", nil
	}
	if err := checkKey(prefix); err != nil {
		return "", fmt.Errorf("the storage location's spec.prefix: %w", err)
	}
	return prefix + "/", nil
}

// Check proves cheaply that the store answers and can be listed.
func (b *Bucket) Check(ctx context.Context) error {
	if err := b.checkFolder(ctx, ""); err != nil {
		return err
	}
	return explain("check", "", b.backend.check(ctx, b.prefix))
}

// Close frees the Bucket, after its operations.
func (b *Bucket) Close() error { return b.backend.close() }

// List implements Reader.
func (b *Bucket) List(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		if err := b.checkFolder(ctx, folder); err != nil {
			yield(Object{}, err)
			return
		}
		if options.StartAfter != "" {
			options.StartAfter = b.prefix + options.StartAfter
		}
		var failure error
		defer func() { b.requested(ctx, RequestList, failure) }()
		for object, err := range b.backend.list(ctx, b.prefix+folder, options) {
			if err != nil {
				failure = explain("list", folder, err)
				yield(Object{}, failure)
				return
			}
			object.Key = strings.TrimPrefix(object.Key, b.prefix)
			if !yield(object, nil) {
				return
			}
		}
	}
}

// Folder returns a Bucket of one folder, which replaces b: close only one. A folder store keeps it,
// even if another is mounted over it. It fails with ErrNotFound for a missing one.
func (b *Bucket) Folder(ctx context.Context, folder string) (*Bucket, error) {
	if err := b.checkFolder(ctx, folder); err != nil {
		return nil, err
	}
	inner, prefix, err := b.backend.folder(b.prefix + folder)
	if err != nil {
		return nil, explain("open", folder, err)
	}
	return &Bucket{backend: inner, prefix: prefix}, nil
}

// Get implements Reader.
func (b *Bucket) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	return b.GetRange(ctx, key, 0, -1)
}

// GetRange implements Ranger.
func (b *Bucket) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if err := b.checkKey(ctx, key); err != nil {
		return nil, err
	}
	if offset < 0 || length == 0 {
		return nil, fmt.Errorf("get %s: %d bytes from %d are no part of an object", key, length, offset)
	}
	content, err := b.backend.get(ctx, b.prefix+key, offset, length)
	err = explain("get", key, err)
	b.requested(ctx, RequestOther, err)
	if err != nil {
		return nil, err
	}
	return &reader{content: content, key: key}, nil
}

// Attributes implements Reader.
func (b *Bucket) Attributes(ctx context.Context, key string) (Object, error) {
	if err := b.checkKey(ctx, key); err != nil {
		return Object{}, err
	}
	object, err := b.backend.attributes(ctx, b.prefix+key)
	err = explain("find", key, err)
	b.requested(ctx, RequestOther, err)
	if err != nil {
		return Object{}, err
	}
	object.Key = key
	return object, nil
}

// Create implements Writer.
func (b *Bucket) Create(ctx context.Context, key string, content []byte) error {
	return b.write(ctx, "create", key, bytesContent(content), writeOptions{exclusive: true})
}

// Put implements Writer.
func (b *Bucket) Put(ctx context.Context, key string, content []byte) error {
	return b.PutContent(ctx, key, bytesContent(content), Retention{})
}

// PutContent writes or replaces an object durably, in one request, without a copy.
func (b *Bucket) PutContent(ctx context.Context, key string, content Content, retention Retention) error {
	return b.write(ctx, "write", key, content, writeOptions{retention: retention})
}

func (b *Bucket) write(ctx context.Context, operation, key string, content Content, options writeOptions) error {
	if err := b.checkKey(ctx, key); err != nil {
		return err
	}
	err := explain(operation, key, b.backend.write(ctx, b.prefix+key, content, options))
	if options.retention.Mode != "" {
		return lacksRight(err, lockedWrite)
	}
	return b.explainWrite(key, err)
}

func (b *Bucket) explainWrite(key string, err error) error {
	if b.locking() != nil && isLocked(key) {
		return lacksRight(err, lockedWrite)
	}
	return err
}

type bytesContent []byte

func (b bytesContent) Length() int { return len(b) }

func (b bytesContent) Reader() io.ReadSeekCloser { return bytesReader{bytes.NewReader(b)} }

func (b bytesContent) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b)
	return int64(n), err
}

type bytesReader struct{ *bytes.Reader }

func (bytesReader) Close() error { return nil }

// NewWriter implements Writer.
func (b *Bucket) NewWriter(ctx context.Context, key string) (ObjectWriter, error) {
	if err := b.checkKey(ctx, key); err != nil {
		return nil, err
	}
	w, err := b.backend.newWriter(ctx, b.prefix+key)
	if err != nil {
		return nil, b.explainWrite(key, explain("write", key, err))
	}
	return &writer{ObjectWriter: w, bucket: b, key: key}, nil
}

// RemoveUnfinished removes temporary files, or parts in S3, below a folder, of writes that began before an
// instant by the store's clock. The caller knows that no writer takes so long. It returns their keys; a
// dry run removes nothing. A store that can't list them returns errors.ErrUnsupported.
func (b *Bucket) RemoveUnfinished(ctx context.Context, folder string, before time.Time, dryRun bool) (keys []string, err error) {
	if err := b.checkFolder(ctx, folder); err != nil {
		return nil, err
	}
	keys, err = b.backend.removeUnfinished(ctx, b.prefix+folder, before, dryRun)
	for i, key := range keys {
		keys[i] = strings.TrimPrefix(key, b.prefix)
	}
	return keys, explain("remove what is unfinished in", folder, err)
}

// Delete implements Remover.
func (b *Bucket) Delete(ctx context.Context, object Object) error {
	if object.IsFolder || object.Version == "" {
		return fmt.Errorf("delete %s: it must be an object as it was listed", object.Key)
	}
	checked := object.Key
	if isTemporary(path.Base(checked)) {
		checked = path.Dir(checked)
	}
	if err := b.checkKey(ctx, checked); err != nil {
		return err
	}
	err := explain("delete", object.Key, b.backend.delete(ctx, b.prefix+object.Key, object.Version))
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// Remove removes any version of an object in one request, for names that are used once. A missing
// object is no error.
func (b *Bucket) Remove(ctx context.Context, key string) error {
	if err := b.checkKey(ctx, key); err != nil {
		return err
	}
	err := explain("remove", key, b.backend.remove(ctx, b.prefix+key))
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// checkKey also checks the context, which some backends ignore.
func (b *Bucket) checkKey(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if names, ok := b.backend.(interface{ checkName(key string) error }); ok {
		if err := names.checkName(key); err != nil {
			return err
		}
	}
	if len(b.prefix)+len(key) > maxKeyBytes {
		return fmt.Errorf("the key %q is too long: with the location's prefix it may have %d bytes", key, maxKeyBytes)
	}
	return explain("use", key, ctx.Err())
}

func (b *Bucket) checkFolder(ctx context.Context, folder string) error {
	if folder == "" {
		return explain("use", "", ctx.Err())
	}
	if !strings.HasSuffix(folder, "/") {
		return fmt.Errorf("%q is not a folder: it must end in a slash", folder)
	}
	return b.checkKey(ctx, strings.TrimSuffix(folder, "/"))
}

// checkKey allows keys that every store keeps unchanged.
func checkKey(key string) error {
	switch {
	case key == "" || key != path.Clean(key) || key[0] == '/' || key == "." || key == ".." || strings.HasPrefix(key, "../"):
		return fmt.Errorf("%q can't be a key: it must be a relative path without empty, . or .. segments", key)
	case !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == '\x7f' }):
		return fmt.Errorf("%q can't be a key: it must be UTF-8 without control characters", key)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if isTemporary(segment) {
			return fmt.Errorf("%q can't be a key: names like %s are for unfinished writes", key, segment)
		}
	}
	return nil
}

type reader struct {
	content io.ReadCloser
	key     string
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.content.Read(p)
	if err != nil && err != io.EOF {
		err = explain("get", r.key, err)
	}
	return n, err
}

func (r *reader) Close() error { return r.content.Close() }

func (r *reader) Version() string { return VersionOf(r.content) }

type writer struct {
	ObjectWriter
	bucket *Bucket
	key    string
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.ObjectWriter.Write(p)
	return n, w.bucket.explainWrite(w.key, explain("write", w.key, err))
}

func (w *writer) Commit() error {
	return w.bucket.explainWrite(w.key, explain("write", w.key, w.ObjectWriter.Commit()))
}
