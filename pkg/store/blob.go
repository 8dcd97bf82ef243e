// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"gocloud.dev/blob"
)

const (
	maxPage = 1000
	// Allows 80 GB in S3's 10,000 parts.
	partBytes     = 8 << 20
	partsInFlight = 2
	abortTimeout  = 10 * time.Second
	// The store would delay the first bytes to guess it.
	contentType = "application/octet-stream"
)

type blobBackend struct {
	bucket *blob.Bucket
	s3     *s3.Client
	name   string
	lock   *locking
	// removing excludes this process's writes during a removal, if that can't be conditional.
	removing sync.RWMutex
}

func (b *blobBackend) list(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error] {
	listing := &blob.ListOptions{Prefix: folder + options.Beginning}
	if !options.Recursive {
		listing.Delimiter = "/"
	}
	if options.StartAfter != "" {
		listing.BeforeList = func(as func(any) bool) error {
			var request *s3.ListObjectsV2Input
			// Only S3 can start in the middle, on its first page.
			if as(&request) && request.ContinuationToken == nil {
				request.StartAfter = aws.String(options.StartAfter)
			}
			return nil
		}
	}
	return func(yield func(Object, error) bool) {
		for token := blob.FirstPageToken; len(token) > 0; {
			page, next, err := b.bucket.ListPage(ctx, token, maxPage, listing)
			if err != nil {
				yield(Object{}, err)
				return
			}
			for _, object := range page {
				// Some consoles create an object for the folder.
				if object.Key <= options.StartAfter || object.Key == folder {
					continue
				}
				if !yield(Object{Key: object.Key, IsFolder: object.IsDir, Size: object.Size, ModTime: object.ModTime, Version: listedVersion(object)}, nil) {
					return
				}
			}
			token = next
		}
	}
}

func (b *blobBackend) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	content, err := b.bucket.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return nil, err
	}
	return blobReader{content}, nil
}

type blobReader struct{ *blob.Reader }

// Version implements Versioned. Only S3 sends the version with the content.
func (r blobReader) Version() string {
	var answer s3.GetObjectOutput
	if r.As(&answer) {
		return aws.ToString(answer.ETag)
	}
	return ""
}

func (b *blobBackend) attributes(ctx context.Context, key string) (Object, error) {
	attributes, err := b.bucket.Attributes(ctx, key)
	if err != nil {
		return Object{}, err
	}
	version := plainVersion(attributes.MD5, attributes.ModTime)
	var answer s3.HeadObjectOutput
	if attributes.As(&answer) {
		version = aws.ToString(answer.ETag)
	}
	return Object{Size: attributes.Size, ModTime: attributes.ModTime, Version: version}, nil
}

func listedVersion(object *blob.ListObject) string {
	var listed s3types.Object
	if object.As(&listed) {
		return aws.ToString(listed.ETag)
	}
	if object.IsDir {
		return ""
	}
	return plainVersion(object.MD5, object.ModTime)
}

func plainVersion(md5 []byte, written time.Time) string {
	return fmt.Sprintf("%x-%d", md5, written.UnixNano())
}

func (b *blobBackend) write(ctx context.Context, key string, content Content, options writeOptions) error {
	body := content.Reader()
	defer body.Close()
	if b.s3 == nil {
		b.removing.RLock()
		defer b.removing.RUnlock()
		return b.bucket.Upload(ctx, key, body, &blob.WriterOptions{ContentType: contentType, IfNotExist: options.exclusive})
	}
	// gocloud.dev would copy and split the content.
	request := &s3.PutObjectInput{
		Bucket:        aws.String(b.name),
		Key:           aws.String(key),
		Body:          body,
		ContentLength: aws.Int64(int64(content.Length())),
		ContentType:   aws.String(contentType),
	}
	if options.exclusive {
		request.IfNoneMatch = aws.String("*")
	}
	if retention := options.retention; retention.Mode != "" {
		request.ObjectLockMode = s3types.ObjectLockMode(retention.Mode)
		request.ObjectLockRetainUntilDate = aws.Time(retention.Until)
	}
	_, err := b.s3.PutObject(ctx, request)
	return err
}

