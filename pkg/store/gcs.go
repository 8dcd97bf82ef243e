// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	gcs "google.golang.org/api/storage/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

const (
	gcsEndpoint = "https://storage.googleapis.com"
	speaksGCS   = "the protocol of Google Cloud Storage"
)

// gcsBackend keeps objects in a bucket of Google Cloud Storage, with the generation as version. The
// larger client cloud.google.com/go/storage repeats requests without a bound, takes a missing bucket
// for a missing object, and links gRPC and xDS.
type gcsBackend struct {
	objects  *gcs.ObjectsService
	client   *http.Client
	endpoint string
	bucket   string
}

func openGCS(ctx context.Context, location *enginev1alpha1.GCSLocation, secret map[string][]byte, again SecretReader) (*gcsBackend, error) {
	base := newTransport()
	identity, err := gcsIdentityOf(location, secret, again, base)
	if err != nil {
		return nil, err
	}
	b := &gcsBackend{
		client:   &http.Client{Transport: &gcsTransport{base: base, identity: identity}},
		endpoint: cmp.Or(location.Endpoint, gcsEndpoint),
		bucket:   location.Bucket,
	}
	service, err := gcs.NewService(ctx, option.WithHTTPClient(b.client), option.WithoutAuthentication(), option.WithEndpoint(b.endpoint+"/storage/v1/"))
	if err != nil {
		return nil, fmt.Errorf("the storage location's spec.gcs: %w", err)
	}
	b.objects = service.Objects
	return b, nil
}

const (
	gcsFields      = "kind,name,size,generation,timeCreated,crc32c"
	gcsItems       = googleapi.Field("items(name,size,generation,timeCreated)")
	gcsListingKind = "storage#objects"
	gcsObjectKind  = "storage#object"
)

func gcsObject(object *gcs.Object) (Object, error) {
	written, err := time.Parse(time.RFC3339, object.TimeCreated)
	if err != nil || object.Generation == 0 {
		return Object{}, &foreignAnswer{speaks: speaksGCS, sent: "an object without a time or a generation"}
	}
	return Object{Key: object.Name, Size: int64(object.Size), ModTime: written, Version: strconv.FormatInt(object.Generation, 10)}, nil
}

func (b *gcsBackend) listed(ctx context.Context, folder string, options ListOptions, token string, most int64) (*gcs.Objects, error) {
	call := b.objects.List(b.bucket).Prefix(folder+options.Beginning).MaxResults(most).Fields("kind", "nextPageToken", "prefixes", gcsItems)
	if !options.Recursive {
		call.Delimiter("/")
	}
	if options.StartAfter != "" {
		call.StartOffset(options.StartAfter) // inclusive
	}
	if token != "" {
		call.PageToken(token)
	}
	answer, err := call.Context(ctx).Do()
	if err == nil && answer.Kind != gcsListingKind {
		return nil, &foreignAnswer{speaks: speaksGCS, sent: "no listing"}
	}
	return answer, err
}

func (b *gcsBackend) list(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error] {
	return listPages(folder, options, func(token string) (page, error) {
		answer, err := b.listed(ctx, folder, options, token, maxPage)
		if err != nil {
			return page{}, err
		}
		got := page{next: answer.NextPageToken}
		for _, item := range answer.Items {
			object, err := gcsObject(item)
			if err != nil {
				return page{}, err
			}
			got.objects = append(got.objects, object)
		}
		for _, prefix := range answer.Prefixes {
			got.objects = append(got.objects, Object{Key: prefix, IsFolder: true})
		}
		return got, nil
	})
}

