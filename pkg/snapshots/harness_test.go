// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

const system, ours = "holdfast", "this-cluster"

// sidecars emulates a cluster with snapshot-controller and the sidecar of a driver. Its driver answers
// at once. stored has the handles in the storage.
type sidecars struct {
	*fake.FakeDynamicClient
	t      *testing.T
	number int
	stored []string
	// absent has no snapshot-controller.
	absent bool
	// unprotected has contents that snapshot-controller has not put its finalizer on.
	unprotected bool
	// fails is the driver's message instead of a cut; final says that it has given up.
	fails string
	final bool
	// copying has a storage that cuts, and is not ready.
	copying bool
	// hang has the driver delete nothing.
	hang bool
	// away has a sidecar that does nothing.
	away bool
	// stale has a snapshot-controller that has not seen any change of a content.
	stale bool
	// before, if set, is called before each request.
	before func(clienttesting.Action) error
	// requests has each write.
	requests []string
}

func newSidecars(t *testing.T) *sidecars {
	s := &sidecars{t: t, FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		Snapshots: "VolumeSnapshotList", Contents: "VolumeSnapshotContentList", Classes: "VolumeSnapshotClassList",
	})}
	s.PrependReactor("*", "*", s.react)
	return s
}

func (s *sidecars) react(action clienttesting.Action) (bool, runtime.Object, error) {
	if s.before != nil {
		if err := s.before(action); err != nil {
			return true, nil, err
		}
	}
	resource := action.GetResource()
	if verb := action.GetVerb(); verb != "get" && verb != "list" {
		s.requests = append(s.requests, verb+" "+resource.Resource)
	}
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		object := action.Object.(*unstructured.Unstructured).DeepCopy()
		s.number++
		object.SetUID(types.UID(fmt.Sprintf("uid-%d", s.number)))
		object.SetCreationTimestamp(metav1.Now())
		object.SetResourceVersion("1")
		if err := s.Tracker().Create(resource, object, action.Namespace); err != nil {
			return true, nil, err
		}
		if resource == Snapshots && !s.absent {
			s.take(object)
		}
		if handle, found, _ := unstructured.NestedString(object.Object, "spec", "source", "snapshotHandle"); found && resource == Contents {
			s.change(object, func(o map[string]any) {
				o["status"] = map[string]any{"snapshotHandle": handle, "creationTime": int64(1), "readyToUse": true}
			})
		}
		return true, object, nil
	case clienttesting.PatchActionImpl:
		handled, changed, err := clienttesting.ObjectReaction(s.Tracker())(action)
		if err == nil {
			object := changed.(*unstructured.Unstructured).DeepCopy()
			s.change(object, func(map[string]any) {})
			changed = object
		}
		return handled, changed, err
	case clienttesting.DeleteActionImpl:
		return s.delete(action)
	}
	return false, nil, nil
}

// change stores a new version, and has the sidecar look at it.
func (s *sidecars) change(object *unstructured.Unstructured, by func(map[string]any)) {
	by(object.Object)
	version, _ := strconv.Atoi(object.GetResourceVersion())
	object.SetResourceVersion(strconv.Itoa(version + 1))
	resource := Contents
	if object.GetKind() == "VolumeSnapshot" {
		resource = Snapshots
	}
	if err := s.Tracker().Update(resource, object, object.GetNamespace()); err != nil {
		s.t.Error(err)
	}
	if resource == Contents {
		s.look(object.DeepCopy())
	}
}

// take makes a content, and cuts.
func (s *sidecars) take(of *unstructured.Unstructured) {
	content := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Version.String(), "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{"name": "snapcontent-" + string(of.GetUID()), "uid": "content-of-" + string(of.GetUID()), "resourceVersion": "1", "creationTimestamp": time.Now().UTC().Format(time.RFC3339), "finalizers": []any{finalizerBound}},
		"spec": map[string]any{
			"deletionPolicy": Delete, "driver": "d", "source": map[string]any{"volumeHandle": "volume"},
			"volumeSnapshotRef": map[string]any{"namespace": of.GetNamespace(), "name": of.GetName(), "uid": string(of.GetUID())},
		},
	}}
	if s.unprotected {
		content.SetFinalizers(nil)
	}
	of.SetFinalizers([]string{"as-source"})
	s.change(of, func(map[string]any) {})
	if s.fails != "" {
		content.Object["status"] = map[string]any{"error": map[string]any{"message": s.fails}}
		if !s.final {
			content.SetAnnotations(map[string]string{annotationBeingCreated: "yes"})
		}
	} else if !s.away {
		s.cut(content)
	}
	if err := s.Tracker().Create(Contents, content, ""); err != nil {
		s.t.Error(err)
	}
}

