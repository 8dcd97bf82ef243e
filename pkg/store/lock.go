// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// ErrNoLock: the location has a lock, but its bucket can't lock objects.
var ErrNoLock = errors.New("the bucket can't lock objects")

const lockedWrite = "s3:PutObjectRetention or s3:PutObject"

// kopiaFormat opens a repository. It is created without Kopia.
const kopiaFormat = "kopia.repository"

// isLocked reports whether the object of a key, below the location's prefix, is written with a lock:
// see docs/lock.md. Kopia's own rule is for packs and indexes. With object lock a write makes a
// version, and a removal hides it. So even objects that are rewritten may be locked, and forged or
// removed requests harm no backup.
func isLocked(key string) bool {
	return strings.HasPrefix(key, format.BackupsPrefix) || key == format.StoreIdentityKey || strings.HasPrefix(key, format.WrappedKeysPrefix) ||
		strings.HasPrefix(key, format.RepositoriesPrefix) && path.Base(key) == kopiaFormat
}

type locking struct {
	mode   string
	period time.Duration
	prefix string
	read   atomic.Pointer[clockReading]
	ask    func(context.Context) error
}

// clockReading is an instant by the store's, and by this process's monotonic clock.
type clockReading struct{ theirs, ours time.Time }

func newLocking(lock *enginev1alpha1.StorageLock, prefix string) *locking {
	if lock == nil {
		return nil
	}
	return &locking{mode: strings.ToUpper(string(lock.Mode)), period: lock.Period(), prefix: prefix}
}

// use locks a client's writes.
func (l *locking) use(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("holdfast.io/lock",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			if err := l.add(ctx, in.Parameters); err != nil {
				return middleware.InitializeOutput{}, middleware.Metadata{}, err
			}
			out, metadata, err := next.HandleInitialize(ctx, in)
			if theirs, ok := awsmiddleware.GetServerTime(metadata); err == nil && ok && !theirs.IsZero() {
				l.read.Store(&clockReading{theirs: theirs, ours: time.Now()})
			}
			return out, metadata, err
		}), middleware.Before)
}

func (l *locking) add(ctx context.Context, request any) error {
	var key *string
	var mode *s3types.ObjectLockMode
	var until **time.Time
	switch r := request.(type) {
	case *s3.PutObjectInput:
		key, mode, until = r.Key, &r.ObjectLockMode, &r.ObjectLockRetainUntilDate
	case *s3.CreateMultipartUploadInput:
		key, mode, until = r.Key, &r.ObjectLockMode, &r.ObjectLockRetainUntilDate
	default:
		return nil
	}
	below, ok := strings.CutPrefix(aws.ToString(key), l.prefix)
	if !ok || *mode != "" || !isLocked(below) {
		return nil
	}
	end, err := l.end(ctx, l.period)
	if err != nil {
		return err
	}
	*mode, *until = s3types.ObjectLockMode(l.mode), &end
	return nil
}

// end returns the end of a lock that begins now. The store's last answer gives its time, and this
// process's monotonic clock counts from there. So a wrong clock here shortens no lock. docs/lock.md has
// the errors.
func (l *locking) end(ctx context.Context, period time.Duration) (time.Time, error) {
	read := l.read.Load()
	if read == nil && l.ask != nil {
		if err := l.ask(ctx); err != nil {
			return time.Time{}, err
		}
		read = l.read.Load()
	}
	if read == nil {
		return time.Time{}, errors.New("the store's answers have no date, so the end of a lock is unknown")
	}
	return read.theirs.Add(time.Since(read.ours) + period).Truncate(time.Second).Add(time.Second).UTC(), nil
}

// Lock returns the location's lock: the mode in S3's words, and the period; zero without a lock.
func (b *Bucket) Lock() (mode string, period time.Duration) {
	if l := b.locking(); l != nil {
		return l.mode, l.period
	}
	return "", 0
}

func (b *Bucket) locking() *locking {
	if backend, ok := b.backend.(*blobBackend); ok {
		return backend.lock
	}
	return nil
}

// Retain returns the retention of an object that is written now, by the store's clock if the location
// has a lock, else by this machine's.
func (b *Bucket) Retain(ctx context.Context, mode string, period time.Duration) (Retention, error) {
	l := b.locking()
	if l == nil {
		return Retention{Mode: mode, Until: time.Now().Add(period)}, nil
	}
	end, err := l.end(ctx, period)
	return Retention{Mode: mode, Until: end}, explain("ask the clock of", "", err)
}

