// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// ErrSnapshotNotFound: the repository has no complete snapshot of the id.
var ErrSnapshotNotFound = errors.New("the repository has no such snapshot")

// RestoreRequest says what to restore, and into which folder.
type RestoreRequest struct {
	SnapshotID string
	// Path, Root and IsMount are as in Folder, which must exist; the latter two are optional.
	Path, Root string
	IsMount    MountProbe
	// Device is as in Folder. All of it is replaced.
	Device bool
	// Only has the paths to restore; all if empty. Other files stay.
	Only []string
	// Replace removes files that the snapshot lacks; otherwise a warning counts them. With Only,
	// neither happens.
	Replace bool
}

// RestoreResult says what was restored.
type RestoreResult struct {
	TotalBytes, Files int64
	Removed           int64
	// Warnings name files without their owner or mode, and the first that the snapshot lacks.
	Warnings Warnings
}

// Restore writes a snapshot into a folder. A failure may leave some files, which a repetition
// replaces.
func Restore(ctx context.Context, r *repository.Repository, req RestoreRequest, p *Progress) (_ RestoreResult, err error) {
	defer func() { err = causeOf(ctx, err) }()
	packs := r.KeepPacks(MemoryOf(ctx).kept())
	defer packs.Release()
	man, err := snapshot.LoadSnapshot(ctx, r.Kopia(), manifest.ID(req.SnapshotID))
	switch {
	case errors.Is(err, snapshot.ErrSnapshotNotFound):
		return RestoreResult{}, fmt.Errorf("%w: %s", ErrSnapshotNotFound, req.SnapshotID)
	case err != nil:
		return RestoreResult{}, fmt.Errorf("read snapshot %s: %w", req.SnapshotID, err)
	case man.IncompleteReason != "" || man.RootEntry == nil || man.RootEntry.DirSummary == nil:
		return RestoreResult{}, fmt.Errorf("%w: %s is not a complete snapshot of a folder", ErrSnapshotNotFound, req.SnapshotID)
	}
	if req.Device {
		return restoreDevice(ctx, r, man, req, p)
	}
	walk := &restoration{repo: r.Kopia(), packs: packs}
	parts, err := walk.find(ctx, man.RootEntry, req.Only)
	if err != nil {
		return RestoreResult{}, fmt.Errorf("find the paths in snapshot %s: %w", req.SnapshotID, err)
	}
	bytes, files := sizeOf(parts)
	p.SetTotal(bytes, files)

	root, err := openConfined(Folder{Path: req.Path, Root: req.Root, IsMount: req.IsMount}, &p.calls)
	if err != nil {
		return RestoreResult{}, err
	}
	defer root.Close()
	out := &output{root: root, beside: len(req.Only) > 0, snapshot: req.SnapshotID, progress: p, readers: semaphore.NewWeighted(MemoryOf(ctx).readers(partReaders))}
	out.notes.logger = klog.FromContext(ctx)
	if err := out.surplus.begin(root, req.Replace); err != nil {
		return RestoreResult{}, err
	}
	out.most = MemoryOf(ctx).keptExtras()
	switch out.extras, err = loadExtras(ctx, r.Kopia(), man, out.most, &out.notes); {
	case errors.Is(err, errNoExtras):
		out.notes.add(".", "did not get its extended attributes and hard links: they are gone from the repository")
	case err != nil:
		return RestoreResult{}, fmt.Errorf("read the extended attributes and hard links of snapshot %s: %w", req.SnapshotID, err)
	}
	walk.out, walk.extras.of = out, out.extras
	if err := walk.run(ctx, parts); err != nil {
		return RestoreResult{}, fmt.Errorf("restore snapshot %s: %w", req.SnapshotID, err)
	}
	if err := root.stillThere(); err != nil {
		return RestoreResult{}, fmt.Errorf("the volume went away while it was written: %w", err)
	}
	if walk.files != files {
		return RestoreResult{}, fmt.Errorf("restored %d of the %d files of snapshot %s", walk.files, files, req.SnapshotID)
	}
	out.surplus.tell(&out.notes)
	return RestoreResult{
		TotalBytes: bytes,
		Files:      files,
		Removed:    out.surplus.removed,
		Warnings:   out.notes.warnings(),
	}, nil
}

