// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// veleroTook is what Velero 1.18.1 took of the cluster of testdata/velero, for one spec.
type veleroTook struct {
	Name  string              `json:"name"`
	Spec  v1alpha1.BackupSpec `json:"spec"`
	Phase string              `json:"phase"`
	// ResourceList is the file of that name; Files are the paths in the tarball.
	ResourceList map[string][]string `json:"resourceList"`
	Files        []string            `json:"files"`
	// Changed are the files in the tarball that are not what the API server gave.
	Changed map[string]json.RawMessage `json:"changed"`
}

// meant are the objects that only one of the two takes, and why. With "+" it is ours, with "-" Velero.
var meant = []struct {
	why     string
	items   []string
	backups []string
}{
	{
		"the ingress and the pod that name them need them",
		[]string{"+networking.k8s.io/v1/IngressClass gate", "+node.k8s.io/v1/RuntimeClass sandboxed"},
		[]string{
			"namespace", "namespaces", "cluster", "cluster-excluded", "without-claims", "labels", "labels-in-namespace",
			"labels-cluster-resources", "labels-either", "scoped-excluded", "wildcards", "policies",
		},
	},
	{
		"the claims that name it need it",
		[]string{"+storage.k8s.io/v1/StorageClass fast"},
		[]string{
			"namespace", "namespaces", "cluster", "cluster-excluded", "without-claims", "labels", "labels-in-namespace",
			"labels-either", "scoped-excluded", "wildcards", "policies",
		},
	},
	{
		"the claim of a stateful set that names it needs it",
		[]string{"+storage.k8s.io/v1/StorageClass unused-class"},
		[]string{"namespaces", "cluster", "cluster-excluded", "labels-either", "wildcards-out"},
	},
	{
		"a RoleBinding names it, and Velero looks at ClusterRoleBindings only",
		[]string{"+rbac.authorization.k8s.io/v1/ClusterRole role-bound-in-namespace"},
		[]string{"namespace", "namespaces", "cluster", "cluster-excluded", "wildcards", "policies"},
	},
	{
		"it binds the accounts of the namespace as their group, and Velero looks at each by its kind and name only",
		[]string{"+rbac.authorization.k8s.io/v1/ClusterRoleBinding shop-group"},
		[]string{
			"namespace", "namespaces", "cluster", "cluster-excluded", "resources-and-cluster", "without-claims", "labels",
			"labels-in-namespace", "labels-cluster-resources", "labels-either", "scoped-excluded", "wildcards", "policies",
		},
	},
	{
		"that binding names it",
		[]string{"+rbac.authorization.k8s.io/v1/ClusterRole nobodys"},
		[]string{
			"namespace", "namespaces", "cluster", "cluster-excluded", "resources-and-cluster", "labels",
			"labels-in-namespace", "labels-cluster-resources", "labels-either", "wildcards", "policies", "nodes-and-roles",
		},
	},
	{
		"an object of it is in the backup; Velero adds definitions only while includeClusterResources is unset",
		[]string{"+apiextensions.k8s.io/v1/CustomResourceDefinition gadgets.example.com"},
		[]string{"labels-cluster-resources"},
	},
	{
		"an included namespace is in the backup whatever resources are",
		[]string{"+v1/Namespace shop"},
		[]string{
			"no-cluster-resources", "all-without-cluster-resources", "resources", "resources-and-cluster", "pods",
			"pods-without-cluster-resources", "scoped-nothing-of-the-cluster", "snapshots-named", "nodes-and-roles",
		},
	},
	{
		"the same",
		[]string{"+v1/Namespace depot"},
		[]string{"all-without-cluster-resources", "resources"},
	},
	{
		"the same",
		[]string{
			"+v1/Namespace aside", "+v1/Namespace default", "+v1/Namespace kube-node-lease",
			"+v1/Namespace kube-public", "+v1/Namespace kube-system", "+v1/Namespace shop-test",
		},
		[]string{"all-without-cluster-resources"},
	},
	{
		"its labels match, but it is not among the included namespaces: who may read those need not see it",
		[]string{"-v1/Namespace depot"},
		[]string{"labels-in-namespace", "labels-cluster-resources"},
	},
	{
		"the spec names the kind, and Velero leaves it out all the same",
		[]string{"+snapshot.storage.k8s.io/v1/VolumeSnapshot shop/before"},
		[]string{"snapshots-named"},
	},
}

