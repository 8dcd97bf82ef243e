// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// certificate is the field by which API servers know what they call. Its value belongs to
// whoever issues the certificates.
const certificate = "caBundle"

// givenFields are fields that Kubernetes allots, or fills in when an object is created and not
// again later, by kind.group; with [] for any element of a list. An object that has them
// besides has not been changed by anybody.
var givenFields = map[string][]string{
	"Namespace": {"spec"},
	"Pod": {"spec.nodeName", "spec.priority", "spec.preemptionPolicy", "spec.priorityClassName", "spec.tolerations", "spec.overhead", "spec.serviceAccount",
		"spec.serviceAccountName", "spec.imagePullSecrets", "spec.ephemeralContainers", "spec.containers[].resources", "spec.initContainers[].resources"},
	"Service":               {"spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies", "spec.ipFamilyPolicy", "spec.healthCheckNodePort", "spec.ports[].nodePort", "spec.loadBalancerClass"},
	"PersistentVolumeClaim": {"spec.volumeName", "spec.storageClassName", "spec.volumeMode", "spec.dataSource", "spec.dataSourceRef", "spec.selector"},
	"PersistentVolume":      {"spec.claimRef", "spec.nodeAffinity"},
	"ServiceAccount":        {"secrets", "imagePullSecrets"},
	"StatefulSet.apps":      {"spec.volumeClaimTemplates[].status"},
	"Job.batch": {"spec.selector", "spec.manualSelector", "spec.template.metadata.labels.controller-uid", "spec.template.metadata.labels.job-name",
		"spec.template.metadata.labels[batch.kubernetes.io/controller-uid]", "spec.template.metadata.labels[batch.kubernetes.io/job-name]"},
	"Ingress.networking.k8s.io":                                   {"spec.ingressClassName"},
	"APIService.apiregistration.k8s.io":                           {"spec." + certificate},
	"CustomResourceDefinition.apiextensions.k8s.io":               {"spec.conversion.webhook.clientConfig." + certificate},
	"MutatingWebhookConfiguration.admissionregistration.k8s.io":   {"webhooks[].clientConfig." + certificate},
	"ValidatingWebhookConfiguration.admissionregistration.k8s.io": {"webhooks[].clientConfig." + certificate},
}

// injectors are annotations that ask for the certificates of an object.
var injectors = []string{
	"cert-manager.io/inject-ca-from", "cert-manager.io/inject-ca-from-secret", "cert-manager.io/inject-apiserver-ca",
	"service.beta.openshift.io/inject-cabundle",
}

// isInjected reports whether something writes the certificates of an object anew.
func isInjected(live *unstructured.Unstructured) bool {
	annotations := live.GetAnnotations()
	return slices.ContainsFunc(injectors, func(name string) bool { return annotations[name] != "" })
}

var element = regexp.MustCompile(`\[[^\]]*\]`)

// given tells the fields of a live object that are the cluster's, by their paths and values.
func given(live *unstructured.Unstructured) func(path string, value any) bool {
	gk := live.GroupVersionKind().GroupKind()
	fields := givenFields[gk.String()]
	switch {
	case gk == schema.GroupKind{Kind: "Secret"} && text(live.Object, "type") == string(corev1.SecretTypeServiceAccountToken):
		fields = []string{"data"}
	case gk == schema.GroupKind{Kind: "Pod"}:
		return givenToPod(live, fields)
	}
	return func(path string, _ any) bool { return isGiven(fields, path) }
}

func isGiven(fields []string, path string) bool {
	if len(fields) == 0 {
		return false
	}
	anyElement := element.ReplaceAllLiteralString(path, "[]")
	return slices.ContainsFunc(fields, func(field string) bool {
		for _, p := range []string{path, anyElement} {
			if rest, ok := strings.CutPrefix(p, field); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				return true
			}
		}
		return false
	})
}

// givenToPod counts what admission has put into a pod: its token, and what a service mesh or a
// restore adds.
func givenToPod(live *unstructured.Unstructured, fields []string) func(path string, value any) bool {
	bare := &change{rules: &Rules{}, object: live.DeepCopy()}
	bare.pod()
	names := func(o *unstructured.Unstructured, field string) sets.Set[string] {
		found := sets.New[string]()
		for _, element := range list(o.Object, "spec", field) {
			found.Insert(text(element, "name"))
		}
		return found
	}
	put := map[string]sets.Set[string]{}
	for _, field := range []string{"volumes", "containers", "initContainers"} {
		put[field] = names(live, field).Difference(names(bare.object, field))
	}
	return func(path string, value any) bool {
		if isGiven(fields, path) {
			return true
		}
		fields, ok := value.(map[string]any)
		if !ok || !strings.HasSuffix(path, "]") || !strings.HasPrefix(path, "spec.") {
			return false
		}
		at := element.ReplaceAllLiteralString(path, "")
		at = at[strings.LastIndex(at, ".")+1:]
		if at == "volumeMounts" {
			at = "volumes"
		}
		return put[at].Has(text(fields, "name"))
	}
}
