// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// manifestIn has kubectl create the objects of a manifest in a namespace, as people do.
func manifestIn(t *testing.T, namespace, manifest string) {
	t.Helper()
	if _, stderr, err := lab.TryKubectl(t, manifest, "apply", "-n", namespace, "-f", "-"); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
}

// backedUp makes a backup of namespaces, and loses them.
func backedUp(t *testing.T, namespaces ...string) *v1alpha1.Backup {
	t.Helper()
	name := labtest.Name("objects")
	lab.Backup(t, name, namespaces...)
	backup := lab.AwaitCompleted(t, name)
	lose(t, namespaces...)
	return backup
}

// newNamespaces does what controllers do in each new namespace with a label, until the test ends.
func newNamespaces(t *testing.T, selector string, do func(ctx context.Context, namespace string) error) {
	t.Helper()
	watching, err := lab.Kube.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	working.Go(func() {
		for event := range watching.ResultChan() {
			if namespace, ok := event.Object.(*corev1.Namespace); ok && event.Type == "ADDED" {
				if err := do(context.Background(), namespace.Name); err != nil {
					t.Error(err)
				}
			}
		}
	})
	t.Cleanup(func() { watching.Stop(); working.Wait() })
}

// TestRestoreOfNewbornDefaults: pitfall 19. What people have set on the account default, and on the
// accounts that another controller makes in each namespace, is back, whoever is first to create them.
// What a controller keeps there itself stays as it writes it.
func TestRestoreOfNewbornDefaults(t *testing.T) {
	t.Parallel()
	core := lab.Kube.CoreV1()
	label := labtest.Name("builders")
	newNamespaces(t, "builds="+label, func(ctx context.Context, namespace string) error {
		as := metav1.CreateOptions{FieldManager: "openshift-controller-manager"}
		secret := labtest.Name("builder-dockercfg")
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: secret}}}
		_, err := core.ServiceAccounts(namespace).Create(ctx, account, as)
		if apierrors.IsAlreadyExists(err) {
			_, err = core.ServiceAccounts(namespace).Patch(ctx, "builder", types.StrategicMergePatchType, []byte(`{"imagePullSecrets":[{"name":"`+secret+`"}]}`), metav1.PatchOptions{FieldManager: as.FieldManager})
		}
		bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mesh-ca"}, Data: map[string]string{"root.pem": "of " + secret}}
		if _, e := core.ConfigMaps(namespace).Create(ctx, bundle, as); !apierrors.IsAlreadyExists(e) {
			err = errors.Join(err, e)
		}
		return err
	})
	var namespaces []string
	for range 6 {
		namespace := lab.Namespace(t, "newborn")
		namespaces = append(namespaces, namespace)
		if _, err := core.Namespaces().Patch(t.Context(), namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"builds":"`+label+`"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		labtest.Eventually(t, "the accounts", func() error {
			_, err := core.ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
			if err == nil {
				_, err = core.ConfigMaps(namespace).Get(t.Context(), "mesh-ca", metav1.GetOptions{})
			}
			return err
		})
		for _, change := range []struct{ name, patch string }{
			{"default", `{"metadata":{"labels":{"team":"blue"},"annotations":{"eks.amazonaws.com/role-arn":"arn:aws:iam::000000000000:role/app"}},"imagePullSecrets":[{"name":"pull"}],"automountServiceAccountToken":false}`},
			{"builder", `{"metadata":{"labels":{"team":"blue"}},"secrets":[{"name":"push"}]}`},
		} {
			if _, err := core.ServiceAccounts(namespace).Patch(t.Context(), change.name, types.StrategicMergePatchType, []byte(change.patch), metav1.PatchOptions{FieldManager: "kubectl-patch"}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := core.ConfigMaps(namespace).Patch(t.Context(), "mesh-ca", types.MergePatchType, []byte(`{"data":{"note":"mine"}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			t.Fatal(err)
		}
	}
	backup := backedUp(t, namespaces...)
	run := restored(t, restoreRun(backup, labtest.Name("newborn"), v1alpha1.RestoreSpec{}))
	plan := want(t, run, v1alpha1.RestorePhaseCompleted)
	if run.Status.Warnings > 0 {
		results, _ := told(t, run)
		t.Errorf("warnings: %+v", results.Warnings)
	}
	updated := 0
	for _, o := range plan.Items {
		if o.Action == "update" {
			updated++
		}
	}
	t.Logf("%d of the objects were there first", updated)
	for _, namespace := range namespaces {
		account, err := core.ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken || len(account.ImagePullSecrets) != 1 || account.ImagePullSecrets[0].Name != "pull" ||
			account.Labels["team"] != "blue" || account.Annotations["eks.amazonaws.com/role-arn"] == "" {
			t.Errorf("default in %s: %+v", namespace, account)
		}
		labtest.Eventually(t, "the account builder in "+namespace, func() error {
			account, err := core.ServiceAccounts(namespace).Get(t.Context(), "builder", metav1.GetOptions{})
			if err == nil && (account.Labels["team"] != "blue" || len(account.Secrets) != 1 || account.Secrets[0].Name != "push" || len(account.ImagePullSecrets) != 1) {
				err = fmt.Errorf("it is %+v", account)
			}
			return err
		})
		bundle, err := core.ConfigMaps(namespace).Get(t.Context(), "mesh-ca", metav1.GetOptions{})
		if keys := slices.Sorted(maps.Keys(bundle.Data)); err != nil || !slices.Equal(keys, []string{"note", "root.pem"}) || bundle.Data["note"] != "mine" {
			t.Errorf("mesh-ca in %s: %+v, %v", namespace, bundle, err)
		}
	}
}
