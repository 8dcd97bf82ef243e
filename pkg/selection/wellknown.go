// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// WellKnown has Kubernetes' own resources, for callers without a cluster.
var WellKnown = func() Called {
	called := Called{}
	for line := range strings.Lines(`configmaps ConfigMap cm
endpoints Endpoints ep
events Event ev
limitranges LimitRange limits
namespaces Namespace ns
nodes Node no
persistentvolumeclaims PersistentVolumeClaim pvc
persistentvolumes PersistentVolume pv
pods Pod po
podtemplates PodTemplate
replicationcontrollers ReplicationController rc
resourcequotas ResourceQuota quota
secrets Secret
serviceaccounts ServiceAccount sa
services Service svc
controllerrevisions.apps ControllerRevision
daemonsets.apps DaemonSet ds
deployments.apps Deployment deploy
replicasets.apps ReplicaSet rs
statefulsets.apps StatefulSet sts
cronjobs.batch CronJob cj
jobs.batch Job
horizontalpodautoscalers.autoscaling HorizontalPodAutoscaler hpa
poddisruptionbudgets.policy PodDisruptionBudget pdb
ingressclasses.networking.k8s.io IngressClass
ingresses.networking.k8s.io Ingress ing
networkpolicies.networking.k8s.io NetworkPolicy netpol
clusterrolebindings.rbac.authorization.k8s.io ClusterRoleBinding
clusterroles.rbac.authorization.k8s.io ClusterRole
rolebindings.rbac.authorization.k8s.io RoleBinding
roles.rbac.authorization.k8s.io Role
csidrivers.storage.k8s.io CSIDriver
storageclasses.storage.k8s.io StorageClass sc
volumeattributesclasses.storage.k8s.io VolumeAttributesClass vac
priorityclasses.scheduling.k8s.io PriorityClass pc
runtimeclasses.node.k8s.io RuntimeClass
endpointslices.discovery.k8s.io EndpointSlice
leases.coordination.k8s.io Lease
mutatingwebhookconfigurations.admissionregistration.k8s.io MutatingWebhookConfiguration
validatingadmissionpolicies.admissionregistration.k8s.io ValidatingAdmissionPolicy
validatingadmissionpolicybindings.admissionregistration.k8s.io ValidatingAdmissionPolicyBinding
validatingwebhookconfigurations.admissionregistration.k8s.io ValidatingWebhookConfiguration
customresourcedefinitions.apiextensions.k8s.io CustomResourceDefinition crd crds
apiservices.apiregistration.k8s.io APIService
flowschemas.flowcontrol.apiserver.k8s.io FlowSchema
prioritylevelconfigurations.flowcontrol.apiserver.k8s.io PriorityLevelConfiguration
`) {
		words := strings.Fields(line)
		called.Add(schema.ParseGroupResource(words[0]), words[1:]...)
	}
	return called
}()
