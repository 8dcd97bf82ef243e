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
	// rereadEvery is the time between reads of the Secret: a rotated key must stay valid so long.
	rereadEvery   = time.Minute
	rereadTimeout = 10 * time.Second
)

// SecretReader reads the Secret of a location.
type SecretReader func(ctx context.Context) (map[string][]byte, error)

// secretProvider returns the credentials of a Secret, and reads it again while the store is open:
// the catalogue's stores stay open.
type secretProvider struct {
	name string
	read SecretReader

	mu   sync.Mutex
	last aws.Credentials
	used bool
}

// Retrieve implements aws.CredentialsProvider. An unreadable or incomplete Secret changes nothing.
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

func rotating(name string, first aws.CredentialsProvider, read SecretReader) (aws.CredentialsProvider, error) {
	given, err := first.Retrieve(context.Background())
	if err != nil {
		return nil, err
	}
	return aws.NewCredentialsCache(&secretProvider{name: name, read: read, last: given}), nil
}

// followRotation repeats a request with refused credentials, if there are others by then.
func followRotation(cache *aws.CredentialsCache, refuses func(error) bool) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("holdfast.io/rotation",
			func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
				used, err := cache.Retrieve(ctx)
				if err != nil {
					return middleware.FinalizeOutput{}, middleware.Metadata{}, &credentialsError{err}
				}
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

type rotatedError struct{ error }

func (e rotatedError) Unwrap() error { return e.error }

func (rotatedError) RetryableError() bool { return true }

// refuses reports whether an answer refuses the credentials. A HEAD's has only 403.
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

// refusesSession reports whether an answer refuses a session, and not only an access: another
// session of a role may do no more. A HEAD's has only 400.
func refusesSession(err error) bool {
	var answer smithy.APIError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.ErrorCode() {
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "BadRequest":
		return true
	}
	return false
}

// newPace returns a condition that holds no more than once in rereadEvery.
func newPace(condition func(error) bool) func(error) bool {
	var mu sync.Mutex
	var last time.Time
	return func(err error) bool {
		if !condition(err) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); last.IsZero() || now.Sub(last) >= rereadEvery {
			last = now
			return true
		}
		return false
	}
}
