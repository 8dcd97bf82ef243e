// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

type record = enginev1alpha1.QueuedRun

// key identifies a record: a backup and a restore may share a name.
type key struct {
	class queue.Class
	name  string
}

func keyOf(r record) key { return key{records.ClassOf(r), r.GetName()} }

func startKey(s records.Start) key { return key{s.Class(), s.Name} }

type kind struct {
	name      string
	namespace string
	cached    cache.Store
	get       func(ctx context.Context, name string) (record, error)
	list      func(ctx context.Context) ([]record, error)
	update    func(ctx context.Context, changed record) (record, error)

	start     func(name string)
	executing func() map[string]record
}

type client[R record, L runtime.Object] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (R, error)
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	UpdateStatus(ctx context.Context, run R, options metav1.UpdateOptions) (R, error)
}

func newKind[R record, L runtime.Object](name, namespace string, runs client[R, L], cached cache.Store) *kind {
	return &kind{
		name: name, namespace: namespace, cached: cached,
		get: func(ctx context.Context, name string) (record, error) {
			return runs.Get(ctx, name, metav1.GetOptions{})
		},
		list: func(ctx context.Context) (all []record, err error) {
			list, err := runs.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("reading the %ss: %w", name, err)
			}
			return all, meta.EachListItem(list, func(obj runtime.Object) error {
				all = append(all, obj.(record))
				return nil
			})
		},
		update: func(ctx context.Context, changed record) (record, error) {
			return runs.UpdateStatus(ctx, changed.(R), metav1.UpdateOptions{})
		},
	}
}

func executedBy[T any, R interface {
	*T
	record
}](k *kind, executor Executor[R]) {
	k.start = executor.Start
	k.executing = func() map[string]record {
		runs := map[string]record{}
		for name, r := range executor.Executing() {
			if r == nil {
				runs[name] = nil
			} else {
				runs[name] = r
			}
		}
		return runs
	}
}

func (k *kind) known(name string) (record, error) {
	obj, ok, err := k.cached.GetByKey(cache.ObjectName{Namespace: k.namespace, Name: name}.String())
	if err != nil || !ok {
		return nil, err
	}
	return obj.(record), nil
}
