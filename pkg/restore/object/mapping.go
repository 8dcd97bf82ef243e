// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// mapNamespace moves the object to its namespace, and maps namespaces at the places of its schema.
// A warning lists others that seem to name an old one.
func (c *change) mapNamespace(resource schema.GroupResource) {
	if len(c.rules.namespaces) == 0 {
		return
	}
	o := c.object
	gk := o.GroupVersionKind().GroupKind()
	if gk.Group == "" && gk.Kind == "Namespace" {
		o.SetName(c.rules.Namespace(o.GetName()))
	}
	c.rules.mapNames(gk, resource, o.Object)
	from := o.GetNamespace()
	to := c.rules.Namespace(from)
	if to != "" {
		o.SetNamespace(to)
	}
	c.mapApplied(gk, resource, to)
	found := c.rules.guesses(o)
	if len(found.at) == 0 {
		return
	}
	more := ""
	if len(found.at) > maxMentions {
		found.at, more = found.at[:maxMentions], " and more"
	}
	names, at := strings.Join(slices.Sorted(maps.Keys(found.names)), ", "), strings.Join(found.at, ", ")
	if from != to {
		c.warn("it is restored into the namespace %s, and still names %s, at %s%s", to, names, at, more)
		return
	}
	c.warn("it still names %s, whose objects are restored into another namespace, at %s%s", names, at, more)
}

func (c *change) mapApplied(gk schema.GroupKind, resource schema.GroupResource, namespace string) {
	annotations := nested(c.object.Object, "metadata", "annotations")
	applied := text(annotations, corev1.LastAppliedConfigAnnotation)
	if applied == "" {
		return
	}
	var copied map[string]any
	if json.Unmarshal([]byte(applied), &copied) != nil || nested(copied, "metadata") == nil {
		return
	}
	c.rules.mapNames(gk, resource, copied)
	if namespace != "" {
		_ = unstructured.SetNestedField(copied, namespace, "metadata", "namespace")
	}
	if encoded, err := json.Marshal(copied); err == nil {
		annotations[corev1.LastAppliedConfigAnnotation] = string(encoded) + "\n"
	}
}
