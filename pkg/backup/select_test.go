// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

func TestWhatIsSelected(t *testing.T) {
	yes, no := true, false
	ssd := &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
	for name, test := range map[string]struct {
		spec     v1alpha1.BackupSpec
		want     []string
		errors   []string
		warnings []string
	}{
		"everything": {
			want: []string{
				"configmaps bank/rates", "configmaps shop/prices",
				"customresourcedefinitions.apiextensions.k8s.io others.example.com", "customresourcedefinitions.apiextensions.k8s.io widgets.example.com",
				"deployments.apps shop/web", "events shop/happened", "namespaces bank", "namespaces shop", "nodes n1",
				"persistentvolumeclaims shop/data", "persistentvolumeclaims shop/idle",
				"persistentvolumes pv-data", "persistentvolumes pv-free", "persistentvolumes pv-idle",
				"pods shop/db-0", "widgets.example.com shop/gear",
			},
		},
		"a namespace brings only what it refers to": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"bank"}},
			want: []string{"configmaps bank/rates", "namespaces bank"},
		},
		"one resource, by its short name, brings its namespaces": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"bank", "shop"}, IncludedResources: []string{"cm"}},
			want: []string{"configmaps bank/rates", "configmaps shop/prices", "namespaces bank", "namespaces shop"},
		},
		"claims bring their volumes": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedNamespaceScopedResources: []string{"pvc"}},
			want: []string{"namespaces shop", "persistentvolumeclaims shop/data", "persistentvolumeclaims shop/idle", "persistentvolumes pv-data", "persistentvolumes pv-idle"},
		},
		"a pod brings its claim, and that its volume": {
			spec: v1alpha1.BackupSpec{
				IncludedNamespaces: []string{"shop"}, IncludedNamespaceScopedResources: []string{"pods", "persistentvolumeclaims"},
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			},
			want: []string{"namespaces shop", "persistentvolumeclaims shop/data", "persistentvolumes pv-data", "pods shop/labelled"},
		},
		"no cluster-scoped objects but the namespace": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludeClusterResources: &no, IncludedResources: []string{"pvc", "widgets"}},
			want: []string{"namespaces shop", "persistentvolumeclaims shop/data", "persistentvolumeclaims shop/idle", "widgets.example.com shop/gear"},
		},
		"all cluster-scoped objects": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"bank"}, IncludeClusterResources: &yes},
			want: []string{
				"configmaps bank/rates", "customresourcedefinitions.apiextensions.k8s.io others.example.com", "customresourcedefinitions.apiextensions.k8s.io widgets.example.com",
				"namespaces bank", "nodes n1", "persistentvolumes pv-data", "persistentvolumes pv-free", "persistentvolumes pv-idle",
			},
		},
		"what the lists of the two scopes leave": {
			spec: v1alpha1.BackupSpec{
				ExcludedNamespaceScopedResources: []string{"pods", "configmaps", "events", "events.events.k8s.io", "deployments", "widgets"},
				IncludedClusterScopedResources:   []string{"nodes"}, ExcludedClusterScopedResources: []string{"persistentvolumes"},
			},
			want: []string{"namespaces bank", "namespaces shop", "nodes n1", "persistentvolumeclaims shop/data", "persistentvolumeclaims shop/idle"},
		},
		// As in Velero: the same objects come under the group that is not excluded.
		"events that are excluded in one of their groups": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"events*"}, ExcludedResources: []string{"events"}},
			want: []string{"events.events.k8s.io shop/happened", "events.other.example.com shop/happened", "namespaces shop"},
		},
		"events that are excluded in both": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"events*"}, ExcludedResources: []string{"events", "events.events.k8s.io"}},
			want: []string{"events.other.example.com shop/happened", "namespaces shop"},
		},
		"events of another group, too": {
			spec:     v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"events*", "gad*"}},
			want:     []string{"events shop/happened", "events.other.example.com shop/happened", "namespaces shop"},
			warnings: []string{`the backup includes "gad*", which no resource matches that the cluster serves`},
		},
		"events and others, whose definitions come along": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedNamespaceScopedResources: []string{"events.other.example.com", "widgets"}},
			want: []string{
				"customresourcedefinitions.apiextensions.k8s.io events.other.example.com", "customresourcedefinitions.apiextensions.k8s.io widgets.example.com",
				"events.other.example.com shop/happened", "namespaces shop", "widgets.example.com shop/gear",
			},
		},
		"a namespace of which nothing is taken": {
			spec: v1alpha1.BackupSpec{
				IncludedNamespaces: []string{"bank"}, IncludedNamespaceScopedResources: []string{"pods"},
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "none"}},
			},
			want: []string{"namespaces bank"},
		},
		"an excluded namespace": {
			spec: v1alpha1.BackupSpec{ExcludedNamespaces: []string{"sho?"}, IncludedNamespaceScopedResources: []string{"configmaps"}},
			want: []string{"configmaps bank/rates", "namespaces bank"},
		},
		"a namespace that does not exist": {
			spec:   v1alpha1.BackupSpec{IncludedNamespaces: []string{"bank", "gone"}},
			want:   []string{"configmaps bank/rates", "namespaces bank"},
			errors: []string{"namespaces gone: the backup includes it, but it does not exist"},
		},
		"a resource that is not served": {
			spec:     v1alpha1.BackupSpec{IncludedNamespaces: []string{"bank"}, IncludedResources: []string{"configmaps", "gadgets"}},
			want:     []string{"configmaps bank/rates", "namespaces bank"},
			warnings: []string{`the backup includes "gadgets", which the cluster does not serve`},
		},
		"volume snapshots only by name": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"volumesnapshots.snapshot.storage.k8s.io"}},
			want: []string{"namespaces shop", "volumesnapshots.snapshot.storage.k8s.io shop/snap"},
		},
		"what users ask of Holdfast for the time to come": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"planned"}},
			want: []string{"namespaces planned", "schedules.holdfast.io planned/nightly"},
		},
		"never what Holdfast serves itself": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedResources: []string{"backups.holdfast.io", "backupruns.engine.holdfast.io"}},
			want: nil,
			errors: []string{
				`the backup includes "backups.holdfast.io", which can't be backed up: it is computed, or Holdfast's own`,
				`the backup includes "backupruns.engine.holdfast.io", which can't be backed up: it is computed, or Holdfast's own`,
			},
		},
		"no resource that is served": {
			spec:   v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}, IncludedNamespaceScopedResources: []string{"deploymnts"}},
			want:   []string{"namespaces shop"},
			errors: []string{`the backup includes "deploymnts", which the cluster does not serve`},
		},
		"words of another scope than their list": {
			spec: v1alpha1.BackupSpec{
				IncludedNamespaces: []string{"bank"}, IncludedNamespaceScopedResources: []string{"configmaps", "Node"}, IncludedClusterScopedResources: []string{"nodes", "Widget"},
				ExcludedNamespaceScopedResources: []string{"persistentvolume*"}, ExcludedClusterScopedResources: []string{"po"},
			},
			want: []string{"configmaps bank/rates", "namespaces bank", "nodes n1"},
			warnings: []string{
				`the backup includes "Node", which is cluster-scoped, and only namespace-scoped resources are taken here`,
				`the backup includes "Widget", which is namespace-scoped, and only cluster-scoped resources are taken here`,
				`the backup excludes "po", which is namespace-scoped, and only cluster-scoped resources are taken here`,
			},
		},
		"a cluster-scoped word where none are to be taken": {
			spec:     v1alpha1.BackupSpec{IncludedNamespaces: []string{"bank"}, IncludedResources: []string{"CONFIGM*", "nodes", "namespaces"}, IncludeClusterResources: &no},
			want:     []string{"configmaps bank/rates", "namespaces bank"},
			warnings: []string{`the backup includes "nodes", which is cluster-scoped, and only namespace-scoped resources are taken here`},
		},
		"excluded words, of which some stand for nothing": {
			spec: v1alpha1.BackupSpec{
				IncludedNamespaceScopedResources: []string{"*"},
				ExcludedNamespaces:               []string{"sho?", "kube-sytem"},
				ExcludedNamespaceScopedResources: []string{"secrests", "summaries.example.com", "backups.holdfast.io", "volumesnapshotcontents.snapshot.storage.k8s.io", "po*", "gad*", "claims"},
			},
			want: []string{"configmaps bank/rates", "namespaces bank"},
			warnings: []string{
				`the backup excludes "secrests", which the cluster does not serve`,
				`the backup excludes "gad*", which no resource matches that the cluster serves`,
				`the backup excludes "claims", which the cluster does not serve`,
				`namespaces: the backup excludes "kube-sytem", which no namespace matches`,
			},
		},
		"any of several selectors, each object once": {
			spec: v1alpha1.BackupSpec{OrLabelSelectors: []*metav1.LabelSelector{
				{MatchLabels: map[string]string{"tier": "front"}}, {MatchLabels: map[string]string{"app": "web"}},
			}},
			want: []string{"configmaps bank/both", "configmaps bank/front", "namespaces bank", "namespaces tiered"},
		},
		"a volume that labels choose brings its claim": {
			spec: v1alpha1.BackupSpec{LabelSelector: ssd},
			want: []string{"namespaces shop", "persistentvolumeclaims shop/chosen", "persistentvolumes pv-anew", "persistentvolumes pv-chosen", "persistentvolumes pv-left"},
		},
		"but not if claims are excluded": {
			spec: v1alpha1.BackupSpec{LabelSelector: ssd, ExcludedResources: []string{"persistentvolumeclaims"}},
			want: []string{"persistentvolumes pv-anew", "persistentvolumes pv-chosen", "persistentvolumes pv-left"},
		},
		"nor if they are in another namespace": {
			spec: v1alpha1.BackupSpec{
				IncludedNamespaces: []string{"bank"}, IncludeClusterResources: &yes, LabelSelector: ssd,
			},
			want: []string{"namespaces bank", "persistentvolumes pv-anew", "persistentvolumes pv-chosen", "persistentvolumes pv-left"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.spec)
			f.story()
			if slices.Contains(test.spec.IncludedNamespaces, "planned") {
				f.add("namespaces", namespace("planned", ""))
				f.add("schedules.holdfast.io", named("planned", "nightly")...)
			}
			if strings.HasPrefix(name, "events") {
				served := metav1.APIResource{Name: "events", Kind: "Event", Namespaced: true, Verbs: f.resources[0].APIResources[0].Verbs}
				f.resources = append(f.resources, metav1.APIResourceList{GroupVersion: "other.example.com/v1", APIResources: []metav1.APIResource{served}})
				f.add("events.other.example.com", named("shop", "happened")...)
				if strings.Contains(name, "definitions") {
					f.add("customresourcedefinitions.apiextensions.k8s.io", named("", "events.other.example.com")...)
				}
			}
			if test.spec.LabelSelector == ssd {
				claim, volume := `{"metadata":{"name":%q,"namespace":"shop","uid":%q},"spec":{"volumeName":%q},"status":{"phase":"Bound"}}`,
					`{"metadata":{"name":%q,"labels":{"disk":"ssd"}},"spec":{"claimRef":{"namespace":"shop","name":%q,"uid":%q}}}`
				f.add("persistentvolumeclaims", fmt.Sprintf(claim, "chosen", "u-1", "pv-chosen"), fmt.Sprintf(claim, "anew", "u-3", "pv-other"))
				f.add("persistentvolumes", fmt.Sprintf(volume, "pv-chosen", "chosen", "u-1"), fmt.Sprintf(volume, "pv-anew", "anew", "u-2"), fmt.Sprintf(volume, "pv-left", "gone", "u-4"))
			} else if test.spec.LabelSelector != nil {
				f.add("pods", `{"metadata":{"name":"labelled","namespace":"shop","labels":{"app":"db"}},"spec":{"volumes":[{"name":"files","persistentVolumeClaim":{"claimName":"data"}}]}}`)
			}
			if test.spec.OrLabelSelectors != nil {
				f.add("namespaces", namespace("tiered", `"tier":"front"`))
				f.add("configmaps",
					`{"metadata":{"name":"both","namespace":"bank","labels":{"app":"web","tier":"front"}}}`,
					`{"metadata":{"name":"front","namespace":"bank","labels":{"tier":"front"}}}`)
			}
			outcome := f.run(t)
			if diff := gocmp.Diff(test.want, f.items(t)); diff != "" {
				t.Errorf("the tarball holds something else (-want +got):\n%s", diff)
			}
			// Only those are asked for that may come along.
			definitions := strings.Count(strings.Join(test.want, "\n"), "customresourcedefinitions")
			if n := f.requested("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"); n > definitions {
				t.Errorf("%d definitions were asked for", n)
			}
			results := f.results(t)
			if diff := gocmp.Diff(test.errors, slices.Concat(results.Errors.Velero, results.Errors.Cluster)); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(test.warnings, slices.Concat(results.Warnings.Velero, results.Warnings.Cluster)); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			wantPhase := v1alpha1.BackupPhaseCompleted
			if len(test.errors) > 0 {
				wantPhase = v1alpha1.BackupPhasePartiallyFailed
			}
			if outcome.Status.Phase != wantPhase {
				t.Errorf("the phase is %s, not %s", outcome.Status.Phase, wantPhase)
			}
		})
	}
}

