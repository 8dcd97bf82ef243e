// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/holdfast-io/holdfast/pkg/repository"
)

// walked is a snapshot as Files show it, page by page.
func walked(t *testing.T, f *Files, r *repository.Repository, at string, limit int, into map[string]StoredFile) {
	t.Helper()
	for token := ""; ; {
		_, items, next, err := f.List(t.Context(), r, at, token, limit)
		if err != nil {
			t.Fatalf("list %q from %q: %v", at, token, err)
		}
		if len(items) > limit {
			t.Fatalf("a page of %q has %d entries, and at most %d were wanted", at, len(items), limit)
		}
		for _, item := range items {
			below := path.Join(at, item.Name)
			if _, twice := into[below]; twice {
				t.Errorf("%q is listed twice", below)
			}
			into[below] = item
			if item.Type == TypeFolder {
				walked(t, f, r, below, limit, into)
			}
		}
		if token = next; token == "" {
			return
		}
	}
}

// TestFilesOfASnapshot: what is listed and read of a snapshot is what was in the volume, by pages of any
// size.
func TestFilesOfASnapshot(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	richTree(t, dir)
	id := s.upload(t, dir, web).SnapshotID
	r := s.client(t)
	files, err := OpenFiles(t.Context(), r, id)
	must(t, err)
	for _, limit := range []int{1, 2, 3, 1000} {
		found := map[string]StoredFile{}
		walked(t, files, r, "/", limit, found)
		must(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			if err != nil || name == dir {
				return err
			}
			at := strings.TrimPrefix(name, dir)
			got, ok := found[at]
			delete(found, at)
			info, err := os.Lstat(name)
			switch {
			case err != nil:
				return err
			case !ok:
				t.Errorf("%q is not listed", at)
			case got.ModTime.UnixNano() != info.ModTime().UnixNano() && info.Mode().Type() != fs.ModeSymlink:
				t.Errorf("%q is of %s, and was of %s", at, got.ModTime, info.ModTime())
			case info.Mode().IsRegular():
				if got.Type != TypeFile || got.Size != info.Size() || got.Mode != info.Mode() {
					t.Errorf("%q is %+v, and was %s", at, got, info.Mode())
				}
				want, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				if _, content := read(t, files, r, at); content != string(want) {
					t.Errorf("%q has other content: %d bytes", at, len(content))
				}
			case info.IsDir():
				if got.Type != TypeFolder || got.Mode|os.ModeDir != info.Mode() {
					t.Errorf("%q is %+v, and was %s", at, got, info.Mode())
				}
			default:
				target, err := os.Readlink(name)
				if err != nil {
					return err
				}
				if _, got, err := files.Link(t.Context(), r, at); got != target || err != nil {
					t.Errorf("the link %q leads to %q, %v, and led to %q", at, got, err, target)
				}
			}
			return nil
		}))
		if len(found) > 0 {
			t.Errorf("listed are also %v", found)
		}
	}
	root, _, _, err := files.List(t.Context(), r, "", "", 1)
	if err != nil || root.Name != "/" || root.Type != TypeFolder || root.Files == 0 || root.Size < 9<<20 {
		t.Errorf("the root is %+v, %v", root, err)
	}
	// A part of a large file.
	of, content, err := files.Open(t.Context(), r, "big")
	must(t, err)
	defer content.Close()
	if _, err := content.Seek(of.Size-5, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "big"))
	must(t, err)
	if part, err := io.ReadAll(content); err != nil || string(part) != string(whole[len(whole)-5:]) {
		t.Errorf("the last bytes are %q, %v", part, err)
	}
}

func read(t *testing.T, f *Files, r *repository.Repository, at string) (StoredFile, string) {
	t.Helper()
	of, content, err := f.Open(t.Context(), r, at)
	if err != nil {
		t.Fatalf("open %q: %v", at, err)
	}
	defer content.Close()
	text, err := io.ReadAll(content)
	if err != nil {
		t.Fatalf("read %q: %v", at, err)
	}
	return of, string(text)
}

