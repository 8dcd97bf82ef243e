// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"
)

const (
	tree      = "../.."
	artifacts = "../../artifacts"
	folder    = "../../charts/holdfast"
)

// TestTemplatesFollowFromTheManifests compares the written files with the generator's.
func TestTemplatesFollowFromTheManifests(t *testing.T) {
	files, err := generate(tree)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(tree, name)); err != nil || string(got) != want {
			t.Errorf("%s is stale: run make generate, and commit the result (%v)", name, err)
		}
	}
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render returns the objects of the chart, by kind, namespace and name.
func render(t *testing.T, values map[string]any) (map[string]object, error) {
	t.Helper()
	c := load(t)
	merged, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "holdfast", Namespace: "holdfast", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, merged)
	if err != nil {
		return nil, err
	}
	objects := map[string]object{}
	for name, text := range files {
		if strings.HasSuffix(name, ".txt") {
			continue
		}
		for _, document := range strings.Split("\n"+text, "\n---\n") {
			var o object
			if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, document)
			}
			if len(o) > 0 {
				objects[key(o)] = o
			}
		}
	}
	return objects, nil
}

// TestDefaultsAreTheManifests renders the chart with its own values: what comes out are the
// manifests, apart from the tag of the image and from what Helm is told to keep.
func TestDefaultsAreTheManifests(t *testing.T) {
	got, err := render(t, map[string]any{"image": map[string]any{"tag": "dev"}})
	if err != nil {
		t.Fatal(err)
	}
	base, err := build(artifacts)
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, want := range base {
		name := key(want)
		if name == "Namespace /holdfast" {
			continue
		}
		o, found := got[name]
		if !found {
			t.Errorf("the chart has no %s", name)
			continue
		}
		delete(got, name)
		metadata := o.at("metadata")
		if annotations, ok := metadata["annotations"].(map[string]any); ok && annotations["helm.sh/resource-policy"] == "keep" {
			kept++
			delete(annotations, "helm.sh/resource-policy")
			if len(annotations) == 0 {
				delete(metadata, "annotations")
			}
		}
		if !reflect.DeepEqual(o, want) {
			a, _ := yaml.Marshal(o)
			b, _ := yaml.Marshal(want)
			t.Errorf("%s differs; the chart has\n%s\nand the manifests\n%s", name, a, b)
		}
	}
	for name, o := range got {
		if hook, _ := o.at("metadata", "annotations")["helm.sh/hook"].(string); hook != "test" {
			t.Errorf("the manifests have no %s", name)
		}
	}
	crds, err := filepath.Glob(filepath.Join(artifacts, "crds", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if kept != len(crds)+2+2 {
		t.Errorf("%d objects are kept, want %d CRDs, 2 namespaces, and the policy that protects them with its binding", kept, len(crds))
	}
}

// TestComponents builds each component with the manifests. Where the chart has a value for it, the
// chart with this value has the same objects.
func TestComponents(t *testing.T) {
	tls := map[string]any{"extraArgs": []any{"--tls-min-version=VersionTLS13"}}
	values := map[string]map[string]any{
		"constrained-impersonation": {"constrainedImpersonation": map[string]any{"enabled": true}},
		"deletion-by-admins":        {"deletionByAdmins": map[string]any{"enabled": true}},
		"host-path-volumes":         {"nodeAgent": map[string]any{"hostPathRoots": []any{"/opt/local-path-provisioner"}}},
		"monitoring": {
			"podMonitor": map[string]any{"enabled": true}, "prometheusRule": map[string]any{"enabled": true}, "dashboard": map[string]any{"enabled": true},
		},
		"high-security": {
			"constrainedImpersonation": map[string]any{"enabled": true},
			"apiserver":                tls, "controller": tls, "nodeAgent": tls,
		},
		"snapshots":    {"snapshots": map[string]any{"enabled": true}},
		"cert-manager": nil, // its certificates are compared by TestValues
		"tls-secret":   nil,
	}
	components, err := os.ReadDir(filepath.Join(artifacts, "components"))
	if err != nil {
		t.Fatal(err)
	}
	base, err := build(artifacts)
	if err != nil {
		t.Fatal(err)
	}
	for _, component := range components {
		t.Run(component.Name(), func(t *testing.T) {
			changed, err := build(artifacts, filepath.Join("components", component.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if reflect.DeepEqual(changed, base) {
				t.Error("it changes nothing")
			}
			with, found := values[component.Name()]
			if !found {
				t.Error("say in this test which values of the chart do the same, or that none do")
			}
			if with == nil {
				return
			}
			with["image"] = map[string]any{"tag": "dev"}
			objects, err := render(t, with)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range changed {
				o, found := objects[key(want)]
				if !found {
					if key(want) != "Namespace /holdfast" {
						t.Errorf("the chart has no %s", key(want))
					}
					continue
				}
				if annotations := o.at("metadata", "annotations"); annotations["helm.sh/resource-policy"] == "keep" {
					delete(annotations, "helm.sh/resource-policy")
				}
				if len(o.at("metadata", "annotations")) == 0 {
					delete(o.at("metadata"), "annotations")
				}
				a, _ := yaml.Marshal(normal(o))
				b, _ := yaml.Marshal(normal(want))
				if string(a) != string(b) {
					t.Errorf("%s differs; the chart has\n%s\nand the manifests\n%s", key(want), a, b)
				}
			}
		})
	}
}

// normal gives the volumes of host paths the same names.
func normal(o object) object {
	content, _ := yaml.Marshal(o)
	var same object
	_ = yaml.Unmarshal([]byte(strings.NewReplacer("host-path-0", "host-path-volumes").Replace(string(content))), &same)
	return same
}

// TestReadme: each value is described.
func TestReadme(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); strings.HasPrefix(line, "| `") && strings.TrimSpace(cells[3]) == "" {
			t.Errorf("values.yaml has no comment on %s", cells[1])
		}
	}
}

// TestValues sets each value, and looks for it where it belongs.
func TestValues(t *testing.T) {
	for name, c := range map[string]struct {
		values string
		object string
		want   []string
	}{
		"image":                  {`image: {repository: registry.example.com/h, tag: v2}`, "DaemonSet holdfast-agents/holdfast-node-agent", []string{`"image":"registry.example.com/h:v2"`}},
		"digest":                 {`image: {digest: "sha256:` + strings.Repeat("a", 64) + `"}`, "Deployment holdfast/holdfast-controller", []string{`"image":"ghcr.io/holdfast-io/holdfast@sha256:aaa`}},
		"pull secrets":           {`imagePullSecrets: [{name: registry}]`, "Deployment holdfast/holdfast-apiserver", []string{`"imagePullSecrets":[{"name":"registry"}]`}},
		"restore":                {`restore: {image: "example.com/h:v1", pullSecrets: [a, b]}`, "Deployment holdfast/holdfast-controller", []string{`"--restore-image=example.com/h:v1"`, `"--restore-image-pull-secrets=a,b"`}},
		"resources":              {`controller: {resources: {limits: {memory: 4Gi}}}`, "Deployment holdfast/holdfast-controller", []string{`"limits":{"memory":"4Gi"}`}},
		"placement":              {`controller: {nodeSelector: {a: b}, tolerations: [{operator: Exists}], priorityClassName: high, affinity: {nodeAffinity: {}}}`, "Deployment holdfast/holdfast-controller", []string{`"nodeSelector":{"a":"b"}`, `"tolerations":[{"operator":"Exists"}]`, `"priorityClassName":"high"`, `"affinity":{"nodeAffinity":{}}`}},
		"no priority":            {`apiserver: {priorityClassName: "", nodeSelector: {a: b}}`, "Deployment holdfast/holdfast-apiserver", []string{`"nodeSelector":{"a":"b"}`}},
		"host network":           {`apiserver: {hostNetwork: true}`, "Deployment holdfast/holdfast-apiserver", []string{`"hostNetwork":true`, `"dnsPolicy":"ClusterFirstWithHostNet"`}},
		"arguments":              {`nodeAgent: {extraArgs: ["--cache-limit=1Gi"]}`, "DaemonSet holdfast-agents/holdfast-node-agent", []string{`"--cache-limit=1Gi"`}},
		"kubelet's folder":       {`nodeAgent: {kubeletDir: /var/lib/k0s/kubelet, cacheDir: /data/cache}`, "DaemonSet holdfast-agents/holdfast-node-agent", []string{`"path":"/var/lib/k0s/kubelet/pods"`, `"path":"/data/cache"`}},
		"cloud identity":         {`maintenance: {serviceAccountAnnotations: {eks.amazonaws.com/role-arn: "arn:x"}}`, "ServiceAccount holdfast-maintenance/holdfast-repo-maintenance", []string{`"eks.amazonaws.com/role-arn":"arn:x"`}},
		"the API server's":       {`apiserver: {serviceAccountAnnotations: {eks.amazonaws.com/role-arn: "arn:x"}}`, "ServiceAccount holdfast/holdfast-apiserver", []string{`"eks.amazonaws.com/role-arn":"arn:x"`}},
		"the controller's":       {`controller: {serviceAccountAnnotations: {eks.amazonaws.com/role-arn: "arn:x"}}`, "ServiceAccount holdfast/holdfast-controller", []string{`"eks.amazonaws.com/role-arn":"arn:x"`}},
		"the agents'":            {`nodeAgent: {serviceAccountAnnotations: {eks.amazonaws.com/role-arn: "arn:x"}}`, "ServiceAccount holdfast-agents/holdfast-node-agent", []string{`"eks.amazonaws.com/role-arn":"arn:x"`}},
		"pod annotations":        {`nodeAgent: {podAnnotations: {a: b}}`, "DaemonSet holdfast-agents/holdfast-node-agent", []string{`"annotations":{"a":"b"}`}},
		"a Secret's certificate": {`certificate: {source: secret, caBundle: Zm9v}`, "APIService /v1alpha1.holdfast.io", []string{`"caBundle":"Zm9v"`}},
		"its arguments":          {`certificate: {source: secret}`, "Deployment holdfast/holdfast-apiserver", []string{`"--tls-cert-file=/etc/holdfast/tls/tls.crt"`, `"secretName":"holdfast-apiserver-tls"`, `"mountPath":"/etc/holdfast/tls"`}},
		"cert-manager":           {`certificate: {source: certManager}`, "APIService /v1alpha1.holdfast.io", []string{`"cert-manager.io/inject-ca-from":"holdfast/holdfast-apiserver"`}},
		"its certificate":        {`certificate: {source: certManager}`, "Certificate holdfast/holdfast-apiserver", []string{`"holdfast-apiserver.holdfast.svc"`}},
		"pod labels":             {`controller: {podLabels: {azure.workload.identity/use: "true"}}`, "Deployment holdfast/holdfast-controller", []string{`"azure.workload.identity/use":"true"`, `"app.kubernetes.io/name":"holdfast"`}},
		"environment":            {`nodeAgent: {extraEnv: [{name: HTTPS_PROXY, value: "http://proxy"}]}`, "DaemonSet holdfast-agents/holdfast-node-agent", []string{`{"name":"HTTPS_PROXY","value":"http://proxy"}`, `"name":"NODE_NAME"`}},
		"host paths":             {`nodeAgent: {hostPathRoots: [/a, /b]}`, "DaemonSet holdfast-agents/holdfast-node-agent", []string{`"--host-path-roots=/a,/b"`, `"mountPath":"/b"`, `{"hostPath":{"path":"/b","type":"DirectoryOrCreate"},"name":"host-path-1"}`}},
		"their controller":       {`nodeAgent: {hostPathRoots: [/a, /b]}`, "Deployment holdfast/holdfast-controller", []string{`"--host-path-roots=/a,/b"`}},
		"deletion by admins":     {`deletionByAdmins: {enabled: true}`, "ClusterRole /holdfast-admin", []string{`"rbac.authorization.k8s.io/aggregate-to-admin":"true"`}},
		"snapshots":              {`snapshots: {enabled: true}`, "Deployment holdfast/holdfast-controller", []string{`"--snapshots"`}},
		"snapshots that stay":    {`snapshots: {enabled: true, moveData: false}`, "Deployment holdfast/holdfast-controller", []string{`"--snapshots"`, `"--default-snapshot-move-data=false"`}},
		"their rights":           {`snapshots: {enabled: true}`, "ClusterRoleBinding /holdfast-snapshots", []string{`"name":"holdfast-controller"`, `"namespace":"holdfast"`}},
		"the API server's right": {`snapshots: {enabled: true}`, "ClusterRoleBinding /holdfast-snapshot-records", []string{`"name":"holdfast-apiserver"`, `"namespace":"holdfast"`}},
		"impersonation":          {`constrainedImpersonation: {enabled: true}`, "ClusterRole /holdfast-impersonator", []string{`"impersonate:user-info"`}},
		"metrics":                {`podMonitor: {enabled: true, interval: 30s, labels: {release: p}}`, "PodMonitor holdfast/holdfast", []string{`"interval":"30s"`, `"labels":{"release":"p"}`, `["holdfast","holdfast-agents"]`}},
		"dashboard":              {`dashboard: {enabled: true, labels: {sidecar: x}, annotations: {grafana_folder: Backups}}`, "ConfigMap holdfast/holdfast-dashboard", []string{`"grafana_dashboard":"1"`, `"sidecar":"x"`, `"grafana_folder":"Backups"`, `holdfast_queue_backups`}},
		"the test's image":       {`image: {tag: v3}`, "Pod holdfast/holdfast-test", []string{`"image":"ghcr.io/holdfast-io/holdfast:v3"`, `"check"`, `"helm.sh/hook":"test"`}},
		"alerts":                 {`prometheusRule: {enabled: true, labels: {release: p}}`, "PrometheusRule holdfast/holdfast", []string{`"labels":{"release":"p"}`, `{{ $value | humanizeDuration }}`}},
		"a location":             {`location: {spec: {provider: s3, default: true, s3: {bucket: b, credentialsSecret: c}}, credentials: {accessKeyID: k, secretAccessKey: s}}`, "StorageLocation holdfast/default", []string{`"bucket":"b"`}},
		"its credentials":        {`location: {spec: {provider: s3, s3: {bucket: b, credentialsSecret: c}}, credentials: {accessKeyID: k, secretAccessKey: s}}`, "Secret holdfast-locations/c", []string{`{"accessKeyID":"k","secretAccessKey":"s"}`}},
		"credentials for gcs":    {`location: {spec: {provider: gcs, gcs: {bucket: b, credentialsSecret: c}}, credentials: {serviceAccountKey: '{"type": "service_account"}'}}`, "Secret holdfast-locations/c", []string{`"stringData":{"serviceAccountKey":"{\"type\": \"service_account\"}"}`}},
		"credentials for azure":  {`location: {spec: {provider: azure, azure: {storageAccount: a, container: b, credentialsSecret: c}}, credentials: {accountKey: k}}`, "Secret holdfast-locations/c", []string{`"stringData":{"accountKey":"k"}`}},
		"an application's":       {`location: {spec: {provider: azure, azure: {storageAccount: a, container: b, credentialsSecret: c}}, credentials: {tenantID: t, clientID: i, clientSecret: s}}`, "Secret holdfast-locations/c", []string{`"stringData":{"clientID":"i","clientSecret":"s","tenantID":"t"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			var values map[string]any
			if err := yaml.Unmarshal([]byte(c.values), &values); err != nil {
				t.Fatal(err)
			}
			objects, err := render(t, values)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			encoder := json.NewEncoder(&text)
			encoder.SetEscapeHTML(false)
			if err := encoder.Encode(objects[c.object]); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(text.String(), want) {
					t.Errorf("%s has no %s:\n%s", c.object, want, text.String())
				}
			}
		})
	}
	objects, err := render(t, map[string]any{
		"crds": map[string]any{"enabled": false}, "networkPolicies": map[string]any{"enabled": false}, "criticalPodsQuota": map[string]any{"enabled": false},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range objects {
		if strings.HasPrefix(name, "CustomResourceDefinition") || strings.HasPrefix(name, "NetworkPolicy") || strings.HasPrefix(name, "ResourceQuota") {
			t.Errorf("%s is there although it is switched off", name)
		}
	}
}

// TestWrongValues: a value that means nothing is refused, and named.
func TestWrongValues(t *testing.T) {
	for text, names := range map[string]string{
		`imagee: {tag: x}`:                   "imagee",
		`apiserver: {replicas: 0}`:           "replicas",
		`image: {digest: "sha256:x"}`:        "digest",
		`certificate: {source: vault}`:       "source",
		`controller: {extraArgs: [verbose]}`: "extraArgs",
		`nodeAgent: {kubeletDir: relative}`:  "kubeletDir",
		`location: {spec: {provider: s3, s3: {bucket: b}}, credentials: {accessKeyID: k}}`:                                  "location.spec.s3.credentialsSecret",
		`location: {spec: {provider: gcs, gcs: {bucket: b}}, credentials: {serviceAccountKey: k}}`:                          "location.spec.gcs.credentialsSecret",
		`location: {spec: {provider: gcs, gcs: {bucket: b, credentialsSecret: c}}, credentials: {accessKeyID: k}}`:          "which has: serviceAccountKey",
		`location: {spec: {provider: filesystem, filesystem: {path: /b}}, credentials: {accountKey: k}}`:                    "which has: no credentials",
		`location: {spec: {provider: gcs, gcs: {bucket: b, credentialsSecret: c}}, credentials: {credentialsFile: a.json}}`: "credentialsFile",
	} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			t.Fatal(err)
		}
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: got %v, want an error that names %s", text, err, names)
		}
	}
}

// TestLint runs Helm's own checks.
func TestLint(t *testing.T) {
	for _, message := range lint.AllWithKubeVersion(folder, nil, "holdfast", &chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}).Messages {
		if message.Severity >= support.WarningSev {
			t.Error(message)
		}
	}
}

// TestHelm installs, upgrades, rolls back and removes the chart in a real Kubernetes: keys,
// credentials that were rotated, the location and its CRD stay, and it can be installed again.
func TestHelm(t *testing.T) {
	bin, err := filepath.Abs("../../.lab/bin")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "lab")
	lab := func(ctx context.Context, args ...string) {
		t.Helper()
		output, err := exec.CommandContext(ctx, filepath.Join(bin, "lab"), append(args, "--dir", dir)...).CombinedOutput()
		if err != nil {
			t.Fatalf("lab %v: %v (make programs builds it)\n%s", args, err, output)
		}
	}
	lab(t.Context(), "up", "--bin", bin)
	t.Cleanup(func() { lab(context.Background(), "down") })
	kubectl := func(args ...string) (string, error) {
		command := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), args...)
		command.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "KUBECACHEDIR="+filepath.Join(dir, "cache"))
		output, err := command.CombinedOutput()
		return string(output), err
	}
	must := func(args ...string) string {
		t.Helper()
		output, err := kubectl(args...)
		if err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, output)
		}
		return output
	}

	settings := cli.New()
	settings.KubeConfig = filepath.Join(dir, "kubeconfig")
	settings.SetNamespace("holdfast")
	// A configuration keeps what it has read of the cluster, so each command has its own.
	config := func() *action.Configuration {
		t.Helper()
		config := &action.Configuration{}
		if err := config.Init(settings.RESTClientGetter(), "holdfast", "secret", func(string, ...any) {}); err != nil {
			t.Fatal(err)
		}
		return config
	}
	var values map[string]any
	err = yaml.Unmarshal([]byte(`location: {spec: {provider: s3, default: true, s3: {bucket: b, endpoint: "http://127.0.0.1:1", credentialsSecret: offsite}}, credentials: {accessKeyID: k, secretAccessKey: s}}`), &values)
	if err != nil {
		t.Fatal(err)
	}
	install := func() {
		t.Helper()
		i := action.NewInstall(config())
		i.ReleaseName, i.Namespace, i.CreateNamespace, i.Timeout = "holdfast", "holdfast", true, time.Minute
		release, err := i.RunWithContext(t.Context(), load(t), values)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(release.Info.Notes, "storage location default") {
			t.Errorf("the notes are %q", release.Info.Notes)
		}
	}
	install()
	if got := must("get", "storagelocations.engine.holdfast.io", "default", "-n", "holdfast", "-o", "jsonpath={.spec.s3.bucket}"); got != "b" {
		t.Errorf("the location has the bucket %q", got)
	}
	must("create", "secret", "generic", "shop.default.key", "-n", "holdfast-repositories", "--from-literal=repository-password=x")
	// What the API server writes there is its own.
	must("patch", "apiservice", "v1alpha1.holdfast.io", "--type=merge", "--field-manager=holdfast-apiserver", "-p", `{"spec":{"caBundle":"`+certificate(t, dir)+`"}}`)

	// Nor is a key brought back that was rotated.
	key := func() string {
		return must("get", "secret", "offsite", "-n", "holdfast-locations", "-o", "go-template={{.data.accessKeyID | base64decode}}")
	}
	if got := key(); got != "k" {
		t.Errorf("the access key is %q", got)
	}
	must("patch", "secret", "offsite", "-n", "holdfast-locations", "--type=merge", "-p", `{"stringData":{"accessKeyID":"rotated"}}`)

	replicas := func() string {
		return must("get", "deployment", "holdfast-controller", "-n", "holdfast", "-o", "jsonpath={.spec.replicas}")
	}
	u := action.NewUpgrade(config())
	u.Namespace, u.ReuseValues, u.Timeout = "holdfast", true, time.Minute
	if _, err := u.RunWithContext(t.Context(), "holdfast", load(t), map[string]any{"controller": map[string]any{"replicas": 2}}); err != nil {
		t.Fatal(err)
	}
	if got := replicas(); got != "2" {
		t.Errorf("after the upgrade there are %s controllers", got)
	}
	if got := key(); got != "rotated" {
		t.Errorf("after the upgrade the access key is %q", got)
	}
	r := action.NewRollback(config())
	r.Version, r.Timeout = 1, time.Minute
	if err := r.Run("holdfast"); err != nil {
		t.Fatal(err)
	}
	if got := replicas(); got != "1" {
		t.Errorf("after the rollback there are %s controllers", got)
	}
	if got := key(); got != "rotated" {
		t.Errorf("after the rollback the access key is %q", got)
	}
	if must("get", "apiservice", "v1alpha1.holdfast.io", "-o", "jsonpath={.spec.caBundle}") == "" {
		t.Error("an upgrade or a rollback has removed the caBundle")
	}

	for range 2 {
		un := action.NewUninstall(config())
		un.Timeout = time.Minute
		if _, err := un.Run("holdfast"); err != nil {
			t.Fatal(err)
		}
		must("get", "secret", "shop.default.key", "-n", "holdfast-repositories")
		if got := key(); got != "rotated" {
			t.Errorf("after the removal the access key is %q", got)
		}
		must("get", "storagelocations.engine.holdfast.io", "default", "-n", "holdfast")
		if output, err := kubectl("delete", "namespace", "holdfast-repositories"); err == nil || !strings.Contains(output, "allow-deletion") {
			t.Errorf("the namespace with the keys is not protected: %v, %s", err, output)
		}
		must("wait", "--for=delete", "namespace/holdfast-agents", "namespace/holdfast-maintenance", "--timeout=60s")
		install()
	}
}

// certificate is one that kube-apiserver takes for a caBundle.
func certificate(t *testing.T, lab string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(lab, "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(content)
}
