// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// exitCode is how a kubectl ended.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// TestGitOps: who states what is to be there has a Backup and a Restore created, finds them as they
// should be, in their own words, and is told what to do instead of a change.
func TestGitOps(t *testing.T) {
	t.Parallel()
	ann, namespace := labtest.Name("ann"), lab.Namespace(t, "gitops")
	lab.Grant(t, ann, "edit", namespace)
	as := "--as=" + ann
	try := func(manifest string, args ...string) (string, error) {
		t.Helper()
		stdout, stderr, err := lab.TryKubectl(t, manifest, append([]string{as, "-n", namespace}, args...)...)
		return stdout + stderr, err
	}
	must := func(want, manifest string, args ...string) {
		t.Helper()
		if said, err := try(manifest, args...); err != nil || !strings.Contains(said, want) {
			t.Errorf("kubectl %s: %v: %s, want %q", strings.Join(args, " "), err, said, want)
		}
	}
	refused := func(manifest string, args []string, want ...string) {
		t.Helper()
		lab.Refused(t, manifest, append([]string{as, "-n", namespace}, args...), want...)
	}
	serverSide := func(manager string, more ...string) []string {
		return append([]string{"apply", "--server-side", "--field-manager=" + manager, "-f", "-"}, more...)
	}
	clientSide := []string{"apply", "-f", "-"}
	diff := []string{"diff", "-f", "-"}
	serverDiff := []string{"diff", "--server-side", "--field-manager=flux", "-f", "-"}

	for _, test := range []struct {
		plural, kind, name, spec, other, field, subresource string
	}{
		{"backups", "Backup", "settled", "{ttl: 720h, itemOperationTimeout: 4h}", "{ttl: 90m}", "spec.ttl", "deletion"},
		{"restores", "Restore", "settled", "{backupName: settled}", "{backupName: settled, existingResourcePolicy: update}", "spec.existingResourcePolicy", "cancel"},
	} {
		t.Run(test.plural, func(t *testing.T) {
			manifest := fmt.Sprintf("apiVersion: holdfast.io/v1alpha1\nkind: %s\nmetadata: {name: %s, namespace: %s, labels: {app: shop}}\nspec: %%s\n", test.kind, test.name, namespace)
			same, other := fmt.Sprintf(manifest, test.spec), fmt.Sprintf(manifest, test.other)
			get := func() metav1.Object {
				t.Helper()
				var object metav1.Object
				var err error
				if test.plural == "backups" {
					object, err = lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), test.name, metav1.GetOptions{})
				} else {
					object, err = lab.Holdfast.HoldfastV1alpha1().Restores(namespace).Get(t.Context(), test.name, metav1.GetOptions{})
				}
				if apierrors.IsNotFound(err) {
					return nil
				}
				if err != nil {
					t.Fatal(err)
				}
				return object
			}
			absent := func(after string) {
				t.Helper()
				if object := get(); object != nil {
					t.Fatalf("after %s there is %v", after, object)
				}
			}

			if said, err := try(same, serverDiff...); exitCode(err) != 1 || !strings.Contains(said, test.name) {
				t.Errorf("diff of a new one says %d: %s", exitCode(err), said)
			}
			if said, err := try(same, diff...); exitCode(err) != 1 || !strings.Contains(said, test.name) {
				t.Errorf("diff of a new one says %d: %s", exitCode(err), said)
			}
			must("serverside-applied", same, serverSide("flux", "--dry-run=server")...)
			absent("dry runs")
			refused("", []string{"patch", test.plural, test.name, "--type=merge", "-p", "{}"}, "not found")
			refused(fmt.Sprintf(manifest, "{nonsense: 1}"), serverSide("flux"), "nonsense")
			absent("what is refused")

			must("serverside-applied", same, serverSide("flux")...)
			created := get()
			if created == nil {
				t.Fatal("it is not there")
			}
			must("serverside-applied", same, serverSide("flux")...)
			must("serverside-applied", same, serverSide("argocd")...)
			must("", same, clientSide...)
			must("", same, clientSide...)
			labtest.Eventually(t, "it to end: a diff reads it twice", func() error {
				switch object := get().(type) {
				case *v1alpha1.Backup:
					if !object.Status.Phase.Ended() {
						return fmt.Errorf("it is %s", object.Status.Phase)
					}
				case *v1alpha1.Restore:
					if !object.Status.Phase.Ended() {
						return fmt.Errorf("it is %s", object.Status.Phase)
					}
				}
				return nil
			})
			if said, err := try(same, diff...); err != nil {
				t.Errorf("diff of the same says %d: %s", exitCode(err), said)
			}
			if said, err := try(same, serverDiff...); err != nil {
				t.Errorf("diff of the same says %d: %s", exitCode(err), said)
			}
			must("replaced", same, "replace", "-f", "-")

			for _, args := range [][]string{serverSide("flux"), serverSide("argocd", "--force-conflicts"), clientSide, {"replace", "-f", "-"}} {
				refused(other, args, "is invalid", test.field, "stays as it was asked for")
			}
			for _, args := range [][]string{serverDiff, diff} {
				if said, err := try(other, args...); exitCode(err) != 1 || !strings.Contains(said, "without dry run this is refused") {
					t.Errorf("diff of another says %d: %s", exitCode(err), said)
				}
			}
			must("", other, serverSide("flux", "--dry-run=server")...)
			refused("", []string{"label", test.plural, test.name, "a=b"}, "metadata.labels", "stays as it was asked for")
			refused("", []string{"annotate", test.plural, test.name, "a=b"}, "metadata.annotations", "stays as it was asked for")
			refused("", []string{"patch", test.plural, test.name, "--type=json", "-p", `[{"op":"add","path":"/metadata/finalizers","value":["holdfast.test/x"]}]`}, "metadata.finalizers")
			edited := t.TempDir() // kubectl leaves there what it could not save, and why
			edit := lab.Command(t.Context(), as, "-n", namespace, "edit", test.plural, test.name)
			edit.Env = append(edit.Env, "KUBE_EDITOR=sed -i s/shop$/other/", "TMPDIR="+edited)
			output, err := edit.CombinedOutput()
			files, _ := filepath.Glob(filepath.Join(edited, "*.yaml"))
			why := ""
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				why += string(text)
			}
			if err == nil || !strings.Contains(string(output), "is invalid") || !strings.Contains(why, "stays as it was asked for") {
				t.Errorf("editing: %v: %s, %s", err, output, why)
			}
			lab.Refused(t, "", []string{"delete", test.plural, test.name, "-n", namespace}, "MethodNotAllowed", test.name+"/"+test.subresource)
			now := get()
			if now.GetUID() != created.GetUID() || len(now.GetManagedFields()) != 0 || gocmp.Diff(now.GetLabels(), created.GetLabels()) != "" {
				t.Errorf("it was %v, and is %v", created, now)
			}
			if test.plural == "backups" {
				lab.AwaitPhase(t, namespace, test.name, v1alpha1.BackupPhaseCompleted)
				if out := lab.Kubectl(t, "get", "hfb", test.name, "-n", namespace, "-o", "yaml"); !strings.Contains(out, "ttl: 720h\n") {
					t.Errorf("in the words of its maker 720h, it is\n%s", out)
				}
			}
		})
	}

	// What creates needs the right to create.
	bob := labtest.Name("bob")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: bob}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"holdfast.io"}, Resources: []string{"backups"}, Verbs: []string{"get", "patch"}}}}
	if _, err := lab.Kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Kube.RbacV1().ClusterRoles().Delete(context.Background(), bob, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	lab.Bind(t, bob, bob, namespace)
	bobs := fmt.Sprintf("apiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata: {name: bobs, namespace: %s}\n", namespace)
	labtest.Eventually(t, "bob's right to patch", func() error {
		_, stderr, err := lab.TryKubectl(t, bobs, "--as="+bob, "apply", "--server-side", "-f", "-")
		if err == nil || !strings.Contains(stderr, `cannot create resource "backups"`) {
			return fmt.Errorf("%v: %s", err, stderr)
		}
		return nil
	})
	if _, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).Get(t.Context(), "bobs", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what bob may not create: %v", err)
	}
}

// TestManifestsOfGitOps: the examples on the page are taken.
func TestManifestsOfGitOps(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/gitops.md")
	if err != nil {
		t.Fatal(err)
	}
	namespace := lab.Namespace(t, "gitops-page")
	found := 0
	for _, block := range strings.Split(string(page), "\n\n") {
		if !strings.HasPrefix(block, "    apiVersion:") {
			continue
		}
		found++
		manifest := strings.ReplaceAll(strings.ReplaceAll(block, "\n    ", "\n"), "namespace: shop", "namespace: "+namespace)
		if _, stderr, err := lab.TryKubectl(t, strings.TrimSpace(manifest), "apply", "--server-side", "--dry-run=server", "-f", "-"); err != nil {
			t.Errorf("%v: %s\n%s", err, stderr, manifest)
		}
	}
	if found != 2 {
		t.Errorf("%d manifests, want those of Flux and Argo CD", found)
	}
}