// A group whose API server is down is a warning, unless the backup asks for it.
// So it is with Holdfast's own, which has the schedules.
func TestGroupsThatCannotBeDiscovered(t *testing.T) {
	for name, test := range map[string]struct {
		included []string
		phase    v1alpha1.BackupPhase
		warnings int32
	}{
		"not asked for": {nil, v1alpha1.BackupPhaseCompleted, 2},
		"asked for":     {[]string{"configmaps", "summaries.metrics.example.com"}, v1alpha1.BackupPhasePartiallyFailed, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"bank"}, IncludedResources: test.included})
			f.story()
			f.failed[schema.GroupVersion{Group: "metrics.example.com", Version: "v1"}] = errors.New("the server is down")
			f.failed[schema.GroupVersion{Group: "holdfast.io", Version: "v1alpha1"}] = errors.New("the server is down")
			outcome := f.run(t)
			if outcome.Status.Phase != test.phase || outcome.Status.Warnings != test.warnings {
				t.Errorf("got %s with %d warnings: %+v", outcome.Status.Phase, outcome.Status.Warnings, f.results(t))
			}
			if !slices.Contains(f.items(t), "configmaps bank/rates") {
				t.Error("the other groups are missing")
			}
		})
	}
}

// What is labelled so does not even come along with others.
func TestExcludedObjectsDoNotComeAlong(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.claims()
	f.add("persistentvolumes", `{"metadata":{"name":"pv-hidden","labels":{"velero.io/exclude-from-backup":"true"}},"spec":{"csi":{}}}`)
	f.add("persistentvolumeclaims", `{"metadata":{"name":"open","namespace":"shop"},"spec":{"volumeName":"pv-hidden"},"status":{"phase":"Bound"}}`)
	f.run(t)
	if items := f.items(t); !slices.Contains(items, "persistentvolumeclaims shop/open") || slices.Contains(items, "persistentvolumes pv-hidden") {
		t.Errorf("the tarball holds %v", items)
	}
}

