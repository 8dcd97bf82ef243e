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

// ResourceLists are the resource filters of a backup's spec, by the names of
// its fields. The first three are the old style, the other four the new style.
// They can't be used together.
type ResourceLists struct {
	// IncludedResources and ExcludedResources apply to both scopes. An empty
	// included list, or one with `*`, means all.
	IncludedResources, ExcludedResources []string
	// IncludeClusterResources: true takes all cluster-scoped resources that the
	// lists let through, false takes none, nil takes them only in a backup of
	// all namespaces.
	IncludeClusterResources *bool

	// An empty included list of namespace-scoped resources, or one with `*`,
	// means all.
	IncludedNamespaceScopedResources, ExcludedNamespaceScopedResources []string
	// Cluster-scoped resources must be listed to be taken (`*` for all). With
	// both lists empty they are taken only in a backup of all namespaces and all
	// namespace-scoped resources.
	IncludedClusterScopedResources, ExcludedClusterScopedResources []string
}

// Resolver finds the resource that a word means: a plural with or without its
// group, a singular, a short name or a kind, as discovery knows them. It is
// false for a word that it does not know.
type Resolver func(word string) (schema.GroupResource, bool)

// Resources is a compiled selection of resource types.
//
// A word without a wildcard means the one resource that the Resolver finds for
// it (Velero does the same by discovery). A word that the Resolver does not
// know, or any word before Bind, means the resources whose `plural.group` or
// `plural` it equals. A word with a wildcard is matched against `plural.group`
// (`plural` for the core group).
type Resources struct {
	oldStyle       bool
	includeCluster *bool
	allNamespaces  bool

	// both is the old style's pair; namespaced and cluster the new style's.
	both, namespaced, cluster wordLists
}

type wordLists struct{ included, excluded []resourceWord }

// resourceWord is a word of a resource list, and what the Resolver found for it.
type resourceWord struct {
	text     string
	resolved *schema.GroupResource
}

var namespacesResource = schema.GroupResource{Resource: "namespaces"}

// ParseResources compiles the lists of a backup that selects the given
// namespaces. An error names its field below the path `at` (which may be nil).
//
// Like Velero it refuses the old style and the new together, a word in both
// lists of a pair, `*` among the old style's excluded resources, and `*` as an
// excluded word of the new style beside any other word of the pair. It accepts
// `*` beside other included words, as Velero's documentation says and its code
// does not.
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

// resourceWordProblem says why a word can't mean a resource, or "".
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

// Bind returns the same selection with each word resolved. A resource selection
// is bound once per run, to the discovery of its start.
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

// Included says whether objects of this resource are collected: for a
// namespaced resource, those in the selected namespaces; for a cluster-scoped
// one, all; for `namespaces`, those that are selected.
//
// Namespaced: not excluded, and included or nothing included by name.
//
// Cluster-scoped, old style: the same, unless includeClusterResources is false,
// or is nil and the backup is not one of all namespaces; in the latter case
// `namespaces` alone is still subject to the lists.
//
// Cluster-scoped, new style: not excluded, and either included, or `namespaces`
// itself, or nothing is listed at all in a backup of all namespaces and all
// namespace-scoped resources.
//
// A listed word of the other scope matches nothing. (Velero drops such a word,
// so that a list of nothing else turns into "all".)
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

// autoOrWanted is the old style's rule on a cluster-scoped resource, apart from
// the lists.
func (r *Resources) autoOrWanted(gr schema.GroupResource) bool {
	if r.includeCluster != nil {
		return *r.includeCluster
	}
	return r.allNamespaces || gr == namespacesResource
}

// fullBackup is the new style's rule for taking cluster-scoped resources that
// nobody listed.
func (r *Resources) fullBackup() bool {
	return r.allNamespaces &&
		len(r.cluster.included)+r.cluster.excludedByUser()+r.namespaced.excludedByUser() == 0 &&
		r.namespaced.includesAll()
}

// IncludedRelated says whether an object that another one needs may come along
// (the volume of a claim, the namespace of an object) although its resource may
// not be collected as such. A namespaced one must be included; the caller also
// checks its namespace. A namespace always may. Any other cluster-scoped one
// may unless it is excluded by name, or in the old style, unless
// includeClusterResources is false or a list of included resources leaves it
// out while includeClusterResources is nil.
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

// TouchesClusterScope says whether the backup may collect cluster-scoped
// resources as such; two that do overlap in the queue. The objects that belong
// to selected namespaces don't count: the namespaces themselves, and the
// volumes of their claims, which come along and are covered by the overlap of
// namespaces. So a backup of listed namespaces that says nothing about cluster
// scope does not touch it, and a backup of all namespaces does.
//
// It goes by the words alone, never by discovery, so that everyone who computes
// the queue comes to the same answer; it may say yes where the words turn out
// to name nothing.
func (r *Resources) TouchesClusterScope() bool {
	if r.oldStyle {
		// Any resource but namespaces: the lists may let it through or not.
		return r.autoOrWanted(schema.GroupResource{})
	}
	return len(r.cluster.included) > 0 || r.fullBackup()
}

// addedByVelero are words that Velero excludes in each backup with lists of the new style when
// it begins: they stand in what it gives out, though nobody has written them. Neither resource
// is taken unless it is named, so that they change nothing.
var addedByVelero = sets.New("volumesnapshots.snapshot.storage.k8s.io", "volumesnapshotcontents.snapshot.storage.k8s.io")

// AddedByVelero reports whether an excluded word is one that Velero adds by itself.
func AddedByVelero(word string) bool { return addedByVelero.Has(word) }

// excludedByUser counts the excluded words without those that Velero adds.
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
