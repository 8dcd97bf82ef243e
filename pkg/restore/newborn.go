// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

// Controllers make objects in a new namespace at once: the ServiceAccount default, accounts of
// OpenShift, objects of a policy engine. Such a newborn object has no user's change yet, so the
// backup's content is written into it once, under any policy. A field that the same controller
// wrote in both keeps its value here, such as this cluster's certificates.

type ownNamespaces struct{ known sync.Map }

func (o *ownNamespaces) has(ctx context.Context, e *execution, name string) (bool, error) {
	if made, ok := o.known.Load(name); ok {
		return made.(bool), nil
	}
	live, err := e.reader.get(ctx, namespaceKind, "", name)
	if err != nil {
		return false, fmt.Errorf("find out whether this restore has made the namespace %s: %w", name, err)
	}
	made := live != nil && e.isOurs(live)
	o.known.Store(name, made)
	return made, nil
}

// policyFor returns the policy for an existing object, and for a newborn one its field managers in
// the backup.
func (e *execution) policyFor(ctx context.Context, k *kind, item *manifest.Item, live *unstructured.Unstructured) (v1alpha1.ExistingResourcePolicy, []metav1.ManagedFieldsEntry, error) {
	policy := e.spec.ExistingResourcePolicy
	if live.GetNamespace() == "" || goesWith(k) != "" || e.request.tenant() { // only an administrator's restore makes namespaces
		return policy, nil, nil
	}
	if made, err := e.ownNamespaces.has(ctx, e, live.GetNamespace()); err != nil || !made {
		return policy, nil, err
	}
	content, err := e.Backup.Object(ctx, item)
	if err != nil {
		return policy, nil, err
	}
	managed := content.GetManagedFields()
	isDefault := k.name() == accountKind.name() && live.GetName() == "default"
	if !isDefault && !object.IsNewborn(live, managed) {
		return policy, nil, nil
	}
	if policy != v1alpha1.ExistingResourceRecreate {
		policy = v1alpha1.ExistingResourceUpdate
	}
	return policy, managed, nil
}
