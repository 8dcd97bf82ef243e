// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type naming func(r *Rules, name string) string

// place is a field that names a namespace, in all elements of lists on the way.
type place struct {
	path string
	in   naming
}

const (
	rbacGroup      = "rbac.authorization.k8s.io"
	admissionGroup = "admissionregistration.k8s.io"
	gatewayGroup   = "gateway.networking.k8s.io"
	istioGroup     = "networking.istio.io"
	monitorGroup   = "monitoring.coreos.com"
	kyvernoGroup   = "kyverno.io"
)

var (
	subjects = []place{{"subjects.namespace", aNamespace}, {"subjects.name", anAccount}, {"userNames", anAccount}, {"groupNames", anAccount}, {"roleRef.namespace", aNamespace}}
	webhooks = []place{{"webhooks.clientConfig.service.namespace", aNamespace}}
	param    = []place{{"spec.paramRef.namespace", aNamespace}}
	monitors = []place{{"spec.namespaceSelector.matchNames", aNamespace}}
	routes   = []place{
		{"spec.parentRefs.namespace", aNamespace}, {"spec.rules.backendRefs.namespace", aNamespace},
		{"spec.rules.backendRefs.filters.requestMirror.backendRef.namespace", aNamespace}, {"spec.rules.filters.requestMirror.backendRef.namespace", aNamespace},
	}
	traefik     = []place{{"spec.routes.services.namespace", aNamespace}, {"spec.routes.middlewares.namespace", aNamespace}, {"spec.tls.options.namespace", aNamespace}, {"spec.tls.store.namespace", aNamespace}}
	policies    = slices.Concat(matches("spec.rules.match"), matches("spec.rules.exclude"), below("spec.rules", []place{{"generate.namespace", aNamespace}, {"generate.clone.namespace", aNamespace}, {"generate.cloneList.namespace", aNamespace}, {"mutate.targets.namespace", aNamespace}, {"context.configMap.namespace", aNamespace}}))
	istioRoutes = []place{{"delegate.namespace", aNamespace}, {"route.destination.host", aService}, {"mirror.host", aService}, {"mirrors.destination.host", aService}, {"match.gateways", anObject}, {"match.sourceNamespace", aNamespace}}
)

