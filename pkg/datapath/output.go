// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// output writes a snapshot below a folder. Unlike Kopia's own output,
//   - it never leaves the folder, even if a pod puts links there;
//   - it removes a file in the way, which may be open or a link;
//   - a file without its owner gets no setuid bits;
//   - a folder keeps its own time;
//   - hard links and attributes come back;
//   - it ends with its context.
type output struct {
	root *confined
	// beside writes a file beside its place, and moves it when complete: running programs keep the
	// old one.
	beside   bool
	snapshot string
	progress *Progress
	notes    notes
	surplus  surplus
	readers  *semaphore.Weighted
	// extras is nil if unknown. With the hard links it takes at most most bytes.
	extras *packed
	most   int64

	mu sync.Mutex
	// written has the first name of each file with several, by its number; others those with
	// another content, which are separate files. links are the other names, created at the end.
	written map[int]firstName
	others  map[firstOther]int
	links   []link
	full    bool // no memory for more links
}

type firstName struct {
	content uint64
	line    int
}

type firstOther struct {
	number  int
	content uint64
}

type link struct{ from, to uint32 }

const (
	// firstMemory and linkMemory are the bytes of a first and another name.
	firstMemory, linkMemory = 56, 20
)

var contentSeed = maphash.MakeSeed()

func name(rel string) string {
	if rel == "" {
		return "."
	}
	return rel
}

func (o *output) BeginDirectory(ctx context.Context, rel string) (existed bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	existed = rel == ""
	if !existed {
		err := o.replace(rel, func() error {
			err := o.root.Mkdir(rel, 0o700)
			if errors.Is(err, os.ErrExist) {
				if info, statErr := o.root.Lstat(rel); statErr == nil && info.IsDir() {
					existed = true
					return nil
				}
			}
			return err
		})
		if err != nil {
			return false, err
		}
	}
	if existed && o.extras != nil {
		return true, o.removeDefaults(rel)
	}
	return existed, nil
}

// EnsureDirectory creates a folder above the restored part, and reports whether it did. An existing
// one stays; anything else in its place is an error.
func (o *output) EnsureDirectory(rel string) (made bool, err error) {
	err = o.root.Mkdir(rel, 0o700)
	if errors.Is(err, os.ErrExist) {
		info, statErr := o.root.Lstat(rel)
		if statErr == nil && !info.IsDir() {
			return false, fmt.Errorf("%q is no folder in the volume, and stays: move it away", rel)
		}
		return false, statErr
	}
	return err == nil, err
}

// removeDefaults removes the default access control list, which new files would inherit.
func (o *output) removeDefaults(rel string) error {
	folder, err := o.openFolder(name(rel))
	if err != nil {
		return err
	}
	defer folder.close()
	err = folder.again(func() error { return unix.Fremovexattr(folder.fd, "system.posix_acl_default") })
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return o.permitted(err, name(rel), "has kept a default access control list")
}

func (o *output) FinishDirectory(rel string, dir fs.Entry, had extra) error {
	f, err := o.openFolder(name(rel))
	if err != nil {
		return err
	}
	if err := o.removeOthers(f, name(rel), had); err != nil {
		return errors.Join(err, f.close())
	}
	return o.finish(f, name(rel), dir, had)
}

// removeOthers removes the extended attributes that the snapshot's folder lacks, such as access
// given since the backup.
func (o *output) removeOthers(f handle, rel string, had extra) error {
	if o.extras == nil {
		return nil
	}
	attributes, err := f.attributes()
	if err != nil {
		return o.permitted(f.failed("read the extended attributes of", err), rel, "may have kept extended attributes")
	}
	for _, attribute := range slices.Sorted(maps.Keys(attributes)) {
		if _, keeps := had.Attributes[attribute]; keeps {
			continue
		}
		err := f.do("remove the attribute "+attribute+" of", func() error { return unix.Fremovexattr(f.fd, attribute) })
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) {
			continue // removed meanwhile, or made by the file system from the mode, as NFS does
		}
		if err := o.permitted(err, rel, "has kept its attribute "+attribute); err != nil {
			return err
		}
	}
	return nil
}

