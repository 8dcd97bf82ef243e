// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"
	"unsafe"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sys/unix"
)

// Kopia has no place for extended attributes, among which are access control lists and
// the capabilities of programs, nor for which names are of one file. They are kept in a
// snapshot of their own beside that of the volume: one file of JSON, a line for each
// file or folder that has some. The tag tagExtras of the volume's snapshot has its id.
// A volume without any has none. Kopia's own tools and Velero restore the volume as if
// it were not there.

// extra is a line.
type extra struct {
	// Path from the volume's root, which is ".".
	Path string `json:"path"`
	// Attributes by name.
	Attributes map[string][]byte `json:"attributes,omitempty"`
	// Link is the same number for all names of a file that has several.
	Link int `json:"link,omitempty"`
}

const (
	// tagExtras holds the id of the snapshot with what Kopia has no place for.
	tagExtras = "holdfast.io/extras"
	// extrasSource begins the paths of the sources of such snapshots.
	extrasSource = "holdfast-extras"
)

// isKept says which attributes are kept. The others belong to the node and not to the
// volume: labels that its security modules give anew, what its kernel signs with keys of
// its own, and what file systems note for themselves.
func isKept(attribute string) bool {
	return strings.HasPrefix(attribute, "user.") || strings.HasPrefix(attribute, "system.") || attribute == "security.capability"
}

// extras collects what Kopia has no place for, while a volume is walked. Its memory
// follows the number of files that have some, within extrasMemory.
type extras struct {
	notes *notes

	mu         sync.Mutex
	held       held
	attributes map[string]map[string][]byte
	names      map[inode][]string
}

const (
	// extrasMemory is how much memory the extras of a volume may take, about: those of a million
	// files and more, if many have the same attributes.
	extrasMemory = 256 << 20
	// extraMemory is what one takes besides its path and its attributes, and attributeMemory what
	// an attribute does that is not shared.
	extraMemory, attributeMemory = 128, 256
	// maxShared is how many sets of attributes are looked for among those that come, before it
	// begins anew: files that somebody has given access share them, checksums of files are of one
	// file each.
	maxShared = 1000
	// restoredMemory is how much they may take while a volume is restored: files come in another
	// order then, and share less, or more. What was uploaded has room.
	restoredMemory = 2 * extrasMemory
)

// errExtras: it is better that one volume fails than that the agent has no memory for any.
var errExtras = fmt.Errorf("its files have more extended attributes and further names than %d MiB of memory hold: remove those that nobody needs, or divide what it has among several volumes", extrasMemory>>20)

// held counts what the extras of a volume take, most at the most, and has those attributes once
// that many files have.
type held struct {
	bytes, most int
	shared      map[string]map[string][]byte
	keys        int // bytes of those of shared
}

// take counts an extra, and gives its attributes as they are to be kept.
func (h *held) take(rel string, attributes map[string][]byte) (map[string][]byte, error) {
	h.bytes += extraMemory + len(rel)
	if len(attributes) > 0 {
		var key []byte
		bytes := 0
		for _, name := range slices.Sorted(maps.Keys(attributes)) {
			value := attributes[name]
			bytes += attributeMemory + len(name) + len(value)
			key = fmt.Appendf(key, "%s\x00%d\x00%s", name, len(value), value)
		}
		if same := h.shared[string(key)]; same != nil {
			return same, h.full()
		}
		if h.shared == nil || len(h.shared) == maxShared {
			h.shared = map[string]map[string][]byte{} // those of many files will be back soon
			h.bytes, h.keys = h.bytes-h.keys, 0
		}
		h.shared[string(key)] = attributes
		h.keys += len(key)
		h.bytes += bytes + len(key)
	}
	return attributes, h.full()
}

func (h *held) full() error {
	if h.bytes > h.most {
		return errExtras
	}
	return nil
}

// inode tells the files of a volume apart.
type inode struct{ device, number uint64 }

func newExtras(notes *notes) *extras {
	return &extras{notes: notes, held: held{most: extrasMemory}, attributes: map[string]map[string][]byte{}, names: map[inode][]string{}}
}