// places are known fields of Kubernetes and common extensions.
var places = map[schema.GroupKind][]place{
	{Group: rbacGroup, Kind: "RoleBinding"}:                              subjects,
	{Group: rbacGroup, Kind: "ClusterRoleBinding"}:                       subjects,
	{Group: "authorization.openshift.io", Kind: "RoleBinding"}:           subjects,
	{Group: "authorization.openshift.io", Kind: "ClusterRoleBinding"}:    subjects,
	{Group: "security.openshift.io", Kind: "SecurityContextConstraints"}: {{"users", anAccount}, {"groups", anAccount}},
	{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema"}:          {{"spec.rules.subjects.serviceAccount.namespace", aNamespace}, {"spec.rules.subjects.user.name", anAccount}, {"spec.rules.subjects.group.name", anAccount}, {"spec.rules.resourceRules.namespaces", aNamespace}},
	{Group: admissionGroup, Kind: "ValidatingWebhookConfiguration"}:      webhooks,
	{Group: admissionGroup, Kind: "MutatingWebhookConfiguration"}:        webhooks,
	{Group: admissionGroup, Kind: "ValidatingAdmissionPolicyBinding"}:    param,
	{Group: admissionGroup, Kind: "MutatingAdmissionPolicyBinding"}:      param,
	{Group: "apiregistration.k8s.io", Kind: "APIService"}:                {{"spec.service.namespace", aNamespace}},
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:    {{"spec.conversion.webhook.clientConfig.service.namespace", aNamespace}},
	{Kind: "Service"}:               {{"spec.externalName", aService}},
	{Kind: "PersistentVolumeClaim"}: {{"spec.dataSourceRef.namespace", aNamespace}},
	{Kind: "PersistentVolume"}: {
		{"spec.csi.controllerPublishSecretRef.namespace", aNamespace}, {"spec.csi.nodeStageSecretRef.namespace", aNamespace}, {"spec.csi.nodePublishSecretRef.namespace", aNamespace},
		{"spec.csi.controllerExpandSecretRef.namespace", aNamespace}, {"spec.csi.nodeExpandSecretRef.namespace", aNamespace}, {"spec.azureFile.secretNamespace", aNamespace},
		{"spec.cephfs.secretRef.namespace", aNamespace}, {"spec.rbd.secretRef.namespace", aNamespace}, {"spec.iscsi.secretRef.namespace", aNamespace},
		{"spec.flexVolume.secretRef.namespace", aNamespace}, {"spec.glusterfs.endpointsNamespace", aNamespace},
	},
	{Kind: "Endpoints"}: {{"subsets.addresses.targetRef.namespace", aNamespace}, {"subsets.notReadyAddresses.targetRef.namespace", aNamespace}},
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"}:                {{"endpoints.targetRef.namespace", aNamespace}},
	{Group: "networking.k8s.io", Kind: "IngressClass"}:                {{"spec.parameters.namespace", aNamespace}},
	{Group: gatewayGroup, Kind: "Gateway"}:                            {{"spec.listeners.tls.certificateRefs.namespace", aNamespace}},
	{Group: gatewayGroup, Kind: "GatewayClass"}:                       {{"spec.parametersRef.namespace", aNamespace}},
	{Group: gatewayGroup, Kind: "ReferenceGrant"}:                     {{"spec.from.namespace", aNamespace}},
	{Group: gatewayGroup, Kind: "HTTPRoute"}:                          routes,
	{Group: gatewayGroup, Kind: "GRPCRoute"}:                          routes,
	{Group: gatewayGroup, Kind: "TCPRoute"}:                           routes,
	{Group: gatewayGroup, Kind: "TLSRoute"}:                           routes,
	{Group: gatewayGroup, Kind: "UDPRoute"}:                           routes,
	{Group: "cert-manager.io", Kind: "Certificate"}:                   {{"spec.commonName", aService}, {"spec.dnsNames", aService}, {"spec.uris", anIdentity}},
	{Group: "monitoring.coreos.com", Kind: "ServiceMonitor"}:          monitors,
	{Group: "monitoring.coreos.com", Kind: "PodMonitor"}:              monitors,
	{Group: "security.istio.io", Kind: "AuthorizationPolicy"}:         {{"spec.rules.from.source.namespaces", aNamespace}, {"spec.rules.from.source.notNamespaces", aNamespace}, {"spec.rules.from.source.principals", anIdentity}, {"spec.rules.from.source.notPrincipals", anIdentity}},
	{Group: "networking.istio.io", Kind: "DestinationRule"}:           {{"spec.host", aService}, {"spec.exportTo", aNamespace}},
	{Group: "networking.istio.io", Kind: "ServiceEntry"}:              {{"spec.hosts", aService}, {"spec.exportTo", aNamespace}},
	{Group: "networking.istio.io", Kind: "Sidecar"}:                   {{"spec.egress.hosts", anObject}},
	{Group: "networking.istio.io", Kind: "VirtualService"}:            slices.Concat([]place{{"spec.hosts", aService}, {"spec.gateways", anObject}, {"spec.exportTo", aNamespace}}, below("spec.http", istioRoutes), below("spec.tls", istioRoutes), below("spec.tcp", istioRoutes)),
	{Group: istioGroup, Kind: "Gateway"}:                              {{"spec.servers.hosts", anObject}},
	{Group: "velero.io", Kind: "Schedule"}:                            {{"spec.template.includedNamespaces", aNamespace}, {"spec.template.excludedNamespaces", aNamespace}},
	{Group: "holdfast.io", Kind: "Schedule"}:                          {{"spec.template.includedNamespaces", aNamespace}, {"spec.template.excludedNamespaces", aNamespace}},
	{Group: monitorGroup, Kind: "Probe"}:                              {{"spec.targets.ingress.namespaceSelector.matchNames", aNamespace}, {"spec.prober.url", aService}},
	{Group: monitorGroup, Kind: "Prometheus"}:                         {{"spec.alerting.alertmanagers.namespace", aNamespace}, {"spec.excludedFromEnforcement.namespace", aNamespace}},
	{Group: "kustomize.toolkit.fluxcd.io", Kind: "Kustomization"}:     {{"spec.sourceRef.namespace", aNamespace}, {"spec.dependsOn.namespace", aNamespace}},
	{Group: "helm.toolkit.fluxcd.io", Kind: "HelmRelease"}:            {{"spec.chart.spec.sourceRef.namespace", aNamespace}, {"spec.chartRef.namespace", aNamespace}, {"spec.dependsOn.namespace", aNamespace}},
	{Group: "notification.toolkit.fluxcd.io", Kind: "Alert"}:          {{"spec.eventSources.namespace", aNamespace}},
	{Group: "notification.toolkit.fluxcd.io", Kind: "Receiver"}:       {{"spec.resources.namespace", aNamespace}},
	{Group: "image.toolkit.fluxcd.io", Kind: "ImagePolicy"}:           {{"spec.imageRepositoryRef.namespace", aNamespace}},
	{Group: "image.toolkit.fluxcd.io", Kind: "ImageUpdateAutomation"}: {{"spec.sourceRef.namespace", aNamespace}},
	{Group: "traefik.io", Kind: "IngressRoute"}:                       traefik,
	{Group: "traefik.io", Kind: "IngressRouteTCP"}:                    traefik,
	{Group: "traefik.containo.us", Kind: "IngressRoute"}:              traefik,
	{Group: "traefik.containo.us", Kind: "IngressRouteTCP"}:           traefik,
	{Group: "projectcontour.io", Kind: "HTTPProxy"}:                   {{"spec.includes.namespace", aNamespace}, {"spec.virtualhost.tls.secretName", anObject}},
	{Group: "projectcontour.io", Kind: "TLSCertificateDelegation"}:    {{"spec.delegations.targetNamespaces", aNamespace}},
	{Group: "cilium.io", Kind: "CiliumNetworkPolicy"}:                 {{"spec.egress.toServices.k8sService.namespace", aNamespace}, {"specs.egress.toServices.k8sService.namespace", aNamespace}},
	{Group: kyvernoGroup, Kind: "ClusterPolicy"}:                      policies,
	{Group: kyvernoGroup, Kind: "Policy"}:                             policies,
	{Group: kyvernoGroup, Kind: "PolicyException"}:                    matches("spec.match"),
	{Group: kyvernoGroup, Kind: "ClusterCleanupPolicy"}:               slices.Concat(matches("spec.match"), matches("spec.exclude")),
	{Group: "external-secrets.io", Kind: "ClusterExternalSecret"}:     {{"spec.namespaces", aNamespace}},
	{Group: "ceph.rook.io", Kind: "CephObjectStoreUser"}:              {{"spec.clusterNamespace", aNamespace}},
	{Group: "kafka.strimzi.io", Kind: "Kafka"}:                        {{"spec.entityOperator.topicOperator.watchedNamespace", aNamespace}, {"spec.entityOperator.userOperator.watchedNamespace", aNamespace}},
	{Group: "core.strimzi.io", Kind: "StrimziPodSet"}:                 {{"spec.pods.metadata.namespace", aNamespace}},
	{Group: "wgpolicyk8s.io", Kind: "PolicyReport"}:                   {{"scope.namespace", aNamespace}},
	{Group: "split.smi-spec.io", Kind: "TrafficSplit"}:                {{"spec.service", aService}, {"spec.backends.service", aService}},
	{Group: "linkerd.io", Kind: "ServiceProfile"}:                     {{"spec.dstOverrides.authority", aService}},
	{Group: "policy.linkerd.io", Kind: "HTTPRoute"}:                   routes,
	{Group: "policy.linkerd.io", Kind: "MeshTLSAuthentication"}:       {{"spec.identityRefs.namespace", aNamespace}},
	{Group: "policy.linkerd.io", Kind: "AuthorizationPolicy"}:         {{"spec.targetRef.namespace", aNamespace}, {"spec.requiredAuthenticationRefs.namespace", aNamespace}},
}

var ofPods = []place{
	{"dnsConfig.searches", aService},
	{"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.namespaces", aNamespace},
	{"affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution.podAffinityTerm.namespaces", aNamespace},
	{"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution.namespaces", aNamespace},
	{"affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution.podAffinityTerm.namespaces", aNamespace},
}

var namedIn = map[string]naming{
	"meta.helm.sh/release-namespace":        aNamespace,
	"cert-manager.io/inject-ca-from":        anObject,
	"cert-manager.io/inject-ca-from-secret": anObject,
}

func below(path string, of []place) (moved []place) {
	for _, p := range of {
		moved = append(moved, place{path + "." + p.path, p.in})
	}
	return moved
}

func matches(path string) (found []place) {
	for _, among := range []string{path, path + ".any", path + ".all"} {
		found = append(found, place{among + ".resources.namespaces", aNamespace}, place{among + ".subjects.namespace", aNamespace}, place{among + ".subjects.name", anAccount})
	}
	return found
}

func aNamespace(r *Rules, name string) string { return r.Namespace(name) }

func anAccount(r *Rules, name string) string {
	if namespace, ok := strings.CutPrefix(name, "system:serviceaccounts:"); ok {
		return "system:serviceaccounts:" + r.Namespace(namespace)
	}
	if account, ok := strings.CutPrefix(name, "system:serviceaccount:"); ok {
		namespace, rest, _ := strings.Cut(account, ":")
		return "system:serviceaccount:" + r.Namespace(namespace) + ":" + rest
	}
	return name
}

func aService(r *Rules, name string) string {
	labels := strings.Split(name, ".")
	if at := slices.IndexFunc(labels, func(label string) bool { return label == "svc" || strings.HasPrefix(label, "svc:") }); at > 0 {
		labels[at-1] = r.Namespace(labels[at-1])
	}
	return strings.Join(labels, ".")
}

func anObject(r *Rules, name string) string {
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		return r.Namespace(namespace) + "/" + rest
	}
	return name
}