// readGolden reads a compressed file of testdata/velero.
func readGolden(t testing.TB, name string, into any) {
	t.Helper()
	file, err := os.Open("testdata/velero/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(plain).Decode(into); err != nil {
		t.Fatal(err)
	}
}

// TestTheSameAsVeleroForManySpecs: of a cluster that has what Velero's had, each spec takes the
// same objects, puts them at the same paths, and stores the same of each. Only what is meant differs.
func TestTheSameAsVeleroForManySpecs(t *testing.T) {
	var cluster struct {
		Resources []metav1.APIResourceList     `json:"resources"`
		Objects   map[string][]json.RawMessage `json:"objects"`
	}
	var backups []veleroTook
	readGolden(t, "cluster.json.gz", &cluster)
	readGolden(t, "backups.json.gz", &backups)
	if len(backups) != 29 || len(cluster.Objects) != 46 {
		t.Fatalf("the golden files have %d backups of %d kinds", len(backups), len(cluster.Objects))
	}
	var names []string
	for _, theirs := range backups {
		names = append(names, theirs.Name)
		t.Run(theirs.Name, func(t *testing.T) {
			theirs.Spec.IncludeReferenced = new(false) // Velero's rule
			f := newFixture(t, theirs.Spec)
			f.deps.Policies = testPolicies(func(string, string) (map[string]string, error) {
				return policy("nfs:{}: skip", "pvcLabels:{tier:gold}: skip"), nil
			})
			f.resources = cluster.Resources
			for resource, objects := range cluster.Objects {
				for _, object := range objects {
					f.add(resource, string(object))
				}
			}
			if outcome := f.run(t); string(outcome.Status.Phase) != theirs.Phase {
				t.Errorf("%s, and Velero's is %s: %+v", outcome.Status.Phase, theirs.Phase, f.results(t))
			}
			ours, err := format.ReadResourceList(bytes.NewReader(f.read(t, format.ResourceListKey("b"))))
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(meantFor(theirs.Name), differences(listed(theirs.ResourceList), listed(ours))); diff != "" {
				t.Errorf("objects of one list only (-meant +found):\n%s", diff)
			}
			files, theirFiles := f.tarball(t), sets.New(theirs.Files...)
			if diff := gocmp.Diff(f.paths(t, theirs.ResourceList), slices.Sorted(slices.Values(theirs.Files))); diff != "" {
				t.Errorf("Velero's paths (-by its list +in its tarball):\n%s", diff)
			}
			if diff := gocmp.Diff(f.paths(t, ours), slices.Sorted(maps.Keys(files))); diff != "" {
				t.Errorf("our paths (-by the list +in the tarball):\n%s", diff)
			}
			for path, stored := range files {
				if !theirFiles.Has(path) || path == "metadata/version" {
					continue
				}
				given, changed := theirs.Changed[path]
				if !changed {
					given = f.given(t, path)
				}
				want := decoded(t, given)
				if strings.HasPrefix(path, "resources/persistentvolumeclaims/") {
					unbind(want)
				}
				if diff := gocmp.Diff(want, decoded(t, stored)); diff != "" {
					t.Errorf("%s (-Velero's +ours):\n%s", path, diff)
				}
			}
		})
	}
	for _, of := range meant {
		for _, name := range of.backups {
			if !slices.Contains(names, name) {
				t.Errorf("%q are meant for %s, which is no backup", of.items, name)
			}
		}
	}
}

