// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package virtual turns a storage that nothing persists, such as a logstore.Log,
// into the REST storage of a resource that clients can only read.
//
// A resource has exactly the verbs of the type that represents it, since the API
// server derives verbs from the methods that it finds: ReadOnly has get, list and
// watch, ListOnly has get and list. Neither has delete, on purpose: the namespace
// controller deletes all objects of every namespaced resource that advertises it.
// A resource with further verbs embeds one of them and adds the methods.
package virtual

import (
	"strings"

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

// Resource describes a virtual resource. New, NewList, Table, GroupResource and
// Singular are required.
type Resource struct {
	GroupResource schema.GroupResource
	Singular      string
	ShortNames    []string
	Categories    []string
	Namespaced    bool

	// New and NewList return empty objects of the internal type.
	New, NewList func() runtime.Object
	// Attrs returns an object's labels and selectable fields. If nil, the fields are
	// its name and namespace.
	Attrs storage.AttrFunc
	// Table makes the rows that kubectl prints.
	Table rest.TableConvertor
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

// NewReadOnly returns a face of s, whose keys begin with
// logstore.Prefix(r.GroupResource). The error says what is missing in r.
func NewReadOnly(r Resource, s storage.Interface) (*ReadOnly, error) {
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

// NewListOnly returns a face of s, like NewReadOnly.
func NewListOnly(r Resource, s storage.Interface) (*ListOnly, error) {
	store, err := r.store(s)
	if err != nil {
		return nil, err
	}
	return r.listOnly(store), nil
}

func (r Resource) listOnly(store *genericregistry.Store) *ListOnly {
	return &ListOnly{
		Storage: store, Scoper: store, SingularNameProvider: store, Getter: store, Lister: store,
		shortNames: r.ShortNames, categories: r.Categories,
	}
}

// ShortNames implements rest.ShortNamesProvider.
func (l *ListOnly) ShortNames() []string { return l.shortNames }

// Categories implements rest.CategoriesProvider.
func (l *ListOnly) Categories() []string { return l.categories }

func (r Resource) store(s storage.Interface) (*genericregistry.Store, error) {
	store := &genericregistry.Store{
		NewFunc:                   r.New,
		NewListFunc:               r.NewList,
		DefaultQualifiedResource:  r.GroupResource,
		SingularQualifiedResource: schema.GroupResource{Group: r.GroupResource.Group, Resource: r.Singular},
		CreateStrategy:            readStrategy{namespaced: r.Namespaced},
		DeleteStrategy:            readStrategy{},
		TableConvertor:            r.Table,
	}
	return store, store.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: RESTOptions(r.GroupResource, s, nil),
		AttrFunc:    r.Attrs,
	})
}

// RESTOptions are the options by which a genericregistry.Store of its own
// completes itself on s. Dry runs of writes copy objects through the codec, which
// may be nil for a resource that can't be written.
func RESTOptions(resource schema.GroupResource, s storage.Interface, codec runtime.Codec) generic.RESTOptions {
	return generic.RESTOptions{
		ResourcePrefix: strings.TrimSuffix(logstore.Prefix(resource), "/"),
		StorageConfig: &storagebackend.ConfigForResource{
			Config:        storagebackend.Config{Codec: codec},
			GroupResource: resource,
		},
		Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object,
			func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			return s, func() {}, nil
		},
	}
}

// readStrategy tells a genericregistry.Store whether its resource is namespaced,
// which it asks of its strategy. The other methods belong to verbs that a face
// does not have.
type readStrategy struct {
	rest.RESTCreateStrategy
	namespaced bool
}

func (s readStrategy) NamespaceScoped() bool { return s.namespaced }