func (s *sidecars) cut(content *unstructured.Unstructured) {
	handle := "stored-of-" + content.GetName()
	s.stored = append(s.stored, handle)
	content.SetAnnotations(nil)
	content.Object["status"] = map[string]any{"snapshotHandle": handle, "creationTime": time.Now().UnixNano(), "restoreSize": int64(5), "readyToUse": !s.copying}
}

// delete is strict: the stored snapshot goes only by the rules of the real sidecars.
func (s *sidecars) delete(action clienttesting.DeleteActionImpl) (bool, runtime.Object, error) {
	resource, name := action.GetResource(), action.GetName()
	found, err := s.Tracker().Get(resource, action.GetNamespace(), name)
	if err != nil {
		return true, nil, err
	}
	object := found.(*unstructured.Unstructured).DeepCopy()
	p := action.DeleteOptions.Preconditions
	if p == nil || p.UID == nil || *p.UID != object.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != object.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(resource.GroupResource(), name, fmt.Errorf("its uid is %s", object.GetUID()))
	}
	if resource == Contents {
		s.terminate(object)
		return true, nil, nil
	}
	if err := s.Tracker().Delete(resource, action.GetNamespace(), name); err != nil {
		return true, nil, err
	}
	if content, err := s.Tracker().Get(Contents, "", contentName(object.GetUID())); err == nil { // snapshot-controller's part
		object := content.(*unstructured.Unstructured).DeepCopy()
		of, _ := decode[VolumeSnapshotContent](object)
		annotate(object, annotationBeingDeleted)
		s.change(object, func(map[string]any) {})
		if of.Spec.Policy == Delete || s.stale {
			s.terminate(s.object(Contents, "", of.Name))
		}
	}
	return true, nil, nil
}

func annotate(object *unstructured.Unstructured, key string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = "yes"
	object.SetAnnotations(annotations)
}

// terminate begins the deletion of a content.
func (s *sidecars) terminate(object *unstructured.Unstructured) {
	now := metav1.Now()
	object.SetDeletionTimestamp(&now)
	s.change(object, func(map[string]any) {})
}

// look does what csi-snapshotter does with a content that is being deleted.
func (s *sidecars) look(object *unstructured.Unstructured) {
	content, err := decode[VolumeSnapshotContent](object)
	if err != nil {
		s.t.Error(err)
		return
	}
	if content.DeletionTimestamp == nil {
		return
	}
	if len(content.Finalizers) == 0 {
		if err := s.Tracker().Delete(Contents, "", content.Name); err != nil {
			s.t.Error(err)
		}
		return
	}
	if s.away || content.beingCreated() || content.Annotations[annotationBeingDeleted] == "" && content.Spec.Source.Snapshot == "" {
		return
	}
	if content.Spec.Policy == Delete && content.Status.Handle != "" {
		if s.hang {
			return
		}
		s.stored = slices.DeleteFunc(s.stored, func(handle string) bool { return handle == content.Status.Handle })
		s.change(object, func(o map[string]any) { o["status"] = map[string]any{} })
		return
	}
	if content.protected() {
		s.change(object, func(map[string]any) {
			object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(finalizer string) bool { return finalizer == finalizerBound }))
		})
	}
}

func (s *sidecars) client() *Client { return New(s, ours, system) }

// content returns the only content.
func (s *sidecars) content() VolumeSnapshotContent {
	s.t.Helper()
	all, err := list[VolumeSnapshotContent](s.t.Context(), s.Resource(Contents), "")
	if err != nil || len(all) != 1 {
		s.t.Fatalf("the contents are %v, %v, want one", all, err)
	}
	return all[0]
}

func (s *sidecars) snapshots() []VolumeSnapshot {
	s.t.Helper()
	all, err := list[VolumeSnapshot](s.t.Context(), s.Resource(Snapshots), "")
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// object returns a stored object.
func (s *sidecars) object(resource schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	s.t.Helper()
	found, err := s.Tracker().Get(resource, namespace, name)
	if err != nil {
		s.t.Fatal(err)
	}
	return found.(*unstructured.Unstructured).DeepCopy()
}

func volume() Volume {
	return Volume{
		Backup: "backup", Place: Place{StoreName: "nightly", Location: "default", StoreID: "store-1"}, Namespace: "shop", Claim: "data", ClaimUID: "claim",
		Driver: "d", Handle: "volume", Class: "fast", Since: time.Now(), Timeout: time.Minute, ReadyTimeout: 4 * time.Hour,
	}
}

func expectError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("there is no error, want %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q has no %q", err, word)
		}
	}
}
