// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package virtual turns a storage that nothing persists, such as a logstore.Log,
// into the REST storage of a resource that clients can only read. A Resource is all
// that the server knows of it besides its objects.
//
// A resource has exactly the verbs of the type that represents it, since the API
// server derives verbs from the methods that it finds: ReadOnly has get, list and
// watch, ListOnly has get and list. Neither has delete, on purpose: the namespace
// controller deletes all objects of every namespaced resource that advertises it.
// A resource with further verbs embeds one of them and adds the methods, or has all of
// them by Store.
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

// Resource defines a virtual resource of objects of type T, a pointer to a type of
// the version that is served. Only ShortNames, Categories, Fields and Compare may be
// left out.
type Resource[T logstore.Object] struct {
	GroupResource schema.GroupResource
	Singular      string
	ShortNames    []string
	Categories    []string
	Namespaced    bool

	// Object and List are empty.
	Object T
	List   runtime.Object
	// Fields are those that a field selector may name, beside metadata.name and
	// metadata.namespace.
	Fields map[string]func(T) string
	// Columns are those of the table that kubectl prints.
	Columns []Column[T]
	// Compare orders the rows of a table, see ordered. Nil keeps the list's order.
	Compare func(a, b T) int
}

// Selectable lists what a field selector may name.
func (r *Resource[T]) Selectable() []string {
	return append([]string{"metadata.name", "metadata.namespace"}, slices.Sorted(maps.Keys(r.Fields))...)
}

// AddFieldLabels makes a scheme, to which the types have been added, take the fields
// for selectable, and refuse all others.
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

// attrs returns an object's labels and selectable fields.
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

// ReadOnly returns a face of s, whose keys begin with
// logstore.Prefix(r.GroupResource). The error says what is missing in r.
func (r *Resource[T]) ReadOnly(s storage.Interface) (*ReadOnly, error) {
	store, err := r.store(s)
	if err != nil {
		return nil, err
	}
	return &ReadOnly{ListOnly: r.listOnly(store), Watcher: store}, nil
}

// ListOnly serves a resource with the verbs get and list. It hides the watch that
// genericregistry.Store always has.
type ListOnly struct {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.Getter
	rest.Lister
	shortNames, categories []string
}

// ListOnly returns a face of s, like ReadOnly.
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

// Strategy says what a Store of a resource with all verbs does.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// Store returns a face of s with all verbs that a strategy has, of which s has to carry
// out those that write.
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

// readStrategy tells a genericregistry.Store whether its resource is namespaced,
// which it asks of its strategy. The other methods belong to verbs that a face
// does not have.
type readStrategy struct {
	rest.RESTCreateStrategy
	namespaced bool
}

func (s readStrategy) NamespaceScoped() bool { return s.namespaced }
