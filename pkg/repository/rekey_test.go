// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// After a change of the key the old one opens nothing, and the new one all that was there.
func TestChangeKey(t *testing.T) {
	root := t.TempDir()
	loc := Location{Spec: enginev1alpha1.StorageLocationSpec{Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: root}}}
	old, next, ctx := Key("chosen by a person"), NewKey(), t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(Create(ctx, loc, "app", old))
	opened, err := Open(ctx, loc, "app", old, Options{})
	check(err)
	var id object.ID
	check(repo.WriteSession(ctx, opened.Kopia(), repo.WriteSessionOptions{}, func(session context.Context, w repo.RepositoryWriter) error {
		writer := w.NewObjectWriter(session, object.WriterOptions{MetadataCompressor: "none"})
		defer writer.Close()
		if _, err := io.WriteString(writer, "what was stored before"); err != nil {
			return err
		}
		id, err = writer.Result()
		return err
	}))
	check(opened.Close(ctx))

	check(Opens(ctx, loc, "app", old))
	for key, namespace := range map[Key]string{"another one": "app", old: "none"} {
		if err := Opens(ctx, loc, namespace, key); !errors.Is(err, ErrWrongKey) && !errors.Is(err, ErrNotInitialized) || errors.Is(err, ErrWrongKey) != (namespace == "app") {
			t.Errorf("what opens the repository of %s: %v", namespace, err)
		}
	}
	if err := ChangeKey(ctx, loc, "app", "another one", next); !errors.Is(err, ErrWrongKey) {
		t.Errorf("with a wrong key: %v", err)
	}
	if err := ChangeKey(ctx, loc, "none", old, next); !errors.Is(err, ErrNotInitialized) {
		t.Errorf("of no repository: %v", err)
	}
	for range 2 { // the second time nothing is to be done
		check(ChangeKey(ctx, loc, "app", old, next))
	}
	if _, err := Open(ctx, loc, "app", old, Options{}); !errors.Is(err, ErrWrongKey) {
		t.Errorf("the old key: %v", err)
	}
	opened, err = Open(ctx, loc, "app", old, Options{Others: []Key{"a third", next}})
	check(err)
	reader, err := opened.Kopia().OpenObject(ctx, id)
	check(err)
	if content, err := io.ReadAll(reader); err != nil || string(content) != "what was stored before" {
		t.Errorf("it holds %q, %v", content, err)
	}
	check(errors.Join(reader.Close(), opened.Close(ctx)))
	// It is set up as before for whoever comes.
	check(Create(ctx, loc, "app", next))

	// A copy of a bucket, in a folder, has other names.
	name := filepath.Join(root, "kopia", "app", "kopia.repository")
	check(os.Rename(name+".f", name))
	check(Opens(ctx, loc, "app", next))
	check(os.Rename(name, name+".f"))

	check(os.WriteFile(filepath.Join(root, "kopia", "app", "kopia.blobcfg.f"), nil, 0o600))
	if err := ChangeKey(ctx, loc, "app", next, old); !errors.Is(err, ErrRetention) {
		t.Errorf("with an object that two keys would lock: %v", err)
	}
}
