// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package location

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// ErrNotAllowed: a namespace's backups, schedules and restores may not use a location.
var ErrNotAllowed = errors.New("the storage location is not for this namespace")

// Allowed returns nil or ErrNotAllowed. labelsOf reads the namespace's labels, if the location needs
// them.
func Allowed(ctx context.Context, location *enginev1alpha1.StorageLocation, namespace string, labelsOf func(ctx context.Context, namespace string) (map[string]string, error)) error {
	if namespace == location.Namespace {
		return nil // the administrators'
	}
	allowed := location.Spec.AllowedNamespaces
	if allowed == nil {
		if location.Spec.Default {
			return nil
		}
		return refusal(location, namespace)
	}
	if slices.Contains(allowed.Names, namespace) || slices.Contains(allowed.Names, "*") {
		return nil
	}
	if allowed.Selector == nil {
		return refusal(location, namespace)
	}
	selector, err := metav1.LabelSelectorAsSelector(allowed.Selector)
	if err != nil {
		return fmt.Errorf("read spec.allowedNamespaces.selector of the storage location %q: %w", location.Name, err)
	}
	of, err := labelsOf(ctx, namespace)
	if err != nil {
		return fmt.Errorf("read the labels of the namespace %q, by which the storage location %q is for some: %w", namespace, location.Name, err)
	}
	if !selector.Matches(labels.Set(of)) {
		return refusal(location, namespace)
	}
	return nil
}

// LabelsOf reads a namespace's present labels.
func LabelsOf(client corev1client.NamespacesGetter) func(ctx context.Context, namespace string) (map[string]string, error) {
	return func(ctx context.Context, name string) (map[string]string, error) {
		namespace, err := client.Namespaces().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return namespace.Labels, nil
	}
}

func refusal(location *enginev1alpha1.StorageLocation, namespace string) error {
	return fmt.Errorf("%w: use the default one, or have an administrator add %q to spec.allowedNamespaces.names of the StorageLocation %q", ErrNotAllowed, namespace, location.Name)
}
