// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	"k8s.io/klog/v2"
)

const (
	// rereadEvery is how long a rotated key must stay valid.
	rereadEvery   = time.Minute
	rereadTimeout = 10 * time.Second
)

// SecretReader reads the Secret of a location.
type SecretReader func(ctx context.Context) (map[string][]byte, error)

// followed are credentials of a Secret, which is read again: the catalogue's stores stay open.
type followed[C any] struct {
	secret string
	// read is nil if the credentials stay.
	read  SecretReader
	parse func(secret map[string][]byte) (C, error)

	mu      sync.Mutex
	data    map[string][]byte
	current C
	asked   time.Time
}

func follow[C any](name string, secret map[string][]byte, read SecretReader, parse func(map[string][]byte) (C, error)) (*followed[C], error) {
	current, err := parse(secret)
	if err != nil {
		return nil, err
	}
	return &followed[C]{secret: name, read: read, parse: parse, data: secret, current: current, asked: time.Now()}, nil
}

// get reads the Secret after a minute, or at once. An unreadable, incomplete or equal one changes
// nothing.
func (f *followed[C]) get(ctx context.Context, atOnce bool) C {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read == nil || !atOnce && time.Since(f.asked) < rereadEvery {
		return f.current
	}
	f.asked = time.Now()
	if err := f.reread(ctx); err != nil {
		klog.FromContext(ctx).Info("The credentials of a storage location stay as they were, since their Secret can't be read", "secret", f.secret, "err", err)
	}
	return f.current
}

func (f *followed[C]) reread(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rereadTimeout)
	defer cancel()
	secret, err := f.read(ctx)
	if err != nil || maps.EqualFunc(secret, f.data, bytes.Equal) {
		return err
	}
	fresh, err := f.parse(secret)
	if err == nil {
		f.data, f.current = secret, fresh
	}
	return err
}

// secretProvider gives the SDK of S3 a Secret's credentials for a minute.
type secretProvider struct {
	*followed[aws.Credentials]
	used atomic.Bool
}

// Retrieve implements aws.CredentialsProvider.
func (p *secretProvider) Retrieve(ctx context.Context) (aws.Credentials, error) {
	given := p.get(ctx, p.used.Swap(true))
	given.CanExpire, given.Expires = true, time.Now().Add(rereadEvery)
	return given, nil
}

func rotating(name string, secret map[string][]byte, read SecretReader) (aws.CredentialsProvider, error) {
	credentials, err := follow(name, secret, read, func(secret map[string][]byte) (aws.Credentials, error) {
		static, err := staticCredentials(name, secret)
		if err != nil {
			return aws.Credentials{}, err
		}
		return static.Retrieve(context.Background())
	})
	if err != nil {
		return nil, err
	}
	return aws.NewCredentialsCache(&secretProvider{followed: credentials}), nil
}

// followRotation repeats a request if its credentials are refused, and there are others.
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

// refuses reports whether an answer refuses the credentials; a HEAD has only 403.
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

// refusesSession reports whether an answer refuses a session, and not only an access: a role's other
// session may do no more. A HEAD has only 400.
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

// newPace returns a condition that holds at most once in rereadEvery.
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
