// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	utiljson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Modifiers are users' rules that change objects, in Velero's format.
type Modifiers struct {
	rules  []modifier
	called selection.Called
}

type modifiersFile struct {
	Version string         `json:"version"`
	Rules   []modifierRule `json:"resourceModifierRules"`
}

type modifierRule struct {
	Conditions       modifierConditions `json:"conditions"`
	Patches          []modifierPatch    `json:"patches,omitempty"`
	MergePatches     []modifierData     `json:"mergePatches,omitempty"`
	StrategicPatches []modifierData     `json:"strategicPatches,omitempty"`
}

type modifierConditions struct {
	Namespaces        []string              `json:"namespaces,omitempty"`
	GroupResource     string                `json:"groupResource"`
	ResourceNameRegex string                `json:"resourceNameRegex,omitempty"`
	LabelSelector     *metav1.LabelSelector `json:"labelSelector,omitempty"`
	Matches           []modifierMatch       `json:"matches,omitempty"`
}

type modifierMatch struct {
	Path  string `json:"path"`
	Value string `json:"value"`
}

type modifierPatch struct {
	Operation string `json:"operation"`
	From      string `json:"from,omitempty"`
	Path      string `json:"path"`
	Value     string `json:"value,omitempty"`
}

type modifierData struct {
	PatchData string `json:"patchData"`
}

type modifier struct {
	// seen is set once an object has its resource, met once one meets its conditions, except
	// matches, which are tested for each object.
	seen, met  *atomic.Bool
	namespaces []string
	resource   string
	name       *regexp.Regexp
	selector   labels.Selector
	matches    jsonpatch.Patch
	operations jsonpatch.Patch
	merge      [][]byte
	strategic  [][]byte
}

// maxPatched bounds a changed object, as the API server bounds a request.
const maxPatched = 3 << 20

// Each copy can double an object.
func init() { jsonpatch.AccumulatedCopySizeLimit = maxPatched }

// ParseModifiers reads a ConfigMap with one entry of any name.
func ParseModifiers(data map[string]string) (*Modifiers, error) {
	if len(data) != 1 {
		return nil, fmt.Errorf("it must have one entry, and has %d", len(data))
	}
	for _, content := range data {
		encoded, err := yaml.YAMLToJSON([]byte(content))
		if err != nil {
			return nil, fmt.Errorf("it is not YAML: %w", err)
		}
		var file modifiersFile
		strict, err := utiljson.UnmarshalStrict(encoded, &file)
		if err = errors.Join(append(strict, err)...); err != nil {
			return nil, fmt.Errorf("it is not in the format of resource modifiers: %w", err)
		}
		if file.Version != "v1" {
			return nil, fmt.Errorf("its version is %q: only v1 is known", file.Version)
		}
		if n := len(file.Rules); n > maxRules {
			return nil, fmt.Errorf("it has %d resourceModifierRules: %d is the most", n, maxRules)
		}
		m := &Modifiers{}
		for i := range file.Rules {
			rule, err := compile(&file.Rules[i])
			if err != nil {
				return nil, fmt.Errorf("resourceModifierRules[%d]: %w", i, err)
			}
			m.rules = append(m.rules, rule)
		}
		return m, nil
	}
	return nil, nil
}

const (
	// maxRules and maxMatches bound the time for an object of 1 MiB, which each matching rule
	// parses.
	maxRules, maxMatches = 1000, 100
)

func compile(rule *modifierRule) (modifier, error) {
	conditions := &rule.Conditions
	m := modifier{seen: &atomic.Bool{}, met: &atomic.Bool{}, namespaces: conditions.Namespaces, resource: conditions.GroupResource, selector: labels.Everything()}
	if m.resource == "" {
		return m, errors.New("conditions.groupResource must be set: such as deployments.apps, or *")
	}
	for _, pattern := range append([]string{m.resource}, m.namespaces...) {
		if _, err := path.Match(pattern, ""); err != nil {
			return m, fmt.Errorf("conditions: %q is not a readable pattern", pattern)
		}
	}
	var err error
	if m.name, err = regexp.Compile(conditions.ResourceNameRegex); err != nil {
		return m, fmt.Errorf("conditions.resourceNameRegex: %w", err)
	}
	if conditions.LabelSelector != nil {
		if m.selector, err = metav1.LabelSelectorAsSelector(conditions.LabelSelector); err != nil {
			return m, fmt.Errorf("conditions.labelSelector: %w", err)
		}
	}
	if n := len(conditions.Matches); n > maxMatches {
		return m, fmt.Errorf("conditions.matches has %d entries: %d is the most", n, maxMatches)
	}
	for i, match := range conditions.Matches {
		test, err := operation("test", "", match.Path, match.Value)
		if err != nil {
			return m, fmt.Errorf("conditions.matches[%d]: %w", i, err)
		}
		m.matches = append(m.matches, test...)
	}
	kinds := 0
	for _, used := range []bool{len(rule.Patches) > 0, len(rule.MergePatches) > 0, len(rule.StrategicPatches) > 0} {
		if used {
			kinds++
		}
	}
	if kinds != 1 {
		return m, errors.New("it must have either patches, mergePatches or strategicPatches")
	}
	for i, patch := range rule.Patches {
		if !slices.Contains([]string{"add", "remove", "replace", "move", "copy", "test"}, patch.Operation) {
			return m, fmt.Errorf("patches[%d].operation is %q: it must be add, remove, replace, move, copy or test", i, patch.Operation)
		}
		added, err := operation(patch.Operation, patch.From, patch.Path, patch.Value)
		if err != nil {
			return m, fmt.Errorf("patches[%d]: %w", i, err)
		}
		m.operations = append(m.operations, added...)
	}
	if m.merge, err = documents("mergePatches", rule.MergePatches); err != nil {
		return m, err
	}
	m.strategic, err = documents("strategicPatches", rule.StrategicPatches)
	return m, err
}

