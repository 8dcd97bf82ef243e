// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/format"
)

const (
	versionPath       = "metadata/version"
	resourcesFolder   = "resources"
	namespacesFolder  = "namespaces"
	clusterFolder     = "cluster"
	preferredSuffix   = "-preferredversion"
	itemSuffix        = ".json"
	entryMode         = 0o755
	typicalPathLength = 160
	// memberBytes is a gzip member's minimum, read for one object. Smaller ones would make tarballs
	// larger than Velero's.
	memberBytes = 1 << 20
)

// Item identifies an object in a tarball.
type Item struct {
	Resource  schema.GroupResource
	Version   string
	Namespace string
	Name      string
}

// ErrItem reports an unusable item. The tarball stays usable.
var ErrItem = errors.New("the object can't be in the tarball")

// Writer writes one tarball. It is not safe for concurrent use. After an error other than ErrItem every
// call fails. Gzip members are compressed in parallel, and written in order by the caller.
type Writer struct {
	tar        *tar.Writer
	plain, out *meter
	// current is being filled; sealed has the unwritten members before it.
	current *member
	sealed  []*member
	free    []*member
	left    int
	header  tar.Header
	path    []byte
}

type member struct {
	plain, compressed bytes.Buffer
	comment           string
	begins            int64
	// added wait for their Position until the member's place is known.
	added []added
	done  chan struct{}
}

type added struct {
	offset int64
	placed func(Position)
}

// Position is where an object's first copy has its header: at Offset in the decompressed bytes from the
// gzip member at Member on.
type Position struct{ Member, Offset int64 }

const maxParallel = 4

// modestRatio is the ratio above which a member is compressed less: readers refuse high ratios.
const modestRatio = maxRatio / 2

// compressors are reused: they allocate more than they compress. The modest ones reach a ratio of eight.
var compressors, modestCompressors sync.Pool

// NewWriter begins a tarball on w. The time is each entry's, so equal items give equal bytes. The name
// makes two backups' tarballs differ.
func NewWriter(w io.Writer, at time.Time, backup string) (*Writer, error) {
	writer := &Writer{
		out:     &meter{w: w, left: math.MaxInt64},
		current: &member{comment: backup},
		left:    MaxItems,
		header:  tar.Header{Typeflag: tar.TypeReg, Mode: entryMode, ModTime: at.Truncate(time.Second).UTC()},
		path:    make([]byte, 0, typicalPathLength),
	}
	writer.plain = &meter{w: filler{writer}, left: MaxBytes}
	writer.tar = tar.NewWriter(writer.plain)
	if err := writer.writeEntry(versionPath, []byte(format.FormatVersion+"\n"), false); err != nil {
		return nil, err
	}
	return writer, nil
}

type filler struct{ *Writer }

func (f filler) Write(p []byte) (int, error) { return f.current.plain.Write(p) }

// WriteItem adds one object as Add, and waits for its Position.
func (w *Writer) WriteItem(item Item, content []byte) (Position, error) {
	if err := w.write(0); err != nil {
		return Position{}, err
	}
	member, begins := w.out.written, w.current.begins
	if err := w.tar.Flush(); err != nil {
		return Position{}, fmt.Errorf("write to the tarball: %w", err)
	}
	position := Position{member, w.plain.written - begins}
	return position, w.Add(item, content, func(Position) {})
}

