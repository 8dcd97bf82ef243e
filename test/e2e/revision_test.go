// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// published is where the repository is, in commands of the docs.
const published = "https://github.com/holdfast-io/holdfast"

// TestManifestsOfARevision serves this tree by git, and gives kubectl the URL of a tag, by itself
// and in the kustomization of docs/install.md: it takes the manifests of that tag.
func TestManifestsOfARevision(t *testing.T) {
	// Neither kubectl's git nor this one reads the settings of the machine.
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	root, tree := t.TempDir(), t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "git", append([]string{"-C", tree, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, output)
		}
		return strings.TrimSpace(string(output))
	}
	artifacts := filepath.Join(tree, "artifacts")
	if err := os.CopyFS(artifacts, os.DirFS(filepath.Join("..", "..", "artifacts"))); err != nil {
		t.Fatal(err)
	}
	git("init", "--quiet")
	git("add", "--all")
	git("commit", "--quiet", "--message=a release")
	git("tag", "v1.2.3")
	commit := git("rev-parse", "HEAD")
	git("rm", "--quiet", "artifacts/kustomization.yaml") // later revisions are of no use
	git("commit", "--quiet", "--message=later")
	git("clone", "--quiet", "--bare", tree, filepath.Join(root, "holdfast"))
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(git("--exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"},
	})
	defer server.Close()
	repository := server.URL + "/holdfast"

	local := lab.must(t, "kustomize", filepath.Join("..", "..", "artifacts"))
	for _, ref := range []string{"v1.2.3", commit} {
		url := repository + "//artifacts?ref=" + ref
		if lab.must(t, "kustomize", url) != local {
			t.Errorf("the manifests of %s differ from those of the tree", ref)
		}
		lab.must(t, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", url)
	}
	if _, err := lab.kubectl(t.Context(), "", "kustomize", repository+"//artifacts?ref=v9.9.9"); err == nil || !strings.Contains(err.Error(), "v9.9.9") {
		t.Errorf("of a tag that does not exist, kubectl says %v", err)
	}

	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?m)^    resources: \["` + published + `.*\n(    .*\n)+`).FindString(string(page))
	if block == "" {
		t.Fatal("docs/install.md has no kustomization of a revision")
	}
	dir := t.TempDir()
	kustomization := strings.ReplaceAll(regexp.MustCompile(`(?m)^    `).ReplaceAllString(block, ""), published, repository)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	manifests := lab.must(t, "kustomize", dir)
	for _, want := range []string{"image: registry.example.com/holdfast:v1.2.3\n", "--tls-cert-file=/etc/holdfast/tls/tls.crt\n"} {
		if !strings.Contains(manifests, want) {
			t.Errorf("the manifests of the docs' kustomization lack %q", want)
		}
	}
}
