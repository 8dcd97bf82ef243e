// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package virtual makes the REST storage of a resource from a storage without persistence, such as a logstore.Log.
//
// The API server derives verbs from methods, so ReadOnly has get, list and watch, ListOnly has get and list.
// Neither has delete: the namespace controller deletes all objects of a namespaced resource that advertises it. A
// resource with further verbs embeds one of them, or has all by Store.
package virtual

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// Resource defines a resource of objects of type T, a pointer to a type of the served version. Only ShortNames,
// Categories, Fields and Compare are optional.
type Resource[T logstore.Object] struct {
	GroupResource schema.GroupResource
	Singular      string
	ShortNames    []string
	Categories    []string
	Namespaced    bool

	// Object and List are empty.
	Object  T
	List    runtime.Object
	Fields  map[string]func(T) string // for selectors, beside metadata.name and metadata.namespace
	Columns []Column[T]               // of kubectl's table
	// Compare orders the rows of a table; see ordered. Nil keeps the list's order.
	Compare func(a, b T) int
}

// Selectable returns the names of the fields for field selectors.
func (r *Resource[T]) Selectable() []string {
	return append([]string{"metadata.name", "metadata.namespace"}, slices.Sorted(maps.Keys(r.Fields))...)
}

// AddFieldLabels registers the selectable fields in a scheme that has the types. All others are refused.
func (r *Resource[T]) AddFieldLabels(scheme *runtime.Scheme) error {
	kinds, _, err := scheme.ObjectKinds(r.Object)
	if err != nil {
		return err
	}
	selectable := r.Selectable()
	return scheme.AddFieldLabelConversionFunc(kinds[0], func(label, value string) (string, string, error) {
		if !slices.Contains(selectable, label) {
			return "", "", fmt.Errorf("field %q can't be selected on %s: use one of %s, %v",
				label, kinds[0].Kind, strings.Join(selectable[:2], ", "), selectable[2:])
		}
		return label, value, nil
	})
}

func (r *Resource[T]) attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	typed, ok := obj.(T)
	if !ok {
		return nil, nil, fmt.Errorf("a %T is none of the %s", obj, r.GroupResource)
	}
	set := make(fields.Set, len(r.Fields)+2)
	set["metadata.name"], set["metadata.namespace"] = typed.GetName(), typed.GetNamespace()
	for name, get := range r.Fields {
		set[name] = get(typed)
	}
	return typed.GetLabels(), set, nil
}

// ReadOnly serves a resource with the verbs get, list and watch.
type ReadOnly struct {
	*ListOnly
	rest.Watcher
}

var _ interface {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.ShortNamesProvider
	rest.CategoriesProvider
	rest.Getter
	rest.Lister
	rest.Watcher
} = &ReadOnly{}

// ReadOnly returns the REST storage on s, whose keys begin with logstore.Prefix(r.GroupResource). It fails if r is
// incomplete.
func (r *Resource[T]) ReadOnly(s storage.Interface) (*ReadOnly, error) {
	store, err := r.store(s)
	if err != nil {
		return nil, err
	}
	return &ReadOnly{ListOnly: r.listOnly(store), Watcher: store}, nil
}

// ListOnly serves a resource with the verbs get and list. It hides genericregistry.Store's watch.
type ListOnly struct {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.Getter
	rest.Lister
	shortNames, categories []string
}

// ListOnly returns the REST storage on s, like ReadOnly.
func (r *Resource[T]) ListOnly(s storage.Interface) (*ListOnly, error) {
	store, err := r.store(s)
	if err != nil {
		return nil, err
	}
	return r.listOnly(store), nil
}

func (r *Resource[T]) listOnly(store *genericregistry.Store) *ListOnly {
	var lister rest.Lister = store
	if r.Compare != nil {
		lister = &ordered[T]{store, r.Compare}
	}
	return &ListOnly{
		Storage: store, Scoper: store, SingularNameProvider: store, Getter: store, Lister: lister,
		shortNames: r.ShortNames, categories: r.Categories,
	}
}

// ShortNames implements rest.ShortNamesProvider.
func (l *ListOnly) ShortNames() []string { return l.shortNames }

// Categories implements rest.CategoriesProvider.
func (l *ListOnly) Categories() []string { return l.categories }

func (r *Resource[T]) store(s storage.Interface) (*genericregistry.Store, error) {
	return r.Store(s, readStrategy{namespaced: r.Namespaced})
}

// Strategy has the optional methods of a strategy for Store.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// Store returns the REST storage on s with all verbs of a strategy. s must carry out the writes.
func (r *Resource[T]) Store(s storage.Interface, strategy rest.RESTCreateStrategy) (*genericregistry.Store, error) {
	if len(r.Columns) == 0 {
		return nil, fmt.Errorf("the %s have no Columns", r.GroupResource)
	}
	store := &genericregistry.Store{
		NewFunc:                   r.Object.DeepCopyObject,
		NewListFunc:               r.List.DeepCopyObject,
		DefaultQualifiedResource:  r.GroupResource,
		SingularQualifiedResource: schema.GroupResource{Group: r.GroupResource.Group, Resource: r.Singular},
		CreateStrategy:            strategy,
		DeleteStrategy:            readStrategy{},
		TableConvertor:            r,
	}
	if all, ok := strategy.(Strategy); ok {
		store.UpdateStrategy, store.DeleteStrategy = all, all
	}
	return store, store.CompleteWithOptions(&generic.StoreOptions{
		AttrFunc: r.attrs,
		RESTOptions: generic.RESTOptions{
			ResourcePrefix: strings.TrimSuffix(logstore.Prefix(r.GroupResource), "/"),
			StorageConfig:  &storagebackend.ConfigForResource{GroupResource: r.GroupResource},
			Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object,
				func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
				return s, func() {}, nil
			},
		},
	})
}

// readStrategy says whether a resource is namespaced. Its other methods are never called.
type readStrategy struct {
	rest.RESTCreateStrategy
	namespaced bool
}

func (s readStrategy) NamespaceScoped() bool { return s.namespaced }