func (o *output) WriteFile(ctx context.Context, rel string, file fs.File, had extra) (err error) {
	if o.isLink(rel, file, had) {
		o.progress.Add(file.Size())
		return nil
	}
	from, err := file.Open(ctx)
	if err != nil {
		return fmt.Errorf("open %q in the snapshot: %w", rel, err)
	}
	defer from.Close()

	at := rel
	if o.beside {
		at = o.besideName(rel)
		defer func() {
			if err != nil {
				_ = o.root.Remove(at) // the next attempt replaces any rest
			}
		}()
	}
	var to handle
	err = o.replace(at, func() (err error) {
		to, err = o.root.handle(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		return err
	})
	if err != nil {
		return err
	}
	if err := o.copy(ctx, to, from, file.Size(), file.Open); err != nil {
		return errors.Join(fmt.Errorf("write %q: %w", rel, err), to.close())
	}
	if err := o.finish(to, rel, file, had); err != nil || at == rel {
		return err
	}
	err = o.root.Rename(at, rel)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, os.ErrExist) { // an empty folder is replaced
		if err := o.root.Remove(rel); err != nil {
			return fmt.Errorf("replace %q: %w", rel, err)
		}
		err = o.root.Rename(at, rel)
	}
	return err
}

// besideName is stable, so that a repetition replaces the rest of an attempt, and differs by
// snapshot, which may contain such a rest.
func (o *output) besideName(rel string) string {
	sum := sha256.Sum256([]byte(o.snapshot + "/" + rel))
	return path.Join(path.Dir(rel), ".holdfast-restore-"+hex.EncodeToString(sum[:8]))
}

func (o *output) CreateSymlink(ctx context.Context, rel string, link fs.Symlink) error {
	target, err := link.Readlink(ctx)
	if err != nil {
		return fmt.Errorf("read link %q in the snapshot: %w", rel, err)
	}
	if err := o.replace(rel, func() error { return o.root.Symlink(target, rel) }); err != nil {
		return err
	}
	owner := link.Owner()
	if err := o.permitted(o.root.Lchown(rel, int(owner.UserID), int(owner.GroupID)), rel, "did not get its owner"); err != nil {
		return err
	}
	parent, err := o.openFolder(path.Dir(rel))
	if err != nil {
		return err
	}
	defer parent.close()
	mtime := unix.NsecToTimespec(link.ModTime().UnixNano())
	err = parent.again(func() error {
		return unix.UtimesNanoAt(parent.fd, path.Base(rel), []unix.Timespec{mtime, mtime}, unix.AT_SYMLINK_NOFOLLOW)
	})
	return o.permitted(err, rel, "did not get its time")
}

// openFolder does not block on a pipe or device that a pod has put there.
func (o *output) openFolder(rel string) (handle, error) {
	return o.root.handle(rel, os.O_RDONLY|unix.O_DIRECTORY)
}

// replace calls create, again after removing an obstacle, for which create must fail. A folder with
// content stays.
func (o *output) replace(rel string, create func() error) error {
	err := create()
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := o.root.Remove(rel); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace %q: %w", rel, err)
	}
	return create()
}

func (o *output) finish(f handle, rel string, e fs.Entry, had extra) error {
	err := o.attributes(f, rel, e, had.Attributes)
	if err == nil { // after everything else that sets the time
		err = o.permitted(f.setTime(e.ModTime()), rel, "did not get its time")
	}
	return errors.Join(err, f.close())
}

func (o *output) attributes(f handle, rel string, e fs.Entry, extended map[string][]byte) error {
	if err := o.setExtended(f, rel, extended, isUsers); err != nil {
		return err
	}
	mode, owner := e.Mode()&fs.ModBits, e.Owner()
	// The owner first, since chown clears setuid bits and capabilities; the mode before the access
	// control list, which says more.
	err := f.chown(owner.UserID, owner.GroupID)
	if errors.Is(err, os.ErrPermission) {
		mode &^= os.ModeSetuid | os.ModeSetgid
	}
	if err := o.permitted(err, rel, "did not get its owner"); err != nil {
		return err
	}
	if err := o.permitted(f.chmod(mode), rel, "did not get its mode"); err != nil {
		return err
	}
	return o.setExtended(f, rel, extended, func(attribute string) bool { return !isUsers(attribute) })
}

