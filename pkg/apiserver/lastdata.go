// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/metadata"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const claimsPage = 1000 // claims in a list request

// lastData returns the existing claims whose newest data a backup holds. A deleted claim's data expire with it.
func lastData(held func(namespace, name string) []types.NamespacedName, client metadata.Interface) func(context.Context, *v1alpha1.Backup) ([]types.NamespacedName, error) {
	return func(ctx context.Context, backup *v1alpha1.Backup) ([]types.NamespacedName, error) {
		existing := map[string]sets.Set[string]{}
		var last []types.NamespacedName
		for _, claim := range held(backup.Namespace, backup.Name) {
			names, known := existing[claim.Namespace]
			if !known {
				var err error
				if names, err = claimsOf(ctx, client, claim.Namespace); err != nil {
					return nil, err
				}
				existing[claim.Namespace] = names
			}
			if names.Has(claim.Name) {
				last = append(last, claim)
			}
		}
		return last, nil
	}
}

func claimsOf(ctx context.Context, client metadata.Interface, namespace string) (sets.Set[string], error) {
	names := sets.New[string]()
	options := metav1.ListOptions{Limit: claimsPage}
	for {
		list, err := client.Resource(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")).Namespace(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing the claims of the namespace %q: %w", namespace, err)
		}
		for i := range list.Items {
			names.Insert(list.Items[i].Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return names, nil
		}
	}
}
