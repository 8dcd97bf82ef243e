// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package binaries

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestBuildDoesNothingUntilASourceChanges(t *testing.T) {
	source, bin := t.TempDir(), t.TempDir()
	write(t, filepath.Join(source, "go.mod"), "module example.test\n\ngo 1.26\n")
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() { print(1) }\n")
	program := target{name: "hello", folder: ".", pkg: ".", sources: []string{"go.mod", "main.go"}}

	// build returns whether it built anew.
	build := func() bool {
		t.Helper()
		var out bytes.Buffer
		if err := (Builder{Source: source, Bin: bin, Out: &out}).build(t.Context(), program); err != nil {
			t.Fatal(err)
		}
		upToDate := strings.Contains(out.String(), "up to date")
		if upToDate == strings.Contains(out.String(), "building hello") {
			t.Fatalf("it says %q", out.String())
		}
		return !upToDate
	}
	if !build() {
		t.Error("nothing built at first")
	}
	if build() {
		t.Error("built again without a change")
	}
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() { print(2) }\n")
	if !build() {
		t.Error("a changed source was not built")
	}
	if err := os.Remove(filepath.Join(bin, "hello")); err != nil {
		t.Fatal(err)
	}
	if !build() {
		t.Error("a program that went missing was not built")
	}
}

// Tests that run at once may find that the same program is missing.
func TestBuildOfOneProgramByManyAtOnce(t *testing.T) {
	source, bin := t.TempDir(), t.TempDir()
	write(t, filepath.Join(source, "go.mod"), "module example.test\n\ngo 1.26\n")
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() { print(1) }\n")
	program := target{name: "hello", folder: ".", pkg: ".", sources: []string{"go.mod", "main.go"}}
	errs := make(chan error)
	const builders = 4
	for range builders {
		go func() { errs <- Builder{Source: source, Bin: bin, Out: io.Discard}.build(t.Context(), program) }()
	}
	for range builders {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	left, err := os.ReadDir(bin)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range left {
		names = append(names, entry.Name())
	}
	if want := []string{"hello", "hello.stamp"}; !slices.Equal(names, want) {
		t.Errorf("the folder holds %q, want %q", names, want)
	}
}

func TestBuildWithoutGoSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Builder{Source: "..", Out: &bytes.Buffer{}}.Kube(t.Context())
	if err == nil || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("error %v", err)
	}
}

func TestMissingNamesProgramAndCommand(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "etcd"), "")
	if err := Missing(bin, "etcd"); err != nil {
		t.Error(err)
	}
	err := Missing(bin, "etcd", "kubectl")
	if err == nil || !strings.Contains(err.Error(), "kubectl") || !strings.Contains(err.Error(), "lab build --bin "+bin) {
		t.Errorf("error %v", err)
	}
}

// The versions that the programs report are those of the modules, and the newest is the default.
func TestVersionsOfKubernetes(t *testing.T) {
	files, err := filepath.Glob("../kubernetes-*.mod")
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no other version: %v", err)
	}
	newest, target, err := Builder{Source: ".."}.kubernetes()
	if err != nil || target.modfile != "go.mod" || !strings.Contains(target.ldflags, "gitVersion=v"+newest+" ") {
		t.Errorf("the default is %s by %+v: %v", newest, target, err)
	}
	for _, file := range files {
		mod, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		required := requirement.FindSubmatch(mod)
		if required == nil || filepath.Base(file) != "kubernetes-"+string(required[1])+".mod" {
			t.Errorf("%s requires k8s.io/kubernetes %q, want the version of its name", file, required)
			continue
		}
		version, target, err := Builder{Source: "..", Kubernetes: "v" + string(required[1])}.kubernetes()
		if err != nil || target.modfile != filepath.Base(file) || !strings.Contains(target.ldflags, "gitVersion=v"+version+" ") {
			t.Errorf("%s is built by %+v: %v", version, target, err)
		}
		if _, _, err = (Builder{Source: "..", Kubernetes: "1.2.3"}).kubernetes(); err == nil || !strings.Contains(err.Error(), newest) || !strings.Contains(err.Error(), version) {
			t.Errorf("of an unknown version it says %v, want %s and %s in it", err, newest, version)
		}
		// These choose a version by its name.
		for _, name := range []string{"Makefile", ".ci/run", ".github/workflows/ci.yaml"} {
			content, err := os.ReadFile("../../../" + name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(content), version) || name != ".ci/run" && !strings.Contains(string(content), newest) {
				t.Errorf("%s does not name %s and %s, the versions that build here", name, newest, version)
			}
		}
	}
}

// Two versions lie side by side, and the plain names are those of the one that was chosen last.
func TestTwoVersionsLieSideBySide(t *testing.T) {
	source, bin := t.TempDir(), t.TempDir()
	mod := "module example.test\n\ngo 1.26\n\nrequire (\n\tk8s.io/kubernetes v%s\n)\n\nreplace k8s.io/kubernetes => ./kubernetes\n"
	write(t, filepath.Join(source, "go.mod"), fmt.Sprintf(mod, "1.37.2"))
	write(t, filepath.Join(source, "go.sum"), "")
	write(t, filepath.Join(source, "kubernetes-1.34.4.mod"), fmt.Sprintf(mod, "1.34.4"))
	write(t, filepath.Join(source, "kubernetes-1.34.4.sum"), "")
	write(t, filepath.Join(source, "kubernetes", "go.mod"), "module k8s.io/kubernetes\n\ngo 1.26\n")
	write(t, filepath.Join(source, "kubernetes", "version.go"), "package kubernetes\n")
	write(t, filepath.Join(source, "cmd", "kube", "main.go"), "package main\n\nimport _ \"k8s.io/kubernetes\"\n\nfunc main() { println(1) }\n")
	write(t, filepath.Join(source, "cmd", "pause", "main.go"), "package main\n\nfunc main() {}\n")
	for _, step := range []struct {
		version, is string
		built       bool
	}{{"", "1.37.2", true}, {"1.34.4", "1.34.4", true}, {"1.37.2", "1.37.2", false}, {"1.34.4", "1.34.4", false}} {
		var out bytes.Buffer
		if err := (Builder{Source: source, Bin: bin, Out: &out, Kubernetes: step.version}).Kube(t.Context()); err != nil {
			t.Fatal(err)
		}
		if built := strings.Contains(out.String(), "building kube"); built != step.built {
			t.Errorf("built %s: %t, want %t:\n%s", step.is, built, step.built, out.String())
		}
		for _, program := range append([]string{"pause"}, Programs...) {
			got, err := filepath.EvalSymlinks(filepath.Join(bin, program))
			want, errWant := filepath.EvalSymlinks(filepath.Join(bin, "kubernetes-"+step.is, program))
			if err != nil || errWant != nil || got != want {
				t.Errorf("%s is %s (%v), want %s (%v)", program, got, err, want, errWant)
			}
		}
	}
}
