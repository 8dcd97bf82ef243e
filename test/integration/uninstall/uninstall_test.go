// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package uninstall tests that Holdfast can be removed. It has a lab of its own, since nothing
// of Holdfast is left there.
package uninstall

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

var lab *labtest.Lab

func TestMain(m *testing.M) {
	os.Exit(labtest.Main(m, labtest.Options{Root: "../../.."}, func(l *labtest.Lab) { lab = l }))
}

// deleteByMistake deletes all manifests at once, twice: no key, credential or record is lost,
// and the same manifests bring the rest back.
func deleteByMistake(t *testing.T) {
	t.Helper()
	lab.Kubectl(t, "create", "secret", "generic", "shop.default.key", "-n", "holdfast-repositories", "--from-literal=repository-password=x")
	lab.Kubectl(t, "create", "secret", "generic", "offsite", "-n", "holdfast-locations", "--from-literal=accessKeyID=x")

	for range 2 {
		deletion := lab.Command(t.Context(), "delete", "-k", "../../../artifacts", "--ignore-not-found")
		output, err := deletion.CombinedOutput()
		if err == nil {
			t.Fatalf("all was deleted by one command:\n%s", output)
		}
		for _, refused := range []string{"holdfast", "holdfast-locations", "holdfast-repositories"} {
			if !strings.Contains(string(output), "kubectl label namespace "+refused+" holdfast.io/allow-deletion=true") {
				t.Errorf("the answer does not say how to delete the namespace %s:\n%s", refused, output)
			}
		}
		if !strings.Contains(string(output), "kubectl label crd scheduleentries.engine.holdfast.io holdfast.io/allow-deletion=true") {
			t.Errorf("the answer does not say how to delete the CRD of the schedules:\n%s", output)
		}
	}
	// Nothing that is listed as a collection is deleted either.
	if output, err := lab.Command(t.Context(), "delete", "--raw=/apis/apiextensions.k8s.io/v1/customresourcedefinitions?limit=50").CombinedOutput(); err == nil {
		t.Errorf("all CRDs were deleted:\n%s", output)
	}
	lab.Kubectl(t, "get", "secret", "shop.default.key", "-n", "holdfast-repositories")
	lab.Kubectl(t, "get", "secret", "offsite", "-n", "holdfast-locations")
	lab.Kubectl(t, "get", "secret", "holdfast-signing-key", "-n", "holdfast")
	lab.Kubectl(t, "get", "storagelocations.engine.holdfast.io", "default", "-n", "holdfast")
	// Whatever is not Holdfast's is deleted as ever.
	lab.Kubectl(t, "create", "namespace", "other")
	lab.Kubectl(t, "delete", "namespace", "other", "--timeout=60s")

	lab.Kubectl(t, "wait", "--for=delete", "namespace/holdfast-agents", "namespace/holdfast-maintenance", "--timeout=60s")
	commands(t, func(command string) bool { return strings.HasPrefix(command, "kubectl patch ") })
	lab.Kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", "../../../artifacts")
	// The policy is a new one, which holds from a moment later.
	labtest.Eventually(t, "the policy's refusal", func() error {
		output, err := lab.Command(t.Context(), "delete", "namespace", "holdfast-repositories", "--dry-run=server").CombinedOutput()
		if err == nil {
			return fmt.Errorf("the namespace with the keys would be deleted: %s", output)
		}
		return nil
	})
}

// TestUninstall runs the commands by which docs/install.md removes Holdfast, with backups and
// locations in the cluster: they succeed, and leave nothing.
func TestUninstall(t *testing.T) {
	lab.Backup(t, "last", "default")
	lab.AwaitCompleted(t, "last")
	// A lab has a part of the manifests only.
	lab.Kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", "../../../artifacts")

	deleteByMistake(t)
	snapshotInStorage(t)
	commands(t, func(string) bool { return true })

	if left := lab.Kubectl(t, "get", "volumesnapshots,volumesnapshotcontents", "-A", "-o", "name"); left != "" {
		t.Errorf("%s is still there", left)
	}
	for _, resource := range []string{"namespaces", "customresourcedefinitions", "apiservices", "clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "flowschemas", "prioritylevelconfigurations"} {
		for name := range strings.FieldsSeq(lab.Kubectl(t, "get", resource, "-o", "name")) {
			if strings.Contains(name, "holdfast") {
				t.Errorf("%s is still there", name)
			}
		}
	}
	// The cluster works as before.
	lab.Kubectl(t, "create", "namespace", "after")
	lab.Kubectl(t, "delete", "namespace", "after", "--timeout=60s")
}

// snapshotInStorage makes what an interrupted backup has left of a snapshot. The lab has no CSI
// driver, and so definitions without a schema are enough.
func snapshotInStorage(t *testing.T) {
	t.Helper()
	for kind, scope := range map[string]string{"VolumeSnapshotContent": "Cluster", "VolumeSnapshot": "Namespaced"} {
		plural := strings.ToLower(kind) + "s"
		create(t, fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[1]s.snapshot.storage.k8s.io
  annotations: {api-approved.kubernetes.io: unapproved}
spec:
  group: snapshot.storage.k8s.io
  scope: %[2]s
  names: {kind: %[3]s, plural: %[1]s}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, plural, scope, kind))
		lab.Kubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "crd/"+plural+".snapshot.storage.k8s.io")
	}
	create(t, `apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata:
  name: interrupted
  labels: {engine.holdfast.io/cluster-uid: x}
  finalizers: [engine.holdfast.io/stored-snapshot]
`)
	create(t, `apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata:
  name: exposed
  labels: {engine.holdfast.io/moves-for-cluster: x}
  finalizers: [snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection]
`)
	create(t, `apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata:
  name: interrupted
  namespace: default
  labels: {engine.holdfast.io/cluster-uid: x}
`)
}

func create(t *testing.T, manifest string) {
	t.Helper()
	labtest.Eventually(t, "the object", func() error { // kubectl may not know a new kind at once
		_, stderr, err := lab.TryKubectl(t, manifest, "create", "-f", "-")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, stderr)
		}
		return err
	})
}

// commands runs those of the commands by which docs/install.md removes Holdfast.
func commands(t *testing.T, which func(command string) bool) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Removing it\n")
	if !found {
		t.Fatal("docs/install.md does not say how to remove Holdfast")
	}
	script := []string{"set -o errexit -o nounset -o pipefail"}
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		command, ok := strings.CutPrefix(line, "    ")
		if ok && which(command) {
			script = append(script, redirection.ReplaceAllString(strings.TrimSpace(command), ">/dev/null"))
		}
	}
	if len(script) == 1 {
		t.Fatal("docs/install.md has no such command")
	}
	removal := exec.CommandContext(t.Context(), "bash", "-c", strings.Join(script, "\n"))
	kubectl := lab.Command(t.Context())
	removal.Dir, removal.Env = "../../..", append(kubectl.Env, "PATH="+filepath.Dir(kubectl.Path)+":"+os.Getenv("PATH"))
	if output, err := removal.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v: %s", strings.Join(script, "\n"), err, output)
	}
}

// redirection is where a command of the page writes what it has read.
var redirection = regexp.MustCompile(`>[a-z]+\.yaml$`)
