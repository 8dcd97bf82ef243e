// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/restore"
	"github.com/kopia/kopia/snapshot/snapshotfs"
	"github.com/kopia/kopia/snapshot/snapshotgc"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// acl is an access control list as the kernel has it: the owner, another user, the group,
// the mask and all others.
func acl(user uint32, permissions uint16) string {
	const undefined = 0xffffffff
	list := binary.LittleEndian.AppendUint32(nil, 2) // version
	for _, entry := range []struct {
		tag, permissions uint16
		id               uint32
	}{{0x01, 7, undefined}, {0x02, permissions, user}, {0x04, 5, undefined}, {0x10, 7, undefined}, {0x20, 0, undefined}} {
		list = binary.LittleEndian.AppendUint16(list, entry.tag)
		list = binary.LittleEndian.AppendUint16(list, entry.permissions)
		list = binary.LittleEndian.AppendUint32(list, entry.id)
	}
	return string(list)
}

// netBind is the capability CAP_NET_BIND_SERVICE as the kernel has it: version 2,
// effective, permitted.
var netBind = string([]byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})

func setAttribute(t *testing.T, path, name, value string) {
	t.Helper()
	if err := unix.Lsetxattr(path, name, []byte(value), 0); err != nil {
		t.Fatalf("set %s of %s: %v; does the file system of TMPDIR have extended attributes?", name, path, err)
	}
}

// attributesAt is readAttributes by a path.
func attributesAt(path string) (map[string][]byte, error) {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return readAttributes(int(folder.Fd()), filepath.Base(path), make([]byte, namesSpace))
}

// attributesBelow reads all attributes that are kept, by path.
func attributesBelow(t *testing.T, dir string) map[string]map[string][]byte {
	t.Helper()
	all := map[string]map[string][]byte{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		attributes, err := attributesAt(path)
		if len(attributes) > 0 {
			rel, _ := filepath.Rel(dir, path)
			all[rel] = attributes
		}
		return err
	}))
	return all
}

// withAttributes makes a tree with all that is kept, and links.
func withAttributes(t *testing.T, dir string) {
	t.Helper()
	write(t, filepath.Join(dir, "plain"), "plain")
	write(t, filepath.Join(dir, "program"), "program")
	write(t, filepath.Join(dir, "shared", "report"), "report")
	must(t, os.Symlink("plain", filepath.Join(dir, "symlink")))
	setAttribute(t, dir, "user.root", "of the volume's root")
	setAttribute(t, filepath.Join(dir, "plain"), "user.comment", "binary \x00\xff")
	setAttribute(t, filepath.Join(dir, "plain"), "user.empty", "")
	setAttribute(t, filepath.Join(dir, "plain"), "user.large", strings.Repeat("x", 2000))
	setAttribute(t, filepath.Join(dir, "shared", "report"), "system.posix_acl_access", acl(1234, 6))
	setAttribute(t, filepath.Join(dir, "shared"), "system.posix_acl_access", acl(1234, 7))
	setAttribute(t, filepath.Join(dir, "shared"), "system.posix_acl_default", acl(1234, 5))
	if os.Geteuid() == 0 {
		must(t, os.Chown(filepath.Join(dir, "program"), 99, 100))
		setAttribute(t, filepath.Join(dir, "program"), "security.capability", netBind)
	}
	must(t, os.Chmod(filepath.Join(dir, "plain"), 0o400))

	write(t, filepath.Join(dir, "a", "one"), "linked")
	must(t, os.Mkdir(filepath.Join(dir, "b"), 0o755))
	must(t, os.Link(filepath.Join(dir, "a", "one"), filepath.Join(dir, "b", "two")))
	must(t, os.Link(filepath.Join(dir, "a", "one"), filepath.Join(dir, "three")))
	setAttribute(t, filepath.Join(dir, "three"), "user.linked", "yes")
	write(t, filepath.Join(dir, "half"), "its other name is not in the volume")
	must(t, os.Link(filepath.Join(dir, "half"), filepath.Join(t.TempDir(), "outside")))
	when := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	for _, name := range []string{"a/one", "a", "b", "shared", "."} {
		when = when.Add(time.Hour)
		must(t, os.Chtimes(filepath.Join(dir, name), when, when))
	}
}

