// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestObjectDiff compares the differences of pairs of objects with golden files. No value of a Secret is
// printed, not even the copy in an annotation.
func TestObjectDiff(t *testing.T) {
	files, err := filepath.Glob("testdata/objectdiff/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var pair struct {
				Old, New map[string]any
				Status   bool
			}
			if err := yaml.Unmarshal(content, &pair); err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			before, after := &unstructured.Unstructured{Object: pair.Old}, &unstructured.Unstructured{Object: pair.New}
			if differ := printDifferences(&got, before, after, pair.Status); differ != (got.Len() > 0) {
				t.Errorf("differ is %t, and printed was %q", differ, got.String())
			}
			if strings.Contains(got.String(), "c2VjcmV0") {
				t.Errorf("a value of a Secret is printed:\n%s", got.String())
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("printed was\n%s, want\n%s (%v)", got.String(), want, err)
			}
		})
	}
}

// TestObjectDiffArguments: a last argument with a slash is an object; --live has one backup and an object.
func TestObjectDiffArguments(t *testing.T) {
	for _, test := range []struct {
		args   string
		live   bool
		names  []string
		object string
		fails  bool
	}{
		{args: "a b", names: []string{"a", "b"}},
		{args: "a b configmap/c", names: []string{"a", "b"}, object: "configmap/c"},
		{args: "a configmap/c", live: true, names: []string{"a"}, object: "configmap/c"},
		{args: "a", fails: true},
		{args: "a configmap/c", fails: true},
		{args: "a b configmap/c", live: true, fails: true},
		{args: "a", live: true, fails: true},
	} {
		names, object, err := (&objectDiff{live: test.live}).split(strings.Fields(test.args))
		if (err != nil) != test.fails || !test.fails && (!slices.Equal(names, test.names) || object != test.object) {
			t.Errorf("%q, live %t: %v, %q, %v", test.args, test.live, names, object, err)
		}
	}
}
