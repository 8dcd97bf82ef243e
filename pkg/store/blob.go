// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
)

// Nothing of ours is served to browsers, and guessing the type would hold back
// the first bytes.
const contentType = "application/octet-stream"

// blobBackend is a store of gocloud.dev.
type blobBackend struct {
	bucket *blob.Bucket
}

func (b *blobBackend) list(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error] {
	listing := &blob.ListOptions{Prefix: folder}
	if !options.Recursive {
		listing.Delimiter = "/"
	}
	if options.StartAfter != "" {
		listing.BeforeList = func(as func(any) bool) error {
			var request *s3.ListObjectsV2Input
			// Only S3 can start in the middle, and only before its first page; for
			// others the keys are left out below.
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
				// Some consoles make an object for the folder itself.
				if object.Key <= options.StartAfter || object.Key == folder {
					continue
				}
				if !yield(Object{Key: object.Key, IsFolder: object.IsDir, Size: object.Size, ModTime: object.ModTime}, nil) {
					return
				}
			}
			token = next
		}
	}
}

const maxPage = 1000 // of S3

func (b *blobBackend) get(ctx context.Context, key string) (io.ReadCloser, error) {
	return b.bucket.NewReader(ctx, key, nil)
}

func (b *blobBackend) attributes(ctx context.Context, key string) (Object, error) {
	attributes, err := b.bucket.Attributes(ctx, key)
	if err != nil {
		return Object{}, err
	}
	return Object{Size: attributes.Size, ModTime: attributes.ModTime}, nil
}

func (b *blobBackend) write(ctx context.Context, key string, content []byte, exclusive bool) error {
	// Upload knows the length, and so makes one request and no copy.
	return b.bucket.Upload(ctx, key, bytes.NewReader(content), &blob.WriterOptions{
		ContentType: contentType,
		IfNotExist:  exclusive,
	})
}

func (b *blobBackend) newWriter(ctx context.Context, key string) (ObjectWriter, error) {
	ctx, cancel := context.WithCancel(ctx)
	w, err := b.bucket.NewWriter(ctx, key, &blob.WriterOptions{
		ContentType:    contentType,
		BufferSize:     partBytes,
		MaxConcurrency: partsInFlight,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return &blobWriter{Writer: w, ctx: ctx, cancel: cancel}, nil
}

func (b *blobBackend) delete(ctx context.Context, key string) error {
	return b.bucket.Delete(ctx, key)
}

func (b *blobBackend) deleteFolder(ctx context.Context, folder string) error {
	for object, err := range b.list(ctx, folder, ListOptions{Recursive: true}) {
		if err != nil {
			return err
		}
		if err := b.delete(ctx, object.Key); err != nil && !errors.Is(explain("", "", err), ErrNotFound) {
			return err
		}
	}
	return nil
}

func (b *blobBackend) check(ctx context.Context, folder string) error {
	_, _, err := b.bucket.ListPage(ctx, blob.FirstPageToken, 1, &blob.ListOptions{Prefix: folder})
	return err
}

func (b *blobBackend) close() error { return b.bucket.Close() }

// blobWriter makes the end of a write explicit: gocloud.dev commits on Close
// unless the context has ended.
type blobWriter struct {
	*blob.Writer
	ctx    context.Context
	cancel context.CancelFunc
	ended  bool
}

func (w *blobWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

func (w *blobWriter) Commit() error {
	if w.ended {
		return errors.New("the write has already ended")
	}
	w.ended = true
	defer w.cancel()
	return w.Writer.Close()
}

func (w *blobWriter) Abort() {
	if w.ended {
		return
	}
	w.ended = true
	w.cancel()
	_ = w.Writer.Close() // its error is the cancellation
}
