// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ResourceLists are a spec's resource filters: the first three are the old style, the others the new
// style. They exclude each other.
type ResourceLists struct {
	// IncludedResources and ExcludedResources apply to both scopes. An empty included list, or `*` in
	// it, means all.
	IncludedResources, ExcludedResources []string
	// IncludeClusterResources, if true, takes all cluster-scoped resources that the lists allow, if
	// false none, if nil only in a backup of all namespaces.
	IncludeClusterResources *bool

	// An empty included list, or `*` in it, means all.
	IncludedNamespaceScopedResources, ExcludedNamespaceScopedResources []string
	// Cluster-scoped resources must be listed (`*` for all). Without lists they are taken only in a
	// backup of all namespaces and all namespace-scoped resources.
	IncludedClusterScopedResources, ExcludedClusterScopedResources []string
}

// Resolver returns the resource of a plural with or without group, singular, short name or kind; false
// if unknown.
type Resolver func(word string) (schema.GroupResource, bool)

// Resources is a compiled selection of resource types.
//
// A word without a wildcard means the Resolver's resource, as in Velero. An unknown word, or any word
// before Bind, means resources with this `plural.group` or `plural`. A wildcard matches `plural.group`
// (`plural` for the core group).
type Resources struct {
	oldStyle       bool
	includeCluster *bool
	allNamespaces  bool

	// both is the old style's pair; namespaced and cluster are the new style's.
	both, namespaced, cluster wordLists
}

type wordLists struct{ included, excluded []resourceWord }

type resourceWord struct {
	text     string
	resolved *schema.GroupResource
}

var namespacesResource = schema.GroupResource{Resource: "namespaces"}

