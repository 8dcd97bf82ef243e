// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/pkg/format"
)

// ErrOther: it is not the expected store. It is also ErrUnavailable.
var ErrOther = errors.New("it is another store")

// Identity returns the store's id. It fails with ErrNotFound without one, and with ErrUnavailable for a
// foreign answer.
func (b *Bucket) Identity(ctx context.Context) (id string, err error) {
	content, err := b.Get(ctx, format.StoreIdentityKey)
	if err != nil {
		return "", err
	}
	defer content.Close()
	return readIdentity(content)
}

// Identify returns the store's id, and creates a missing one.
func (b *Bucket) Identify(ctx context.Context, now time.Time) (id string, err error) {
	if id, err = b.Identity(ctx); !errors.Is(err, ErrNotFound) {
		return id, err
	}
	content, err := format.EncodeStoreIdentity(format.StoreIdentity{ID: strings.ToLower(rand.Text()), Created: now.UTC()})
	if err != nil {
		return "", err
	}
	if err := b.Create(ctx, format.StoreIdentityKey, content); err != nil && !errors.Is(err, ErrExists) {
		return "", err
	}
	// Another writer may have been first, or nothing was stored.
	id, err = b.Identity(ctx)
	if errors.Is(err, ErrNotFound) {
		return "", notAStore(err)
	}
	return id, err
}

// KeepsConditions reports whether the store heeds the condition of Create: it creates the store's id
// again, with the same bytes.
func (b *Bucket) KeepsConditions(ctx context.Context) (bool, error) {
	content, err := b.Get(ctx, format.StoreIdentityKey)
	if err != nil {
		return false, err
	}
	defer content.Close()
	data, err := io.ReadAll(io.LimitReader(content, format.MaxStoreIdentityBytes+1))
	if err != nil {
		return false, explain("get", format.StoreIdentityKey, err)
	}
	if err = b.Create(ctx, format.StoreIdentityKey, data); errors.Is(err, ErrExists) {
		return true, nil
	}
	return false, err
}

// Expect fails with ErrOther unless the store has the id. A replaced folder is compared again before
// use.
func (b *Bucket) Expect(ctx context.Context, id string) error {
	found, err := b.Identity(ctx)
	if err := compareIdentity(found, err, id); err != nil {
		return err
	}
	if files, ok := b.backend.(*filesystemBackend); ok {
		b.backend = &filesystemBackend{path: files.path, open: files.open, expected: &expectedFolder{id: id, key: b.prefix + format.StoreIdentityKey}}
	}
	return nil
}

func compareIdentity(found string, err error, want string) error {
	switch {
	case errors.Is(err, ErrNotFound):
		return &opError{operation: "open", kind: ErrUnavailable, cause: ErrOther,
			reason: fmt.Sprintf("the store is not the one with the id %s: it has no id, as an empty bucket, or a folder that is not mounted", want)}
	case err != nil:
		return err
	case found != want:
		return &opError{operation: "open", kind: ErrUnavailable, cause: ErrOther,
			reason: fmt.Sprintf("the store is not the one with the id %s: its id is %s", want, found)}
	}
	return nil
}

func readIdentity(content io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(content, format.MaxStoreIdentityBytes+1))
	if err != nil {
		return "", explain("get", format.StoreIdentityKey, err)
	}
	identity, err := format.DecodeStoreIdentity(data)
	if err != nil {
		return "", notAStore(err)
	}
	return identity.ID, nil
}

func notAStore(cause error) error {
	return &opError{operation: "get", key: format.StoreIdentityKey, kind: ErrUnavailable, cause: cause,
		reason: "what answers is no store, or the object with its id is damaged: check the endpoint"}
}

type expectedFolder struct {
	id, key string
	// known is the compared id file's version. Another folder's differs, even with the same device
	// number.
	known atomic.Pointer[string]
}

// verify fails unless the folder has the id. It reads only unknown versions.
func (e *expectedFolder) verify(root *os.Root) error {
	info, err := root.Stat(e.key)
	var here, found string
	if err == nil {
		here = fileVersion(info)
		if status, ok := info.Sys().(*syscall.Stat_t); ok {
			here = fmt.Sprintf("%x-%s", status.Dev, here)
		}
		if known := e.known.Load(); known != nil && *known == here {
			return nil
		}
		found, err = e.read(root)
	}
	if err := compareIdentity(found, explain("get", format.StoreIdentityKey, err), e.id); err != nil {
		return err
	}
	e.known.Store(&here)
	return nil
}

func (e *expectedFolder) read(root *os.Root) (string, error) {
	file, err := root.OpenFile(e.key, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	return readIdentity(file)
}
