// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/holdfast-io/holdfast/hack/kinds"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// TestSizeOfTheTarball: one of the same objects takes no more of the store than Velero's,
// although several resources are read at once.
func TestSizeOfTheTarball(t *testing.T) {
	files := veleroBackup(t)
	f := veleroCluster(t, files)
	f.run(t)
	if theirs, ours := len(files[".tar.gz"]), len(f.read(t, format.TarballKey("b"))); ours > theirs {
		t.Errorf("the tarball has %d bytes, and Velero's %d", ours, theirs)
	}
}

// packed is an object as a backup has it, and its paths without and with its version.
type packed struct {
	paths   [2]string
	content []byte
}

// packAsVelero gives the size of the tarball that Velero makes of objects: each twice, one kind
// after the other, compressed at gzip's default level.
func packAsVelero(t *testing.T, objects []packed) int {
	t.Helper()
	var content bytes.Buffer
	compressed := gzip.NewWriter(&content)
	w := tar.NewWriter(compressed)
	put := func(path string, content []byte) {
		header := &tar.Header{Name: path, Size: int64(len(content)), Typeflag: tar.TypeReg, Mode: 0o755, ModTime: start}
		err := w.WriteHeader(header)
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("metadata/version", []byte("1.1.0\n"))
	slices.SortStableFunc(objects, func(a, b packed) int { return cmp.Compare(a.paths[0], b.paths[0]) })
	for _, o := range objects {
		put(o.paths[0], o.content)
		put(o.paths[1], o.content)
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return content.Len()
}

// fieldsOf are the managed fields of a value, as the API server notes them.
func fieldsOf(value any) any {
	fields, ok := value.(map[string]any)
	if !ok {
		return map[string]any{}
	}
	managed := map[string]any{}
	for name, of := range fields {
		managed["f:"+name] = fieldsOf(of)
	}
	return managed
}

// manyKinds puts the objects of a set into a cluster, with what an API server adds to them, and
// gives them as a backup has them.
func manyKinds(t *testing.T, f *fixture, set *kinds.Set) []packed {
	t.Helper()
	client := fake.NewSimpleDynamicClient(runtime.NewScheme())
	type created struct {
		*unstructured.Unstructured
		resource string
	}
	var all []created
	client.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object := action.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured).DeepCopy()
		id := sha256.Sum256(fmt.Append(nil, set.Name, len(all)))
		fields, err := json.Marshal(fieldsOf(object.Object))
		if err != nil {
			t.Fatal(err)
		}
		at := metav1.NewTime(start.Local())
		object.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: "kinds.test", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: object.GetAPIVersion(), Time: &at,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(fields)),
		}})
		object.SetUID(types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])))
		object.SetResourceVersion(fmt.Sprint(1000 + len(all)))
		object.SetCreationTimestamp(at)
		all = append(all, created{object, action.GetResource().GroupResource().String()})
		return true, object, nil
	})
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		var change metav1.PartialObjectMetadata
		if err := json.Unmarshal(patch.GetPatch(), &change); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(c created) bool {
			return c.resource == patch.GetResource().GroupResource().String() && c.GetNamespace() == patch.GetNamespace() && c.GetName() == patch.GetName()
		})
		all[i].SetOwnerReferences(change.OwnerReferences)
		return true, all[i].Unstructured, nil
	})
	if _, err := set.Create(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	f.resources = []metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "namespaces", Kind: "Namespace", Verbs: metav1.Verbs{"create", "delete", "get", "list"}},
	}}, {GroupVersion: "apiextensions.k8s.io/v1", APIResources: []metav1.APIResource{
		{Name: "customresourcedefinitions", Kind: "CustomResourceDefinition", Verbs: metav1.Verbs{"create", "delete", "get", "list"}},
	}}}
	for _, k := range set.Kinds {
		f.resources = append(f.resources, metav1.APIResourceList{GroupVersion: k.GroupVersion().String(), APIResources: []metav1.APIResource{
			{Name: k.Resource, SingularName: strings.ToLower(k.Name), Kind: k.Name, Namespaced: k.Namespaced, Verbs: metav1.Verbs{"create", "delete", "get", "list"}},
		}})
	}
	for _, namespace := range set.Namespaces {
		all = append(all, created{&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace, "uid": "uid-" + namespace},
		}}, "namespaces"})
	}
	var objects []packed
	for _, c := range all {
		object := c.Unstructured
		content, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		scope, version := "cluster", object.GroupVersionKind().Version
		if object.GetNamespace() != "" {
			scope = "namespaces/" + object.GetNamespace()
		}
		objects = append(objects, packed{[2]string{
			fmt.Sprintf("resources/%s/%s/%s.json", c.resource, scope, object.GetName()),
			fmt.Sprintf("resources/%s/%s-preferredversion/%s/%s.json", c.resource, version, scope, object.GetName()),
		}, bytes.TrimSpace(content)})
		inList := object.DeepCopy()
		delete(inList.Object, "apiVersion")
		delete(inList.Object, "kind")
		raw, err := json.Marshal(inList.Object)
		if err != nil {
			t.Fatal(err)
		}
		f.add(c.resource, string(raw))
	}
	return objects
}

// TestSizeOfManyKinds: a few objects each of 40 kinds, as alike as they can be, take at most a tenth
// more than as Velero packs them.
func TestSizeOfManyKinds(t *testing.T) {
	f := newFixture(t, v1alpha1.BackupSpec{IncludeClusterResources: new(true)})
	set := kinds.New("size", "one", "two")
	objects := manyKinds(t, f, set)
	if outcome := f.run(t); outcome.Status.Phase != v1alpha1.BackupPhaseCompleted || outcome.Status.Progress.ItemsBackedUp != int64(len(objects)) || len(set.Kinds) != 40 {
		t.Fatalf("of %d objects of %d kinds: %+v, %+v", len(objects), len(set.Kinds), outcome.Status, f.results(t))
	}
	theirs, ours := packAsVelero(t, objects), len(f.read(t, format.TarballKey("b")))
	t.Logf("%d objects of %d kinds take %d bytes, and %d as Velero packs them", len(objects), len(set.Kinds), ours, theirs)
	if ours > theirs {
		t.Errorf("the tarball has %d bytes, and Velero's %d", ours, theirs)
	}
}

// BenchmarkTarball compares that tarball with Velero's, and counts the requests for it.
func BenchmarkTarball(b *testing.B) {
	files := veleroBackup(b)
	var requests, size int
	for b.Loop() {
		f := veleroCluster(b, files)
		f.run(b)
		requests, size = len(f.requests), len(f.read(b, format.TarballKey("b")))
	}
	b.ReportMetric(float64(size), "bytes")
	b.ReportMetric(float64(len(files[".tar.gz"])), "velero-bytes")
	b.ReportMetric(float64(requests), "requests")
}
