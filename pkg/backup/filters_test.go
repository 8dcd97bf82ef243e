// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestVelerosFilters goes through the flags of Velero's page on resource filtering, in its
// order, and has each do what the page says.
func TestVelerosFilters(t *testing.T) {
	yes, no := true, false
	const (
		inA         = "configmaps a/one, configmaps a/two, deployments.apps a/web, namespaces a"
		inB         = "configmaps b/one, deployments.apps b/web, namespaces b"
		everywhere  = inA + ", " + inB + ", nodes n1"
		deployments = "deployments.apps a/web, deployments.apps b/web, namespaces a, namespaces b"
		configMaps  = "configmaps a/one, configmaps a/two, configmaps b/one"
	)
	prod := &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	for flag, test := range map[string]struct {
		spec v1alpha1.BackupSpec
		want string
	}{
		"none":                              {v1alpha1.BackupSpec{}, everywhere},
		"include-namespaces":                {v1alpha1.BackupSpec{IncludedNamespaces: []string{"a"}}, inA},
		"include-namespaces, a pattern":     {v1alpha1.BackupSpec{IncludedNamespaces: []string{"[bc]"}}, inB},
		"include-namespaces, *":             {v1alpha1.BackupSpec{IncludedNamespaces: []string{"*"}}, everywhere},
		"include-resources":                 {v1alpha1.BackupSpec{IncludedResources: []string{"deployments"}}, deployments},
		"include-resources, of a group":     {v1alpha1.BackupSpec{IncludedResources: []string{"deployments.apps"}}, deployments},
		"include-resources, in a namespace": {v1alpha1.BackupSpec{IncludedNamespaces: []string{"a"}, IncludedResources: []string{"deployments"}}, "deployments.apps a/web, namespaces a"},
		"include-cluster-resources=true":    {v1alpha1.BackupSpec{IncludedNamespaces: []string{"a"}, IncludeClusterResources: &yes}, inA + ", nodes n1"},
		"include-cluster-resources=false":   {v1alpha1.BackupSpec{IncludeClusterResources: &no}, inA + ", " + inB},
		"selector":                          {v1alpha1.BackupSpec{LabelSelector: prod}, "configmaps a/one, deployments.apps b/web, namespaces a, namespaces b"},
		"selector, notin": {
			v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"prod"}}}}},
			"configmaps a/two, configmaps b/one, deployments.apps a/web, namespaces a, namespaces b, nodes n1",
		},
		"or-selector": {
			v1alpha1.BackupSpec{OrLabelSelectors: []*metav1.LabelSelector{prod, {MatchLabels: map[string]string{"team": "x"}}}},
			"configmaps a/one, configmaps b/one, deployments.apps b/web, namespaces a, namespaces b",
		},
		"include-cluster-scoped-resources":    {v1alpha1.BackupSpec{IncludedNamespaces: []string{"a"}, IncludedClusterScopedResources: []string{"nodes"}}, inA + ", nodes n1"},
		"include-cluster-scoped-resources, *": {v1alpha1.BackupSpec{IncludedNamespaces: []string{"a"}, IncludedClusterScopedResources: []string{"*"}}, inA + ", nodes n1"},
		"include-namespace-scoped-resources": {
			v1alpha1.BackupSpec{IncludedNamespaces: []string{"a", "b"}, IncludedNamespaceScopedResources: []string{"deployments.apps", "configmaps"}}, inA + ", " + inB},
		"include-namespace-scoped-resources, *": {v1alpha1.BackupSpec{IncludedNamespaces: []string{"a"}, IncludedNamespaceScopedResources: []string{"*"}}, inA},
		"exclude-namespaces":                    {v1alpha1.BackupSpec{ExcludedNamespaces: []string{"b"}, IncludeClusterResources: &no}, inA},
		"exclude-namespaces, a pattern":         {v1alpha1.BackupSpec{ExcludedNamespaces: []string{"?", "c"}, IncludedResources: []string{"configmaps"}}, ""},
		"exclude-resources":                     {v1alpha1.BackupSpec{ExcludedResources: []string{"configmaps"}}, deployments + ", nodes n1"},
		"exclude-resources, included too": {
			v1alpha1.BackupSpec{IncludedResources: []string{"*"}, ExcludedResources: []string{"deployments", "nodes"}}, configMaps + ", namespaces a, namespaces b"},
		"exclude-cluster-scoped-resources": {v1alpha1.BackupSpec{ExcludedClusterScopedResources: []string{"nodes"}}, inA + ", " + inB},
		// The page does not say it, but ShouldInclude in pkg/util/collections does: with these, what
		// is cluster-scoped comes only by name.
		"exclude-namespace-scoped-resources":    {v1alpha1.BackupSpec{ExcludedNamespaceScopedResources: []string{"deployments.apps"}}, configMaps + ", namespaces a, namespaces b"},
		"exclude-namespace-scoped-resources, *": {v1alpha1.BackupSpec{ExcludedNamespaceScopedResources: []string{"*"}, IncludedClusterScopedResources: []string{"nodes"}}, "namespaces a, namespaces b, nodes n1"},
	} {
		t.Run(flag, func(t *testing.T) {
			f := newFixture(t, test.spec)
			object := func(name, labels string) string { return `{"metadata":{` + name + `,"labels":{` + labels + `}}}` }
			f.add("namespaces", namespace("a", ""), namespace("b", ""))
			f.add("nodes", object(`"name":"n1"`, ""))
			f.add("configmaps",
				object(`"name":"one","namespace":"a"`, `"env":"prod"`), object(`"name":"two","namespace":"a"`, `"env":"test"`), object(`"name":"one","namespace":"b"`, `"team":"x"`),
				// velero.io/exclude-from-backup=true: not included, even if it has a matching label.
				object(`"name":"never","namespace":"a"`, `"env":"prod","team":"x","velero.io/exclude-from-backup":"true"`))
			f.add("deployments.apps", object(`"name":"web","namespace":"a"`, ""), object(`"name":"web","namespace":"b"`, `"env":"prod"`))
			f.run(t)
			want := strings.Split(test.want, ", ")
			slices.Sort(want)
			if diff := gocmp.Diff(strings.Join(want, ", "), strings.Join(f.items(t), ", ")); diff != "" {
				t.Errorf("the tarball holds something else (-want +got):\n%s", diff)
			}
		})
	}
}
