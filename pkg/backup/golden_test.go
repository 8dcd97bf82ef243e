// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// veleroBackup are the files of a backup that Velero 1.18.1 wrote, by their ends.
func veleroBackup(t testing.TB) map[string][]byte {
	t.Helper()
	file, err := os.Open("../restore/source/testdata/velero-store.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for entries := tar.NewReader(plain); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if dir, name := path.Split(strings.TrimPrefix(header.Name, "./")); dir == "backups/v-shop/" {
			if files[strings.TrimPrefix(name, "v-shop")], err = io.ReadAll(entries); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// veleroCluster serves what a tarball of Velero holds, and answers for the spec of its backup.
func veleroCluster(t testing.TB, files map[string][]byte) *fixture {
	t.Helper()
	var of struct {
		Spec v1alpha1.BackupSpec `json:"spec"`
	}
	if err := json.Unmarshal(files["velero-backup.json"], &of); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, of.Spec)
	f.resources = nil
	reader, err := archive.NewReader(bytes.NewReader(files[".tar.gz"]))
	if err != nil {
		t.Fatal(err)
	}
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return f
		}
		if err != nil {
			t.Fatal(err)
		}
		if entry.Versioned {
			continue
		}
		var object map[string]json.RawMessage
		var kind metav1.TypeMeta
		text, err := io.ReadAll(reader)
		if err := errors.Join(err, json.Unmarshal(text, &object), json.Unmarshal(text, &kind)); err != nil {
			t.Fatal(err)
		}
		delete(object, "apiVersion")
		delete(object, "kind")
		text, err = json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if f.kindOf(schema.FromAPIVersionAndKind(kind.APIVersion, "").GroupVersion(), entry.Resource.Resource) == "" {
			f.resources = append(f.resources, metav1.APIResourceList{GroupVersion: kind.APIVersion, APIResources: []metav1.APIResource{{
				Name: entry.Resource.Resource, SingularName: strings.ToLower(kind.Kind), Kind: kind.Kind, Namespaced: entry.Namespace != "",
				Verbs: metav1.Verbs{"create", "delete", "get", "list", "watch"},
			}}})
		}
		f.add(entry.Resource.String(), string(text))
	}
}

// TestTheSameAsVelero: of a cluster that has what Velero took, the same spec takes the same
// objects, with nothing to explain. What Velero has left there, and we would take, can't be seen.
func TestTheSameAsVelero(t *testing.T) {
	files := veleroBackup(t)
	f := veleroCluster(t, files)
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Fatalf("got %+v, %+v", outcome.Status, f.results(t))
	}
	list := func(data []byte) []string {
		found, err := format.ReadResourceList(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		var items []string
		for kind, names := range found {
			for _, name := range names {
				items = append(items, kind+" "+name)
			}
		}
		slices.Sort(items)
		return items
	}
	theirs, ours := list(files["-resource-list.json.gz"]), list(f.read(t, format.ResourceListKey("b")))
	if len(theirs) != 264 {
		t.Errorf("Velero's list has %d objects", len(theirs))
	}
	if diff := gocmp.Diff(theirs, ours); diff != "" {
		t.Errorf("objects (-Velero's +ours):\n%s", diff)
	}
}
