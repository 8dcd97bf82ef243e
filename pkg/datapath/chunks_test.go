// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/snapshotfs"
)

// uploadInParts stores a folder as Upload does, but in parts above so many bytes.
func (s store) uploadInParts(t *testing.T, dir string, above int64) (man *snapshot.Manifest) {
	t.Helper()
	vol, err := openVolume(Folder{Path: dir}, &notes{}, new(Progress))
	must(t, err)
	defer vol.close()
	folder, err := vol.folder()
	must(t, err)
	policies := uploadPolicy()
	limit := policy.OptionalInt64(above)
	policies.EffectivePolicy().UploadPolicy.ParallelUploadAboveSize = &limit
	must(t, repo.WriteSession(t.Context(), s.open(t).Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) (err error) {
		man, err = uploadFolder(ctx, w, folder, policies, snapshot.SourceInfo{Host: "h", UserName: "u", Path: dir}, nil, nil, &uploadObserver{progress: new(Progress), notes: vol.notes})
		return err
	}))
	return man
}

// chunks are the pieces that a file is stored in, by their names.
func (s store) chunks(t *testing.T, root *snapshot.DirEntry, file string) map[content.ID]content.Info {
	t.Helper()
	r := s.open(t).Kopia()
	folder := snapshotfs.EntryFromDirEntry(r, root)
	entry, err := snapshotfs.GetNestedEntry(t.Context(), folder, []string{file})
	must(t, err)
	ids, err := r.VerifyObject(t.Context(), entry.(object.HasObjectID).ObjectID())
	must(t, err)
	found := map[content.ID]content.Info{}
	for _, id := range ids {
		if id.HasPrefix() {
			continue // a list of chunks
		}
		info, err := r.ContentInfo(t.Context(), id)
		must(t, err)
		if info.OriginalLength > 0 { // a file that ends with a part has one without content
			found[id] = info
		}
	}
	return found
}

// content is that of a file, as Kopia reads it.
func (s store) content(t *testing.T, root *snapshot.DirEntry, file string) []byte {
	t.Helper()
	r := s.open(t).Kopia()
	entry, err := snapshotfs.GetNestedEntry(t.Context(), snapshotfs.EntryFromDirEntry(r, root), []string{file})
	must(t, err)
	reader, err := r.OpenObject(t.Context(), entry.(object.HasObjectID).ObjectID())
	must(t, err)
	defer reader.Close()
	read, err := io.ReadAll(reader)
	must(t, err)
	return read
}

// Images of disks and databases are cut every mebibyte, whether in parts or not, and all
// else by its content.
func TestChunks(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	const size = 6 << 20
	random := rand.NewChaCha8([32]byte{1})
	inPlace := map[string]bool{"disk.img": true, "disk.QCOW2": true, "a.b.sqlite": true, "zeros.raw": true, "dump.sql": false, "img": false, "disk.img.gz": false}
	for name := range inPlace {
		file := make([]byte, size)
		if name != "zeros.raw" {
			_, _ = random.Read(file)
		}
		write(t, filepath.Join(dir, name), string(file))
	}
	write(t, filepath.Join(dir, "tiny"), strings.Repeat("x", compressedFrom-1))
	write(t, filepath.Join(dir, "small"), strings.Repeat("x", compressedFrom))
	write(t, filepath.Join(dir, "tiny.db"), strings.Repeat("x", compressedFrom/2))
	man := s.uploadInParts(t, dir, partsAbove)
	for name, want := range map[string]bool{"tiny": false, "small": true, "tiny.db": true} {
		for _, chunk := range s.chunks(t, man.RootEntry, name) {
			if compressed := chunk.CompressionHeaderID != 0; compressed != want {
				t.Errorf("%s: compressed: %v", name, compressed)
			}
		}
	}
	for name, want := range inPlace {
		chunks := s.chunks(t, man.RootEntry, name)
		all := true
		for _, chunk := range chunks {
			all = all && chunk.OriginalLength == 1<<20
			if compressed := chunk.CompressionHeaderID != 0; compressed != (name == "zeros.raw") {
				t.Errorf("%s: a chunk of %d bytes has %d, compressed: %v", name, chunk.OriginalLength, chunk.PackedLength, compressed)
			}
		}
		if all != want || name == "disk.img" && len(chunks) != 6 {
			t.Errorf("%s is cut every mebibyte: %v (%d chunks)", name, all, len(chunks))
		}
	}

	before := s.chunks(t, man.RootEntry, "disk.img")
	disk, err := os.OpenFile(filepath.Join(dir, "disk.img"), os.O_WRONLY, 0)
	must(t, err)
	_, err = disk.WriteAt(bytes.Repeat([]byte("x"), 4096), 5<<19)
	must(t, err)
	must(t, disk.Close())
	anew := 0
	for id := range s.chunks(t, s.uploadInParts(t, dir, 2<<20).RootEntry, "disk.img") {
		if _, known := before[id]; !known {
			anew++
		}
	}
	if anew != 1 {
		t.Errorf("%d chunks are stored for a block that has changed", anew)
	}
}

