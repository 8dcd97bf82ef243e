// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var withImages = map[schema.GroupKind]bool{
	{Kind: "Pod"}: true, {Kind: "PodTemplate"}: true, {Kind: "ReplicationController"}: true,
	{Group: "apps", Kind: "Deployment"}: true, {Group: "apps", Kind: "ReplicaSet"}: true, {Group: "apps", Kind: "DaemonSet"}: true,
	{Group: "apps", Kind: "StatefulSet"}: true, {Group: "batch", Kind: "Job"}: true, {Group: "batch", Kind: "CronJob"}: true,
}

// Images are names of images: one text, to save a restore's memory, but a list in JSON.
type Images string

// ImagesOf returns the Images of these names.
func ImagesOf(names []string) Images { return Images(strings.Join(names, "\n")) }

// List returns the names.
func (i Images) List() []string {
	if i == "" {
		return nil
	}
	return strings.Split(string(i), "\n")
}

// MarshalJSON implements json.Marshaler.
func (i Images) MarshalJSON() ([]byte, error) { return json.Marshal(i.List()) }

// UnmarshalJSON implements json.Unmarshaler.
func (i *Images) UnmarshalJSON(encoded []byte) error {
	var names []string
	if err := json.Unmarshal(encoded, &names); err != nil {
		return err
	}
	*i = ImagesOf(names)
	return nil
}

// HasImages reports whether objects of a kind have containers. Such an item without images is
// shortened, or of an older manifest.
func HasImages(gk schema.GroupKind) bool { return withImages[gk] }

// KindsWithImages returns an index's GroupKinds with containers, in order.
func (x *Index) KindsWithImages() (kinds []string) {
	for _, kind := range x.Kinds() {
		parts := strings.Split(kind, "/")
		gk := schema.GroupKind{Kind: parts[len(parts)-1]}
		if len(parts) == 3 {
			gk.Group = parts[0]
		}
		if HasImages(gk) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// MatchesImage reports whether a word means an image: as written, or without digest, tag and digest, or
// registry and folders.
func MatchesImage(image, word string) bool {
	for rest, more := image, word != ""; more; {
		end, matches := strings.CutPrefix(rest, word)
		if matches && (end == "" || (end[0] == ':' || end[0] == '@') && !strings.Contains(end, "/")) {
			return true
		}
		_, rest, more = strings.Cut(rest, "/")
	}
	return false
}
