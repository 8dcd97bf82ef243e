// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// pageValues are what the lab changes in the chart, for the reason of overlay: below kubeletDir,
// pods is a link to the folder of all nodes.
const pageValues = `controller:
  extraArgs: [--concurrent-backups=2, --run-retention=2s, --concurrent-maintenance-jobs=10, --maintenance-job-start-timeout=45s]
nodeAgent:
  extraArgs: [--host-pods-dir=/host_pods/$(NODE_NAME)/kubelet/pods]
  kubeletDir: %[1]q
  cacheDir: %[2]q
  hostPathRoots: [%[3]q]
`

// helmScript runs Helm with these values where a command takes values.
const helmScript = `#!/bin/sh
case "$1" in install|upgrade) set -- "$@" --values %[2]q;; esac
exec %[1]q "$@"
`

// page reads a page of the docs, and returns the commands of its sections by their headings: the
// blocks of code, without the lines in which readers name what is theirs.
func page(name string) (map[string]string, error) {
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		return nil, err
	}
	commands := map[string]string{}
	for _, section := range strings.Split(string(content), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		var script strings.Builder
		for line := range strings.Lines(text) {
			if command, found := strings.CutPrefix(line, "    "); found && !strings.HasPrefix(command, "export ") {
				script.WriteString(command)
			}
		}
		if script.Len() > 0 {
			commands[heading] = script.String()
		}
	}
	return commands, nil
}

// reader prepares the folder of a reader, with the charts of the source tree, and returns how
// they run a script: with kubectl, its plugin and Helm in the PATH.
func (c *cluster) reader(ctx context.Context, script string) (*exec.Cmd, error) {
	charts, err := filepath.Abs(filepath.Join("..", "..", "charts"))
	if err != nil {
		return nil, err
	}
	endpoint, accessKey, secretKey, err := c.store()
	if err != nil {
		return nil, err
	}
	work, path, kubelet := c.path("reader"), c.path("reader", "path"), c.path("reader", "kubelet")
	values := c.path("reader", "lab.yaml")
	for _, folder := range []string{path, kubelet} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	for link, target := range map[string]string{filepath.Join(work, "charts"): charts, filepath.Join(kubelet, "pods"): c.path("nodes")} {
		if err := os.Symlink(target, link); err != nil && !os.IsExist(err) {
			return nil, err
		}
	}
	for file, content := range map[string]string{
		values:                      fmt.Sprintf(pageValues, kubelet, c.path("cache"), c.path("nodes", "volumes")),
		filepath.Join(path, "helm"): fmt.Sprintf(helmScript, filepath.Join(c.bin, "helm"), values),
	} {
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			return nil, err
		}
	}
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Dir = work
	command.Env = append(os.Environ(),
		"PATH="+strings.Join([]string{path, c.bin, os.Getenv("PATH")}, string(os.PathListSeparator)),
		"KUBECONFIG="+c.path("kubeconfig"), "KUBECACHEDIR="+c.path("kubectl-cache"),
		"HELM_CACHE_HOME="+c.path("reader", "helm"), "HELM_CONFIG_HOME="+c.path("reader", "helm"), "HELM_DATA_HOME="+c.path("reader", "helm"),
		"BUCKET="+bucket, "REGION=us-east-1", "ENDPOINT="+endpoint, "ACCESS_KEY="+accessKey, "SECRET_KEY="+secretKey)
	return command, nil
}

// quickstart are the steps of docs/quickstart.md, and how long each took.
var (
	quickstart = []string{"1. Install it", "2. Make the first backup", "3. Restore what is lost"}
	pageTook   = map[string]time.Duration{}
)

// quickstart runs the commands of a step of docs/quickstart.md, word for word.
func (c *cluster) quickstart(ctx context.Context, step string) (string, error) {
	commands, err := page("quickstart.md")
	if err != nil {
		return "", err
	}
	command, err := c.reader(ctx, commands[step])
	if err != nil {
		return "", err
	}
	start := time.Now()
	out, err := command.CombinedOutput()
	pageTook[step] = time.Since(start)
	if err != nil {
		return string(out), fmt.Errorf("step %q of the quick start: %w\n%s\nthe commands are\n%s", step, err, out, commands[step])
	}
	return string(out), nil
}

// TestQuickstart runs the steps of docs/quickstart.md after the first one, by which Holdfast was
// installed: a lost Deployment comes back with its data.
func TestQuickstart(t *testing.T) {
	commands, err := page("quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	if headings := slices.Sorted(maps.Keys(commands)); !slices.Equal(headings, quickstart) {
		t.Errorf("the quick start has commands in %q, want three steps", headings)
	}
	// The storage class of the reader's cluster.
	storageClasses(t, 4, "quickstart")
	lab.must(t, "annotate", "storageclass/quickstart", "storageclass.kubernetes.io/is-default-class=true")
	t.Cleanup(func() {
		if _, err := lab.kubectl(context.Background(), "", "delete", "storageclass/quickstart"); err != nil {
			t.Error(err)
		}
	})
	var out string
	for _, step := range quickstart[1:] {
		if out, err = lab.quickstart(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		fmt.Print(out)
	}
	// The last command shows the file.
	if lines := strings.Split(strings.TrimSpace(out), "\n"); lines[len(lines)-1] != "hello" {
		t.Errorf("the last command prints %q, want the restored file with the word hello", lines[len(lines)-1])
	}
	var total time.Duration
	for _, step := range quickstart {
		fmt.Printf("step %q of the quick start took %s\n", step, pageTook[step].Round(time.Second))
		total += pageTook[step]
	}
	fmt.Printf("the quick start took %s\n", total.Round(time.Second))
}

// operations are the commands of docs/operations.md, by section.
func operations(t *testing.T) map[string]string {
	t.Helper()
	commands, err := page("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	return commands
}

// TestOperations runs the commands of docs/operations.md that a chart's release takes: it is
// upgraded, rolled back, and given more, and serves.
func TestOperations(t *testing.T) {
	commands := operations(t)
	const upgrade, sizing = "Upgrade and rollback", "Sizing"
	if headings := slices.Sorted(maps.Keys(commands)); !slices.Equal(headings, []string{"From the manifests to the chart", sizing, upgrade}) {
		t.Errorf("the page has commands in %q: run them here", headings)
	}
	arguments := func() string {
		return lab.must(t, "get", "deployment/holdfast-controller", "-n", system, "-o", "jsonpath={.spec.template.spec.containers[0]}")
	}
	before := arguments()
	for _, script := range []string{commands[upgrade], "helm test holdfast -n holdfast", commands[sizing]} {
		if err := helm(t, script); err != nil {
			t.Fatalf("%v in\n%s", err, script)
		}
	}
	if got := arguments(); !strings.Contains(got, "--concurrent-backups=4") || !strings.Contains(got, `"memory":"2Gi"`) {
		t.Errorf("the controller has %s, want more backups at once and more memory", got)
	}
	if err := helm(t, "helm rollback holdfast -n holdfast"); err != nil {
		t.Fatal(err)
	}
	if got := arguments(); got != before {
		t.Errorf("the controller has %s, and had %s", got, before)
	}
	if err := lab.rolledOut(t.Context()); err != nil {
		t.Fatal(err)
	}
}
