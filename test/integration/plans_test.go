// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/cli"
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

	all := must(t, ann, []string{"backup", "create", "b", "-n", namespace, "--dry-run=server", "--show-objects"}, namespace+"/configmaps/conf\n", namespace+"/secrets/key\n")
	mustNotContain(t, "the list of objects", all, []string{role, other})
	if _, problem, code := plugin(t, sam, "backup", "create", "b", "-n", namespace, "--dry-run=server", "--show-objects"); code == 0 || !strings.Contains(problem, "forbidden") {
		t.Errorf("a stranger's list of objects: %d, %s", code, problem)
	}
	// Of an administrator it has every name of the manifest.
	mine := v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: namespace}}
	mine.APIVersion, mine.Kind = v1alpha1.SchemeGroupVersion.String(), "Backup"
	body, err := json.Marshal(mine)
	if err != nil {
		t.Fatal(err)
	}
	var listed struct{ Items []v1alpha1.PlannedRelated }
	posted, problem, err := lab.TryKubectl(t, string(body), "create", "--raw", api+"/namespaces/"+namespace+"/backups/b/plan", "-f", "-")
	if err == nil {
		err = json.Unmarshal([]byte(posted), &listed)
	}
	if err != nil {
		t.Fatalf("the list of objects: %v: %s", err, problem)
	}
	names := map[string]bool{}
	for _, of := range listed.Items {
		names[of.Resource+" "+of.Namespace+"/"+of.Name] = true
	}

	must(t, ann, []string{"backup", "create", "b", "-n", namespace, "--wait"}, "Completed")
	var held struct {
		Items []struct{ Group, Resource, Namespace, Name string }
	}
	if err := json.Unmarshal(lab.Request(t, "GET", api+"/namespaces/"+namespace+"/backups/b/manifest", "application/json").Body, &held); err != nil {
		t.Fatal(err)
	}
	counts := map[v1alpha1.PlannedObjects]int64{}
	for _, item := range held.Items {
		resource := schema.GroupResource{Group: item.Group, Resource: item.Resource}.String()
		counts[v1alpha1.PlannedObjects{Resource: resource, Namespace: item.Namespace}]++
		key := resource + " " + item.Namespace + "/" + item.Name
		if !names[key] {
			t.Errorf("the list of objects lacks %s", key)
		}
		delete(names, key)
	}
	if len(names) > 0 {
		t.Errorf("the backup lacks %v of the list of objects", names)
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

// TestPlanOfARestore: a developer's dry run shows what a restore with planOnly tells, by the real kubectl
// and the plugin, and what the restore then does. Nothing is written. Who may not create the restore is
// refused as at its creation.
func TestPlanOfARestore(t *testing.T) {
	ann, sam, namespace := labtest.Name("ann"), labtest.Name("sam"), lab.Namespace(t, "restoreplanned")
	lab.Grant(t, ann, "edit", namespace)
	lab.Grant(t, sam, "edit", lab.Namespace(t, "elsewhere"))
	in := func(args ...string) []string { return append(args, "-n", namespace) }
	for _, name := range []string{"equal", "changed", "lost"} {
		lab.Kubectl(t, in("create", "configmap", name, "--from-literal=a=1")...)
	}
	lab.Kubectl(t, in("create", "secret", "generic", "key", "--from-literal=a=1")...)
	lab.Kubectl(t, in("create", "quota", "lost")...)
	must(t, ann, in("backup", "create", "b", "--wait"), "Completed")
	lab.Kubectl(t, in("patch", "configmap", "changed", "-p", `{"data":{"a":"2"}}`)...)
	lab.Kubectl(t, in("delete", "configmap/lost", "quota/lost")...)

	file := filepath.Join(t.TempDir(), "restore.yaml")
	text := "apiVersion: holdfast.io/v1alpha1\nkind: Restore\nmetadata:\n  name: r\n  namespace: " + namespace + "\nspec:\n  backupName: b\n  existingResourcePolicy: update\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mark := lab.AuditMark(t)
	answer := lab.Kubectl(t, "create", "--dry-run=server", "-f", file, "-o", "json", "--as="+ann)
	var planned v1alpha1.Restore
	if err := json.Unmarshal([]byte(answer), &planned); err != nil {
		t.Fatal(err)
	}
	plan := planned.Status.Plan
	if plan == nil || !plan.Complete {
		t.Fatalf("the plan is %+v: %s", plan, answer)
	}
	for _, write := range lab.WritesSince(t, mark) {
		// A dry run of a creation, and questions about rights, are no writes. Kubernetes deletes the
		// namespaces of other tests meanwhile.
		if strings.HasPrefix(write.User.Username, "system:serviceaccount:kube-system:") {
			continue
		}
		about := write.Verb + " " + write.ObjectRef.Resource
		if !strings.Contains(write.RequestURI, "dryRun=All") && !strings.HasSuffix(write.ObjectRef.Resource, "accessreviews") && (write.ObjectRef.Namespace == namespace || strings.HasPrefix(write.ObjectRef.Resource, "restore")) {
			t.Errorf("the dry run made a write: %s of %s by %s", about, write.ObjectRef.Name, write.User.Username)
		}
	}
	must(t, ann, in("restore", "create", "r", "--from", "b", "--existing-resource-policy", "update", "--dry-run=server"), "configmaps", "update", "created (server dry run)")

	_, refused, _ := lab.TryKubectl(t, "", "create", "-f", file, "--as="+sam)
	_, dry, err := lab.TryKubectl(t, "", "create", "--dry-run=server", "-f", file, "--as="+sam)
	if err == nil || dry != refused || !strings.Contains(dry, "forbidden") {
		t.Errorf("a stranger's dry run says %q, and their creation %q", dry, refused)
	}

	told := func(name string, more ...string) (map[v1alpha1.PlannedActions]int64, *v1alpha1.Restore) {
		t.Helper()
		if _, problem, code := plugin(t, ann, in(append([]string{"restore", "create", name, "--from", "b", "--existing-resource-policy", "update", "--yes", "--wait"}, more...)...)...); code != cli.ExitOK {
			t.Fatalf("the restore %s: %d, %s", name, code, problem)
		}
		var of struct {
			Items []struct{ Kind, Namespace, Action string }
		}
		if err := json.Unmarshal([]byte(lab.Kubectl(t, "get", "--raw", restorePath(namespace, name, "plan"), "--as="+ann)), &of); err != nil {
			t.Fatal(err)
		}
		counts := map[v1alpha1.PlannedActions]int64{}
		for _, item := range of.Items {
			resource, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: item.Kind})
			counts[v1alpha1.PlannedActions{Resource: resource.Resource, Namespace: item.Namespace, Action: item.Action}]++
		}
		restore, err := lab.Holdfast.HoldfastV1alpha1().Restores(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return counts, restore
	}
	got := map[v1alpha1.PlannedActions]int64{}
	for _, of := range plan.Objects {
		resource, _, _ := strings.Cut(of.Resource, ".")
		got[v1alpha1.PlannedActions{Resource: resource, Namespace: of.Namespace, Action: of.Action}] += of.Count
	}
	for _, name := range []string{"planned", "done"} {
		var more []string
		if name == "planned" {
			more = []string{"--plan-only"}
		}
		want, restore := told(name, more...)
		if !maps.Equal(got, want) {
			t.Errorf("the dry run has %v, and the restore %s %v", got, name, want)
		}
		if plan.Errors != restore.Status.Errors || plan.Warnings != restore.Status.Warnings {
			t.Errorf("the dry run has %d errors and %d warnings, and the restore %s %+v", plan.Errors, plan.Warnings, name, restore.Status)
		}
	}
	if got[v1alpha1.PlannedActions{Resource: "configmaps", Namespace: namespace, Action: "update"}] != 1 || len(plan.Problems) != 1 || !strings.Contains(plan.Problems[0].Message, "resourcequotas") {
		t.Errorf("the plan is %+v", plan)
	}
}