// CheckLock fails with ErrNoLock if the location has a lock, but its bucket can't lock objects. Without
// a lock it makes no request.
func (b *Bucket) CheckLock(ctx context.Context) error {
	l := b.locking()
	if l == nil {
		return nil
	}
	const operation = "read the object lock of the bucket"
	const remedy = ". Make a bucket with object lock for this location, or remove spec.lock: docs/lock.md"
	client, name := b.client()
	refused := func(reason string, kind, cause error) error {
		return &opError{operation: operation, key: name, kind: kind, cause: cause, reason: reason}
	}
	found, err := client.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: aws.String(name)})
	explained := explain(operation, name, err)
	switch code := errorCode(err); {
	case err == nil && found.ObjectLockConfiguration != nil && found.ObjectLockConfiguration.ObjectLockEnabled == s3types.ObjectLockEnabledEnabled:
		return nil
	case err == nil, code == "ObjectLockConfigurationNotFoundError", code == "InvalidBucketState":
		return refused("spec.lock is set, and the bucket was made without object lock"+remedy, ErrNoLock, err)
	case status(err) == http.StatusNotImplemented, status(err) == http.StatusMethodNotAllowed:
		return refused("spec.lock is set, and the store has no object lock"+remedy, ErrNoLock, err)
	case errors.Is(explained, ErrDenied) && !errors.Is(explained, ErrClock):
		return refused(Reason(explained)+". The credentials lack the right s3:GetBucketObjectLockConfiguration, which spec.lock needs: docs/identity.md", ErrDenied, err)
	default:
		return explained
	}
}

// ExtendLock ensures that an object is locked for at least a time from now, by the store's clock, and
// returns the end. An earlier end is extended by the location's period; the mode stays. It fails with
// ErrNotFound for a missing object.
func (b *Bucket) ExtendLock(ctx context.Context, key string, least time.Duration) (time.Time, error) {
	if err := b.checkKey(ctx, key); err != nil {
		return time.Time{}, err
	}
	l := b.locking()
	if l == nil {
		return time.Time{}, fmt.Errorf("extend the lock of %s: the location has no spec.lock", key)
	}
	until, err := b.extend(ctx, l, key, least)
	if errors.Is(err, ErrDenied) {
		// Another process may have extended it further, and shortening is denied.
		if again, mode, readErr := b.retention(ctx, b.prefix+key); readErr == nil && mode != "" && again.After(until) {
			return again, nil
		}
	}
	return until, err
}

func (b *Bucket) extend(ctx context.Context, l *locking, key string, least time.Duration) (time.Time, error) {
	until, mode, err := b.retention(ctx, b.prefix+key)
	if err != nil {
		return time.Time{}, lacksRight(explain("read the lock of", key, err), "s3:GetObjectRetention")
	}
	enough, err := l.end(ctx, least)
	if err != nil {
		return until, explain("ask the clock of", "", err)
	}
	if !until.Before(enough) {
		return until, nil
	}
	end, err := l.end(ctx, max(l.period, least))
	if err != nil {
		return until, explain("ask the clock of", "", err)
	}
	if mode == "" {
		mode = s3types.ObjectLockRetentionMode(l.mode)
	}
	client, name := b.client()
	_, err = client.PutObjectRetention(ctx, &s3.PutObjectRetentionInput{
		Bucket: aws.String(name), Key: aws.String(b.prefix + key),
		Retention: &s3types.ObjectLockRetention{Mode: mode, RetainUntilDate: &end},
	})
	if err != nil {
		return until, lacksRight(explain("extend the lock of", key, err), "s3:PutObjectRetention")
	}
	return end, nil
}

func (b *Bucket) retention(ctx context.Context, key string) (until time.Time, mode s3types.ObjectLockRetentionMode, err error) {
	client, name := b.client()
	found, err := client.GetObjectRetention(ctx, &s3.GetObjectRetentionInput{Bucket: aws.String(name), Key: aws.String(key)})
	switch code := errorCode(err); {
	case code == "NoSuchObjectLockConfiguration":
		return time.Time{}, "", nil
	case err != nil:
		return time.Time{}, "", err
	case found.Retention == nil:
		return time.Time{}, "", nil
	}
	return aws.ToTime(found.Retention.RetainUntilDate), found.Retention.Mode, nil
}

func (b *Bucket) client() (*s3.Client, string) {
	backend := b.backend.(*blobBackend)
	return backend.s3, backend.name
}

func errorCode(err error) string {
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		return answer.ErrorCode()
	}
	return ""
}

func lacksRight(err error, right string) error {
	if failed, ok := errors.AsType[*opError](err); ok && errors.Is(err, ErrDenied) && !errors.Is(err, ErrClock) {
		return &opError{operation: failed.operation, key: failed.key, kind: failed.kind, cause: failed.cause,
			reason: failed.reason + ". The credentials lack the right " + right + ", which spec.lock needs: docs/identity.md"}
	}
	return err
}
