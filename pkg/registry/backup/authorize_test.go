// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

func TestForeignNamespaces(t *testing.T) {
	yes := true
	policies := func(spec *v1alpha1.BackupSpec) {
		spec.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: "mine"}
	}
	cases := map[string]struct {
		backup *v1alpha1.Backup
		may    map[string]bool
		asked  []string
		denied string // part of the message; empty for success
	}{
		"its own":                    {backup: newBackup("shop", "x", "shop")},
		"another one":                {backup: newBackup("shop", "x", "shop", "db"), may: map[string]bool{"db": true}, asked: []string{"db"}},
		"another one, denied":        {backup: newBackup("shop", "x", "shop", "db"), may: map[string]bool{}, asked: []string{"db"}, denied: `in namespace "db"`},
		"the second one, denied":     {backup: newBackup("shop", "x", "db", "web"), may: map[string]bool{"db": true}, asked: []string{"db", "web"}, denied: `in namespace "web"`},
		"the system namespace":       {backup: newBackup("shop", "x", system), may: map[string]bool{}, asked: []string{system}, denied: `in namespace "holdfast"`},
		"one that does not exist":    {backup: newBackup("shop", "x", "later"), may: map[string]bool{}, asked: []string{"later"}, denied: `in namespace "later"`},
		"all of them":                {backup: newBackup("shop", "x", "*"), may: map[string]bool{"": true}, asked: []string{""}},
		"all of them, denied":        {backup: newBackup("shop", "x", "*"), may: map[string]bool{"shop": true}, asked: []string{""}, denied: `in all namespaces`},
		"a pattern, denied":          {backup: newBackup("shop", "x", "shop", "shop-*"), may: map[string]bool{"shop-a": true}, asked: []string{""}, denied: `the pattern "shop-*"`},
		"a pattern for one":          {backup: newBackup("shop", "x", "[s]hop"), may: map[string]bool{}, asked: []string{""}, denied: `in all namespaces`},
		"what is excluded":           {backup: withExcluded(newBackup("shop", "x", "shop", "db"), "db"), may: map[string]bool{}, denied: `spec.excludedNamespaces`},
		"a pattern that is excluded": {backup: withExcluded(newBackup("shop", "x", "shop", "db-a*"), "db-*"), may: map[string]bool{}},
		"cluster scope, denied": {
			backup: with(newBackup("shop", "x"), func(spec *v1alpha1.BackupSpec) { spec.IncludeClusterResources = &yes }),
			may:    map[string]bool{"shop": true}, asked: []string{""}, denied: "spec asks for cluster-scoped resources",
		},
		"cluster scope by name, denied": {
			backup: with(newBackup("shop", "x"), func(spec *v1alpha1.BackupSpec) { spec.IncludedClusterScopedResources = []string{"clusterroles"} }),
			may:    map[string]bool{"shop": true}, asked: []string{""}, denied: "spec asks for cluster-scoped resources",
		},
		"its policies": {
			backup: with(newBackup("shop", "x"), policies), may: map[string]bool{"shop/mine": true}, asked: []string{"shop/mine"},
		},
		"its policies, denied": {
			backup: with(newBackup("shop", "x"), policies), may: map[string]bool{"shop": true}, asked: []string{"shop/mine"}, denied: "may not get configmaps",
		},
		"an administrator's policies, denied": {
			backup: with(newBackup(system, "x"), policies), may: map[string]bool{}, asked: []string{system + "/mine"}, denied: "spec.resourcePolicy names one of them",
		},
		"everything, by an administrator": {
			backup: with(newBackup(system, "x", "shop", "*"), func(spec *v1alpha1.BackupSpec) { spec.IncludeClusterResources = &yes }),
			may:    map[string]bool{},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, c.may, locationOf("default", true, metav1.ConditionTrue))
			_, err := h.create(c.backup)
			if !slices.Equal(h.asked, c.asked) {
				t.Errorf("asked about %q, want %q", h.asked, c.asked)
			}
			switch {
			case c.denied == "":
				if err != nil || h.calls("create") != 1 {
					t.Errorf("refused: %v", err)
				}
				return
			case err == nil || !strings.Contains(err.Error(), c.denied):
				t.Errorf("answered %v, which does not say %q", err, c.denied)
			case len(c.asked) > 0 && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"jane"`) || !strings.Contains(err.Error(), "no role allows it")):
				t.Errorf("answered %v", err)
			}
			if h.calls("create") != 0 || len(h.observed) != 0 {
				t.Error("it was recorded all the same")
			}
		})
	}
}

func with(backup *v1alpha1.Backup, change func(*v1alpha1.BackupSpec)) *v1alpha1.Backup {
	change(&backup.Spec)
	return backup
}

func withExcluded(backup *v1alpha1.Backup, excluded ...string) *v1alpha1.Backup {
	return with(backup, func(spec *v1alpha1.BackupSpec) { spec.ExcludedNamespaces = excluded })
}

func TestABrokenAuthorizerAllowsNothing(t *testing.T) {
	h := newHarness(t, nil, locationOf("default", true, metav1.ConditionTrue))
	if _, err := h.create(newBackup("shop", "x", "db")); !apierrors.IsInternalError(err) || h.calls("create") != 0 {
		t.Errorf("answered %v", err)
	}
}

// The rights that a request needed beyond that to the backup are in its audit event.
func TestTheAuditLogHasTheScopes(t *testing.T) {
	h := newHarness(t, map[string]bool{"db": true, "web": true}, locationOf("default", true, metav1.ConditionTrue))
	ctx := audit.WithAuditContext(h.ctx("shop"))
	if _, err := h.Create(ctx, newBackup("shop", "x", "shop", "db", "web"), nil, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, _ := audit.AuditContextFrom(ctx).GetEventAnnotation("authorization.holdfast.io/further")
	if want := `in namespace "db", in namespace "web"`; got != want {
		t.Errorf("annotated %q, want %q", got, want)
	}
}
