// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Command chart writes the templates of the Helm chart that follow from artifacts/, so that the
// manifests have one source, and the chart's README from the comments of values.yaml. Other
// templates are written by hand beside them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	tree := flag.String("tree", "../..", "folder of the source tree")
	flag.Parse()
	files, err := generate(*tree)
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(*tree, name), []byte(content), 0o644))
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

// variants are components of the manifests that change objects, by the value that asks for them.
var variants = map[string]string{
	"deletionByAdmins":         "deletion-by-admins",
	"constrainedImpersonation": "constrained-impersonation",
}

// generate returns the written files by their paths in the tree.
func generate(tree string) (map[string]string, error) {
	artifacts := filepath.Join(tree, "artifacts")
	objects, err := build(artifacts)
	if err != nil {
		return nil, err
	}
	changed := map[string]map[string]object{} // by value, and by the object's key
	for value, component := range variants {
		others, err := build(artifacts, filepath.Join("components", component))
		if err != nil {
			return nil, err
		}
		changed[value] = map[string]object{}
		for i, other := range others {
			if key(other) != key(objects[i]) {
				return nil, fmt.Errorf("the component %s adds or moves %s, which no template can follow", component, key(other))
			}
			if !reflect.DeepEqual(other, objects[i]) {
				changed[value][key(other)] = other
			}
		}
	}
	text := map[string]*strings.Builder{}
	for _, o := range objects {
		file, condition := place(o)
		if file == "" {
			continue
		}
		written, err := template(o)
		if err != nil {
			return nil, err
		}
		for _, value := range slices.Sorted(maps.Keys(changed)) {
			if other, found := changed[value][key(o)]; found {
				instead, err := template(other)
				if err != nil {
					return nil, err
				}
				written = "{{- if .Values." + value + ".enabled }}\n" + instead + "{{- else }}\n" + written + "{{- end }}\n"
			}
		}
		if condition != "" {
			written = "{{- if " + condition + " }}\n" + written + "{{- end }}\n"
		}
		if text[file] == nil {
			text[file] = &strings.Builder{}
			text[file].WriteString(header)
		}
		text[file].WriteString("---\n" + written)
	}
	files := map[string]string{}
	for name, content := range text {
		files["charts/holdfast/templates/"+name] = content.String()
	}
	if files["artifacts/monitoring/prometheusrule.yaml"], files["charts/holdfast/templates/monitoring.yaml"], err = monitoring(filepath.Join(artifacts, "monitoring")); err != nil {
		return nil, err
	}
	for name, content := range files {
		if left := placeholder.FindString(content); left != "" {
			return nil, fmt.Errorf("%s: nothing is known of the placeholder %s", name, left)
		}
	}
	files["charts/holdfast/README.md"], err = readme(filepath.Join(tree, "charts/holdfast/values.yaml"))
	return files, err
}

// build returns the objects of the kustomization in a folder, with its components.
func build(folder string, components ...string) ([]object, error) {
	if len(components) > 0 {
		overlay, err := overlay(folder, components)
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(overlay)
		folder = overlay
	}
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, err
	}
	var objects []object
	for _, resource := range all.Resources() {
		content, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		var o object
		if err := yaml.Unmarshal(content, &o); err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// overlay writes a kustomization that adds components to a folder, and returns its own folder.
func overlay(folder string, components []string) (string, error) {
	base, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	temporary, err := os.MkdirTemp("", "chart-")
	if err != nil {
		return "", err
	}
	// Kustomize takes relative paths only, without symbolic links.
	dir, err := filepath.EvalSymlinks(temporary)
	if err == nil {
		base, err = filepath.Rel(dir, base)
	}
	kustomization := object{"resources": []any{base}}
	for i, component := range components {
		components[i] = filepath.Join(base, component)
	}
	kustomization["components"] = components
	content, failed := yaml.Marshal(kustomization)
	return dir, errors.Join(err, failed, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600))
}

// template writes an object with what Helm fills in.
func template(o object) (string, error) {
	change(o)
	content, err := yaml.Marshal(o)
	return fill(string(content)), err
}

