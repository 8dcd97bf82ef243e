// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package standin

import (
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

func TestKinds(t *testing.T) {
	spec := v1alpha1.BackupSpec{
		IncludedNamespaces: []string{"shop"}, StorageLocation: "default",
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "tier": "front"}},
	}
	for what, c := range map[string]struct {
		change func(*v1alpha1.BackupSpec)
		same   bool
	}{
		"nothing":     {func(*v1alpha1.BackupSpec) {}, true},
		"time":        {func(s *v1alpha1.BackupSpec) { s.TTL.Duration = time.Hour }, true},
		"volumes":     {func(s *v1alpha1.BackupSpec) { s.DefaultVolumesToFsBackup = new(true) }, true},
		"snapshots":   {func(s *v1alpha1.BackupSpec) { s.SnapshotVolumes, s.SnapshotMoveData = new(false), new(false) }, true},
		"policy":      {func(s *v1alpha1.BackupSpec) { s.ResourcePolicy = &v1alpha1.ResourcePolicyReference{Name: "p"} }, true},
		"order":       {func(s *v1alpha1.BackupSpec) { s.OrderedResources = map[string]string{"pods": "a"} }, true},
		"hooks":       {func(s *v1alpha1.BackupSpec) { s.Hooks.Resources = []v1alpha1.BackupResourceHookSpec{{Name: "h"}} }, true},
		"empty lists": {func(s *v1alpha1.BackupSpec) { s.ExcludedResources = []string{} }, true},
		"another place": {func(s *v1alpha1.BackupSpec) {
			s.LabelSelector = s.LabelSelector.DeepCopy()
		}, true},
		"location":   {func(s *v1alpha1.BackupSpec) { s.StorageLocation = "other" }, false},
		"namespaces": {func(s *v1alpha1.BackupSpec) { s.IncludedNamespaces = []string{"shop", "blog"} }, false},
		"exclusions": {func(s *v1alpha1.BackupSpec) { s.ExcludedNamespaces = []string{"blog"} }, false},
		"resources":  {func(s *v1alpha1.BackupSpec) { s.IncludedResources = []string{"pods"} }, false},
		"cluster":    {func(s *v1alpha1.BackupSpec) { s.IncludeClusterResources = new(false) }, false},
		"labels": {func(s *v1alpha1.BackupSpec) {
			s.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		}, false},
		"or labels": {func(s *v1alpha1.BackupSpec) {
			s.LabelSelector, s.OrLabelSelectors = nil, []*metav1.LabelSelector{s.LabelSelector}
		}, false},
	} {
		changed := *spec.DeepCopy()
		c.change(&changed)
		if got := KindOf("shop", &changed) == KindOf("shop", &spec); got != c.same {
			t.Errorf("with other %s it is of the same kind: %t, want %t", what, got, c.same)
		}
	}
	if KindOf("shop", &spec) == KindOf("blog", &spec) {
		t.Error("of two namespaces, they are of one kind")
	}
}

func TestNewest(t *testing.T) {
	backup := func(name string, started int64, change func(*v1alpha1.Backup)) *v1alpha1.Backup {
		b := &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec:       v1alpha1.BackupSpec{StorageLocation: "default"},
			Status: v1alpha1.BackupStatus{
				Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &metav1.Time{Time: time.Unix(started, 0)},
				Origin: &v1alpha1.BackupOrigin{Trust: v1alpha1.BackupTrustOwn, Namespace: "shop"},
			},
		}
		if change != nil {
			change(b)
		}
		return b
	}
	wanted := KindOf("shop", &v1alpha1.BackupSpec{StorageLocation: "default"})
	backups := []*v1alpha1.Backup{
		backup("first", 1, nil),
		backup("newest", 3, nil),
		backup("second", 2, nil),
		backup("partial", 4, func(b *v1alpha1.Backup) { b.Status.Phase = v1alpha1.BackupPhasePartiallyFailed }),
		backup("going", 4, func(b *v1alpha1.Backup) { b.Status.Phase = v1alpha1.BackupPhaseDeleting }),
		backup("unsigned", 4, func(b *v1alpha1.Backup) { b.Status.Origin = nil }),
		backup("trusted", 4, func(b *v1alpha1.Backup) { b.Status.Origin.Trust = v1alpha1.BackupTrustTrusted }),
		backup("displaced", 4, func(b *v1alpha1.Backup) { b.Status.Origin.Namespace = "blog" }),
		backup("timeless", 4, func(b *v1alpha1.Backup) { b.Status.StartTimestamp = nil }),
		backup("other", 4, func(b *v1alpha1.Backup) { b.Spec.StorageLocation = "other" }),
	}
	got := Newest(sets.New(wanted), slices.Values(backups))
	if len(got) != 1 || got[wanted] == nil || got[wanted].Name != "newest" {
		t.Errorf("got %v", got)
	}
}

