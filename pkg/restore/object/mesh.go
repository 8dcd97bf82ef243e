// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	utiljson "sigs.k8s.io/json"
)

// mesh finds a service mesh's additions to a pod, and undoes its other changes. A mesh in the
// cluster makes them again.
func (c *change) mesh(found *injection) {
	annotations := c.object.GetAnnotations()
	if status, ok := annotations["sidecar.istio.io/status"]; ok {
		c.istio(status, found)
	}
	if _, ok := annotations["linkerd.io/proxy-version"]; ok {
		found.containers.Insert("linkerd-proxy", "linkerd-init", "linkerd-network-validator", "linkerd-debug")
		found.volumes.Insert("linkerd-proxy-init-xtables-lock", "linkerd-identity-end-entity", "linkerd-identity-token")
		c.removeAnnotations("linkerd.io/proxy-version", "linkerd.io/created-by", "linkerd.io/trust-root-sha256", "viz.linkerd.io/tap-enabled", "linkerd.io/extension-tap-enabled")
		c.removeLabels("linkerd.io/control-plane-ns", "linkerd.io/workload-ns")
		for name := range c.object.GetLabels() {
			if strings.HasPrefix(name, "linkerd.io/proxy-") {
				c.removeLabels(name)
			}
		}
	}
	c.sidecars(found)
	// Agents of meshes without sidecars write it.
	c.removeAnnotations("ambient.istio.io/redirection")
}

// unmesh removes a mesh's additions from a live pod, which were restored without and added again.
func unmesh(pod *unstructured.Unstructured) {
	c, found := &change{rules: &Rules{}, object: pod}, injection{sets.New[string](), sets.New[string]()}
	c.mesh(&found)
	if found.containers.Len() == 0 {
		return
	}
	spec := nested(pod.Object, "spec")
	without(spec, "volumes", func(volume map[string]any) bool { return found.volumes.Has(text(volume, "name")) })
	for _, field := range []string{"initContainers", "containers"} {
		without(spec, field, func(container map[string]any) bool { return found.containers.Has(text(container, "name")) })
	}
}

const istioUser = 1337

// istio undoes Istio's injection: its container's environment has the replaced values.
func (c *change) istio(status string, found *injection) {
	var names struct {
		InitContainers, Containers, Volumes, ImagePullSecrets []string
	}
	if json.Unmarshal([]byte(status), &names) != nil {
		return
	}
	found.containers.Insert(append(names.InitContainers, names.Containers...)...)
	found.volumes.Insert(names.Volumes...)
	spec := nested(c.object.Object, "spec")
	environment := map[string]string{}
	var containers []map[string]any
	for _, container := range slices.Concat(list(spec, "initContainers"), list(spec, "containers")) {
		if !found.containers.Has(text(container, "name")) {
			containers = append(containers, container)
			continue
		}
		for _, variable := range list(container, "env") {
			environment[text(variable, "name")] = text(variable, "value")
		}
	}
	c.istioProbes(containers, environment["ISTIO_KUBE_APP_PROBERS"])
	without(spec, "imagePullSecrets", func(secret map[string]any) bool { return slices.Contains(names.ImagePullSecrets, text(secret, "name")) })
	if security := nested(spec, "securityContext"); security["fsGroup"] == int64(istioUser) {
		delete(security, "fsGroup")
	}
	c.removeLabels("security.istio.io/tlsMode", "service.istio.io/canonical-name", "service.istio.io/canonical-revision")
	c.removeAnnotations("sidecar.istio.io/status", "istio.io/rev")
	annotations := c.object.GetAnnotations()
	for _, name := range []string{"kubectl.kubernetes.io/default-container", "kubectl.kubernetes.io/default-logs-container"} {
		if found.containers.Has(annotations[name]) {
			c.removeAnnotations(name)
		}
	}
	c.istioMetrics(annotations, environment["ISTIO_PROMETHEUS_ANNOTATIONS"])
	const networks = "k8s.v1.cni.cncf.io/networks"
	if all := annotations[networks]; all != "" {
		kept := slices.DeleteFunc(strings.Split(all, ","), func(name string) bool {
			name = strings.TrimSpace(name)
			return name == "istio-cni" || strings.HasSuffix(name, "/istio-cni")
		})
		c.setAnnotation(networks, strings.Join(kept, ","))
	}
}

// istioMetrics restores the application's port for Prometheus, which the sidecar replaced.
func (c *change) istioMetrics(annotations map[string]string, before string) {
	if annotations["prometheus.io/path"] != "/stats/prometheus" {
		return
	}
	c.removeAnnotations("prometheus.io/path", "prometheus.io/port", "prometheus.io/scrape")
	var own map[string]string
	if json.Unmarshal([]byte(before), &own) != nil {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(own)) {
		if own[field] != "" {
			c.setAnnotation("prometheus.io/"+field, own[field])
		}
	}
}

func (c *change) setAnnotation(name, value string) {
	annotations := c.object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[name] = value
	c.object.SetAnnotations(annotations)
	if value == "" {
		c.removeAnnotations(name)
	}
}

var handlers = []string{"httpGet", "tcpSocket", "grpc", "exec", "sleep"}

// istioProbes points the kubelet's probes from the sidecar's agent at the pod's containers again. A
// variable has the originals.
func (c *change) istioProbes(containers []map[string]any, probers string) {
	var original map[string]map[string]any
	_ = utiljson.UnmarshalCaseSensitivePreserveInts([]byte(probers), &original)
	for _, container := range containers {
		asked := map[string]map[string]any{
			"readinessProbe": nested(container, "readinessProbe"), "livenessProbe": nested(container, "livenessProbe"), "startupProbe": nested(container, "startupProbe"),
			"lifecycle.preStop": nested(container, "lifecycle", "preStop"), "lifecycle.postStart": nested(container, "lifecycle", "postStart"),
		}
		for _, field := range slices.Sorted(maps.Keys(asked)) {
			probe := asked[field]
			path := text(probe, "httpGet", "path")
			if !strings.HasPrefix(path, "/app-health/") && !strings.HasPrefix(path, "/app-lifecycle/") {
				continue
			}
			before := original[path]
			i := slices.IndexFunc(handlers, func(handler string) bool { return before[handler] != nil })
			if i < 0 {
				c.warn("its container %s has a %s at %s, which the sidecar of its service mesh answered, and nobody knows what it asked: set it anew", text(container, "name"), field, path)
				continue
			}
			delete(probe, "httpGet")
			probe[handlers[i]] = before[handlers[i]]
		}
	}
}