func key(o object) string {
	namespace, _ := o["metadata"].(map[string]any)["namespace"].(string)
	return o.kind() + " " + namespace + "/" + o.name()
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
		o.at("spec", "template", "metadata", "labels")["more"] = "@@MORE-" + key + ".podLabels@@"
		pod := template["spec"].(map[string]any)
		for _, field := range []string{"nodeSelector", "tolerations"} {
			pod[field] = "@@" + key + "." + field + "@@"
		}
		pod["imagePullSecrets"] = "@@imagePullSecrets@@"
		pod["priorityClassName"] = "@@" + key + ".priorityClassName@@"
		if key == "apiserver" {
			pod["hostNetwork"] = "@@HOST-NETWORK@@"
		} else {
			pod["affinity"] = "@@" + key + ".affinity@@"
		}
		container := o.at("spec", "template", "spec", "containers", 0)
		container["image"] = "@@IMAGE@@"
		container["imagePullPolicy"] = "@@image.pullPolicy@@"
		container["resources"] = "@@" + key + ".resources@@"
		container["args"] = append(container["args"].([]any), "@@ARGS-"+key+"@@")
		container["env"] = append(container["env"].([]any), "@@MORE-"+key+".extraEnv@@")
		if key == "apiserver" {
			container["volumeMounts"] = append(container["volumeMounts"].([]any), "@@TLS-MOUNT@@")
			pod["volumes"] = append(pod["volumes"].([]any), "@@TLS-VOLUME@@")
		}
		if key == "nodeAgent" {
			container["volumeMounts"] = append(container["volumeMounts"].([]any), "@@HOST-PATH-MOUNTS@@")
			pod["volumes"] = append(pod["volumes"].([]any), "@@HOST-PATH-VOLUMES@@")
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
		case name == "HOST-PATH-MOUNTS":
			return indent + "{{- range $i, $path := .Values.nodeAgent.hostPathRoots }}\n" + indent + "- mountPath: {{ $path }}\n" + indent + "  mountPropagation: HostToContainer\n" + indent + "  name: host-path-{{ $i }}\n" + indent + "{{- end }}\n"
		case name == "HOST-PATH-VOLUMES":
			return indent + "{{- range $i, $path := .Values.nodeAgent.hostPathRoots }}\n" + indent + "- hostPath:\n" + indent + "    path: {{ $path }}\n" + indent + "    type: DirectoryOrCreate\n" + indent + "  name: host-path-{{ $i }}\n" + indent + "{{- end }}\n"
		case strings.HasPrefix(name, "MORE-"):
			return fmt.Sprintf("%[1]s{{- with .Values.%[2]s }}\n%[1]s{{- toYaml . | nindent %[3]d }}\n%[1]s{{- end }}\n", indent, strings.TrimPrefix(name, "MORE-"), len(indent))
		case name == "INTERVAL":
			return indent + "{{- with .Values.podMonitor.interval }}\n" + indent + field + "{{ . }}\n" + indent + "{{- end }}\n"
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

// monitored are the switches of the objects of artifacts/monitoring.
var monitored = map[string]string{
	"PodMonitor": "podMonitor", "ServiceAccount": "podMonitor", "Secret": "podMonitor", "ClusterRoleBinding": "podMonitor",
	"PrometheusRule": "prometheusRule", "ConfigMap": "dashboard",
}

// monitoring returns the alerts as an object of the Prometheus operator, and the template of all
// objects in a folder.
func monitoring(folder string) (rule, templates string, err error) {
	content, err := os.ReadFile(filepath.Join(folder, "alerts.yaml"))
	if err != nil {
		return "", "", err
	}
	var file struct {
		Groups []any `json:"groups"`
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		return "", "", fmt.Errorf("alerts.yaml: %w", err)
	}
	if len(file.Groups) == 0 {
		return "", "", errors.New("alerts.yaml has no groups")
	}
	alerts := object{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
		"metadata": map[string]any{"name": "holdfast", "namespace": "holdfast"},
		"spec":     map[string]any{"groups": file.Groups},
	}
	written, err := yaml.Marshal(alerts)
	if err != nil {
		return "", "", err
	}
	dashboard, err := os.ReadFile(filepath.Join(folder, "dashboard.json"))
	if err != nil {
		return "", "", err
	}
	objects := []object{alerts, {
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "holdfast-dashboard", "namespace": "holdfast"},
		"data":     map[string]any{"dashboard.json": string(dashboard)},
	}}
	scraped, err := os.ReadFile(filepath.Join(folder, "podmonitor.yaml"))
	if err != nil {
		return "", "", err
	}
	for _, document := range strings.Split(string(scraped), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return "", "", fmt.Errorf("podmonitor.yaml: %w", err)
		}
		objects = append(objects, o)
	}
	templates = header
	for _, o := range objects {
		value, found := monitored[o.kind()]
		if !found {
			return "", "", fmt.Errorf("no value switches a %s on", o.kind())
		}
		switch o.kind() {
		case "PodMonitor":
			o.at("metadata")["labels"] = "@@podMonitor.labels@@"
			o.at("spec", "podMetricsEndpoints", 0)["interval"] = "@@INTERVAL@@"
		case "PrometheusRule":
			o.at("metadata")["labels"] = "@@prometheusRule.labels@@"
		case "ConfigMap":
			o.at("metadata")["labels"] = "@@dashboard.labels@@"
			o.at("metadata")["annotations"] = "@@dashboard.annotations@@"
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			return "", "", err
		}
		templates += "{{- if .Values." + value + ".enabled }}\n---\n" + fill(string(text)) + "{{- end }}\n"
	}
	return "# Written by hack/chart from alerts.yaml: change it there, and run make generate.\n" + string(written), templates, nil
}
