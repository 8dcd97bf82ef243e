// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const preserves = "x-kubernetes-preserve-unknown-fields"

// preserveUnknown converts v1beta1's spec.preserveUnknownFields: v1 states it in each part of a
// schema, and needs a schema.
func preserveUnknown(definition map[string]any) {
	if set, _, _ := unstructured.NestedBool(definition, "spec", "preserveUnknownFields"); !set {
		return
	}
	unstructured.RemoveNestedField(definition, "spec", "preserveUnknownFields")
	for _, version := range list(definition, "spec", "versions") {
		schema := nested(version, "schema", "openAPIV3Schema")
		if schema == nil {
			version["schema"] = anything()
			continue
		}
		keepUnknown(schema, true)
		schema["type"] = "object"
		schema[preserves] = true
	}
}

func anything() map[string]any {
	return map[string]any{"openAPIV3Schema": map[string]any{"type": "object", preserves: true}}
}

// keepUnknown lets each part of a schema with named fields keep others, and adds types that v1beta1
// did not need. An object's metadata has no schema.
func keepUnknown(schema map[string]any, object bool) {
	properties, named := schema["properties"].(map[string]any)
	values, isMap := schema["additionalProperties"].(map[string]any)
	items, isList := schema["items"].(map[string]any)
	embedded, _ := schema["x-kubernetes-embedded-resource"].(bool)
	for name, below := range properties {
		if below, ok := below.(map[string]any); ok && !(name == "metadata" && (object || embedded)) {
			keepUnknown(below, false)
		}
	}
	if isMap {
		keepUnknown(values, false)
	}
	if isList {
		keepUnknown(items, false)
	}
	if either, _ := schema["x-kubernetes-int-or-string"].(bool); text(schema, "type") == "" && !either {
		switch {
		case named || isMap:
			schema["type"] = "object"
		case isList:
			schema["type"] = "array"
		default:
			schema[preserves] = true
		}
	}
	if text(schema, "type") == "object" && !isMap {
		schema[preserves] = true
	}
}

// Loosen makes a definition accept any object, since v1 refuses v1beta1's schemas that are not
// structural. It reports whether anything changed.
func Loosen(definition *unstructured.Unstructured) (changed bool) {
	for _, version := range list(definition.Object, "spec", "versions") {
		schema := nested(version, "schema", "openAPIV3Schema")
		_, strict := schema["properties"]
		changed = changed || strict
		version["schema"] = anything()
	}
	return changed
}
