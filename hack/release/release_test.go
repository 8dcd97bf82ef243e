// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

const version = "v1.2.3-rc.1"

// made is a release out of programs of the lab: the plugin for this machine, and small programs
// in the places of others.
type made struct {
	files map[string][]byte
	key   *ecdsa.PrivateKey
}

var here = program{name: plugin, os: runtime.GOOS, architecture: runtime.GOARCH}

// makeRelease writes a release, and reads it back.
func makeRelease(t *testing.T, key *ecdsa.PrivateKey) made {
	t.Helper()
	bin := filepath.Join("..", "..", ".lab", "bin")
	programs := t.TempDir()
	for place, file := range map[string]string{
		"holdfast/linux/arm64/holdfast":                           "pause",
		"kubectl-holdfast/windows/amd64/kubectl-holdfast.exe":     "pause",
		filepath.Join(plugin, here.os, here.architecture, plugin): plugin,
	} {
		content, err := os.ReadFile(filepath.Join(bin, file))
		if err != nil {
			t.Fatalf("%v (make programs builds it)", err)
		}
		write(t, filepath.Join(programs, place), content, 0o755)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "key.pem")
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600)
	man := filepath.Join(t.TempDir(), "man")
	pages := exec.CommandContext(t.Context(), "go", "run", "-C", "../clidocs", ".", "-man", man)
	pages.Env = append(os.Environ(), "TZ=UTC", "SOURCE_DATE_EPOCH=1790000000")
	if output, err := pages.CombinedOutput(); err != nil {
		t.Fatalf("man pages: %v: %s", err, output)
	}
	r := release{version: version, programs: programs, man: man, tree: "../..", out: filepath.Join(t.TempDir(), "out"), key: keyFile, created: time.Unix(1790000000, 0).UTC()}
	if err := r.write(); err != nil {
		t.Fatal(err)
	}
	m := made{files: map[string][]byte{}, key: key}
	there, err := os.ReadDir(r.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range there {
		if m.files[entry.Name()], err = os.ReadFile(filepath.Join(r.out, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.write(); err == nil || !strings.Contains(err.Error(), "must be empty") {
		t.Errorf("a second release in the same folder: got %v, want a refusal", err)
	}
	return m
}

func write(t *testing.T, path string, content []byte, mode fs.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, mode)); err != nil {
		t.Fatal(err)
	}
}

// TestRelease makes a release twice, and uses it as a stranger does: it verifies signature and
// checksums, unpacks the plugin and runs it, and reads the manifests.
func TestRelease(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	m, again := makeRelease(t, key), makeRelease(t, key)
	for name, content := range m.files {
		if !bytes.Equal(content, again.files[name]) {
			t.Errorf("%s differs when it is made again", name)
		}
	}

	signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(m.files["SHA256SUMS.sig"])))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(m.files["SHA256SUMS"]); !ecdsa.VerifyASN1(&m.key.PublicKey, sum[:], signature) {
		t.Error("the signature of SHA256SUMS is wrong")
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(m.files["SHA256SUMS"])) {
		sum, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		listed[name] = sum
	}
	for name, content := range m.files {
		if !strings.HasPrefix(name, "SHA256SUMS") && listed[name] != digest(content) {
			t.Errorf("SHA256SUMS has %q for %s, want %s", listed[name], name, digest(content))
		}
	}

	t.Run("the plugin runs from its archive", func(t *testing.T) {
		files := unpack(t, m.files[here.archive(version)])
		if len(files["LICENSE"]) == 0 {
			t.Error("the archive has no LICENSE")
		}
		path := filepath.Join(t.TempDir(), "kubectl-holdfast")
		write(t, path, files["kubectl-holdfast"], 0o755)
		if output, err := exec.CommandContext(t.Context(), path, "version", "--client").CombinedOutput(); err != nil || !strings.HasPrefix(string(output), "Client: ") {
			t.Errorf("got %v, %s", err, output)
		}
		if help := files["kubectl_complete-holdfast"]; !bytes.HasPrefix(help, []byte("#!/bin/sh\n")) {
			t.Errorf("the archive has the program for completion %q", help)
		}
		for page, says := range map[string]string{"kubectl-holdfast": "holdfast", "kubectl-holdfast-backup-create": "--dry-run", "kubectl-holdfast-location-check": "probe"} {
			text := strings.ReplaceAll(string(files["man/man1/"+page+".1"]), `\-`, "-")
			if !strings.Contains(text, says) || !strings.Contains(text, "Sep 2026") {
				t.Errorf("the man page %s is %.200q, want one of September 2026 with %q", page, text, says)
			}
			if home, err := os.UserHomeDir(); err == nil && home != "/" && strings.Contains(text, home) {
				t.Errorf("the man page %s names the folder %s of this machine", page, home)
			}
		}
		zipped := m.files["kubectl-holdfast_"+version+"_windows_amd64.zip"]
		r, err := zip.NewReader(bytes.NewReader(zipped), int64(len(zipped)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fs.Stat(r, "kubectl-holdfast.exe"); err != nil {
			t.Error(err)
		}
	})

	t.Run("krew finds the archives", func(t *testing.T) {
		var manifest struct {
			Metadata struct{ Name string }
			Spec     struct {
				Version          string
				ShortDescription string
				Platforms        []struct {
					Selector         struct{ MatchLabels map[string]string }
					URI, SHA256, Bin string
				}
			}
		}
		if err := yaml.Unmarshal(m.files["holdfast.yaml"], &manifest); err != nil {
			t.Fatal(err)
		}
		if manifest.Metadata.Name != "holdfast" || manifest.Spec.Version != version || len(manifest.Spec.Platforms) != 2 {
			t.Errorf("got %+v, want the version %s for two platforms", manifest, version)
		}
		if len(manifest.Spec.ShortDescription) > 50 {
			t.Errorf("krew's index refuses a short description of %d characters", len(manifest.Spec.ShortDescription))
		}
		for _, platform := range manifest.Spec.Platforms {
			name := filepath.Base(platform.URI)
			if platform.SHA256 != listed[name] || !strings.Contains(platform.URI, "/"+version+"/") {
				t.Errorf("got %+v, want the checksum %q", platform, listed[name])
			}
		}
	})

	t.Run("the SBOM lists modules", func(t *testing.T) {
		var bom cdx.BOM
		if err := cdx.NewBOMDecoder(bytes.NewReader(m.files[here.archive(version)+".cdx.json"]), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		if bom.Metadata.Component.Version != version {
			t.Errorf("it is about %+v", bom.Metadata.Component)
		}
		for _, want := range []string{"std", "k8s.io/client-go", "github.com/spf13/cobra"} {
			if !slices.ContainsFunc(*bom.Components, func(c cdx.Component) bool {
				return c.Name == want && c.Version != "" && strings.HasPrefix(c.PackageURL, "pkg:golang/"+want+"@")
			}) {
				t.Errorf("it lists no %s", want)
			}
		}
	})

	t.Run("Helm loads the chart", func(t *testing.T) {
		chart, err := loader.LoadArchive(bytes.NewReader(m.files["holdfast-"+strings.TrimPrefix(version, "v")+".tgz"]))
		if err != nil {
			t.Fatal(err)
		}
		if err := chart.Validate(); err != nil {
			t.Error(err)
		}
		if chart.Metadata.Version != version[1:] || chart.Metadata.AppVersion != version || len(chart.Templates) < 10 || chart.Schema == nil {
			t.Errorf("got %+v with %d templates", chart.Metadata, len(chart.Templates))
		}
	})

	t.Run("install.yaml names the image", func(t *testing.T) {
		images, kinds := 0, map[string]int{}
		for _, document := range strings.Split(string(m.files["install.yaml"]), "\n---\n") {
			var o struct {
				APIVersion, Kind string
				Spec             struct {
					Template struct {
						Spec struct{ Containers []struct{ Image string } }
					}
				}
			}
			if err := yaml.Unmarshal([]byte(document), &o); err != nil || o.APIVersion == "" {
				t.Fatalf("%v in\n%s", err, document)
			}
			kinds[o.Kind]++
			for _, container := range o.Spec.Template.Spec.Containers {
				images++
				if want := image + ":" + version; container.Image != want {
					t.Errorf("%s has the image %s, want %s", o.Kind, container.Image, want)
				}
			}
		}
		crds, err := filepath.Glob("../../artifacts/crds/*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if images != 3 || kinds["CustomResourceDefinition"] != len(crds) || kinds["APIService"] != 1 {
			t.Errorf("got %d images in %v", images, kinds)
		}
	})
}

// TestWhatMakesNoRelease: wrong input is refused, and named.
func TestWhatMakesNoRelease(t *testing.T) {
	programs := t.TempDir()
	write(t, filepath.Join(programs, plugin, "linux", "amd64", plugin), nil, 0o755)
	for says, r := range map[string]release{
		"want one like v1.2.3": {version: "079fc88-dirty", programs: t.TempDir(), out: t.TempDir()},
		"has no programs":      {version: version, programs: t.TempDir(), out: t.TempDir()},
		"has no man pages":     {version: version, programs: programs, tree: "../..", out: t.TempDir()},
	} {
		if err := r.write(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	write(t, file, []byte("no key"), 0o600)
	if _, err := sign(file, nil); err == nil || !strings.Contains(err.Error(), "openssl genpkey") {
		t.Errorf("got %v, want an error that says how to make a key", err)
	}
}

// unpack returns the files of a tar.gz.
func unpack(t *testing.T, content []byte) map[string][]byte {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}
