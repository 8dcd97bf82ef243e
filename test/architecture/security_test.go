// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

// TestCertificatesAreVerified: no line of what is shipped offers to trust a server
// unseen, by the names that this has in Go, client-go and Kopia.
func TestCertificatesAreVerified(t *testing.T) {
	unseen := regexp.MustCompile(`InsecureSkipVerify|DoNotVerifyTLS|Insecure:|InsecureSkipTLSVerify|insecure-skip-tls-verify|insecureSkipTLSVerify`)
	for _, root := range []string{"../../cmd", "../../pkg", "../../artifacts"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "generated") || strings.Contains(path, "testdata") {
				return err
			}
			content, err := os.ReadFile(path)
			if found := unseen.Find(content); found != nil {
				t.Errorf("%s has %s: a server whose certificate is not verified may be anybody", path, found)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// workload is a pod template of the manifests.
type workload struct {
	metav1.ObjectMeta
	template corev1.PodTemplateSpec
}

// TestNetworkPolicies: in each namespace with pods nothing may pass by default, and one
// policy allows each workload its own ports, and nobody else's.
func TestNetworkPolicies(t *testing.T) {
	workloads, policies := deployed(t)
	if len(workloads) != 3 {
		t.Fatalf("the manifests have %d workloads, want 3", len(workloads))
	}
	// The controller makes these, and they serve nothing.
	workloads = append(workloads, workload{
		metav1.ObjectMeta{Name: "the Jobs of the maintenance", Namespace: enginev1alpha1.MaintenanceNamespace("holdfast")},
		corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/component": "maintenance"}}},
	})
	for _, w := range workloads {
		denied := false
		var allowing []networkingv1.NetworkPolicy
		for _, p := range policies {
			selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			if p.Namespace != w.Namespace || !selector.Matches(labels.Set(w.template.Labels)) {
				continue
			}
			// What it says nothing of may not pass.
			denied = denied || selector.Empty() && len(p.Spec.PolicyTypes) == 2
			if len(p.Spec.Ingress)+len(p.Spec.Egress) > 0 {
				allowing = append(allowing, p)
			}
		}
		if !denied || len(allowing) != 1 {
			t.Errorf("%s: denied by default is %v, and %d policies allow something", w.Name, denied, len(allowing))
			continue
		}
		var open, served []int32
		for _, rule := range allowing[0].Spec.Ingress {
			for _, port := range rule.Ports {
				open = append(open, port.Port.IntVal)
			}
		}
		for _, container := range w.template.Spec.Containers {
			for _, port := range container.Ports {
				served = append(served, port.ContainerPort)
			}
		}
		if !slices.Equal(open, served) {
			t.Errorf("%s serves at %v, and its network policy opens %v", w.Name, served, open)
		}
	}
}

// TestPodsMountLittle: a pod's volumes are those that it can't do without, and only the
// agents see anything of the node.
func TestPodsMountLittle(t *testing.T) {
	want := map[string][]string{
		"holdfast-apiserver":  {"cache", "audit"},
		"holdfast-controller": {"tmp"},
		"holdfast-node-agent": {"pods", "cache", "tmp"},
	}
	workloads, _ := deployed(t)
	for _, w := range workloads {
		var names []string
		for _, volume := range w.template.Spec.Volumes {
			names = append(names, volume.Name)
			if host := volume.HostPath; host != nil && (w.Name != "holdfast-node-agent" || host.Path != "/var/lib/kubelet/pods" && host.Path != "/var/lib/holdfast/cache") {
				t.Errorf("%s mounts %s of its node", w.Name, host.Path)
			}
		}
		if !slices.Equal(names, want[w.Name]) {
			t.Errorf("%s has the volumes %v, want %v", w.Name, names, want[w.Name])
		}
		if spec := w.template.Spec; spec.HostNetwork || spec.HostPID || spec.HostIPC || spec.ServiceAccountName != w.Name {
			t.Errorf("%s shares namespaces of its node, or runs as %q", w.Name, spec.ServiceAccountName)
		}
	}
}

func deployed(t *testing.T) (workloads []workload, policies []networkingv1.NetworkPolicy) {
	t.Helper()
	files, err := filepath.Glob("../../artifacts/deploy/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
			if runtime.IsNotRegisteredError(err) {
				continue // an APIService
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			switch object := object.(type) {
			case *appsv1.Deployment:
				workloads = append(workloads, workload{object.ObjectMeta, object.Spec.Template})
			case *appsv1.DaemonSet:
				workloads = append(workloads, workload{object.ObjectMeta, object.Spec.Template})
			case *networkingv1.NetworkPolicy:
				policies = append(policies, *object)
			}
		}
	}
	return workloads, policies
}

// TestAgentCapabilities compares what an agent may do on its node with the table of
// docs/node-agent.md, which says why.
func TestAgentCapabilities(t *testing.T) {
	text, err := os.ReadFile("../../docs/node-agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## What an agent may do on its node\n")
	var documented []corev1.Capability
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| [^|]+ \\|$").FindAllStringSubmatch(section, -1) {
		documented = append(documented, corev1.Capability(row[1]))
	}
	workloads, _ := deployed(t)
	for _, w := range workloads {
		for _, container := range w.template.Spec.Containers {
			has := container.SecurityContext.Capabilities
			want := []corev1.Capability(nil)
			if w.Name == "holdfast-node-agent" {
				want = documented
			}
			if !slices.Equal(has.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(has.Add, want) {
				t.Errorf("%s drops %v and has %v, want %v", w.Name, has.Drop, has.Add, want)
			}
		}
	}
}

// TestStoresAreOpenedAsExpected: what is shipped opens a store by its location's record, so that
// nothing is written to another store in its place. The check of a location alone opens any.
func TestStoresAreOpenedAsExpected(t *testing.T) {
	allowed := map[string][]string{ // names by which a store is opened, or told where it is, and where they may occur
		"store.Open":              {"pkg/catalog/index/local.go", "pkg/store/storetest/"}, // a folder of the process's own
		"store.OpenFollowing":     {"pkg/location/", "pkg/repository/storage.go"},
		"location.OpenUnverified": {"pkg/controllers/storagelocation/"},
		"repository.Location":     {"pkg/repository/opener/"},
	}
	for path, file := range parsed(t, false) {
		ast.Inspect(file, func(node ast.Node) bool {
			var of ast.Expr
			switch n := node.(type) {
			case *ast.CallExpr:
				of = n.Fun
			case *ast.CompositeLit:
				of = n.Type
			}
			selected, ok := of.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := selected.X.(*ast.Ident)
			if !ok {
				return true
			}
			name := from.Name + "." + selected.Sel.Name
			if places, guarded := allowed[name]; guarded && !slices.ContainsFunc(places, func(place string) bool { return strings.HasPrefix(path, place) }) {
				t.Errorf("%s uses %s: open the store with location.Open, or a repository with package opener, which know whether it is the expected one", path, name)
			}
			return true
		})
	}
}
