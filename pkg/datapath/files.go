// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

var (
	// ErrNoFile means that the snapshot lacks the path.
	ErrNoFile = errors.New("the volume backup has no such file or folder")
	// ErrFileKind means that the path has another kind.
	ErrFileKind = errors.New("it is of another kind")
	// ErrFilePath means that no volume can have the path.
	ErrFilePath = errors.New("the path is not valid")
	// ErrFileToken means that the token is not the folder's.
	ErrFileToken = errors.New("the continue token is not one that a page of this folder has returned")
)

// FileType is the type of a StoredFile.
type FileType string

// The types of stored files.
const (
	TypeFile   FileType = "File"
	TypeFolder FileType = "Folder"
	TypeLink   FileType = "Link"
	TypeOther  FileType = "Other"
)

// StoredFile is a file, folder or link of a snapshot.
type StoredFile struct {
	Name string
	Type FileType
	// Size is the file's, or the total below the folder; Files is the number below.
	Size, Files int64
	// Mode has the permissions, setuid, setgid and sticky.
	Mode            os.FileMode
	ModTime         time.Time
	UserID, GroupID uint32
}

func describeFile(e *snapshot.DirEntry) StoredFile {
	f := StoredFile{
		Name: e.Name, Type: TypeOther, Size: e.FileSize, Mode: os.FileMode(e.Permissions) & fs.ModBits,
		ModTime: e.ModTime.ToTime(), UserID: e.UserID, GroupID: e.GroupID,
	}
	switch e.Type {
	case snapshot.EntryTypeFile:
		f.Type = TypeFile
	case snapshot.EntryTypeSymlink:
		f.Type = TypeLink
	case snapshot.EntryTypeDirectory:
		f.Type, f.Size = TypeFolder, 0
		if e.DirSummary != nil {
			f.Size, f.Files = e.DirSummary.TotalFileSize, e.DirSummary.TotalFileCount
		}
	}
	return f
}

// Files reads the files of a snapshot. It remembers some folders, so that a walk finds each file at
// once. It is safe for concurrent use, also with a reopened repository.
//
// A hostile agent may have written the snapshot: folders are read as a stream, with memory for one
// entry.
type Files struct {
	root *snapshot.DirEntry

	mu      sync.Mutex
	folders map[string]*snapshot.DirEntry
}

const mostKnownFolders = 256

// OpenFiles reads a snapshot. Without a complete one it fails with ErrSnapshotNotFound.
func OpenFiles(ctx context.Context, r *repository.Repository, snapshotID string) (*Files, error) {
	man, err := snapshot.LoadSnapshot(ctx, r.Kopia(), manifest.ID(snapshotID))
	switch {
	case errors.Is(err, snapshot.ErrSnapshotNotFound):
		return nil, fmt.Errorf("%w: %s", ErrSnapshotNotFound, snapshotID)
	case err != nil:
		return nil, fmt.Errorf("read snapshot %s: %w", snapshotID, causeOf(ctx, err))
	case man.IncompleteReason != "" || man.RootEntry == nil:
		return nil, fmt.Errorf("%w: %s is not complete", ErrSnapshotNotFound, snapshotID)
	}
	return &Files{root: man.RootEntry}, nil
}

// CleanFilePath returns the elements of a path from the volume's root.
func CleanFilePath(asked string) ([]string, error) {
	switch {
	case len(asked) > longestPath:
		return nil, fmt.Errorf("%w: %w", ErrFilePath, errTooLong)
	case !utf8.ValidString(asked):
		return nil, fmt.Errorf("%w: it is not UTF-8, as the names in a snapshot are", ErrFilePath)
	case strings.Contains(asked, "\x00"):
		return nil, fmt.Errorf("%w: it has a zero byte", ErrFilePath)
	}
	var elements []string
	for element := range strings.SplitSeq(asked, "/") {
		switch element {
		case "", ".":
		case "..":
			return nil, fmt.Errorf("%w: it must not have the element %q", ErrFilePath, element)
		default:
			elements = append(elements, element)
		}
	}
	return elements, nil
}

