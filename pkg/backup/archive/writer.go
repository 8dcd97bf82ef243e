// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
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
	// and decompressed, to read one object. A new one costs some hundred bytes.
	memberBytes = 512 << 10
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
var ErrItem = errors.New("the object can't be a path in the tarball")

// Writer writes one tarball. It is not safe for concurrent use. After an error
// other than ErrItem the tarball is broken, and every further call fails.
type Writer struct {
	tar        *tar.Writer
	compressed *gzip.Writer
	plain, out *meter
	// member is where the current gzip member begins, as plain bytes in Offset.
	member Position
	header tar.Header
	path   []byte
}

// Position is where an object lies: its first copy's header is Offset bytes into what is
// decompressed from the gzip member at Member bytes of the tarball.
type Position struct{ Member, Offset int64 }

// NewWriter starts a tarball on w. It is written as several gzip members, which readers
// take for one. Every entry carries the given time, in whole
// seconds, so that equal items give equal bytes; the backup it belongs to, which has
// no meaning for readers, tells it from that of another one.
func NewWriter(w io.Writer, at time.Time, backup string) (*Writer, error) {
	// Objects are so alike, and the two copies of each so close, that the fastest
	// level stores only 5 % more than the standard library's default does, in 40 %
	// of its time (BenchmarkWriteItem).
	out := &meter{w: w, left: math.MaxInt64}
	compressed, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("start the tarball: %w", err)
	}
	compressed.Comment = backup
	plain := &meter{w: compressed, left: MaxBytes}
	writer := &Writer{
		tar:        tar.NewWriter(plain),
		compressed: compressed,
		plain:      plain,
		out:        out,
		header:     tar.Header{Typeflag: tar.TypeReg, Mode: entryMode, ModTime: at.Truncate(time.Second).UTC()},
		path:       make([]byte, 0, typicalPathLength),
	}
	if err := writer.writeEntry(versionPath, []byte(format.FormatVersion+"\n"), false); err != nil {
		return nil, err
	}
	return writer, nil
}

// WriteItem adds one object, whose JSON is content. It must be added once only.
func (w *Writer) WriteItem(item Item, content []byte) (Position, error) {
	if err := item.validate(); err != nil {
		return Position{}, err
	}
	if err := w.tar.Flush(); err != nil {
		return Position{}, fmt.Errorf("write to the tarball: %w", err)
	}
	position := Position{w.member.Member, w.plain.written - w.member.Offset}
	// A restore that negotiates versions reads the second copy, any other the first.
	for i, versionFolder := range []string{"", item.Version + preferredSuffix} {
		w.path = item.appendPath(w.path[:0], versionFolder)
		if err := w.writeEntry(string(w.path), content, i > 0); err != nil {
			return Position{}, err
		}
	}
	return position, nil
}

// nextMember begins another gzip member, if this one has enough. It is called between the
// header of an entry and its content: whoever reads a tarball that is cut short there misses
// the content, and does not take it for the end.
func (w *Writer) nextMember() error {
	if w.plain.written-w.member.Offset < memberBytes {
		return nil
	}
	if err := w.compressed.Close(); err != nil {
		return err
	}
	w.member = Position{w.out.written, w.plain.written}
	w.compressed.Reset(w.out)
	return nil
}

// Close ends the tarball. It does not close the writer below.
func (w *Writer) Close() error {
	if err := w.tar.Close(); err != nil {
		return fmt.Errorf("end the tarball: %w", err)
	}
	if err := w.compressed.Close(); err != nil {
		return fmt.Errorf("end the tarball: %w", err)
	}
	return nil
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
	ok := isSegment(i.Resource.Resource) && isSegment(i.Version) && isSegment(i.Name) &&
		(i.Namespace == "" || isSegment(i.Namespace)) && !strings.Contains(i.Resource.Group, "/")
	if !ok {
		return fmt.Errorf("%w: %s %q in namespace %q, version %q", ErrItem, i.Resource, i.Name, i.Namespace, i.Version)
	}
	return nil
}

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
