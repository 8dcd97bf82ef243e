// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

type comparison struct {
	immutable func(path string) bool
	given     func(path string, value any) part
	// injected says that another writes the object's certificates.
	injected   bool
	definition bool
	// removesOnly leaves differing values.
	removesOnly bool

	differs, kept, fixed  []string
	besides, fixedBesides []string
}

// merge returns live with the desired fields, and without additions.
func (c *comparison) merge(at string, live, desired, put map[string]any, meta strategicpatch.LookupPatchMeta, managers []manager) map[string]any {
	for _, field := range slices.Sorted(maps.Keys(desired)) {
		path := join(at, field)
		below := descend(managers, fieldpath.PathElement{FieldName: &field})
		is, has := live[field]
		want := desired[field]
		switch wanted := want.(type) {
		case nil:
			continue
		case map[string]any:
			if fields, ok := is.(map[string]any); ok {
				served, _ := put[field].(map[string]any)
				inner, whole := member(meta, field)
				live[field] = c.mergeWhole(whole, path, fields, wanted, served, inner, below)
				continue
			}
		case []any:
			if elements, ok := is.([]any); ok {
				served, _ := put[field].([]any)
				live[field] = c.mergeList(path, elements, wanted, served, meta, field, below)
				continue
			}
		}
		if has && (same(is, want) || c.injected && field == certificate) {
			continue
		}
		if has && slices.ContainsFunc(below, func(m manager) bool { return m.holds && m.scales }) {
			continue
		}
		if c.differ(path, below) {
			live[field] = want
		}
	}
	for _, field := range slices.Sorted(maps.Keys(live)) {
		if desired[field] != nil {
			continue
		}
		served, known := put[field]
		below := descend(managers, fieldpath.PathElement{FieldName: &field})
		left, stays := c.beside(join(at, field), live[field], served, known, meta, field, below)
		if live[field] = left; !stays {
			delete(live, field)
		}
	}
	return live
}

func join(at, field string) string {
	if at == "" {
		return field
	}
	if strings.ContainsAny(field, "./") {
		return at + "[" + field + "]"
	}
	return at + "." + field
}

func (c *comparison) differ(path string, managers []manager) bool {
	if c.removesOnly {
		return false
	}
	c.differs = append(c.differs, path)
	if c.immutable(path) {
		c.fixed = append(c.fixed, path)
		return true
	}
	for _, m := range managers {
		if m.holds && m.decides {
			c.kept = append(c.kept, path+" (managed by "+m.name+")")
			return false
		}
	}
	return true
}

// beside decides about a field or an element that only the live object has, and returns the part
// that stays. put is the server's value, if known; meta and field describe the list.
func (c *comparison) beside(path string, is, put any, known bool, meta strategicpatch.LookupPatchMeta, field string, managers []manager) (left any, stays bool) {
	belongs := c.given(path, is)
	switch {
	case is == nil, known && same(is, put), belongs == all, path == "metadata", strings.HasPrefix(path, "metadata."):
		return is, true
	case slices.ContainsFunc(managers, manager.holdsAll):
		return is, true
	}
	partly := slices.ContainsFunc(managers, func(m manager) bool { return m.below != nil && !m.below.Empty() })
	if strings.HasSuffix(path, "]") { // an element is useless without its other fields
		if partly {
			return is, true
		}
	} else {
		partly = partly || belongs == some
	}
	switch value := is.(type) {
	case map[string]any:
		if served, ok := put.(map[string]any); ok || partly {
			inner, _ := member(meta, field)
			left := c.merge(path, value, nil, served, inner, managers)
			return left, known || len(left) > 0
		}
	case []any:
		served, ok := put.([]any)
		key, _, below := c.listOf(path, meta, field)
		if key != "" && unique(value, key) && (!ok || unique(served, key)) {
			left := c.mergeKeyed(path, key, false, value, nil, served, below, managers)
			return left, known || len(left) > 0
		}
	}
	if slices.ContainsFunc(managers, func(m manager) bool { return m.holds }) {
		return is, true
	}
	c.besides = append(c.besides, path)
	if c.definition && !c.removesOnly {
		return is, true
	}
	if c.immutable(path) {
		c.fixedBesides = append(c.fixedBesides, path)
	}
	return nil, false
}

// mergeWhole is merge. With whole, the fields belong together, as a volume's: if one differs,
// fields that are only live are dropped.
func (c *comparison) mergeWhole(whole bool, at string, live, desired, put map[string]any, meta strategicpatch.LookupPatchMeta, managers []manager) map[string]any {
	differs, kept, besides, fixed := len(c.differs), len(c.kept), len(c.besides), len(c.fixedBesides)
	live = c.merge(at, live, desired, put, meta, managers)
	if whole && len(c.differs)-differs > len(c.kept)-kept {
		maps.DeleteFunc(live, func(field string, _ any) bool { _, wanted := desired[field]; return !wanted })
		c.besides, c.fixedBesides = c.besides[:besides], c.fixedBesides[:fixed]
	}
	return live
}

const retainKeys = "retainKeys"

// member returns how lists in a field are merged, and whether its fields belong together.
func member(meta strategicpatch.LookupPatchMeta, field string) (strategicpatch.LookupPatchMeta, bool) {
	if meta == nil {
		return nil, false
	}
	below, patchMeta, err := meta.LookupPatchMetadataForStruct(field)
	if err != nil {
		return nil, false
	}
	return below, slices.Contains(patchMeta.GetPatchStrategies(), retainKeys)
}

