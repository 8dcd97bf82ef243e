// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/cli"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestFindAndHistory: a developer finds the backups that hold an object, and its versions, by the real
// kubectl and the plugin. Nobody finds anything in a namespace of others, nor a Secret without the
// right to it.
func TestFindAndHistory(t *testing.T) {
	t.Parallel()
	ann, vic, sam, namespace := labtest.Name("ann"), labtest.Name("vic"), labtest.Name("sam"), lab.Namespace(t, "searched")
	lab.Grant(t, ann, "edit", namespace)
	lab.Grant(t, vic, "view", namespace)
	lab.Grant(t, sam, "edit", lab.Namespace(t, "elsewhere"))
	in := func(args ...string) []string { return append(args, "-n", namespace) }
	lab.Kubectl(t, "create", "configmap", "conf", "-n", namespace, "--from-literal=a=1")
	lab.Kubectl(t, "label", "configmap", "conf", "-n", namespace, "app=web")
	lab.Kubectl(t, "create", "secret", "generic", "key", "-n", namespace, "--from-literal=a=1")
	create := func(name string) {
		must(t, ann, in("backup", "create", name, "--wait"))
		// Backups of the same second have no order but their names'.
		started := lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseCompleted).Status.StartTimestamp
		labtest.Eventually(t, "the next second", func() error {
			if now := time.Now(); now.Unix() <= started.Unix() {
				return fmt.Errorf("it is %s", now)
			}
			return nil
		})
	}
	create("first")
	create("second")
	lab.Kubectl(t, "patch", "configmap", "conf", "-n", namespace, "-p", `{"data":{"a":"2"}}`)
	create("third")

	got := must(t, ann, in("find", "configmap/conf"), "BACKUP", "third", "second", "first", namespace+"/ConfigMap/conf")
	if strings.Index(got, "third") > strings.Index(got, "first") {
		t.Errorf("the newest backup is not the first: %s", got)
	}
	got = must(t, ann, in("history", "configmap/conf", "-o", "wide"), "second, first", "third")
	if lines := strings.Count(strings.TrimSpace(got), "\n"); lines != 2 {
		t.Errorf("the history has %d versions, not 2: %s", lines, got)
	}
	must(t, ann, in("find", "configmaps", "-l", "app=web", "-o", "json"), `"backup": "second"`)
	must(t, ann, in("find", "secret/key"), "first")
	if out, problem, code := plugin(t, vic, in("find", "secret/key")...); code != cli.ExitOK || strings.Contains(out, "key") {
		t.Errorf("a viewer finds the Secret: %d, %s%s", code, out, problem)
	}
	if _, problem, code := plugin(t, sam, in("find", "configmap/conf")...); code != cli.ExitFailed || !strings.Contains(problem, "forbidden") {
		t.Errorf("a stranger: %d, %s", code, problem)
	}
	lab.Kubectl(t, "create", "deployment", "web", "-n", namespace, "--image=registry.example.com/shop/web:1.27", "--replicas=0")
	must(t, ann, in("backup", "create", "fourth", "--wait"))
	if got := must(t, ann, in("find", "--image", "web:1.27"), "fourth", namespace+"/Deployment/web"); strings.Contains(got, "third") {
		t.Errorf("found by image is %s", got)
	}
	table := lab.Kubectl(t, "get", "backupobjects", "-n", namespace, "--field-selector", "image=shop/web", "--as="+ann)
	if !strings.Contains(table, "Deployment/web") {
		t.Errorf("kubectl prints %s", table)
	}

	// The fields of one object that differ.
	must(t, ann, in("backup", "diff", "first", "third", "configmap/conf"), `~ data.a: "1" -> "2"`)
	lab.Kubectl(t, "patch", "configmap", "conf", "-n", namespace, "-p", `{"data":{"b":"3"}}`)
	must(t, ann, in("backup", "diff", "third", "configmap/conf", "--live"), `+ data.b: "3"`)
	lab.Kubectl(t, "patch", "secret", "key", "-n", namespace, "-p", `{"stringData":{"a":"2"}}`)
	got = must(t, ann, in("backup", "diff", "third", "secret/key", "--live"), "~ data.a: (masked) -> (masked)")
	mustNotContain(t, "the difference of a Secret", got, []string{"Mg==", "MQ=="})
	if out, problem, code := plugin(t, vic, in("backup", "diff", "first", "third", "secret/key")...); code != cli.ExitFailed || !strings.Contains(problem, "forbidden") {
		t.Errorf("a viewer compares the Secret: %d, %s%s", code, out, problem)
	}
	table = lab.Kubectl(t, "get", "backupobjects", "-n", namespace, "--field-selector", "kind=ConfigMap,name=conf,backup=first", "--as="+ann)
	if !strings.Contains(table, "first") || strings.Contains(table, "second") {
		t.Errorf("kubectl prints %s", table)
	}
	lab.Refused(t, "", []string{"get", "backupobjects", "-n", namespace, "--as=" + ann}, "BadRequest", "the field selector kind is missing")

	// An administrator's backup names nothing of it in the namespace.
	audit := lab.Create(t, labtest.System, labtest.Name("stocktaking"), v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}})
	lab.AwaitCompleted(t, audit.Name)
	mine := lab.RequestAs(t, ann, http.MethodGet, api+"/namespaces/"+namespace+"/backupobjects?fieldSelector=kind%3DConfigMap", "application/json")
	mustNotContain(t, "what ann finds", string(mine.Body), []string{audit.Name})
	must(t, "", []string{"find", "configmap/conf", "-n", labtest.System, "--object-namespace", namespace}, audit.Name)
	must(t, "", []string{"find", "configmap/conf", "-A", "--object-namespace", namespace}, labtest.System+"/"+audit.Name, namespace+"/third")
}
