// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Objects that the cluster makes are left to it. Users copy such objects, with labels and names, so
// it needs a proof: an owner, a field manager, or that this cluster has it.

const (
	ByServer        = "the API server makes it"
	ForService      = "Kubernetes makes it for the Service"
	inEachNamespace = "Kubernetes makes it in each namespace"
)

const (
	rootCA    = "kube-root-ca.crt"
	serviceCA = "openshift-service-ca.crt"

	// bootstrapping labels the API server's roles; autoupdate=false keeps it from changing them.
	bootstrapping = "kubernetes.io/bootstrapping"
	autoupdate    = "rbac.authorization.kubernetes.io/autoupdate"
	// automanaged labels an APIService that the API server may delete.
	automanaged = "kube-aggregator.kubernetes.io/automanaged"
)

func isComponent(manager string) bool {
	return slices.Contains(components, manager) || strings.HasSuffix(manager, "cloud-controller-manager")
}

// managersIn reports whether a component of Kubernetes, and whether another, manages an object, or
// one of its fields.
func managersIn(o *unstructured.Unstructured, field string) (component, other bool) {
	for _, entry := range o.GetManagedFields() {
		if field != "" {
			set := &fieldpath.Set{}
			if entry.FieldsV1 == nil || set.FromJSON(entry.FieldsV1.GetRawReader()) != nil || !holdsField(set, field) {
				continue
			}
		}
		if isComponent(entry.Manager) {
			component = true
		} else {
			other = true
		}
	}
	return component, other
}

func holdsField(set *fieldpath.Set, field string) bool {
	element := fieldpath.PathElement{FieldName: &field}
	_, below := set.Children.Get(element)
	return below || set.Members.Has(element)
}

// isOfController reports whether Kubernetes made the Endpoints or EndpointSlice.
func isOfController(o *unstructured.Unstructured) bool {
	if o.GetKind() == "EndpointSlice" {
		by := o.GetLabels()["endpointslice.kubernetes.io/managed-by"]
		return (by == "endpointslice-controller.k8s.io" || by == "endpointslicemirroring-controller.k8s.io") && metav1.GetControllerOf(o) != nil
	}
	if len(o.GetManagedFields()) == 0 {
		return o.GetLabels()["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" || o.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime] != ""
	}
	component, _ := managersIn(o, "")
	_, other := managersIn(o, "subsets")
	return component && !other
}

// IsBootstrapped reports whether the API server maintains a role or a binding, unchanged by others.
func IsBootstrapped(o *unstructured.Unstructured) bool {
	_, other := managersIn(o, "")
	return o.GetLabels()[bootstrapping] == "rbac-defaults" && o.GetAnnotations()[autoupdate] != "false" && !other
}

// IsMadeForAccount reports whether OpenShift made a Secret for an account.
func IsMadeForAccount(secret *unstructured.Unstructured) bool {
	annotations := secret.GetAnnotations()
	return annotations["kubernetes.io/created-by"] == "openshift.io/create-dockercfg-secrets" ||
		annotations["openshift.io/internal-registry-auth-token.service-account"] != ""
}

func (c *change) isRemade(account, secret string) bool {
	return account != "" && (strings.HasPrefix(secret, account+"-token-") || strings.HasPrefix(secret, account+"-dockercfg-")) &&
		c.rules.facts.Remade != nil && c.rules.facts.Remade(c.object.GetNamespace(), secret)
}

// TemplateOf returns the digest of a Deployment's or its ReplicaSet's pod template.
func TemplateOf(o *unstructured.Unstructured) string {
	template := nested(o.Object, "spec", "template")
	if template == nil {
		return ""
	}
	template = runtime.DeepCopyJSON(template)
	removeNames(template, "labels", []string{appsv1.DefaultDeploymentUniqueLabelKey})
	encoded, err := json.Marshal(template)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(encoded)
	return string(sum[:])
}

// TemplateToMake returns the digest of the template from which a Deployment's controller makes a
// ReplicaSet. A paused Deployment makes none.
func TemplateToMake(deployment *unstructured.Unstructured) string {
	if paused, _, _ := unstructured.NestedBool(deployment.Object, "spec", "paused"); paused {
		return "none, while it is paused"
	}
	return TemplateOf(deployment)
}

// makesReplicaSet reports whether its Deployment's controller makes the ReplicaSet again: the one
// of the Deployment's template. Its name is a hash that differs between versions of Kubernetes, so
// a restored one would be a second. Others are kept for rollbacks. If the template is unknown, one
// with replicas counts.
func (r *Rules) makesReplicaSet(replicaSet *unstructured.Unstructured) bool {
	owner, current := metav1.GetControllerOf(replicaSet), ""
	if owner != nil && r.facts.Template != nil {
		current = r.facts.Template(owner.UID)
	}
	if current == "" {
		replicas, _, _ := unstructured.NestedInt64(replicaSet.Object, "spec", "replicas")
		return replicas > 0
	}
	return current == TemplateOf(replicaSet)
}

// tokenPath is where admission mounts an account's token.
const tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// isToken reports whether admission added the token volume to a pod, and will again.
func isToken(spec, volume map[string]any) bool {
	if automount, found, _ := unstructured.NestedBool(spec, "automountServiceAccountToken"); found && !automount {
		return false
	}
	name, account := text(volume, "name"), text(spec, "serviceAccountName")
	projected := strings.HasPrefix(name, "kube-api-access-") && volume["projected"] != nil
	legacy := account != "" && strings.HasPrefix(name, account+"-token-") && text(volume, "secret", "secretName") == name
	if !projected && !legacy {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(list(spec, "initContainers"), list(spec, "containers")), func(container map[string]any) bool {
		return slices.ContainsFunc(list(container, "volumeMounts"), func(mount map[string]any) bool {
			return text(mount, "name") == name && text(mount, "mountPath") != tokenPath
		})
	})
}
