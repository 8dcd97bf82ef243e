// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestYields: pitfall 11. An object does without what a refusal of the cluster names of what only the
// cluster decides, and without nothing else.
func TestYields(t *testing.T) {
	parse := func(text string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for name, test := range map[string]struct {
		object, refusal, want string
		left                  []string
	}{
		"families that the cluster has not": {
			`{kind: Service, spec: {ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack, clusterIP: 10.0.0.1, ports: [{nodePort: 30000}]}}`,
			`spec.ipFamilies[1]: Invalid value: "IPv6": not configured on this cluster`,
			`{kind: Service, spec: {ipFamilyPolicy: PreferDualStack, ports: [{nodePort: 30000}]}}`,
			[]string{"spec.clusterIP", "spec.ipFamilies", "spec.ipFamilyPolicy"},
		},
		"families of a Service without address": {
			`{kind: Service, spec: {ipFamilies: [IPv6], ipFamilyPolicy: SingleStack, clusterIP: None, clusterIPs: [None]}}`,
			`spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`,
			`{kind: Service, spec: {ipFamilyPolicy: SingleStack, clusterIP: None, clusterIPs: [None]}}`,
			[]string{"spec.ipFamilies"},
		},
		"one node port of two": {
			`{kind: Service, spec: {ports: [{nodePort: 30000}, {nodePort: 30001}]}}`,
			`spec.ports[1].nodePort: Invalid value: 30001: provided port is already allocated`,
			`{kind: Service, spec: {ports: [{nodePort: 30000}, {}]}}`,
			[]string{"spec.ports[1].nodePort"},
		},
		"the port of the health check": {
			`{kind: Service, spec: {healthCheckNodePort: 31997, ports: [{nodePort: 30000}]}}`,
			`Internal error occurred: failed to allocate requested HealthCheck NodePort 31997: provided port is already allocated`,
			`{kind: Service, spec: {ports: [{nodePort: 30000}]}}`,
			[]string{"spec.healthCheckNodePort"},
		},
		"an address outside": {
			`{kind: Service, spec: {externalIPs: [1.2.3.4], loadBalancerIP: 1.2.3.5}}`,
			`spec.externalIPs: Forbidden: may not be used`,
			`{kind: Service, spec: {loadBalancerIP: 1.2.3.5}}`,
			[]string{"spec.externalIPs"},
		},
		"a field that somebody decided": {
			`{kind: Service, spec: {sessionAffinity: X, clusterIP: 10.0.0.1}}`, `spec.sessionAffinity: Unsupported value`,
			`{kind: Service, spec: {sessionAffinity: X, clusterIP: 10.0.0.1}}`, nil,
		},
		"a class of priority that is not there": {
			`{kind: Pod, spec: {priorityClassName: high}}`, `no PriorityClass with name high was found`, `{kind: Pod, spec: {}}`, []string{"spec.priorityClassName"},
		},
		"a node that a RuntimeClass chose": {
			`{kind: Pod, spec: {nodeSelector: {a: b, c: d}}}`, `conflict: runtimeClass.scheduling.nodeSelector[a] = x; pod.spec.nodeSelector[a] = b`,
			`{kind: Pod, spec: {nodeSelector: {c: d}}}`, []string{"spec.nodeSelector[a]"},
		},
		"what a LimitRange had filled in": {
			`{kind: Pod, metadata: {annotations: {kubernetes.io/limit-ranger: "LimitRanger plugin set: cpu, memory request for container c; cpu limit for container c; cpu limit for init container i"}},
			  spec: {initContainers: [{name: i, resources: {limits: {cpu: "1"}}}], containers: [{name: c, resources: {requests: {cpu: "1", memory: 1Gi}, limits: {cpu: "1", memory: 2Gi}}}]}}`,
			`maximum cpu usage per Container is 500m, but limit is 1`,
			`{kind: Pod, metadata: {annotations: {}}, spec: {initContainers: [{name: i, resources: {limits: {}}}], containers: [{name: c, resources: {requests: {}, limits: {memory: 2Gi}}}]}}`,
			[]string{"spec.containers[c].resources.limits.cpu", "spec.containers[c].resources.requests.cpu", "spec.containers[c].resources.requests.memory", "spec.initContainers[i].resources.limits.cpu"},
		},
		"a default class, where another one is": {
			`{kind: PriorityClass, globalDefault: true, value: 5}`, `priorityclasses.scheduling.k8s.io "a" is forbidden: PriorityClass b is already marked as default. Only one default can exist`,
			`{kind: PriorityClass, value: 5}`, []string{"globalDefault"},
		},
		"what somebody has asked for": {
			`{kind: Pod, spec: {containers: [{name: c, resources: {limits: {cpu: "1"}}}]}}`, `maximum cpu usage per Container is 500m, but limit is 1`,
			`{kind: Pod, spec: {containers: [{name: c, resources: {limits: {cpu: "1"}}}]}}`, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := parse(test.object)
			var left []string
			switch o.GetKind() {
			case "Service":
				left = serviceYields(o, errors.New(test.refusal))
			case "PriorityClass":
				left = classYields(o, test.refusal)
			default:
				left = podYields(o, test.refusal)
			}
			if !slices.Equal(left, test.left) {
				t.Errorf("left out are %q, want %q", left, test.left)
			}
			if diff := cmp.Diff(parse(test.want).Object, o.Object); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}
