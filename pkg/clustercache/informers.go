// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clustercache has informers' objects without unused fields, and the served resources. Objects may be
// written back: an update without managedFields keeps them.
package clustercache

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// ConfigMap returns Trimmed informers of one ConfigMap, which is all that a role may read.
func ConfigMap(client kubernetes.Interface, namespace, name string) informers.SharedInformerFactory {
	return one(client, namespace, name)
}

// Lease returns Trimmed informers of one Lease.
func Lease(client kubernetes.Interface, namespace, name string) informers.SharedInformerFactory {
	return one(client, namespace, name)
}

func one(client kubernetes.Interface, namespace, name string) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace), informers.WithTransform(Trimmed),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}))
}

// Trimmed drops managedFields. It is a cache.TransformFunc.
func Trimmed(obj any) (any, error) {
	if object, err := meta.Accessor(obj); err == nil {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

// Named keeps the identity and labels of a namespace or a metadata object. It is a cache.TransformFunc.
func Named(obj any) (any, error) {
	switch object := obj.(type) {
	case *corev1.Namespace:
		*object = corev1.Namespace{TypeMeta: object.TypeMeta, ObjectMeta: named(&object.ObjectMeta)}
	case *metav1.PartialObjectMetadata:
		object.ObjectMeta = named(&object.ObjectMeta)
	}
	return obj, nil
}

func named(of *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: of.Namespace, Name: of.Name, UID: of.UID, ResourceVersion: of.ResourceVersion,
		CreationTimestamp: of.CreationTimestamp, DeletionTimestamp: of.DeletionTimestamp, Labels: of.Labels,
	}
}
