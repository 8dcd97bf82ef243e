// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// deprecatedEmpty is Kubernetes' label in policy/v1 for the empty selector of policy/v1beta1, which
// no pod has.
const deprecatedEmpty = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match"

// Reword keeps an object's meaning in a later version of its group, where missing fields may mean
// something else, or fields have other names. It reports whether anything changed.
func Reword(o *unstructured.Unstructured) (changed bool) {
	before := o.DeepCopy()
	reword(o)
	return !equality.Semantic.DeepEqual(before.Object, o.Object)
}

func reword(o *unstructured.Unstructured) {
	spec := nested(o.Object, "spec")
	switch version, kind := o.GetAPIVersion(), o.GetKind(); {
	case version == "policy/v1beta1" && kind == "PodDisruptionBudget":
		// An empty selector means no pod here, and all pods later.
		selector, ok := spec["selector"].(map[string]any)
		if expressions, _ := selector["matchExpressions"].([]any); ok && len(nested(selector, "matchLabels")) == 0 && len(expressions) == 0 {
			spec["selector"] = map[string]any{"matchExpressions": []any{map[string]any{"key": deprecatedEmpty, "operator": "Exists"}}}
		}
	case version == "admissionregistration.k8s.io/v1beta1":
		for _, webhook := range list(o.Object, "webhooks") {
			setDefaults(webhook, map[string]any{"failurePolicy": "Ignore", "matchPolicy": "Exact", "timeoutSeconds": int64(30), "sideEffects": "None", "admissionReviewVersions": []any{"v1beta1"}})
		}
	case version == "apps/v1beta1" && spec != nil:
		if labels := nested(spec, "template", "metadata", "labels"); labels != nil {
			setDefaults(spec, map[string]any{"selector": map[string]any{"matchLabels": runtime.DeepCopyJSON(labels)}})
		}
		if kind == "StatefulSet" {
			setDefaults(spec, map[string]any{"updateStrategy": map[string]any{"type": "OnDelete"}})
		}
	case o.GroupVersionKind().Group == "flowcontrol.apiserver.k8s.io" && kind == "PriorityLevelConfiguration":
		limited := nested(spec, "limited")
		rename(limited, "assuredConcurrencyShares", "nominalConcurrencyShares")
		// Before v1 zero means the default.
		if _, zero := o.GetAnnotations()[preservesZero]; !zero && limited["nominalConcurrencyShares"] == int64(0) {
			delete(limited, "nominalConcurrencyShares")
		}
		removeNames(o.Object, "annotations", []string{preservesZero})
	case version == "apiextensions.k8s.io/v1beta1" && kind == "CustomResourceDefinition":
		convertDefinition(o)
	case version == "autoscaling/v2beta1" && kind == "HorizontalPodAutoscaler":
		convertMetrics(list(spec, "metrics"))
	case version == "node.k8s.io/v1alpha1" && kind == "RuntimeClass":
		convertRuntimeClass(o.Object)
	case version == "resource.k8s.io/v1beta1" && kind == "ResourceClaim":
		convertRequests(list(spec, "devices", "requests"))
	case version == "resource.k8s.io/v1beta1" && kind == "ResourceClaimTemplate":
		convertRequests(list(spec, "spec", "devices", "requests"))
	case version == "networking.k8s.io/v1beta1" && kind == "Ingress" && spec != nil:
		convertIngress(spec)
	case version == "discovery.k8s.io/v1beta1" && kind == "EndpointSlice":
		convertEndpoints(list(o.Object, "endpoints"))
	}
}

// preservesZero is the annotation for zero shares before v1.
const preservesZero = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"

func setDefaults(object, defaults map[string]any) {
	for field, value := range defaults {
		if object[field] == nil {
			object[field] = value
		}
	}
}
