// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/cli"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// plugin runs kubectl holdfast, found by the real kubectl, and returns its exit code.
func plugin(t *testing.T, user string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return pluginIn(t, lab, user, args...)
}

// pluginIn runs kubectl holdfast in a lab.
func pluginIn(t *testing.T, lab *labtest.Lab, user string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	if user != "" {
		args = append(args, "--as="+user)
	}
	return kubectlIn(t, lab, append([]string{"holdfast"}, args...)...)
}

// kubectlIn runs the real kubectl, which finds the plugin and its completion.
func kubectlIn(t *testing.T, lab *labtest.Lab, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	command := lab.Command(t.Context(), args...)
	completion, err := filepath.Abs("../../cmd/kubectl-holdfast")
	if err != nil {
		t.Fatal(err)
	}
	command.Env = append(command.Environ(), "PATH="+lab.Bin()+":"+completion+":"+os.Getenv("PATH"))
	var out, problems strings.Builder
	command.Stdout, command.Stderr = &out, &problems
	err = command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running the plugin: %v", err)
	}
	return out.String(), problems.String(), command.ProcessState.ExitCode()
}

// must runs kubectl holdfast, and fails unless all of what is wanted is printed.
func must(t *testing.T, user string, args []string, want ...string) string {
	t.Helper()
	stdout, stderr, code := plugin(t, user, args...)
	if code != cli.ExitOK {
		t.Fatalf("kubectl holdfast %s: exit code %d: %s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	for _, text := range want {
		if !strings.Contains(stdout, text) {
			t.Errorf("kubectl holdfast %s prints %q, want %q in it", strings.Join(args, " "), stdout, text)
		}
	}
	return stdout
}

// TestPlugin: a developer does all of the daily work by kubectl holdfast.
func TestPlugin(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(filepath.Join(lab.Bin(), "kubectl-holdfast")); err != nil {
		t.Fatalf("the plugin is missing: run make build: %v", err)
	}
	user, namespace := labtest.Name("ann"), lab.Namespace(t, "plugin")
	lab.Grant(t, user, "edit", namespace)
	in := func(args ...string) []string { return append(args, "-n", namespace) }
	lab.Kubectl(t, "create", "configmap", "conf", "-n", namespace, "--from-literal=a=1")
	lab.Kubectl(t, "create", "serviceaccount", "app", "-n", namespace)

	must(t, user, in("backup", "create", "first", "--dry-run=server", "-o", "json"), `"name": "first"`)
	must(t, user, in("backup", "create", "first", "--wait", "--ttl", "48h", "--labels", "team=a"), "backup.holdfast.io/first created", "backup first ended: Completed")
	must(t, user, in("backup", "get"), "NAME", "first", "Completed")
	must(t, user, in("backup", "get", "first", "-o", "name"), "backup.holdfast.io/first")
	var read v1alpha1.Backup
	if err := json.Unmarshal([]byte(must(t, user, in("backup", "get", "first", "-o", "json"))), &read); err != nil || read.Labels["team"] != "a" {
		t.Errorf("it is read as %+v: %v", read.ObjectMeta, err)
	}
	must(t, user, in("backup", "describe", "first"), "Phase:", "Completed", "Requester:", user)
	must(t, user, in("backup", "logs", "first", "-f"), "Completed")
	must(t, user, in("backup", "results", "first"), "No errors and no warnings.")
	must(t, user, in("backup", "tree", "first"), namespace, "ConfigMap/conf", "ServiceAccount/app")
	must(t, user, in("backup", "tree", "first", "-o", "dot"), "digraph backup", "/ConfigMap/conf")
	must(t, user, in("backup", "tree", "first", "-o", "mermaid"), "graph LR")
	must(t, user, in("queue"))
	must(t, user, in("status"), "Queue:", "Last backups of the namespace", "first")
	must(t, user, in("volumes"))
	must(t, "", in("top"), "THROUGHPUT", labtest.Node)
	must(t, user, []string{"version", "--client"}, "Client:")
	must(t, "", []string{"__complete", "-n", namespace, "backup", "describe", "f"}, "first")
	if stdout, stderr, code := kubectlIn(t, lab, "__complete", "holdfast", "-n", namespace, "backup", "describe", "f"); code != 0 || !strings.Contains(stdout, "first") {
		t.Errorf("kubectl completes the name of a backup as %q, with %q and the exit code %d", stdout, stderr, code)
	}

	lab.Kubectl(t, "patch", "configmap", "conf", "-n", namespace, "-p", `{"data":{"a":"2"}}`)
	must(t, user, in("backup", "create", "second", "--wait"))
	must(t, user, in("backup", "diff", "first", "second"), "~ "+namespace+"/ConfigMap/conf")

	lab.Kubectl(t, "delete", "configmap", "conf", "-n", namespace)
	must(t, user, in("restore", "create", "look", "--from", "first", "configmap/conf", "--plan-only", "--wait"))
	must(t, user, in("restore", "plan", "look"), "create", "ConfigMap/conf")
	must(t, user, in("restore", "create", "back", "--from", "first", "configmap/conf", "--yes", "--wait"), "restore back ended: Completed")
	if found, err := lab.Kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), "conf", metav1.GetOptions{}); err != nil || found.Data["a"] != "1" {
		t.Errorf("the ConfigMap is %v, %v", found, err)
	}
	must(t, user, in("restore", "describe", "back"), "Objects:", "created", "first")
	must(t, user, in("restore", "get"), "back")

	must(t, user, in("schedule", "create", "nightly", "--schedule", "0 2 * * *", "--keep-last", "3"), "schedule.holdfast.io/nightly created")
	must(t, user, in("schedule", "pause", "nightly"), "paused")
	must(t, user, in("schedule", "pause", "nightly"), "paused before: unchanged")
	must(t, user, in("schedule", "resume", "nightly"), "resumed")
	must(t, user, in("schedule", "get"), "nightly")
	must(t, user, in("schedule", "run", "nightly", "--wait"), "ended: Completed")
}

