// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"

	"github.com/holdfast-io/holdfast/pkg/store"
)

type requests struct {
	store.Reader
	w *worker
}

var _ store.Ranger = requests{}

var errSilent = errors.New("the store did not list its backups in time")

// begin waits for a place. Its context counts requests; call answered once, with the error.
func (r requests) begin(ctx context.Context) (_ context.Context, answered func(error), err error) {
	limiter, begun := r.w.limiter, r.w.options.Clock.Now()
	if err := limiter.enter(ctx, &limiter.requests); err != nil {
		return nil, nil, err
	}
	ctx = store.ObserveRequests(ctx, func(operation string, err error) {
		countRequest(r.w.location.Name, operation)
		if errors.Is(err, store.ErrUnavailable) {
			limiter.overloaded(begun)
		}
	})
	return ctx, func(err error) {
		switch {
		case errors.Is(err, store.ErrUnavailable):
			limiter.overloaded(begun)
		case err == nil || errors.Is(err, store.ErrNotFound):
			limiter.answered()
		}
	}, nil
}

func (r requests) end() { r.w.limiter.leave(&r.w.limiter.requests) }

// List implements store.Reader. Each result has a request's time, without the consumer's.
func (r requests) List(ctx context.Context, folder string, options store.ListOptions) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		ctx, answered, err := r.begin(ctx)
		if err != nil {
			yield(store.Object{}, err)
			return
		}
		defer r.end()
		timeout := r.w.options.RequestTimeout
		listing, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		watchdog := r.w.options.Clock.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) })
		defer watchdog.Stop()
		take := func(object store.Object, err error) bool {
			watchdog.Stop()
			r.end()
			defer r.w.limiter.reenter(&r.w.limiter.requests)
			return yield(object, err)
		}
		for object, err := range r.Reader.List(listing, folder, options) {
			if listing.Err() != nil {
				break
			}
			if err != nil {
				answered(err)
				take(store.Object{}, err)
				return
			}
			r.w.isAlive()
			if !take(object, nil) {
				return
			}
			watchdog.Reset(timeout)
		}
		if listing.Err() != nil {
			answered(store.ErrUnavailable)
			take(store.Object{}, errSilent)
			return
		}
		answered(nil)
	}
}

// Get implements store.Reader. The timeout includes reading the content.
func (r requests) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	return r.get(ctx, func(ctx context.Context) (io.ReadCloser, error) { return r.Reader.Get(ctx, key) })
}

// GetRange implements store.Ranger, if need be from the beginning.
func (r requests) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if ranger, ok := r.Reader.(store.Ranger); ok {
		return r.get(ctx, func(ctx context.Context) (io.ReadCloser, error) { return ranger.GetRange(ctx, key, offset, length) })
	}
	content, err := r.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, content, offset); err != nil && err != io.EOF {
		content.Close()
		return nil, err
	}
	if length < 0 {
		return content, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(content, length), content}, nil
}

func (r requests) get(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) (io.ReadCloser, error) {
	ctx, answered, err := r.begin(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.w.options.RequestTimeout)
	content, err := open(ctx)
	answered(err)
	if err != nil {
		cancel()
		r.end()
		return nil, err
	}
	return &opened{content, sync.OnceFunc(func() {
		cancel()
		r.end()
	})}, nil
}

type opened struct {
	io.ReadCloser
	end func()
}

func (o *opened) Version() string { return store.VersionOf(o.ReadCloser) }

func (o *opened) Close() error {
	defer o.end()
	return o.ReadCloser.Close()
}

func (r requests) Attributes(ctx context.Context, key string) (store.Object, error) {
	ctx, answered, err := r.begin(ctx)
	if err != nil {
		return store.Object{}, err
	}
	defer r.end()
	ctx, cancel := context.WithTimeout(ctx, r.w.options.RequestTimeout)
	defer cancel()
	object, err := r.Reader.Attributes(ctx, key)
	answered(err)
	return object, err
}