func TestExtendedAttributesAndHardLinks(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	withAttributes(t, dir)
	want, attributes := tree(t, dir), attributesBelow(t, dir)
	id := s.upload(t, dir, web).SnapshotID

	setAttribute(t, target, "system.posix_acl_default", acl(4321, 7)) // which nothing is to inherit
	for range 2 {                                                     // the second time over the result
		if restored := s.restore(t, id, target); restored.Warnings.Count != 0 {
			t.Errorf("the restore warns: %v", restored.Warnings)
		}
		expectSameTree(t, tree(t, target), want)
		if diff := cmp.Diff(attributes, attributesBelow(t, target)); diff != "" {
			t.Errorf("the attributes differ (-want +got):\n%s", diff)
		}
		one, half := stat(t, target, "a/one"), stat(t, target, "half")
		for _, name := range []string{"b/two", "three"} {
			if stat(t, target, name).Ino != one.Ino {
				t.Errorf("%s is another file than a/one", name)
			}
		}
		if one.Nlink != 3 || half.Nlink != 1 {
			t.Errorf("a/one has %d names, and half %d", one.Nlink, half.Nlink)
		}
	}

	// An unchanged volume's are stored once.
	again := s.upload(t, dir, web)
	if again.IncrementalBytes != 0 {
		t.Errorf("the second upload read %d bytes", again.IncrementalBytes)
	}
	first, second := extrasOf(t, s, id), extrasOf(t, s, again.SnapshotID)
	if first != second {
		t.Errorf("the extras of the same volume are stored as %s and as %s", first, second)
	}
	another := t.TempDir()
	s.restore(t, again.SnapshotID, another)
	if diff := cmp.Diff(attributes, attributesBelow(t, another)); diff != "" {
		t.Errorf("the attributes differ after the second backup (-want +got):\n%s", diff)
	}
}

// What folders were given since the backup is gone when the volume comes back, the volume's root
// among them, and what they had is there. Folders that what is restored merely lies in stay as they
// are, and so do all where nobody knows what they had.
func TestAttributesSinceTheBackup(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	folders := []string{".", "sub", "sub/uploads"}
	write(t, filepath.Join(dir, "sub", "uploads", "file"), "content")
	for _, folder := range folders {
		must(t, os.Chmod(filepath.Join(dir, folder), 0o770)) // which changes no list of this test
	}
	upload := func(record types.UID) string {
		t.Helper()
		result, err := Upload(t.Context(), s.client(t), UploadRequest{Path: dir, Source: web, Record: record}, new(Progress))
		must(t, err)
		return result.SnapshotID
	}
	unknown, none := upload(""), upload("none")
	setAttribute(t, dir, "user.root", "had")
	setAttribute(t, filepath.Join(dir, "sub", "uploads"), "system.posix_acl_access", acl(1234, 5))
	some, had := upload("some"), attributesBelow(t, dir)

	since := map[string][]byte{"user.since": []byte("the backup"), "system.posix_acl_access": []byte(acl(4321, 7)), "system.posix_acl_default": []byte(acl(4321, 7))}
	for name, test := range map[string]struct {
		id   string
		only []string
		want map[string]map[string][]byte
	}{
		"some":                {some, nil, had},
		"none":                {none, nil, map[string]map[string][]byte{}},
		"not known":           {unknown, nil, map[string]map[string][]byte{".": since, "sub": since, "sub/uploads": since}},
		"a folder in another": {some, []string{"sub/uploads"}, map[string]map[string][]byte{".": since, "sub": since, "sub/uploads": had["sub/uploads"]}},
	} {
		target := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(target, "sub", "uploads"), 0o755))
		for _, folder := range folders {
			for attribute, value := range since {
				setAttribute(t, filepath.Join(target, folder), attribute, string(value))
			}
		}
		restored, err := Restore(t.Context(), s.client(t), RestoreRequest{SnapshotID: test.id, Path: target, Only: test.only}, new(Progress))
		must(t, err)
		if restored.Warnings.Count != 0 {
			t.Errorf("%s: the restore warns: %v", name, restored.Warnings)
		}
		got := attributesBelow(t, target)
		delete(got, "sub/uploads/file") // it inherits a list that stays
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: the attributes differ (-want +got):\n%s", name, diff)
		}
	}
}

