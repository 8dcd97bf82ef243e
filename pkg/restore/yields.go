// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-io/holdfast/pkg/restore/object"
)

// Only the cluster decides some fields: address families, free ports, additions of admission. A
// refused one is left out with a warning.

// yields removes the refused fields, and reports whether to try again.
func (e *execution) yields(k *kind, about subject, desired *unstructured.Unstructured, refusal error) bool {
	if !apierrors.IsInvalid(refusal) && !apierrors.IsForbidden(refusal) && !apierrors.IsBadRequest(refusal) && !apierrors.IsInternalError(refusal) {
		return false
	}
	var left []string
	switch k.name() {
	case "services":
		left = serviceYields(desired, refusal)
	case "pods":
		left = podYields(desired, refusal.Error())
	case "priorityclasses.scheduling.k8s.io":
		left = classYields(desired, refusal.Error())
	}
	if len(left) == 0 {
		return false
	}
	e.report.warn(about, fmt.Sprintf("not as in the backup: %s, since this cluster decides about that, and refuses it: %v", listed(left), refusal))
	return true
}

// isDenied removes the fields of an existing Service that this cluster would refuse, and reports
// whether there were any. Otherwise each restore would find a difference.
func (e *execution) isDenied(ctx context.Context, k *kind, about subject, d object.Decision, live, desired *unstructured.Unstructured) bool {
	if k.name() != "services" || !slices.ContainsFunc(d.Differs, func(path string) bool {
		return strings.HasPrefix(path, "spec.ipFamil") || strings.HasSuffix(path, "odePort")
	}) {
		return false
	}
	probe := desired.DeepCopy()
	spec, _ := probe.Object["spec"].(map[string]any)
	has, _ := live.Object["spec"].(map[string]any)
	mine := map[any]bool{}
	for _, port := range portsOf(has) {
		mine[port["nodePort"]] = true
	}
	for _, port := range portsOf(spec) {
		if mine[port["nodePort"]] {
			delete(port, "nodePort")
		}
	}
	if spec["healthCheckNodePort"] == has["healthCheckNodePort"] {
		delete(spec, "healthCheckNodePort")
	}
	err := e.writer.tryCreate(ctx, k, probe)
	return err != nil && e.yields(k, about, desired, err)
}

func portsOf(spec map[string]any) (ports []map[string]any) {
	elements, _ := spec["ports"].([]any)
	for _, element := range elements {
		if port, ok := element.(map[string]any); ok {
			ports = append(ports, port)
		}
	}
	return ports
}

var refusedPort = regexp.MustCompile(`spec\.ports\[(\d+)\]\.nodePort`)

// serviceYields removes and returns the families, addresses and ports that a refusal names.
func serviceYields(service *unstructured.Unstructured, refusal error) (left []string) {
	spec, _ := service.Object["spec"].(map[string]any)
	text := refusal.Error()
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(word)) })
	}
	leave := func(fields ...string) {
		for _, field := range fields {
			if value, ok := spec[field]; ok && value != corev1.ClusterIPNone {
				delete(spec, field)
				left = append(left, "spec."+field)
			}
		}
	}
	if says("ipFamil", "clusterIP", "not configured on this cluster", "dual-stack") {
		if spec["clusterIP"] != corev1.ClusterIPNone {
			leave("clusterIP", "clusterIPs")
		}
		leave("ipFamilies")
		if spec["ipFamilyPolicy"] == string(corev1.IPFamilyPolicyRequireDualStack) {
			spec["ipFamilyPolicy"] = string(corev1.IPFamilyPolicyPreferDualStack)
			left = append(left, "spec.ipFamilyPolicy")
		}
	}
	if says("healthCheckNodePort", "HealthCheck NodePort", "health check node port") {
		leave("healthCheckNodePort")
	} else if says("nodePort", "node port") {
		left = append(left, withoutPorts(spec, text)...)
	}
	for _, field := range []string{"loadBalancerIP", "loadBalancerClass", "externalIPs", "trafficDistribution"} {
		if says("spec." + field) {
			leave(field)
		}
	}
	if len(left) == 0 && says("already allocated") {
		leave("clusterIP", "clusterIPs", "healthCheckNodePort")
		left = append(left, withoutPorts(spec, "")...)
	}
	slices.Sort(left)
	return left
}

