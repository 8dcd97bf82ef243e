// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// Action is what becomes of an object that exists.
type Action string

const (
	// Equal: it has all that the desired one has. Nothing is written.
	Equal Action = "Equal"
	// Keep: it differs, and stays as it is.
	Keep Action = "Keep"
	// Update: it is patched.
	Update Action = "Update"
	// Conflict: fields differ that can't be changed. Nothing is written.
	Conflict Action = "Conflict"
	// Recreate: it is deleted, and created as desired, since fields differ that can't be
	// changed.
	Recreate Action = "Recreate"
)

// Decision is what becomes of an object that exists.
type Decision struct {
	Action Action
	// Differs are the fields that differ, as paths such as spec.replicas, in order.
	Differs []string
	// Kept are those of Differs that stay with who has changed or manages them, and why.
	Kept []string
	// Immutable are those of Differs that can't be changed.
	Immutable []string
	// Patch is a JSON merge patch for Update, which fails if the object is another one, or
	// was changed, since it was read.
	Patch []byte
}

// Compare decides about an object that exists. The desired one is as Rules.Desired gives it.
//
// Two objects are equal if the live one has all fields of the desired one, with equal
// values: what else it has are the server's defaults, or other people's additions, which
// stay. In lists whose elements have a key, elements are compared by that; in others one by
// one. Of metadata, labels, annotations and owners count, without
// Holdfast's own.
//
// Base is what an earlier restore has left there, or nil if there was none, or that is not
// known. With it, a field that the desired object has not, and base has, as it is still
// live, is removed; and one that both have alike was changed by somebody since, and stays.
// Without it, fields stay that a manager applies (as server-side apply has it), or a
// controller sets through the subresource scale.
func Compare(base, live, desired *unstructured.Unstructured, policy holdfast.ExistingResourcePolicy) Decision {
	c := &comparison{immutable: immutable(live)}
	var before map[string]any
	if base != nil {
		before = relevant(base)
	}
	target := relevant(live)
	meta := lists(desired.GroupVersionKind())
	target = c.merge("", before, target, relevant(desired), meta, managersOf(live))
	slices.Sort(c.differs)
	slices.Sort(c.kept)
	slices.Sort(c.fixed)
	d := Decision{Action: Equal, Differs: c.differs, Kept: c.kept, Immutable: c.fixed}
	switch {
	case len(c.differs) == 0:
	case policy == "" || policy == holdfast.ExistingResourceNone:
		d.Action = Keep
	case len(c.fixed) > 0 && policy == holdfast.ExistingResourceRecreate:
		d.Action = Recreate
	case len(c.fixed) > 0:
		d.Action = Conflict
	case len(c.kept) == len(c.differs):
		d.Action = Keep
	default:
		d.Action = Update
		d.Patch = patch(live, target)
	}
	return d
}

// relevant is what of an object is compared.
func relevant(o *unstructured.Unstructured) map[string]any {
	copied := runtime.DeepCopyJSON(o.Object)
	delete(copied, "status")
	delete(copied, "apiVersion")
	delete(copied, "kind")
	metadata, _ := copied["metadata"].(map[string]any)
	kept := map[string]any{}
	for _, field := range []string{"labels", "annotations", "ownerReferences"} {
		if value, ok := metadata[field]; ok && value != nil {
			kept[field] = value
		}
	}
	if annotations, ok := kept["annotations"].(map[string]any); ok {
		maps.DeleteFunc(annotations, func(name string, _ any) bool {
			return strings.HasPrefix(name, prefix) || slices.Contains(volatile, name)
		})
		if len(annotations) == 0 {
			delete(kept, "annotations")
		}
	}
	if labels, ok := kept["labels"].(map[string]any); ok {
		delete(labels, engine.LabelWaits)
		if len(labels) == 0 {
			delete(kept, "labels")
		}
	}
	if spec := nested(copied, "spec"); o.GetKind() == "Job" && spec != nil {
		delete(spec, "suspend") // whether it runs is not what it is; see change.job
	}
	delete(copied, "metadata")
	if len(kept) > 0 {
		copied["metadata"] = kept
	}
	return copied
}

// patch is the merge patch that makes of a live object the target, which has what
// relevant has.
func patch(live *unstructured.Unstructured, target map[string]any) []byte {
	before, err := json.Marshal(relevant(live))
	if err != nil {
		return nil
	}
	after, err := json.Marshal(target)
	if err != nil {
		return nil
	}
	encoded, err := jsonpatch.CreateMergePatch(before, after)
	if err != nil {
		return nil
	}
	var fields map[string]any
	if json.Unmarshal(encoded, &fields) != nil {
		return nil
	}
	metadata, ok := fields["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		fields["metadata"] = metadata
	}
	metadata["uid"], metadata["resourceVersion"] = string(live.GetUID()), live.GetResourceVersion()
	encoded, _ = json.Marshal(fields)
	return encoded
}

