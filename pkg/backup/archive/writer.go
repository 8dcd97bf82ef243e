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
	// memberBytes is how much of the tarball a gzip member holds, at least: what is read,
	// and decompressed, to read one object. A new one costs some hundred bytes: with half of that
	// a tarball is larger than Velero's.
	memberBytes = 1 << 20
)

// Item identifies an object in a tarball.
type Item struct {
	// Resource is the object's resource and group.
	Resource schema.GroupResource
	// Version is the version of the group in which the object was read.
	Version string
	// Namespace is empty for a cluster-scoped object.
	Namespace string
	// Name is the object's name.
	Name string
}

// ErrItem says that an item can't be part of a tarball. The tarball is as good as
// before.
var ErrItem = errors.New("the object can't be in the tarball")

// Writer writes one tarball. It is not safe for concurrent use. After an error
// other than ErrItem the tarball is broken, and every further call fails.
//
// Its gzip members are compressed beside the caller, as many at a time as there are
// processors, and written in their order by the caller. So what is in memory are that many
// members, each with all of the object at its end.
type Writer struct {
	tar        *tar.Writer
	plain, out *meter
	// current is being filled; sealed are those before it that are not written yet.
	current *member
	sealed  []*member
	free    []*member
	// left is how many objects may still be added.
	left   int
	header tar.Header
	path   []byte
}

// member is a part of the tarball that is compressed by itself.
type member struct {
	plain, compressed bytes.Buffer
	comment           string
	// begins is where it does, in plain bytes.
	begins int64
	// added are told where they lie, when it is known where the member does.
	added []added
	// done is closed when it is compressed.
	done chan struct{}
}

// added is an object that begins in a member.
type added struct {
	offset int64
	placed func(Position)
}

// Position is where an object lies: its first copy's header is Offset bytes into what is
// decompressed from the gzip member at Member bytes of the tarball.
type Position struct{ Member, Offset int64 }

// maxParallel bounds how many members of one tarball are compressed at a time.
const maxParallel = 4

// modestRatio is how many times its compressed size a member may have before it is compressed
// otherwise: readers refuse what decompresses to far more, and a tenant may have written it.
const modestRatio = maxRatio / 2

// compressors are kept, for what they allocate is more than what they compress. So are modest
// ones, which make an eighth of it at best.
var compressors, modestCompressors sync.Pool

// NewWriter starts a tarball on w. It is written as several gzip members, which readers
// take for one. Every entry carries the given time, in whole
// seconds, so that equal items give equal bytes; the backup it belongs to, which has
// no meaning for readers, tells it from that of another one.
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

// filler writes into the current member.
type filler struct{ *Writer }

func (f filler) Write(p []byte) (int, error) { return f.current.plain.Write(p) }

// WriteItem adds one object, whose JSON is content, and waits until it is known where it lies.
// It must be added once only.
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

// Add adds one object, whose JSON is content. It must be added once only. placed is called by
// a later call, in the order of the objects, or by Close.
func (w *Writer) Add(item Item, content []byte, placed func(Position)) error {
	if err := item.validate(); err != nil {
		return err
	}
	if len(content) > MaxObjectBytes {
		return fmt.Errorf("%w: it has %d bytes, and no restore reads more than %d", ErrItem, len(content), MaxObjectBytes)
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
	// A restore that negotiates versions reads the second copy, any other the first.
	for i, versionFolder := range []string{"", item.Version + preferredSuffix} {
		w.path = item.appendPath(w.path[:0], versionFolder)
		if err := w.writeEntry(string(w.path), content, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// nextMember begins another gzip member, if this one has enough. It is called between the
// header of an entry and its content: whoever reads a tarball that is cut short there misses
// the content, and does not take it for the end.
func (w *Writer) nextMember() error {
	if w.plain.written-w.current.begins < memberBytes {
		return nil
	}
	w.seal()
	return w.write(min(maxParallel, runtime.GOMAXPROCS(0)))
}

// seal has the current member compressed, and begins another one.
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

// compress takes the standard library's compressor, which Velero has, too. The other one takes
// a quarter less time, and some percent more room for objects of many kinds, which come mixed here.
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
		compressor, _ = gzip.NewWriterLevel(nil, level) // the level is valid
	}
	compressor.Reset(&m.compressed)
	compressor.Comment = m.comment
	_, err := compressor.Write(m.plain.Bytes())
	if err := errors.Join(err, compressor.Close()); err != nil {
		panic(err) // into memory
	}
	kept.Put(compressor)
}

// write writes sealed members until at most so many are left.
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

// Close ends the tarball. It does not close the writer below.
func (w *Writer) Close() error {
	if err := w.tar.Close(); err != nil {
		return fmt.Errorf("end the tarball: %w", err)
	}
	w.seal()
	return w.write(0)
}

// writeEntry writes a file. A gzip member may end within it if it has content.
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

// validate refuses what would leave its folder. An API server allows no such
// name; an aggregated one might.
func (i Item) validate() error {
	ok := isName(i.Resource.Resource) && isName(i.Version) && isName(i.Name) &&
		(i.Namespace == "" || isName(i.Namespace)) && (i.Resource.Group == "" || isName(i.Resource.Group))
	if !ok {
		return fmt.Errorf("%w: %s %q in namespace %q, version %q", ErrItem, i.Resource, i.Name, i.Namespace, i.Version)
	}
	return nil
}

// isName is as API servers have it. A restore refuses all of a backup with another one.
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

// meter counts what is written, and fails beyond a limit: what readers refuse is not to
// be stored.
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