// anIdentity maps a SPIFFE name of a mesh: TRUST-DOMAIN/ns/NAMESPACE/sa/NAME.
func anIdentity(r *Rules, name string) string {
	parts := strings.Split(name, "/")
	for i := 0; i+2 < len(parts); i++ {
		if parts[i] == "ns" && parts[i+2] == "sa" {
			parts[i+1] = r.Namespace(parts[i+1])
		}
	}
	return strings.Join(parts, "/")
}

// mapNames maps the namespaces in an object, and in copies within it, at all places of its schema.
func (r *Rules) mapNames(gk schema.GroupKind, resource schema.GroupResource, object map[string]any) {
	for _, p := range places[gk] {
		r.mapAt(object, strings.Split(p.path, "."), p.in)
	}
	if path, ok := podSpecs[resource.String()]; ok {
		spec := nested(object, path...)
		for _, p := range ofPods {
			r.mapAt(spec, strings.Split(p.path, "."), p.in)
		}
	}
	switch {
	case gk.Group == rbacGroup && (gk.Kind == "Role" || gk.Kind == "ClusterRole"):
		r.mapRules(list(object, "rules"))
	case gk.Kind == "StorageClass", gk.Kind == "VolumeSnapshotClass":
		parameters := nested(object, "parameters")
		for name := range parameters {
			if strings.HasSuffix(name, "secret-namespace") {
				r.mapAt(parameters, []string{name}, aNamespace)
			}
		}
	case gk.Group == "cert-manager.io":
		r.mapShortNames(object)
	case gk.Group == "argoproj.io":
		for _, destination := range slices.Concat([]map[string]any{nested(object, "spec", "destination"), nested(object, "spec", "template", "spec", "destination")}, list(object, "spec", "destinations")) {
			if isHere(destination) {
				r.mapAt(destination, []string{"namespace"}, aNamespace)
			}
		}
	case strings.HasSuffix(gk.Group, ".toolkit.fluxcd.io") && nested(object, "spec", "kubeConfig") == nil: // else it is about another cluster
		for _, path := range []string{"targetNamespace", "storageNamespace", "healthChecks.namespace"} {
			r.mapAt(object["spec"], strings.Split(path, "."), aNamespace)
		}
	case strings.HasSuffix(gk.Group, ".knative.dev"):
		for _, path := range []string{"ref", "sink.ref", "reply.ref", "subscriber.ref", "delivery.deadLetterSink.ref"} {
			r.mapAt(object["spec"], strings.Split(path+".namespace", "."), aNamespace)
		}
	case gk.Group == "constraints.gatekeeper.sh":
		for _, field := range []string{"namespaces", "excludedNamespaces"} {
			r.mapAt(nested(object, "spec", "match"), []string{field}, aNamespace)
		}
	}
	annotations := nested(object, "metadata", "annotations")
	for name, in := range namedIn {
		r.mapAt(annotations, []string{name}, in)
	}
	r.mapSelectors(object)
}

