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

// An object that the cluster makes itself is left to it. People copy such objects, with their
// labels, and give theirs such names. So an object counts as the cluster's own only with a proof
// beyond its name: an owner, the manager of its fields, or that this cluster has it.

// Why objects are left to the cluster.
const (
	ByServer        = "the API server makes it"
	ForService      = "Kubernetes makes it for the Service"
	inEachNamespace = "Kubernetes makes it in each namespace"
)

const (
	rootCA    = "kube-root-ca.crt"
	serviceCA = "openshift-service-ca.crt"

	// bootstrapping labels roles that the API server makes, and autoupdate keeps it from them.
	bootstrapping = "kubernetes.io/bootstrapping"
	autoupdate    = "rbac.authorization.kubernetes.io/autoupdate"
	// automanaged labels an APIService that the API server may delete.
	automanaged = "kube-aggregator.kubernetes.io/automanaged"
)

// isComponent reports whether a manager of fields is a component of Kubernetes.
func isComponent(manager string) bool {
	return slices.Contains(components, manager) || strings.HasSuffix(manager, "cloud-controller-manager")
}

// managersIn tells whether a component of Kubernetes, and whether somebody else, manages an object, or
// one of its fields if the field is not empty. Neither is known of an object without managers.
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

// isOfController reports whether a controller of Kubernetes has made the Endpoints or the
// EndpointSlice of a Service.
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

// IsBootstrapped reports whether the API server has made a role or a binding, keeps it up to date,
// and nobody else has changed it.
func IsBootstrapped(o *unstructured.Unstructured) bool {
	_, other := managersIn(o, "")
	return o.GetLabels()[bootstrapping] == "rbac-defaults" && o.GetAnnotations()[autoupdate] != "false" && !other
}

// IsMadeForAccount reports whether OpenShift has made a Secret for an account.
func IsMadeForAccount(secret *unstructured.Unstructured) bool {
	annotations := secret.GetAnnotations()
	return annotations["kubernetes.io/created-by"] == "openshift.io/create-dockercfg-secrets" ||
		annotations["openshift.io/internal-registry-auth-token.service-account"] != ""
}

// isRemade reports whether an account names a Secret that the cluster makes anew for it.
func (c *change) isRemade(account, secret string) bool {
	return account != "" && (strings.HasPrefix(secret, account+"-token-") || strings.HasPrefix(secret, account+"-dockercfg-")) &&
		c.rules.facts.Remade != nil && c.rules.facts.Remade(c.object.GetNamespace(), secret)
}

// TemplateOf returns the digest of the pod template of a Deployment or of one of its ReplicaSets.
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

// TemplateToMake returns the digest of the pod template that the controller of a Deployment makes a
// ReplicaSet of. While a Deployment is paused it makes none.
func TemplateToMake(deployment *unstructured.Unstructured) string {
	if paused, _, _ := unstructured.NestedBool(deployment.Object, "spec", "paused"); paused {
		return "none, while it is paused"
	}
	return TemplateOf(deployment)
}

// makesReplicaSet reports whether the controller of its Deployment makes a ReplicaSet again: the
// one of the Deployment's own template. Its name is a hash, which another version of Kubernetes
// computes otherwise, so a restored one would be a second one there. All others, with replicas while
// they are just replaced, are what the Deployment goes back to. If the template is not known, one with
// replicas counts as the Deployment's own.
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

// tokenPath is where the admission mounts the token of a pod's account.
const tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// isToken reports whether the admission has put a volume with the token of its account into a pod,
// and will do so again.
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