// ParseResources compiles the lists of a backup that selects the given namespaces. An error names its
// field below the path `at`, which may be nil.
//
// Like Velero it refuses both styles together, and a word in both lists of a pair. It refuses `*` among
// the old style's excluded resources, and an excluded `*` of the new style beside another word of the
// pair. It accepts `*` beside other included words, unlike Velero's code.
func ParseResources(lists ResourceLists, namespaces *Namespaces, at *field.Path) (*Resources, field.ErrorList) {
	oldStyle := lists.IncludeClusterResources != nil || len(lists.IncludedResources) > 0 || len(lists.ExcludedResources) > 0
	var errs field.ErrorList
	pair := func(name string, included, excluded []string) wordLists {
		l, more := parsePair(included, excluded, at.Child("included"+name), at.Child("excluded"+name), name != "Resources")
		errs = append(errs, more...)
		return l
	}
	r := &Resources{
		oldStyle:       oldStyle,
		includeCluster: lists.IncludeClusterResources,
		allNamespaces:  namespaces.All(),
		both:           pair("Resources", lists.IncludedResources, lists.ExcludedResources),
		namespaced:     pair("NamespaceScopedResources", lists.IncludedNamespaceScopedResources, lists.ExcludedNamespaceScopedResources),
		cluster:        pair("ClusterScopedResources", lists.IncludedClusterScopedResources, lists.ExcludedClusterScopedResources),
	}
	if oldStyle {
		for _, f := range []struct {
			name  string
			words []string
		}{
			{"includedNamespaceScopedResources", lists.IncludedNamespaceScopedResources},
			{"excludedNamespaceScopedResources", lists.ExcludedNamespaceScopedResources},
			{"includedClusterScopedResources", lists.IncludedClusterScopedResources},
			{"excludedClusterScopedResources", lists.ExcludedClusterScopedResources},
		} {
			if len(f.words) > 0 {
				errs = append(errs, field.Forbidden(at.Child(f.name),
					"can't be used with includedResources, excludedResources or includeClusterResources: use one style or the other"))
			}
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return r, nil
}

func parsePair(included, excluded []string, includedAt, excludedAt *field.Path, starExcludable bool) (wordLists, field.ErrorList) {
	if errs := append(CheckList(included, includedAt), CheckList(excluded, excludedAt)...); len(errs) > 0 {
		return wordLists{}, errs
	}
	var errs field.ErrorList
	parse := func(words []string, at *field.Path) []resourceWord {
		var parsed []resourceWord
		for i, word := range words {
			if problem := resourceWordProblem(word); problem != "" {
				errs = append(errs, field.Invalid(at.Index(i), word, problem))
			}
			parsed = append(parsed, resourceWord{text: word})
		}
		return parsed
	}
	l := wordLists{parse(included, includedAt), parse(excluded, excludedAt)}
	written := l.excludedByUser()
	given := sets.New(included...)
	for i, word := range excluded {
		at := excludedAt.Index(i)
		switch {
		case word == "*" && !starExcludable:
			errs = append(errs, field.Invalid(at, word, "excludes every resource: name the resources to leave out"))
		case word == "*" && len(included)+written > 1:
			errs = append(errs, field.Invalid(at, word, "excludes every resource, so no other word can stand beside it or be included"))
		case given.Has(word):
			errs = append(errs, field.Invalid(at, word, "is included as well: remove it from one of the two lists"))
		}
	}
	return l, errs
}

func resourceWordProblem(word string) string {
	if word == "" {
		return "is empty: give a resource, like deployments.apps"
	}
	for _, c := range word {
		// Kinds have upper-case letters.
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("-.*?[]", c)) {
			return "is not a resource: use plural.group, plural, a short name or a kind, with `*`, `?` and `[...]`"
		}
	}
	if _, err := path.Match(word, ""); err != nil || strings.Contains(word, "**") ||
		strings.Count(word, "[") != strings.Count(word, "]") {
		return "is not a readable pattern: close each `[`, and use one `*` at a time"
	}
	return ""
}

// Bind returns the selection with resolved words, once per run, at its start.
func (r *Resources) Bind(resolve Resolver) *Resources {
	bind := func(words []resourceWord) []resourceWord {
		bound := make([]resourceWord, 0, len(words))
		for _, w := range words {
			if !isGlob(w.text) {
				if gr, ok := resolve(w.text); ok {
					w.resolved = &gr
				}
			}
			bound = append(bound, w)
		}
		return bound
	}
	bound := *r
	for _, l := range []*wordLists{&bound.both, &bound.namespaced, &bound.cluster} {
		l.included, l.excluded = bind(l.included), bind(l.excluded)
	}
	return &bound
}

// Included reports whether objects of this resource are collected: if namespaced, in the selected
// namespaces; if cluster-scoped, all; of `namespaces`, the selected ones.
//
// Namespaced: not excluded, and included or nothing included by name.
//
// Cluster-scoped, old style: the same, unless includeClusterResources is false, or nil in a backup of
// some namespaces; then only `namespaces` is subject to the lists.
//
// Cluster-scoped, new style: not excluded, and included, or `namespaces`, or nothing is listed in a
// backup of all namespaces and all namespace-scoped resources.
//
// A word of the other scope matches nothing. Velero drops it: a list of only such words means all.
func (r *Resources) Included(gr schema.GroupResource, namespaced bool) bool {
	switch {
	case r.oldStyle && !namespaced && !r.autoOrWanted(gr):
		return false
	case r.oldStyle:
		return !matchAny(r.both.excluded, gr) && r.both.includes(gr)
	case namespaced:
		return !matchAny(r.namespaced.excluded, gr) && r.namespaced.includes(gr)
	case matchAny(r.cluster.excluded, gr):
		return false
	}
	return gr == namespacesResource || matchAny(r.cluster.included, gr) || r.fullBackup()
}

func (r *Resources) autoOrWanted(gr schema.GroupResource) bool {
	if r.includeCluster != nil {
		return *r.includeCluster
	}
	return r.allNamespaces || gr == namespacesResource
}

// fullBackup is the new style's rule for unlisted cluster-scoped resources.
func (r *Resources) fullBackup() bool {
	return r.allNamespaces &&
		len(r.cluster.included)+r.cluster.excludedByUser()+r.namespaced.excludedByUser() == 0 &&
		r.namespaced.includesAll()
}

// IncludedRelated reports whether an object that another needs, such as a claim's volume, may be
// included, even if its resource is not collected. A namespaced one must be included; the caller checks
// its namespace. A namespace always may. Another cluster-scoped one may unless excluded by name. In the
// old style it also may not if includeClusterResources is false, or is nil and a list of included
// resources omits it.
func (r *Resources) IncludedRelated(gr schema.GroupResource, namespaced bool) bool {
	switch {
	case namespaced:
		return r.Included(gr, true)
	case gr == namespacesResource:
		return true
	case !r.oldStyle:
		return !matchAny(r.cluster.excluded, gr)
	case matchAny(r.both.excluded, gr):
		return false
	case r.includeCluster != nil:
		return *r.includeCluster
	}
	return r.both.includes(gr)
}

// TouchesClusterScope reports whether the backup may collect cluster-scoped resources, besides selected
// namespaces and their claims' volumes; two such backups overlap in the queue. Only the words decide,
// so every process computes the same queue.
func (r *Resources) TouchesClusterScope() bool {
	if r.oldStyle {
		// Any resource but namespaces: the lists may allow it or not.
		return r.autoOrWanted(schema.GroupResource{})
	}
	return len(r.cluster.included) > 0 || r.fullBackup()
}

// addedByVelero are words that Velero excludes itself in the new style. They change nothing, since
// neither resource is taken unless named.
var addedByVelero = sets.New("volumesnapshots.snapshot.storage.k8s.io", "volumesnapshotcontents.snapshot.storage.k8s.io")

// AddedByVelero reports whether Velero itself adds an excluded word.
func AddedByVelero(word string) bool { return addedByVelero.Has(word) }

func (l wordLists) excludedByUser() (count int) {
	for _, w := range l.excluded {
		if !addedByVelero.Has(w.text) {
			count++
		}
	}
	return count
}

func (l wordLists) includesAll() bool {
	return len(l.included) == 0 || slices.ContainsFunc(l.included, func(w resourceWord) bool { return w.text == "*" })
}

func (l wordLists) includes(gr schema.GroupResource) bool {
	return l.includesAll() || matchAny(l.included, gr)
}

func matchAny(words []resourceWord, gr schema.GroupResource) bool {
	return slices.ContainsFunc(words, func(w resourceWord) bool { return w.matches(gr) })
}

func (w resourceWord) matches(gr schema.GroupResource) bool {
	if w.resolved != nil {
		return *w.resolved == gr
	}
	if isGlob(w.text) {
		return matchesGlob(w.text, gr)
	}
	return strings.EqualFold(w.text, gr.String()) || strings.EqualFold(w.text, gr.Resource)
}
