// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Unmapped returns the same rules without mapping.
func (r *Rules) Unmapped() *Rules {
	unmapped := *r
	unmapped.namespaces, unmapped.left, unmapped.mentioned = nil, nil, nil
	return &unmapped
}

// Names reports whether a live object names a mapped namespace at a place of its schema.
// PersistentVolumes and Namespaces belong to one.
func (r *Rules) Names(live *unstructured.Unstructured, resource schema.GroupResource) bool {
	gk := live.GroupVersionKind().GroupKind()
	if len(r.namespaces) == 0 || gk.Group == "" && (gk.Kind == "PersistentVolume" || gk.Kind == "Namespace") {
		return false
	}
	mapped := live.DeepCopy()
	r.mapNames(gk, resource, mapped.Object)
	return !equality.Semantic.DeepEqual(mapped.Object, live.Object)
}

// besides are lists in which mapped elements are added to the others: each gives something to its
// namespace, and takes nothing.
var besides = []string{"subjects", "users", "groups", "userNames", "groupNames", "values", "from", "to", "matchNames", "namespaces", "dnsNames"}

// ruled are groups whose rules each allow something; in others the first match counts.
var ruled = []string{rbacGroup, "flowcontrol.apiserver.k8s.io", "security.istio.io"}

// Both merges an unmapped and a mapped object into one for both namespaces. single lists the fields
// that serve only the backup's.
func Both(unmapped, mapped *unstructured.Unstructured) (both *unstructured.Unstructured, single []string) {
	both = unmapped.DeepCopy()
	lists := besides
	if slices.Contains(ruled, both.GroupVersionKind().Group) {
		lists = append(slices.Clone(lists), "rules")
	}
	for _, field := range slices.Sorted(maps.Keys(both.Object)) {
		if field != "metadata" {
			var more []string
			both.Object[field], more = bothOf(lists, field, field, both.Object[field], mapped.Object[field])
			single = append(single, more...)
		}
	}
	return both, single
}

func bothOf(lists []string, at, field string, unmapped, mapped any) (both any, single []string) {
	if equality.Semantic.DeepEqual(unmapped, mapped) {
		return unmapped, nil
	}
	switch from := unmapped.(type) {
	case map[string]any:
		to, _ := mapped.(map[string]any)
		for _, field := range slices.Sorted(maps.Keys(from)) {
			var more []string
			from[field], more = bothOf(lists, at+"."+field, field, from[field], to[field])
			single = append(single, more...)
		}
		return from, single
	case []any:
		to, _ := mapped.([]any)
		if len(to) != len(from) {
			break
		}
		if slices.Contains(lists, field) {
			for _, element := range to {
				if !slices.ContainsFunc(from, func(other any) bool { return equality.Semantic.DeepEqual(other, element) }) {
					from = append(from, element)
				}
			}
			return from, nil
		}
		for i := range from {
			name := strconv.Itoa(i)
			if fields, ok := from[i].(map[string]any); ok {
				name = cmp.Or(text(fields, "name"), name)
			}
			var more []string
			from[i], more = bothOf(lists, at+"["+name+"]", field, from[i], to[i])
			single = append(single, more...)
		}
		return from, single
	}
	return unmapped, []string{at}
}
