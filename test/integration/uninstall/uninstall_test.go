// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package uninstall tests that Holdfast can be removed. It has a lab of its own, since nothing
// of Holdfast is left there.
package uninstall

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

var lab *labtest.Lab

func TestMain(m *testing.M) {
	os.Exit(labtest.Main(m, labtest.Options{Root: "../../.."}, func(l *labtest.Lab) { lab = l }))
}

// TestUninstall runs the commands by which docs/install.md removes Holdfast, with backups and
// locations in the cluster: they succeed, and leave nothing.
func TestUninstall(t *testing.T) {
	lab.Backup(t, "last", "default")
	lab.AwaitCompleted(t, "last")
	// A lab has a part of the manifests only.
	lab.Kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", "../../../artifacts")

	page, err := os.ReadFile("../../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Removing it\n")
	if !found {
		t.Fatal("docs/install.md does not say how to remove Holdfast")
	}
	commands := []string{"set -o errexit -o nounset -o pipefail"}
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands = append(commands, strings.ReplaceAll(strings.TrimSpace(command), ">keys.yaml", ">/dev/null"))
		}
	}
	removal := exec.CommandContext(t.Context(), "bash", "-c", strings.Join(commands, "\n"))
	kubectl := lab.Command(t.Context())
	removal.Dir, removal.Env = "../../..", append(kubectl.Env, "PATH="+filepath.Dir(kubectl.Path)+":"+os.Getenv("PATH"))
	if output, err := removal.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v: %s", strings.Join(commands, "\n"), err, output)
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
