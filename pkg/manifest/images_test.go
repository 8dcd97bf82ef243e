// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestImages: an item has the images of all containers of its pods and of their image volumes.
func TestImages(t *testing.T) {
	spec := `{"initContainers":[{"name":"i","image":"init:1"}],"containers":[{"name":"a","image":"nginx:1.27"},{"name":"b","image":"nginx:1.27"}],
		"ephemeralContainers":[{"name":"e","image":"debug"}],"volumes":[{"name":"v","image":{"reference":"data:2"}}]}`
	want := []string{"data:2", "debug", "init:1", "nginx:1.27"}
	template := `{"spec":{"template":{"spec":` + spec + `}}}`
	for gk, object := range map[schema.GroupKind]string{
		{Kind: "Pod"}:                               `{"spec":` + spec + `}`,
		{Kind: "PodTemplate"}:                       `{"template":{"spec":` + spec + `}}`,
		{Kind: "ReplicationController"}:             template,
		{Group: "apps", Kind: "Deployment"}:         template,
		{Group: "apps", Kind: "ReplicaSet"}:         template,
		{Group: "apps", Kind: "DaemonSet"}:          template,
		{Group: "apps", Kind: "StatefulSet"}:        template,
		{Group: "batch", Kind: "Job"}:               template,
		{Group: "batch", Kind: "CronJob"}:           `{"spec":{"jobTemplate":` + template + `}}`,
		{Kind: "ConfigMap"}:                         `{"data":{"image":"nginx"}}`,
		{Group: "example.com", Kind: "Pod"}:         `{"spec":` + spec + `}`,
		{Kind: "PersistentVolumeClaim"}:             `{"spec":{"volumeName":"v"}}`,
		{Group: "batch", Kind: "Unparsable"}:        `{`,
		{Group: "apps", Kind: "ControllerRevision"}: `{}`,
	} {
		_, images := NeedsOf(gk, "shop", []byte(object))
		if !HasImages(gk) && len(images) > 0 || HasImages(gk) && !slices.Equal(images.List(), want) {
			t.Errorf("the images of a %s are %q", gk, images)
		}
	}
}

// TestMatchesImage: a word means an image with any registry before it, and any tag and digest behind it.
func TestMatchesImage(t *testing.T) {
	for image, words := range map[string]struct{ yes, no []string }{
		"nginx:1.27": {yes: []string{"nginx:1.27", "nginx"}, no: []string{"", "ngin", "nginx:1.2", "library/nginx", "1.27", "nginx:"}},
		"docker.io/library/nginx:1.27@sha256:ab": {
			yes: []string{"nginx", "nginx:1.27", "library/nginx:1.27", "docker.io/library/nginx", "nginx:1.27@sha256:ab"},
			no:  []string{"docker.io/library", "library", "docker.io", "sha256:ab", "nginx:1"},
		},
		"localhost:5000/web": {yes: []string{"web", "localhost:5000/web"}, no: []string{"localhost", "localhost:5000", "5000/web"}},
	} {
		for _, word := range words.yes {
			if !MatchesImage(image, word) {
				t.Errorf("%q does not mean %s", word, image)
			}
		}
		for _, word := range words.no {
			if MatchesImage(image, word) {
				t.Errorf("%q means %s", word, image)
			}
		}
	}
}

// TestKindsWithImages: all items with images are read in one read over the few kinds between them.
func TestKindsWithImages(t *testing.T) {
	var w Writer
	for _, item := range []*Item{
		{APIGroup: "apps", APIVersion: "v1", KindName: "ControllerRevision", Name: "r"}, {APIGroup: "apps", APIVersion: "v1", KindName: "Deployment", Name: "d", Images: "a"},
		{APIGroup: "example.com", APIVersion: "v1", KindName: "Pod", Name: "no"}, {APIVersion: "v1", KindName: "ConfigMap", Name: "c"},
		{APIVersion: "v1", KindName: "Pod", Name: "p", Images: "b\nc"}, {APIVersion: "v1", KindName: "Secret", Name: "s"},
	} {
		if err := w.Add(item); err != nil {
			t.Fatal(err)
		}
	}
	var document bytes.Buffer
	if _, err := w.WriteTo(&document); err != nil {
		t.Fatal(err)
	}
	reads := 0
	index, err := ReadIndex(t.Context(), func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		reads++
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(document.Bytes()), offset, length)), nil
	}, int64(document.Len()))
	if err != nil {
		t.Fatal(err)
	}
	reads = 0
	var names, images []string
	for item, err := range index.Read(t.Context(), index.KindsWithImages()...) {
		if err != nil {
			t.Fatal(err)
		}
		names, images = append(names, item.Name), append(images, item.Images.List()...)
	}
	if !slices.Equal(names, []string{"d", "p"}) || !slices.Equal(images, []string{"a", "b", "c"}) || reads != 1 {
		t.Errorf("%d reads gave %v with %v", reads, names, images)
	}
}
