// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package enginetest is a fake cluster of engine records for tests of controllers: the generated fake
// clientset, and what controllers need besides:
//
//  1. Each write sets the next resourceVersion; an outdated update is a Conflict.
//  2. A created object gets a uid and a creationTimestamp.
//  3. Deletions obey preconditions, and a dry run writes nothing.
//  4. A status update changes nothing else.
//
// Kube is the same for Kubernetes's own objects.
package enginetest

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
)

func init() {
	// A watch of the tracker panics when its reader lags so far.
	watch.DefaultChanSize = 10_000
	// Other handlers delay callers by the time since the last error: decades in a synctest bubble.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
}

// Fault is a request's fault. The zero value is none.
type Fault struct {
	Err error
	// Lost carries the request out, but loses its answer.
	Lost bool
}

// Cluster is the fake clientset.
type Cluster struct {
	*enginefake.Clientset
	Kube *kubefake.Clientset

	// reacting is held during a request, and guards the fields below.
	reacting sync.Mutex
	versions map[schema.GroupVersionResource]int
	uids     int
	fault    func(clienttesting.Action) Fault
	observer func(clienttesting.Action, runtime.Object)

	mu      sync.Mutex
	watches int
	gate    *gate
}

type gate struct {
	open    chan struct{}
	watches []int
}

func (g *gate) holds(watch int) bool {
	return g != nil && (len(g.watches) == 0 || slices.Contains(g.watches, watch))
}

// New returns a Cluster with some objects.
func New(objects ...runtime.Object) *Cluster {
	c := &Cluster{
		Clientset: enginefake.NewSimpleClientset(),
		// The one with managed fields is slow.
		Kube:     kubefake.NewSimpleClientset(),
		versions: map[schema.GroupVersionResource]int{},
	}
	for _, clientset := range []interface {
		Tracker() clienttesting.ObjectTracker
		PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc)
		PrependWatchReactor(resource string, reaction clienttesting.WatchReactionFunc)
	}{c.Clientset, c.Kube} {
		s := &server{Cluster: c, tracker: clientset.Tracker()}
		clientset.PrependReactor("*", "*", s.react)
		clientset.PrependWatchReactor("*", s.watch)
	}
	for _, obj := range objects {
		c.Create(obj)
	}
	return c
}

// Create adds an object, of a kind with a regular plural.
func (c *Cluster) Create(obj runtime.Object) {
	gvk := kindOf(obj)
	gvr, _ := meta.UnsafeGuessKindToResource(gvk)
	accessor, err := meta.Accessor(obj)
	if err != nil {
		panic(err)
	}
	c.reacting.Lock()
	defer c.reacting.Unlock()
	s := &server{Cluster: c, tracker: c.Tracker()}
	if _, err := s.create(clienttesting.NewCreateAction(gvr, accessor.GetNamespace(), obj)); err != nil {
		panic(err)
	}
}

func kindOf(obj runtime.Object) schema.GroupVersionKind {
	switch obj.(type) {
	case *enginev1alpha1.BackupRun:
		return enginev1alpha1.SchemeGroupVersion.WithKind("BackupRun")
	case *enginev1alpha1.RestoreRun:
		return enginev1alpha1.SchemeGroupVersion.WithKind("RestoreRun")
	case *enginev1alpha1.StorageLocation:
		return enginev1alpha1.SchemeGroupVersion.WithKind("StorageLocation")
	case *enginev1alpha1.VolumeUpload:
		return enginev1alpha1.SchemeGroupVersion.WithKind("VolumeUpload")
	case *enginev1alpha1.VolumeRestore:
		return enginev1alpha1.SchemeGroupVersion.WithKind("VolumeRestore")
	case *enginev1alpha1.VolumeRepository:
		return enginev1alpha1.SchemeGroupVersion.WithKind("VolumeRepository")
	}
	panic(fmt.Sprintf("enginetest knows no %T", obj))
}

// Fault sets the function that decides about each request, one at a time. It must not call the
// clientsets.
func (c *Cluster) Fault(decide func(clienttesting.Action) Fault) {
	c.reacting.Lock()
	defer c.reacting.Unlock()
	c.fault = decide
}

// FaultRuns is a Fault of writes of some runs.
func (c *Cluster) FaultRuns(fault Fault, which func(*enginev1alpha1.BackupRun) bool) {
	c.Fault(func(action clienttesting.Action) Fault {
		if run := Written(action); run != nil && which(run) {
			return fault
		}
		return Fault{}
	})
}

// Written returns the run that an action writes, or nil.
func Written(action clienttesting.Action) *enginev1alpha1.BackupRun {
	update, ok := action.(clienttesting.UpdateActionImpl)
	if !ok {
		return nil
	}
	run, _ := update.GetObject().(*enginev1alpha1.BackupRun)
	return run
}