// restoration writes the entries of a snapshot. A walk creates the folders. After each batchSize
// entries it writes the files, pack by pack, so that a pack is requested once, then the attributes
// of complete folders. Kopia's own restore writes files by name.
type restoration struct {
	repo  repo.DirectRepository
	packs *repository.Packs
	out   *output
	files int64
	// leaves has this batch's files and links, folders the folders complete after it.
	leaves  []leaf
	folders []leaf
	extras  packedReader
	held    int
}

type leaf struct {
	path   string
	stored *snapshot.DirEntry
	// pack and offset locate its content; empty for many pieces.
	pack   blob.ID
	offset uint32
	// small says that its content is a small piece of the pack.
	small bool
	// extra is the leaf's line of extras, line its number, looked up in the order of names to
	// unpack few blocks.
	extra []byte
	line  int
}

const (
	// batchSize is the entries of a batch, some 25 MB; extras may reduce it to leastBatch.
	batchSize, leastBatch = 50_000, 10_000
	entryMemory           = 512
)

func (w *restoration) isFull() bool {
	most := batchSize
	if w.out.extras != nil {
		most = max(leastBatch, min(batchSize, int(volumeMemory-w.out.extras.bytes)/entryMemory))
	}
	return len(w.leaves)+len(w.folders) >= most || w.held >= runBytes
}

type part struct {
	leaf
	in []leaf
}

// find fails before any write if the snapshot lacks a requested part.
func (w *restoration) find(ctx context.Context, root *snapshot.DirEntry, only []string) (parts []part, err error) {
	if len(only) == 0 {
		return []part{{leaf: leaf{stored: root}}}, nil
	}
	paths := make([]string, 0, len(only))
	for _, asked := range only {
		if cleaned := path.Clean(asked); cleaned == "." || !filepath.IsLocal(cleaned) {
			return nil, fmt.Errorf("%q is no path in a volume", asked)
		} else {
			paths = append(paths, cleaned)
		}
	}
	slices.Sort(paths)
	for _, wanted := range slices.Compact(paths) {
		if slices.ContainsFunc(parts, func(p part) bool { return strings.HasPrefix(wanted, p.path+"/") }) {
			continue // part of another one
		}
		found := part{leaf: leaf{stored: root}}
		for name := range strings.SplitSeq(wanted, "/") {
			var entries []*snapshot.DirEntry
			if found.stored.Type == snapshot.EntryTypeDirectory {
				if entries, err = readFolder(ctx, w.repo, found.stored); err != nil {
					return nil, err
				}
			}
			i := slices.IndexFunc(entries, func(entry *snapshot.DirEntry) bool { return entry.Name == name })
			if i < 0 {
				return nil, fmt.Errorf("%q is not in it", wanted)
			}
			if found.path != "" {
				found.in = append(found.in, found.leaf)
			}
			found.leaf = leaf{path: path.Join(found.path, name), stored: entries[i]}
		}
		parts = append(parts, found)
	}
	return parts, nil
}

func sizeOf(parts []part) (bytes, files int64) {
	for _, p := range parts {
		switch {
		case p.stored.DirSummary != nil:
			bytes, files = bytes+p.stored.DirSummary.TotalFileSize, files+p.stored.DirSummary.TotalFileCount
		case p.stored.Type == snapshot.EntryTypeFile:
			bytes, files = bytes+p.stored.FileSize, files+1
		}
	}
	return bytes, files
}

