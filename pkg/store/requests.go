// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"
)

type observerKey struct{}

// ObserveRequests calls observe for each request with this context, with all pages and repetitions.
// ErrUnavailable means that the store can't answer now. Calls may be concurrent.
func ObserveRequests(ctx context.Context, observe func(operation string, err error)) context.Context {
	return context.WithValue(ctx, observerKey{}, observe)
}

const (
	RequestList  = "list"
	RequestOther = "get"
)

func requested(ctx context.Context, operation string, err error) {
	if observe, ok := ctx.Value(observerKey{}).(func(string, error)); ok {
		observe(operation, err)
	}
}

func tellRequests(stack *middleware.Stack) error {
	return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("holdfast.io/requests",
		func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
			out, metadata, err := next.HandleFinalize(ctx, in)
			operation := RequestOther
			switch awsmiddleware.GetOperationName(ctx) {
			case "ListObjectsV2", "ListObjectVersions":
				operation = RequestList
			}
			requested(ctx, operation, explain(operation, "", err))
			return out, metadata, err
		}), "Retry", middleware.After)
}

func (b *Bucket) requested(ctx context.Context, operation string, err error) {
	if _, counts := b.backend.(interface{ countsRequests() }); counts {
		return
	}
	if blob, ok := b.backend.(*blobBackend); !ok || blob.s3 == nil {
		requested(ctx, operation, err)
	}
}