// isUsers reports whether setting the attribute needs a writable file.
func isUsers(attribute string) bool { return strings.HasPrefix(attribute, "user.") }

func (o *output) setExtended(f handle, rel string, attributes map[string][]byte, wanted func(attribute string) bool) error {
	for _, attribute := range slices.Sorted(maps.Keys(attributes)) {
		if !wanted(attribute) || !isKept(attribute) {
			continue
		}
		err := f.again(func() error { return unix.Fsetxattr(f.fd, attribute, attributes[attribute], 0) })
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL) {
			err = os.ErrPermission
		}
		if err := o.permitted(err, rel, "did not get its attribute "+attribute); err != nil {
			return fmt.Errorf("set the attribute %s of %q: %w", attribute, rel, err)
		}
	}
	return nil
}

// isLink reports whether a file is a further name of a restored file, and notes it.
func (o *output) isLink(rel string, file fs.File, had extra) bool {
	stored, ok := file.(object.HasObjectID)
	if had.Link == 0 || !ok {
		return false
	}
	content := maphash.String(contentSeed, stored.ObjectID().String())
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.extras.bytes > o.most {
		if !o.full {
			o.full = true
			o.notes.add(rel, fmt.Sprintf("and what is written after it are files of their own, also where they were names of one: the hard links of the volume take more than %d MiB of memory", o.most>>20))
		}
		return false
	}
	first, several := o.written[had.Link]
	same := several && first.content == content
	if several && !same {
		first.line, same = o.others[firstOther{had.Link, content}]
	}
	if same {
		o.links = append(o.links, link{from: uint32(first.line), to: uint32(had.line)})
		o.extras.bytes += linkMemory
		return true
	}
	o.extras.bytes += firstMemory
	if o.written == nil {
		o.written, o.others = map[int]firstName{}, map[firstOther]int{}
	}
	if several {
		o.notes.add(rel, "is a file of its own now, since it had changed when its other names were read")
		o.others[firstOther{had.Link, content}] = had.line
	} else {
		o.written[had.Link] = firstName{content, had.line}
	}
	return false
}

func (o *output) makeLinks(ctx context.Context) error {
	slices.SortFunc(o.links, func(a, b link) int { return cmp.Compare(a.to, b.to) }) // folder by folder
	froms, tos := packedReader{of: o.extras}, packedReader{of: o.extras}
	folder, at := "", time.Time{}
	leave := func() error {
		if folder == "" {
			return nil
		}
		return o.permitted(o.root.Chtimes(folder, at, at), folder, "did not get its time")
	}
	for _, l := range o.links {
		if err := ctx.Err(); err != nil {
			return err
		}
		from, err := froms.path(int(l.from))
		if err != nil {
			return err
		}
		to, err := tos.path(int(l.to))
		if err != nil {
			return err
		}
		if in := path.Dir(to); in != folder {
			if err := leave(); err != nil {
				return err
			}
			info, err := o.root.Stat(in)
			if err != nil {
				return fmt.Errorf("make %q another name of %q: %w", to, from, err)
			}
			folder, at = in, info.ModTime()
		}
		if err := o.replace(to, func() error { return o.root.Link(from, to) }); err != nil {
			return fmt.Errorf("make %q another name of %q: %w", to, from, err)
		}
	}
	return leave()
}

// permitted turns a lack of permission into a warning: without root, or with squashed root,
// contents can still be restored.
func (o *output) permitted(err error, rel, problem string) error {
	if errors.Is(err, os.ErrPermission) {
		o.notes.add(rel, problem)
		return nil
	}
	return err
}

