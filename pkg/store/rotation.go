// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	"k8s.io/klog/v2"
)

const (
	// rereadEvery is how long credentials are used before the Secret is read again, and so how
	// long a rotated key must stay valid.
	rereadEvery = time.Minute
	// rereadTimeout bounds one read of the Secret.
	rereadTimeout = 10 * time.Second
)

// SecretReader reads the Secret of a location.
type SecretReader func(ctx context.Context) (map[string][]byte, error)

// secretProvider gives the SDK the credentials of a Secret, and reads it again while the store is
// open: the catalogue keeps its stores open for good.
type secretProvider struct {
	name string
	read SecretReader

	mu   sync.Mutex
	last aws.Credentials
	used bool
}

// Retrieve implements aws.CredentialsProvider. An unreadable or incomplete Secret leaves the
// credentials as they were.
func (p *secretProvider) Retrieve(ctx context.Context) (aws.Credentials, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used {
		if fresh, err := p.reread(ctx); err == nil {
			p.last = fresh
		} else {
			klog.FromContext(ctx).Info("The credentials of a storage location stay as they were, since their Secret can't be read", "secret", p.name, "err", err)
		}
	}
	p.used = true
	given := p.last
	given.CanExpire, given.Expires = true, time.Now().Add(rereadEvery)
	return given, nil
}

func (p *secretProvider) reread(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, rereadTimeout)
	defer cancel()
	secret, err := p.read(ctx)
	if err != nil {
		return aws.Credentials{}, err
	}
	static, err := staticCredentials(p.name, secret)
	if err != nil {
		return aws.Credentials{}, err
	}
	return static.Retrieve(ctx)
}

// rotating returns credentials that follow the Secret.
func rotating(name string, first aws.CredentialsProvider, read SecretReader) (aws.CredentialsProvider, error) {
	given, err := first.Retrieve(context.Background())
	if err != nil {
		return nil, err
	}
	return aws.NewCredentialsCache(&secretProvider{name: name, read: read, last: given}), nil
}

// followRotation returns an option of a client: a request with refused credentials is made once more
// if the Secret has other ones by then.
func followRotation(cache *aws.CredentialsCache) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("holdfast.io/rotation",
			func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
				used, _ := cache.Retrieve(ctx)
				out, metadata, err := next.HandleFinalize(ctx, in)
				if !refuses(err) {
					return out, metadata, err
				}
				if now, _ := cache.Retrieve(ctx); sameCredentials(now, used) {
					cache.Invalidate()
				}
				if now, failure := cache.Retrieve(ctx); failure == nil && !sameCredentials(now, used) {
					err = rotatedError{err}
				}
				return out, metadata, err
			}), "Retry", middleware.After)
	}
}

func sameCredentials(a, b aws.Credentials) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SecretAccessKey == b.SecretAccessKey && a.SessionToken == b.SessionToken
}

// rotatedError makes the client repeat and sign a request.
type rotatedError struct{ error }

func (e rotatedError) Unwrap() error { return e.error }

// RetryableError implements the SDK's interface.
func (rotatedError) RetryableError() bool { return true }

// refuses reports whether an answer refuses the credentials. The answer to a HEAD has only 403.
func refuses(err error) bool {
	var answer smithy.APIError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.ErrorCode() {
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AccessDenied", "Forbidden":
		return true
	}
	return false
}
