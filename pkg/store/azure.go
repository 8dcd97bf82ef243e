// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// azurePage is the service's maximum. A listing can't begin in the middle.
const azurePage = 5000

// errHierarchy: such accounts don't sort names by bytes.
var errHierarchy = errors.New("the storage account has a hierarchical namespace, which keeps names in another order: use an account without one")

// azureBackend keeps objects in a container of Azure Blob Storage, with the ETag as version.
type azureBackend struct {
	clients   *followed[*azureClient]
	transport *http.Transport
	flat      atomic.Bool
}

// azureDo repeats an operation once if its credentials are refused and the Secret has others.
func azureDo[T any](ctx context.Context, b *azureBackend, do func(client *azureClient) (T, error)) (T, error) {
	client := b.clients.get(ctx, false)
	got, err := do(client)
	if errors.Is(explain("", "", err), ErrDenied) {
		if fresh := b.clients.get(ctx, true); fresh != client {
			return do(fresh)
		}
	}
	return got, err
}

// refuseHierarchy fails for a hierarchical namespace. If a role may not ask, a listing that goes
// backwards, or has a directory, fails.
func (b *azureBackend) refuseHierarchy(ctx context.Context) error {
	if b.flat.Load() {
		return nil
	}
	info, err := azureDo(ctx, b, func(client *azureClient) (container.GetAccountInfoResponse, error) {
		return client.GetAccountInfo(ctx, nil)
	})
	switch {
	case err != nil && !errors.Is(explain("", "", err), ErrDenied):
		return err
	case err == nil && info.IsHierarchicalNamespaceEnabled != nil && *info.IsHierarchicalNamespaceEnabled:
		return errHierarchy
	}
	b.flat.Store(true)
	return nil
}

func azureVersion(tag *azcore.ETag) string {
	if tag == nil {
		return ""
	}
	return strings.Trim(string(*tag), `"`)
}

func value[T any](of *T) (got T) {
	if of != nil {
		got = *of
	}
	return got
}

func (b *azureBackend) listed(ctx context.Context, folder string, options ListOptions, token string, most int32) (got page, theirs time.Time, err error) {
	var marker *string
	if token != "" {
		marker = &token
	}
	prefix := to.Ptr(folder + options.Beginning)
	var items []*container.BlobItem
	if options.Recursive {
		var answer container.ListBlobsFlatResponse
		if answer, err = azureDo(ctx, b, func(client *azureClient) (container.ListBlobsFlatResponse, error) {
			return client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{Prefix: prefix, Marker: marker, MaxResults: &most}).NextPage(ctx)
		}); err != nil {
			return got, theirs, err
		}
		if answer.Segment == nil {
			return got, theirs, &foreignAnswer{speaks: speaksAzure, sent: "no listing"}
		}
		items, got.next, theirs = answer.Segment.BlobItems, value(answer.NextMarker), value(answer.Date)
	} else {
		var answer container.ListBlobsHierarchyResponse
		if answer, err = azureDo(ctx, b, func(client *azureClient) (container.ListBlobsHierarchyResponse, error) {
			return client.NewListBlobsHierarchyPager("/", &container.ListBlobsHierarchyOptions{Prefix: prefix, Marker: marker, MaxResults: &most}).NextPage(ctx)
		}); err != nil {
			return got, theirs, err
		}
		if answer.Segment == nil {
			return got, theirs, &foreignAnswer{speaks: speaksAzure, sent: "no listing"}
		}
		items, got.next, theirs = answer.Segment.BlobItems, value(answer.NextMarker), value(answer.Date)
		for _, prefix := range answer.Segment.BlobPrefixes {
			got.objects = append(got.objects, Object{Key: value(prefix.Name), IsFolder: true})
		}
	}
	for _, item := range items {
		properties := item.Properties
		if properties == nil || properties.ETag == nil || properties.LastModified == nil || properties.ContentLength == nil {
			return got, theirs, &foreignAnswer{speaks: speaksAzure, sent: "an object without a time, a length or an ETag"}
		}
		if strings.EqualFold(value(properties.ResourceType), "directory") {
			return got, theirs, errHierarchy
		}
		got.objects = append(got.objects, Object{Key: value(item.Name), Size: *properties.ContentLength, ModTime: *properties.LastModified, Version: azureVersion(properties.ETag)})
	}
	return got, theirs, nil
}

