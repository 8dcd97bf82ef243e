// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

const artifacts = "../../artifacts"

// TestManifestsApply gives all manifests to a real API server, which also knows what
// Pod Security would say of their pods.
func TestManifestsApply(t *testing.T) {
	t.Parallel()
	_, stderr, err := lab.TryKubectl(t, "", "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", artifacts)
	if err != nil || strings.Contains(stderr, "Warning") {
		t.Errorf("%v: %s", err, stderr)
	}
}

// TestLeasesComeFirst: kube-apiserver takes requests for our leases for those of a
// leader election, and not for any service account's.
func TestLeasesComeFirst(t *testing.T) {
	t.Parallel()
	schema, err := lab.Kube.FlowcontrolV1().FlowSchemas().Get(t.Context(), "holdfast-leases", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const uid = "X-Kubernetes-PF-FlowSchema-UID"
	ask := func(account, namespace, path string) string {
		answer := lab.RequestAs(t, impersonated(account, namespace).UserName, http.MethodGet, path, "")
		return answer.Header.Get(uid)
	}
	for account, namespace := range accounts {
		if account == "holdfast-restore" { // no process is that
			continue
		}
		if got := ask(account, namespace, "/apis/coordination.k8s.io/v1/namespaces/"+labtest.System+"/leases/holdfast-controller"); got != string(schema.UID) {
			t.Errorf("a request of %s for a lease has the FlowSchema %q, want %s", account, got, schema.UID)
		}
		if got := ask(account, namespace, "/api/v1/namespaces"); got == "" || got == string(schema.UID) {
			t.Errorf("another request of %s has the FlowSchema %q", account, got)
		}
	}
}

// TestDeletionByAdmins: the component adds deletion to the cluster's role admin.
func TestDeletionByAdmins(t *testing.T) {
	t.Parallel()
	dir := withComponent(t, "deletion-by-admins")
	for _, object := range objectsIn(t, lab.Kubectl(t, "kustomize", dir)) {
		metadata := object["metadata"].(map[string]any)
		if object["kind"] != "ClusterRole" || metadata["name"] != "holdfast-admin" {
			continue
		}
		if labels, _ := metadata["labels"].(map[string]any); labels["rbac.authorization.k8s.io/aggregate-to-admin"] != "true" {
			t.Errorf("its labels are %v", labels)
		}
		return
	}
	t.Error("there is no ClusterRole holdfast-admin")
}

// TestCertificateComponents: the components have the API server read its certificate from files,
// and cert-manager write its authority into the APIService.
func TestCertificateComponents(t *testing.T) {
	t.Parallel()
	if _, stderr, err := lab.TryKubectl(t, "", "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", withComponent(t, "tls-secret")); err != nil || strings.Contains(stderr, "Warning") {
		t.Errorf("%v: %s", err, stderr)
	}
	files := []string{"--tls-cert-file=/etc/holdfast/tls/tls.crt", "--tls-private-key-file=/etc/holdfast/tls/tls.key", "mountPath: /etc/holdfast/tls\n", "secretName: holdfast-apiserver-tls\n"}
	for name, wants := range map[string][]string{
		"tls-secret":   files,
		"cert-manager": append(files, "cert-manager.io/inject-ca-from: holdfast/holdfast-apiserver\n", "kind: Certificate\n"),
	} {
		text := lab.Kubectl(t, "kustomize", withComponent(t, name))
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: there is no %q", name, want)
			}
		}
	}
}

// TestHostPathVolumes: the component gives the controller and the agents the same root, which
// the agents have mounted at its own path.
func TestHostPathVolumes(t *testing.T) {
	t.Parallel()
	const root = "/opt/local-path-provisioner"
	dir := withComponent(t, "host-path-volumes")
	if _, stderr, err := lab.TryKubectl(t, "", "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", dir); err != nil || strings.Contains(stderr, "Warning") {
		t.Errorf("%v: %s", err, stderr)
	}
	told := 0
	for _, object := range objectsIn(t, lab.Kubectl(t, "kustomize", dir)) {
		var workload appsv1.DaemonSet // or a Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &workload); err != nil || len(workload.Spec.Template.Spec.Containers) == 0 {
			continue
		}
		pod := workload.Spec.Template.Spec
		if slices.Contains(pod.Containers[0].Args, "--host-path-roots="+root) {
			told++
		}
		if workload.Name != "holdfast-node-agent" {
			continue
		}
		mount, volume := pod.Containers[0].VolumeMounts[len(pod.Containers[0].VolumeMounts)-1], pod.Volumes[len(pod.Volumes)-1]
		if mount.Name != volume.Name || mount.MountPath != root || volume.HostPath == nil || volume.HostPath.Path != root {
			t.Errorf("the agents have %+v as %+v", volume, mount)
		}
	}
	if told != 2 {
		t.Errorf("%d workloads know the root", told)
	}
}

// TestAnotherSystemNamespace runs the command by which docs/install.md puts Holdfast
// into namespaces of other names, and looks for the old ones in what comes out.
func TestAnotherSystemNamespace(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`kubectl kustomize \S+ \| (sed -E '[^']*')`).FindStringSubmatch(string(text))
	if command == nil {
		t.Fatal("docs/install.md has no such command")
	}
	sed := exec.CommandContext(t.Context(), "bash", "-c", command[1])
	sed.Stdin = strings.NewReader(lab.Kubectl(t, "kustomize", artifacts))
	out, err := sed.Output()
	if err != nil {
		t.Fatal(err)
	}
	old := sets.New("holdfast", "holdfast-agents", "holdfast-maintenance", "holdfast-locations", "holdfast-repositories", "--namespace=holdfast")
	found := 0
	var look func(at string, value any)
	look = func(at string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for key, inner := range value {
				if key != "app.kubernetes.io/name" {
					look(at+"."+key, inner)
				}
			}
		case []any:
			for _, inner := range value {
				look(at, inner)
			}
		case string:
			if old.Has(value) {
				t.Errorf("%s is still %s", at, value)
			}
			if strings.Contains(value, "backup-system") {
				found++
			}
		}
	}
	for _, object := range objectsIn(t, string(out)) {
		metadata := object["metadata"].(map[string]any)
		if object["kind"] != "CustomResourceDefinition" {
			look(object["kind"].(string)+" "+metadata["name"].(string), object)
		}
		// The programs know them by name.
		if object["kind"] == "ServiceAccount" && accounts[metadata["name"].(string)] == "" {
			t.Errorf("there is no account %s elsewhere", metadata["name"])
		}
	}
	if found == 0 {
		t.Error("nothing has the new name")
	}
}

// withComponent is the folder of a kustomization of the manifests with one of the components.
func withComponent(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	relative := func(path string) string {
		path, err := filepath.Abs(path)
		if err == nil {
			path, err = filepath.Rel(dir, path)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	write(t, filepath.Join(dir, "kustomization.yaml"),
		"resources: ["+relative(artifacts)+"]\ncomponents: ["+relative(filepath.Join(artifacts, "components", name))+"]\n")
	return dir
}

func objectsIn(t *testing.T, manifests string) []map[string]any {
	t.Helper()
	var objects []map[string]any
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		var object map[string]any
		switch err := decoder.Decode(&object); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