func (w *restoration) run(ctx context.Context, parts []part) error {
	var made []leaf
	for _, p := range parts {
		for _, folder := range p.in {
			isNew, err := w.out.EnsureDirectory(folder.path)
			if err != nil {
				return err
			}
			if isNew {
				made = append(made, folder)
			}
		}
		do := w.meet
		if p.stored.Type == snapshot.EntryTypeDirectory {
			do = w.folder
		}
		if err := do(ctx, p.path, p.stored); err != nil {
			return err
		}
	}
	slices.Reverse(made) // inner folders first
	w.folders = append(w.folders, made...)
	if err := w.write(ctx); err != nil {
		return err
	}
	return w.out.Close(ctx)
}

func (w *restoration) folder(ctx context.Context, rel string, stored *snapshot.DirEntry) error {
	if len(rel) > longestPath {
		return fmt.Errorf("write %.500q: %w", rel, errTooLong)
	}
	existed, err := w.out.BeginDirectory(ctx, rel)
	if err != nil {
		return err
	}
	entries, err := readFolder(ctx, w.repo, stored)
	if err != nil {
		return err
	}
	if existed && !w.out.beside {
		if err := w.out.settleSurplus(ctx, rel, entries); err != nil {
			return err
		}
	}
	for _, entry := range entries {
		if entry.Name == "" || entry.Name == "." || entry.Name == ".." || strings.Contains(entry.Name, "/") {
			return fmt.Errorf("folder %q of the snapshot has an entry with the name %q", stored.Name, entry.Name)
		}
		below := path.Join(rel, entry.Name)
		if entry.Type == snapshot.EntryTypeDirectory {
			err = w.folder(ctx, below, entry)
		} else {
			err = w.meet(ctx, below, entry)
		}
		if err != nil {
			return err
		}
	}
	w.folders = append(w.folders, leaf{path: rel, stored: stored})
	if w.isFull() { // empty folders are no leaves
		return w.write(ctx)
	}
	return nil
}

func (w *restoration) meet(ctx context.Context, rel string, stored *snapshot.DirEntry) error {
	if w.isFull() {
		if err := w.write(ctx); err != nil {
			return err
		}
	}
	met := leaf{path: rel, stored: stored}
	if id, _, single := stored.ObjectID.ContentID(); single {
		// A content without info fails when it is read.
		if info, err := w.repo.ContentInfo(ctx, id); err == nil {
			met.pack, met.offset, met.small = info.PackBlobID, info.PackOffset, info.PackedLength <= repository.SmallPiece
		}
	}
	if stored.Type == snapshot.EntryTypeFile && w.extras.of != nil {
		known, line, err := w.extras.find(rel)
		if err != nil {
			return err
		}
		met.extra, met.line = slices.Clone(known), line // else it would keep its block
		w.held += len(known)
	}
	w.leaves = append(w.leaves, met)
	return nil
}

func decodeExtra(known []byte, line int) (x extra, err error) {
	x.line = line
	if known != nil {
		err = json.Unmarshal(known, &x)
	}
	return x, err
}

func (w *restoration) write(ctx context.Context) error {
	slices.SortFunc(w.leaves, func(a, b leaf) int { return cmp.Or(cmp.Compare(a.pack, b.pack), cmp.Compare(a.offset, b.offset)) })
	wanted := map[blob.ID]int{}
	for _, met := range w.leaves {
		if met.small {
			wanted[met.pack]++
		}
	}
	for pack, pieces := range wanted {
		w.packs.Expect(pack, pieces)
	}
	writing, writingCtx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range parallelism(16) {
		writing.Go(func() error {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(w.leaves)) {
					return nil
				}
				if err := w.leaf(writingCtx, w.leaves[i]); err != nil {
					return err
				}
			}
		})
	}
	if err := writing.Wait(); err != nil {
		return err
	}
	for _, met := range w.folders {
		var had extra
		if w.extras.of != nil {
			known, line, err := w.extras.find(name(met.path))
			if err != nil {
				return err
			}
			if had, err = decodeExtra(known, line); err != nil {
				return err
			}
		}
		if err := w.out.FinishDirectory(met.path, w.entry(met), had); err != nil {
			return err
		}
	}
	for _, met := range w.leaves {
		if met.stored.Type == snapshot.EntryTypeFile {
			w.files++
		}
	}
	w.leaves, w.folders, w.held = w.leaves[:0], w.folders[:0], 0
	return nil
}