// TestAttributeWhoseNameIsNotUTF8: it would come back with another name, so it is left out,
// which is said; the others are kept.
func TestAttributeWhoseNameIsNotUTF8(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "file"), "content")
	setAttribute(t, filepath.Join(dir, "file"), "user.good", "kept")
	want := attributesBelow(t, dir)
	setAttribute(t, filepath.Join(dir, "file"), "user.\xff", "left out")
	uploaded := s.upload(t, dir, web)
	if w := uploaded.Warnings; w.Count != 1 || !strings.Contains(w.String(), `"file" has the extended attribute "user.\xff", whose name is not UTF-8`) {
		t.Errorf("the warnings are %+v", w)
	}
	s.restore(t, uploaded.SnapshotID, target)
	if diff := cmp.Diff(want, attributesBelow(t, target)); diff != "" {
		t.Errorf("the attributes differ (-want +got):\n%s", diff)
	}
}

// extrasOf returns the object with what lies beside a snapshot.
func extrasOf(t *testing.T, s store, id string) object.ID {
	t.Helper()
	r := s.client(t).Kopia()
	man, err := snapshot.LoadSnapshot(t.Context(), r, manifest.ID(id))
	must(t, err)
	beside, err := snapshot.LoadSnapshot(t.Context(), r, manifest.ID(man.Tags[tagExtras]))
	must(t, err)
	return beside.RootEntry.ObjectID
}

func stat(t *testing.T, elements ...string) *syscall.Stat_t {
	t.Helper()
	info, err := os.Lstat(filepath.Join(elements...))
	must(t, err)
	return info.Sys().(*syscall.Stat_t)
}

// Kopia's own restore gives the volume without them, and nothing besides.
func TestKopiaIgnoresExtras(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	withAttributes(t, dir)
	id := s.upload(t, dir, web).SnapshotID
	r := s.client(t).Kopia()
	root, err := snapshotfs.FilesystemEntryFromIDWithPath(t.Context(), r, id, false)
	must(t, err)
	out := &restore.FilesystemOutput{TargetPath: target, OverwriteDirectories: true, OverwriteFiles: true, OverwriteSymlinks: true}
	must(t, out.Init(t.Context()))
	_, err = restore.Entry(t.Context(), r, out, root, restore.Options{RestoreDirEntryAtDepth: 100})
	must(t, err)
	got, want := tree(t, target), tree(t, dir)
	for path := range want {
		if got[path].Content != want[path].Content {
			t.Errorf("%s differs", path)
		}
		delete(got, path)
	}
	if len(got) > 0 {
		t.Errorf("besides there is %v", got)
	}
}

// A volume without attributes and links costs nothing more.
func TestPlainVolumeHasNoExtras(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	richTree(t, dir)
	s.upload(t, dir, web)
	if all := s.snapshots(t); len(all) != 1 || all[0].Tags[tagExtras] != "" {
		t.Errorf("there are %d snapshots, the first with the tags %v", len(all), all[0].Tags)
	}
}