func documents(field string, patches []modifierData) (encoded [][]byte, err error) {
	for i, patch := range patches {
		document, err := yaml.YAMLToJSON([]byte(patch.PatchData))
		if err == nil {
			var object map[string]any
			err = json.Unmarshal(document, &object)
		}
		if err != nil {
			return nil, fmt.Errorf("%s[%d].patchData is no object in YAML or JSON: %w", field, i, err)
		}
		encoded = append(encoded, document)
	}
	return encoded, nil
}

func operation(name, from, at, value string) (jsonpatch.Patch, error) {
	if at != "" && !strings.HasPrefix(at, "/") {
		return nil, fmt.Errorf("the path %q must begin with a slash, as in RFC 6901", at)
	}
	fields := map[string]any{"op": name, "path": at}
	if from != "" {
		fields["from"] = from
	}
	if name == "add" || name == "replace" || name == "test" {
		fields["value"] = literal(value)
	}
	encoded, err := json.Marshal([]any{fields})
	if err != nil {
		return nil, err
	}
	return jsonpatch.DecodePatch(encoded)
}

// literal returns a value's JSON, as Velero: null, true, a number, an object, a list or a quoted
// text stands for itself, any other for a text.
func literal(value string) json.RawMessage {
	trimmed := strings.TrimSpace(value)
	if json.Valid([]byte(trimmed)) {
		return json.RawMessage(trimmed)
	}
	if truth, err := strconv.ParseBool(trimmed); err == nil && len(trimmed) > 1 {
		return json.RawMessage(strconv.FormatBool(truth))
	}
	encoded, _ := json.Marshal(value)
	return encoded
}

// apply changes an object by the rules, in order. As in Velero, each rule's conditions look at the
// object without any rule, and a rule with a patch "test" that fails changes nothing. After an error
// the object is unusable.
func (m *Modifiers) apply(ctx context.Context, o *unstructured.Unstructured, resource schema.GroupResource) error {
	original := *o // its content stays: a patch makes another one
	var unchanged, current []byte
	for i := range m.rules {
		rule := &m.rules[i]
		if !m.called.Means(rule.resource, resource) {
			continue
		}
		rule.seen.Store(true)
		if !rule.meant(&original) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rule.met.Store(true)
		if unchanged == nil {
			var err error
			if unchanged, err = original.MarshalJSON(); err != nil {
				return err
			}
			current = unchanged
		}
		if !rule.matched(unchanged) {
			continue
		}
		patched, err := rule.patch(ctx, current, o)
		if errors.Is(err, jsonpatch.ErrTestFailed) {
			continue
		}
		if err == nil && len(patched) > maxPatched {
			err = fmt.Errorf("it leaves an object of more than %d bytes", maxPatched)
		}
		if err != nil {
			return fmt.Errorf("the resource modifier resourceModifierRules[%d] can't be applied: %w", i, err)
		}
		var object map[string]any
		if err := utiljson.UnmarshalCaseSensitivePreserveInts(patched, &object); err != nil {
			return fmt.Errorf("the resource modifier resourceModifierRules[%d] leaves no object: %w", i, err)
		}
		o.Object, current = object, patched
	}
	return nil
}

// Words returns the rules' words for resources.
func (m *Modifiers) Words() (words []string) {
	if m == nil {
		return nil
	}
	for i := range m.rules {
		words = append(words, m.rules[i].resource)
	}
	return words
}

// Idle lists the rules that have matched no object so far.
func (m *Modifiers) Idle() (texts []string) {
	if m == nil {
		return nil
	}
	for i := range m.rules {
		switch rule := &m.rules[i]; {
		case rule.met.Load():
		case rule.seen.Load():
			texts = append(texts, fmt.Sprintf("the resource modifier resourceModifierRules[%d] applies to nothing: no object of %q has the namespace, the name and the labels that it asks for", i, rule.resource))
		default:
			texts = append(texts, fmt.Sprintf("the resource modifier resourceModifierRules[%d] has %q in groupResource, which applies to nothing: the restore takes no such objects", i, rule.resource))
		}
	}
	return texts
}

func (m *modifier) meant(o *unstructured.Unstructured) bool {
	if len(m.namespaces) > 0 && !slices.ContainsFunc(m.namespaces, func(pattern string) bool {
		ok, _ := path.Match(pattern, o.GetNamespace())
		return ok
	}) {
		return false
	}
	return m.name.MatchString(o.GetName()) && m.selector.Matches(labels.Set(o.GetLabels()))
}

func (m *modifier) matched(encoded []byte) bool {
	if len(m.matches) == 0 {
		return true
	}
	_, err := m.matches.Apply(encoded) // it parses the object once
	return err == nil
}

func (m *modifier) patch(ctx context.Context, encoded []byte, o *unstructured.Unstructured) (_ []byte, err error) {
	if len(m.operations) > 0 {
		return m.operations.Apply(encoded)
	}
	for _, patch := range m.merge {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if encoded, err = jsonpatch.MergePatch(encoded, patch); err != nil {
			return nil, err
		}
	}
	for _, patch := range m.strategic {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		example := exampleOf(o.GroupVersionKind())
		if example == nil {
			return nil, fmt.Errorf("the kind %s has no strategic patches: use mergePatches or patches", o.GroupVersionKind().GroupKind())
		}
		if encoded, err = strategicpatch.StrategicMergePatch(encoded, patch, example); err != nil {
			return nil, err
		}
	}
	return encoded, nil
}
