// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/compression"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
)

var errMissing = errors.New("the pack of a content is missing from the store")

// Writer returns a writer for which the contents of missing packs do not exist. They are written
// again under the same names, which repairs earlier snapshots. Its listings lack files with such
// contents, which are read again. Without missing packs it returns w.
func (m *Missing) Writer(ctx context.Context, w repo.RepositoryWriter) (repo.RepositoryWriter, error) {
	if !m.Any() {
		return w, nil
	}
	direct, ok := w.(repo.DirectRepositoryWriter)
	if !ok {
		return nil, errors.New("a writer of the repository does not reach its contents")
	}
	manager := direct.ContentManager()
	objects, err := object.NewObjectManager(ctx, newRewriter(m, manager, manager.WriteContent, manager.ContentFormat().HashFunc()), direct.ObjectFormat(), nil)
	if err != nil {
		return nil, fmt.Errorf("write what is missing from the repository: %w", err)
	}
	return &rewriting{DirectRepositoryWriter: direct, missing: m, objects: objects}, nil
}

// rewriter writes contents. B is Kopia's type of their bytes, which only Kopia can name.
type rewriter[B any] struct {
	*content.WriteManager
	missing *Missing
	write   func(context.Context, B, content.IDPrefix, compression.HeaderID) (content.ID, error)
	hash    func([]byte, B) []byte
	// forgetting is held while a content is checked and marked, so that a just rewritten one is not
	// marked.
	forgetting sync.Mutex
}

func newRewriter[B any](m *Missing, manager *content.WriteManager, write func(context.Context, B, content.IDPrefix, compression.HeaderID) (content.ID, error), hash func([]byte, B) []byte) *rewriter[B] {
	return &rewriter[B]{WriteManager: manager, missing: m, write: write, hash: hash}
}

// WriteContent writes a content even if the index names it in a missing pack.
func (r *rewriter[B]) WriteContent(ctx context.Context, data B, prefix content.IDPrefix, compressor compression.HeaderID) (content.ID, error) {
	id, err := content.IDFromHash(prefix, r.hash(nil, data))
	if err == nil {
		err = r.forget(ctx, id)
	}
	if err != nil {
		return content.EmptyID, err
	}
	return r.write(ctx, data, prefix, compressor)
}

// forget marks a content of a missing pack as deleted, so that Kopia writes it again. The new entry
// is later than the mark, and the mark than the old.
func (r *rewriter[B]) forget(ctx context.Context, id content.ID) error {
	r.forgetting.Lock()
	defer r.forgetting.Unlock()
	info, err := r.ContentInfo(ctx, id)
	if err != nil || info.Deleted || !r.missing.has(info) {
		return nil // an unknown content is written anyway
	}
	if err := r.DeleteContent(ctx, id); err != nil {
		return fmt.Errorf("mark a content whose pack is missing: %w", err)
	}
	return nil
}

type rewriting struct {
	repo.DirectRepositoryWriter
	missing *Missing
	objects *object.Manager
}

func (w *rewriting) NewObjectWriter(ctx context.Context, options object.WriterOptions) object.Writer {
	return w.objects.NewWriter(ctx, options)
}

func (w *rewriting) ConcatenateObjects(ctx context.Context, ids []object.ID, options repo.ConcatenateOptions) (object.ID, error) {
	return w.objects.Concatenate(ctx, ids, options.Compressor)
}

func (w *rewriting) VerifyObject(ctx context.Context, id object.ID) ([]content.ID, error) {
	ids, err := w.DirectRepositoryWriter.VerifyObject(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if info, err := w.ContentInfo(ctx, id); err != nil || w.missing.has(info) {
			return nil, fmt.Errorf("content %s: %w", id, errors.Join(errMissing, err))
		}
	}
	return ids, nil
}

// longestFiltered bounds filtered listings, some 200,000 files. Longer ones are not used.
const longestFiltered = 32 << 20

// OpenObject returns listings without files that have missing contents; a missing listing is empty.
func (w *rewriting) OpenObject(ctx context.Context, id object.ID) (object.Reader, error) {
	if _, err := w.VerifyObject(ctx, id); err != nil {
		return w.listing(ctx, &snapshot.DirManifest{StreamType: folderStream}), ctx.Err()
	}
	opened, err := w.DirectRepositoryWriter.OpenObject(ctx, id)
	if err != nil {
		return nil, err
	}
	begin := make([]byte, len(folderBegin))
	if _, err := io.ReadFull(opened, begin); err != nil || string(begin) != folderBegin {
		_, err := opened.Seek(0, io.SeekStart)
		return opened, err
	}
	defer opened.Close()
	folder := snapshot.DirManifest{StreamType: folderStream}
	if opened.Length() <= longestFiltered {
		var read snapshot.DirManifest
		if err := json.NewDecoder(io.MultiReader(bytes.NewReader(begin), opened)).Decode(&read); err != nil {
			return nil, fmt.Errorf("read the listing of a folder: %w", err)
		}
		folder.Summary = read.Summary
		for _, entry := range read.Entries {
			if _, err := w.VerifyObject(ctx, entry.ObjectID); err == nil || entry.Type == snapshot.EntryTypeDirectory {
				folder.Entries = append(folder.Entries, entry)
			}
		}
	}
	return w.listing(ctx, &folder), ctx.Err()
}

// How Kopia's listings begin.
const (
	folderStream = "kopia:directory"
	folderBegin  = `{"stream":"` + folderStream + `"`
)

func (w *rewriting) listing(_ context.Context, folder *snapshot.DirManifest) object.Reader {
	encoded, _ := json.Marshal(folder)
	return &inMemory{bytes.NewReader(encoded)}
}

type inMemory struct{ *bytes.Reader }

func (r *inMemory) Length() int64 { return r.Size() }

func (r *inMemory) Close() error { return nil }