// values is the key of lists of scalars without order.
const values = "="

// listOf returns how a list is merged: its elements' key or "", whether an element's fields belong
// together, and the rules of lists below.
func (c *comparison) listOf(path string, meta strategicpatch.LookupPatchMeta, field string) (key string, whole bool, below strategicpatch.LookupPatchMeta) {
	switch {
	case path == "metadata.ownerReferences":
		return "uid", false, nil
	case path == "spec.versions" && c.definition, path == "imagePullSecrets": // an account's
		return "name", false, nil
	}
	if meta == nil {
		return "", false, nil
	}
	below, patchMeta, err := meta.LookupPatchMetadataForSlice(field)
	if err != nil {
		return "", false, nil
	}
	if slices.Contains(patchMeta.GetPatchStrategies(), "merge") {
		key = cmp.Or(patchMeta.GetPatchMergeKey(), values)
	}
	return key, slices.Contains(patchMeta.GetPatchStrategies(), retainKeys), below
}

func (c *comparison) mergeList(path string, live, desired, put []any, meta strategicpatch.LookupPatchMeta, field string, managers []manager) []any {
	key, whole, below := c.listOf(path, meta, field)
	if key != "" && unique(live, key) && unique(desired, key) {
		return c.mergeKeyed(path, key, whole, live, desired, put, below, managers)
	}
	if len(live) != len(desired) {
		if c.differ(path, managers) {
			return desired
		}
		return live
	}
	// Elements are compared one by one. The list is written whole, with the server's additions.
	for i := range desired {
		at := fmt.Sprintf("%s[%d]", path, i)
		wanted, isMap := desired[i].(map[string]any)
		is, liveMap := live[i].(map[string]any)
		if isMap && liveMap {
			var served map[string]any
			if len(put) == len(live) {
				served, _ = put[i].(map[string]any)
			}
			live[i] = c.merge(at, is, wanted, served, below, managers)
			continue
		}
		if !same(live[i], desired[i]) && c.differ(at, managers) {
			live[i] = desired[i]
		}
	}
	return live
}

func (c *comparison) mergeKeyed(path, key string, whole bool, live, desired, put []any, meta strategicpatch.LookupPatchMeta, managers []manager) []any {
	position, served := map[string]int{}, map[string]any{}
	for i, element := range live {
		position[keyOf(element, key)] = i
	}
	for _, element := range put {
		served[keyOf(element, key)] = element
	}
	before := live
	live = slices.Clone(live)
	wanted := map[string]bool{}
	for _, element := range desired {
		name := keyOf(element, key)
		wanted[name] = true
		at := path + "[" + name + "]"
		i, has := position[name]
		if !has {
			if c.differ(at, managers) {
				live = append(live, element)
			}
			continue
		}
		fields, isMap := live[i].(map[string]any)
		want, ok := element.(map[string]any)
		if !isMap || !ok {
			continue
		}
		put, _ := served[name].(map[string]any)
		live[i] = c.mergeWhole(whole, at, fields, want, put, meta, elements(managers, key, live[i]))
	}
	var gone []int
	for i, element := range before {
		name := keyOf(element, key)
		if wanted[name] {
			continue
		}
		put, known := served[name]
		left, stays := c.besideElement(path+"["+name+"]", element, put, known, meta, elements(managers, key, element))
		if live[i] = left; !stays {
			gone = append(gone, i)
		}
	}
	for _, i := range slices.Backward(gone) {
		live = slices.Delete(live, i, i+1)
	}
	return live
}

func (c *comparison) besideElement(path string, is, put any, known bool, meta strategicpatch.LookupPatchMeta, managers []manager) (left any, stays bool) {
	const element = "element"
	if meta == nil {
		return c.beside(path, is, put, known, nil, element, managers)
	}
	return c.beside(path, is, put, known, elementMeta{meta}, element, managers)
}

// elementMeta makes an element of a list look like a field.
type elementMeta struct{ strategicpatch.LookupPatchMeta }

// LookupPatchMetadataForStruct implements strategicpatch.LookupPatchMeta.
func (m elementMeta) LookupPatchMetadataForStruct(string) (strategicpatch.LookupPatchMeta, strategicpatch.PatchMeta, error) {
	return m.LookupPatchMeta, strategicpatch.PatchMeta{}, nil
}

func keyOf(element any, key string) string {
	if key == values {
		switch element.(type) {
		case nil, map[string]any, []any:
			return ""
		}
		return fmt.Sprint(element)
	}
	fields, ok := element.(map[string]any)
	if !ok || fields[key] == nil {
		return ""
	}
	// A Service or a container may use one port with two protocols.
	if protocol, _ := fields["protocol"].(string); key == "port" || key == "containerPort" {
		return fmt.Sprint(fields[key], "/", cmp.Or(protocol, "TCP"))
	}
	return fmt.Sprint(fields[key])
}

func unique(list []any, key string) bool {
	seen := map[string]bool{}
	for _, element := range list {
		name := keyOf(element, key)
		if name == "" || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		other, ok := b.(map[string]any)
		if !ok || len(a) != len(other) {
			return false
		}
		for field, value := range a {
			if theirs, ok := other[field]; !ok || !same(value, theirs) {
				return false
			}
		}
		return true
	case []any:
		other, ok := b.([]any)
		return ok && slices.EqualFunc(a, other, same)
	case int64:
		if other, ok := b.(float64); ok {
			return float64(a) == other
		}
	case float64:
		if other, ok := b.(int64); ok {
			return a == float64(other)
		}
	}
	return a == b
}