// Close creates the further names and syncs the disk: a completed restore outlives a power failure.
func (o *output) Close(ctx context.Context) error {
	if err := o.makeLinks(ctx); err != nil {
		return err
	}
	f, err := o.openFolder(".")
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.sync(); err != nil {
		return fmt.Errorf("write the volume to its disk: %w", err)
	}
	return nil
}

// sparseBlock is the unit of holes: the block of common file systems.
const sparseBlock = 4 << 10

var (
	zeros   [sparseBlock]byte
	buffers = sync.Pool{New: func() any { return new([64 * sparseBlock]byte) }}
)

const (
	partSize = 32 << 20
	// partReaders is the number of additional readers that all large files share, each with a piece
	// of about 4 MB.
	partReaders = 8
)

type target interface {
	io.WriterAt
	Truncate(size int64) error
}

// zeroKeeper is a target that may have other bytes than zeros where nothing is written.
type zeroKeeper interface{ keepsZeros() bool }

// copy writes a file; a large one by several readers, since each waits for the store. from is at
// the beginning; again opens another.
func (o *output) copy(ctx context.Context, to target, from io.ReadSeeker, size int64, again func(context.Context) (fs.Reader, error)) error {
	if size <= partSize {
		return copySparse(ctx, to, from, 0, size, size, o.progress)
	}
	var next atomic.Int64
	read := func(ctx context.Context, from io.ReadSeeker) error {
		for at := int64(0); ; {
			offset := next.Add(partSize) - partSize
			if offset >= size {
				return nil
			}
			if offset != at { // a seek would read a part of a piece again
				if _, err := from.Seek(offset, io.SeekStart); err != nil {
					return err
				}
			}
			at = offset + partSize
			var part io.Reader = from
			if offset+partSize < size {
				part = io.LimitReader(from, partSize)
			}
			if err := copySparse(ctx, to, part, offset, min(offset+partSize, size), size, o.progress); err != nil {
				return err
			}
		}
	}
	reading, ctx := errgroup.WithContext(ctx)
	reading.Go(func() error { return read(ctx, from) })
	for range (size - 1) / partSize {
		if !o.readers.TryAcquire(1) {
			break
		}
		reading.Go(func() error {
			defer o.readers.Release(1)
			from, err := again(ctx)
			if err != nil {
				return err
			}
			defer from.Close()
			return read(ctx, from)
		})
	}
	return reading.Wait()
}

// copySparse writes the bytes from offset to end, where from must end, into an empty part of a
// file, with holes for zeros.
func copySparse(ctx context.Context, to target, from io.Reader, offset, end, size int64, p *Progress) error {
	buffer := buffers.Get().(*[64 * sparseBlock]byte)
	defer buffers.Put(buffer)
	for written := offset; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(from, buffer[:])
		data, writeErr := writeData(to, buffer[:n], offset)
		if writeErr != nil {
			return writeErr
		}
		if data > 0 {
			written = offset + int64(data)
		}
		offset += int64(n)
		p.Add(int64(n))
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return err
		case offset != end:
			return fmt.Errorf("the snapshot has %d of %d bytes", offset, end)
		case end == size && written < end:
			return to.Truncate(size)
		default:
			return nil
		}
	}
}

// writeData writes each run of blocks that are not zero, or all if zeros must be written. It
// returns the end of the last.
func writeData(to io.WriterAt, data []byte, offset int64) (written int, err error) {
	if of, ok := to.(zeroKeeper); ok && !of.keepsZeros() {
		return to.WriteAt(data, offset)
	}
	for start := 0; start < len(data); {
		end := start
		for end < len(data) && !isZero(block(data, end)) {
			end += len(block(data, end))
		}
		if end > start {
			if _, err := to.WriteAt(data[start:end], offset+int64(start)); err != nil {
				return 0, err
			}
			written = end
		}
		for end < len(data) && isZero(block(data, end)) {
			end += len(block(data, end))
		}
		start = end
	}
	return written, nil
}

func block(data []byte, at int) []byte { return data[at:min(at+sparseBlock, len(data))] }

func isZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }
