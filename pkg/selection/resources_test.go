// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// known is what discovery would say in a small cluster.
var known = map[string]bool{ // namespaced
	"pods": true, "secrets": true, "persistentvolumeclaims": true, "deployments.apps": true, "clusters.cluster.x-k8s.io": true,
	"clusters.example.com": true,
	"namespaces":           false, "persistentvolumes": false, "storageclasses.storage.k8s.io": false, "clusterroles.rbac.authorization.k8s.io": false,
}

func resolve(word string) (schema.GroupResource, bool) {
	long := map[string]string{
		"po": "pods", "Pod": "pods", "pod": "pods", "deploy": "deployments.apps", "deployments": "deployments.apps",
		"pv": "persistentvolumes", "sc": "storageclasses.storage.k8s.io", "clusters": "clusters.cluster.x-k8s.io", "ns": "namespaces",
	}[word]
	if long == "" {
		long = word
	}
	_, ok := known[long]
	return schema.ParseGroupResource(long), ok
}

// Pitfall 20: touches says which backups may collect cluster-scoped objects.
func TestResources(t *testing.T) {
	yes, no := true, false
	allNamespaced := "clusters.cluster.x-k8s.io clusters.example.com deployments.apps persistentvolumeclaims pods secrets"
	allCluster := "clusterroles.rbac.authorization.k8s.io namespaces persistentvolumes storageclasses.storage.k8s.io"
	for name, tc := range map[string]struct {
		namespaces string
		lists      ResourceLists
		namespaced string // what is included
		cluster    string
		related    string // cluster-scoped, as the company of another object; allCluster when empty
		touches    bool
	}{
		"nothing said, all namespaces":            {namespaced: allNamespaced, cluster: allCluster, touches: true},
		"nothing said, listed namespaces":         {namespaces: "a", namespaced: allNamespaced, cluster: "namespaces"},
		"nothing said, a pattern":                 {namespaces: "a*", namespaced: allNamespaced, cluster: "namespaces"},
		"nothing said, all namespaces but one":    {namespaces: "-a", namespaced: allNamespaced, cluster: "namespaces"},
		"nothing said, a star beside a namespace": {namespaces: "* a", namespaced: allNamespaced, cluster: allCluster, touches: true},

		"old: cluster resources wanted": {
			namespaces: "a", lists: ResourceLists{IncludeClusterResources: &yes},
			namespaced: allNamespaced, cluster: allCluster, touches: true,
		},
		"old: nothing but an excluded resource": {
			namespaces: "a", lists: ResourceLists{ExcludedResources: []string{"secrets"}},
			namespaced: "clusters.cluster.x-k8s.io clusters.example.com deployments.apps persistentvolumeclaims pods", cluster: "namespaces",
		},
		"old: cluster resources refused": {
			lists:      ResourceLists{IncludeClusterResources: &no},
			namespaced: allNamespaced, related: "namespaces",
		},
		"old: a list in all namespaces": {
			lists:      ResourceLists{IncludedResources: []string{"deploy", "pv"}},
			namespaced: "deployments.apps", cluster: "persistentvolumes", related: "namespaces persistentvolumes", touches: true,
		},
		"old: a list in listed namespaces": {
			namespaces: "a", lists: ResourceLists{IncludedResources: []string{"Pod", "pv", "namespaces"}},
			namespaced: "pods", cluster: "namespaces", related: "namespaces persistentvolumes",
		},
		"old: a list, cluster resources wanted": {
			namespaces: "a", lists: ResourceLists{IncludedResources: []string{"po", "sc"}, IncludeClusterResources: &yes},
			namespaced: "pods", cluster: "storageclasses.storage.k8s.io", touches: true,
		},
		"old: excluded wins": {
			lists:      ResourceLists{IncludedResources: []string{"*"}, ExcludedResources: []string{"secrets", "clusters.*", "pv"}},
			namespaced: "deployments.apps persistentvolumeclaims pods",
			cluster:    "clusterroles.rbac.authorization.k8s.io namespaces storageclasses.storage.k8s.io",
			related:    "clusterroles.rbac.authorization.k8s.io namespaces storageclasses.storage.k8s.io",
			touches:    true,
		},
		"old: a word that nothing is called includes nothing, not all": {
			namespaces: "a", lists: ResourceLists{IncludedResources: []string{"nosuch"}},
			related: "namespaces",
		},
		"old: one of two groups by its plural, as discovery resolves it": {
			namespaces: "a", lists: ResourceLists{IncludedResources: []string{"clusters"}},
			namespaced: "clusters.cluster.x-k8s.io", related: "namespaces",
		},

		"new: cluster-scoped must be listed": {
			namespaces: "a", lists: ResourceLists{IncludedClusterScopedResources: []string{"sc"}},
			namespaced: allNamespaced, cluster: "namespaces storageclasses.storage.k8s.io", touches: true,
		},
		"new: all cluster-scoped": {
			namespaces: "a", lists: ResourceLists{IncludedClusterScopedResources: []string{"*"}},
			namespaced: allNamespaced, cluster: allCluster, touches: true,
		},
		"new: all cluster-scoped but one": {
			lists:      ResourceLists{IncludedClusterScopedResources: []string{"*"}, ExcludedClusterScopedResources: []string{"pv"}},
			namespaced: allNamespaced,
			cluster:    "clusterroles.rbac.authorization.k8s.io namespaces storageclasses.storage.k8s.io",
			related:    "clusterroles.rbac.authorization.k8s.io namespaces storageclasses.storage.k8s.io",
			touches:    true,
		},
		"new: an exclude alone lists nothing": {
			lists:      ResourceLists{ExcludedClusterScopedResources: []string{"pv"}},
			namespaced: allNamespaced, cluster: "namespaces",
			related: "clusterroles.rbac.authorization.k8s.io namespaces storageclasses.storage.k8s.io",
		},
		"new: one cluster-scoped, and not another": {
			lists:      ResourceLists{IncludedClusterScopedResources: []string{"sc"}, ExcludedClusterScopedResources: []string{"pv"}},
			namespaced: allNamespaced, cluster: "namespaces storageclasses.storage.k8s.io",
			related: "clusterroles.rbac.authorization.k8s.io namespaces storageclasses.storage.k8s.io", touches: true,
		},
		"new: one cluster-scoped, and not one namespace-scoped": {
			lists:      ResourceLists{IncludedClusterScopedResources: []string{"sc"}, ExcludedNamespaceScopedResources: []string{"secrets"}},
			namespaced: "clusters.cluster.x-k8s.io clusters.example.com deployments.apps persistentvolumeclaims pods",
			cluster:    "namespaces storageclasses.storage.k8s.io", touches: true,
		},
		"new: no cluster-scoped": {
			lists:      ResourceLists{ExcludedClusterScopedResources: []string{"*"}},
			namespaced: allNamespaced, related: "namespaces",
		},
		"new: not all namespace-scoped in all namespaces": {
			lists:      ResourceLists{IncludedNamespaceScopedResources: []string{"deploy", "pods"}},
			namespaced: "deployments.apps pods", cluster: "namespaces",
		},
		"new: all namespace-scoped but one in all namespaces": {
			lists:      ResourceLists{ExcludedNamespaceScopedResources: []string{"secrets", "clusters.*"}},
			namespaced: "deployments.apps persistentvolumeclaims pods", cluster: "namespaces",
		},
		"new: all namespace-scoped by a star": {
			lists:      ResourceLists{IncludedNamespaceScopedResources: []string{"*"}},
			namespaced: allNamespaced, cluster: allCluster, touches: true,
		},
		"new: no namespace-scoped": {
			lists:   ResourceLists{ExcludedNamespaceScopedResources: []string{"*"}, IncludedClusterScopedResources: []string{"*"}},
			cluster: allCluster, touches: true,
		},
		"new: a word of the other scope includes nothing, not all": {
			namespaces: "a", lists: ResourceLists{IncludedNamespaceScopedResources: []string{"pv"}},
			cluster: "namespaces",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.related == "" {
				tc.related = allCluster
			}
			given := []ResourceLists{tc.lists}
			if strings.HasPrefix(name, "new: ") {
				given = append(given, asVeleroGivesItOut(tc.lists))
			}
			for _, lists := range given {
				parsed, errs := ParseResources(lists, parse(t, tc.namespaces), nil)
				if len(errs) > 0 {
					t.Fatal(errs.ToAggregate())
				}
				if got := parsed.TouchesClusterScope(); got != tc.touches {
					t.Errorf("TouchesClusterScope() = %v", got)
				}
				r := parsed.Bind(resolve)
				if r.TouchesClusterScope() != tc.touches {
					t.Error("TouchesClusterScope depends on discovery")
				}
				for resource, namespaced := range known {
					gr := schema.ParseGroupResource(resource)
					want := tc.cluster
					if namespaced {
						want = tc.namespaced
					}
					if got := r.Included(gr, namespaced); got != holds(want, resource) {
						t.Errorf("Included(%s) = %v", resource, got)
					}
					want = tc.related
					if namespaced {
						want = tc.namespaced
					}
					if got := r.IncludedRelated(gr, namespaced); got != holds(want, resource) {
						t.Errorf("IncludedRelated(%s) = %v", resource, got)
					}
					// The queue's rule: what may be collected beyond the namespaces
					// themselves is cluster scope, and is never left out.
					if !namespaced && resource != "namespaces" && r.Included(gr, false) && !tc.touches {
						t.Errorf("collects %s without touching cluster scope", resource)
					}
				}
			}
		})
	}
}

