// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// convertDefinition converts a definition from v1beta1 to v1, where each version has all fields.
// v1beta1 preserves unknown fields by default.
func convertDefinition(definition *unstructured.Unstructured) {
	spec := nested(definition.Object, "spec")
	if spec == nil {
		return
	}
	if _, several := spec["versions"].([]any); !several {
		spec["versions"] = []any{map[string]any{"name": text(spec, "version"), "served": true, "storage": true}}
	}
	for _, version := range list(spec, "versions") {
		for field, from := range map[string]string{"schema": "validation", "subresources": "subresources", "additionalPrinterColumns": "additionalPrinterColumns"} {
			if value := spec[from]; value != nil {
				setDefaults(version, map[string]any{field: runtime.DeepCopyJSONValue(value)})
			}
		}
		for _, column := range list(version, "additionalPrinterColumns") {
			rename(column, "JSONPath", "jsonPath")
		}
	}
	for _, field := range []string{"version", "validation", "subresources", "additionalPrinterColumns"} {
		delete(spec, field)
	}
	if conversion := nested(spec, "conversion"); conversion["webhookClientConfig"] != nil {
		conversion["webhook"] = map[string]any{"clientConfig": conversion["webhookClientConfig"], "conversionReviewVersions": []any{"v1beta1"}}
		if versions, ok := conversion["conversionReviewVersions"]; ok {
			conversion["webhook"].(map[string]any)["conversionReviewVersions"] = versions
		}
		delete(conversion, "webhookClientConfig")
		delete(conversion, "conversionReviewVersions")
	}
	setDefaults(spec, map[string]any{"preserveUnknownFields": true})
	preserveUnknown(definition.Object)
}

func convertIngress(spec map[string]any) {
	rename(spec, "backend", "defaultBackend")
	convertBackend(nested(spec, "defaultBackend"))
	for _, rule := range list(spec, "rules") {
		for _, path := range list(rule, "http", "paths") {
			setDefaults(path, map[string]any{"pathType": "ImplementationSpecific"})
			convertBackend(nested(path, "backend"))
		}
	}
}

func convertBackend(backend map[string]any) {
	name := text(backend, "serviceName")
	if name == "" {
		return
	}
	port := map[string]any{}
	switch value := backend["servicePort"].(type) {
	case string:
		port["name"] = value
	default:
		port["number"] = value
	}
	backend["service"] = map[string]any{"name": name, "port": port}
	delete(backend, "serviceName")
	delete(backend, "servicePort")
}

// convertEndpoints converts v1beta1's endpoints to v1, where node and zone are fields.
func convertEndpoints(endpoints []map[string]any) {
	for _, endpoint := range endpoints {
		topology := nested(endpoint, "topology")
		for label, field := range map[string]string{"kubernetes.io/hostname": "nodeName", "topology.kubernetes.io/zone": "zone"} {
			if value := topology[label]; value != nil {
				setDefaults(endpoint, map[string]any{field: value})
				delete(topology, label)
			}
		}
		delete(endpoint, "topology")
		if len(topology) > 0 {
			endpoint["deprecatedTopology"] = topology
		}
	}
}

func rename(object map[string]any, from, to string) {
	value, ok := object[from]
	if _, taken := object[to]; !ok || taken {
		return
	}
	object[to] = value
	delete(object, from)
}

// convertMetrics converts v2beta1's metrics to v2, where a metric and its target are objects.
func convertMetrics(metrics []map[string]any) {
	for _, m := range metrics {
		for _, source := range []string{"resource", "containerResource", "pods", "object", "external"} {
			fields := nested(m, source)
			if fields == nil {
				continue
			}
			rename(fields, "target", "describedObject")
			if name := text(fields, "metricName"); name != "" {
				metric := map[string]any{"name": name}
				for _, selector := range []string{"selector", "metricSelector"} {
					if value := fields[selector]; value != nil {
						metric["selector"] = value
					}
					delete(fields, selector)
				}
				fields["metric"] = metric
				delete(fields, "metricName")
			}
			target := map[string]any{}
			for _, former := range []struct{ field, kind, value string }{
				{"targetValue", "Value", "value"}, {"averageValue", "AverageValue", "averageValue"},
				{"targetAverageValue", "AverageValue", "averageValue"}, {"targetAverageUtilization", "Utilization", "averageUtilization"},
			} {
				value := fields[former.field]
				delete(fields, former.field)
				// v2beta1 always has a value, which is 0 beside an average.
				if value == nil || former.field == "targetValue" && value == "0" && fields["averageValue"] != nil {
					continue
				}
				target["type"], target[former.value] = former.kind, value
			}
			fields["target"] = target
		}
	}
}

// convertRuntimeClass converts a class from v1alpha1 to v1, which has no spec.
func convertRuntimeClass(class map[string]any) {
	spec := nested(class, "spec")
	for field, value := range spec {
		if field == "runtimeHandler" {
			field = "handler"
		}
		setDefaults(class, map[string]any{field: value})
	}
	delete(class, "spec")
}

// convertRequests converts v1beta1's device requests to v1, where an exact request is an object.
func convertRequests(requests []map[string]any) {
	for _, request := range requests {
		exactly := map[string]any{}
		for field, value := range request {
			if field != "name" && field != "firstAvailable" && field != "exactly" {
				exactly[field] = value
				delete(request, field)
			}
		}
		if len(exactly) > 0 {
			setDefaults(request, map[string]any{"exactly": exactly})
		}
	}
}