func shown(elements []string) string { return "/" + strings.Join(elements, "/") }

func (f *Files) find(ctx context.Context, r *repository.Repository, asked string) (*snapshot.DirEntry, []string, error) {
	elements, err := CleanFilePath(asked)
	if err != nil {
		return nil, nil, err
	}
	at, from := f.root, 0
	for i := len(elements); i > 0; i-- {
		if known := f.known(shown(elements[:i])); known != nil {
			at, from = known, i
			break
		}
	}
	for i := from; i < len(elements); i++ {
		if at.Type != snapshot.EntryTypeDirectory {
			return nil, nil, f.noFolder(ctx, r, at, elements[:i])
		}
		at, err = child(ctx, r, at, elements[i])
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("read the folder %q: %w", shown(elements[:i]), err)
		case at == nil:
			return nil, nil, fmt.Errorf("%w: %q", ErrNoFile, shown(elements[:i+1]))
		case at.Type == snapshot.EntryTypeDirectory:
			f.remember(shown(elements[:i+1]), at)
		}
	}
	return at, elements, nil
}

func (f *Files) known(path string) *snapshot.DirEntry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.folders[path]
}

func (f *Files) remember(path string, folder *snapshot.DirEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.folders == nil || len(f.folders) >= mostKnownFolders {
		f.folders = map[string]*snapshot.DirEntry{}
	}
	f.folders[path] = folder
}

func (f *Files) noFolder(ctx context.Context, r *repository.Repository, at *snapshot.DirEntry, elements []string) error {
	if at.Type != snapshot.EntryTypeSymlink {
		return fmt.Errorf("%w: %q is no folder", ErrFileKind, shown(elements))
	}
	target, err := readLink(ctx, r, at)
	if err != nil {
		return err
	}
	return isLink(elements, target)
}

func isLink(elements []string, target string) error {
	return fmt.Errorf("%w: %q is a symbolic link to %q, and links are not followed: ask for what it points to", ErrFileKind, shown(elements), target)
}

func child(ctx context.Context, r *repository.Repository, folder *snapshot.DirEntry, name string) (*snapshot.DirEntry, error) {
	entries, err := openListing(ctx, r, folder, 0)
	if err != nil {
		return nil, err
	}
	defer entries.Close()
	for {
		entry, err := entries.next(ctx)
		if err != nil || entry == nil || entry.Name == name {
			return entry, err
		}
	}
}

// List returns the file at a path, and a page of a folder's entries: folders first, each by name.
// The token from is of the page before, next of the page after; both may be empty.
func (f *Files) List(ctx context.Context, r *repository.Repository, asked, from string, limit int) (of StoredFile, items []StoredFile, next string, err error) {
	defer func() { err = causeOf(ctx, err) }()
	folder, elements, err := f.find(ctx, r, asked)
	if err != nil {
		return StoredFile{}, nil, "", err
	}
	of = describeFile(folder)
	if len(elements) == 0 {
		of.Name = "/"
	}
	if of.Type != TypeFolder {
		if from != "" {
			return StoredFile{}, nil, "", ErrFileToken
		}
		return of, nil, "", nil
	}
	offset, err := parseToken(folder, from)
	if err != nil {
		return StoredFile{}, nil, "", err
	}
	entries, err := openListing(ctx, r, folder, offset)
	if err != nil {
		return StoredFile{}, nil, "", err
	}
	defer entries.Close()
	for {
		at := entries.offset()
		entry, err := entries.next(ctx)
		if err != nil {
			return StoredFile{}, nil, "", fmt.Errorf("read the folder %q: %w", shown(elements), err)
		}
		if entry == nil {
			return of, items, "", nil
		}
		if len(items) == limit {
			return of, items, newToken(folder, at), nil
		}
		items = append(items, describeFile(entry))
	}
}