func isHere(destination map[string]any) bool {
	server, name := text(destination, "server"), text(destination, "name")
	return server == "https://kubernetes.default.svc" || server == "" && (name == "" || name == "in-cluster")
}

func (r *Rules) mapAt(value any, path []string, in naming) any {
	switch value := value.(type) {
	case map[string]any:
		if len(path) == 0 {
			return value
		}
		if below, ok := value[path[0]]; ok {
			value[path[0]] = r.mapAt(below, path[1:], in)
		}
	case []any:
		for i := range value {
			value[i] = r.mapAt(value[i], path, in)
		}
	case string:
		if len(path) == 0 {
			return in(r, value)
		}
	}
	return value
}

// mapRules maps the names of namespaces, and of accounts to impersonate, in RBAC rules.
func (r *Rules) mapRules(rules []map[string]any) {
	for _, rule := range rules {
		resources, _ := rule["resources"].([]any)
		for _, resource := range resources {
			switch resource {
			case "namespaces":
				r.mapAt(rule, []string{"resourceNames"}, aNamespace)
			case "users", "groups":
				r.mapAt(rule, []string{"resourceNames"}, anAccount)
			}
		}
	}
}

// mapShortNames maps SERVICE.NAMESPACE in a certificate, if its longer name is listed too: else it
// may be an ordinary domain.
func (r *Rules) mapShortNames(certificate map[string]any) {
	names, _ := nested(certificate, "spec")["dnsNames"].([]any)
	for i, name := range names {
		name, _ := name.(string)
		service, namespace, ok := strings.Cut(name, ".")
		if mapped := service + "." + r.Namespace(namespace); ok && slices.Contains(names, any(mapped+".svc")) {
			names[i] = mapped
		}
	}
}

// isNameLabel reports whether a label's value is a namespace's name, in Kubernetes or Cilium's
// policies.
func isNameLabel(key string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "k8s:"), "any:")
	return key == corev1.LabelMetadataName || key == "io.kubernetes.pod.namespace" || key == "io.cilium.k8s.namespace.labels."+corev1.LabelMetadataName
}

func (r *Rules) mapSelectors(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key := range nested(value, "matchLabels") {
			if isNameLabel(key) {
				r.mapAt(value["matchLabels"], []string{key}, aNamespace)
			}
		}
		for _, expression := range list(value, "matchExpressions") {
			if isNameLabel(text(expression, "key")) {
				r.mapAt(expression["values"], nil, aNamespace)
			}
		}
		for _, field := range value {
			r.mapSelectors(field)
		}
	case []any:
		for _, element := range value {
			r.mapSelectors(element)
		}
	}
}
