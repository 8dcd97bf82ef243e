// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

// whole bounds the rows of an answer in the order of their state, with any limit. Longer lists come in pages, by
// names.
const whole = 10_000

// REST serves the verbs get and list. There is no watch: rows change with time.
type REST struct {
	rest.TableConvertor
	publisher *Publisher
}

var _ interface {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.ShortNamesProvider
	rest.CategoriesProvider
	rest.Getter
	rest.Lister
} = &REST{}

// NewREST returns the storage of protections.
func NewREST(publisher *Publisher) *REST { return &REST{&Resource, publisher} }

// New implements rest.Storage.
func (r *REST) New() runtime.Object { return &v1alpha1.Protection{} }

// NewList implements rest.Lister.
func (r *REST) NewList() runtime.Object { return &v1alpha1.ProtectionList{} }

// Destroy implements rest.Storage.
func (r *REST) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r *REST) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (r *REST) GetSingularName() string { return Resource.Singular }

// ShortNames implements rest.ShortNamesProvider.
func (r *REST) ShortNames() []string { return Resource.ShortNames }

// Categories implements rest.CategoriesProvider.
func (r *REST) Categories() []string { return Resource.Categories }

func (r *REST) ready() error {
	if r.publisher.decided.Load() != nil {
		return nil
	}
	return logstore.TooEarly(Resource.GroupResource, "the workloads and the backups", r.publisher.Clock.Since(r.publisher.born))
}

// Get implements rest.Getter.
func (r *REST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	r.publisher.Warn(ctx)
	for _, o := range r.publisher.live.list(genericapirequest.NamespaceValue(ctx)) {
		if o.rowName() == name {
			return &r.publisher.rows([]*object{o}, false)[0], nil
		}
	}
	return nil, apierrors.NewNotFound(Resource.GroupResource, name)
}

// List implements rest.Lister.
func (r *REST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	r.publisher.Warn(ctx)
	if options == nil {
		options = &internalversion.ListOptions{}
	}
	namespace := genericapirequest.NamespaceValue(ctx)
	objects := r.publisher.live.list(namespace)
	if selector := options.LabelSelector; selector != nil && !selector.Empty() {
		objects = slices.DeleteFunc(objects, func(o *object) bool { return !selector.Matches(labels.Set(o.labels)) })
	}
	rows := r.publisher.rows(objects, namespace == metav1.NamespaceAll)
	if selector := options.FieldSelector; selector != nil && !selector.Empty() {
		rows = slices.DeleteFunc(rows, func(p v1alpha1.Protection) bool { return !selector.Matches(fieldsOf(&p)) })
	}
	list := &v1alpha1.ProtectionList{Items: rows}
	if options.Continue == "" && (len(rows) <= whole || options.Limit <= 0) {
		slices.SortFunc(rows, func(a, b v1alpha1.Protection) int { return compareRows(&a, &b) })
		return list, nil
	}
	slices.SortFunc(rows, func(a, b v1alpha1.Protection) int { return compareNames(&a, &b) })
	if options.Continue != "" {
		decoded, err := base64.RawURLEncoding.DecodeString(options.Continue)
		after := &v1alpha1.Protection{}
		var ok bool
		if after.Namespace, after.Name, ok = strings.Cut(string(decoded), "/"); err != nil || !ok {
			return nil, apierrors.NewBadRequest("the continue token is not of a list of protections: begin without it")
		}
		at, found := slices.BinarySearchFunc(rows, after, func(p v1alpha1.Protection, after *v1alpha1.Protection) int { return compareNames(&p, after) })
		if found {
			at++
		}
		list.Items = rows[at:]
	}
	if limit := int(cmp.Or(options.Limit, whole)); len(list.Items) > limit {
		last := &list.Items[limit-1]
		list.Items, list.Continue = list.Items[:limit], base64.RawURLEncoding.EncodeToString([]byte(last.Namespace+"/"+last.Name))
	}
	return list, nil
}

func fieldsOf(p *v1alpha1.Protection) fields.Set {
	set := fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace}
	for name, get := range Resource.Fields {
		set[name] = get(p)
	}
	return set
}