// comparison goes through three objects at once.
type comparison struct {
	immutable func(path string) bool

	differs, kept, fixed []string
}

// merge gives live with what desired has. The managers are those of this part.
func (c *comparison) merge(at string, base, live, desired map[string]any, meta strategicpatch.LookupPatchMeta, managers []manager) map[string]any {
	for _, field := range slices.Sorted(maps.Keys(desired)) {
		path := join(at, field)
		below := descend(managers, fieldpath.PathElement{FieldName: &field})
		was, had := base[field]
		is, has := live[field]
		want := desired[field]
		switch wanted := want.(type) {
		case nil:
			continue // as good as not there
		case map[string]any:
			if fields, ok := is.(map[string]any); ok {
				before, _ := was.(map[string]any)
				inner, whole := member(meta, field)
				live[field] = c.mergeWhole(whole, path, before, fields, wanted, inner, below)
				continue
			}
		case []any:
			if elements, ok := is.([]any); ok {
				before, _ := was.([]any)
				live[field] = c.mergeList(path, before, elements, wanted, meta, field, below)
				continue
			}
		}
		if has && same(is, want) {
			continue
		}
		if c.differ(path, had, was, is, want, below) {
			live[field] = want
		}
	}
	for _, field := range slices.Sorted(maps.Keys(base)) {
		is, has := live[field]
		if _, wanted := desired[field]; wanted || !has {
			continue
		}
		path, below := join(at, field), descend(managers, fieldpath.PathElement{FieldName: &field})
		before, wasFields := base[field].(map[string]any)
		if fields, ok := is.(map[string]any); ok && wasFields {
			inner, _ := member(meta, field)
			if live[field] = c.merge(path, before, fields, nil, inner, below); len(fields) == 0 {
				delete(live, field)
			}
		} else if same(is, base[field]) && c.differ(path, true, is, is, nil, below) {
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

// differ notes a field that differs, and reports whether it is to be written.
func (c *comparison) differ(path string, had bool, was, is, want any, managers []manager) bool {
	c.differs = append(c.differs, path)
	if c.immutable(path) {
		c.fixed = append(c.fixed, path)
		return true
	}
	if had && same(was, want) && !same(is, want) {
		c.kept = append(c.kept, path+" (changed since the last restore)")
		return false
	}
	for _, m := range managers {
		if m.holds {
			c.kept = append(c.kept, path+" (managed by "+m.name+")")
			return false
		}
	}
	return true
}

// mergeWhole merges as merge does. With whole, the fields belong together, as those of a
// volume: if one differs, those go that are only live.
func (c *comparison) mergeWhole(whole bool, at string, base, live, desired map[string]any, meta strategicpatch.LookupPatchMeta, managers []manager) map[string]any {
	differs, kept := len(c.differs), len(c.kept)
	live = c.merge(at, base, live, desired, meta, managers)
	if whole && len(c.differs)-differs > len(c.kept)-kept {
		maps.DeleteFunc(live, func(field string, _ any) bool { _, wanted := desired[field]; return !wanted })
	}
	return live
}

const retainKeys = "retainKeys"

// member is how the lists in a field are merged, or nil, and whether its own fields belong
// together.
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

// mergeList gives live with what desired has.
func (c *comparison) mergeList(path string, base, live, desired []any, meta strategicpatch.LookupPatchMeta, field string, managers []manager) []any {
	var below strategicpatch.LookupPatchMeta
	key, whole := "", false
	if meta != nil {
		if found, patchMeta, err := meta.LookupPatchMetadataForSlice(field); err == nil {
			below = found
			whole = slices.Contains(patchMeta.GetPatchStrategies(), retainKeys)
			if slices.Contains(patchMeta.GetPatchStrategies(), "merge") {
				key = patchMeta.GetPatchMergeKey()
				if key == "" && isPrimitive(live) && isPrimitive(desired) {
					return c.mergeSet(path, base, live, desired, managers)
				}
			}
		}
	}
	if path == "metadata.ownerReferences" {
		key = "uid"
	}
	if key != "" && unique(live, key) && unique(desired, key) {
		return c.mergeKeyed(path, key, whole, base, live, desired, below, managers)
	}
	if len(live) != len(desired) {
		if c.differ(path, base != nil, base, live, desired, managers) {
			return desired
		}
		return live
	}
	// One by one. What is written is the list as a whole, with what the server has added to
	// its elements.
	for i := range desired {
		at := fmt.Sprintf("%s[%d]", path, i)
		var was any
		if i < len(base) {
			was = base[i]
		}
		wanted, isMap := desired[i].(map[string]any)
		is, liveMap := live[i].(map[string]any)
		if isMap && liveMap {
			before, _ := was.(map[string]any)
			live[i] = c.merge(at, before, is, wanted, below, managers)
			continue
		}
		if !same(live[i], desired[i]) && c.differ(at, i < len(base), was, live[i], desired[i], managers) {
			live[i] = desired[i]
		}
	}
	return live
}

// mergeKeyed merges lists whose elements have a key.
func (c *comparison) mergeKeyed(path, key string, whole bool, base, live, desired []any, meta strategicpatch.LookupPatchMeta, managers []manager) []any {
	position := map[string]int{}
	for i, element := range live {
		position[keyOf(element, key)] = i
	}
	before := map[string]map[string]any{}
	for _, element := range base {
		if fields, ok := element.(map[string]any); ok {
			before[keyOf(element, key)] = fields
		}
	}
	wanted := map[string]bool{}
	for _, element := range desired {
		name := keyOf(element, key)
		wanted[name] = true
		at := path + "[" + name + "]"
		was, had := before[name]
		i, has := position[name]
		if !has {
			if c.differ(at, had, was, nil, element, managers) {
				live = append(live, element)
			}
			continue
		}
		live[i] = c.mergeWhole(whole, at, was, live[i].(map[string]any), element.(map[string]any), meta, elements(managers, key, live[i]))
	}
	return slices.DeleteFunc(live, func(element any) bool {
		name := keyOf(element, key)
		was, had := before[name]
		return had && !wanted[name] && same(any(was), element) && c.differ(path+"["+name+"]", true, element, element, nil, managers)
	})
}

// mergeSet merges lists of texts or numbers whose order does not matter.
func (c *comparison) mergeSet(path string, base, live, desired []any, managers []manager) []any {
	has := func(list []any, value any) bool {
		return slices.ContainsFunc(list, func(other any) bool { return same(other, value) })
	}
	for _, value := range desired {
		if !has(live, value) && c.differ(fmt.Sprintf("%s[%v]", path, value), has(base, value), value, nil, value, managers) {
			live = append(live, value)
		}
	}
	return slices.DeleteFunc(live, func(value any) bool {
		return has(base, value) && !has(desired, value) && c.differ(fmt.Sprintf("%s[%v]", path, value), true, value, value, nil, managers)
	})
}

func isPrimitive(list []any) bool {
	return !slices.ContainsFunc(list, func(element any) bool {
		switch element.(type) {
		case map[string]any, []any:
			return true
		}
		return false
	})
}

func keyOf(element any, key string) string {
	fields, ok := element.(map[string]any)
	if !ok || fields[key] == nil {
		return ""
	}
	// What a Service or a container has twice of one port differs in its protocol.
	if protocol, _ := fields["protocol"].(string); key == "port" || key == "containerPort" {
		return fmt.Sprint(fields[key], "/", cmp.Or(protocol, "TCP"))
	}
	return fmt.Sprint(fields[key])
}

// unique reports whether a list's elements have a key each.
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

// same compares two values. Numbers are what they mean.
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

// manager has fields of a live object, and is not to lose them.
type manager struct {
	name string
	// holds is true if it has the field itself, and below are those of its fields that are
	// below.
	holds bool
	below *fieldpath.Set
}

func managersOf(live *unstructured.Unstructured) []manager {
	var managers []manager
	for _, entry := range live.GetManagedFields() {
		applies := entry.Operation == metav1.ManagedFieldsOperationApply
		scales := entry.Subresource == "scale" && !strings.HasPrefix(entry.Manager, "kubectl")
		if !applies && !scales || entry.FieldsV1 == nil {
			continue
		}
		set := &fieldpath.Set{}
		if set.FromJSON(entry.FieldsV1.GetRawReader()) == nil {
			managers = append(managers, manager{name: entry.Manager, below: set})
		}
	}
	return managers
}

// descend gives the managers of a field.
func descend(managers []manager, element fieldpath.PathElement) []manager {
	var found []manager
	for _, m := range managers {
		if m.below == nil {
			continue
		}
		holds := m.below.Members.Has(element)
		below, _ := m.below.Children.Get(element)
		if holds || below != nil {
			found = append(found, manager{m.name, holds, below})
		}
	}
	return found
}

// elements gives the managers of an element of a list, which may have more keys than one.
func elements(managers []manager, key string, element any) []manager {
	fields, _ := element.(map[string]any)
	var found []manager
	for _, m := range managers {
		if m.below == nil {
			continue
		}
		m.below.Children.Iterate(func(pe fieldpath.PathElement) {
			if pe.Key != nil && slices.ContainsFunc(*pe.Key, func(f value.Field) bool { return f.Name == key && same(f.Value.Unstructured(), fields[key]) }) {
				below, _ := m.below.Children.Get(pe)
				found = append(found, manager{m.name, m.below.Members.Has(pe), below})
			}
		})
	}
	return found
}