// What lies beside a snapshot is kept by Kopia's collection of garbage, is found by the
// backup, and goes with the snapshot.
func TestExtrasLiveWithTheirSnapshot(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	withAttributes(t, dir)
	attributes := attributesBelow(t, dir)
	r := s.client(t)
	uploaded, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web, Backup: "backup", Record: "record"}, new(Progress))
	must(t, err)

	direct := r.Kopia()
	must(t, repo.DirectWriteSession(t.Context(), direct, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		if err := snapshotgc.Run(ctx, w, true, maintenance.SafetyNone, w.Time()); err != nil {
			return err
		}
		return nil
	}))
	s.restore(t, uploaded.SnapshotID, target)
	if diff := cmp.Diff(attributes, attributesBelow(t, target)); diff != "" {
		t.Errorf("the attributes differ after a collection of garbage (-want +got):\n%s", diff)
	}

	if ids, err := snapshotsOf(t.Context(), r, "backup"); err != nil || len(ids) != 2 {
		t.Errorf("the snapshots are %v, %v, want 2", ids, err)
	}
	// Kopia's command copies a snapshot with its tags. What lies beside both goes with the last one.
	var copied manifest.ID
	must(t, repo.WriteSession(t.Context(), direct, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		man, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(uploaded.SnapshotID))
		if err != nil {
			return err
		}
		man.Source.Path += "-copied"
		copied, err = snapshot.SaveSnapshot(ctx, w, man)
		return err
	}))
	must(t, DeleteSnapshots(t.Context(), r, []string{string(copied)}))
	if left := s.snapshots(t); len(left) != 2 {
		t.Errorf("%d snapshots are left when a copy has gone, want 2", len(left))
	}
	must(t, DeleteSnapshots(t.Context(), r, []string{uploaded.SnapshotID}))
	if left := s.snapshots(t); len(left) != 0 {
		t.Errorf("%d snapshots are left", len(left))
	}
}

// Without what lies beside it, a snapshot is restored, and it is said what it lacks.
func TestExtrasThatAreGone(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	withAttributes(t, dir)
	id := s.upload(t, dir, web).SnapshotID
	r := s.client(t)
	must(t, repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		man, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(id))
		if err != nil {
			return err
		}
		return w.DeleteManifest(ctx, manifest.ID(man.Tags[tagExtras]))
	}))
	restored := s.restore(t, id, target)
	if len(restored.Warnings.First) != 1 || !strings.Contains(restored.Warnings.First[0], "gone from the repository") {
		t.Errorf("the restore warns: %v", restored.Warnings)
	}
	expectSameTree(t, withoutLists(tree(t, target)), withoutLists(tree(t, dir)))
}

// withoutLists leaves out the files of access control lists, whose mask is in the mode.
func withoutLists(all map[string]made) map[string]made {
	delete(all, "shared")
	delete(all, "shared/report")
	return all
}