func (w *restoration) leaf(ctx context.Context, met leaf) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch entry := w.entry(met).(type) {
	case fs.File:
		done, err := MemoryOf(ctx).file(ctx)
		if err != nil {
			return err
		}
		defer done()
		had, err := decodeExtra(met.extra, met.line)
		if err != nil {
			return err
		}
		if err := w.out.WriteFile(ctx, met.path, entry, had); err != nil {
			return err
		}
		w.out.progress.AddFile()
		return nil
	case fs.Symlink:
		return w.out.CreateSymlink(ctx, met.path, entry)
	}
	return fmt.Errorf("%q of the snapshot is a %q, which nobody knows", met.path, met.stored.Type)
}

func (w *restoration) entry(met leaf) fs.Entry {
	return snapshotfs.EntryFromDirEntry(w.repo, met.stored)
}

const directoryStream = "kopia:directory"

// storedFolder replaces snapshot.DirManifest, whose decoders take most of the time.
type storedFolder struct {
	StreamType string        `json:"stream"`
	Entries    []storedEntry `json:"entries"`
}

type storedEntry struct {
	Name       string               `json:"name"`
	Type       snapshot.EntryType   `json:"type"`
	Mode       string               `json:"mode"` // octal, as in C; none is 0
	Size       int64                `json:"size"`
	ModTime    fs.UTCTimestamp      `json:"mtime"`
	UserID     uint32               `json:"uid"`
	GroupID    uint32               `json:"gid"`
	ObjectID   string               `json:"obj"`
	DirSummary *fs.DirectorySummary `json:"summ"`
}

func (e *storedEntry) decode(to *snapshot.DirEntry) (err error) {
	*to = snapshot.DirEntry{Name: e.Name, Type: e.Type, FileSize: e.Size, ModTime: e.ModTime, UserID: e.UserID, GroupID: e.GroupID, DirSummary: e.DirSummary}
	if e.Mode != "" {
		mode, err := strconv.ParseInt(e.Mode, 0, 32)
		if err != nil {
			return fmt.Errorf("the mode of %q: %w", e.Name, err)
		}
		to.Permissions = snapshot.Permissions(mode)
	}
	if e.ObjectID != "" {
		if to.ObjectID, err = object.ParseID(e.ObjectID); err != nil {
			return fmt.Errorf("the content of %q: %w", e.Name, err)
		}
	}
	return nil
}

// readFolder reads a folder's entries. Kopia's own view gives subfolders the times of their newest
// files.
func readFolder(ctx context.Context, r repo.Repository, stored *snapshot.DirEntry) ([]*snapshot.DirEntry, error) {
	content, err := r.OpenObject(ctx, stored.ObjectID)
	if err != nil {
		return nil, fmt.Errorf("open folder %q of the snapshot: %w", stored.Name, err)
	}
	defer content.Close()
	var folder storedFolder
	if err := json.NewDecoder(content).Decode(&folder); err != nil {
		return nil, fmt.Errorf("read folder %q of the snapshot: %w", stored.Name, err)
	}
	if folder.StreamType != directoryStream {
		return nil, fmt.Errorf("folder %q of the snapshot is a %q", stored.Name, folder.StreamType)
	}
	all, entries := make([]snapshot.DirEntry, len(folder.Entries)), make([]*snapshot.DirEntry, len(folder.Entries))
	for i := range folder.Entries {
		if err := folder.Entries[i].decode(&all[i]); err != nil {
			return nil, fmt.Errorf("read folder %q of the snapshot: %w", stored.Name, err)
		}
		entries[i] = &all[i]
	}
	return entries, nil
}
