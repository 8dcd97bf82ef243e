// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package protection

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

type kind struct {
	resource schema.GroupVersionResource
	name     string
	prefix   string // of the rows' names
	claims   bool
	bare     bool // only objects without an owner are listed
}

// kinds are all of them, in the order of rows with the same name.
var kinds = []*kind{
	{resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, name: "Deployment", prefix: "deployment."},
	{resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}, name: "StatefulSet", prefix: "statefulset."},
	{resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, name: "DaemonSet", prefix: "daemonset."},
	{resource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}, name: "CronJob", prefix: "cronjob."},
	{resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, name: "Pod", prefix: "pod.", bare: true},
	{resource: schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}, name: "PersistentVolumeClaim", prefix: "persistentvolumeclaim.", claims: true},
}

// object is a present workload or claim. It does not change.
type object struct {
	*kind
	namespace, name string
	uid             types.UID
	id              id
	created         time.Time
	labels          map[string]string
	rpo             string // the annotation
}

func (o *object) rowName() string { return o.prefix + o.name }

// live has the listed objects of all kinds, with the needed metadata. Others, as workloads' pods, take no memory.
type live struct {
	changed func() // called after each change

	mu     sync.RWMutex
	tables []*table // as kinds; the content is guarded by mu
}

type table struct {
	*live
	*kind
	objects map[string]map[string]*object // by namespace and name; guarded by mu
	synced  bool                          // guarded by mu
}

var _ cache.TransformingStore = &table{}

func newLive(changed func()) *live {
	l := &live{changed: changed}
	for _, of := range kinds {
		l.tables = append(l.tables, &table{live: l, kind: of, objects: map[string]map[string]*object{}})
	}
	return l
}

func (l *live) run(ctx context.Context, client metadata.Interface) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, t := range l.tables {
		resource := client.Resource(t.resource)
		from := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return resource.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return resource.Watch(ctx, options)
			},
		}, client)
		reflector := cache.NewReflectorWithOptions(from, &metav1.PartialObjectMetadata{}, t,
			cache.ReflectorOptions{Name: "protections of " + t.resource.Resource})
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
}

func (l *live) isSynced() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, t := range l.tables {
		if !t.synced {
			return false
		}
	}
	return true
}

// list returns the objects of a namespace, or all if it is empty.
func (l *live) list(namespace string) []*object {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var all []*object
	for _, t := range l.tables {
		for of, objects := range t.objects {
			if namespace != "" && of != namespace {
				continue
			}
			for _, o := range objects {
				all = append(all, o)
			}
		}
	}
	return all
}

// Transformer implements cache.TransformingStore: it drops the rest of the metadata of long lists.
func (t *table) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if object, ok := obj.(*metav1.PartialObjectMetadata); ok {
			trimmed := metav1.ObjectMeta{
				Namespace: object.Namespace, Name: object.Name, UID: object.UID, ResourceVersion: object.ResourceVersion,
				CreationTimestamp: object.CreationTimestamp, Labels: object.Labels,
			}
			if len(object.OwnerReferences) > 0 {
				trimmed.OwnerReferences = object.OwnerReferences[:1]
			}
			if rpo, ok := object.Annotations[v1alpha1.AnnotationRPO]; ok {
				trimmed.Annotations = map[string]string{v1alpha1.AnnotationRPO: rpo}
			}
			object.ObjectMeta = trimmed
		}
		return obj, nil
	}
}

// Add implements cache.ReflectorStore.
func (t *table) Add(obj any) error { return t.Update(obj) }

// Update implements cache.ReflectorStore.
func (t *table) Update(obj any) error {
	metadata, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("a %T is no metadata of the %s", obj, t.resource.Resource)
	}
	t.mu.Lock()
	changed := t.setLocked(metadata)
	t.mu.Unlock()
	if changed {
		t.changed()
	}
	return nil
}

// setLocked takes an object, and reports a change of the kept fields.
func (t *table) setLocked(of *metav1.PartialObjectMetadata) bool {
	if t.bare && len(of.OwnerReferences) > 0 {
		return t.deleteLocked(of.Namespace, of.Name)
	}
	made := &object{
		kind: t.kind, namespace: of.Namespace, name: of.Name, uid: of.UID, id: idOf(string(of.UID)), created: of.CreationTimestamp.Time,
		labels: of.Labels, rpo: of.Annotations[v1alpha1.AnnotationRPO],
	}
	in := t.objects[of.Namespace]
	if in == nil {
		in = map[string]*object{}
		t.objects[of.Namespace] = in
	}
	if was := in[of.Name]; was != nil && was.equal(made) {
		return false
	}
	in[of.Name] = made
	return true
}

func (o *object) equal(other *object) bool {
	if o.uid != other.uid || o.rpo != other.rpo || len(o.labels) != len(other.labels) {
		return false
	}
	for key, value := range o.labels {
		if of, ok := other.labels[key]; !ok || of != value {
			return false
		}
	}
	return true
}

func (t *table) deleteLocked(namespace, name string) bool {
	in := t.objects[namespace]
	if in[name] == nil {
		return false
	}
	if delete(in, name); len(in) == 0 {
		delete(t.objects, namespace)
	}
	return true
}

// Delete implements cache.ReflectorStore.
func (t *table) Delete(obj any) error {
	metadata, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("a %T is no metadata of the %s", obj, t.resource.Resource)
	}
	t.mu.Lock()
	changed := t.deleteLocked(metadata.Namespace, metadata.Name)
	t.mu.Unlock()
	if changed {
		t.changed()
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *table) Replace(list []any, _ string) error {
	t.mu.Lock()
	t.objects, t.synced = map[string]map[string]*object{}, true
	for _, obj := range list {
		if metadata, ok := obj.(*metav1.PartialObjectMetadata); ok {
			t.setLocked(metadata)
		}
	}
	t.mu.Unlock()
	t.changed()
	return nil
}

// Resync implements cache.ReflectorStore.
func (t *table) Resync() error { return nil }
