// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestSelectedComesWithWhatItNeeds: what labels choose is backed up and restored with the account, the
// rights, the Secrets and ConfigMaps that it names, unless the spec says otherwise.
func TestSelectedComesWithWhatItNeeds(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "selected")
	manifestIn(t, namespace, `apiVersion: v1
kind: ServiceAccount
metadata: {name: runner}
imagePullSecrets: [{name: pull}]
---
apiVersion: v1
kind: Secret
metadata: {name: pull}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
---
apiVersion: v1
kind: Secret
metadata: {name: other}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: left-out, labels: {velero.io/exclude-from-backup: "true"}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reads}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reads}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads}
subjects: [{kind: ServiceAccount, name: runner}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: a}}
spec:
  replicas: 0
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      serviceAccountName: runner
      containers: [{name: c, image: example.com/c, envFrom: [{secretRef: {name: key}}, {configMapRef: {name: config}}, {configMapRef: {name: left-out}}, {secretRef: {name: gone}}]}]
`)
	labels := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	needed := []string{"ConfigMap/config", "Role/reads", "RoleBinding/reads", "Secret/key", "Secret/pull", "ServiceAccount/runner"}
	backups := map[string]*v1alpha1.Backup{}
	for name, spec := range map[string]v1alpha1.BackupSpec{
		"with":    {LabelSelector: labels},
		"without": {LabelSelector: labels, IncludeReferenced: new(false)},
		"only":    {LabelSelector: labels, IncludedResources: []string{"deployments", "secrets"}},
		"all":     {},
	} {
		spec.IncludedNamespaces = []string{namespace}
		backups[name] = lab.Create(t, labtest.System, labtest.Name("selected-"+name), spec)
	}
	lists := map[string][]string{}
	for name := range backups {
		backups[name] = lab.AwaitCompleted(t, backups[name].Name)
		plan := want(t, restored(t, restoreRun(backups[name], labtest.Name("plan-"+name), v1alpha1.RestoreSpec{PlanOnly: true})), v1alpha1.RestorePhaseCompleted)
		for _, o := range plan.Items {
			if o.Namespace == namespace && o.Kind != "ReplicaSet" && o.Kind != "Deployment" {
				lists[name] = append(lists[name], o.Kind+"/"+o.Name)
			}
		}
		slices.Sort(lists[name])
	}
	for name, want := range map[string][]string{"with": needed, "without": nil, "only": {"Secret/key"}} {
		if !slices.Equal(lists[name], want) {
			t.Errorf("the backup %s holds %q, want %q", name, lists[name], want)
		}
	}

	lose(t, namespace)
	for name, c := range map[string]struct {
		spec v1alpha1.RestoreSpec
		want []string
	}{
		"without": {v1alpha1.RestoreSpec{LabelSelector: labels, IncludeReferenced: new(false)}, nil},
		"with":    {v1alpha1.RestoreSpec{LabelSelector: labels}, []string{"ConfigMap/config", "Secret/key", "Secret/pull", "ServiceAccount/runner"}},
		"only":    {v1alpha1.RestoreSpec{LabelSelector: labels, IncludedResources: []string{"deployments", "secrets"}}, []string{"Secret/key"}},
	} {
		c.spec.PlanOnly = true
		plan := want(t, restored(t, restoreRun(backups["all"], labtest.Name("chosen-"+name), c.spec)), v1alpha1.RestorePhaseCompleted)
		var got []string
		for _, o := range plan.Items {
			if o.Namespace == namespace && o.Kind != "ReplicaSet" && o.Kind != "Deployment" {
				got = append(got, o.Kind+"/"+o.Name)
			}
		}
		if slices.Sort(got); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("the restore %s takes %q, want %q", name, got, c.want)
		}
	}
	want(t, restored(t, restoreRun(backups["with"], labtest.Name("selected"), v1alpha1.RestoreSpec{})), v1alpha1.RestorePhaseCompleted)
	if account, err := lab.Kube.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "runner", metav1.GetOptions{}); err != nil || len(account.ImagePullSecrets) != 1 {
		t.Errorf("the account is %+v, %v", account, err)
	}
}
