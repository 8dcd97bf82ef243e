// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	utiljson "sigs.k8s.io/json"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
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

// An update makes what exists equal to what is desired, but for labels of others, and a second
// one writes nothing.
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
		d := Compare(live, desired, nil, v1alpha1.ExistingResourceUpdate)
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
		if again := Compare(patched, desired, nil, v1alpha1.ExistingResourceUpdate); again.Action != Equal {
			t.Fatalf("after the update %s it differs again, in %q", d.Patch, again.Differs)
		}
		if patched.GetLabels()["live"] != "x" {
			t.Fatalf("the update %s takes a label of others", d.Patch)
		}
		if got, want := byName(nested(patched.Object, "spec")), byName(nested(desired.Object, "spec")); !same(got, want) {
			t.Fatalf("after the update %s it is %v, want %v", d.Patch, got, want)
		}
	})
}

// byName has the elements of lists in the order of their names.
func byName(value any) any {
	switch value := value.(type) {
	case map[string]any:
		sorted := map[string]any{}
		for field, inner := range value {
			sorted[field] = byName(inner)
		}
		return sorted
	case []any:
		var sorted []any
		for _, element := range value {
			sorted = append(sorted, byName(element))
		}
		slices.SortStableFunc(sorted, func(a, b any) int { return strings.Compare(keyOf(a, "name"), keyOf(b, "name")) })
		return sorted
	}
	return value
}

// Each field is decided about by itself: by the live value, the desired one, the managers of the field
// and the one that the server puts back. The oracle decides so.
func TestThreeWays(t *testing.T) {
	managers := map[string]map[string]any{
		"flux":                    {"operation": "Apply"},
		"kubectl":                 {"operation": "Apply"},
		"kubectl-edit":            {"operation": "Update"},
		"helm":                    {"operation": "Update"},
		"kube-controller-manager": {"operation": "Update"},
		"autoscaler":              {"operation": "Update", "subresource": "scale"},
	}
	applies := map[string]bool{"flux": true, "autoscaler": true}
	rapid.Check(t, func(t *rapid.T) {
		fields := []string{"a", "b", "c", "d"}
		values := func(name string) map[string]any {
			return rapid.MapOf(rapid.SampledFrom(fields), rapid.Custom(func(t *rapid.T) any { return int64(rapid.IntRange(0, 2).Draw(t, "value")) })).Draw(t, name)
		}
		deep := rapid.Bool().Draw(t, "deep")
		make := func(spec map[string]any) *unstructured.Unstructured {
			var content any = spec
			if deep {
				content = []any{map[string]any{"name": "x", "spec": spec}}
			}
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "a", "uid": "u", "resourceVersion": "1"}, "spec": map[string]any{"top": content},
			}}
		}
		specOf := func(object map[string]any) map[string]any {
			if deep {
				return nested(list(object, "spec", "top")[0], "spec")
			}
			return nested(object, "spec", "top")
		}
		live, desired, put := make(values("live")), make(values("desired")), make(values("put"))
		owners := map[string]string{}
		var entries []any
		for name, entry := range managers {
			owned := map[string]any{}
			for _, field := range fields {
				if rapid.IntRange(0, 4).Draw(t, name+" "+field) == 0 {
					owned["f:"+field] = map[string]any{}
					if owners[field] == "" || applies[name] || name == "kube-controller-manager" && !applies[owners[field]] {
						owners[field] = name
					}
				}
			}
			if deep || len(owned) == 0 {
				continue // a list without keys is owned as a whole
			}
			full := map[string]any{"manager": name, "fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:top": owned}}}
			maps.Copy(full, entry)
			entries = append(entries, full)
		}
		if deep {
			clear(owners)
		}
		_ = unstructured.SetNestedSlice(live.Object, entries, "metadata", "managedFields")
		d := Compare(live, desired, put, v1alpha1.ExistingResourceUpdate)
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
		is, want, served, got := specOf(live.Object), specOf(desired.Object), specOf(put.Object), specOf(merged)
		equal := true
		for _, field := range fields {
			expected := is[field]
			switch owner := owners[field]; {
			case want[field] != nil && want[field] != is[field]:
				equal = false
				if !applies[owner] {
					expected = want[field]
				}
			case want[field] != nil || is[field] == nil:
			case served[field] == is[field], applies[owner], owner == "kube-controller-manager":
			default:
				expected, equal = nil, false
			}
			if got[field] != expected {
				t.Fatalf("%s is %v, want %v: live %v, desired %v, put back %v, owners %v, %+v", field, got[field], expected, is, want, served, owners, d)
			}
		}
		if equal != (d.Action == Equal) {
			t.Fatalf("live %v, desired %v, put back %v, owners %v: %+v", is, want, served, owners, d)
		}
	})
}

