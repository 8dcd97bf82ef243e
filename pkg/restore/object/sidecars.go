// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"slices"
	"strconv"
	"strings"

	utiljson "sigs.k8s.io/json"
)

// sidecars are an injector's additions to a pod. It marks the pod, and skips a pod with the mark or
// its container.
type sidecars struct {
	annotation, label, value string
	// containers and volumes are names, or prefixes that end in a dash.
	containers, volumes []string
	annotations, labels []string
	// takeBack undoes changes in the pod's own containers.
	takeBack func(c *change, containers []map[string]any)
}

// sidecarsKnown are the injectors besides Istio and Linkerd.
var sidecarsKnown = []sidecars{
	{
		annotation: "vault.hashicorp.com/agent-inject-status", value: "injected",
		containers: []string{"vault-agent", "vault-agent-init"},
		volumes:    []string{"home-init", "home-sidecar", "vault-secrets", "vault-secrets-"},
	},
	{
		annotation: "consul.hashicorp.com/connect-inject-status", value: "injected",
		containers: []string{
			"consul-dataplane", "consul-dataplane-", "consul-connect-inject-init", "consul-connect-inject-init-", "consul-connect-envoy-sidecar", "consul-connect-lifecycle-sidecar",
			"consul-sidecar", "envoy-sidecar", "envoy-sidecar-", "copy-consul-bin",
		},
		volumes: []string{"consul-connect-inject-data"},
		annotations: []string{"consul.hashicorp.com/connect-k8s-version", "consul.hashicorp.com/redirect-traffic-config", "consul.hashicorp.com/transparent-proxy-status",
			consulOriginal, "consul.hashicorp.com/consul-namespace"},
		labels:   []string{"consul.hashicorp.com/connect-inject-status", "consul.hashicorp.com/connect-inject-managed-by"},
		takeBack: (*change).consul,
	},
	{
		annotation: "kuma.io/sidecar-injected", value: "true",
		containers:  []string{"kuma-sidecar", "kuma-init", "kuma-validation"},
		volumes:     []string{"kuma-sidecar-tmp", "kuma-init-tmp"},
		annotations: []string{"kuma.io/sidecar-uid"},
		takeBack:    (*change).kuma,
	},
	{
		label: "dapr.io/sidecar-injected", value: "true",
		containers: []string{"daprd"},
		volumes:    []string{"dapr-identity-token", "dapr-trust-bundle"},
	},
}

func (c *change) sidecars(found *injection) {
	spec := nested(c.object.Object, "spec")
	for _, s := range sidecarsKnown {
		if (s.annotation == "" || c.object.GetAnnotations()[s.annotation] != s.value) && (s.label == "" || c.object.GetLabels()[s.label] != s.value) {
			continue
		}
		var own []map[string]any
		for _, container := range slices.Concat(list(spec, "initContainers"), list(spec, "containers")) {
			if name := text(container, "name"); isNamed(s.containers, name) {
				found.containers.Insert(name)
			} else {
				own = append(own, container)
			}
		}
		for _, volume := range list(spec, "volumes") {
			if name := text(volume, "name"); isNamed(s.volumes, name) {
				found.volumes.Insert(name)
			}
		}
		if s.takeBack != nil {
			s.takeBack(c, own)
		}
		c.removeAnnotations(append(slices.Clone(s.annotations), s.annotation)...)
		c.removeLabels(append(slices.Clone(s.labels), s.label)...)
	}
}

func isNamed(names []string, name string) bool {
	return slices.ContainsFunc(names, func(known string) bool {
		return name == known || strings.HasSuffix(known, "-") && strings.HasPrefix(name, known)
	})
}

const consulOriginal = "consul.hashicorp.com/original-pod"

// consul restores containers' probes and variables, and Prometheus' annotations, from Consul's
// copy.
func (c *change) consul(containers []map[string]any) {
	kept := c.object.GetAnnotations()[consulOriginal]
	var original map[string]any
	if utiljson.UnmarshalCaseSensitivePreserveInts([]byte(kept), &original) != nil {
		return
	}
	was := map[string]map[string]any{}
	for _, field := range []string{"initContainers", "containers"} {
		for _, container := range list(original, "spec", field) {
			was[text(container, "name")] = container
		}
	}
	for _, container := range containers {
		before, ok := was[text(container, "name")]
		if !ok {
			continue
		}
		for _, field := range []string{"livenessProbe", "readinessProbe", "startupProbe", "env"} {
			delete(container, field)
			if value, ok := before[field]; ok {
				container[field] = value
			}
		}
	}
	for name := range c.object.GetAnnotations() {
		if strings.HasPrefix(name, "prometheus.io/") {
			c.setAnnotation(name, text(original, "metadata", "annotations", name))
		}
	}
}

// kuma points the kubelet's probes at the pod's containers again; the sidecar's paths have their
// ports.
func (c *change) kuma(containers []map[string]any) {
	annotations := c.object.GetAnnotations()
	ports := map[int64]bool{}
	for name, usual := range map[string]int64{"kuma.io/virtual-probes-port": 9000, "kuma.io/application-probe-proxy-port": 9001} {
		if port, err := strconv.ParseInt(annotations[name], 10, 32); err == nil {
			ports[port] = true
		} else if annotations[name] == "" {
			ports[usual] = true
		}
	}
	for _, container := range containers {
		for _, field := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
			probe := nested(container, field)
			get := nested(probe, "httpGet")
			if port, ok := get["port"].(int64); ok && ports[port] {
				kumaProbe(probe, get)
			}
		}
	}
}

func kumaProbe(probe, get map[string]any) {
	parts := strings.SplitN(strings.TrimPrefix(text(get, "path"), "/"), "/", 2)
	headers := map[string]string{}
	for _, header := range list(get, "httpHeaders") {
		headers[strings.ToLower(text(header, "name"))] = text(header, "value")
	}
	if len(parts) == 2 && (parts[0] == "tcp" || parts[0] == "grpc") {
		port, err := strconv.ParseInt(parts[1], 10, 32)
		if err != nil {
			return
		}
		handler := map[string]any{"port": port}
		delete(probe, "httpGet")
		if parts[0] == "tcp" {
			probe["tcpSocket"] = handler
			return
		}
		if service := headers["x-kuma-probes-grpc-service"]; service != "" {
			handler["service"] = service
		}
		probe["grpc"] = handler
		return
	}
	port, err := strconv.ParseInt(parts[0], 10, 32)
	if err != nil {
		return
	}
	path := "/"
	if len(parts) == 2 {
		path += parts[1]
	}
	get["port"], get["path"] = port, path
	if scheme := headers["x-kuma-probes-scheme"]; scheme != "" {
		get["scheme"] = scheme
	}
	without(get, "httpHeaders", func(header map[string]any) bool {
		return strings.HasPrefix(strings.ToLower(text(header, "name")), "x-kuma-probes-")
	})
}
