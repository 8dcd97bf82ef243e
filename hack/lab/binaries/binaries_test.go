// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package binaries

import (
	"bytes"
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
	err := Builder{Out: &bytes.Buffer{}}.Kube(t.Context())
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

// The version that the programs report is written twice, here and in the module's file.
func TestTheVersionIsThatOfTheModule(t *testing.T) {
	for name, version := range map[string]string{"go.mod": Kubernetes, "newer.mod": Newer} {
		mod, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(mod), "k8s.io/kubernetes "+version+"\n") {
			t.Errorf("%s does not require k8s.io/kubernetes %s", name, version)
		}
	}
}
