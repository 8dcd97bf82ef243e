// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kopia/kopia/repo/manifest"

	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// person is a key that somebody chose, with which each creation would give a
// repository of its own.
const person Key = "correct horse"

// A process that sleeps between looking and writing, as a virtual machine does that
// is moved, does not replace the repository that another one has made meanwhile.
func TestSleepWhileCreating(t *testing.T) {
	for name, keys := range map[string]struct{ sleeper, other Key }{
		"the same key":   {person, person},
		"another key":    {NewKey(), NewKey()},
		"a person's key": {NewKey(), person},
	} {
		t.Run(name, func(t *testing.T) {
			var slept atomic.Bool
			var asleep func()
			spec, secret := storetest.FakeS3(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/kopia.repository") && slept.CompareAndSwap(false, true) {
						asleep()
					}
					next.ServeHTTP(w, r)
				})
			})
			loc := Location{Spec: spec, Secret: secret}
			var id manifest.ID
			asleep = func() {
				if err := Create(t.Context(), loc, namespace, keys.other); err != nil {
					t.Errorf("the other's Create: %v", err)
					return
				}
				r := open1(t, loc, keys.other, Options{})
				defer r.Close(t.Context())
				id = put(t, r)
			}
			err := Create(t.Context(), loc, namespace, keys.sleeper)
			if keys.sleeper == keys.other && err != nil || keys.sleeper != keys.other && !errors.Is(err, ErrWrongKey) {
				t.Errorf("the sleeper's Create: %v", err)
			}
			r := open1(t, loc, keys.other, Options{})
			defer r.Close(t.Context())
			if _, err := r.Kopia().GetManifest(t.Context(), id, new(map[string]string)); err != nil {
				t.Errorf("what the other has stored is lost: %v", err)
			}
		})
	}
}

// A bucket with Object Lock and a default retention takes a repository.
func TestCreateWithObjectLock(t *testing.T) {
	spec, secret := storetest.FakeS3(t, storetest.Locked)
	loc, key := Location{Spec: spec, Secret: secret}, NewKey()
	if err := Create(t.Context(), loc, namespace, key); err != nil {
		t.Fatal(err)
	}
	r := open1(t, loc, key, Options{})
	defer r.Close(t.Context())
	put(t, r)
}

// A symbolic link in a folder store leads nobody out of it.
func TestLinksLeadNowhere(t *testing.T) {
	for _, link := range []string{"kopia", "kopia/" + namespace, "kopia/" + namespace + "/q", "kopia/" + namespace + "/kopia.repository.f"} {
		t.Run(link, func(t *testing.T) {
			loc, key := filesystemLocation(t), NewKey()
			prefix := filepath.Join(loc.Spec.Filesystem.Path, loc.Spec.Prefix)
			outside := t.TempDir()
			at := filepath.Join(prefix, link)
			// What lies outside is a repository, so that nothing else keeps anybody away.
			if err := Create(t.Context(), loc, namespace, key); err != nil {
				t.Fatal(err)
			}
			target := filepath.Join(outside, "target")
			err := os.Rename(at, target)
			if errors.Is(err, fs.ErrNotExist) {
				err = os.Mkdir(target, 0o700)
			}
			if err := errors.Join(err, os.Symlink(target, at)); err != nil {
				t.Fatal(err)
			}
			before := tree(t, outside)
			r, err := Open(t.Context(), loc, namespace, key, Options{})
			if err == nil {
				_, err = r.put(t)
				r.Close(t.Context())
			}
			if err == nil {
				t.Error("a link was followed")
			}
			_ = Create(t.Context(), loc, namespace, key)
			if after := tree(t, outside); after != before {
				t.Errorf("outside there was\n%s, and now\n%s", before, after)
			}
		})
	}
}

func tree(t *testing.T, folder string) string {
	t.Helper()
	var names strings.Builder
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		names.WriteString(path + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names.String()
}