// asVeleroGivesItOut are lists of the new style once Velero 1.18 has begun with them.
func asVeleroGivesItOut(lists ResourceLists) ResourceLists {
	lists.ExcludedNamespaceScopedResources = append(slices.Clone(lists.ExcludedNamespaceScopedResources), "volumesnapshots.snapshot.storage.k8s.io")
	lists.ExcludedClusterScopedResources = append(slices.Clone(lists.ExcludedClusterScopedResources), "volumesnapshotcontents.snapshot.storage.k8s.io")
	return lists
}

func holds(words, word string) bool {
	for _, w := range strings.Fields(words) {
		if w == word {
			return true
		}
	}
	return false
}

// Before Bind, and for a word that the Resolver does not know, the plural means
// every group that has it.
func TestResourcesUnbound(t *testing.T) {
	r, errs := ParseResources(ResourceLists{IncludedResources: []string{"clusters", "deployments.apps", "po"}}, parse(t, "a"), nil)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	bound := r.Bind(func(string) (schema.GroupResource, bool) { return schema.GroupResource{}, false })
	for resource, want := range map[string]bool{
		"clusters.example.com": true, "clusters.cluster.x-k8s.io": true, "deployments.apps": true, "deployments.extensions": false, "pods": false,
	} {
		gr := schema.ParseGroupResource(resource)
		if unbound, bound := r.Included(gr, true), bound.Included(gr, true); unbound != want || bound != want {
			t.Errorf("Included(%s) = %v, and %v once it is bound", resource, unbound, bound)
		}
	}
}