func (b *azureBackend) list(ctx context.Context, folder string, options ListOptions) iter.Seq2[Object, error] {
	return listPages(folder, options, func(token string) (page, error) {
		if err := b.refuseHierarchy(ctx); err != nil {
			return page{}, err
		}
		got, _, err := b.listed(ctx, folder, options, token, azurePage)
		return got, err
	})
}

func (b *azureBackend) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	part := blob.HTTPRange{Offset: offset, Count: max(length, 0)}
	answer, err := azureDo(ctx, b, func(client *azureClient) (blob.DownloadStreamResponse, error) {
		return client.NewBlockBlobClient(key).DownloadStream(ctx, &blob.DownloadStreamOptions{Range: part})
	})
	if err != nil {
		return nil, err
	}
	r := &azureReader{ReadCloser: answer.Body, version: azureVersion(answer.ETag)}
	if part == (blob.HTTPRange{}) && len(answer.ContentMD5) > 0 {
		r.sum, r.want = md5.New(), answer.ContentMD5
	}
	return r, nil
}

// azureReader verifies a whole object's checksum, if any.
type azureReader struct {
	io.ReadCloser
	version string
	sum     hash.Hash
	want    []byte
}

func (r *azureReader) Version() string { return r.version }

func (r *azureReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if r.sum != nil {
		r.sum.Write(p[:n])
		if err == io.EOF && !bytes.Equal(r.sum.Sum(nil), r.want) {
			err = errChecksum
		}
	}
	return n, err
}

func (b *azureBackend) attributes(ctx context.Context, key string) (Object, error) {
	answer, err := azureDo(ctx, b, func(client *azureClient) (blob.GetPropertiesResponse, error) {
		return client.NewBlockBlobClient(key).GetProperties(ctx, nil)
	})
	if err != nil {
		return Object{}, err
	}
	if answer.ETag == nil || answer.LastModified == nil || answer.ContentLength == nil {
		return Object{}, &foreignAnswer{speaks: speaksAzure, sent: "an object without a time, a length or an ETag"}
	}
	return Object{Size: *answer.ContentLength, ModTime: *answer.LastModified, Version: azureVersion(answer.ETag)}, nil
}

func unlessExists(exclusive bool) *blob.AccessConditions {
	if !exclusive {
		return nil
	}
	return &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfNoneMatch: to.Ptr(azcore.ETagAny)}}
}

func (b *azureBackend) write(ctx context.Context, key string, content Content, options writeOptions) error {
	if options.retention.Mode != "" {
		return errors.ErrUnsupported
	}
	if err := b.refuseHierarchy(ctx); err != nil {
		return err
	}
	// The service verifies and stores it.
	sum := md5.New()
	if _, err := content.WriteTo(sum); err != nil {
		return err
	}
	_, err := azureDo(ctx, b, func(client *azureClient) (blockblob.UploadResponse, error) {
		return client.NewBlockBlobClient(key).Upload(ctx, content.Reader(), &blockblob.UploadOptions{
			TransactionalValidation: blob.TransferValidationTypeMD5(sum.Sum(nil)),
			HTTPHeaders:             &blob.HTTPHeaders{BlobContentType: to.Ptr(contentType)},
			AccessConditions:        unlessExists(options.exclusive),
		})
	})
	if options.exclusive && errors.Is(explain("", "", err), ErrExists) {
		// Azurite also refuses for blocks of an unfinished write.
		if _, failure := b.attributes(ctx, key); errors.Is(explain("", "", failure), ErrNotFound) {
			body := content.Reader()
			defer body.Close()
			return b.writeBlocks(ctx, key, body)
		}
	}
	return err
}