// Link returns the target of the symbolic link at a path.
func (f *Files) Link(ctx context.Context, r *repository.Repository, asked string) (_ StoredFile, target string, err error) {
	defer func() { err = causeOf(ctx, err) }()
	entry, elements, err := f.find(ctx, r, asked)
	switch {
	case err != nil:
		return StoredFile{}, "", err
	case entry.Type != snapshot.EntryTypeSymlink:
		return StoredFile{}, "", fmt.Errorf("%w: %q is no symbolic link", ErrFileKind, shown(elements))
	}
	target, err = readLink(ctx, r, entry)
	return describeFile(entry), target, err
}

// longestLink is more than Linux allows.
const longestLink = 64 << 10

func readLink(ctx context.Context, r *repository.Repository, link *snapshot.DirEntry) (string, error) {
	content, err := r.Kopia().OpenObject(ctx, link.ObjectID)
	if err != nil {
		return "", fmt.Errorf("read the target of the link %q: %w", link.Name, err)
	}
	defer content.Close()
	target, err := io.ReadAll(io.LimitReader(content, longestLink))
	if err != nil {
		return "", fmt.Errorf("read the target of the link %q: %w", link.Name, err)
	}
	return string(target), nil
}

// Content is the data of a file. Each read is checked by digest.
type Content interface {
	io.ReadSeekCloser
}

// Open opens the file at a path. The caller closes it.
func (f *Files) Open(ctx context.Context, r *repository.Repository, asked string) (_ StoredFile, _ Content, err error) {
	defer func() { err = causeOf(ctx, err) }()
	entry, elements, err := f.find(ctx, r, asked)
	if err != nil {
		return StoredFile{}, nil, err
	}
	switch of := describeFile(entry); of.Type {
	case TypeFile:
		file, ok := snapshotfs.EntryFromDirEntry(r.Kopia(), entry).(fs.File)
		if !ok {
			return StoredFile{}, nil, fmt.Errorf("%w: %q is no file", ErrFileKind, shown(elements))
		}
		content, err := file.Open(ctx)
		if err != nil {
			return StoredFile{}, nil, fmt.Errorf("open the file %q: %w", shown(elements), err)
		}
		size, err := content.Seek(0, io.SeekEnd)
		if err == nil && size != of.Size {
			err = fmt.Errorf("the snapshot has %d bytes of it, and should have %d", size, of.Size)
		}
		if err == nil {
			_, err = content.Seek(0, io.SeekStart)
		}
		if err != nil {
			content.Close()
			return StoredFile{}, nil, fmt.Errorf("open the file %q: %w", shown(elements), err)
		}
		return of, content, nil
	case TypeLink:
		target, err := readLink(ctx, r, entry)
		if err != nil {
			return StoredFile{}, nil, err
		}
		return StoredFile{}, nil, isLink(elements, target)
	case TypeFolder:
		return StoredFile{}, nil, fmt.Errorf("%w: %q is a folder", ErrFileKind, shown(elements))
	}
	return StoredFile{}, nil, fmt.Errorf("%w: %q is no file, but a %q, such as a device, a pipe or a socket", ErrFileKind, shown(elements), entry.Type)
}

func newToken(folder *snapshot.DirEntry, offset int64) string {
	return fmt.Sprintf("%s.%d", listingDigest(folder), offset)
}

func listingDigest(folder *snapshot.DirEntry) string {
	sum := sha256.Sum256([]byte(folder.ObjectID.String()))
	return hex.EncodeToString(sum[:8])
}

func parseToken(folder *snapshot.DirEntry, token string) (offset int64, err error) {
	if token == "" {
		return 0, nil
	}
	digest, text, _ := strings.Cut(token, ".")
	offset, err = strconv.ParseInt(text, 10, 64)
	if err != nil || offset <= 0 || digest != listingDigest(folder) {
		return 0, ErrFileToken
	}
	return offset, nil
}

