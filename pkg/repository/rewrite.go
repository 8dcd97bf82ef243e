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

// errMissing: a content lies in a pack that the store lacks.
var errMissing = errors.New("the pack of a content is missing from the store")

// Writer returns a writer to which the contents of missing packs do not exist. They are
// written anew, under the same names, so that earlier snapshots with the same data are whole
// again. A file of an earlier snapshot that has such a content is not in the listings that
// the writer reads, so that the file is read again. Without missing packs w itself is returned.
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
	// forgetting is held while a content is looked at and marked, so that what another
	// goroutine has just written anew is not marked.
	forgetting sync.Mutex
}

func newRewriter[B any](m *Missing, manager *content.WriteManager, write func(context.Context, B, content.IDPrefix, compression.HeaderID) (content.ID, error), hash func([]byte, B) []byte) *rewriter[B] {
	return &rewriter[B]{WriteManager: manager, missing: m, write: write, hash: hash}
}

// WriteContent writes a content, also if the index names it in a missing pack.
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

// forget marks a content of a missing pack as deleted, which Kopia then writes again. The new
// entry of the index is later than the mark, which is later than the entry that was there.
func (r *rewriter[B]) forget(ctx context.Context, id content.ID) error {
	r.forgetting.Lock()
	defer r.forgetting.Unlock()
	info, err := r.ContentInfo(ctx, id)
	if err != nil || info.Deleted || !r.missing.has(info) {
		return nil // a content that is not known is written in any case
	}
	if err := r.DeleteContent(ctx, id); err != nil {
		return fmt.Errorf("mark a content whose pack is missing: %w", err)
	}
	return nil
}

// rewriting is a repository to which the contents of missing packs do not exist.
type rewriting struct {
	repo.DirectRepositoryWriter
	missing *Missing
	objects *object.Manager
}

// NewObjectWriter implements repo.RepositoryWriter.
func (w *rewriting) NewObjectWriter(ctx context.Context, options object.WriterOptions) object.Writer {
	return w.objects.NewWriter(ctx, options)
}

// ConcatenateObjects implements repo.RepositoryWriter.
func (w *rewriting) ConcatenateObjects(ctx context.Context, ids []object.ID, options repo.ConcatenateOptions) (object.ID, error) {
	return w.objects.Concatenate(ctx, ids, options.Compressor)
}

// VerifyObject implements repo.Repository.
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

// longestFiltered is up to how many bytes of a listing are filtered, some 200,000 files. Of a
// longer one nothing is relied on.
const longestFiltered = 32 << 20

// OpenObject implements repo.Repository. A listing lacks the files that are not whole, and one
// that is not whole itself is empty.
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

// listing is the object of a listing.
func (w *rewriting) listing(_ context.Context, folder *snapshot.DirManifest) object.Reader {
	encoded, _ := json.Marshal(folder) // it was decoded, or is empty
	return &inMemory{bytes.NewReader(encoded)}
}

// inMemory is an object that is in memory.
type inMemory struct{ *bytes.Reader }

// Length implements object.Reader.
func (r *inMemory) Length() int64 { return r.Size() }

// Close implements object.Reader.
func (r *inMemory) Close() error { return nil }
