// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	utiljson "sigs.k8s.io/json"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// podSpecs are specs of pods, which have lists of all sorts.
func podSpec() *rapid.Generator[map[string]any] {
	word := rapid.SampledFrom([]string{"a", "b", "c"})
	env := rapid.Custom(func(t *rapid.T) any {
		return map[string]any{"name": word.Draw(t, "env"), "value": word.Draw(t, "value")}
	})
	container := rapid.Custom(func(t *rapid.T) any {
		c := map[string]any{"name": word.Draw(t, "name"), "image": word.Draw(t, "image")}
		if list := rapid.SliceOfNDistinct(env, 0, 2, func(e any) string { return e.(map[string]any)["name"].(string) }).Draw(t, "env"); len(list) > 0 {
			c["env"] = list
		}
		if list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any { return word.Draw(t, "argument") }), 0, 3).Draw(t, "args"); len(list) > 0 {
			c["args"] = list
		}
		return c
	})
	volume := rapid.Custom(func(t *rapid.T) any {
		return map[string]any{"name": word.Draw(t, "name"), rapid.SampledFrom([]string{"emptyDir", "hostPath"}).Draw(t, "source"): map[string]any{}}
	})
	named := func(e any) string { return e.(map[string]any)["name"].(string) }
	return rapid.Custom(func(t *rapid.T) map[string]any {
		spec := map[string]any{"containers": rapid.SliceOfNDistinct(container, 1, 3, named).Draw(t, "containers")}
		if list := rapid.SliceOfNDistinct(volume, 0, 2, named).Draw(t, "volumes"); len(list) > 0 {
			spec["volumes"] = list
		}
		if rapid.Bool().Draw(t, "network") {
			spec["hostNetwork"] = rapid.Bool().Draw(t, "hostNetwork")
		}
		return spec
	})
}

// An update makes what exists equal to what is desired, removes nothing that the desired
// object does not speak of, and a second one writes nothing.
func TestUpdateIsDoneOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		apiVersion, kind := "apps/v1", "Deployment"
		if rapid.Bool().Draw(t, "custom") {
			apiVersion, kind = "example.com/v1", "Widget"
		}
		draw := func(name string) *unstructured.Unstructured {
			o := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": apiVersion, "kind": kind,
				"metadata": map[string]any{"name": "a", "namespace": "shop", "labels": map[string]any{name: "x", "both": rapid.SampledFrom([]any{"a", "b"}).Draw(t, "label")}},
				"spec":     map[string]any{"replicas": int64(rapid.IntRange(0, 2).Draw(t, "replicas")), "template": map[string]any{"spec": podSpec().Draw(t, name)}},
			}}
			return o
		}
		live, desired := draw("live"), draw("desired")
		live.SetUID("u")
		live.SetResourceVersion("1")
		d := Compare(nil, live, desired, holdfast.ExistingResourceUpdate)
		switch d.Action {
		case Equal:
			return
		case Update:
		default:
			t.Fatalf("%s: %+v", d.Action, d)
		}
		before, err := json.Marshal(live.Object)
		if err != nil {
			t.Fatal(err)
		}
		after, err := jsonpatch.MergePatch(before, d.Patch)
		if err != nil {
			t.Fatal(err)
		}
		patched := &unstructured.Unstructured{}
		if err := utiljson.UnmarshalCaseSensitivePreserveInts(after, &patched.Object); err != nil {
			t.Fatal(err)
		}
		if again := Compare(nil, patched, desired, holdfast.ExistingResourceUpdate); again.Action != Equal {
			t.Fatalf("after the update %s it differs again, in %q", d.Patch, again.Differs)
		}
		if patched.GetLabels()["live"] != "x" {
			t.Fatalf("the update %s takes a label of others", d.Patch)
		}
		if kind != "Deployment" {
			return
		}
		// Containers of others stay.
		names := map[string]bool{}
		for _, container := range list(patched.Object, "spec", "template", "spec", "containers") {
			names[text(container, "name")] = true
		}
		for _, container := range list(live.Object, "spec", "template", "spec", "containers") {
			if !names[text(container, "name")] {
				t.Fatalf("the update %s takes the container %s", d.Patch, text(container, "name"))
			}
		}
	})
}

// What an earlier restore has left, and others have changed since, stays.
func TestThreeWays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		make := func(name string) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "a", "uid": "u", "resourceVersion": "1"},
				"spec": rapid.MapOf(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.Custom(func(t *rapid.T) any { return int64(rapid.IntRange(0, 2).Draw(t, "value")) })).Draw(t, name),
			}}
		}
		base, live, desired := make("base"), make("live"), make("desired")
		d := Compare(base, live, desired, holdfast.ExistingResourceUpdate)
		merged := runtime.DeepCopyJSON(live.Object)
		if d.Action == Update {
			before, _ := json.Marshal(live.Object)
			after, err := jsonpatch.MergePatch(before, d.Patch)
			if err != nil {
				t.Fatal(err)
			}
			merged = nil
			if err := utiljson.UnmarshalCaseSensitivePreserveInts(after, &merged); err != nil {
				t.Fatal(err)
			}
		}
		was, is, want, got := nested(base.Object, "spec"), nested(live.Object, "spec"), nested(desired.Object, "spec"), nested(merged, "spec")
		for _, field := range []string{"a", "b", "c", "d"} {
			expected := is[field]
			if had, wanted := was[field], want[field]; wanted != nil && had != wanted {
				expected = wanted // the restore brings another value than the last one
			} else if wanted == nil && had != nil && had == is[field] {
				expected = nil // the last restore brought it, and this one does not
			}
			if got[field] != expected {
				t.Fatalf("%s is %v, want %v: base %v, live %v, desired %v, %+v", field, got[field], expected, was, is, want, d)
			}
		}
	})
}