type folderListing struct {
	content object.Reader
	bounded *boundedReader
	decoder *json.Decoder
	// base is where the decoder's input begins in the content.
	base  int64
	count int
	ended bool
}

// largestEntry bounds an entry and the bytes read ahead; a name has 255.
const largestEntry = 1 << 20

var errEntry = fmt.Errorf("an entry of it takes more than %d bytes", largestEntry)

type boundedReader struct {
	io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errEntry
	}
	n, err := b.Reader.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// openListing opens a folder's entries from a place behind an entry, or from 0.
func openListing(ctx context.Context, r *repository.Repository, folder *snapshot.DirEntry, offset int64) (_ *folderListing, err error) {
	content, err := r.Kopia().OpenObject(ctx, folder.ObjectID)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			content.Close()
		}
	}()
	l := &folderListing{content: content, bounded: &boundedReader{content, largestEntry}, base: offset}
	if offset == 0 {
		l.decoder = json.NewDecoder(l.bounded)
		return l, l.begin()
	}
	if _, err := content.Seek(offset, io.SeekStart); err != nil {
		return nil, ErrFileToken
	}
	separator := []byte{0}
	if _, err := io.ReadFull(content, separator); errors.Is(err, io.EOF) {
		return nil, ErrFileToken
	} else if err != nil {
		return nil, err
	}
	switch separator[0] {
	case ']':
		l.ended = true
		return l, nil
	case ',':
	default:
		return nil, ErrFileToken
	}
	// The bracket takes the place of the comma.
	l.decoder = json.NewDecoder(io.MultiReader(strings.NewReader("["), l.bounded))
	_, err = l.decoder.Token()
	return l, err
}

func (l *folderListing) begin() error {
	if err := l.expect(json.Delim('{')); err != nil {
		return err
	}
	for known := false; ; {
		key, err := l.decoder.Token()
		if err != nil {
			return err
		}
		switch key {
		case "stream":
			if err := l.expect(directoryStream); err != nil {
				return err
			}
			known = true
		case "entries":
			if !known {
				return fmt.Errorf("it does not say that it is a %q", directoryStream)
			}
			first, err := l.decoder.Token()
			if first == nil && err == nil { // null
				l.ended = true
				return nil
			}
			if err == nil && first != json.Delim('[') {
				err = fmt.Errorf("its entries begin with %v", first)
			}
			return err
		case json.Delim('}'):
			l.ended = true
			return nil
		default:
			var skipped json.RawMessage
			if err := l.decoder.Decode(&skipped); err != nil {
				return err
			}
		}
	}
}

func (l *folderListing) expect(wanted json.Token) error {
	got, err := l.decoder.Token()
	if err == nil && got != wanted {
		err = fmt.Errorf("it has %v in place of %v", got, wanted)
	}
	return err
}

func (l *folderListing) offset() int64 {
	if l.decoder == nil {
		return l.base
	}
	return l.base + l.decoder.InputOffset()
}

// next returns the next entry, or nil at the end.
func (l *folderListing) next(ctx context.Context) (*snapshot.DirEntry, error) {
	if l.count++; l.count%1024 == 0 && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	l.bounded.left = largestEntry
	if l.ended || !l.decoder.More() {
		// More is false at an error, too.
		if !l.ended {
			return nil, l.expect(json.Delim(']'))
		}
		return nil, nil
	}
	var stored storedEntry
	if err := l.decoder.Decode(&stored); err != nil {
		return nil, err
	}
	if stored.Name == "" || stored.Name == "." || stored.Name == ".." || strings.ContainsAny(stored.Name, "/\x00") {
		return nil, fmt.Errorf("it has an entry with the name %.255q", stored.Name)
	}
	entry := new(snapshot.DirEntry)
	return entry, stored.decode(entry)
}

func (l *folderListing) Close() { l.content.Close() }