// folderPath is how a folder that is open can be reached by name, wherever it is by now.
func folderPath(folder int) string { return "/proc/self/fd/" + strconv.Itoa(folder) }

// observe takes note of a file or folder, by its name in a folder that is open, and by the path
// of that in the volume. The names of its attributes are read into space.
func (x *extras) observe(folder int, name, in string, space []byte, stat *unix.Stat_t) error {
	kind := stat.Mode & unix.S_IFMT
	if x == nil || kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil // links, and what is left out, have none that are kept
	}
	attributes, err := readAttributes(folder, name, space)
	linked := kind == unix.S_IFREG && stat.Nlink > 1
	if err == nil && len(attributes) == 0 && !linked {
		return nil
	}
	rel := path.Join(in, name)
	switch {
	case errors.Is(err, os.ErrNotExist) && rel != ".":
		return nil // whoever reads it notes that
	case errors.Is(err, os.ErrPermission):
		x.notes.add(rel, "has extended attributes that could not be read")
	case err != nil:
		return fmt.Errorf("read the extended attributes of %q: %w", rel, err)
	}
	for attribute := range attributes {
		if !utf8.ValidString(attribute) { // JSON would alter it
			x.notes.add(rel, fmt.Sprintf("has the extended attribute %q, whose name is not UTF-8, and which was left out", attribute))
			delete(attributes, attribute)
		}
	}
	if len(attributes) == 0 && !linked {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if attributes, err = x.held.take(rel, attributes); err != nil {
		return err
	}
	if len(attributes) > 0 {
		x.attributes[rel] = attributes
	}
	if linked {
		file := inode{uint64(stat.Dev), stat.Ino}
		x.names[file] = append(x.names[file], rel)
	}
	return nil
}

// noListAt is set where the kernel, or who guards it, does not know listxattrat.
var noListAt atomic.Bool

// listAttributes writes the names of the attributes of a file or folder into b, of a link
// its own.
func listAttributes(folder int, name string, b []byte) (int, error) {
	if !noListAt.Load() {
		// By its path in /proc it takes several times as long, for each file of a volume.
		at, err := unix.BytePtrFromString(name)
		if err != nil {
			return 0, err
		}
		n, _, errno := unix.Syscall6(unix.SYS_LISTXATTRAT, uintptr(folder), uintptr(unsafe.Pointer(at)), unix.AT_SYMLINK_NOFOLLOW,
			uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.ENOSYS, unix.EPERM:
			noListAt.Store(true)
		default:
			return 0, errno
		}
	}
	return unix.Llistxattr(folderPath(folder)+"/"+name, b)
}

// namesSpace is how many bytes of names of attributes are enough, save for few files.
const namesSpace = 1024