func withoutPorts(spec map[string]any, refusal string) (left []string) {
	named := map[int]bool{}
	for _, match := range refusedPort.FindAllStringSubmatch(refusal, -1) {
		if i, err := strconv.Atoi(match[1]); err == nil {
			named[i] = true
		}
	}
	for i, port := range portsOf(spec) {
		if port["nodePort"] != nil && (named[i] || len(named) == 0) {
			delete(port, "nodePort")
			left = append(left, fmt.Sprintf("spec.ports[%d].nodePort", i))
		}
	}
	return left
}

func classYields(class *unstructured.Unstructured, refusal string) (left []string) {
	if class.Object["globalDefault"] != true || !strings.Contains(refusal, "already marked as default") {
		return nil
	}
	delete(class.Object, "globalDefault")
	return []string{"globalDefault"}
}

const (
	limitRanger    = "kubernetes.io/limit-ranger"
	nodeSelectorOf = "runtimeClass.scheduling.nodeSelector"
)

var (
	selectedNode = regexp.MustCompile(`pod\.spec\.nodeSelector\[([^\]]+)\]`)
	rangedFields = regexp.MustCompile(`([^;:]+) (request|limit) for (?:init )?container ([^;]+)`)
)

// podYields removes and returns fields that an admission had added and a refusal names.
func podYields(pod *unstructured.Unstructured, refusal string) (left []string) {
	spec, _ := pod.Object["spec"].(map[string]any)
	switch {
	case strings.Contains(refusal, "no PriorityClass with name") && spec["priorityClassName"] != nil:
		// The admission writes its cluster's default class into each pod.
		delete(spec, "priorityClassName")
		left = append(left, "spec.priorityClassName")
	case strings.Contains(refusal, nodeSelectorOf):
		// A RuntimeClass adds its nodes to the pod's.
		selector, _ := spec["nodeSelector"].(map[string]any)
		for _, match := range selectedNode.FindAllStringSubmatch(refusal, -1) {
			if selector[match[1]] != nil {
				delete(selector, match[1])
				left = append(left, "spec.nodeSelector["+match[1]+"]")
			}
		}
	case pod.GetAnnotations()[limitRanger] != "" && (strings.Contains(refusal, "usage per") || strings.Contains(refusal, "limit to request ratio")):
		left = withoutDefaults(pod)
	}
	slices.Sort(left)
	return slices.Compact(left)
}

func withoutDefaults(pod *unstructured.Unstructured) (left []string) {
	annotations := pod.GetAnnotations()
	said := annotations[limitRanger]
	for _, match := range rangedFields.FindAllStringSubmatch(said, -1) {
		for _, field := range []string{"initContainers", "containers"} {
			containers, _, _ := unstructured.NestedFieldNoCopy(pod.Object, "spec", field)
			elements, _ := containers.([]any)
			for _, element := range elements {
				container, _ := element.(map[string]any)
				if container["name"] != strings.TrimSpace(match[3]) {
					continue
				}
				resources, _, _ := unstructured.NestedFieldNoCopy(container, "resources", match[2]+"s")
				values, _ := resources.(map[string]any)
				for _, name := range strings.Split(match[1], ",") {
					if name = strings.TrimSpace(name); values[name] != nil {
						delete(values, name)
						left = append(left, fmt.Sprintf("spec.%s[%v].resources.%ss.%s", field, container["name"], match[2], name))
					}
				}
			}
		}
	}
	if len(left) > 0 {
		annotations = maps.Clone(annotations)
		delete(annotations, limitRanger)
		pod.SetAnnotations(annotations)
	}
	return left
}
