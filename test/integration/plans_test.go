// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestPlanOfABackup: a developer's dry run shows what the backup then holds, by the real kubectl and
// the plugin. It creates nothing, and shows nobody else's names. Who may not create the backup gets
// no plan.
func TestPlanOfABackup(t *testing.T) {
	t.Parallel()
	ann, sam, namespace, other := labtest.Name("ann"), labtest.Name("sam"), lab.Namespace(t, "planned"), lab.Namespace(t, "unplanned")
	lab.Grant(t, ann, "edit", namespace)
	lab.Kubectl(t, "create", "configmap", "conf", "-n", namespace, "--from-literal=a=1")
	lab.Kubectl(t, "create", "configmap", "no", "-n", namespace)
	lab.Kubectl(t, "label", "configmap", "no", "-n", namespace, "velero.io/exclude-from-backup=true")
	lab.Kubectl(t, "create", "secret", "generic", "key", "-n", namespace, "--from-literal=a=1")
	lab.Kubectl(t, "create", "serviceaccount", "app", "-n", namespace)
	role := labtest.Name("foreign-role")
	lab.Kubectl(t, "create", "clusterrolebinding", role, "--clusterrole=view", "--serviceaccount="+namespace+":app")
	t.Cleanup(func() {
		if err := lab.Kube.RbacV1().ClusterRoleBindings().Delete(context.Background(), role, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	file := filepath.Join(t.TempDir(), "backup.yaml")
	text := "apiVersion: holdfast.io/v1alpha1\nkind: Backup\nmetadata:\n  name: b\n  namespace: " + namespace + "\nspec: {}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	answer := lab.Kubectl(t, "create", "--dry-run=server", "-f", file, "-o", "json", "--as="+ann)
	var planned v1alpha1.Backup
	if err := json.Unmarshal([]byte(answer), &planned); err != nil {
		t.Fatal(err)
	}
	plan := planned.Status.Plan
	if plan == nil || !plan.Complete || plan.Queue == nil || plan.Queue.Position < 1 {
		t.Fatalf("the plan is %+v: %s", plan, answer)
	}
	mustNotContain(t, "the plan", answer, []string{role, other})
	if !strings.Contains(answer, `"reason": "left out: it has the label velero.io/exclude-from-backup=true"`) {
		t.Errorf("the plan does not say what is left out: %s", answer)
	}
	if list, err := lab.Holdfast.HoldfastV1alpha1().Backups(namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("the dry run has created %v, %v", list, err)
	}
	must(t, ann, []string{"backup", "create", "b", "-n", namespace, "--dry-run=server"}, "configmaps", "LEFT OUT", "Queue:", "created (server dry run)")
	if _, problem, code := plugin(t, sam, "backup", "create", "b", "-n", namespace, "--dry-run=server"); code == 0 || !strings.Contains(problem, "forbidden") {
		t.Errorf("a stranger's dry run: %d, %s", code, problem)
	}

	must(t, ann, []string{"backup", "create", "b", "-n", namespace, "--wait"}, "Completed")
	var held struct {
		Items []struct{ Group, Resource, Namespace string }
	}
	if err := json.Unmarshal(lab.Request(t, "GET", api+"/namespaces/"+namespace+"/backups/b/manifest", "application/json").Body, &held); err != nil {
		t.Fatal(err)
	}
	counts := map[v1alpha1.PlannedObjects]int64{}
	for _, item := range held.Items {
		resource := schema.GroupResource{Group: item.Group, Resource: item.Resource}.String()
		counts[v1alpha1.PlannedObjects{Resource: resource, Namespace: item.Namespace}]++
	}
	for _, of := range plan.Objects {
		key := v1alpha1.PlannedObjects{Resource: of.Resource, Namespace: of.Namespace}
		if counts[key] != of.Count {
			t.Errorf("of %s in %q the plan has %d, and the backup %d", of.Resource, of.Namespace, of.Count, counts[key])
		}
		delete(counts, key)
	}
	if len(counts) > 0 {
		t.Errorf("the plan lacks %v", counts)
	}
}