func TestParseResourcesNamesTheField(t *testing.T) {
	yes := true
	for name, tc := range map[string]struct {
		lists ResourceLists
		want  []string
	}{
		"unreadable words": {
			ResourceLists{IncludedResources: []string{"pods", "", "po ds", "pods/log", "a**", "a[", "a]", "a[b-]"}},
			[]string{"spec.includedResources[1]", "spec.includedResources[2]", "spec.includedResources[3]", "spec.includedResources[4]",
				"spec.includedResources[5]", "spec.includedResources[6]", "spec.includedResources[7]"},
		},
		"all excluded, old style": {ResourceLists{ExcludedResources: []string{"*"}}, []string{"spec.excludedResources[0]"}},
		"in both lists": {
			ResourceLists{IncludedNamespaceScopedResources: []string{"pods"}, ExcludedNamespaceScopedResources: []string{"secrets", "pods"}},
			[]string{"spec.excludedNamespaceScopedResources[1]"},
		},
		"all excluded beside another word": {
			ResourceLists{IncludedClusterScopedResources: []string{"pv"}, ExcludedClusterScopedResources: []string{"*"}},
			[]string{"spec.excludedClusterScopedResources[0]"},
		},
		"both styles": {
			ResourceLists{IncludeClusterResources: &yes, IncludedClusterScopedResources: []string{"pv"}, ExcludedNamespaceScopedResources: []string{"pods"}},
			[]string{"spec.excludedNamespaceScopedResources", "spec.includedClusterScopedResources"},
		},
	} {
		r, errs := ParseResources(tc.lists, parse(t, ""), field.NewPath("spec"))
		var got []string
		for _, err := range errs {
			got = append(got, err.Field)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || r != nil {
			t.Errorf("%s: (-want +got)\n%s%v", name, diff, errs)
		}
	}
}