// Meanwhile has another client change an object before the request that Fault is asked about.
func (c *Cluster) Meanwhile(obj runtime.Object) {
	s, gvr := &server{Cluster: c, tracker: c.Tracker()}, schema.GroupVersionResource{}
	if _, ok := obj.(*corev1.ConfigMap); ok {
		s.tracker, gvr = c.Kube.Tracker(), corev1.SchemeGroupVersion.WithResource("configmaps")
	} else {
		gvr, _ = meta.UnsafeGuessKindToResource(kindOf(obj))
	}
	accessor, err := meta.Accessor(obj)
	if err == nil {
		accessor.SetResourceVersion("")
		_, err = s.update(clienttesting.NewUpdateAction(gvr, accessor.GetNamespace(), obj))
	}
	if err != nil {
		panic(err)
	}
}

// Observe sets a function that sees each change, one at a time; a deleted object as it was. It must
// neither call the clientsets nor keep the object.
func (c *Cluster) Observe(seen func(clienttesting.Action, runtime.Object)) {
	c.reacting.Lock()
	defer c.reacting.Unlock()
	c.observer = seen
}

func (c *Cluster) observe(action clienttesting.Action, obj runtime.Object) {
	if c.observer != nil {
		c.observer(action, obj)
	}
}

// Writes returns the requested changes of a resource, also failed ones, oldest first.
func (c *Cluster) Writes(resource string) []clienttesting.Action {
	var writes []clienttesting.Action
	for _, action := range slices.Concat(c.Actions(), c.Kube.Actions()) {
		switch action.GetVerb() {
		case "get", "list", "watch":
		default:
			if action.GetResource().Resource == resource {
				writes = append(writes, action)
			}
		}
	}
	return writes
}

// Watches returns the number of opened watches.
func (c *Cluster) Watches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watches
}

// Hold delays watches until release: the given numbers, from 1, as Watches counts; without numbers all,
// also future ones. Only one hold may be in force.
func (c *Cluster) Hold(watches ...int) (release func()) {
	g := &gate{open: make(chan struct{}), watches: watches}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gate != nil {
		panic("enginetest: held already")
	}
	c.gate = g
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gate = nil
		close(g.open)
	})
}

type server struct {
	*Cluster
	tracker clienttesting.ObjectTracker
}

func (c *server) react(action clienttesting.Action) (bool, runtime.Object, error) {
	c.reacting.Lock()
	defer c.reacting.Unlock()
	var fault Fault
	if c.fault != nil {
		fault = c.fault(action)
	}
	if fault.Err != nil && !fault.Lost {
		return true, nil, fault.Err
	}
	handled, obj, err := true, runtime.Object(nil), error(nil)
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		obj, err = c.create(action)
	case clienttesting.UpdateActionImpl:
		obj, err = c.update(action)
	case clienttesting.DeleteActionImpl:
		err = c.delete(action)
	case clienttesting.DeleteCollectionActionImpl:
		err = c.deleteCollection(action)
	default:
		handled = false
	}
	if err == nil && fault.Err != nil {
		return true, nil, fault.Err
	}
	return handled, obj, err
}

func (c *server) create(action clienttesting.CreateActionImpl) (runtime.Object, error) {
	obj := action.GetObject().DeepCopyObject()
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if accessor.GetUID() == "" {
		c.uids++
		accessor.SetUID(types.UID(fmt.Sprintf("uid-%d", c.uids)))
	}
	if created := accessor.GetCreationTimestamp(); created.IsZero() {
		accessor.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	}
	if len(action.CreateOptions.DryRun) > 0 {
		return obj, nil
	}
	gvr := action.GetResource()
	accessor.SetResourceVersion(c.nextVersion(gvr))
	if err := c.tracker.Create(gvr, obj, action.GetNamespace()); err != nil {
		c.versions[gvr]--
		return nil, err
	}
	c.observe(action, obj)
	return obj, nil
}

func (c *server) update(action clienttesting.UpdateActionImpl) (runtime.Object, error) {
	gvr, obj := action.GetResource(), action.GetObject().DeepCopyObject()
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	current, err := c.tracker.Get(gvr, action.GetNamespace(), accessor.GetName())
	if err != nil {
		return nil, err
	}
	stored, err := meta.Accessor(current)
	if err != nil {
		return nil, err
	}
	outdated := accessor.GetResourceVersion() != "" && accessor.GetResourceVersion() != stored.GetResourceVersion()
	if outdated || accessor.GetUID() != stored.GetUID() {
		return nil, apierrors.NewConflict(gvr.GroupResource(), accessor.GetName(), fmt.Errorf("the object has been modified"))
	}
	if action.GetSubresource() == "status" {
		obj = withStatus(current, obj)
		if accessor, err = meta.Accessor(obj); err != nil {
			return nil, err
		}
	}
	accessor.SetResourceVersion(c.nextVersion(gvr))
	if err := c.tracker.Update(gvr, obj, action.GetNamespace()); err != nil {
		return nil, err
	}
	c.observe(action, obj)
	return obj, nil
}

