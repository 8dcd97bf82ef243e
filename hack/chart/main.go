// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command chart writes the templates of the Helm chart that follow from artifacts/, so that the
// manifests have one source. What is in values.yaml, and what has no object in artifacts/, is
// written by hand beside them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	artifacts := flag.String("artifacts", "../../artifacts", "folder of the kustomization")
	out := flag.String("out", "../../charts/holdfast/templates", "folder of the templates")
	flag.Parse()
	files, err := generate(*artifacts)
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(*out, name), []byte(content), 0o644))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// object is an object of the manifests.
type object map[string]any

func (o object) kind() string { return o["kind"].(string) }
func (o object) name() string { return o["metadata"].(map[string]any)["name"].(string) }

// at returns the map at a path, which it makes where there is none. A number is the element
// of a list.
func (o object) at(path ...any) object {
	var here any = map[string]any(o)
	for _, step := range path {
		switch step := step.(type) {
		case int:
			here = here.([]any)[step]
		case string:
			of := here.(map[string]any)
			if _, found := of[step]; !found {
				of[step] = map[string]any{}
			}
			here = of[step]
		}
	}
	return here.(map[string]any)
}

const header = "{{- /* Written by hack/chart from artifacts/: change it there, and run make generate. */ -}}\n"

// generate returns the templates by their file names.
func generate(artifacts string) (map[string]string, error) {
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), artifacts)
	if err != nil {
		return nil, err
	}
	text := map[string]*strings.Builder{}
	for _, resource := range all.Resources() {
		content, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		var o object
		if err := yaml.Unmarshal(content, &o); err != nil {
			return nil, err
		}
		file, condition := place(o)
		if file == "" {
			continue
		}
		change(o)
		content, err = yaml.Marshal(o)
		if err != nil {
			return nil, err
		}
		template := fill(string(content))
		if condition != "" {
			template = "{{- if " + condition + " }}\n" + template + "{{- end }}\n"
		}
		if text[file] == nil {
			text[file] = &strings.Builder{}
			text[file].WriteString(header)
		}
		text[file].WriteString("---\n" + template)
	}
	files := map[string]string{}
	for name, content := range text {
		if left := placeholder.FindString(content.String()); left != "" {
			return nil, fmt.Errorf("%s: nothing is known of the placeholder %s", name, left)
		}
		files[name] = content.String()
	}
	alerts, err := rules(filepath.Join(artifacts, "monitoring", "alerts.yaml"))
	files["prometheusrule.yaml"] = alerts
	return files, err
}

// place says in which file an object goes, and on which condition it is there.
func place(o object) (file, condition string) {
	switch o.kind() {
	case "Namespace":
		if o.name() == "holdfast" {
			return "", "" // the release's own, which no release can have
		}
		return "namespaces.yaml", ""
	case "CustomResourceDefinition":
		return "crds.yaml", ".Values.crds.enabled"
	case "NetworkPolicy":
		return "network-policies.yaml", ".Values.networkPolicies.enabled"
	case "ResourceQuota":
		return "workloads.yaml", ".Values.criticalPodsQuota.enabled"
	case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
		return "policies.yaml", ""
	case "Deployment", "DaemonSet", "PodDisruptionBudget", "Service", "APIService", "ConfigMap", "FlowSchema":
		return "workloads.yaml", ""
	default:
		return "rbac.yaml", ""
	}
}

// kept says of an object that `helm uninstall` leaves it.
func kept(o object) { o.at("metadata", "annotations")["helm.sh/resource-policy"] = "keep" }

// roles are the workloads by their key in the values.
var roles = map[string]string{"holdfast-apiserver": "apiserver", "holdfast-controller": "controller", "holdfast-node-agent": "nodeAgent"}

// change puts placeholders where values go.
func change(o object) {
	switch o.kind() {
	case "CustomResourceDefinition":
		kept(o)
	case "Namespace":
		// Those with keys and credentials.
		if name := o.name(); strings.HasSuffix(name, "-locations") || strings.HasSuffix(name, "-repositories") {
			kept(o)
		}
	case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
		if o.name() == "holdfast-removal" {
			kept(o)
		}
	case "ServiceAccount":
		if key, found := map[string]string{
			"holdfast-apiserver": "apiserver", "holdfast-controller": "controller",
			"holdfast-node-agent": "nodeAgent", "holdfast-repo-maintenance": "maintenance",
		}[o.name()]; found {
			o.at("metadata")["annotations"] = "@@" + key + ".serviceAccountAnnotations@@"
		}
	case "APIService":
		o.at("metadata")["annotations"] = "@@APISERVICE-ANNOTATIONS@@"
		o.at("spec")["caBundle"] = "@@CABUNDLE@@"
	case "Deployment", "DaemonSet":
		key := roles[o.name()]
		if o.kind() == "Deployment" {
			o.at("spec")["replicas"] = "@@" + key + ".replicas@@"
		}
		template := o.at("spec", "template")
		o.at("spec", "template", "metadata")["annotations"] = "@@" + key + ".podAnnotations@@"
		pod := template["spec"].(map[string]any)
		for _, field := range []string{"nodeSelector", "tolerations"} {
			pod[field] = "@@" + key + "." + field + "@@"
		}
		pod["imagePullSecrets"] = "@@imagePullSecrets@@"
		pod["priorityClassName"] = "@@" + key + ".priorityClassName@@"
		if key == "apiserver" {
			pod["hostNetwork"] = "@@HOST-NETWORK@@"
		} else if key == "controller" {
			pod["affinity"] = "@@controller.affinity@@"
		}
		container := o.at("spec", "template", "spec", "containers", 0)
		container["image"] = "@@IMAGE@@"
		container["imagePullPolicy"] = "@@image.pullPolicy@@"
		container["resources"] = "@@" + key + ".resources@@"
		container["args"] = append(container["args"].([]any), "@@ARGS-"+key+"@@")
		if key == "apiserver" {
			container["volumeMounts"] = append(container["volumeMounts"].([]any), "@@TLS-MOUNT@@")
			pod["volumes"] = append(pod["volumes"].([]any), "@@TLS-VOLUME@@")
		}
		for _, volume := range pod["volumes"].([]any) {
			v, isMap := volume.(map[string]any)
			if !isMap || v["hostPath"] == nil {
				continue
			}
			switch path := v["hostPath"].(map[string]any); path["path"] {
			case "/var/lib/kubelet/pods":
				path["path"] = "@@KUBELET-PODS@@"
			default:
				path["path"] = "@@nodeAgent.cacheDir@@"
			}
		}
	}
}