// A cluster may serve no persistent volumes and no definitions. Then none come along.
func TestResourcesThatAreNotServed(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
	f.story()
	for i := range f.resources {
		f.resources[i].APIResources = slices.DeleteFunc(f.resources[i].APIResources, func(r metav1.APIResource) bool {
			return r.Name == "persistentvolumes" || r.Name == "customresourcedefinitions"
		})
	}
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || outcome.Status.Warnings != 0 || outcome.Status.Volumes.Completed != 2 {
		t.Errorf("got %+v: %+v", outcome.Status, f.results(t))
	}
}

// TestPatternsThatMatchNothing: a slip in a pattern is told of, before somebody needs the backup.
func TestPatternsThatMatchNothing(t *testing.T) {
	for name, test := range map[string]struct {
		spec v1alpha1.BackupSpec
		want []string
	}{
		"of namespaces": {v1alpha1.BackupSpec{IncludedNamespaces: []string{"shpo-*"}}, []string{
			"the backup is empty: no object of the cluster is in the namespaces, of the resources and with the labels that it asks for",
			`namespaces: the backup includes "shpo-*", which no namespace matches that is not left out`,
		}},
		"of labels": {
			v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "nothing"}}},
			[]string{"the backup is empty: no object of the cluster is in the namespaces, of the resources and with the labels that it asks for"},
		},
		"beside others": {v1alpha1.BackupSpec{IncludedNamespaces: []string{"sh*", "blgo*"}}, []string{`namespaces: the backup includes "blgo*", which no namespace matches that is not left out`}},
		"of which all are excluded": {
			v1alpha1.BackupSpec{IncludedNamespaces: []string{"bl*", "shop"}, ExcludedNamespaces: []string{"blog"}},
			[]string{`namespaces: the backup includes "bl*", which no namespace matches that is not left out`},
		},
		"all":          {v1alpha1.BackupSpec{IncludedNamespaces: []string{"*"}}, nil},
		"all by words": {v1alpha1.BackupSpec{IncludedNamespaces: []string{"sh*", "bl?g"}}, nil},
		"of resources": {v1alpha1.BackupSpec{IncludedResources: []string{"*.exmaple.com", "config*", "*"}}, []string{`the backup includes "*.exmaple.com", which no resource matches that the cluster serves`}},
		"of resources of clusters": {
			v1alpha1.BackupSpec{IncludedNamespaceScopedResources: []string{"configmaps"}, IncludedClusterScopedResources: []string{"clusterissuers.*"}},
			[]string{`the backup includes "clusterissuers.*", which no resource matches that the cluster serves`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.spec)
			f.add("namespaces", namespace("shop", ""), namespace("blog", ""))
			f.add("configmaps", named("shop", "a")...)
			f.run(t)
			warnings := f.results(t).Warnings
			if diff := gocmp.Diff(test.want, slices.Concat(warnings.Velero, warnings.Cluster)); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// Few namespaces are listed one by one, many or all of them at once.
func TestListsPerNamespaceOrCluster(t *testing.T) {
	for name, test := range map[string]struct {
		included                                  []string
		existing, perNamespace, cluster, selected int
	}{
		"all":                 {nil, 3, 0, 1, 3},
		"a few of many":       {[]string{"ns-0", "ns-1"}, 30, 2, 0, 2},
		"as many as allowed":  {[]string{"ns-?"}, 30, 10, 0, 10},
		"more than that":      {[]string{"ns-?", "ns-1?"}, 30, 0, 1, 20},
		"none, without error": {[]string{"other*"}, 30, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: test.included})
			for i := range test.existing {
				ns := fmt.Sprintf("ns-%d", i)
				f.add("namespaces", namespace(ns, ""))
				f.add("configmaps", named(ns, "c")...)
			}
			f.run(t)
			perNamespace, selected := 0, 0
			for i := range test.existing {
				perNamespace += f.requested(fmt.Sprintf("/api/v1/namespaces/ns-%d/configmaps", i))
			}
			for _, item := range f.items(t) {
				if strings.HasPrefix(item, "configmaps ") {
					selected++
				}
			}
			if cluster := f.requested("/api/v1/configmaps"); perNamespace != test.perNamespace || cluster != test.cluster {
				t.Errorf("%d lists in namespaces and %d of the cluster", perNamespace, cluster)
			}
			if selected != test.selected {
				t.Errorf("%d ConfigMaps are in the backup", selected)
			}
		})
	}
}