// Names that had different contents when each was read are files of their own, and what
// is the same of them is one.
func TestLinksOfAChangingFile(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	for name, content := range map[string]string{"a": "before", "b": "after", "c": "before", "d": "after"} {
		write(t, filepath.Join(dir, name), content)
	}
	r := s.client(t)
	uploaded, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web}, new(Progress))
	must(t, err)
	x := newExtras(&notes{})
	for _, name := range []string{"a", "b", "c", "d", "no such file"} {
		must(t, x.add(name, extra{Link: 1}))
	}
	uploaded.SnapshotID = addExtras(t, r, uploaded.SnapshotID, x)

	restored := s.restore(t, uploaded.SnapshotID, target)
	if restored.Warnings.Count != 1 {
		t.Errorf("the restore warns: %v", restored.Warnings)
	}
	for _, pair := range [][2]string{{"a", "c"}, {"b", "d"}} {
		if one, other := stat(t, target, pair[0]), stat(t, target, pair[1]); one.Ino != other.Ino || one.Nlink != 2 {
			t.Errorf("%s has %d names, %s not among them", pair[0], one.Nlink, pair[1])
		}
	}
	for name, content := range map[string]string{"a": "before", "b": "after", "c": "before", "d": "after"} {
		if got, err := os.ReadFile(filepath.Join(target, name)); err != nil || string(got) != content {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
}

// collected are the lines of what was.
func collected(t *testing.T, x *extras) (lines []string) {
	t.Helper()
	must(t, x.lines(func(path, known []byte) error {
		lines = append(lines, string(path)+" "+string(known))
		return nil
	}))
	return lines
}

// randomAttributes are some that nothing else has.
func randomAttributes(random *rand.ChaCha8, bytes int) extra {
	value := make([]byte, bytes)
	_, _ = random.Read(value)
	return extra{Attributes: map[string][]byte{"user.sum": value}}
}

// What the extras of a volume take is within what the limit of memory has for them: an upload of
// more fails, and a restore leaves out what has no room, each with a message.
func TestExtrasHaveABound(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	const files, size = 100, 2000
	random := rand.NewChaCha8([32]byte{})
	for i := range files {
		name := filepath.Join(dir, fmt.Sprintf("file-%03d", i))
		write(t, name, "")
		setAttribute(t, name, "user.sum", string(randomAttributes(random, size).Attributes["user.sum"]))
	}
	r, m := s.client(t), NewMemory(1<<30)
	ctx := WithMemory(t.Context(), m)
	m.extras = files * size / 2
	if _, err := Upload(ctx, r, UploadRequest{Path: dir, Source: web}, new(Progress)); !errors.Is(err, errExtras) {
		t.Errorf("with half of the memory that they take: %v", err)
	}
	m.extras = 2 * files * size
	uploaded, err := Upload(ctx, r, UploadRequest{Path: dir, Source: web}, new(Progress))
	must(t, err)

	m.extras = files * size / 2
	restored, err := Restore(ctx, r, RestoreRequest{SnapshotID: uploaded.SnapshotID, Path: target}, new(Progress))
	must(t, err)
	had, got := attributesBelow(t, dir), attributesBelow(t, target)
	if len(got) == 0 || len(got) > 3*files/4 || restored.Warnings.Count != 1 {
		t.Fatalf("%d files have attributes, with the warnings %v", len(got), restored.Warnings)
	}
	next := fmt.Sprintf(`"file-%03d" and what comes after it by name did not get`, len(got))
	if !strings.HasPrefix(restored.Warnings.First[0], next) {
		t.Errorf("the warning is %q, want %q", restored.Warnings.First[0], next)
	}
	for i := range len(got) {
		name := fmt.Sprintf("file-%03d", i)
		if !cmp.Equal(got[name], had[name]) {
			t.Errorf("%s has other attributes", name)
		}
	}
}

// The names that a restore has written of files with several are counted, too.
func TestMoreLinksThanARestoreHolds(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b"} {
		write(t, filepath.Join(dir, name), name)
		must(t, os.Link(filepath.Join(dir, name), filepath.Join(dir, name+" too")))
	}
	r, m := s.client(t), NewMemory(1<<30)
	uploaded, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web}, new(Progress))
	must(t, err)
	m.extras = 1
	restored, err := Restore(WithMemory(t.Context(), m), r, RestoreRequest{SnapshotID: uploaded.SnapshotID, Path: target}, new(Progress))
	must(t, err)
	if w := restored.Warnings; w.Count != 1 || !strings.Contains(w.First[0], "files of their own") {
		t.Errorf("the restore warns: %v", w)
	}
	for _, name := range []string{"a", "b", "a too", "b too"} {
		if content, err := os.ReadFile(filepath.Join(target, name)); err != nil || string(content) != name[:1] || stat(t, target, name).Nlink != 1 {
			t.Errorf("%s has %q, %v", name, content, err)
		}
	}
}

