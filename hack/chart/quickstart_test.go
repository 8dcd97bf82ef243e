// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/cli"
)

// TestMain runs helm where this program is called by that name, as the quick start does.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "helm" {
		os.Exit(m.Run())
	}
	if err := helm(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}

// helm does what `helm install NAME CHART` does, by Helm's library. Then it starts the roles, since
// the lab has no nodes that do.
func helm(ctx context.Context, args []string) error {
	if len(args) < 3 || args[0] != "install" {
		return fmt.Errorf("got %v, want install NAME CHART", args)
	}
	config := &action.Configuration{}
	i := action.NewInstall(config)
	i.ReleaseName, i.Timeout = args[1], time.Minute
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	flags.StringVar(&i.Namespace, "n", "", "")
	flags.BoolVar(&i.CreateNamespace, "create-namespace", false, "")
	file := flags.String("f", "", "")
	if err := flags.Parse(args[3:]); err != nil {
		return err
	}
	settings := cli.New() // reads KUBECONFIG
	settings.SetNamespace(i.Namespace)
	if err := config.Init(settings.RESTClientGetter(), i.Namespace, "secret", func(string, ...any) {}); err != nil {
		return err
	}
	values, err := chartutil.ReadValuesFile(*file)
	if err != nil {
		return err
	}
	c, err := loader.Load(args[2])
	if err != nil {
		return err
	}
	release, err := i.RunWithContext(ctx, c, values)
	if err != nil {
		return err
	}
	fmt.Println(release.Info.Notes)
	for _, words := range [][]string{
		// The lab has its own, at another port.
		{"kubectl", "delete", "service", "holdfast-apiserver", "-n", i.Namespace},
		{"lab", "holdfast", "up", "--dir", os.Getenv("LAB"), "--holdfast", os.Getenv("HOLDFAST"), "--artifacts", "artifacts"},
	} {
		command := exec.CommandContext(ctx, words[0], words[1:]...)
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		if err := command.Run(); err != nil {
			return fmt.Errorf("%v: %w", words, err)
		}
	}
	return nil
}

// TestQuickstart runs the commands of docs/quickstart.md, word for word, with the bucket of an S3
// server of its own.
func TestQuickstart(t *testing.T) {
	page, err := os.ReadFile("../../docs/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for line := range strings.Lines(string(page)) {
		// The reader's own bucket.
		if command, found := strings.CutPrefix(line, "    "); found && !strings.HasPrefix(command, "export ") {
			script.WriteString(command)
		}
	}
	if strings.Count(string(page), "\n## ") != 4 {
		t.Error("the quick start has other than three steps, and what comes next")
	}

	bin, err := filepath.Abs("../../.lab/bin")
	if err != nil {
		t.Fatal(err)
	}
	temporary := t.TempDir()
	dir := filepath.Join(temporary, "lab")
	run := func(ctx context.Context, args ...string) string {
		t.Helper()
		output, err := exec.CommandContext(ctx, filepath.Join(bin, "lab"), append(args, "--dir", dir)...).CombinedOutput()
		if err != nil {
			t.Fatalf("lab %v: %v (make programs builds it)\n%s", args, err, output)
		}
		return string(output)
	}
	run(t.Context(), "up", "--bin", bin)
	t.Cleanup(func() { run(context.Background(), "down") })
	field := func(text, name string) string {
		for line := range strings.Lines(text) {
			if value, found := strings.CutPrefix(line, name); found {
				return strings.Trim(value, " =\n")
			}
		}
		t.Fatalf("no %s in %s", name, text)
		return ""
	}
	server := run(t.Context(), "s3", "up")
	credentials, err := os.ReadFile(field(server, "credentials"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(field(server, "buckets"), "backups"), 0o755); err != nil {
		t.Fatal(err)
	}

	// The folder of the reader: the source tree, and a place for values.yaml.
	work, path := filepath.Join(temporary, "work"), filepath.Join(temporary, "path")
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Mkdir(work, 0o755), os.Mkdir(path, 0o755), os.Symlink(own, filepath.Join(path, "helm")),
		os.Symlink(filepath.Join(root, "charts"), filepath.Join(work, "charts")), os.Symlink(filepath.Join(root, "artifacts"), filepath.Join(work, "artifacts")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script.String())
	command.Dir = work
	command.Env = append(os.Environ(),
		"PATH="+strings.Join([]string{path, bin, os.Getenv("PATH")}, string(os.PathListSeparator)),
		"KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "KUBECACHEDIR="+filepath.Join(dir, "cache"),
		"LAB="+dir, "HOLDFAST="+filepath.Join(bin, "holdfast"),
		"BUCKET=backups", "REGION=us-east-1", "ENDPOINT="+field(server, "endpoint"),
		"ACCESS_KEY="+field(string(credentials), "aws_access_key_id"), "SECRET_KEY="+field(string(credentials), "aws_secret_access_key"))
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	// The program of helm test's pod.
	check := exec.CommandContext(t.Context(), filepath.Join(bin, "holdfast"), "check", "--kubeconfig="+filepath.Join(dir, "kubeconfig"))
	if answer, err := check.CombinedOutput(); err != nil || !strings.Contains(string(answer), "the API serves holdfast.io") {
		t.Errorf("holdfast check: %v, %s", err, answer)
	}
	// The last command lists the Deployment.
	if last := strings.Fields(string(output)[strings.LastIndex(strings.TrimSpace(string(output)), "\n"):]); len(last) == 0 || last[0] != "web" {
		t.Errorf("the Deployment is not restored:\n%s", output)
	}
}
