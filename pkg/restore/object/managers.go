// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// components of Kubernetes write fields that belong to the cluster. Distributions write as one
// program.
var components = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "k3s", "rke2"}

type manager struct {
	name string
	// decides says that it would write its values again.
	decides bool
	// scales says that it scales for HorizontalPodAutoscalers.
	scales bool
	// holds says that it manages the field itself; below are its managed fields below.
	holds bool
	below *fieldpath.Set
}

func (m manager) holdsAll() bool { return m.holds && (m.below == nil || m.below.Empty()) }

// managersOf returns the controllers among an object's managers. A user of kubectl is none: nothing
// applies that again.
func managersOf(live *unstructured.Unstructured) []manager {
	var managers []manager
	for _, entry := range live.GetManagedFields() {
		decides := !isPerson(entry.Manager) && (entry.Operation == metav1.ManagedFieldsOperationApply || entry.Subresource == "scale")
		component := isComponent(entry.Manager)
		if !decides && !component || entry.FieldsV1 == nil {
			continue
		}
		set := &fieldpath.Set{}
		if set.FromJSON(entry.FieldsV1.GetRawReader()) == nil {
			managers = append(managers, manager{name: entry.Manager, decides: decides, scales: component && entry.Subresource == "scale", below: set})
		}
	}
	return managers
}

// descend returns the managers of a field, or of anything that contains it.
func descend(managers []manager, element fieldpath.PathElement) []manager {
	var found []manager
	for _, m := range managers {
		if m.holdsAll() {
			found = append(found, m)
			continue
		}
		holds := m.below.Members.Has(element)
		below, _ := m.below.Children.Get(element)
		if holds || below != nil {
			found = append(found, manager{m.name, m.decides, m.scales, holds, below})
		}
	}
	return found
}

func elements(managers []manager, key string, element any) []manager {
	var found []manager
	for _, m := range managers {
		if m.holdsAll() {
			found = append(found, m)
			continue
		}
		m.below.Children.Iterate(func(pe fieldpath.PathElement) {
			if isElement(pe, key, element) {
				below, _ := m.below.Children.Get(pe)
				found = append(found, manager{m.name, m.decides, m.scales, m.below.Members.Has(pe), below})
			}
		})
		m.below.Members.Iterate(func(pe fieldpath.PathElement) {
			if _, known := m.below.Children.Get(pe); !known && isElement(pe, key, element) {
				found = append(found, manager{m.name, m.decides, m.scales, true, nil})
			}
		})
	}
	return found
}

func isElement(pe fieldpath.PathElement, key string, element any) bool {
	if key == values {
		return pe.Value != nil && same((*pe.Value).Unstructured(), element)
	}
	fields, _ := element.(map[string]any)
	return pe.Key != nil && slices.ContainsFunc(*pe.Key, func(f value.Field) bool { return f.Name == key && same(f.Value.Unstructured(), fields[key]) })
}