// readAttributes returns the attributes of a file or folder that are kept, of a link its
// own. A file system without attributes has none. Their names are read into space.
func readAttributes(folder int, name string, space []byte) (map[string][]byte, error) {
	names, err := grown(space, func(b []byte) (int, error) { return listAttributes(folder, name, b) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil || len(names) == 0 {
		return nil, err
	}
	// In it no other than the last link is the volume's.
	at := folderPath(folder) + "/" + name
	attributes := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if !isKept(name) {
			continue
		}
		var space [256]byte
		value, err := grown(space[:], func(b []byte) (int, error) { return unix.Lgetxattr(at, name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		attributes[name] = slices.Clone(value)
	}
	return attributes, nil
}

// attributeSize is the most that Linux lets names or a value have, in bytes.
const attributeSize = 64 << 10

// grown calls read with more space if some is not enough.
func grown(space []byte, read func([]byte) (int, error)) ([]byte, error) {
	n := 0
	once := func() (err error) { n, err = read(space); return err }
	err := again(once)
	if errors.Is(err, unix.ERANGE) {
		space = make([]byte, attributeSize)
		err = again(once)
	}
	if err != nil {
		return nil, err
	}
	return space[:n], nil
}

// lines are what was collected, in the order of paths.
func (x *extras) lines() []extra {
	x.mu.Lock()
	defer x.mu.Unlock()
	var groups [][]string
	for _, names := range x.names {
		slices.Sort(names)
		if names = slices.Compact(names); len(names) > 1 { // the others lie elsewhere
			groups = append(groups, names)
		}
	}
	slices.SortFunc(groups, slices.Compare)
	numbers := map[string]int{}
	for i, names := range groups {
		for _, rel := range names {
			numbers[rel] = i + 1
		}
	}
	lines := make([]extra, 0, len(x.attributes)+len(numbers))
	for rel, attributes := range x.attributes {
		lines = append(lines, extra{rel, attributes, numbers[rel]})
		delete(numbers, rel)
	}
	for rel, number := range numbers {
		lines = append(lines, extra{Path: rel, Link: number})
	}
	slices.SortFunc(lines, func(a, b extra) int { return strings.Compare(a.Path, b.Path) })
	return lines
}

// save stores what was collected beside the snapshot of a volume, which it gives the tag
// that says so.
func (x *extras) save(ctx context.Context, w repo.RepositoryWriter, of *snapshot.Manifest, tags map[string]string) error {
	lines := x.lines()
	if len(lines) == 0 {
		return nil
	}
	writer := w.NewObjectWriter(ctx, object.WriterOptions{Description: "extras", Compressor: compressor, MetadataCompressor: compressor})
	defer writer.Close()
	buffered := bufio.NewWriter(writer)
	encoder := json.NewEncoder(buffered)
	for i := range lines {
		if err := encoder.Encode(&lines[i]); err != nil {
			return err
		}
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	id, err := writer.Result()
	if err != nil {
		return err
	}
	beside := &snapshot.Manifest{
		Source:      of.Source,
		Description: snapshotDescription,
		StartTime:   of.StartTime,
		EndTime:     of.EndTime,
		Pins:        []string{snapshotPin},
		Tags:        tags,
		RootEntry:   &snapshot.DirEntry{Name: "extras", Type: snapshot.EntryTypeFile, Permissions: 0o600, ModTime: of.StartTime, ObjectID: id},
	}
	beside.Source.Path = path.Join(extrasSource, of.Source.Path)
	saved, err := snapshot.SaveSnapshot(ctx, w, beside)
	if err != nil {
		return err
	}
	if of.Tags == nil {
		of.Tags = map[string]string{}
	}
	of.Tags[tagExtras] = string(saved)
	return nil
}

// errNoExtras: the repository lacks what the tag of a snapshot names.
var errNoExtras = errors.New("the extended attributes and hard links of the snapshot are gone from the repository")

// loadExtras reads what was saved beside a snapshot, by path; nil if nobody has looked for any, as
// Velero does not. What most bytes of memory do not hold is left out, with a note: the files come
// back without it.
func loadExtras(ctx context.Context, r repo.Repository, of *snapshot.Manifest, most int, notes *notes) (map[string]extra, error) {
	id := of.Tags[tagExtras]
	if id == "" {
		if of.Tags[tagRecord] != "" {
			return map[string]extra{}, nil // who gave it this tag had found none
		}
		return nil, nil
	}
	beside, err := snapshot.LoadSnapshot(ctx, r, manifest.ID(id))
	if errors.Is(err, snapshot.ErrSnapshotNotFound) {
		return nil, errNoExtras
	}
	if err != nil {
		return nil, err
	}
	if beside.RootEntry == nil || beside.RootEntry.Type != snapshot.EntryTypeFile {
		return nil, fmt.Errorf("snapshot %s is not one of extended attributes and hard links", id)
	}
	content, err := r.OpenObject(ctx, beside.RootEntry.ObjectID)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	all := map[string]extra{}
	held := held{most: most}
	for decoder := json.NewDecoder(bufio.NewReader(content)); ; {
		var line extra
		if err := decoder.Decode(&line); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if line.Attributes, err = held.take(line.Path, line.Attributes); err != nil {
			notes.add(line.Path, fmt.Sprintf("and what comes after it by name did not get extended attributes and hard links: those of the volume take more than %d MiB of memory", most>>20))
			return all, nil
		}
		all[line.Path] = line
	}
}
