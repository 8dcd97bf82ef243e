// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// deprecatedEmpty is the label by which Kubernetes says in policy/v1 what an empty selector of
// policy/v1beta1 means: no pod has it.
const deprecatedEmpty = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match"

// Reword has an object mean in a later version of its group what it means in its own, where the
// fields are the same: those that are left out, or empty, may mean something else there.
func Reword(o *unstructured.Unstructured) {
	spec := nested(o.Object, "spec")
	switch version := o.GetAPIVersion(); {
	case version == "policy/v1beta1" && o.GetKind() == "PodDisruptionBudget":
		// There an empty selector means no pod, and later all of the namespace.
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
		if o.GetKind() == "StatefulSet" {
			setDefaults(spec, map[string]any{"updateStrategy": map[string]any{"type": "OnDelete"}})
		}
	}
}

func setDefaults(object, defaults map[string]any) {
	for field, value := range defaults {
		if object[field] == nil {
			object[field] = value
		}
	}
}