var (
	// placeholder is a value that a template sets.
	placeholder = regexp.MustCompile(`@@[A-Za-z.-]+@@`)
	// line is a placeholder that is all of the value of a field, or of an element of a list.
	line = regexp.MustCompile(`(?m)^( *)(- |[A-Za-z]+: )'?@@([A-Za-z.-]+)@@'?\n`)
	// namespace is where an object or an argument names one of Holdfast's namespaces.
	namespace = regexp.MustCompile(`(?m)^(  name: | *namespace: | *- (?:--namespace=)?)holdfast(-agents|-maintenance|-locations|-repositories)?$`)
)

// fill replaces the placeholders of an object in YAML by what Helm understands.
func fill(text string) string {
	text = strings.ReplaceAll(text, "{{", "{{ `{{` }}")
	text = namespace.ReplaceAllString(text, "${1}{{ .Release.Namespace }}$2")
	return line.ReplaceAllStringFunc(text, func(found string) string {
		match := line.FindStringSubmatch(found)
		indent, field, name := match[1], match[2], match[3]
		value := ".Values." + name
		leaf := name[strings.LastIndex(name, ".")+1:]
		block := func(expression string) string {
			return fmt.Sprintf("%[1]s{{- with %[2]s }}\n%[1]s%[3]s\n%[1]s  {{- toYaml . | nindent %[4]d }}\n%[1]s{{- end }}\n", indent, expression, strings.TrimSpace(field), len(indent)+2)
		}
		switch {
		case name == "IMAGE":
			return indent + field + "{{ include \"holdfast.image\" . }}\n"
		case name == "HOST-NETWORK":
			return indent + "{{- if .Values.apiserver.hostNetwork }}\n" + indent + "hostNetwork: true\n" + indent + "dnsPolicy: ClusterFirstWithHostNet\n" + indent + "{{- end }}\n"
		case name == "APISERVICE-ANNOTATIONS":
			return indent + "{{- if eq .Values.certificate.source \"certManager\" }}\n" + indent + "annotations:\n" + indent + "  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/holdfast-apiserver\n" + indent + "{{- end }}\n"
		case name == "CABUNDLE":
			return indent + "{{- if and (eq .Values.certificate.source \"secret\") .Values.certificate.caBundle }}\n" + indent + "caBundle: {{ .Values.certificate.caBundle }}\n" + indent + "{{- end }}\n"
		case name == "TLS-MOUNT":
			return indent + "{{- if ne .Values.certificate.source \"self\" }}\n" + indent + "- mountPath: /etc/holdfast/tls\n" + indent + "  name: tls\n" + indent + "  readOnly: true\n" + indent + "{{- end }}\n"
		case name == "TLS-VOLUME":
			return indent + "{{- if ne .Values.certificate.source \"self\" }}\n" + indent + "- name: tls\n" + indent + "  secret:\n" + indent + "    secretName: holdfast-apiserver-tls\n" + indent + "{{- end }}\n"
		case strings.HasPrefix(name, "ARGS-"):
			key := strings.TrimPrefix(name, "ARGS-")
			return indent + "{{- include \"holdfast.args." + key + "\" . | nindent " + fmt.Sprint(len(indent)) + " }}\n" +
				indent + "{{- range .Values." + key + ".extraArgs }}\n" + indent + "- {{ . | quote }}\n" + indent + "{{- end }}\n"
		case name == "KUBELET-PODS":
			return indent + field + "{{ .Values.nodeAgent.kubeletDir }}/pods\n"
		case slices.Contains([]string{"replicas", "pullPolicy", "cacheDir"}, leaf):
			return indent + field + "{{ " + value + " }}\n"
		case leaf == "priorityClassName":
			return indent + "{{- with " + value + " }}\n" + indent + field + "{{ . }}\n" + indent + "{{- end }}\n"
		default:
			return block(value)
		}
	})
}

// rules returns the template of the alerts as an object of the Prometheus operator.
func rules(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var file struct {
		Groups []any `json:"groups"`
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if len(file.Groups) == 0 {
		return "", fmt.Errorf("%s has no groups", path)
	}
	text, err := yaml.Marshal(object{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
		"metadata": map[string]any{"name": "holdfast", "namespace": "holdfast", "labels": "@@prometheusRule.labels@@"},
		"spec":     map[string]any{"groups": file.Groups},
	})
	return header + "{{- if .Values.prometheusRule.enabled }}\n---\n" + fill(string(text)) + "{{- end }}\n", err
}
