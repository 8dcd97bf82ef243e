// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

func groupResource(item *manifest.Item) schema.GroupResource {
	return schema.GroupResource{Group: item.APIGroup, Resource: item.Resource}
}

// readCalled collects the names of the backup's resources, which the backup, the cluster and the
// backup's definitions know.
func (e *execution) readCalled(ctx context.Context) {
	e.called = selection.Called{}
	held := map[schema.GroupResource]bool{}
	var definitions []*manifest.Item
	for _, item := range e.Backup.Items {
		if gr := groupResource(item); !held[gr] {
			held[gr] = true
			e.called.Add(gr, item.KindName)
		}
		if item.APIGroup == extensionsGroup && item.KindName == "CustomResourceDefinition" {
			definitions = append(definitions, item)
		}
	}
	if e.kinds != nil {
		for word, gr := range e.kinds.called {
			if _, taken := e.called[word]; !taken && held[gr] {
				e.called[word] = gr
			}
		}
	}
	isKnown := func(word string) bool {
		_, known := e.called.Resolve(word)
		return known || selection.IsPattern(word)
	}
	if !slices.ContainsFunc(e.specWords(), func(word string) bool { return !isKnown(word) }) {
		return
	}
	for o, err := range e.Backup.ObjectsOf(ctx, definitions) {
		if err != nil {
			e.report.info(subject{}, "what a definition in the backup calls its kind is not known: "+err.Error())
			continue
		}
		spec, _, _ := unstructured.NestedMap(o.Content.Object, "spec")
		named := func(field string) string { name, _, _ := unstructured.NestedString(spec, "names", field); return name }
		group, _, _ := unstructured.NestedString(spec, "group")
		short, _, _ := unstructured.NestedStringSlice(spec, "names", "shortNames")
		if gr := (schema.GroupResource{Group: group, Resource: named("plural")}); held[gr] {
			e.called.Add(gr, append([]string{named("singular"), named("kind")}, short...)...)
		}
	}
}

func (e *execution) specWords() []string {
	words := slices.Concat(e.spec.IncludedResources, e.spec.ExcludedResources)
	for _, o := range e.spec.Objects {
		words = append(words, o.Resource)
	}
	if status := e.spec.RestoreStatus; status != nil {
		words = slices.Concat(words, status.IncludedResources, status.ExcludedResources)
	}
	return append(words, e.modifiers.Words()...)
}

// reportWords reports words of the spec that match nothing; for requested objects it is an error.
func (c *chooser) reportWords(chosen map[*manifest.Item]bool) {
	spec, report := c.e.spec, c.e.report
	held, taken := map[schema.GroupResource]bool{}, map[schema.GroupResource]bool{}
	for _, item := range c.e.Backup.Items {
		held[groupResource(item)] = true
	}
	for item := range chosen {
		taken[groupResource(item)] = true
	}
	means := func(word string, among map[schema.GroupResource]bool) bool {
		for gr := range among {
			if c.e.called.Means(word, gr) {
				return true
			}
		}
		return false
	}
	for _, word := range spec.IncludedResources {
		switch {
		case word == "*" || means(word, taken):
		case means(word, held):
			report.warn(subject{}, fmt.Sprintf("includedResources has %q, which applies to nothing: the backup holds such objects, but none that the restore takes", word))
		case selection.IsPattern(word):
			report.warn(subject{}, fmt.Sprintf("includedResources has %q, which applies to nothing: the backup holds no such resource", word))
		default:
			report.fail(subject{}, fmt.Sprintf("includedResources: the backup holds no %s: give the name of a resource that it holds, like deployments.apps", word))
		}
	}
	for _, word := range spec.ExcludedResources {
		if !means(word, held) && object.SkipItem(itemOf(word)) == "" {
			report.warn(subject{}, fmt.Sprintf("excludedResources: the backup holds no %s, so that this leaves nothing out", word))
		}
	}
	for _, list := range []struct {
		name  string
		words []string
	}{{"includedNamespaces", spec.IncludedNamespaces}, {"excludedNamespaces", spec.ExcludedNamespaces}} {
		for _, word := range list.words {
			if list.name == "includedNamespaces" && !selection.IsPattern(word) {
				continue
			}
			if pattern, err := selection.ParsePattern(word); err == nil && !c.hasNamespace(pattern.Match) {
				report.warn(subject{}, fmt.Sprintf("%s has %q, which applies to nothing: the backup holds no such namespace", list.name, word))
			}
		}
	}
	if spec.RestoreStatus == nil {
		return
	}
	for _, list := range []struct {
		name  string
		words []string
	}{{"includedResources", spec.RestoreStatus.IncludedResources}, {"excludedResources", spec.RestoreStatus.ExcludedResources}} {
		for _, word := range list.words {
			if word != "*" && !means(word, taken) {
				report.warn(subject{}, fmt.Sprintf("restoreStatus.%s has %q, which applies to nothing: the restore takes no such objects", list.name, word))
			}
		}
	}
}

func (c *chooser) hasNamespace(matches func(string) bool) bool {
	last := ""
	return slices.ContainsFunc(c.e.Backup.Items, func(item *manifest.Item) bool {
		name := item.Namespace
		if isNamespace(item) {
			name = item.Name
		}
		if name == "" || name == last {
			return false
		}
		last = name
		return matches(name)
	})
}

// itemOf returns an item of a resource. Velero's Restores all exclude resources that are never
// restored.
func itemOf(word string) *manifest.Item {
	gr := schema.ParseGroupResource(word)
	return &manifest.Item{APIGroup: gr.Group, Resource: gr.Resource}
}
