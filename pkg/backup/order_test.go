// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// inOrder are the objects of a resource in the order of the tarball.
func (f *fixture) inOrder(t *testing.T, resource string) []string {
	t.Helper()
	reader, err := archive.NewReader(bytes.NewReader(f.read(t, format.TarballKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	var items []string
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return items
		}
		if err != nil {
			t.Fatal(err)
		}
		if !entry.Versioned && entry.Resource.String() == resource {
			items = append(items, itemName(entry.Namespace, entry.Name))
		}
	}
}

// TestOrderedResources: what is ordered comes first, once, and only if the backup includes it;
// what the order names in vain is a warning.
func TestOrderedResources(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{
		IncludedNamespaces: []string{"shop", "bank"}, ExcludedResources: []string{"secrets"},
		OrderedResources: map[string]string{
			"cm":          "shop/d, bank/a,,shop/b,shop/gone,vault/secret,c,bank/a",
			"namespaces":  "shop,vault",
			"widgets":     "shop/z",
			"secrets":     "shop/key",
			"nothing":     "x",
			"deployments": "",
		},
	})
	f.add("namespaces", namespace("bank", ""), namespace("shop", ""), namespace("vault", ""))
	f.add("configmaps", append(append(named("shop", "a", "b", "c", "d"), named("bank", "a", "b")...), named("vault", "secret")...)...)
	f.add("widgets.example.com", named("shop", "y", "z")...)
	f.add("customresourcedefinitions.apiextensions.k8s.io", named("", "widgets.example.com")...)
	outcome := f.run(t)
	for resource, want := range map[string][]string{
		"configmaps":          {"shop/d", "bank/a", "shop/b"},
		"namespaces":          {"shop", "bank"},
		"widgets.example.com": {"shop/z", "shop/y"},
	} {
		got := f.inOrder(t, resource)
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%s are %q, and %q were to come first", resource, got, want)
		}
	}
	if diff := gocmp.Diff([]string{"bank/a", "bank/b", "shop/a", "shop/b", "shop/c", "shop/d"}, slices.Sorted(slices.Values(f.inOrder(t, "configmaps")))); diff != "" {
		t.Errorf("ConfigMaps (-want +got):\n%s", diff)
	}
	warnings := f.results(t).Warnings
	got := append(append([]string{}, warnings.Cluster...), warnings.Velero...)
	for _, of := range warnings.Namespaces {
		got = append(got, of...)
	}
	slices.Sort(got)
	want := []string{
		"configmaps c: orderedResources names it without its namespace: write namespace/name",
		"configmaps shop/gone: orderedResources names it, but the backup does not find it",
		"configmaps vault/secret: orderedResources names it, but the backup does not include its namespace",
		"namespaces vault: orderedResources names it, but the backup does not include its namespace",
		`orderedResources has "nothing", which the cluster does not serve`,
		"secrets: orderedResources has it, but the backup does not include it",
	}
	if diff := gocmp.Diff(want, got); diff != "" || outcome.Status.Phase != v1alpha1.BackupPhaseCompleted {
		t.Errorf("%s, warnings (-want +got):\n%s", outcome.Status.Phase, diff)
	}
	if n := f.requested("/api/v1/namespaces/vault"); n > 0 {
		t.Errorf("asked %d times for what the backup does not include", n)
	}
}

// The order selects nothing: labels still do.
func TestOrderAndLabels(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{
		IncludedNamespaces: []string{"shop"}, OrderedResources: map[string]string{"configmaps": "shop/c,shop/b"},
		OrLabelSelectors: []*metav1.LabelSelector{{MatchLabels: map[string]string{"app": "db"}}, {MatchLabels: map[string]string{"app": "web"}}},
	})
	f.add("namespaces", namespace("shop", ""))
	f.add("configmaps", `{"metadata":{"name":"a","namespace":"shop","labels":{"app":"db"}}}`, `{"metadata":{"name":"b","namespace":"shop","labels":{"app":"web"}}}`,
		`{"metadata":{"name":"c","namespace":"shop"}}`)
	f.run(t)
	if got := f.inOrder(t, "configmaps"); !slices.Equal(got, []string{"shop/b", "shop/a"}) {
		t.Errorf("got %q", got)
	}
}

// TestOrderedPods: as in Velero, pods that are ordered are one block: all are frozen, in their
// order, before the data of any is read, and thawed when that of all was.
func TestOrderedPods(t *testing.T) {
	f := hookedFixture(t, dbHooks(v1alpha1.HookErrorModeFail),
		hookedPod("db-0", "n1", isDB, "", "d"+claimData), hookedPod("db-1", "n1", isDB, "", "i"+claimIdle), hookedPod("db-2", "n1", isDB, "", "e"+emptyDir))
	f.request.Backup.Spec.OrderedResources = map[string]string{"pods": "shop/db-2,shop/db-0"}
	f.run(t)
	want := []string{
		"pending db-2,db-0,db-1",
		"db-2/c1: freeze /d", "db-0/c1: freeze /d", "submit db-2/e", "submit db-0/d", "read db-2/e", "read db-0/d", "db-2/c1: thaw /d", "db-0/c1: thaw /d",
		"db-1/c1: freeze /d", "submit db-1/i", "read db-1/i", "db-1/c1: thaw /d",
	}
	got := f.hooks.events
	if len(got) > len(want) {
		got = got[:len(want)] // then all are waited for once more
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got := strings.Join(f.inOrder(t, "pods"), " "); got != "shop/db-2 shop/db-0 shop/db-1" {
		t.Errorf("the pods are %s", got)
	}
}