// What opens the store and the repositories does not lie in the store, labelled or
// not, whatever the backup selects. Whoever names the namespace is told.
func TestKeysAreNotInABackup(t *testing.T) {
	const theWarning = "secrets holdfast: " + secretsLeftOut
	all := []string{"secrets holdfast-agents/token", "secrets holdfast-locations/offsite", "secrets holdfast-maintenance/token", "secrets holdfast-repositories/shop.default.key", "secrets holdfast/tls"}
	const everywhere = ": 1 of the namespace holdfast, 1 of the namespace holdfast-agents, 1 of the namespace holdfast-locations, 1 of the namespace holdfast-maintenance, 1 of the namespace holdfast-repositories"
	for name, test := range map[string]struct {
		spec     v1alpha1.BackupSpec
		want     []string
		leftOut  []string
		says     string
		warnings []string
	}{
		"all namespaces": {
			want:    []string{"configmaps holdfast/queue", "secrets shop/password"},
			leftOut: all,
			says:    everywhere,
		},
		"all Secrets by label": {
			spec:    v1alpha1.BackupSpec{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"take": "me"}}},
			want:    []string{"secrets shop/password"},
			leftOut: all,
			says:    everywhere,
		},
		"another namespace": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}},
			want: []string{"secrets shop/password"},
		},
		"the system namespace": {
			spec:     v1alpha1.BackupSpec{IncludedNamespaces: []string{"holdfast"}},
			want:     []string{"configmaps holdfast/queue"},
			leftOut:  all[4:],
			says:     ": 1 of the namespace holdfast",
			warnings: []string{theWarning},
		},
		"the system namespace without Secrets": {
			spec: v1alpha1.BackupSpec{IncludedNamespaces: []string{"holdfast"}, ExcludedResources: []string{"secrets"}},
			want: []string{"configmaps holdfast/queue"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.spec)
			secret := func(namespace, name string) string {
				return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"labels":{"take":"me"}},"data":{"k":"a2V5"}}`, name, namespace)
			}
			for _, name := range []string{"holdfast", "holdfast-agents", "holdfast-locations", "holdfast-maintenance", "holdfast-repositories", "shop"} {
				f.add("namespaces", namespace(name, ""))
			}
			f.add("configmaps", named("holdfast", "queue")...)
			f.add("secrets", secret("holdfast", "tls"), secret("holdfast-agents", "token"), secret("holdfast-locations", "offsite"), secret("holdfast-maintenance", "token"), secret("holdfast-repositories", "shop.default.key"), secret("shop", "password"))
			outcome := f.run(t)
			if outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || int(outcome.Status.Warnings) != len(test.warnings) {
				t.Errorf("the phase is %s, with %d warnings", outcome.Status.Phase, outcome.Status.Warnings)
			}
			says := ""
			if test.says != "" {
				says = secretsLeftOut + test.says
			}
			for _, conditions := range [][]metav1.Condition{outcome.Status.Conditions, f.stored(t).Status.Conditions} {
				said := meta.FindStatusCondition(conditions, v1alpha1.ConditionSecretsLeftOut)
				if (said != nil) != (says != "") || said != nil && said.Message != says {
					t.Errorf("the condition is %+v, want %q", said, says)
				}
			}
			got := slices.DeleteFunc(f.items(t), func(item string) bool { return strings.HasPrefix(item, "namespaces ") })
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("items (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(test.warnings, f.results(t).Warnings.Namespaces["holdfast"]); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			log := f.text(t, format.LogKey("b"))
			for _, item := range test.leftOut {
				namespace, name, _ := strings.Cut(strings.TrimPrefix(item, "secrets "), "/")
				if !strings.Contains(log, "resource=secrets namespace="+namespace+" name="+name) {
					t.Errorf("the log does not say why %s is left out:\n%s", item, log)
				}
			}
			if strings.Contains(log, "a2V5") {
				t.Error("the log holds a key")
			}
		})
	}
}
