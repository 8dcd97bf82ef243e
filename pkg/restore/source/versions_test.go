// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

// TestVersions: proof 15. A backup that holds objects in several versions, as Velero's can,
// gives each in the one that is asked for, and without that in the one that all read.
func TestVersions(t *testing.T) {
	const path = "resources/things.example.com/%snamespaces/shop/%s.json"
	thing := func(version, name string) string {
		return fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Thing","metadata":{"name":%q,"namespace":"shop","uid":"uid-%s"},"spec":{"of":%q}}`, version, name, name, version)
	}
	var entries []entry
	for _, name := range []string{"a", "b"} {
		entries = append(entries,
			entry{path: fmt.Sprintf(path, "", name), content: thing("v1beta1", name)},
			entry{path: fmt.Sprintf(path, "v1beta1-preferredversion/", name), content: thing("v1beta1", name)},
			entry{path: fmt.Sprintf(path, "v1/", name), content: thing("v1", name)},
			entry{path: fmt.Sprintf(path, "v2/", name), content: thing("v2", name)})
	}
	open := func(entries ...entry) (*Backup, error) {
		bucket := storetest.Memory(t)
		w := &written{bucket, format.Contents{}, "b"}
		w.put(t, format.TarballKey("b"), tarball(t, entries...))
		w.finish(t)
		return Open(t.Context(), bucket, placeOf("b"), "", nil)
	}
	for _, want := range []string{"", "v1", "v2", "v3"} {
		b, err := open(entries...)
		check(t, err)
		b.TakeVersions(func(item *manifest.Item, versions []string) string {
			if fmt.Sprint(versions) != "[v1 v2]" || item.APIVersion != "v1beta1" {
				t.Errorf("%s is there in %v besides", item, versions)
			}
			if item.Name == "b" {
				return ""
			}
			return want
		})
		versions := map[string]string{}
		for object, err := range b.ObjectsOf(t.Context(), b.Items) {
			check(t, err)
			version, _ := object.Content.Object["spec"].(map[string]any)["of"].(string)
			versions[object.Item.Name] = version + " instead of " + b.Instead(object.Item)
			if again, err := b.Object(t.Context(), object.Item); err != nil || again.GroupVersionKind() != object.Content.GroupVersionKind() {
				t.Errorf("alone it is %v, %v", again, err)
			}
		}
		of := "v1beta1 instead of "
		if want == "v1" || want == "v2" {
			of = want + " instead of v1beta1"
		}
		if versions["a"] != of || versions["b"] != "v1beta1 instead of " {
			t.Errorf("asked for %q: %v", want, versions)
		}
	}
	if _, err := open(entry{path: fmt.Sprintf(path, "", "a"), content: thing("v1", "a")}, entry{path: fmt.Sprintf(path, "v2/", "a"), content: thing("v3", "a")}); !errors.Is(err, ErrRefused) {
		t.Errorf("one that is of another version than its path says: %v", err)
	}
}