// Add adds one object's JSON. A later call, or Close, calls placed, in order.
func (w *Writer) Add(item Item, content []byte, placed func(Position)) error {
	if err := item.Check(len(content)); err != nil {
		return err
	}
	if w.left == 0 {
		return ErrTooMany
	}
	w.left--
	if err := w.tar.Flush(); err != nil {
		return fmt.Errorf("write to the tarball: %w", err)
	}
	offset := w.plain.written - w.current.begins
	w.current.added = append(w.current.added, added{offset, placed})
	// Restores that negotiate versions read the second copy, others the first.
	for i, versionFolder := range []string{"", item.Version + preferredSuffix} {
		w.path = item.appendPath(w.path[:0], versionFolder)
		if err := w.writeEntry(string(w.path), content, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// nextMember begins a gzip member after a full one, between an entry's header and content: a tarball
// cut there does not seem to end.
func (w *Writer) nextMember() error {
	if w.plain.written-w.current.begins < memberBytes {
		return nil
	}
	w.seal()
	return w.write(min(maxParallel, runtime.GOMAXPROCS(0)))
}

func (w *Writer) seal() {
	full := w.current
	full.done = make(chan struct{})
	w.sealed = append(w.sealed, full)
	go full.compress()
	w.current = &member{}
	if last := len(w.free) - 1; last >= 0 {
		w.current, w.free = w.free[last], w.free[:last]
	}
	w.current.begins = w.plain.written
}

// compress uses the standard library, as Velero: faster compressors need some percent more room.
func (m *member) compress() {
	defer close(m.done)
	m.compressWith(&compressors, gzip.DefaultCompression)
	if m.plain.Len() > modestRatio*m.compressed.Len() {
		m.compressed.Reset()
		m.compressWith(&modestCompressors, gzip.HuffmanOnly)
	}
}

func (m *member) compressWith(kept *sync.Pool, level int) {
	compressor, _ := kept.Get().(*gzip.Writer)
	if compressor == nil {
		compressor, _ = gzip.NewWriterLevel(nil, level)
	}
	compressor.Reset(&m.compressed)
	compressor.Comment = m.comment
	_, err := compressor.Write(m.plain.Bytes())
	if err := errors.Join(err, compressor.Close()); err != nil {
		panic(err) // into memory
	}
	kept.Put(compressor)
}

func (w *Writer) write(left int) error {
	for len(w.sealed) > left {
		first := w.sealed[0]
		<-first.done
		at := w.out.written
		if _, err := w.out.Write(first.compressed.Bytes()); err != nil {
			return fmt.Errorf("write to the tarball: %w", err)
		}
		w.sealed = w.sealed[1:]
		for _, object := range first.added {
			object.placed(Position{at, object.offset})
		}
		clear(first.added)
		first.plain.Reset()
		first.compressed.Reset()
		first.comment, first.added = "", first.added[:0]
		w.free = append(w.free, first)
	}
	return nil
}

// Close ends the tarball, but does not close the writer below.
func (w *Writer) Close() error {
	if err := w.tar.Close(); err != nil {
		return fmt.Errorf("end the tarball: %w", err)
	}
	w.seal()
	return w.write(0)
}

func (w *Writer) writeEntry(path string, content []byte, mayEnd bool) error {
	w.header.Name, w.header.Size = path, int64(len(content))
	if err := w.tar.WriteHeader(&w.header); err != nil {
		return fmt.Errorf("write %s to the tarball: %w", path, err)
	}
	if mayEnd && len(content) > 0 {
		if err := w.nextMember(); err != nil {
			return fmt.Errorf("write %s to the tarball: %w", path, err)
		}
	}
	if _, err := w.tar.Write(content); err != nil {
		return fmt.Errorf("write %s to the tarball: %w", path, err)
	}
	return nil
}

// Check fails with ErrItem if the object, or the size, can't be in a tarball, as a name that would leave
// its folder.
func (i Item) Check(bytes int) error {
	if bytes > MaxObjectBytes {
		return fmt.Errorf("%w: it has %d bytes, and no restore reads more than %d", ErrItem, bytes, MaxObjectBytes)
	}
	ok := isName(i.Resource.Resource) && isName(i.Version) && isName(i.Name) &&
		(i.Namespace == "" || isName(i.Namespace)) && (i.Resource.Group == "" || isName(i.Resource.Group))
	if !ok {
		return fmt.Errorf("%w: %s %q in namespace %q, version %q", ErrItem, i.Resource, i.Name, i.Namespace, i.Version)
	}
	return nil
}

// isName reports whether an API server allows a name. A restore refuses a backup with others.
func isName(s string) bool { return isSegment(s) && !strings.Contains(s, "%") }

func isSegment(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

func (i Item) appendPath(path []byte, versionFolder string) []byte {
	path = append(path, resourcesFolder...)
	path = append(append(path, '/'), i.Resource.Resource...)
	if i.Resource.Group != "" {
		path = append(append(path, '.'), i.Resource.Group...)
	}
	if versionFolder != "" {
		path = append(append(path, '/'), versionFolder...)
	}
	if i.Namespace != "" {
		path = append(append(path, '/'), namespacesFolder...)
		path = append(append(path, '/'), i.Namespace...)
	} else {
		path = append(append(path, '/'), clusterFolder...)
	}
	path = append(append(path, '/'), i.Name...)
	return append(path, itemSuffix...)
}

type meter struct {
	w             io.Writer
	left, written int64
}

func (m *meter) Write(p []byte) (int, error) {
	if int64(len(p)) > m.left {
		return 0, ErrTooLarge
	}
	n, err := m.w.Write(p)
	m.left -= int64(n)
	m.written += int64(n)
	return n, err
}
