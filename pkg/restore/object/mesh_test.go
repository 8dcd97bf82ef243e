// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestMeshes: a pod comes back as it was before the injector of a service mesh had changed it, with
// the probes, the hooks and the metrics of its own containers.
func TestMeshes(t *testing.T) {
	for name, test := range map[string]struct{ pod, want, told string }{
		"Istio": {
			`{metadata: {name: a, namespace: shop, labels: {app: a, security.istio.io/tlsMode: istio, service.istio.io/canonical-name: a, service.istio.io/canonical-revision: latest},
			   annotations: {mine: v, istio.io/rev: default, prometheus.io/path: /stats/prometheus, prometheus.io/port: "15020", prometheus.io/scrape: "true", kubectl.kubernetes.io/default-container: a,
			     k8s.v1.cni.cncf.io/networks: "own, default/istio-cni",
			     sidecar.istio.io/status: '{"initContainers":["istio-init","istio-proxy"],"containers":null,"volumes":["istio-envoy"],"imagePullSecrets":["mesh-pull"],"revision":"default"}'}},
			  spec: {securityContext: {fsGroup: 1337}, imagePullSecrets: [{name: mine}, {name: mesh-pull}], volumes: [{name: istio-envoy, emptyDir: {}}, {name: data, emptyDir: {}}],
			   initContainers: [{name: istio-init, image: proxy}, {name: istio-proxy, image: proxy, restartPolicy: Always, volumeMounts: [{name: istio-envoy, mountPath: /e}], env: [
			     {name: ISTIO_PROMETHEUS_ANNOTATIONS, value: '{"scrape":"true","path":"/metrics","port":"9090"}'},
			     {name: ISTIO_KUBE_APP_PROBERS, value: '{"/app-health/a/livez":{"tcpSocket":{"port":8081},"timeoutSeconds":1},"/app-health/a/readyz":{"httpGet":{"path":"/ready","port":8080,"scheme":"HTTP","httpHeaders":[{"name":"h","value":"v"}]},"timeoutSeconds":1},
			      "/app-health/a/startupz":{"grpc":{"port":9000,"service":"s"}},"/app-lifecycle/a/prestopz":{"httpGet":{"path":"/bye","port":"http"}}}'}]}],
			   containers: [{name: a, image: a, volumeMounts: [{name: data, mountPath: /d}],
			     readinessProbe: {periodSeconds: 3, httpGet: {path: /app-health/a/readyz, port: 15020, scheme: HTTP}}, livenessProbe: {httpGet: {path: /app-health/a/livez, port: 15020}},
			     startupProbe: {httpGet: {path: /app-health/a/startupz, port: 15020}}, lifecycle: {preStop: {httpGet: {path: /app-lifecycle/a/prestopz, port: 15020}}}},
			    {name: b, image: b, readinessProbe: {httpGet: {path: /own, port: 80}}}]}}`,
			`{metadata: {name: a, namespace: shop, labels: {app: a}, annotations: {mine: v, prometheus.io/path: /metrics, prometheus.io/port: "9090", prometheus.io/scrape: "true", kubectl.kubernetes.io/default-container: a, k8s.v1.cni.cncf.io/networks: own}},
			  spec: {securityContext: {}, imagePullSecrets: [{name: mine}], volumes: [{name: data, emptyDir: {}}],
			   containers: [{name: a, image: a, volumeMounts: [{name: data, mountPath: /d}],
			     readinessProbe: {periodSeconds: 3, httpGet: {path: /ready, port: 8080, scheme: HTTP, httpHeaders: [{name: h, value: v}]}}, livenessProbe: {tcpSocket: {port: 8081}},
			     startupProbe: {grpc: {port: 9000, service: s}}, lifecycle: {preStop: {httpGet: {path: /bye, port: http}}}},
			    {name: b, image: b, readinessProbe: {httpGet: {path: /own, port: 80}}}]}}`, ""},
		"Istio, of which the probes are lost": {
			`{metadata: {name: a, namespace: shop, annotations: {prometheus.io/path: /stats/prometheus, prometheus.io/port: "15020", sidecar.istio.io/status: '{"containers":["istio-proxy"]}'}},
			  spec: {containers: [{name: a, livenessProbe: {httpGet: {path: /app-health/a/livez, port: 15020}}}, {name: istio-proxy}]}}`,
			`{metadata: {name: a, namespace: shop}, spec: {containers: [{name: a, livenessProbe: {httpGet: {path: /app-health/a/livez, port: 15020}}}]}}`,
			"its container a has a livenessProbe at /app-health/a/livez, which the sidecar of its service mesh answered"},
		"Linkerd": {
			`{metadata: {name: a, namespace: shop, labels: {app: a, linkerd.io/control-plane-ns: linkerd, linkerd.io/workload-ns: shop, linkerd.io/proxy-pod: a},
			   annotations: {linkerd.io/inject: enabled, linkerd.io/proxy-version: v, linkerd.io/created-by: c, linkerd.io/trust-root-sha256: s, viz.linkerd.io/tap-enabled: "true"}},
			  spec: {volumes: [{name: linkerd-identity-end-entity, emptyDir: {}}], initContainers: [{name: linkerd-init}], containers: [{name: linkerd-proxy}, {name: a}]}}`,
			`{metadata: {name: a, namespace: shop, labels: {app: a}, annotations: {linkerd.io/inject: enabled}}, spec: {containers: [{name: a}]}}`, ""},
		"Linkerd, whose proxy is an init container": {
			`{metadata: {name: a, namespace: shop, annotations: {linkerd.io/proxy-version: v}}, spec: {volumes: [{name: linkerd-identity-token, projected: {}}], initContainers: [{name: linkerd-init}, {name: linkerd-proxy, restartPolicy: Always}, {name: own}], containers: [{name: a}]}}`,
			`{metadata: {name: a, namespace: shop}, spec: {initContainers: [{name: own}], containers: [{name: a}]}}`, ""},
		"Vault": {
			`{metadata: {name: a, namespace: shop, annotations: {vault.hashicorp.com/agent-inject: "true", vault.hashicorp.com/agent-inject-status: injected, vault.hashicorp.com/role: app}},
			  spec: {volumes: [{name: home-init, emptyDir: {medium: Memory}}, {name: home-sidecar, emptyDir: {medium: Memory}}, {name: vault-secrets, emptyDir: {medium: Memory}}, {name: vault-secrets-1, emptyDir: {medium: Memory}}, {name: vault-secret, secret: {secretName: s}}],
			   initContainers: [{name: vault-agent-init, image: vault}], containers: [{name: a, volumeMounts: [{name: vault-secrets, mountPath: /vault/secrets}, {name: vault-secrets-1, mountPath: /etc/db}, {name: vault-secret, mountPath: /s}]}, {name: vault-agent, image: vault}]}}`,
			`{metadata: {name: a, namespace: shop, annotations: {vault.hashicorp.com/agent-inject: "true", vault.hashicorp.com/role: app}},
			  spec: {volumes: [{name: vault-secret, secret: {secretName: s}}], containers: [{name: a, volumeMounts: [{name: vault-secret, mountPath: /s}]}]}}`, ""},
		"Vault, which is asked for and has injected nothing": {
			`{metadata: {name: a, namespace: shop, annotations: {vault.hashicorp.com/agent-inject-status: update}}, spec: {volumes: [{name: vault-secrets, secret: {secretName: s}}], containers: [{name: vault-agent}]}}`,
			`{metadata: {name: a, namespace: shop, annotations: {vault.hashicorp.com/agent-inject-status: update}}, spec: {volumes: [{name: vault-secrets, secret: {secretName: s}}], containers: [{name: vault-agent}]}}`, ""},
		"Consul": {
			`{metadata: {name: a, namespace: shop, labels: {app: a, consul.hashicorp.com/connect-inject-status: injected, consul.hashicorp.com/connect-inject-managed-by: consul-k8s-endpoints-controller},
			   annotations: {consul.hashicorp.com/connect-inject: "true", consul.hashicorp.com/connect-inject-status: injected, consul.hashicorp.com/connect-k8s-version: v1, consul.hashicorp.com/transparent-proxy-status: enabled,
			     prometheus.io/scrape: "true", prometheus.io/path: /metrics, prometheus.io/port: "20200",
			     consul.hashicorp.com/original-pod: '{"metadata":{"annotations":{"prometheus.io/scrape":"true"}},"spec":{"containers":[{"name":"a","env":[{"name":"X","value":"1"}],"livenessProbe":{"periodSeconds":3,"httpGet":{"path":"/live","port":8080}},"readinessProbe":{"tcpSocket":{"port":"http"}}}]}}'}},
			  spec: {volumes: [{name: consul-connect-inject-data, emptyDir: {medium: Memory}}], initContainers: [{name: consul-connect-inject-init}],
			   containers: [{name: a, image: app, env: [{name: X, value: "1"}, {name: DB_CONNECT_SERVICE_HOST, value: 127.0.0.1}], livenessProbe: {periodSeconds: 3, httpGet: {path: /live, port: 20300}}, readinessProbe: {tcpSocket: {port: 20400}}, startupProbe: {tcpSocket: {port: 20500}}}, {name: consul-dataplane-a}]}}`,
			`{metadata: {name: a, namespace: shop, labels: {app: a}, annotations: {consul.hashicorp.com/connect-inject: "true", prometheus.io/scrape: "true"}},
			  spec: {containers: [{name: a, image: app, env: [{name: X, value: "1"}], livenessProbe: {periodSeconds: 3, httpGet: {path: /live, port: 8080}}, readinessProbe: {tcpSocket: {port: http}}}]}}`, ""},
		"Kuma": {
			`{metadata: {name: a, namespace: shop, annotations: {kuma.io/sidecar-injected: "true", kuma.io/virtual-probes: enabled, kuma.io/virtual-probes-port: "9100", kuma.io/mesh: default}},
			  spec: {volumes: [{name: kuma-sidecar-tmp, emptyDir: {}}, {name: kuma-init-tmp, emptyDir: {}}], initContainers: [{name: kuma-init}, {name: kuma-sidecar, restartPolicy: Always}],
			   containers: [{name: a, livenessProbe: {httpGet: {path: /8080/healthz, port: 9100}}, startupProbe: {httpGet: {path: /8081, port: 9100}}, readinessProbe: {httpGet: {path: /9000/own, port: 80}}}]}}`,
			`{metadata: {name: a, namespace: shop, annotations: {kuma.io/virtual-probes: enabled, kuma.io/virtual-probes-port: "9100", kuma.io/mesh: default}},
			  spec: {containers: [{name: a, livenessProbe: {httpGet: {path: /healthz, port: 8080}}, startupProbe: {httpGet: {path: /, port: 8081}}, readinessProbe: {httpGet: {path: /9000/own, port: 80}}}]}}`, ""},
		"Kuma, which asks for itself": {
			`{metadata: {name: a, namespace: shop, annotations: {kuma.io/sidecar-injected: "true"}},
			  spec: {containers: [{name: a, livenessProbe: {httpGet: {path: /tcp/5432, port: 9001}}, readinessProbe: {httpGet: {path: /grpc/9090, port: 9001, httpHeaders: [{name: x-kuma-probes-grpc-service, value: liveness}]}},
			    startupProbe: {httpGet: {path: /8443/start, port: 9001, httpHeaders: [{name: X-Kuma-Probes-Scheme, value: HTTPS}, {name: mine, value: v}]}}}, {name: kuma-sidecar}]}}`,
			`{metadata: {name: a, namespace: shop}, spec: {containers: [{name: a, livenessProbe: {tcpSocket: {port: 5432}}, readinessProbe: {grpc: {port: 9090, service: liveness}}, startupProbe: {httpGet: {path: /start, port: 8443, scheme: HTTPS, httpHeaders: [{name: mine, value: v}]}}}]}}`, ""},
		"Dapr": {
			`{metadata: {name: a, namespace: shop, labels: {app: a, dapr.io/sidecar-injected: "true"}, annotations: {dapr.io/enabled: "true"}}, spec: {volumes: [{name: dapr-identity-token, projected: {}}], containers: [{name: a}, {name: daprd}]}}`,
			`{metadata: {name: a, namespace: shop, labels: {app: a}, annotations: {dapr.io/enabled: "true"}}, spec: {containers: [{name: a}]}}`, ""},
		"none": {
			`{metadata: {name: a, namespace: shop, annotations: {prometheus.io/path: /stats/prometheus}}, spec: {securityContext: {fsGroup: 1337}, containers: [{name: a, livenessProbe: {httpGet: {path: /app-health/a/livez, port: 80}}}]}}`,
			`{metadata: {name: a, namespace: shop, annotations: {prometheus.io/path: /stats/prometheus}}, spec: {securityContext: {fsGroup: 1337}, containers: [{name: a, livenessProbe: {httpGet: {path: /app-health/a/livez, port: 80}}}]}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := func(text string) string { return `{apiVersion: v1, kind: Pod, ` + strings.TrimPrefix(text, "{") }
			desired, warnings, err := newRules(t, v1alpha1.RestoreSpec{}, nil, Facts{}).Desired(t.Context(), parse(t, pod(test.pod)), schema.GroupResource{Resource: "pods"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(parse(t, pod(test.want)).Object, desired.Object); diff != "" {
				t.Error(diff)
			}
			if told := strings.Join(warnings, "; "); (told == "") != (test.told == "") || !strings.Contains(told, test.told) {
				t.Errorf("the warnings are %q, not %q", told, test.told)
			}
			if d := Compare(parse(t, pod(test.pod)), desired, nil, ""); d.Action != Equal {
				t.Errorf("one that the mesh has changed again: %+v", d)
			}
		})
	}
}

// TestReword: what means something else in a later version is written so that it means the same.
func TestReword(t *testing.T) {
	for name, test := range map[string]struct{ object, want string }{
		"an empty selector means no pod": {`{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {minAvailable: 1, selector: {}}}`,
			`{minAvailable: 1, selector: {matchExpressions: [{key: pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match, operator: Exists}]}}`},
		"so does one of empty lists": {`{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {selector: {matchLabels: {}, matchExpressions: []}}}`,
			`{selector: {matchExpressions: [{key: pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match, operator: Exists}]}}`},
		"another selector stays":      {`{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}}}`, `{selector: {matchLabels: {a: b}}}`},
		"none stays":                  {`{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {maxUnavailable: 1}}`, `{maxUnavailable: 1}`},
		"that of v1 means all":        {`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: a}, spec: {selector: {}}}`, `{selector: {}}`},
		"a set that nobody rolls":     {`{apiVersion: apps/v1beta1, kind: StatefulSet, metadata: {name: a}, spec: {template: {metadata: {labels: {a: b}}}}}`, `{selector: {matchLabels: {a: b}}, updateStrategy: {type: OnDelete}, template: {metadata: {labels: {a: b}}}}`},
		"shares by their former name": {`{apiVersion: flowcontrol.apiserver.k8s.io/v1beta2, kind: PriorityLevelConfiguration, metadata: {name: a}, spec: {type: Limited, limited: {assuredConcurrencyShares: 7}}}`, `{type: Limited, limited: {nominalConcurrencyShares: 7}}`},
		"no shares are the default":   {`{apiVersion: flowcontrol.apiserver.k8s.io/v1beta3, kind: PriorityLevelConfiguration, metadata: {name: a}, spec: {limited: {nominalConcurrencyShares: 0}}}`, `{limited: {}}`},
		"unless it is said": {`{apiVersion: flowcontrol.apiserver.k8s.io/v1beta3, kind: PriorityLevelConfiguration, metadata: {name: a, annotations: {flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares: ""}}, spec: {limited: {nominalConcurrencyShares: 0}}}`,
			`{limited: {nominalConcurrencyShares: 0}}`},
		"an Ingress": {`{apiVersion: networking.k8s.io/v1beta1, kind: Ingress, metadata: {name: a}, spec: {backend: {serviceName: d, servicePort: http}, rules: [{host: h, http: {paths: [{path: /, backend: {serviceName: s, servicePort: 80}}, {pathType: Exact, backend: {resource: {kind: B, name: b}}}]}}]}}`,
			`{defaultBackend: {service: {name: d, port: {name: http}}}, rules: [{host: h, http: {paths: [{path: /, pathType: ImplementationSpecific, backend: {service: {name: s, port: {number: 80}}}}, {pathType: Exact, backend: {resource: {kind: B, name: b}}}]}}]}`},
		"endpoints": {`{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, metadata: {name: a}, endpoints: [{addresses: [192.0.2.5], topology: {kubernetes.io/hostname: n1, topology.kubernetes.io/zone: z, rack: r}}, {topology: {kubernetes.io/hostname: n2}}]}`,
			`[{addresses: [192.0.2.5], nodeName: n1, zone: z, deprecatedTopology: {rack: r}}, {nodeName: n2}]`},
		"a definition": {`{apiVersion: apiextensions.k8s.io/v1beta1, kind: CustomResourceDefinition, metadata: {name: a}, spec: {group: g, version: v1, scope: Namespaced, names: {plural: as, kind: A}, preserveUnknownFields: false, subresources: {status: {}},
			additionalPrinterColumns: [{name: c, type: string, JSONPath: .spec.c}], validation: {openAPIV3Schema: {type: object}}, conversion: {strategy: Webhook, webhookClientConfig: {url: u}, conversionReviewVersions: [v1]}}}`,
			`{group: g, scope: Namespaced, names: {plural: as, kind: A}, preserveUnknownFields: false, conversion: {strategy: Webhook, webhook: {clientConfig: {url: u}, conversionReviewVersions: [v1]}},
			versions: [{name: v1, served: true, storage: true, subresources: {status: {}}, additionalPrinterColumns: [{name: c, type: string, jsonPath: .spec.c}], schema: {openAPIV3Schema: {type: object}}}]}`},
		"a definition that says nothing of unknown fields": {`{apiVersion: apiextensions.k8s.io/v1beta1, kind: CustomResourceDefinition, metadata: {name: a}, spec: {group: g, versions: [{name: v1, served: true, storage: true}]}}`,
			`{group: g, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}`},
		"metrics": {`{apiVersion: autoscaling/v2beta1, kind: HorizontalPodAutoscaler, metadata: {name: a}, spec: {maxReplicas: 3, metrics: [
			{type: Resource, resource: {name: cpu, targetAverageUtilization: 60}}, {type: ContainerResource, containerResource: {name: memory, container: c, targetAverageValue: 1Gi}},
			{type: Pods, pods: {metricName: p, targetAverageValue: "5", selector: {matchLabels: {a: b}}}},
			{type: Object, object: {metricName: o, target: {kind: Service, name: s}, targetValue: "7"}}, {type: Object, object: {metricName: o, target: {kind: Service, name: s}, targetValue: "0", averageValue: "8"}},
			{type: External, external: {metricName: e, metricSelector: {matchLabels: {c: d}}, targetAverageValue: "9"}}]}}`,
			`{maxReplicas: 3, metrics: [
			{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}, {type: ContainerResource, containerResource: {name: memory, container: c, target: {type: AverageValue, averageValue: 1Gi}}},
			{type: Pods, pods: {metric: {name: p, selector: {matchLabels: {a: b}}}, target: {type: AverageValue, averageValue: "5"}}},
			{type: Object, object: {metric: {name: o}, describedObject: {kind: Service, name: s}, target: {type: Value, value: "7"}}}, {type: Object, object: {metric: {name: o}, describedObject: {kind: Service, name: s}, target: {type: AverageValue, averageValue: "8"}}},
			{type: External, external: {metric: {name: e, selector: {matchLabels: {c: d}}}, target: {type: AverageValue, averageValue: "9"}}}]}`},
		"metrics of v2beta2 stay": {`{apiVersion: autoscaling/v2beta2, kind: HorizontalPodAutoscaler, metadata: {name: a}, spec: {metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]}}`,
			`{metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]}`},
		"requests for devices": {`{apiVersion: resource.k8s.io/v1beta1, kind: ResourceClaimTemplate, metadata: {name: a}, spec: {spec: {devices: {requests: [{name: gpu, deviceClassName: g, allocationMode: ExactCount, count: 2}, {name: any, firstAvailable: [{name: x, deviceClassName: g}]}]}}}}`,
			`{spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: g, allocationMode: ExactCount, count: 2}}, {name: any, firstAvailable: [{name: x, deviceClassName: g}]}]}}}`},
		"a selector that is given": {`{apiVersion: apps/v1beta1, kind: Deployment, metadata: {name: a}, spec: {selector: {matchLabels: {c: d}}, template: {metadata: {labels: {a: b}}}}}`, `{selector: {matchLabels: {c: d}}, template: {metadata: {labels: {a: b}}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(test.want, "[") {
				test.want = "{list: " + test.want + "}"
			}
			o := parse(t, test.object)
			Reword(o)
			if endpoints := o.Object["endpoints"]; endpoints != nil {
				o.Object["spec"] = map[string]any{"list": endpoints}
			}
			if diff := cmp.Diff(parse(t, `{apiVersion: v1, kind: X, spec: `+test.want+`}`).Object["spec"], o.Object["spec"]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPreserveUnknown: a definition of v1beta1 that preserves unknown fields does so in v1, in each
// part of its schema.
func TestPreserveUnknown(t *testing.T) {
	const head = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a}, spec: `
	o := parse(t, head+`{preserveUnknownFields: true, versions: [{name: v1}, {name: v2, schema: {openAPIV3Schema: {properties: {metadata: {type: object}, kind: {type: string},
	  spec: {properties: {title: {type: string}, any: {}, size: {x-kubernetes-int-or-string: true}, list: {items: {type: object, properties: {a: {type: string}}}},
	    map: {type: object, additionalProperties: {type: object}}}}}}}}]}}`)
	desired, _, err := newRules(t, v1alpha1.RestoreSpec{}, nil, Facts{}).Desired(t.Context(), o, schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const p = `x-kubernetes-preserve-unknown-fields: true`
	want := parse(t, head+`{versions: [{name: v1, schema: {openAPIV3Schema: {type: object, `+p+`}}}, {name: v2, schema: {openAPIV3Schema: {type: object, `+p+`, properties: {metadata: {type: object}, kind: {type: string},
	  spec: {type: object, `+p+`, properties: {title: {type: string}, any: {`+p+`}, size: {x-kubernetes-int-or-string: true}, list: {type: array, items: {type: object, `+p+`, properties: {a: {type: string}}}},
	    map: {type: object, additionalProperties: {type: object, `+p+`}}}}}}}}]}}`)
	if diff := cmp.Diff(want.Object["spec"], desired.Object["spec"]); diff != "" {
		t.Error(diff)
	}
	live := parse(t, head+`{preserveUnknownFields: true, versions: [{name: v1}]}}`)
	desired, _, err = newRules(t, v1alpha1.RestoreSpec{}, nil, Facts{}).Desired(t.Context(), live.DeepCopy(), schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := Compare(live, desired, nil, ""); d.Action != Equal {
		t.Errorf("one that is there as it was: %+v", d)
	}
}