// checkName refuses a backslash: the service takes it for a slash.
func (b *azureBackend) checkName(key string) error {
	if strings.Contains(key, `\`) {
		return fmt.Errorf("%w: Azure Blob Storage takes the backslash in %q for a slash", ErrName, key)
	}
	return nil
}

func (b *azureBackend) newWriter(ctx context.Context, key string) (ObjectWriter, error) {
	ctx, cancel := context.WithCancel(ctx)
	return &bufferedWriter{ctx: ctx, cancel: cancel, most: partBytes,
		small: func(content []byte) error {
			return b.write(ctx, key, bytesContent(content), writeOptions{exclusive: true})
		},
		large: func(content io.Reader) error { return b.writeBlocks(ctx, key, content) },
	}, nil
}

// writeBlocks creates an object by its last request. The service removes other blocks after a week.
func (b *azureBackend) writeBlocks(ctx context.Context, key string, content io.Reader) error {
	if err := b.refuseHierarchy(ctx); err != nil {
		return err
	}
	var blocks []string
	writer, whole, buffer := rand.Text(), md5.New(), make([]byte, partBytes)
	for {
		n, err := io.ReadFull(content, buffer)
		if n > 0 {
			whole.Write(buffer[:n])
			sum := md5.Sum(buffer[:n])
			// Concurrent writers need different blocks.
			id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s-%06d", writer, len(blocks)))
			if _, err := azureDo(ctx, b, func(client *azureClient) (blockblob.StageBlockResponse, error) {
				return client.NewBlockBlobClient(key).StageBlock(ctx, id, bytesContent(buffer[:n]).Reader(), &blockblob.StageBlockOptions{
					TransactionalValidation: blob.TransferValidationTypeMD5(sum[:]),
				})
			}); err != nil {
				return err
			}
			blocks = append(blocks, id)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := azureDo(ctx, b, func(client *azureClient) (blockblob.CommitBlockListResponse, error) {
		return client.NewBlockBlobClient(key).CommitBlockList(ctx, blocks, &blockblob.CommitBlockListOptions{
			HTTPHeaders:      &blob.HTTPHeaders{BlobContentType: to.Ptr(contentType), BlobContentMD5: whole.Sum(nil)},
			AccessConditions: unlessExists(true),
		})
	})
	if answer, ok := errors.AsType[*azcore.ResponseError](err); ok && answer.ErrorCode == "InvalidBlockList" {
		// Another write has removed the blocks.
		if _, failure := b.attributes(ctx, key); failure == nil {
			return ErrExists
		}
	}
	return err
}

func (b *azureBackend) delete(ctx context.Context, key, version string) error {
	err := b.removeIf(ctx, key, &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: to.Ptr(azcore.ETag(`"` + version + `"`))}})
	if errors.Is(explain("", "", err), ErrExists) {
		return changedOrGone(ctx, b, key) // the error for failed conditions
	}
	return err
}

func (b *azureBackend) remove(ctx context.Context, key string) error {
	return b.removeIf(ctx, key, nil)
}

func (b *azureBackend) removeIf(ctx context.Context, key string, conditions *blob.AccessConditions) error {
	_, err := azureDo(ctx, b, func(client *azureClient) (blob.DeleteResponse, error) {
		return client.NewBlockBlobClient(key).Delete(ctx, &blob.DeleteOptions{AccessConditions: conditions})
	})
	return err
}

// removeUnfinished does nothing: the service does it after a week.
func (b *azureBackend) removeUnfinished(context.Context, string, time.Time, bool) ([]string, error) {
	return nil, nil
}

func (b *azureBackend) folder(key string) (backend, string, error) { return b, key, nil }

func (b *azureBackend) check(ctx context.Context, folder string) error {
	_, err := b.now(ctx, folder)
	return err
}

func (b *azureBackend) now(ctx context.Context, folder string) (time.Time, error) {
	if err := b.refuseHierarchy(ctx); err != nil {
		return time.Time{}, err
	}
	_, theirs, err := b.listed(ctx, folder, ListOptions{Recursive: true}, "", 1)
	return theirs, err
}

func (b *azureBackend) close() error {
	b.transport.CloseIdleConnections()
	return nil
}

func (b *azureBackend) countsRequests() {}
