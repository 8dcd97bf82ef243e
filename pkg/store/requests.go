// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"
)

type observerKey struct{}

// ObserveRequests has each request that operations with this context make of a store told to
// observe, as it was answered: each page of a listing, and each attempt. One error means
// ErrUnavailable: the store can't answer now. observe may be called by several at once.
func ObserveRequests(ctx context.Context, observe func(operation string, err error)) context.Context {
	return context.WithValue(ctx, observerKey{}, observe)
}

// Operations of requests.
const (
	RequestList  = "list"
	RequestOther = "get"
)

func requested(ctx context.Context, operation string, err error) {
	if observe, ok := ctx.Value(observerKey{}).(func(string, error)); ok {
		observe(operation, err)
	}
}

// tellRequests makes a client of S3 tell of each attempt.
func tellRequests(stack *middleware.Stack) error {
	return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("holdfast.io/requests",
		func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
			out, metadata, err := next.HandleFinalize(ctx, in)
			operation := RequestOther
			if awsmiddleware.GetOperationName(ctx) == "ListObjectsV2" {
				operation = RequestList
			}
			requested(ctx, operation, explain(operation, "", err))
			return out, metadata, err
		}), "Retry", middleware.After)
}

// requested tells of a request of a store whose client does not do so itself.
func (b *Bucket) requested(ctx context.Context, operation string, err error) {
	if blob, ok := b.backend.(*blobBackend); !ok || blob.s3 == nil {
		requested(ctx, operation, err)
	}
}
