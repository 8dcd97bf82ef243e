// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package realworld

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const (
	// namespaceWord stands in fixtures for the operator's namespace.
	namespaceWord = "$(NAMESPACE)"
	// ownerAnnotation names the owner of an object, as Kind/name.
	ownerAnnotation = "test.holdfast.io/owner"
)

// operator is what one chart or operator creates.
type operator struct {
	name                         string
	definitions, cluster, inside []*unstructured.Unstructured
}

// namespace is where its objects are.
func (o operator) namespace() string { return "real-" + o.name }

// copied is where they are restored to beside that. Neither name is a part of the other.
func (o operator) copied() string { return "copied-" + o.name }

// readOperators reads the fixtures of all operators, or of those that a flag names.
func readOperators(t *testing.T) (all []operator) {
	t.Helper()
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		o, folder := operator{name: entry.Name()}, filepath.Join("testdata", entry.Name())
		if *operators != "" && !slices.Contains(strings.Split(*operators, ","), o.name) {
			continue
		}
		o.definitions = o.read(t, filepath.Join(folder, "crds.yaml"))
		o.cluster = o.read(t, filepath.Join(folder, "cluster.yaml"))
		for _, object := range o.read(t, filepath.Join(folder, "objects.yaml")) {
			object.SetNamespace(o.namespace())
			o.inside = append(o.inside, object)
		}
		all = append(all, o)
	}
	if len(all) == 0 {
		t.Fatalf("there are no fixtures of %q", *operators)
	}
	return all
}

func (o operator) read(t *testing.T, path string) (objects []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(bytes.ReplaceAll(text, []byte(namespaceWord), []byte(o.namespace())))))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			t.Fatalf("%s: %v\n%s", path, err, document)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// maker creates fixtures.
type maker struct {
	client dynamic.Interface
	kinds  map[schema.GroupVersionKind]metav1.APIResource
	status map[schema.GroupVersionResource]bool
	// made are the objects of one operator, by Kind/name.
	made map[string]*unstructured.Unstructured
}

// create creates what operators create: the definitions of all of them first.
func create(t *testing.T, client dynamic.Interface, all []operator) {
	t.Helper()
	m := &maker{client: client}
	m.discover(t)
	for _, o := range all {
		for _, object := range o.definitions {
			m.create(t, object)
		}
	}
	for _, o := range all {
		for _, object := range o.definitions {
			m.awaitServed(t, object)
		}
	}
	m.discover(t)
	for _, o := range all {
		m.made = map[string]*unstructured.Unstructured{}
		if !slices.ContainsFunc(o.cluster, func(object *unstructured.Unstructured) bool { return object.GetKind() == "Namespace" }) {
			namespace := &unstructured.Unstructured{}
			namespace.SetAPIVersion("v1")
			namespace.SetKind("Namespace")
			namespace.SetName(o.namespace())
			m.create(t, namespace)
		}
		for _, object := range slices.Concat(o.cluster, o.inside) {
			m.create(t, object)
		}
	}
}

// discover asks the cluster which kinds it serves.
func (m *maker) discover(t *testing.T) {
	t.Helper()
	m.kinds, m.status = map[schema.GroupVersionKind]metav1.APIResource{}, map[schema.GroupVersionResource]bool{}
	_, lists, err := lab.Kube.Discovery().ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			if name, subresource, found := strings.Cut(resource.Name, "/"); !found {
				m.kinds[version.WithKind(resource.Kind)] = resource
			} else if subresource == "status" {
				m.status[version.WithResource(name)] = true
			}
		}
	}
}