func (b *gcsBackend) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	call := b.objects.Get(b.bucket, key).Context(ctx)
	switch {
	case length > 0:
		call.Header().Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	case offset > 0:
		call.Header().Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	answer, err := call.Download()
	if err != nil {
		return nil, err
	}
	r := &gcsReader{ReadCloser: answer.Body, version: answer.Header.Get("X-Goog-Generation")}
	whole := answer.StatusCode != http.StatusPartialContent
	switch {
	case r.version == "" || whole && offset > 0:
		_ = answer.Body.Close()
		return nil, &foreignAnswer{speaks: speaksGCS, sent: "an object without a generation, or not the part that was asked for"}
	case whole && length > 0:
		r.ReadCloser = readCloser{io.LimitReader(answer.Body, length), answer.Body}
	case whole:
		r.want = gcsChecksum(answer.Header)
		r.sum = crc32.New(castagnoli)
	}
	return r, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeCRC32C(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

func gcsChecksum(header http.Header) string {
	for _, value := range header.Values("X-Goog-Hash") {
		for sum := range strings.SplitSeq(value, ",") {
			if sum, found := strings.CutPrefix(strings.TrimSpace(sum), "crc32c="); found {
				return sum
			}
		}
	}
	return ""
}

type gcsReader struct {
	io.ReadCloser
	version string
	sum     hash.Hash32
	want    string
}

func (r *gcsReader) Version() string { return r.version }

func (r *gcsReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if r.want != "" {
		r.sum.Write(p[:n])
		if err == io.EOF && encodeCRC32C(r.sum.Sum32()) != r.want {
			err = errChecksum
		}
	}
	return n, err
}

func (b *gcsBackend) attributes(ctx context.Context, key string) (Object, error) {
	object, err := b.objects.Get(b.bucket, key).Context(ctx).Fields(gcsFields).Do()
	if err != nil {
		return Object{}, err
	}
	if object.Kind != gcsObjectKind {
		return Object{}, &foreignAnswer{speaks: speaksGCS, sent: "no object"}
	}
	return gcsObject(object)
}

// write makes one request. The API's client would not know the length, and could not repeat it.
func (b *gcsBackend) write(ctx context.Context, key string, content Content, options writeOptions) error {
	if options.retention.Mode != "" {
		return errors.ErrUnsupported
	}
	sum := crc32.New(castagnoli)
	if _, err := content.WriteTo(sum); err != nil {
		return err
	}
	attributes, err := json.Marshal(&gcs.Object{Name: key, ContentType: contentType, Crc32c: encodeCRC32C(sum.Sum32())})
	if err != nil {
		return err
	}
	boundary := rand.Text()
	before := fmt.Sprintf("--%s\r\nContent-Type: application/json\r\n\r\n%s\r\n--%s\r\nContent-Type: %s\r\n\r\n", boundary, attributes, boundary, contentType)
	after := fmt.Sprintf("\r\n--%s--\r\n", boundary)
	body := func() (io.ReadCloser, error) {
		reader := content.Reader()
		return readCloser{io.MultiReader(strings.NewReader(before), reader, strings.NewReader(after)), reader}, nil
	}
	query := url.Values{"uploadType": {"multipart"}, "fields": {gcsFields}}
	if options.exclusive {
		query.Set("ifGenerationMatch", "0")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.endpoint+"/upload/storage/v1/b/"+url.PathEscape(b.bucket)+"/o?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "multipart/related; boundary="+boundary)
	request.ContentLength = int64(len(before) + content.Length() + len(after))
	request.GetBody = body
	request.Body, _ = body()
	response, err := b.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var made gcs.Object
	if err := json.NewDecoder(response.Body).Decode(&made); err != nil {
		return err
	}
	return gcsWrote(&made)
}

func gcsWrote(object *gcs.Object) error {
	if object.Kind != gcsObjectKind {
		return &foreignAnswer{speaks: speaksGCS, sent: "no object"}
	}
	_, err := gcsObject(object)
	return err
}

func (b *gcsBackend) newWriter(ctx context.Context, key string) (ObjectWriter, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &bufferedWriter{ctx: ctx, cancel: cancel, most: partBytes,
		small: func(content []byte) error {
			return b.write(ctx, key, bytesContent(content), writeOptions{exclusive: true})
		},
		large: func(content io.Reader) error {
			made, err := b.objects.Insert(b.bucket, &gcs.Object{Name: key, ContentType: contentType}).
				Media(content, googleapi.ChunkSize(partBytes), googleapi.ContentType(contentType), googleapi.EnableAutoChecksum()).
				IfGenerationMatch(0).Fields(gcsFields).Context(ctx).Do()
			if err != nil {
				return err
			}
			return gcsWrote(made)
		},
	}, nil
}

func (b *gcsBackend) delete(ctx context.Context, key, version string) error {
	generation, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return ErrChanged // a version of another kind of store
	}
	err = b.objects.Delete(b.bucket, key).IfGenerationMatch(generation).Context(ctx).Do()
	if errors.Is(explain("", "", err), ErrExists) {
		return changedOrGone(ctx, b, key) // the error for failed conditions
	}
	return err
}

func (b *gcsBackend) remove(ctx context.Context, key string) error {
	return b.objects.Delete(b.bucket, key).Context(ctx).Do()
}

// removeUnfinished does nothing: unfinished uploads cost nothing, and end after a week.
func (b *gcsBackend) removeUnfinished(context.Context, string, time.Time, bool) ([]string, error) {
	return nil, nil
}

func (b *gcsBackend) folder(key string) (backend, string, error) { return b, key, nil }

func (b *gcsBackend) check(ctx context.Context, folder string) error {
	_, err := b.listed(ctx, folder, ListOptions{Recursive: true}, "", 1)
	return err
}

func (b *gcsBackend) now(ctx context.Context, folder string) (time.Time, error) {
	answer, err := b.listed(ctx, folder, ListOptions{Recursive: true}, "", 1)
	if err != nil {
		return time.Time{}, err
	}
	theirs, _ := http.ParseTime(answer.Header.Get("Date"))
	return theirs, nil
}

func (b *gcsBackend) close() error {
	b.client.CloseIdleConnections()
	return nil
}

func (b *gcsBackend) countsRequests() {}

// bufferedWriter streams an object, or writes up to most bytes in one request.
type bufferedWriter struct {
	ctx    context.Context
	cancel context.CancelFunc
	most   int
	small  func(content []byte) error
	large  func(content io.Reader) error

	buffer bytes.Buffer
	pipe   *io.PipeWriter
	done   chan error
	ended  bool
}

func (w *bufferedWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	if w.ended {
		return 0, errEnded
	}
	if w.pipe == nil {
		if w.buffer.Len()+len(p) <= w.most {
			return w.buffer.Write(p)
		}
		w.begin()
	}
	n, err := w.pipe.Write(p)
	if err != nil && w.ctx.Err() != nil {
		err = w.ctx.Err()
	}
	return n, err
}

func (w *bufferedWriter) begin() {
	content, pipe := io.Pipe()
	w.pipe, w.done = pipe, make(chan error, 1)
	context.AfterFunc(w.ctx, func() { _ = pipe.CloseWithError(w.ctx.Err()) })
	buffered := w.buffer
	w.buffer = bytes.Buffer{}
	go func() {
		err := w.large(io.MultiReader(&buffered, content))
		_ = content.CloseWithError(cmp.Or(err, errEnded))
		w.done <- err
	}()
}

func (w *bufferedWriter) Commit() error {
	if w.ended {
		return errEnded
	}
	if err := w.ctx.Err(); err != nil {
		w.Abort()
		return err
	}
	w.ended = true
	defer w.cancel()
	var err error
	if w.pipe == nil {
		err = w.small(w.buffer.Bytes())
	} else {
		_ = w.pipe.Close()
		err = <-w.done
	}
	if err != nil && w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	return err
}

func (w *bufferedWriter) Abort() {
	if w.ended {
		return
	}
	w.ended = true
	w.cancel()
	if w.pipe != nil {
		_ = w.pipe.CloseWithError(errEnded)
		<-w.done
	}
}
