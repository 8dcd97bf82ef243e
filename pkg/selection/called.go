// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Called maps resources' names in lower case: plural, singular, kind and short names, also with the
// group after a dot.
type Called map[string]schema.GroupResource

// Add adds a resource's plural and other names. A taken word stays, as in kubectl.
func (c Called) Add(gr schema.GroupResource, names ...string) {
	for _, name := range append([]string{gr.Resource}, names...) {
		for _, word := range []string{name, name + "." + gr.Group} {
			word = strings.ToLower(word)
			if _, taken := c[word]; !taken && name != "" {
				c[word] = gr
			}
		}
	}
}

// Resolve is a Resolver.
func (c Called) Resolve(word string) (schema.GroupResource, bool) {
	gr, ok := c[strings.ToLower(word)]
	return gr, ok
}

// Means reports whether a word means a resource: by a name, or, as a pattern, by plural and group.
func (c Called) Means(word string, gr schema.GroupResource) bool {
	if IsPattern(word) {
		return matchesGlob(word, gr)
	}
	if meant, ok := c.Resolve(word); ok {
		return meant == gr
	}
	return strings.EqualFold(word, gr.String()) || strings.EqualFold(word, gr.Resource)
}

// IsPattern reports whether a word of a list has a wildcard.
func IsPattern(word string) bool { return isGlob(word) }

func matchesGlob(pattern string, gr schema.GroupResource) bool {
	ok, _ := path.Match(strings.ToLower(pattern), gr.String()) // its syntax was checked
	return ok
}