// create creates an object, with its owner and its status. What refers to something that a controller
// has yet to make is tried again.
func (m *maker) create(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	object = object.DeepCopy()
	gvk := object.GroupVersionKind()
	about := gvk.Kind + " " + object.GetName()
	kind, served := m.kinds[gvk]
	if !served {
		t.Fatalf("%s: the cluster does not serve %s", about, gvk)
	}
	gvr := gvk.GroupVersion().WithResource(kind.Name)
	in := dynamic.ResourceInterface(m.client.Resource(gvr))
	if kind.Namespaced {
		in = m.client.Resource(gvr).Namespace(object.GetNamespace())
	}
	annotations := object.GetAnnotations()
	if name, found := annotations[ownerAnnotation]; found {
		owner := m.made[name]
		if owner == nil {
			t.Fatalf("%s: its owner %q is not above it", about, name)
		}
		delete(annotations, ownerAnnotation)
		object.SetAnnotations(annotations)
		object.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true), BlockOwnerDeletion: new(true),
		}})
	}
	var created *unstructured.Unstructured
	err := labtest.Await(t.Context(), "the creation of "+about, func() (err error) {
		created, err = in.Create(t.Context(), object, metav1.CreateOptions{FieldManager: "the-operator"})
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsAlreadyExists(err) {
			t.Fatalf("%s: %v", about, err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if m.made != nil {
		m.made[gvk.Kind+"/"+object.GetName()] = created
	}
	if status := object.Object["status"]; status != nil && m.status[gvr] {
		patch, err := (&unstructured.Unstructured{Object: map[string]any{"apiVersion": object.GetAPIVersion(), "kind": gvk.Kind, "status": status}}).MarshalJSON()
		if err == nil {
			_, err = in.Patch(t.Context(), object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "the-operator"}, "status")
		}
		if err != nil {
			t.Fatalf("the status of %s: %v", about, err)
		}
	}
}

// awaitServed waits until the kind of a definition is served in all of its versions.
func (m *maker) awaitServed(t *testing.T, definition *unstructured.Unstructured) {
	t.Helper()
	text := func(fields ...string) string {
		value, _, _ := unstructured.NestedString(definition.Object, fields...)
		return value
	}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, version := range versions {
		if version := version.(map[string]any); version["served"] == true {
			gvr := schema.GroupVersionResource{Group: text("spec", "group"), Version: version["name"].(string), Resource: text("spec", "names", "plural")}
			labtest.Eventually(t, gvr.String()+" to be served", func() error {
				_, err := m.client.Resource(gvr).List(t.Context(), metav1.ListOptions{Limit: 1})
				return err
			})
		}
	}
}

// lose deletes what operators have created. The finalizers of the operators, which do not run, go first.
func lose(t *testing.T, client dynamic.Interface, all []operator) {
	t.Helper()
	ctx := t.Context()
	namespaces := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	for _, s := range takeSnapshot(t, lab, all, operator.namespace).objects {
		if len(s.live.GetFinalizers()) > 0 && s.live.GetNamespace() != "" && !slices.Contains([]string{"Job", "Pod", "PersistentVolumeClaim"}, s.live.GetKind()) {
			in := client.Resource(s.resource).Namespace(s.live.GetNamespace())
			if _, err := in.Patch(ctx, s.live.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, o := range all {
		if err := namespaces.Delete(ctx, o.namespace(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range all {
		awaitGone(ctx, t, namespaces, o.namespace())
	}
	m := &maker{client: client}
	m.discover(t)
	for _, o := range all {
		for _, object := range slices.Concat(o.cluster, o.definitions) {
			if object.GetKind() == "Namespace" {
				continue
			}
			in := client.Resource(object.GroupVersionKind().GroupVersion().WithResource(m.kinds[object.GroupVersionKind()].Name))
			if len(object.GetFinalizers()) > 0 {
				if _, err := in.Patch(ctx, object.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := in.Delete(ctx, object.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
			}
		}
		for _, object := range slices.Concat(o.cluster, o.definitions) {
			if object.GetKind() != "Namespace" {
				awaitGone(ctx, t, client.Resource(object.GroupVersionKind().GroupVersion().WithResource(m.kinds[object.GroupVersionKind()].Name)), object.GetName())
			}
		}
	}
}

func awaitGone(ctx context.Context, t *testing.T, in dynamic.ResourceInterface, name string) {
	t.Helper()
	labtest.Eventually(t, "the end of "+name, func() error {
		_, err := in.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is there")
		}
		return err
	})
}
