// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestNamesOfNamespaces: what is a namespace's name by the schema of a kind is mapped, and what looks
// like one is told.
func TestNamesOfNamespaces(t *testing.T) {
	for name, test := range map[string]struct{ resource, object, want, told string }{
		"users of an SCC": {"securitycontextconstraints.security.openshift.io",
			`{apiVersion: security.openshift.io/v1, kind: SecurityContextConstraints, metadata: {name: a}, users: ["system:serviceaccount:shop:bob", bob], groups: ["system:serviceaccounts:shop", "system:serviceaccounts"]}`,
			`{users: ["system:serviceaccount:shop-copy:bob", bob], groups: ["system:serviceaccounts:shop-copy", "system:serviceaccounts"]}`, ""},
		"subjects of a FlowSchema": {"flowschemas.flowcontrol.apiserver.k8s.io",
			`{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: a}, spec: {rules: [{subjects: [{kind: User, user: {name: "system:serviceaccount:shop:bob"}}, {kind: ServiceAccount, serviceAccount: {namespace: shop, name: bob}}]}]}}`,
			`{spec: {rules: [{subjects: [{kind: User, user: {name: "system:serviceaccount:shop-copy:bob"}}, {kind: ServiceAccount, serviceAccount: {namespace: shop-copy, name: bob}}]}]}}`, ""},
		"rules about a namespace, and to impersonate": {"clusterroles.rbac.authorization.k8s.io",
			`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: a}, rules: [{apiGroups: [""], resources: [namespaces], resourceNames: [shop, other], verbs: [get]},
			  {apiGroups: [""], resources: [users], resourceNames: ["system:serviceaccount:shop:bob"], verbs: [impersonate]}, {apiGroups: [""], resources: [nodes], resourceNames: [shop], verbs: [get]}]}`,
			`{rules: [{apiGroups: [""], resources: [namespaces], resourceNames: [shop-copy, other], verbs: [get]},
			  {apiGroups: [""], resources: [users], resourceNames: ["system:serviceaccount:shop-copy:bob"], verbs: [impersonate]}, {apiGroups: [""], resources: [nodes], resourceNames: [shop], verbs: [get]}]}`, ""},
		"the Service of an aggregated API": {"apiservices.apiregistration.k8s.io",
			`{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a.example.com}, spec: {service: {namespace: shop, name: api}}}`,
			`{spec: {service: {namespace: shop-copy, name: api}}}`, ""},
		"what converts a kind": {"customresourcedefinitions.apiextensions.k8s.io",
			`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: as.example.com}, spec: {conversion: {webhook: {clientConfig: {service: {namespace: shop, name: api}}}}}}`,
			`{spec: {conversion: {webhook: {clientConfig: {service: {namespace: shop-copy, name: api}}}}}}`, ""},
		"the names of a certificate": {"certificates.cert-manager.io",
			`{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: a, namespace: shop}, spec: {commonName: hook.shop.svc, dnsNames: [hook, hook.shop, hook.shop.svc, "*.db.shop.svc.cluster.local", my.shop, hook.other.svc]}}`,
			`{spec: {commonName: hook.shop-copy.svc, dnsNames: [hook, hook.shop-copy, hook.shop-copy.svc, "*.db.shop-copy.svc.cluster.local", my.shop, hook.other.svc]}}`, ""},
		"secrets of a class": {"storageclasses.storage.k8s.io",
			`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: a}, parameters: {csi.storage.k8s.io/node-stage-secret-namespace: shop, csi.storage.k8s.io/node-stage-secret-name: shop}}`,
			`{parameters: {csi.storage.k8s.io/node-stage-secret-namespace: shop-copy, csi.storage.k8s.io/node-stage-secret-name: shop}}`, ""},
		"affinity and search domains of pods": {"deployments.apps",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: shop}, spec: {template: {spec: {dnsConfig: {searches: [shop.svc.cluster.local]},
			  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{namespaces: [shop, other], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}]}}}}}}`,
			`{spec: {template: {spec: {dnsConfig: {searches: [shop-copy.svc.cluster.local]},
			  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{namespaces: [shop-copy, other], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop-copy}}}]}}}}}}`, ""},
		"identities of a mesh": {"authorizationpolicies.security.istio.io",
			`{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: a, namespace: shop}, spec: {rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/bob], namespaces: [shop]}}]}]}}`,
			`{spec: {rules: [{from: [{source: {principals: [cluster.local/ns/shop-copy/sa/bob], namespaces: [shop-copy]}}]}]}}`, ""},
		"routes to other namespaces": {"httproutes.gateway.networking.k8s.io",
			`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: a, namespace: web}, spec: {parentRefs: [{name: g, namespace: infra}], rules: [{backendRefs: [{name: s, namespace: shop}]}]}}`,
			`{spec: {parentRefs: [{name: g, namespace: infra}], rules: [{backendRefs: [{name: s, namespace: shop-copy}]}]}}`, ""},
		"Helm's annotation and kubectl's copy": {"configmaps",
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, annotations: {meta.helm.sh/release-namespace: shop, kubectl.kubernetes.io/last-applied-configuration: '{"metadata":{"name":"a","namespace":"shop"}}'}}}`,
			`{metadata: {name: a, namespace: shop-copy, annotations: {meta.helm.sh/release-namespace: shop-copy, kubectl.kubernetes.io/last-applied-configuration: "{\"metadata\":{\"name\":\"a\",\"namespace\":\"shop-copy\"}}\n"}}}`, ""},
		"a binding elsewhere follows": {"rolebindings.rbac.authorization.k8s.io",
			`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: a, namespace: other}, subjects: [{kind: Group, name: "system:serviceaccounts:shop"}]}`,
			`{subjects: [{kind: Group, name: "system:serviceaccounts:shop-copy"}]}`, ""},
		"an application of Argo CD": {"applications.argoproj.io",
			`{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: a, namespace: argocd}, spec: {destination: {server: "https://kubernetes.default.svc", namespace: shop}}}`,
			`{spec: {destination: {server: "https://kubernetes.default.svc", namespace: shop-copy}}}`, ""},
		"an application of Argo CD in another cluster": {"applications.argoproj.io",
			`{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: a, namespace: argocd}, spec: {destination: {name: west, namespace: shop}}}`,
			`{spec: {destination: {name: west, namespace: shop}}}`, "at spec.destination.namespace"},
		"the destinations of a project": {"appprojects.argoproj.io",
			`{apiVersion: argoproj.io/v1alpha1, kind: AppProject, metadata: {name: a, namespace: argocd}, spec: {destinations: [{name: in-cluster, namespace: shop}, {server: "https://kubernetes.default.svc", namespace: other}]}}`,
			`{spec: {destinations: [{name: in-cluster, namespace: shop-copy}, {server: "https://kubernetes.default.svc", namespace: other}]}}`, ""},
		"what Flux applies": {"kustomizations.kustomize.toolkit.fluxcd.io",
			`{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: a, namespace: flux-system}, spec: {targetNamespace: shop, sourceRef: {kind: GitRepository, name: g, namespace: flux-system}, healthChecks: [{kind: Deployment, name: web, namespace: shop}], dependsOn: [{name: b, namespace: shop}]}}`,
			`{spec: {targetNamespace: shop-copy, sourceRef: {kind: GitRepository, name: g, namespace: flux-system}, healthChecks: [{kind: Deployment, name: web, namespace: shop-copy}], dependsOn: [{name: b, namespace: shop-copy}]}}`, ""},
		"what Flux installs in another cluster": {"helmreleases.helm.toolkit.fluxcd.io",
			`{apiVersion: helm.toolkit.fluxcd.io/v2, kind: HelmRelease, metadata: {name: a, namespace: shop}, spec: {kubeConfig: {secretRef: {name: west}}, targetNamespace: shop, chart: {spec: {sourceRef: {name: s, namespace: shop}}}}}`,
			`{spec: {kubeConfig: {secretRef: {name: west}}, targetNamespace: shop, chart: {spec: {sourceRef: {name: s, namespace: shop-copy}}}}}`, "at spec.targetNamespace"},
		"hosts of Istio": {"gateways.networking.istio.io",
			`{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: a, namespace: ingress}, spec: {servers: [{hosts: [shop/a.example.com, "*/b.example.com", shop.example.com]}]}}`,
			`{spec: {servers: [{hosts: [shop-copy/a.example.com, "*/b.example.com", shop.example.com]}]}}`, ""},
		"pods in policies of Cilium": {"ciliumnetworkpolicies.cilium.io",
			`{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: a, namespace: shop}, spec: {ingress: [{fromEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": shop, app: shop}}]}], egress: [{toServices: [{k8sService: {serviceName: db, namespace: shop}}]}]}}`,
			`{spec: {ingress: [{fromEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": shop-copy, app: shop}}]}], egress: [{toServices: [{k8sService: {serviceName: db, namespace: shop-copy}}]}]}}`, ""},
		"policies of Kyverno": {"clusterpolicies.kyverno.io",
			`{apiVersion: kyverno.io/v1, kind: ClusterPolicy, metadata: {name: a}, spec: {rules: [{match: {any: [{resources: {kinds: [Pod], namespaces: [shop, "shop-*"]}}]}, exclude: {all: [{subjects: [{kind: ServiceAccount, name: bob, namespace: shop}]}]}, generate: {kind: Secret, clone: {namespace: shop, name: s}}}]}}`,
			`{spec: {rules: [{match: {any: [{resources: {kinds: [Pod], namespaces: [shop-copy, "shop-*"]}}]}, exclude: {all: [{subjects: [{kind: ServiceAccount, name: bob, namespace: shop-copy}]}]}, generate: {kind: Secret, clone: {namespace: shop-copy, name: s}}}]}}`, ""},
		"routes of Traefik": {"ingressroutes.traefik.io",
			`{apiVersion: traefik.io/v1alpha1, kind: IngressRoute, metadata: {name: a, namespace: ingress}, spec: {routes: [{services: [{name: web, namespace: shop}], middlewares: [{name: m, namespace: shop}]}]}}`,
			`{spec: {routes: [{services: [{name: web, namespace: shop-copy}], middlewares: [{name: m, namespace: shop-copy}]}]}}`, ""},
		"what takes the events of another": {"triggers.eventing.knative.dev",
			`{apiVersion: eventing.knative.dev/v1, kind: Trigger, metadata: {name: a, namespace: events}, spec: {subscriber: {ref: {kind: Service, name: web, namespace: shop}}}}`,
			`{spec: {subscriber: {ref: {kind: Service, name: web, namespace: shop-copy}}}}`, ""},
		"pods in a set of Strimzi": {"strimzipodsets.core.strimzi.io",
			`{apiVersion: core.strimzi.io/v1beta2, kind: StrimziPodSet, metadata: {name: a, namespace: shop}, spec: {pods: [{metadata: {name: a-0, namespace: shop}}]}}`,
			`{spec: {pods: [{metadata: {name: a-0, namespace: shop-copy}}]}}`, ""},
		"constraints of Gatekeeper": {"k8srequiredlabels.constraints.gatekeeper.sh",
			`{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: K8sRequiredLabels, metadata: {name: a}, spec: {match: {namespaces: [shop], excludedNamespaces: [other]}}}`,
			`{spec: {match: {namespaces: [shop-copy], excludedNamespaces: [other]}}}`, ""},
		"guesses: the name of a Service's profile": {"serviceprofiles.linkerd.io",
			`{apiVersion: linkerd.io/v1alpha2, kind: ServiceProfile, metadata: {name: web.shop.svc.cluster.local, namespace: shop}, spec: {dstOverrides: [{authority: "web2.shop.svc.cluster.local:80", weight: 1}]}}`,
			`{spec: {dstOverrides: [{authority: "web2.shop-copy.svc.cluster.local:80", weight: 1}]}}`, "at metadata.name"},
		"guesses: a variable": {"deployments.apps",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: shop}, spec: {template: {spec: {containers: [{name: c, env: [{name: POD_NAMESPACE, value: shop}]}]}}}}`,
			`{spec: {template: {spec: {containers: [{name: c, env: [{name: POD_NAMESPACE, value: shop}]}]}}}}`, "still names shop, at spec.template.spec.containers[0].env[0].value"},
		"guesses: an argument": {"deployments.apps",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: shop}, spec: {template: {spec: {containers: [{name: c, args: ["--namespace=shop"]}]}}}}`,
			`{spec: {template: {spec: {containers: [{name: c, args: ["--namespace=shop"]}]}}}}`, "at spec.template.spec.containers[0].args[0]"},
		"Prometheus' alertmanagers": {"prometheuses.monitoring.coreos.com",
			`{apiVersion: monitoring.coreos.com/v1, kind: Prometheus, metadata: {name: a, namespace: shop}, spec: {alerting: {alertmanagers: [{name: b, namespace: shop}, {name: b, namespace: other}]}, excludedFromEnforcement: [{resource: podmonitors, namespace: shop}]}}`,
			`{spec: {alerting: {alertmanagers: [{name: b, namespace: shop-copy}, {name: b, namespace: other}]}, excludedFromEnforcement: [{resource: podmonitors, namespace: shop-copy}]}}`, ""},
		"the Ingresses of a Probe": {"probes.monitoring.coreos.com",
			`{apiVersion: monitoring.coreos.com/v1, kind: Probe, metadata: {name: a, namespace: shop}, spec: {targets: {ingress: {namespaceSelector: {matchNames: [shop, other]}}}}}`,
			`{spec: {targets: {ingress: {namespaceSelector: {matchNames: [shop-copy, other]}}}}}`, ""},
		"guesses: an object in an argument": {"deployments.apps",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: shop}, spec: {template: {spec: {containers: [{name: c, image: "shop/postgres:17", args: ["--tcp-services-configmap=shop/tcp"]}]}}}}`,
			`{}`, "still names shop, at spec.template.spec.containers[0].args[0]"},
		"guesses: an object with a port": {"configmaps",
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop}, data: {"5432": "shop/db:5432", "80": "shop/web:80"}}`,
			`{}`, "still names shop, at data.5432, data.80"},
		"guesses: the URL of a webhook": {"validatingwebhookconfigurations.admissionregistration.k8s.io",
			`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: a}, webhooks: [{clientConfig: {url: "https://hook.shop.svc/x"}}]}`,
			`{webhooks: [{clientConfig: {url: "https://hook.shop.svc/x"}}]}`, "it still names shop, whose objects are restored into another namespace, at webhooks[0].clientConfig.url"},
		"guesses: what a Secret has": {"secrets",
			`{apiVersion: v1, kind: Secret, metadata: {name: a, namespace: shop}, data: {url: ` + base64.StdEncoding.EncodeToString([]byte("postgres://u:p@db.shop.svc:5432")) + `, tls.crt: ` + certificateFor(t, "hook.shop.svc") + `}}`,
			`{}`, "at data.tls.crt (a certificate for hook.shop.svc), data.url"},
		"guesses: a query, and an image of the cluster's registry": {"deployments.apps",
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: shop, annotations: {query: 'up{namespace=~"shop"}'}}, spec: {template: {spec: {containers: [{name: c, image: "registry.ops.svc:5000/shop/web:1"}]}}}}`,
			`{}`, "at spec.template.spec.containers[0].image, metadata.annotations[query]"},
		"no guess: the names of others": {"configmaps",
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop, annotations: {of: workshop/a}}, data: {a: "http://db.shop-2.svc and db.workshop.svc", image: shop/web, b: "my.shop", c: "--namespace=shops", d: "shop/postgres:17", e: "--x=workshop/a"}}`,
			`{}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rules := newRules(t, v1alpha1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "shop-copy"}}, nil, Facts{})
			desired, warnings, err := rules.Desired(t.Context(), parse(t, test.object), schema.ParseGroupResource(test.resource), nil)
			if err != nil {
				t.Fatal(err)
			}
			want := parse(t, `{apiVersion: v1, kind: X, `+strings.TrimPrefix(test.want, "{"))
			for _, field := range []string{"apiVersion", "kind"} {
				delete(want.Object, field)
			}
			for field, value := range want.Object {
				if diff := cmp.Diff(value, desired.Object[field]); diff != "" {
					t.Error(diff)
				}
			}
			if told := strings.Join(warnings, "; "); (told == "") != (test.told == "") || !strings.Contains(told, test.told) {
				t.Errorf("the warnings are %q, not %q", told, test.told)
			}
		})
	}
}

// certificateFor is a certificate for a name, as data of a Secret.
func certificateFor(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"hook", name}}
	content, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: content}))
}
