// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/hack/kinds"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/format"
	graph "github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// listed are the objects of a set as the API server gives them, by VERSION/KIND NAMESPACE/NAME,
// with the kind and version that items of a list may lack.
func listed(t *testing.T, set *kinds.Set) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, k := range set.Kinds {
		group := "/apis/" + k.Group
		if k.Group == "" {
			group = "/api"
		}
		answer := lab.Request(t, "GET", fmt.Sprintf("%s/%s/%s?labelSelector=%s", group, k.Version, k.Resource, kinds.Label+"="+set.Name), "application/json")
		var list struct{ Items []json.RawMessage }
		if err := json.Unmarshal(answer.Body, &list); err != nil || answer.Code != 200 {
			t.Fatalf("list %s: %d %v", k.Resource, answer.Code, err)
		}
		for _, raw := range list.Items {
			var object metav1.PartialObjectMetadata
			if err := json.Unmarshal(raw, &object); err != nil {
				t.Fatal(err)
			}
			if object.Kind == "" {
				raw = fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,%s`, k.GroupVersion(), k.Name, raw[1:])
			}
			all[fmt.Sprintf("%s/%s %s/%s", k.GroupVersion(), k.Name, object.Namespace, object.Name)] = raw
		}
	}
	return all
}

// checkConverted checks that the webhook has a part in what the API server gives: the objects of its
// kind are stored with other fields than they were written with, and are given with those.
func checkConverted(t *testing.T, set *kinds.Set, given map[string][]byte) {
	t.Helper()
	k, stored := set.Converted()
	var list struct {
		Items []struct {
			metav1.ObjectMeta `json:"metadata"`
			Spec              struct {
				Text  *string
				Lines []string
			}
		}
	}
	answer := lab.Request(t, "GET", stored, "application/json")
	if err := json.Unmarshal(answer.Body, &list); err != nil || answer.Code != 200 || len(list.Items) == 0 {
		t.Fatalf("list %s: %d %v: %d objects", stored, answer.Code, err, len(list.Items))
	}
	for _, item := range list.Items {
		key := fmt.Sprintf("%s/%s %s/%s", k.GroupVersion(), k.Name, item.Namespace, item.Name)
		var object struct{ Spec map[string]any }
		if err := json.Unmarshal(given[key], &object); err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		if text := object.Spec["text"]; item.Spec.Text != nil || len(item.Spec.Lines) == 0 || text != strings.Join(item.Spec.Lines, "\n") || object.Spec["lines"] != nil {
			t.Errorf("%s is stored with %+v and given with %+v", key, item.Spec, object.Spec)
		}
	}
	if set.Converter.Converted() == 0 {
		t.Error("the webhook was not asked")
	}
}

// TestEveryKind: of 40 kinds, every object is in the tarball, in the resource list and in the
// manifest exactly once, byte for byte as the API server gives it.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	set := kinds.New(labtest.Name("kinds"), lab.Namespace(t, "kinds"), lab.Namespace(t, "kinds"))
	config := rest.CopyConfig(lab.Config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if set.Converter, err = kinds.NewConverter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Delete(context.Background(), client); err != nil {
			t.Error(err)
		}
		set.Converter.Close()
	})
	count, err := set.Create(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Kinds) != 40 {
		t.Errorf("there are %d kinds", len(set.Kinds))
	}
	var want map[string][]byte
	labtest.Eventually(t, "the objects to stay as they are", func() error {
		before := want
		if want = listed(t, set); !maps.EqualFunc(before, want, bytes.Equal) {
			return errors.New("they change")
		}
		return nil
	})
	checkConverted(t, set, want)
	if len(want) != count {
		t.Fatalf("of %d objects the API server lists %d", count, len(want))
	}
	location, folder := lab.Location(t, "kinds")
	name := labtest.Name("every-kind")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{
		IncludedNamespaces: set.Namespaces, IncludeClusterResources: new(true), StorageLocation: location,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{kinds.Label: set.Name}},
	})
	lab.AwaitCompleted(t, name)

	// Other objects come along, such as namespaces and definitions, once each too.
	compare := func(where string, got map[string]int) {
		t.Helper()
		for key, times := range got {
			if times != 1 {
				t.Errorf("%s has %s %d times", where, key, times)
			}
		}
		for key := range want {
			if got[key] == 0 {
				t.Errorf("%s lacks %s", where, key)
			}
		}
	}
	tarball, err := os.Open(filepath.Join(folder, format.TarballKey(name)))
	if err != nil {
		t.Fatal(err)
	}
	defer tarball.Close()
	reader, err := archive.NewReader(tarball)
	if err != nil {
		t.Fatal(err)
	}
	// Each is there twice, by its version and without, as in Velero's.
	inTarball, byVersion, digests := map[string]int{}, map[string]int{}, map[string]string{}
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		var object metav1.PartialObjectMetadata
		if err := json.Unmarshal(content, &object); err != nil {
			t.Fatalf("%+v: %v", entry, err)
		}
		key := fmt.Sprintf("%s/%s %s/%s", object.APIVersion, object.Kind, object.Namespace, object.Name)
		digests[key] = format.NewContent(content).SHA256
		if entry.Versioned {
			byVersion[key]++
		} else {
			inTarball[key]++
		}
		if given, ours := want[key]; !bytes.Equal(content, given) && (ours || object.Labels[kinds.Label] == set.Name && object.Kind != "CustomResourceDefinition") {
			t.Errorf("%s is stored as\n%s\nand the API server gives\n%s", key, content, given)
		}
	}
	compare("the tarball", inTarball)
	compare("the tarball, by version,", byVersion)

	inManifest := map[string]int{}
	answer := contentOf(t, "", labtest.System, name, "manifest?format=ndjson")
	for line := range strings.Lines(string(answer.Body)) {
		item := &graph.Item{}
		if err := json.Unmarshal([]byte(line), item); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		key := item.GroupKind() + " " + item.Namespace + "/" + item.Name
		inManifest[key]++
		if item.SHA256 != digests[key] {
			t.Errorf("the manifest has another checksum of %s than the tarball", key)
		}
	}
	compare("the manifest", inManifest)

	inList := map[string]int{}
	file, err := os.Open(filepath.Join(folder, format.ResourceListKey(name)))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	list, err := format.ReadResourceList(file)
	if err != nil {
		t.Fatal(err)
	}
	for kind, names := range list {
		for _, item := range names {
			if !strings.Contains(item, "/") {
				item = "/" + item
			}
			inList[kind+" "+item]++
		}
	}
	compare("the resource list", inList)
}
