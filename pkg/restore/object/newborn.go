// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// IsNewborn reports whether an object is as a controller made it: each field manager is in managed,
// the backup's, and none is a user. An account may have no fields.
func IsNewborn(live *unstructured.Unstructured, managed []metav1.ManagedFieldsEntry) bool {
	if len(live.GetManagedFields()) == 0 {
		return live.GetKind() == "ServiceAccount"
	}
	return !slices.ContainsFunc(live.GetManagedFields(), func(here metav1.ManagedFieldsEntry) bool {
		return isPerson(here.Manager) || !slices.ContainsFunc(managed, func(there metav1.ManagedFieldsEntry) bool { return there.Manager == here.Manager })
	})
}

// isPerson reports whether a field manager is a user's tool: nothing writes its fields again.
func isPerson(manager string) bool { return strings.HasPrefix(manager, "kubectl") }

// CompareNewborn is Compare for a newborn object. A field whose manager had it in the backup, too,
// keeps its live value.
func CompareNewborn(live, desired, served *unstructured.Unstructured, policy v1alpha1.ExistingResourcePolicy, managed []metav1.ManagedFieldsEntry) Decision {
	var makers []manager
	for _, here := range live.GetManagedFields() {
		for _, there := range managed {
			if here.Manager != there.Manager || here.FieldsV1 == nil || there.FieldsV1 == nil {
				continue
			}
			mine, before := &fieldpath.Set{}, &fieldpath.Set{}
			if mine.FromJSON(here.FieldsV1.GetRawReader()) != nil || before.FromJSON(there.FieldsV1.GetRawReader()) != nil {
				continue
			}
			makers = append(makers, manager{name: here.Manager, decides: true, below: mine.Intersection(before)})
		}
	}
	d := compare(live, desired, served, policy, append(managersOf(live), makers...))
	if d.Action == Keep && len(makers) > 0 {
		d.Action = Remade
	}
	return d
}
