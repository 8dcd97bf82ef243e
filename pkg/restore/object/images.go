// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var podSpecs = map[string][]string{
	"pods":                     {"spec"},
	"podtemplates":             {"template", "spec"},
	"replicationcontrollers":   {"spec", "template", "spec"},
	"deployments.apps":         {"spec", "template", "spec"},
	"replicasets.apps":         {"spec", "template", "spec"},
	"statefulsets.apps":        {"spec", "template", "spec"},
	"daemonsets.apps":          {"spec", "template", "spec"},
	"controllerrevisions.apps": {"data", "spec", "template", "spec"},
	"jobs.batch":               {"spec", "template", "spec"},
	"cronjobs.batch":           {"spec", "jobTemplate", "spec", "template", "spec"},
}

func (c *change) mapImages(resource schema.GroupResource) {
	path, ok := podSpecs[resource.String()]
	if !ok || len(c.rules.images) == 0 {
		return
	}
	for _, field := range []string{"initContainers", "containers"} {
		for _, container := range list(c.object.Object, slices.Concat(path, []string{field})...) {
			c.mapImage(container, "image")
		}
	}
	for _, volume := range list(c.object.Object, slices.Concat(path, []string{"volumes"})...) {
		c.mapImage(nested(volume, "image"), "reference")
	}
}

func (c *change) mapImage(object map[string]any, field string) {
	if image := text(object, field); image != "" {
		object[field] = c.rules.Image(image)
	}
}

// Image maps an image by its longest matching prefix, which ends at the end of a part.
func (r *Rules) Image(image string) string {
	longest := ""
	for from := range r.images {
		rest, begins := strings.CutPrefix(image, from)
		if begins && (rest == "" || strings.ContainsAny(rest[:1], "/:@")) && len(from) > len(longest) {
			longest = from
		}
	}
	if longest == "" {
		return image
	}
	return r.images[longest] + image[len(longest):]
}