// A file is the same object whether it was stored by Kopia alone or by us: as a small one, up
// to the last byte that a small one has; of one piece or more, of the least and the greatest
// length that one has. So each finds again what the other has stored.
func TestSameObjects(t *testing.T) {
	random := make([]byte, 20<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(random)
	content := slices.Concat(random, make([]byte, 5<<20), bytes.Repeat([]byte{1, 2, 3}, 6<<20)) // of 2 MiB each, and of 8 MiB
	must(t, repo.WriteSession(t.Context(), newStore(t).client(t).Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		ours := newChunker(w)
		if !ours.byContent {
			t.Error("files are not cut by us")
		}
		for _, size := range []int{0, 1, smallFile - 1, smallFile, smallFile + 1, 1 << 20, 9 << 20, 25 << 20, len(content)} {
			var ids [2][]object.ID
			for i, w := range []repo.RepositoryWriter{w, ours} {
				writer := w.NewObjectWriter(ctx, object.WriterOptions{Description: contentOfFile + "name", Compressor: compressor, MetadataCompressor: compressor, AsyncWrites: 1})
				written := 0
				for slice := range slices.Chunk(content[:size], 1+min(size/3, 64<<10)) {
					n, err := writer.Write(slice)
					if err != nil || n != len(slice) {
						t.Errorf("a slice of %d bytes: %d, %v", len(slice), n, err)
					}
					if written += n; written%(7<<20) < n || size <= 1<<20 {
						id, err := writer.Checkpoint()
						must(t, err)
						ids[i] = append(ids[i], id)
					}
				}
				id, err := writer.Result()
				must(t, errors.Join(err, writer.Close()))
				ids[i] = append(ids[i], id)
			}
			if !slices.Equal(ids[0], ids[1]) {
				t.Errorf("a file of %d bytes is %s, and by Kopia alone %s", size, ids[1], ids[0])
			}
		}
		return nil
	}))
}

// The parts of a large file are written at once, but no more of them than there are
// uploads in parallel: each has a pack in memory.
func TestPartsAtOnce(t *testing.T) {
	s, dir := newFarStore(t), t.TempDir()
	file := make([]byte, 100<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(file)
	write(t, filepath.Join(dir, "large.img"), string(file))
	const enough = 2
	var once sync.Once
	together := make(chan struct{})
	s.onPut = func(underWay int64) {
		if underWay >= enough {
			once.Do(func() { close(together) })
		}
		select {
		case <-together:
		case <-time.After(30 * time.Second): // before the client takes it for a stall
			once.Do(func() { close(together) })
		}
	}
	// Parts so small that those of which none waits fill a pack in any case.
	man := s.uploadInParts(t, dir, 12<<20)
	if most := s.mostPuts.Load(); most < enough || most > int64(parallelism(8)) {
		t.Errorf("%d packs were written at once", most)
	}
	if got := s.content(t, man.RootEntry, "large.img"); !bytes.Equal(got, file) {
		t.Errorf("%d bytes came back", len(got))
	}
}

// A file that is cut by its content is put together from parts, too.
func TestPartsByContent(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	file := make([]byte, 30<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(file)
	write(t, filepath.Join(dir, "dump.sql"), string(file))
	man := s.uploadInParts(t, dir, 12<<20)
	if got := s.content(t, man.RootEntry, "dump.sql"); !bytes.Equal(got, file) {
		t.Errorf("%d bytes came back", len(got))
	}
	if chunks := s.chunks(t, man.RootEntry, "dump.sql"); len(chunks) <= 3 { // the parts
		t.Errorf("it is stored in %d chunks", len(chunks))
	}
}

// TestIndexesAreWrittenMeanwhile: of many files not all are in memory until the upload ends.
func TestIndexesAreWrittenMeanwhile(t *testing.T) {
	defer func(was int64) { flushEvery = was }(flushEvery)
	flushEvery = 10
	s, dir := newStore(t), t.TempDir()
	for i := range 35 {
		write(t, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprint(i))
	}
	indexes := func() (n int) {
		must(t, s.client(t).Kopia().BlobReader().ListBlobs(t.Context(), "xn", func(blob.Metadata) error {
			n++
			return nil
		}))
		return n
	}
	before := indexes()
	s.upload(t, dir, web)
	if written := indexes() - before; written != 4 {
		t.Errorf("%d indexes were written, want one for each ten files and one at the end", written)
	}
}