func withStatus(current, changed runtime.Object) runtime.Object {
	switch current := current.(type) {
	case *enginev1alpha1.BackupRun:
		current.Status = changed.(*enginev1alpha1.BackupRun).Status
	case *enginev1alpha1.RestoreRun:
		current.Status = changed.(*enginev1alpha1.RestoreRun).Status
	case *enginev1alpha1.BackupChange:
		current.Status = changed.(*enginev1alpha1.BackupChange).Status
	case *enginev1alpha1.ExpirationChange:
		current.Status = changed.(*enginev1alpha1.ExpirationChange).Status
	case *enginev1alpha1.VolumeDeletion:
		current.Status = changed.(*enginev1alpha1.VolumeDeletion).Status
	case *enginev1alpha1.StorageLocation:
		current.Status = changed.(*enginev1alpha1.StorageLocation).Status
	case *enginev1alpha1.VolumeUpload:
		current.Status = changed.(*enginev1alpha1.VolumeUpload).Status
	case *enginev1alpha1.VolumeRestore:
		current.Status = changed.(*enginev1alpha1.VolumeRestore).Status
	case *enginev1alpha1.VolumeRepository:
		current.Status = changed.(*enginev1alpha1.VolumeRepository).Status
	}
	return current
}

func (c *server) delete(action clienttesting.DeleteActionImpl) error {
	gvr, name := action.GetResource(), action.GetName()
	current, err := c.tracker.Get(gvr, action.GetNamespace(), name)
	if err != nil {
		return err
	}
	stored, err := meta.Accessor(current)
	if err != nil {
		return err
	}
	if p := action.DeleteOptions.Preconditions; p != nil {
		if p.UID != nil && *p.UID != stored.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != stored.GetResourceVersion() {
			return apierrors.NewConflict(gvr.GroupResource(), name, fmt.Errorf("a precondition does not hold"))
		}
	}
	if err := c.tracker.Delete(gvr, action.GetNamespace(), name); err != nil {
		return err
	}
	c.observe(action, current)
	return nil
}

func (c *server) deleteCollection(action clienttesting.DeleteCollectionActionImpl) error {
	selector, err := labels.Parse(action.ListOptions.LabelSelector)
	if err != nil {
		return err
	}
	gvr := action.GetResource()
	kinds := map[string]string{"volumeuploads": "VolumeUpload", "volumerestores": "VolumeRestore"}
	if kinds[gvr.Resource] == "" {
		return fmt.Errorf("enginetest does not delete collections of %s", gvr.Resource)
	}
	list, err := c.tracker.List(gvr, enginev1alpha1.SchemeGroupVersion.WithKind(kinds[gvr.Resource]), action.GetNamespace())
	if err != nil {
		return err
	}
	return meta.EachListItem(list, func(obj runtime.Object) error {
		record, err := meta.Accessor(obj)
		if err != nil || !selector.Matches(labels.Set(record.GetLabels())) {
			return err
		}
		if err := c.tracker.Delete(gvr, record.GetNamespace(), record.GetName()); err != nil {
			return err
		}
		c.observe(action, obj)
		return nil
	})
}

// nextVersion counts as the tracker: versions of objects and lists are comparable.
func (c *Cluster) nextVersion(gvr schema.GroupVersionResource) string {
	if c.versions[gvr] == 0 {
		c.versions[gvr] = 1
	}
	c.versions[gvr]++
	return strconv.Itoa(c.versions[gvr])
}

func (c *server) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	options := action.(clienttesting.WatchActionImpl).ListOptions
	source, err := c.tracker.Watch(action.GetResource(), action.GetNamespace(), options)
	if err != nil {
		return true, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches++
	w := &heldWatch{number: c.watches, source: source, cluster: c.Cluster, result: make(chan watch.Event), stopped: make(chan struct{})}
	go w.deliver()
	return true, w, nil
}

type heldWatch struct {
	number  int
	source  watch.Interface
	cluster *Cluster
	result  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

func (w *heldWatch) ResultChan() <-chan watch.Event { return w.result }

func (w *heldWatch) Stop() {
	w.stop.Do(func() {
		close(w.stopped)
		w.source.Stop()
	})
}

func (w *heldWatch) deliver() {
	defer close(w.result)
	for event := range w.source.ResultChan() {
		w.cluster.mu.Lock()
		gate := w.cluster.gate
		w.cluster.mu.Unlock()
		if gate.holds(w.number) {
			select {
			case <-gate.open:
			case <-w.stopped:
				return
			}
		}
		select {
		case w.result <- event:
		case <-w.stopped:
			return
		}
	}
}
