// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// ErrAsOf: nothing is written to a store that is read as of an instant.
var ErrAsOf = errors.New("the storage location shows the bucket as it was")

type asOfError struct{ text string }

func (e *asOfError) Error() string { return e.text }

func (e *asOfError) Is(target error) bool { return target == ErrAsOf }

const (
	lookupPage       = 20
	maxKnownVersions = 10_000
	lastName         = "\U0010ffff"
)

// asOfBackend shows a versioned bucket of S3 as it was at an instant. Of each key it shows the newest
// version until then, unless that is a delete marker. It writes nothing.
//
// Of versions with one time, since some stores round, the last is shown, and a version before a delete
// marker, if neither is the latest.
type asOfBackend struct {
	client *s3.Client
	name   string
	at     time.Time

	mu    sync.Mutex
	known map[string]string
}

func newAsOf(of *blobBackend, at time.Time) *asOfBackend {
	return &asOfBackend{client: of.s3, name: of.name, at: at, known: map[string]string{}}
}

type version struct {
	object   Object
	id       string
	isMarker bool
	isLatest bool
}

func (v *version) supersedes(other *version) bool {
	switch order := v.object.ModTime.Compare(other.object.ModTime); {
	case order != 0:
		return order > 0
	case v.isMarker == other.isMarker:
		return false // the newest is listed first
	case v.isLatest || other.isLatest:
		return v.isLatest
	default:
		return other.isMarker
	}
}

// page lists versions in the keys' order, after a key or one of its versions.
func (b *asOfBackend) page(ctx context.Context, request *s3.ListObjectVersionsInput) (versions []version, answer *s3.ListObjectVersionsOutput, err error) {
	request.Bucket = aws.String(b.name)
	if answer, err = b.client.ListObjectVersions(ctx, request); err != nil {
		return nil, nil, err
	}
	now, ok := awsmiddleware.GetServerTime(answer.ResultMetadata)
	if !ok {
		now = time.Now()
	}
	// Writes of the present second may be stamped with its beginning.
	if !b.at.Before(now.Truncate(time.Second)) {
		return nil, nil, &asOfError{fmt.Sprintf("the storage location's spec.s3.asOf, %s, is not in the past by the store's clock, which says %s: make a location with an earlier instant",
			b.at.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))}
	}
	objects, markers := answer.Versions, answer.DeleteMarkers
	for len(objects)+len(markers) > 0 {
		if len(markers) == 0 || len(objects) > 0 && aws.ToString(objects[0].Key) <= aws.ToString(markers[0].Key) {
			of := objects[0]
			versions = append(versions, version{
				object: Object{Key: aws.ToString(of.Key), Size: aws.ToInt64(of.Size), ModTime: aws.ToTime(of.LastModified), Version: aws.ToString(of.ETag)},
				id:     aws.ToString(of.VersionId), isLatest: aws.ToBool(of.IsLatest),
			})
			objects = objects[1:]
			continue
		}
		of := markers[0]
		versions = append(versions, version{
			object:   Object{Key: aws.ToString(of.Key), ModTime: aws.ToTime(of.LastModified)},
			isMarker: true, isLatest: aws.ToBool(of.IsLatest),
		})
		markers = markers[1:]
	}
	return versions, answer, nil
}

// shown yields the shown versions of keys with a prefix. jump may return a key to continue after.
func (b *asOfBackend) shown(ctx context.Context, prefix, after string, jump func() string) iter.Seq2[version, error] {
	return func(yield func(version, error) bool) {
		request := &s3.ListObjectVersionsInput{Prefix: aws.String(prefix), MaxKeys: aws.Int32(maxPage)}
		if after != "" {
			request.KeyMarker = aws.String(after)
		}
		var best *version
		key := after
		flush := func() bool {
			found := best
			best = nil
			return found == nil || found.isMarker || yield(*found, nil)
		}
		for {
			versions, answer, err := b.page(ctx, request)
			if err != nil {
				yield(version{}, err)
				return
			}
			for _, v := range versions {
				if v.object.Key < key {
					yield(version{}, errOrder)
					return
				}
				if v.object.Key != key {
					if !flush() {
						return
					}
					key = v.object.Key
				}
				if key > after && !v.object.ModTime.After(b.at) && (best == nil || v.supersedes(best)) {
					best = &v
				}
			}
			if !aws.ToBool(answer.IsTruncated) {
				flush()
				return
			}
			request.KeyMarker, request.VersionIdMarker = answer.NextKeyMarker, answer.NextVersionIdMarker
			if to := jump(); to > aws.ToString(request.KeyMarker) {
				request.KeyMarker, request.VersionIdMarker, best = aws.String(to), nil, nil
			}
		}
	}
}

