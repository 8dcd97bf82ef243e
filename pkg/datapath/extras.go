// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
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

// Kopia stores no extended attributes (access control lists, capabilities) and no hard links. A
// second snapshot has these: a line of JSON for each file or folder that has some. The volume's
// snapshot has its id as tagExtras; Kopia's tools and Velero restore the volume without it.

type extra struct {
	Attributes map[string][]byte `json:"attributes,omitempty"`
	// Link is the same for all names of a file.
	Link int `json:"link,omitempty"`

	line int
}

type extraLine struct {
	// Path is relative to the volume's root, ".".
	Path string `json:"path"`
	extra
}

const (
	tagExtras    = "holdfast.io/extras"
	extrasSource = "holdfast-extras"
)

// isKept reports whether an attribute belongs to the volume, not the node: security labels, kernel
// signatures and notes of file systems are the node's.
func isKept(attribute string) bool {
	return strings.HasPrefix(attribute, "user.") || strings.HasPrefix(attribute, "system.") || attribute == "security.capability"
}

type extras struct {
	notes *notes
	most  int64

	mu     sync.Mutex
	device uint64
	open   []byte
	starts []int
	runs   []*packed
	bytes  int64 // of the runs, with the memory to merge them
}

const (
	runBytes = 4 << 20
	// looseExtras bounds unpacked lines: a run during an upload, a batch in a restore.
	looseExtras = 2 * runBytes
)

// errExtras fails one volume to save the agent's memory for others.
var errExtras = errors.New("remove those that nobody needs, or divide what it has among several volumes")

func newExtras(notes *notes) *extras {
	return &extras{notes: notes, most: unboundedExtras}
}

// folderPath returns a path of an open folder that stays valid when it moves.
func folderPath(folder int) string { return "/proc/self/fd/" + strconv.Itoa(folder) }

// observe collects the extras of an entry of an open folder; in is the folder's path in the volume.
func (x *extras) observe(folder int, name, in string, space []byte, stat *unix.Stat_t) error {
	kind := stat.Mode & unix.S_IFMT
	if x == nil || kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil // links and omitted files have no kept attributes
	}
	if name == "." {
		x.device = uint64(stat.Dev) // the root comes first
	}
	attributes, err := readAttributes(folder, name, space)
	linked := kind == unix.S_IFREG && stat.Nlink > 1
	if err == nil && len(attributes) == 0 && !linked {
		return nil
	}
	rel := path.Join(in, name)
	switch {
	case errors.Is(err, os.ErrNotExist) && rel != ".":
		return nil // the reader of the file notes that
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
	found := extra{Attributes: attributes}
	if linked {
		found.Link = x.number(stat)
	}
	return x.add(rel, found)
}

// number returns the same number for all names of a file, in each backup. The root's device number
// may change with a mount, so it does not count.
func (x *extras) number(stat *unix.Stat_t) int {
	if uint64(stat.Dev) == x.device {
		return int(stat.Ino)
	}
	sum := fnv.New64a()
	_, _ = fmt.Fprint(sum, stat.Dev, stat.Ino)
	return int(sum.Sum64())
}

func (x *extras) add(rel string, found extra) error {
	if len(found.Attributes) == 0 && found.Link == 0 {
		return nil
	}
	known, err := json.Marshal(found)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.starts = append(x.starts, len(x.open))
	x.open = appendLine(x.open, rel, known)
	if len(x.open) < runBytes {
		return nil
	}
	return x.packLocked()
}

func (x *extras) packLocked() error {
	slices.SortStableFunc(x.starts, func(a, b int) int {
		one, _, _ := bytes.Cut(x.open[a:], []byte{0})
		other, _, _ := bytes.Cut(x.open[b:], []byte{0})
		return bytes.Compare(one, other)
	})
	run := new(packed)
	for _, start := range x.starts {
		path, known, _ := cutLine(x.open[start:])
		if err := run.add(string(path), known); err != nil {
			return err
		}
	}
	if err := run.finish(); err != nil {
		return err
	}
	run.open = nil
	x.open, x.starts = x.open[:0], x.starts[:0]
	x.runs = append(x.runs, run)
	if x.bytes += run.bytes + blockBytes; x.bytes > x.most {
		return fmt.Errorf("its files have more extended attributes and further names than %d MiB of memory hold: %w", x.most>>20, errExtras)
	}
	return nil
}

// noListAt is set where listxattrat is missing or forbidden.
var noListAt atomic.Bool

func listAttributes(folder int, name string, b []byte) (int, error) {
	if !noListAt.Load() {
		// Paths in /proc take several times as long.
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

const namesSpace = 1024

// readAttributes returns the kept attributes of a file, folder or link; none if the file system has
// none.
func readAttributes(folder int, name string, space []byte) (map[string][]byte, error) {
	names, err := grown(space, func(b []byte) (int, error) { return listAttributes(folder, name, b) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil || len(names) == 0 {
		return nil, err
	}
	// Only the last element can be a link of the volume.
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

func (h handle) attributes() (map[string][]byte, error) {
	defer h.calls.begin().end()
	return readAttributes(h.fd, ".", make([]byte, namesSpace))
}

// attributeSize is Linux's limit for a list of names or a value.
const attributeSize = 64 << 10

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

func (x *extras) lines(do func(path, known []byte) error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.starts) > 0 {
		if err := x.packLocked(); err != nil {
			return err
		}
	}
	return merge(x.runs, do)
}

func (x *extras) save(ctx context.Context, w repo.RepositoryWriter, of *snapshot.Manifest, tags map[string]string) error {
	if len(x.runs) == 0 && len(x.starts) == 0 {
		return nil
	}
	writer := w.NewObjectWriter(ctx, object.WriterOptions{Description: "extras", Compressor: compressor, MetadataCompressor: compressor})
	defer writer.Close()
	buffered := bufio.NewWriter(writer)
	var line []byte
	err := x.lines(func(path, known []byte) error {
		line = appendName(append(line[:0], `{"path":`...), string(path))
		line = append(append(line, ','), known[1:]...)
		_, err := buffered.Write(append(line, '\n'))
		return cmp.Or(err, ctx.Err())
	})
	if err != nil {
		return err
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

// errNoExtras: the repository lacks the snapshot that tagExtras names.
var errNoExtras = errors.New("the extended attributes and hard links of the snapshot are gone from the repository")

// loadExtras reads the extras of a snapshot; nil without the tag, as for Velero's. Extras beyond
// most bytes are dropped with a note.
func loadExtras(ctx context.Context, r repo.Repository, of *snapshot.Manifest, most int64, notes *notes) (*packed, error) {
	id := of.Tags[tagExtras]
	if id == "" {
		if of.Tags[tagRecord] != "" {
			return new(packed), nil // the uploader checked, and found none
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
	all, last := new(packed), ""
	for decoder := json.NewDecoder(bufio.NewReader(content)); ; {
		var line extraLine
		if err := decoder.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if line.Path <= last || strings.Contains(line.Path, "\x00") {
			return nil, fmt.Errorf("%q comes after %q, which nobody writes", line.Path, last)
		}
		if all.bytes > most {
			notes.add(line.Path, fmt.Sprintf("and what comes after it by name did not get extended attributes and hard links: in this volume they take more than %d MiB of memory", most>>20))
			break
		}
		last = line.Path
		known, err := json.Marshal(line.extra)
		if err != nil {
			return nil, err
		}
		if err := all.add(line.Path, known); err != nil {
			return nil, err
		}
	}
	err = all.finish()
	all.open = nil
	return all, err
}
