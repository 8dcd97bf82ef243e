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

// certificate is the field with an API server's CA, which belongs to the issuer.
const certificate = "caBundle"

// givenFields are fields, by kind.group, that Kubernetes sets at the creation, which is no change.
// [] is any element of a list.
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

var injectors = []string{
	"cert-manager.io/inject-ca-from", "cert-manager.io/inject-ca-from-secret", "cert-manager.io/inject-apiserver-ca",
	"service.beta.openshift.io/inject-cabundle",
}

func isInjected(live *unstructured.Unstructured) bool {
	annotations := live.GetAnnotations()
	return slices.ContainsFunc(injectors, func(name string) bool { return annotations[name] != "" })
}

var element = regexp.MustCompile(`\[[^\]]*\]`)

type part uint8

const (
	none part = iota
	some
	all
)

func given(live *unstructured.Unstructured) func(path string, value any) part {
	gk := live.GroupVersionKind().GroupKind()
	fields := givenFields[gk.String()]
	switch {
	case gk == schema.GroupKind{Kind: "Secret"} && text(live.Object, "type") == string(corev1.SecretTypeServiceAccountToken):
		fields = []string{"data"}
	case gk == schema.GroupKind{Kind: "Pod"}:
		return givenToPod(live, fields)
	}
	return func(path string, _ any) part { return partGiven(fields, path) }
}

func partGiven(fields []string, path string) (given part) {
	if len(fields) == 0 {
		return none
	}
	within := func(path, field string) bool {
		rest, ok := strings.CutPrefix(path, field)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	for _, p := range []string{path, element.ReplaceAllLiteralString(path, "[]")} {
		for _, field := range fields {
			switch {
			case within(p, field):
				return all
			case within(field, p):
				given = some
			}
		}
	}
	return given
}

// givenToPod includes admission's additions to a pod: its token, and containers of a service mesh
// or a restore.
func givenToPod(live *unstructured.Unstructured, fields []string) func(path string, value any) part {
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
	return func(path string, value any) part {
		given := partGiven(fields, path)
		fields, ok := value.(map[string]any)
		if given == all || !ok || !strings.HasSuffix(path, "]") || !strings.HasPrefix(path, "spec.") {
			return given
		}
		at := element.ReplaceAllLiteralString(path, "")
		at = at[strings.LastIndex(at, ".")+1:]
		if at == "volumeMounts" {
			at = "volumes"
		}
		if put[at].Has(text(fields, "name")) {
			return all
		}
		return given
	}
}
