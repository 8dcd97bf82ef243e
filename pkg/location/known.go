// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package location

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
)

// Records reads the system namespace's StorageLocations from the cluster.
type Records interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.StorageLocation, error)
	List(ctx context.Context, options metav1.ListOptions) (*enginev1alpha1.StorageLocationList, error)
}

// Known asks the cluster for StorageLocations that the informer lacks: a client that creates a location
// and then a backup may be faster.
type Known struct {
	Lister enginelisters.StorageLocationNamespaceLister
	Live   Records
}

// Get returns a location, or fails with NotFound.
func (k Known) Get(ctx context.Context, name string) (*enginev1alpha1.StorageLocation, error) {
	found, err := k.Lister.Get(name)
	if !apierrors.IsNotFound(err) || len(validation.NameIsDNSSubdomain(name, false)) > 0 {
		return found, err
	}
	return k.Live.Get(ctx, name, metav1.GetOptions{})
}

// Defaults returns the sorted names of Holdfast's default locations, if need be from the cluster.
func (k Known) Defaults(ctx context.Context) ([]string, error) {
	cached, err := k.Lister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	if names := Defaults(cached); len(names) > 0 {
		return names, nil
	}
	live, err := k.Live.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	locations := make([]*enginev1alpha1.StorageLocation, len(live.Items))
	for i := range live.Items {
		locations[i] = &live.Items[i]
	}
	return Defaults(locations), nil
}
