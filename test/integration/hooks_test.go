// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestHooksNeedTheTenantsRight: who may make backups, and run no commands in pods, has nothing
// run there by the controller, which may. The rest is in the backup, and it says why.
func TestHooksNeedTheTenantsRight(t *testing.T) {
	t.Parallel()
	namespace := lab.Namespace(t, "hooks")
	cleo := labtest.Name("cleo")
	lab.Bind(t, cleo, "holdfast-edit", namespace)
	lab.Grant(t, cleo, "holdfast-view", namespace)
	lab.Pod(t, namespace, labtest.Unattended) // whose volume is left out, so nobody waits for it
	_, err := as(t, cleo).HoldfastV1alpha1().Backups(namespace).Create(t.Context(), &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Name: "frozen"},
		Spec: v1alpha1.BackupSpec{
			DefaultVolumesToFsBackup: new(true),
			Hooks: v1alpha1.BackupHooks{Resources: []v1alpha1.BackupResourceHookSpec{{
				Name: "freeze",
				Pre:  []v1alpha1.BackupResourceHook{{Exec: &v1alpha1.ExecHook{Command: []string{"freeze"}}}},
				Post: []v1alpha1.BackupResourceHook{{Exec: &v1alpha1.ExecHook{Command: []string{"thaw"}}}},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := lab.AwaitPhase(t, namespace, "frozen", v1alpha1.BackupPhasePartiallyFailed)
	if hooks := ended.Status.HookStatus; hooks == nil || hooks.HooksAttempted != 2 || hooks.HooksFailed != 2 || ended.Status.Errors != 1 || ended.Status.Volumes != nil {
		t.Errorf("got %+v, %+v", ended.Status, hooks)
	}
	log := lab.Request(t, http.MethodGet, "/apis/holdfast.io/v1alpha1/namespaces/"+namespace+"/backups/frozen/results", "")
	want := "its hooks were not run: " + cleo + ", who asked for the backup, may not create pods/exec in the namespace " + namespace
	if !strings.Contains(string(log.Body), want) {
		t.Errorf("%d, and not in the results: %s\n%s", log.Code, want, log.Body)
	}
}