// served is what a server makes of a Deployment: it fills in what is missing.
func served(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	fill := func(fields map[string]any, field string, value any) {
		if _, has := fields[field]; !has {
			fields[field] = value
		}
	}
	spec := nested(o.Object, "spec", "template", "spec")
	fill(nested(o.Object, "spec"), "progressDeadlineSeconds", int64(600))
	fill(spec, "dnsPolicy", "ClusterFirst")
	fill(spec, "securityContext", map[string]any{})
	fill(spec, "tolerations", []any{map[string]any{"key": "admission"}})
	for _, container := range list(spec, "containers") {
		fill(container, "imagePullPolicy", "Always")
		fill(container, "resources", map[string]any{})
		for _, port := range list(container, "ports") {
			fill(port, "protocol", "TCP")
		}
	}
	return o
}

// With a server that fills in defaults, an object is equal exactly if it is what the server makes of
// the desired one, whether the backup has the defaults or not; an update makes it so, and a second one
// writes nothing. The oracle compares the whole objects.
func TestServedObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) *unstructured.Unstructured {
			spec := podSpec().Draw(t, name)
			if rapid.Bool().Draw(t, "tolerations") {
				spec["tolerations"] = []any{map[string]any{"key": "own"}}
			}
			if rapid.Bool().Draw(t, "security") {
				spec["securityContext"] = map[string]any{"runAsUser": int64(rapid.IntRange(0, 1).Draw(t, "user"))}
			}
			if rapid.Bool().Draw(t, "policy") {
				spec["dnsPolicy"] = "Default"
			}
			for _, container := range list(spec, "containers") {
				if rapid.Bool().Draw(t, "ports") {
					container["ports"] = []any{map[string]any{"containerPort": int64(rapid.IntRange(80, 81).Draw(t, "port"))}}
				}
			}
			top := map[string]any{"template": map[string]any{"spec": spec}}
			if rapid.Bool().Draw(t, "paused") {
				top["paused"] = true
			}
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "1"}, "spec": top}}
		}
		desired := draw("desired")
		live := served(desired)
		if rapid.Bool().Draw(t, "changed") {
			live = served(draw("live"))
		}
		if rapid.Bool().Draw(t, "the backup has defaults") {
			desired = served(desired)
		}
		write := func(live *unstructured.Unstructured, patch []byte) *unstructured.Unstructured {
			before, err := json.Marshal(live.Object)
			if err != nil {
				t.Fatal(err)
			}
			after, err := jsonpatch.MergePatch(before, patch)
			if err != nil {
				t.Fatal(err)
			}
			patched := &unstructured.Unstructured{}
			if err := utiljson.UnmarshalCaseSensitivePreserveInts(after, &patched.Object); err != nil {
				t.Fatal(err)
			}
			return served(patched)
		}
		decide := func(live *unstructured.Unstructured) Decision {
			d := Compare(live, desired, nil, v1alpha1.ExistingResourceUpdate)
			if d.Probe != nil {
				d = Compare(live, desired, write(live, d.Probe), v1alpha1.ExistingResourceUpdate)
			}
			return d
		}
		equal := func(live *unstructured.Unstructured) bool {
			return same(byName(nested(live.Object, "spec")), byName(nested(served(desired).Object, "spec")))
		}
		d := decide(live)
		if equal(live) != (d.Action == Equal) {
			t.Fatalf("live %v, desired %v: %+v", live.Object, desired.Object, d)
		}
		if d.Action == Equal {
			return
		}
		after := write(live, d.Patch)
		if !equal(after) {
			t.Fatalf("live %v, desired %v: after %s it is %v", live.Object, desired.Object, d.Patch, after.Object)
		}
		if again := decide(after); again.Action != Equal {
			t.Fatalf("live %v, desired %v: after %s it differs still: %+v", live.Object, desired.Object, d.Patch, again)
		}
	})
}
