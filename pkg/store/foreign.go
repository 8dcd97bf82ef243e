// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// foreignAnswer is a success that no store has sent, but a proxy, for example.
type foreignAnswer struct {
	speaks string
	sent   string
	// again is set if a store may have answered: versitygw describes an object without its ETag while
	// it removes it.
	again bool
}

// RetryableError implements the SDK's interface.
func (e *foreignAnswer) RetryableError() bool { return e.again }

// NonRetriable stops the retries of Azure's SDK.
func (e *foreignAnswer) NonRetriable() {}

func (e *foreignAnswer) Error() string {
	return "what answers does not speak " + cmp.Or(e.speaks, "S3") + ", and sent " + e.sent + ": check the endpoint, and proxies before it"
}

// refuseForeign makes such answers errors. A client would take any page for an empty listing, or a
// finished write.
func refuseForeign(stack *middleware.Stack) error {
	return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("holdfast.io/foreign",
		func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
			out, metadata, err := next.HandleFinalize(ctx, in)
			response, _ := awsmiddleware.GetRawResponse(metadata).(*smithyhttp.Response)
			if err == nil && lacksItsMarks(out.Result, response) {
				if got, ok := out.Result.(*s3.GetObjectOutput); ok && got.Body != nil {
					_ = got.Body.Close()
				}
				_, isHead := out.Result.(*s3.HeadObjectOutput)
				sent := typeOf(response)
				out.Result, err = nil, &foreignAnswer{sent: sent, again: isHead && sent != pageType}
			} else if unread := (*smithy.DeserializationError)(nil); errors.As(err, &unread) && isGood(response) && !errors.Is(err, io.ErrUnexpectedEOF) {
				err = &foreignAnswer{sent: typeOf(response)}
			}
			return out, metadata, err
		}), "Retry", middleware.After)
}

func lacksItsMarks(answer any, response *smithyhttp.Response) bool {
	switch a := answer.(type) {
	case *s3.ListObjectsV2Output:
		return a.Name == nil && a.MaxKeys == nil && a.KeyCount == nil && a.IsTruncated == nil && len(a.Contents) == 0 && len(a.CommonPrefixes) == 0
	case *s3.ListObjectVersionsOutput:
		return a.Name == nil && a.MaxKeys == nil && a.IsTruncated == nil && len(a.Versions) == 0 && len(a.DeleteMarkers) == 0
	case *s3.ListMultipartUploadsOutput:
		return a.Bucket == nil && a.MaxUploads == nil && a.IsTruncated == nil && len(a.Uploads) == 0
	case *s3.PutObjectOutput:
		return a.ETag == nil
	case *s3.UploadPartOutput:
		return a.ETag == nil
	case *s3.CreateMultipartUploadOutput:
		return a.UploadId == nil
	case *s3.CompleteMultipartUploadOutput:
		return a.ETag == nil && a.Key == nil
	case *s3.GetObjectOutput:
		return a.ETag == nil
	case *s3.HeadObjectOutput:
		return a.ETag == nil
	case *s3.DeleteObjectOutput, *s3.AbortMultipartUploadOutput, *s3.PutObjectRetentionOutput, *s3.GetBucketVersioningOutput:
		return typeOf(response) == pageType
	}
	return false
}

const pageType = "text/html"

func typeOf(response *smithyhttp.Response) string {
	if response != nil && response.Response != nil {
		return contentTypeOf(response.Response)
	}
	return contentTypeOf(&http.Response{})
}

func isGood(response *smithyhttp.Response) bool {
	return response != nil && response.Response != nil && response.StatusCode/100 == http.StatusOK/100
}