// meantFor are the differences that are meant in a backup.
func meantFor(backup string) []string {
	var items []string
	for _, of := range meant {
		if slices.Contains(of.backups, backup) {
			items = append(items, of.items...)
		}
	}
	slices.Sort(items)
	return items
}

// unbind removes what Velero leaves in a bound claim until it restores it.
func unbind(claim any) {
	object, _ := claim.(map[string]any)
	if phase, _, _ := unstructured.NestedString(object, "status", "phase"); phase != "Bound" {
		return
	}
	for _, name := range []string{"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller", "volume.kubernetes.io/selected-node"} {
		unstructured.RemoveNestedField(object, "metadata", "annotations", name)
	}
}

// listed are the objects of a resource list, each as its kind and name.
func listed(list map[string][]string) sets.Set[string] {
	items := sets.New[string]()
	for kind, names := range list {
		for _, name := range names {
			items.Insert(kind + " " + name)
		}
	}
	return items
}

func differences(theirs, ours sets.Set[string]) []string {
	var found []string
	for item := range theirs.Difference(ours) {
		found = append(found, "-"+item)
	}
	for item := range ours.Difference(theirs) {
		found = append(found, "+"+item)
	}
	slices.Sort(found)
	return found
}

// paths are those that the objects of a resource list have in a tarball, by the format's rules.
func (f *fixture) paths(t testing.TB, list map[string][]string) []string {
	t.Helper()
	paths := []string{"metadata/version"}
	for key, names := range list {
		apiVersion, kind := path.Split(key)
		gv, err := schema.ParseGroupVersion(strings.TrimSuffix(apiVersion, "/"))
		if err != nil {
			t.Fatal(err)
		}
		for _, served := range f.resources {
			for _, r := range served.APIResources {
				if served.GroupVersion != gv.String() || r.Kind != kind || strings.Contains(r.Name, "/") {
					continue
				}
				for _, name := range names {
					where := "cluster/" + name
					if r.Namespaced {
						where = "namespaces/" + name
					}
					folder := "resources/" + gv.WithResource(r.Name).GroupResource().String() + "/"
					paths = append(paths, folder+where+".json", folder+gv.Version+"-preferredversion/"+where+".json")
				}
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// given is the object of a path in a tarball as the API server gave it.
func (f *fixture) given(t testing.TB, at string) []byte {
	t.Helper()
	parts := strings.Split(strings.TrimSuffix(at, ".json"), "/")
	gr, where := schema.ParseGroupResource(parts[1]), parts[2:]
	if strings.HasSuffix(where[0], "-preferredversion") {
		where = where[1:]
	}
	namespace, name := "", where[1]
	if where[0] == "namespaces" {
		namespace, name = where[1], where[2]
	}
	for _, object := range f.objects[gr] {
		if object.namespace != namespace || object.name != name {
			continue
		}
		for _, served := range f.resources {
			gv, err := schema.ParseGroupVersion(served.GroupVersion)
			if err != nil {
				t.Fatal(err)
			}
			if kind := f.kindOf(gv, gr.Resource); kind != "" && gv.Group == gr.Group {
				return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,%s`, kind, gv, object.raw[1:])
			}
		}
	}
	t.Errorf("the cluster has nothing for %s", at)
	return nil
}

func decoded(t testing.TB, data []byte) any {
	t.Helper()
	var value any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		t.Errorf("%v: %s", err, data)
	}
	return value
}

// tarball is what a backup's tarball holds, by path.
func (f *fixture) tarball(t testing.TB) map[string][]byte {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(f.read(t, format.TarballKey("b"))))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for entries := tar.NewReader(plain); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name] != nil {
			t.Errorf("the tarball has %s twice", header.Name)
		}
		if files[header.Name], err = io.ReadAll(entries); err != nil {
			t.Fatal(err)
		}
	}
}
