// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

// ownersOf returns a function for the uids of an object's owners; "" for one restored later.
func (e *execution) ownersOf(item *manifest.Item) object.Owners {
	return func(owner metav1.OwnerReference) (types.UID, bool) {
		if e.later[[2]string{item.UID, string(owner.UID)}] && !e.mending {
			return "", true
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		now := e.uids[owner.UID]
		return now, now != ""
	}
}

// findOwners looks for owners that are not restored: an object of their kind and name becomes the
// owner.
func (e *execution) findOwners(ctx context.Context, item *manifest.Item, content *unstructured.Unstructured, about subject) {
	for _, owner := range content.GetOwnerReferences() {
		e.mu.Lock()
		_, known := e.uids[owner.UID]
		e.mu.Unlock()
		if known || e.later[[2]string{item.UID, string(owner.UID)}] {
			continue
		}
		var live types.UID
		gv, err := schema.ParseGroupVersion(owner.APIVersion)
		if err != nil {
			continue
		}
		k, err := e.kinds.find(&manifest.Item{APIGroup: gv.Group, APIVersion: gv.Version, KindName: owner.Kind})
		if err == nil {
			namespace := about.namespace
			if !k.namespaced {
				namespace = ""
			}
			found, err := e.writer.get(ctx, k, namespace, owner.Name)
			if err == nil && found != nil && found.GetDeletionTimestamp() == nil {
				live = found.GetUID()
			}
		}
		e.mu.Lock()
		if e.uids[owner.UID] == "" {
			e.uids[owner.UID] = live
		}
		e.mu.Unlock()
	}
}
