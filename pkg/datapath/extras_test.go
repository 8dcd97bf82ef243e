// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
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

// extrasOf returns the object with what lies beside a snapshot, of which there are no
// lines that nobody needs.
func extrasOf(t *testing.T, s store, id string) object.ID {
	t.Helper()
	r := s.client(t).Kopia()
	man, err := snapshot.LoadSnapshot(t.Context(), r, manifest.ID(id))
	must(t, err)
	all, err := loadExtras(t.Context(), r, man, restoredMemory, &notes{})
	must(t, err)
	for path, line := range all {
		if path == "half" || line.Link == 0 && len(line.Attributes) == 0 {
			t.Errorf("%q has the line %v", path, line)
		}
	}
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
	uploaded.SnapshotID = addExtras(t, r, uploaded.SnapshotID, &extras{names: map[inode][]string{{1, 1}: {"a", "b", "c", "d", "no such file"}}})

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

// What the extras of a volume take is counted: files with the same attributes share them, and
// beyond the bound the volume fails.
func TestExtrasHaveABound(t *testing.T) {
	dir := t.TempDir()
	const files = 100
	for i := range files {
		name := fmt.Sprintf("file-%03d", i)
		write(t, filepath.Join(dir, name), "")
		setAttribute(t, filepath.Join(dir, name), "user.team", strings.Repeat("x", 1000))
	}
	folder, err := os.Open(dir)
	must(t, err)
	defer folder.Close()
	x := newExtras(&notes{})
	observe := func(name string) error {
		var stat unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dir, name), &stat))
		return x.observe(int(folder.Fd()), name, ".", make([]byte, namesSpace), &stat)
	}
	var last map[string][]byte
	for i := range files {
		name := fmt.Sprintf("file-%03d", i)
		must(t, observe(name))
		if kept := x.attributes[name]; last != nil && unsafe.SliceData(kept["user.team"]) != unsafe.SliceData(last["user.team"]) {
			t.Fatalf("%s has attributes of its own", name)
		}
		last = x.attributes[name]
	}
	if most := files*(extraMemory+len("file-000")) + 2*1000 + 2*attributeMemory; x.held.bytes > most {
		t.Errorf("the same attributes of %d files count as %d bytes, more than %d", files, x.held.bytes, most)
	}
	write(t, filepath.Join(dir, "own"), "")
	setAttribute(t, filepath.Join(dir, "own"), "user.team", "y")
	before := x.held.bytes
	must(t, observe("own"))
	if got := x.held.bytes - before; got < extraMemory+attributeMemory || string(x.attributes["own"]["user.team"]) != "y" {
		t.Errorf("attributes of one file, %q, count as %d bytes", x.attributes["own"], got)
	}
	x.held.bytes = extrasMemory
	if err := observe("file-000"); !errors.Is(err, errExtras) {
		t.Errorf("one more file than the bound: %v", err)
	}
}

// What an upload has taken has room in a restore, in whatever order it comes: attributes that
// many files have are shared even after many that one file has.
func TestExtrasInAnotherOrder(t *testing.T) {
	const files = 20_000
	names, own := make([]string, files), func(i int) map[string][]byte {
		return map[string][]byte{"user.sum": fmt.Appendf(nil, "%032d", i)}
	}
	everybodys := map[string][]byte{"user.acl": make([]byte, 10_000)}
	var first, last held
	first.most, last.most = extrasMemory, extrasMemory
	for i := range names {
		names[i] = fmt.Sprintf("file-%05d", i)
	}
	take := func(h *held, name string, attributes map[string][]byte) {
		t.Helper()
		_, err := h.take(name, attributes)
		must(t, err)
	}
	for _, name := range names {
		take(&first, name, everybodys)
	}
	for i, name := range names {
		take(&first, name, own(i))
	}
	for i, name := range names {
		take(&last, name, own(i))
	}
	for _, name := range names {
		take(&last, name, everybodys)
	}
	if last.bytes > first.bytes*3/2 {
		t.Errorf("they take %d bytes, and %d in another order", first.bytes, last.bytes)
	}
}

// What has more extras than a restore has memory for comes back without some of them.
func TestMoreExtrasThanARestoreHolds(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "a"), "x")
	r := s.client(t)
	uploaded, err := Upload(t.Context(), r, UploadRequest{Path: dir, Source: web}, new(Progress))
	must(t, err)
	id := addExtras(t, r, uploaded.SnapshotID, &extras{attributes: map[string]map[string][]byte{
		"a": {"user.a": []byte("1")}, "b": {"user.a": []byte("2")}, "c": {"user.a": []byte("3")},
	}})
	man, err := snapshot.LoadSnapshot(t.Context(), r.Kopia(), manifest.ID(id))
	must(t, err)
	var told notes
	all, err := loadExtras(t.Context(), r.Kopia(), man, 2*(extraMemory+attributeMemory+100), &told)
	must(t, err)
	if warnings := told.warnings(); len(all) != 2 || string(all["b"].Attributes["user.a"]) != "2" || warnings.Count != 1 || !strings.Contains(warnings.First[0], `"c" and what comes after it`) {
		t.Errorf("there are %v, with the warnings %v", all, warnings)
	}
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