// TestPathsOfFiles: a path that leads nowhere, through a link or a file, or out of the volume, is an
// error that says so, and a link is never followed.
func TestPathsOfFiles(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	write(t, filepath.Join(dir, "folder/file"), "text")
	must(t, os.Symlink("folder", filepath.Join(dir, "link")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	id := s.upload(t, dir, web).SnapshotID
	r := s.client(t)
	files, err := OpenFiles(t.Context(), r, id)
	must(t, err)
	for asked, want := range map[string]struct {
		kind error
		text string
	}{
		"/absent":                    {ErrNoFile, `"/absent"`},
		"/folder/absent/deeper":      {ErrNoFile, `"/folder/absent"`},
		"/folder/file/deeper":        {ErrFileKind, `"/folder/file" is no folder`},
		"/link/file":                 {ErrFileKind, `"/link" is a symbolic link to "folder"`},
		"/out":                       {ErrFileKind, `symbolic link to "/etc/passwd"`},
		"/folder":                    {ErrFileKind, "is a folder"},
		"/":                          {ErrFileKind, "is a folder"},
		"/folder/../../etc/passwd":   {ErrFilePath, `".."`},
		"/not \xff utf-8":            {ErrFilePath, "UTF-8"},
		"/zero\x00byte":              {ErrFilePath, "zero byte"},
		strings.Repeat("/long", 9e3): {ErrFilePath, "more than"},
	} {
		if _, _, err := files.Open(t.Context(), r, asked); !errors.Is(err, want.kind) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%.50q: %v", asked, err)
		}
	}
	for _, asked := range []string{"folder/file", "//folder/./file", "/folder/file/"} {
		if of, text := read(t, files, r, asked); text != "text" || of.Name != "file" {
			t.Errorf("%q: %+v with %q", asked, of, text)
		}
	}
	if of, items, next, err := files.List(t.Context(), r, "/folder/file", "", 5); err != nil || of.Type != TypeFile || len(items) > 0 || next != "" {
		t.Errorf("a file is listed as %+v with %v, %q, %v", of, items, next, err)
	}
	if _, _, err := files.Link(t.Context(), r, "/folder/file"); !errors.Is(err, ErrFileKind) {
		t.Errorf("a file as a link: %v", err)
	}
	if _, err := OpenFiles(t.Context(), r, "absent"); !errors.Is(err, ErrSnapshotNotFound) {
		t.Errorf("no snapshot: %v", err)
	}
	// A token is of one folder, and no place in it that a page did not return gives an entry.
	_, _, token, err := files.List(t.Context(), r, "/", "", 1)
	must(t, err)
	if _, _, _, err := files.List(t.Context(), r, "/folder", token, 1); !errors.Is(err, ErrFileToken) {
		t.Errorf("the token of another folder: %v", err)
	}
	digest, _, _ := strings.Cut(token, ".")
	for _, bad := range []string{"x", digest, digest + ".0", digest + ".-1", digest + ".3", fmt.Sprintf("%s.%d", digest, int64(1)<<60)} {
		if _, _, _, err := files.List(t.Context(), r, "/", bad, 1); !errors.Is(err, ErrFileToken) {
			t.Errorf("the token %q: %v", bad, err)
		}
	}
}

// stored writes a snapshot whose root has these bytes as its listing.
func storedListing(t *testing.T, r *repository.Repository, listing string) *Files {
	t.Helper()
	var id object.ID
	must(t, repo.WriteSession(t.Context(), r.Kopia(), repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		writer := w.NewObjectWriter(ctx, object.WriterOptions{Prefix: "k", MetadataCompressor: "zstd-fastest"})
		defer writer.Close()
		if _, err := io.WriteString(writer, listing); err != nil {
			return err
		}
		var err error
		id, err = writer.Result()
		return err
	}))
	return &Files{root: &snapshot.DirEntry{Type: snapshot.EntryTypeDirectory, ObjectID: id}}
}