// What is collected, in whatever order, is stored once for each path as it was found last, as lines
// of JSON in the order of paths, and is found again by its path.
func TestExtrasAreKeptAsTheyWere(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	r := s.client(t)
	uploaded, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web}, new(Progress))
	must(t, err)
	parts := []string{"a", "b", "a.b", "a!", "/", "/", "\n", "é", `"<&>\`, "\x01", "\u2028", "~", " "}
	for seed := range 5 {
		chacha := rand.NewChaCha8([32]byte{byte(seed)})
		random := rand.New(chacha)
		x, want := newExtras(&notes{}), map[string]extra{}
		for range []int{0, 1, 10, 1000, 10_000}[seed] {
			path := "x"
			for range random.IntN(8) {
				path += parts[random.IntN(len(parts))]
			}
			found := randomAttributes(chacha, random.IntN(40))
			switch random.IntN(4) {
			case 0:
				found.Link = random.IntN(10) + 1 // as they were once
			case 1:
				found = extra{Link: int(random.Uint64() | 1)}
			}
			must(t, x.add(path, found))
			want[path] = found
			if random.IntN(500) == 0 {
				must(t, x.packLocked())
			}
		}
		paths := slices.Sorted(maps.Keys(want))
		var stored bytes.Buffer
		for _, path := range paths {
			must(t, json.NewEncoder(&stored).Encode(extraLine{path, want[path]}))
		}
		id := addExtras(t, r, uploaded.SnapshotID, x)
		man, err := snapshot.LoadSnapshot(t.Context(), r.Kopia(), manifest.ID(id))
		must(t, err)
		if len(want) > 0 {
			if got := objectOf(t, s, extrasOf(t, s, id)); got != stored.String() {
				t.Fatalf("seed %d: %d bytes are stored, want %d", seed, len(got), stored.Len())
			}
		} else if man.Tags[tagExtras] != "" {
			t.Errorf("nothing is stored as %v", man.Tags)
		}
		man.Tags[tagRecord] = "record"
		all, err := loadExtras(t.Context(), r.Kopia(), man, unboundedExtras, &notes{})
		must(t, err)
		if all.count != len(want) {
			t.Errorf("seed %d: there are %d lines, want %d", seed, all.count, len(want))
		}
		t.Logf("seed %d: %d runs, %d lines, %d blocks", seed, len(x.runs), len(want), len(all.blocks))
		in := packedReader{of: all}
		look := func(path string) {
			t.Helper()
			known, line, err := in.find(path)
			must(t, err)
			got, err := decodeExtra(known, line)
			must(t, err)
			expected, is := want[path]
			if is {
				expected.line, _ = slices.BinarySearch(paths, path)
				if at, err := in.path(line); err != nil || at != path {
					t.Fatalf("seed %d: line %d is %q, %v, want %q", seed, line, at, err, path)
				}
			} else {
				got.line = 0
			}
			if !reflect.DeepEqual(got, expected) {
				t.Fatalf("seed %d: %q has %v, want %v", seed, path, got, expected)
			}
		}
		for _, path := range paths {
			look(path)
			look(path)
			look(path + "!")
		}
		random.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
		shuffled := slices.Clone(paths)
		slices.Sort(paths)
		for _, path := range shuffled {
			look(path)
		}
		look("")
		look("~")
	}
}

// Files whose order by path is not that of their folders get theirs, and so do names of one file in
// several folders, when there is more than one block of them.
func TestManyExtrasComeBack(t *testing.T) {
	s, dir, target := newStore(t), t.TempDir(), t.TempDir()
	random := rand.NewChaCha8([32]byte{})
	for i := range 40 {
		for j, name := range []string{"a/b", "a.b", "a!", "a/b.c", "a/c/d", "a0/b", "a/b!", "ab", "a/c.d", "z/a/b"} {
			at := filepath.Join(dir, fmt.Sprintf("folder %02d", i), name)
			write(t, at, fmt.Sprint(i, j))
			setAttribute(t, at, "user.sum", string(randomAttributes(random, 300).Attributes["user.sum"]))
			setAttribute(t, filepath.Dir(at), "user.folder", fmt.Sprint(i, j))
			if j%3 == 0 {
				must(t, os.Link(at, filepath.Join(filepath.Dir(at), fmt.Sprint("near ", j))))
				must(t, os.MkdirAll(filepath.Join(dir, "far", name), 0o755))
				must(t, os.Link(at, filepath.Join(dir, "far", name, fmt.Sprint(i))))
			}
		}
	}
	want := tree(t, dir)
	r := s.client(t)
	id := s.upload(t, dir, web).SnapshotID
	man, err := snapshot.LoadSnapshot(t.Context(), r.Kopia(), manifest.ID(id))
	must(t, err)
	all, err := loadExtras(t.Context(), r.Kopia(), man, unboundedExtras, &notes{})
	must(t, err)
	if len(all.blocks) < 3 {
		t.Fatalf("there are %d blocks", len(all.blocks))
	}
	if restored := s.restore(t, id, target); restored.Warnings.Count != 0 {
		t.Errorf("the restore warns: %v", restored.Warnings)
	}
	expectSameTree(t, tree(t, target), want)
	if diff := cmp.Diff(attributesBelow(t, dir), attributesBelow(t, target)); diff != "" {
		t.Errorf("the attributes differ (-want +got):\n%s", diff)
	}
	// The names of each file, by the first of them.
	names := func(in string) map[string][]string {
		of, first := map[string][]string{}, map[uint64]string{}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			file := stat(t, in, name)
			if file.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			if first[file.Ino] == "" {
				first[file.Ino] = name
			}
			of[first[file.Ino]] = append(of[first[file.Ino]], name)
		}
		return of
	}
	if diff := cmp.Diff(names(dir), names(target)); diff != "" {
		t.Errorf("the names of files differ (-want +got):\n%s", diff)
	}
}

// Lines that are not in the order of paths would not be found.
func TestExtrasOutOfOrder(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "a"), "x")
	r := s.client(t)
	uploaded, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web}, new(Progress))
	must(t, err)
	for _, paths := range [][]string{{"b", "a"}, {"a", "a"}, {""}} {
		x, lines := newExtras(&notes{}), ""
		for _, path := range paths {
			lines += fmt.Sprintf("{\"path\":%q,\"link\":1}\n", path)
		}
		must(t, x.add("replaced", extra{Link: 1}))
		id := addExtras(t, r, uploaded.SnapshotID, x)
		must(t, repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
			man, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(id))
			if err != nil {
				return err
			}
			beside, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(man.Tags[tagExtras]))
			if err != nil {
				return err
			}
			beside.RootEntry.ObjectID = putObject(t, s, lines)
			saved, err := snapshot.SaveSnapshot(ctx, w, beside)
			if err != nil {
				return err
			}
			man.Tags[tagExtras] = string(saved)
			saved, err = snapshot.SaveSnapshot(ctx, w, man)
			id = string(saved)
			return err
		}))
		_, err := Restore(t.Context(), r, RestoreRequest{SnapshotID: id, Path: t.TempDir()}, new(Progress))
		if err == nil || !strings.Contains(err.Error(), "comes after") {
			t.Errorf("%q: %v", paths, err)
		}
	}
}

// storedFile is a file of a snapshot, of which no more is looked at than which content it has.
type storedFile struct {
	kopiafs.File
	id object.ID
}

func (f storedFile) ObjectID() object.ID { return f.id }

// What is collected of many files, and what a restore knows of their names, takes no more than is
// counted.
func TestMemoryOfExtras(t *testing.T) {
	const files = 300_000
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before := heap()
	x := newExtras(&notes{})
	x.most = leastExtras
	list := map[string][]byte{"system.posix_acl_access": []byte(acl(1234, 6))}
	for i := range files {
		must(t, x.add(fmt.Sprintf("home/%d/documents/file-%d.txt", i/100, i), extra{Attributes: list, Link: i}))
	}
	took := heap() - before
	t.Logf("%d KiB, of which %d are packed, in %d runs", took>>10, x.bytes>>10, len(x.runs))
	if took > x.bytes+looseExtras {
		t.Errorf("they take %d KiB, more than the %d KiB that are counted", took>>10, (x.bytes+looseExtras)>>10)
	}
	runtime.KeepAlive(x)

	id, err := object.ParseID(strings.Repeat("0", 32))
	must(t, err)
	before = heap()
	o := &output{extras: new(packed), most: leastExtras}
	for i := range files {
		if is := o.isLink("", storedFile{id: id}, extra{Link: i/2 + 1, line: i}); is != (i%2 == 1) {
			t.Fatalf("name %d is a further one: %v", i, is)
		}
	}
	took = heap() - before
	t.Logf("%d KiB, counted as %d", took>>10, o.extras.bytes>>10)
	if took > o.extras.bytes {
		t.Errorf("the names take %d KiB, more than the %d KiB that are counted", took>>10, o.extras.bytes>>10)
	}
	runtime.KeepAlive(o)
}

// addExtras gives a snapshot extras, and returns its new id.
func addExtras(t *testing.T, r *repository.Repository, id string, x *extras) string {
	t.Helper()
	must(t, repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		man, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(id))
		if err != nil {
			return err
		}
		if err := x.save(ctx, w, man, nil); err != nil {
			return err
		}
		saved, err := snapshot.SaveSnapshot(ctx, w, man)
		id = string(saved)
		return err
	}))
	return id
}

// An agent that stops after it has stored a snapshot, and before it has said so, stores
// the volume once more: one snapshot of the record is left, and those of other volumes,
// records and backups stay.
func TestAnotherAttempt(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	withAttributes(t, dir)
	upload := func(r *repository.Repository, source Source, backup, record types.UID) string {
		t.Helper()
		result, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: source, Backup: backup, Record: record}, new(Progress))
		must(t, err)
		return result.SnapshotID
	}
	r := s.client(t)
	scratch := Source{Namespace: namespace, Pod: "web-0", Volume: "data"}
	claim := Source{Namespace: namespace, Pod: "web-0", Volume: "files", ClaimName: "data", ClaimUID: "claim-1"}
	others := []string{
		upload(r, scratch, "earlier", "1"), upload(r, Source{Namespace: namespace, Pod: "web-1", Volume: "data"}, "backup", "2"),
		upload(r, claim, "backup", "3"),   // of the same path
		upload(r, scratch, "backup", "4"), // of an attempt of the backup that has told of it
		upload(r, scratch, "backup", ""),
	}
	upload(r, scratch, "backup", "5")
	want := append(others, upload(s.open(t), scratch, "backup", "5"))
	var got []string
	beside := 0
	for _, man := range s.snapshots(t) {
		if strings.HasPrefix(man.Source.Path, extrasSource) {
			beside++
		} else {
			got = append(got, string(man.ID))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || beside != len(want) {
		t.Errorf("there are the snapshots %v, want %v, and %d with extras", got, want, beside)
	}
}

// An upload that was paused on its way removes nothing that another agent has stored
// meanwhile, and told of, even when it knows of that.
func TestPausedAttempt(t *testing.T) {
	var other atomic.Pointer[func()]
	location, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet && r.Method != http.MethodHead {
				if do := other.Swap(nil); do != nil {
					(*do)()
				}
			}
			next.ServeHTTP(w, r)
		})
	})
	s := store{key: repository.NewKey(), location: repository.Location{Spec: location, Secret: secret}}
	s.create(t)
	dir := t.TempDir()
	withAttributes(t, dir)
	random := make([]byte, 24<<20) // more than a pack, which is written before the end
	rand.NewChaCha8([32]byte{}).Read(random)
	write(t, filepath.Join(dir, "big"), string(random))
	r := s.open(t)
	upload := func() string {
		t.Helper()
		result, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web, Backup: "backup", Record: "record"}, new(Progress))
		if err != nil {
			t.Error(err)
		}
		return result.SnapshotID
	}
	var told string
	meanwhile := func() { told = upload() }
	other.Store(&meanwhile)
	paused := upload()
	if told == "" {
		t.Fatal("nothing happened while it was paused")
	}
	target := t.TempDir()
	if restored := s.restore(t, told, target); restored.Warnings.Count != 0 {
		t.Errorf("the restore warns: %v", restored.Warnings)
	}
	expectSameTree(t, tree(t, target), tree(t, dir))
	s.restore(t, paused, t.TempDir())
}