// list lists without a delimiter, since a folder appears only if it had an object, and skips its other
// pages.
func (b *asOfBackend) list(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		inside := ""
		jump := func() string {
			if inside == "" {
				return ""
			}
			return inside + lastName
		}
		after := options.StartAfter
		if !options.Recursive && strings.HasSuffix(after, "/") {
			after += lastName
		}
		for v, err := range b.shown(ctx, folder+options.Beginning, after, jump) {
			if err != nil {
				yield(Object{}, err)
				return
			}
			key := v.object.Key
			b.remember(key, v.id)
			if key == folder || inside != "" && strings.HasPrefix(key, inside) {
				continue
			}
			inside = ""
			object := v.object
			if name, _, ok := strings.Cut(key[len(folder):], "/"); ok && !options.Recursive {
				inside = folder + name + "/"
				object = Object{Key: inside, IsFolder: true}
			}
			if object.Key > options.StartAfter && !yield(object, nil) {
				return
			}
		}
	}
}

func (b *asOfBackend) remember(key, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.known) >= maxKnownVersions {
		clear(b.known)
	}
	b.known[key] = id
}

// find returns a key's shown version. It lists no other key: longer keys come later.
func (b *asOfBackend) find(ctx context.Context, key string) (version, error) {
	request := &s3.ListObjectVersionsInput{Prefix: aws.String(key), MaxKeys: aws.Int32(lookupPage)}
	var best *version
	for more := true; more; {
		versions, answer, err := b.page(ctx, request)
		if err != nil {
			return version{}, err
		}
		more = aws.ToBool(answer.IsTruncated)
		for _, v := range versions {
			if v.object.Key != key {
				more = false
				break
			}
			if !v.object.ModTime.After(b.at) && (best == nil || v.supersedes(best)) {
				best = &v
			}
		}
		request.KeyMarker, request.VersionIdMarker = answer.NextKeyMarker, answer.NextVersionIdMarker
	}
	if best == nil || best.isMarker {
		return version{}, ErrNotFound
	}
	b.remember(key, best.id)
	return *best, nil
}

func (b *asOfBackend) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	b.mu.Lock()
	id, known := b.known[key]
	b.mu.Unlock()
	if known {
		content, err := b.getVersion(ctx, key, id, offset, length)
		if !errors.Is(explain("", "", err), ErrNotFound) {
			return content, err
		}
	}
	found, err := b.find(ctx, key)
	if err != nil {
		return nil, err
	}
	return b.getVersion(ctx, key, found.id, offset, length)
}

func (b *asOfBackend) getVersion(ctx context.Context, key, id string, offset, length int64) (io.ReadCloser, error) {
	request := &s3.GetObjectInput{Bucket: aws.String(b.name), Key: aws.String(key), VersionId: aws.String(id)}
	switch {
	case length >= 0:
		request.Range = aws.String(fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	case offset > 0:
		request.Range = aws.String(fmt.Sprintf("bytes=%d-", offset))
	}
	answer, err := b.client.GetObject(ctx, request)
	if err != nil {
		return nil, err
	}
	return versionedBody{answer.Body, aws.ToString(answer.ETag)}, nil
}

type versionedBody struct {
	io.ReadCloser
	version string
}

// Version implements Versioned.
func (v versionedBody) Version() string { return v.version }

func (b *asOfBackend) attributes(ctx context.Context, key string) (Object, error) {
	found, err := b.find(ctx, key)
	return found.object, err
}

func (b *asOfBackend) refuse() error {
	return &asOfError{fmt.Sprintf("the storage location shows the bucket as of %s: nothing can be written; use the location without spec.s3.asOf", b.at.UTC().Format(time.RFC3339))}
}

func (b *asOfBackend) write(context.Context, string, Content, writeOptions) error { return b.refuse() }

func (b *asOfBackend) newWriter(context.Context, string) (ObjectWriter, error) {
	return nil, b.refuse()
}

func (b *asOfBackend) delete(context.Context, string, string) error { return b.refuse() }

func (b *asOfBackend) remove(context.Context, string) error { return b.refuse() }

func (b *asOfBackend) removeUnfinished(context.Context, string, time.Time, bool) ([]string, error) {
	return nil, b.refuse()
}

func (b *asOfBackend) folder(key string) (backend, string, error) { return b, key, nil }

// check fails without versioning, since a suspended one loses versions.
func (b *asOfBackend) check(ctx context.Context, folder string) error {
	versioning, err := b.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: aws.String(b.name)})
	if err != nil {
		return err
	}
	switch versioning.Status {
	case "":
		return &asOfError{"the bucket has no versioning, so it can't be read as of an earlier time: remove the location, and turn on versioning for the future"}
	case s3types.BucketVersioningStatusSuspended:
		return &asOfError{"the versioning of the bucket is suspended: versions may have been lost since, so it is not shown as it was. Turn versioning on, and copy single versions by hand"}
	}
	_, err = b.now(ctx, folder)
	return err
}

func (b *asOfBackend) now(ctx context.Context, folder string) (time.Time, error) {
	_, answer, err := b.page(ctx, &s3.ListObjectVersionsInput{Prefix: aws.String(folder), MaxKeys: aws.Int32(1)})
	if err != nil {
		return time.Time{}, err
	}
	theirs, _ := awsmiddleware.GetServerTime(answer.ResultMetadata)
	return theirs, nil
}

func (b *asOfBackend) countsRequests() {}

func (b *asOfBackend) close() error { return nil }