func (b *blobBackend) newWriter(ctx context.Context, key string) (ObjectWriter, error) {
	ctx, cancel := context.WithCancel(ctx)
	w, err := b.bucket.NewWriter(ctx, key, &blob.WriterOptions{
		ContentType: contentType,
		BeforeWrite: b.tuneUpload,
		IfNotExist:  true,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return &blobWriter{Writer: w, backend: b, ctx: ctx, cancel: cancel}, nil
}

// tuneUpload bounds an upload's memory in S3, and removes parts even after the context's end, unlike
// the SDK.
func (b *blobBackend) tuneUpload(as func(any) bool) error {
	var manager *transfermanager.Client
	if b.s3 != nil && as(&manager) {
		*manager = *transfermanager.New(b.s3, func(o *transfermanager.Options) {
			o.PartSizeBytes = partBytes
			o.MultipartUploadThreshold = partBytes
			o.Concurrency = partsInFlight
			o.FailTimeout = abortTimeout
			o.RequestChecksumCalculation = b.s3.Options().RequestChecksumCalculation
		})
	}
	return nil
}

// longAgo is when a description is too old. Wall clocks advance while a machine sleeps.
const longAgo = time.Second

func (b *blobBackend) delete(ctx context.Context, key, version string) error {
	if b.s3 == nil {
		b.removing.Lock()
		defer b.removing.Unlock()
	}
	for {
		asked := time.Now().Round(0)
		found, err := b.attributes(ctx, key)
		switch {
		case err != nil:
			return err
		case found.Version != version:
			return ErrChanged
		case time.Now().Round(0).Sub(asked).Abs() > longAgo && ctx.Err() == nil:
			continue
		case b.s3 == nil:
			return b.bucket.Delete(ctx, key)
		}
		_, err = b.s3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(b.name), Key: aws.String(key), IfMatch: aws.String(version)})
		if errors.Is(explain("", "", err), ErrExists) {
			return ErrChanged // S3's error for failed conditions
		}
		return err
	}
}

func (b *blobBackend) remove(ctx context.Context, key string) error {
	if b.s3 == nil {
		return b.bucket.Delete(ctx, key)
	}
	// gocloud.dev would first check that it exists.
	_, err := b.s3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(b.name), Key: aws.String(key)})
	return err
}

func (b *blobBackend) removeUnfinished(ctx context.Context, folder string, before time.Time, dryRun bool) (keys []string, err error) {
	if b.s3 == nil {
		return nil, nil
	}
	uploads := s3.NewListMultipartUploadsPaginator(b.s3, &s3.ListMultipartUploadsInput{Bucket: aws.String(b.name), Prefix: aws.String(folder)})
	for uploads.HasMorePages() {
		page, err := uploads.NextPage(ctx)
		if status(err) == http.StatusNotImplemented {
			return keys, errors.ErrUnsupported
		}
		if err != nil {
			return keys, err
		}
		for _, upload := range page.Uploads {
			if !strings.HasPrefix(aws.ToString(upload.Key), folder) {
				continue // the store ignores the prefix
			}
			if upload.Initiated == nil || !upload.Initiated.Before(before) {
				continue
			}
			if !dryRun {
				_, err := b.s3.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: aws.String(b.name), Key: upload.Key, UploadId: upload.UploadId})
				if gone := (*s3types.NoSuchUpload)(nil); err != nil && !errors.As(err, &gone) {
					return keys, err
				}
			}
			keys = append(keys, aws.ToString(upload.Key))
		}
	}
	return keys, nil
}

func (b *blobBackend) folder(key string) (backend, string, error) { return b, key, nil }

func (b *blobBackend) check(ctx context.Context, folder string) error {
	_, _, err := b.bucket.ListPage(ctx, blob.FirstPageToken, 1, &blob.ListOptions{Prefix: folder})
	return err
}

func (b *blobBackend) now(ctx context.Context, folder string) (time.Time, error) {
	if b.s3 == nil {
		return time.Time{}, nil
	}
	listed, err := b.s3.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(b.name), Prefix: aws.String(folder), MaxKeys: aws.Int32(1)})
	if err != nil {
		return time.Time{}, err
	}
	theirs, _ := awsmiddleware.GetServerTime(listed.ResultMetadata)
	return theirs, nil
}

func (b *blobBackend) close() error { return b.bucket.Close() }

// blobWriter makes the end of a write explicit: gocloud.dev commits on Close, unless the context has
// ended.
type blobWriter struct {
	*blob.Writer
	backend *blobBackend
	ctx     context.Context
	cancel  context.CancelFunc
	ended   bool
}

func (w *blobWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

func (w *blobWriter) Commit() error {
	if w.ended {
		return errEnded
	}
	if err := w.ctx.Err(); err != nil {
		w.Abort()
		return err
	}
	w.ended = true
	defer w.cancel()
	w.backend.removing.RLock()
	defer w.backend.removing.RUnlock()
	err := w.Writer.Close()
	if err != nil && w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	return err
}

func (w *blobWriter) Abort() {
	if w.ended {
		return
	}
	w.ended = true
	w.cancel()
	_ = w.Writer.Close()
}
