// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	clusterid "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/restore"
)

// TestDoubts shows that the results of a restore say what the answer to its request said of the
// backup: also both of one of Velero's that is partial.
func TestDoubts(t *testing.T) {
	e := &Executor{
		Namespace: "holdfast", Cluster: format.Cluster{UID: "us"}, Keys: []string{"ours"},
		Locations: enginelisters.NewStorageLocationLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
			cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		})).StorageLocations("holdfast"),
	}
	run := &enginev1alpha1.RestoreRun{Spec: enginev1alpha1.RestoreRunSpec{RestoreRef: v1alpha1.BackupReference{Namespace: "holdfast", Name: "r"}}}
	run.Spec.Backup.Name = "daily"
	ours := &v1alpha1.BackupOrigin{PublicKey: "ours", ClusterUID: "us"}
	foreign := &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForeign, Message: "its metadata is not signed"}
	const (
		unsigned = `nobody vouches for what is in the backup "daily": its metadata is not signed`
		partial  = `the backup "daily" is PartiallyFailed: it lacks what its 1 error is about`
	)
	for name, test := range map[string]struct {
		status v1alpha1.BackupStatus
		want   []string
	}{
		"our own":           {v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, Origin: ours}, nil},
		"our own, in part":  {v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhasePartiallyFailed, Errors: 1, Origin: ours}, []string{partial}},
		"Velero's":          {v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, Origin: foreign}, []string{unsigned}},
		"Velero's, in part": {v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhasePartiallyFailed, Errors: 1, Origin: foreign}, []string{unsigned, partial}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := e.doubts(run, &v1alpha1.Backup{Status: test.status}); err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// Only an administrator's restore of what this cluster has signed hands history over: a tenant's
// does not, and nor does a backup whose uids others have written.
func TestWhichRestoresHandHistoryOver(t *testing.T) {
	e := &Executor{Namespace: "holdfast", Cluster: format.Cluster{UID: "us"}, Keys: []string{"ours"}, Successions: clusteridentity.NewSuccessions(nil)}
	ours := v1alpha1.BackupOrigin{PublicKey: "ours", ClusterUID: "us"}
	for name, c := range map[string]struct {
		namespace string
		change    func(*v1alpha1.BackupOrigin)
		want      bool
	}{
		"our own":                   {"holdfast", func(*v1alpha1.BackupOrigin) {}, true},
		"a tenant's":                {"shop", func(*v1alpha1.BackupOrigin) {}, false},
		"with another key":          {"holdfast", func(o *v1alpha1.BackupOrigin) { o.PublicKey = "other" }, false},
		"in another cluster's name": {"holdfast", func(o *v1alpha1.BackupOrigin) { o.ClusterUID = "other" }, false},
		"not signed":                {"holdfast", func(o *v1alpha1.BackupOrigin) { o.Trust = v1alpha1.BackupTrustForeign }, false},
	} {
		t.Run(name, func(t *testing.T) {
			origin := ours
			c.change(&origin)
			run := &enginev1alpha1.RestoreRun{Spec: enginev1alpha1.RestoreRunSpec{RestoreRef: v1alpha1.BackupReference{Namespace: c.namespace, Name: "r"}}}
			if got := e.handsOver(run, &origin); got != c.want {
				t.Errorf("it hands history over: %t, want %t", got, c.want)
			}
		})
	}
}

