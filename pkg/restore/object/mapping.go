// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// mapNamespace moves the object to its namespace, and has what it says of namespaces, as
// far as its kind tells where, speak of the new ones. What seems to name the old one
// elsewhere is told in a warning.
func (c *change) mapNamespace() {
	if len(c.rules.namespaces) == 0 {
		return
	}
	o := c.object
	gk := o.GroupVersionKind().GroupKind()
	switch {
	case gk.Group == "" && gk.Kind == "Namespace":
		o.SetName(c.rules.Namespace(o.GetName()))
	case gk.Group == "rbac.authorization.k8s.io" && (gk.Kind == "RoleBinding" || gk.Kind == "ClusterRoleBinding"):
		for _, subject := range list(o.Object, "subjects") {
			c.translate(subject)
		}
	case gk.Group == "admissionregistration.k8s.io":
		for _, webhook := range list(o.Object, "webhooks") {
			c.translate(nested(webhook, "clientConfig", "service"))
		}
	case gk.Group == "apiregistration.k8s.io":
		c.translate(nested(o.Object, "spec", "service"))
	case gk.Group == "apiextensions.k8s.io":
		c.translate(nested(o.Object, "spec", "conversion", "webhook", "clientConfig", "service"))
	}
	from := o.GetNamespace()
	to := c.rules.Namespace(from)
	if from == to {
		return
	}
	o.SetNamespace(to)
	c.mapApplied(to)
	var found []string
	for _, field := range slices.Sorted(maps.Keys(o.Object)) {
		if field != "metadata" && field != "apiVersion" && field != "kind" {
			found = mentions(found, field, o.Object[field], from)
		}
	}
	if len(found) > 0 {
		more := ""
		if len(found) > maxMentions {
			found, more = found[:maxMentions], " and more"
		}
		c.warn("it is restored into the namespace %s, and still names %s, at %s%s", to, from, strings.Join(found, ", "), more)
	}
}

// translate maps the field namespace.
func (c *change) translate(object map[string]any) {
	if namespace := text(object, "namespace"); namespace != "" {
		object["namespace"] = c.rules.Namespace(namespace)
	}
}

// mapApplied has kubectl's copy of the configuration be one of the new namespace.
func (c *change) mapApplied(namespace string) {
	annotations := nested(c.object.Object, "metadata", "annotations")
	applied := text(annotations, corev1.LastAppliedConfigAnnotation)
	if applied == "" {
		return
	}
	var copied map[string]any
	if json.Unmarshal([]byte(applied), &copied) != nil || nested(copied, "metadata") == nil {
		return
	}
	_ = unstructured.SetNestedField(copied, namespace, "metadata", "namespace")
	if encoded, err := json.Marshal(copied); err == nil {
		annotations[corev1.LastAppliedConfigAnnotation] = string(encoded) + "\n"
	}
}

const maxMentions = 3

// mentions finds where a value seems to name a namespace: a field that says so, or the name
// of a Service in it.
func mentions(found []string, at string, value any, namespace string) []string {
	if len(found) > maxMentions {
		return found
	}
	switch value := value.(type) {
	case map[string]any:
		for _, field := range slices.Sorted(maps.Keys(value)) {
			if named, ok := value[field].(string); ok && named == namespace && strings.HasSuffix(strings.ToLower(field), "namespace") {
				found = append(found, at+"."+field)
				continue
			}
			found = mentions(found, at+"."+field, value[field], namespace)
		}
	case []any:
		for i, element := range value {
			if named, ok := element.(string); ok && named == namespace && strings.HasSuffix(strings.ToLower(at), "namespaces") {
				found = append(found, fmt.Sprintf("%s[%d]", at, i))
				continue
			}
			found = mentions(found, fmt.Sprintf("%s[%d]", at, i), element, namespace)
		}
	case string:
		if strings.Contains(value, "."+namespace+".svc") {
			found = append(found, at)
		}
	}
	return found
}