// TestPluginRefuses: each refusal has an exit code, names the reason and a next step, and
// changes nothing.
func TestPluginRefuses(t *testing.T) {
	t.Parallel()
	editor, viewer, stranger, namespace := labtest.Name("ann"), labtest.Name("vic"), labtest.Name("sam"), lab.Namespace(t, "refuses")
	lab.Grant(t, editor, "edit", namespace)
	lab.Grant(t, viewer, "view", namespace)
	in := func(args ...string) []string { return append(args, "-n", namespace) }
	must(t, editor, in("backup", "create", "kept", "--wait"))
	for name, test := range map[string]struct {
		user string
		args []string
		code int
		want string
	}{
		"a stranger":               {stranger, in("backup", "get"), cli.ExitFailed, "forbidden"},
		"a viewer creates":         {viewer, in("backup", "create", "x"), cli.ExitFailed, "forbidden"},
		"an editor deletes":        {editor, in("backup", "delete", "kept", "--yes"), cli.ExitFailed, "forbidden"},
		"an unknown name":          {editor, in("backup", "describe", "nothing"), cli.ExitFailed, "not found"},
		"a name is missing":        {editor, in("backup", "logs"), cli.ExitUsage, "want one"},
		"an unknown flag":          {editor, in("backup", "create", "x", "--nothing"), cli.ExitUsage, "unknown flag"},
		"an unknown command":       {editor, in("backup", "explode"), cli.ExitUsage, "unknown command"},
		"deleting without a word":  {editor, in("backup", "delete", "kept"), cli.ExitUsage, "--yes"},
		"restoring without a word": {editor, in("restore", "create", "r", "--from", "kept"), cli.ExitUsage, "--yes"},
		"no such output":           {editor, in("backup", "get", "-o", "xml"), cli.ExitUsage, "xml"},
		"an object without a name": {editor, in("restore", "create", "r", "--from", "kept", "configmap/", "--yes"), cli.ExitUsage, "KIND/NAME"},
		"an unknown backup":        {editor, in("restore", "create", "r", "--from", "nothing", "--yes"), cli.ExitFailed, "nothing"},
		"an invalid spec":          {editor, in("backup", "create", "x", "--include-namespaces", "kube-system"), cli.ExitFailed, "kube-system"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := plugin(t, test.user, test.args...)
			if code != test.code || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "goroutine") {
				t.Errorf("exit code %d, want %d with %q: %s%s", code, test.code, test.want, stdout, stderr)
			}
		})
	}
}