// What was vouched for when the restore was asked for must be what is read; what nobody
// vouches for, only the administrators restore; what is forged, nobody.
func TestTrust(t *testing.T) {
	locations := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := locations.Add(&enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "default"},
		Spec:       enginev1alpha1.StorageLocationSpec{TrustedClusters: []enginev1alpha1.TrustedCluster{{UID: "other", PublicKey: "trusted", Namespaces: []string{"shop"}}}},
	}); err != nil {
		t.Fatal(err)
	}
	e := &Executor{
		Namespace: "holdfast", Cluster: format.Cluster{UID: "us"}, Keys: []string{"ours", "earlier"},
		Locations: enginelisters.NewStorageLocationLister(locations).StorageLocations("holdfast"),
	}
	signed := func(key, cluster string) *v1alpha1.BackupOrigin {
		return &v1alpha1.BackupOrigin{PublicKey: key, ClusterUID: cluster}
	}
	foreign := &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForeign, ClusterUID: "us"}
	for name, c := range map[string]struct {
		namespace, vouched string
		origin             *v1alpha1.BackupOrigin
		want               bool
	}{
		"our own":             {"shop", "ours", signed("ours", "us"), true},
		"with an earlier key": {"shop", "earlier", signed("earlier", "us"), true},
		"of a cluster that is trusted with the namespace": {"shop", "trusted", signed("trusted", "other"), true},
		"and with another one":                            {"blog", "trusted", signed("trusted", "other"), false},
		"in another cluster's name":                       {"shop", "", signed("ours", "other"), false},
		"in our name by another key":                      {"shop", "", signed("trusted", "us"), false},
		"signed by another since":                         {"holdfast", "ours", signed("trusted", "other"), false},
		"not signed any more":                             {"holdfast", "ours", foreign, false},
		"never signed, for an administrator":              {"holdfast", "", foreign, true},
		"never signed, for a tenant":                      {"shop", "", foreign, false},
		"forged":                                          {"holdfast", "", &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustForged}, false},
		"without an origin":                               {"holdfast", "", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			run := &enginev1alpha1.RestoreRun{Spec: enginev1alpha1.RestoreRunSpec{
				RestoreRef: v1alpha1.BackupReference{Namespace: c.namespace, Name: "r"},
				Requester:  enginev1alpha1.Requester{Username: "jane"},
			}}
			run.Spec.Backup.StorageLocation, run.Spec.Backup.PublicKey = "default", c.vouched
			err := e.trust(run, &v1alpha1.Backup{Status: v1alpha1.BackupStatus{Origin: c.origin}})
			if _, refused := errors.AsType[*restore.Refused](err); (err == nil) != c.want || !c.want && !refused {
				t.Errorf("trust = %v, want it restored: %t", err, c.want)
			}
		})
	}
}

// TestNamespacesOfTheBackup: a right in a namespace that was made anew is none to what the one before
// it held, unless it continues that, or the location trusts the backup's cluster with it.
func TestNamespacesOfTheBackup(t *testing.T) {
	record := &enginev1alpha1.StorageLocation{
		Spec: enginev1alpha1.StorageLocationSpec{TrustedClusters: []enginev1alpha1.TrustedCluster{
			{UID: "other", PublicKey: "trusted", Namespaces: []string{"shop"}}, {UID: "us", PublicKey: "ours", Namespaces: []string{"given"}},
		}},
	}
	namespace := func(name string, uid types.UID) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
	}
	e := &Executor{
		Namespace: "holdfast", Cluster: format.Cluster{UID: "us"}, Keys: []string{"ours"},
		Kube: kubefake.NewClientset(namespace("shop", "shop-2"), namespace("blog", "blog-2"), namespace("given", "given-2"), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: clusterid.Name}, Data: map[string]string{clusterid.SuccessionsKey: "blog blog-1 blog-2\n"},
		}),
	}
	for _, c := range []struct {
		key, cluster, namespace string
		uid                     types.UID
		want                    bool
	}{
		{"ours", "us", "shop", "shop-2", true},
		{"ours", "us", "shop", "shop-1", false},
		{"ours", "us", "shop", "", false},
		{"ours", "us", "blog", "blog-1", true},
		{"ours", "us", "blog", "blog-0", false},
		{"ours", "us", "given", "given-1", true},
		{"ours", "us", "gone", "gone-1", true},
		{"trusted", "other", "shop", "of-theirs", true},
		{"trusted", "other", "blog", "blog-2", false},
	} {
		got, err := e.Continues(t.Context(), record, &v1alpha1.BackupOrigin{PublicKey: c.key, ClusterUID: c.cluster}, c.namespace, c.uid)
		if err != nil || got != c.want {
			t.Errorf("%+v: %t, %v", c, got, err)
		}
	}
}