// sequence yields items of the namespace shop, by kind and name, and then an error, unless that
// is nil.
func sequence(err error, items ...[2]string) manifest.Sequence {
	return func(yield func(*manifest.Item, error) bool) {
		for _, item := range items {
			if !yield(&manifest.Item{APIVersion: "v1", KindName: item[0], Namespace: "shop", Name: item[1]}, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

func TestDisjoint(t *testing.T) {
	damaged := errors.New("it is damaged")
	namespace, a, b, c := [2]string{"Namespace", "shop"}, [2]string{"Pod", "a"}, [2]string{"Pod", "b"}, [2]string{"Pod", "c"}
	for what, test := range map[string]struct {
		one, other manifest.Sequence
		want       bool
		fails      bool
	}{
		"parted":                  {sequence(nil, namespace, a, c), sequence(nil, namespace, b), true, false},
		"shared":                  {sequence(nil, namespace, a, c), sequence(nil, namespace, b, c), false, false},
		"shared, before an error": {sequence(nil, a), sequence(damaged, a), false, false},
		"empty":                   {sequence(nil), sequence(nil, namespace, a), true, false},
		"damaged":                 {sequence(nil, a), sequence(damaged, b), false, true},
		"damaged at its end":      {sequence(damaged, a), sequence(nil), false, true},
		"not in order":            {sequence(nil, b, a), sequence(nil, c), false, true},
	} {
		for _, swapped := range []bool{false, true} {
			one, other := test.one, test.other
			if swapped {
				one, other = other, one
			}
			if got, err := Disjoint(one, other); got != test.want || (err != nil) != test.fails {
				t.Errorf("%s: %t, %v, want %t", what, got, err, test.want)
			}
		}
	}
}

func TestTooManyItemsAreNotCompared(t *testing.T) {
	last := ""
	for item, err := range objects(sequence(nil, [2]string{"Namespace", "shop"}, [2]string{"Pod", "a"}, [2]string{"Pod", "b"}), 2) {
		switch {
		case errors.Is(err, errTooMany):
			last += "!"
		case err == nil:
			last += item.Name
		}
	}
	if last != "a!" {
		t.Errorf("of two items there are %q", last)
	}
}

func TestNote(t *testing.T) {
	name := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	for _, c := range []struct {
		namespace string
		by        []types.NamespacedName
		want      string
	}{
		{"shop", []types.NamespacedName{name("shop", "web"), name("shop", "db")}, "web and db"},
		{"holdfast", []types.NamespacedName{name("holdfast", "all"), name("shop", "db"), name("shop", "db")}, "all and shop/db"},
		{"shop", []types.NamespacedName{name("shop", "a"), name("shop", "b"), name("shop", "c")}, "a, b and c"},
		{"shop", []types.NamespacedName{name("shop", "a"), name("shop", "b"), name("shop", "c"), name("shop", "d")}, "a, b, c and others"},
	} {
		if got, want := Note(c.namespace, c.by), "; going by the stored backups "+c.want+", they would not overlap by object"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