// TestHostileFolders: a folder that no uploader writes is an error, or harmless, and takes no more
// memory than an entry.
func TestHostileFolders(t *testing.T) {
	s := newStore(t)
	r := s.client(t)
	entry := func(name string) string {
		encoded, err := json.Marshal(name)
		must(t, err)
		return fmt.Sprintf(`{"name":%s,"type":"f","mode":"0644","size":1,"mtime":"2020-01-01T00:00:00Z","obj":"k0000"}`, encoded)
	}
	folder := func(entries ...string) string {
		return `{"stream":"kopia:directory","entries":[` + strings.Join(entries, ",") + `],"summary":null}`
	}
	for name, test := range map[string]struct {
		listing string
		names   []string
		text    string
	}{
		"as it should be":     {folder(entry("a"), entry("b")), []string{"a", "b"}, ""},
		"empty":               {folder(), nil, ""},
		"without entries":     {`{"stream":"kopia:directory","entries":null,"summary":null}`, nil, ""},
		"of unknown type":     {folder(`{"name":"x","type":"p","mode":"0644"}`), []string{"x"}, ""},
		"not UTF-8":           {folder(strings.Replace(entry("aXb"), "X", "\xff", 1)), []string{"a\ufffdb"}, ""},
		"leading up":          {folder(entry("..")), nil, `name ".."`},
		"leading below":       {folder(entry("a/b")), nil, `name "a/b"`},
		"without a name":      {folder(entry("")), nil, `name ""`},
		"another stream":      {`{"stream":"kopia:indirect","entries":[]}`, nil, "kopia:indirect"},
		"no stream":           {`{"entries":[` + entry("a") + `]}`, nil, "does not say"},
		"no JSON":             {"plain text", nil, "invalid character"},
		"cut":                 {strings.TrimSuffix(folder(entry("a")), `],"summary":null}`), []string{"a"}, "EOF"},
		"an endless entry":    {folder(entry(strings.Repeat("n", 2*largestEntry))), nil, errEntry.Error()},
		"an endless key":      {`{"stream":"kopia:directory","` + strings.Repeat("n", 2*largestEntry) + `":1,"entries":[]}`, nil, errEntry.Error()},
		"a mode that is none": {folder(`{"name":"x","type":"f","mode":"rwx"}`), nil, "mode"},
	} {
		t.Run(name, func(t *testing.T) {
			files := storedListing(t, r, test.listing)
			var names []string
			var err error
			for token := ""; ; {
				var items []StoredFile
				if _, items, token, err = files.List(t.Context(), r, "/", token, 1); err != nil {
					break
				}
				for _, item := range items {
					names = append(names, item.Name)
				}
				if token == "" {
					break
				}
			}
			if test.text == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), test.text) || test.text == "" && !slices.Equal(names, test.names) {
				t.Errorf("listed are %.100q, %.300v", names, err)
			}
		})
	}
}

// TestLargeFolderByPages: a page costs what it has, and not what is before it.
func TestLargeFolderByPages(t *testing.T) {
	s := newStore(t)
	r := s.client(t)
	const count = 20_000
	var listing strings.Builder
	listing.WriteString(`{"stream":"kopia:directory","entries":[`)
	for i := range count {
		if i > 0 {
			listing.WriteByte(',')
		}
		fmt.Fprintf(&listing, `{"name":"file-%06d","type":"f","mode":"0644","size":%d,"mtime":"2020-01-01T00:00:00Z","obj":"k0000"}`, i, i)
	}
	listing.WriteString(`],"summary":null}`)
	files := storedListing(t, r, listing.String())
	seen, began := 0, time.Now()
	for token := ""; ; {
		_, items, next, err := files.List(t.Context(), r, "/", token, 300)
		must(t, err)
		for _, item := range items {
			if item.Name != fmt.Sprintf("file-%06d", seen) || item.Size != int64(seen) {
				t.Fatalf("entry %d is %+v", seen, item)
			}
			seen++
		}
		if token = next; token == "" {
			break
		}
	}
	if seen != count {
		t.Errorf("listed are %d of %d", seen, count)
	}
	t.Logf("%d entries by pages of 300 took %s", count, time.Since(began))
	_, _, last, err := files.List(t.Context(), r, "/", newToken(files.root, int64(listing.Len()-len(`],"summary":null}`))), 300)
	if err != nil || last != "" {
		t.Errorf("behind the last entry: %q, %v", last, err)
	}
}
