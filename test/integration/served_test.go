// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	graph "github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// contentOf asks for a subresource of a backup, as a user.
func contentOf(t *testing.T, user, namespace, backup, what string) labtest.Response {
	t.Helper()
	return lab.RequestAs(t, user, http.MethodGet, api+"/namespaces/"+namespace+"/backups/"+backup+"/"+what, "")
}

func wantContent(t *testing.T, got labtest.Response, code int, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(string(got.Body), text) {
			t.Errorf("without %q: %.2000s", text, got.Body)
		}
	}
	if got.Code != code {
		t.Errorf("%d, not %d: %.2000s", got.Code, code, got.Body)
	}
}

// TestLogOfWhatRuns follows the log of a backup whose controller is killed, and of the next
// attempt, which another controller makes.
func TestLogOfWhatRuns(t *testing.T) {
	lab.StartAnother(t, labtest.AnotherController)
	held := lab.Hold(t, labtest.Name("running-log"))
	reader, stranger := labtest.Name("reader"), labtest.Name("stranger")
	lab.Grant(t, reader, "view", labtest.System)
	wantContent(t, contentOf(t, stranger, labtest.System, held.Name, "log?follow=true"), http.StatusForbidden)
	path := api + "/namespaces/" + labtest.System + "/backups/" + held.Name + "/log?follow=true"
	follow := func() *labtest.Stream {
		stream := lab.Watch(t, reader, path, "")
		labtest.Eventually(t, "the objects to be read", func() error {
			if text := stream.Text(); !strings.Contains(text, "the backup has started") || !strings.Contains(text, "all objects are read") {
				return fmt.Errorf("the log is %q", text)
			}
			return nil
		})
		return stream
	}
	last := func(stream *labtest.Stream) string {
		t.Helper()
		select {
		case <-stream.Ended():
		case <-time.After(time.Minute):
			t.Fatal("the log has not ended")
		}
		lines := strings.Split(strings.TrimSpace(stream.Text()), "\n")
		return lines[len(lines)-1]
	}
	first := follow()
	lab.Kill(t, labtest.Controller)
	if line := last(first); !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "the log breaks off here") {
		t.Errorf("after a kill the log ends with %q", line)
	}
	bury(t, labtest.Controller)
	second := follow() // it waits for who takes over
	held.Release(t)
	if line := last(second); !strings.Contains(line, "the backup ends") {
		t.Errorf("the log of the next attempt ends with %q", line)
	}
	lab.Start(t, labtest.Controller)
	wantContent(t, contentOf(t, reader, labtest.System, held.Name, "log"), http.StatusOK, second.Text())
}

// TestLogOfARunningRestore follows the log of a restore that waits for a pod's container.
func TestLogOfARunningRestore(t *testing.T) {
	t.Parallel()
	ann, namespace := labtest.Name("ann"), lab.Namespace(t, "restoring")
	lab.Grant(t, ann, "edit", namespace)
	pod, _ := lab.Pod(t, namespace, labtest.Unattended)
	name := labtest.Name("of-a-pod")
	lab.Create(t, namespace, name, v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(false)})
	lab.AwaitPhase(t, namespace, name, v1alpha1.BackupPhaseCompleted)
	if err := lab.Kube.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	restores := as(t, ann).HoldfastV1alpha1().Restores(namespace)
	if _, err := restores.Create(t.Context(), &v1alpha1.Restore{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RestoreSpec{
		BackupName: name, IncludedResources: []string{"pods"},
		Hooks: v1alpha1.RestoreHooks{Resources: []v1alpha1.RestoreResourceHookSpec{{Name: "hook", PostHooks: []v1alpha1.RestoreResourceHook{
			{Exec: &v1alpha1.ExecRestoreHook{Command: []string{"true"}}},
		}}}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	follow := make(chan labtest.Response)
	go func() {
		follow <- lab.RequestAs(t, ann, http.MethodGet, restorePath(namespace, name, "log?follow=true"), "")
	}()
	labtest.Eventually(t, "the restore to have a log", func() error {
		answer := lab.RequestAs(t, ann, http.MethodGet, restorePath(namespace, name, "log"), "")
		if answer.Code != http.StatusOK || !strings.Contains(string(answer.Body), "pods") {
			return fmt.Errorf("%d %s", answer.Code, answer.Body)
		}
		return nil
	})
	if restore, err := restores.Get(t.Context(), name, metav1.GetOptions{}); err != nil || restore.Status.Phase.Ended() {
		t.Fatalf("the restore runs no more: %+v, %v", restore.Status, err)
	}
	wantContent(t, lab.RequestAs(t, labtest.Name("stranger"), http.MethodGet, restorePath(namespace, name, "log"), ""), http.StatusForbidden)
	lab.TryKubectl(t, `{"apiVersion":"holdfast.io/v1alpha1","kind":"RestoreCancellation"}`, "create", "--raw", restorePath(namespace, name, "cancel"), "-f", "-")
	followed := <-follow
	wantContent(t, followed, http.StatusOK)
	labtest.Eventually(t, "the log to be stored", func() error {
		if answer := lab.RequestAs(t, ann, http.MethodGet, restorePath(namespace, name, "log"), ""); answer.Code != http.StatusOK || string(answer.Body) != string(followed.Body) {
			return fmt.Errorf("%d %s, and was followed as %s", answer.Code, answer.Body, followed.Body)
		}
		return nil
	})
}

// TestServed reads what a backup has in its store through the API: the log and the
// results, of one that runs, that has ended, whose store is away, and as others.
func TestServed(t *testing.T) {
	t.Parallel()
	location, folder := lab.Location(t, "library")
	name := labtest.Name("served")
	namespace := lab.Namespace(t, "shop")
	lab.Pod(t, namespace, labtest.Unattended) // a volume that nobody uploads
	reader, stranger := labtest.Name("reader"), labtest.Name("stranger")
	lab.Grant(t, reader, "view", labtest.System)

	held := lab.HoldSpec(t, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, StorageLocation: location})
	wantContent(t, contentOf(t, "", labtest.System, name, "results"), http.StatusConflict, "InProgress", "follow=true")
	wantContent(t, contentOf(t, reader, labtest.System, name, "log"), http.StatusOK, "the backup has started")
	wantContent(t, contentOf(t, stranger, labtest.System, name, "log"), http.StatusForbidden)
	wantContent(t, contentOf(t, "", labtest.System, name, "log?folow=true"), http.StatusBadRequest, "folow")
	following := make(chan labtest.Response)
	go func() { following <- contentOf(t, reader, labtest.System, name, "log?follow=true") }()
	select {
	case answer := <-following:
		t.Fatalf("the log of a running backup: %d %s", answer.Code, answer.Body)
	case <-time.After(time.Second):
	}
	held.Release(t)
	followed := <-following
	wantContent(t, followed, http.StatusOK, "the backup has started", `msg="backed up" resource=pods`, "the backup ends")
	lab.AwaitRunGone(t, name)

	// kubectl prints it, from the store.
	log := lab.Kubectl(t, "get", "--raw", api+"/namespaces/"+labtest.System+"/backups/"+name+"/log")
	if log != string(followed.Body) {
		t.Errorf("kubectl prints another log:\n%s\nnot\n%s", log, followed.Body)
	}
	var results format.Results
	answer := contentOf(t, reader, labtest.System, name, "results")
	if err := json.Unmarshal(answer.Body, &results); err != nil || answer.Code != http.StatusOK || results.Errors.Count() != 1 || len(results.Errors.Namespaces[namespace]) != 1 {
		t.Errorf("the results of a backup that lacks a volume are %d %s: %v", answer.Code, answer.Body, err)
	}
	wantContent(t, contentOf(t, stranger, labtest.System, name, "log"), http.StatusForbidden)
	wantContent(t, contentOf(t, "", labtest.System, "of-nobody", "log"), http.StatusNotFound)

	// The store is away, and back without the log.
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	wantContent(t, contentOf(t, "", labtest.System, name, "log"), http.StatusServiceUnavailable, "the folder of the storage location does not exist")
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, format.LogKey(name))); err != nil {
		t.Fatal(err)
	}
	wantContent(t, contentOf(t, "", labtest.System, name, "log"), http.StatusNotFound, "has no log in the storage location", location)
}

// TestTenantsReadTheirOwn: of an administrator's backup, a tenant who may read manifests and
// objects there sees what it holds of their own namespaces, Secrets if they may get Secrets.
func TestTenantsReadTheirOwn(t *testing.T) {
	t.Parallel()
	orchard, cellar := lab.Namespace(t, "orchard"), lab.Namespace(t, "cellar")
	lab.Pod(t, orchard, labtest.Unattended)
	lab.Pod(t, cellar, labtest.Unattended)
	for _, namespace := range []string{orchard, cellar} {
		for name, data := range map[string]string{"plain": "apple", "other": strings.Repeat("pear ", 1000)} {
			if _, err := lab.Kube.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"fruit": name}}, StringData: map[string]string{"key": data}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	name := labtest.Name("whole")
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{orchard, cellar}})
	lab.AwaitCompleted(t, name)
	ann, bob := labtest.Name("ann"), labtest.Name("bob")
	lab.Grant(t, ann, "edit", orchard)
	lab.Grant(t, bob, "view", cellar)
	for _, user := range []string{ann, bob} {
		wantContent(t, contentOf(t, user, labtest.System, name, "manifest"), http.StatusForbidden)
		lab.Grant(t, user, "holdfast-view", labtest.System)
	}

	list := func(user, query string) map[string]*graph.Item {
		t.Helper()
		answer := contentOf(t, user, labtest.System, name, "manifest?format=ndjson&"+query)
		wantContent(t, answer, http.StatusOK)
		// Administrators are warned of other tests' stores, too.
		warned := slices.ContainsFunc(answer.Header.Values("Warning"), func(text string) bool { return strings.Contains(text, "what is shown is what you may read") })
		if warned != (user != "") {
			t.Errorf("the answer to %q has the warnings %q", user, answer.Header["Warning"])
		}
		items := map[string]*graph.Item{}
		for line := range strings.Lines(string(answer.Body)) {
			item := &graph.Item{}
			if err := json.Unmarshal([]byte(line), item); err != nil {
				t.Fatalf("%v: %q", err, line)
			}
			if user == ann && item.Namespace != orchard || user == bob && (item.Namespace != cellar || item.KindName == "Secret") {
				t.Errorf("%s is shown %s", user, item)
			}
			items[item.GroupKind()+" "+item.Namespace+"/"+item.Name] = item
		}
		return items
	}
	all, anns, bobs := list("", ""), list(ann, ""), list(bob, "")
	if len(all) != len(anns)+len(list("", "namespace="+cellar))+len(list("", "namespace=")) || all["v1/Secret "+cellar+"/plain"] == nil || all["v1/Namespace /"+orchard] == nil {
		t.Errorf("the manifest has %d items, and Ann's %d", len(all), len(anns))
	}
	if anns["v1/Secret "+orchard+"/plain"] == nil || bobs["v1/ConfigMap "+cellar+"/kube-root-ca.crt"] == nil {
		t.Errorf("of their own are shown to Ann %d, and to Bob %d items", len(anns), len(bobs))
	}
	if some := list("", "kind=Secret&labelSelector=fruit&namespace="+orchard); len(some) != 2 {
		t.Errorf("with a label there are %d Secrets", len(some))
	}

	object := func(user, namespace, kind, name2 string) labtest.Response {
		t.Helper()
		return contentOf(t, user, labtest.System, name, "objects?kind="+kind+"&namespace="+namespace+"&name="+name2)
	}
	live, err := lab.Kube.CoreV1().Secrets(orchard).Get(t.Context(), "plain", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	answer := object(ann, orchard, "Secret", "plain")
	stored := &corev1.Secret{}
	if err := json.Unmarshal(answer.Body, stored); err != nil || answer.Code != http.StatusOK || stored.UID != live.UID || string(stored.Data["key"]) != "apple" || answer.Header.Get("Content-Type") != "application/json" {
		t.Errorf("the stored Secret is %d %s: %v", answer.Code, answer.Body, err)
	}
	if sum := format.NewContent(answer.Body); sum.SHA256 != all["v1/Secret "+orchard+"/plain"].SHA256 {
		t.Errorf("its checksum is another one than in the manifest")
	}
	wantContent(t, object(ann, cellar, "Secret", "plain"), http.StatusForbidden)
	wantContent(t, object(ann, cellar, "Secret", "absent"), http.StatusForbidden)
	wantContent(t, object(ann, "", "Namespace", orchard), http.StatusForbidden)
	wantContent(t, object(bob, cellar, "Secret", "plain"), http.StatusForbidden, "secrets")
	wantContent(t, object(bob, cellar, "ConfigMap", "kube-root-ca.crt"), http.StatusOK, "BEGIN CERTIFICATE")
	wantContent(t, object("", "", "Namespace", orchard), http.StatusOK, `"kind":"Namespace"`)
	wantContent(t, object("", orchard, "Secret", "absent"), http.StatusNotFound, "holds no Secret")

	// A tenant's own backup needs no more than the right to see it.
	lab.Create(t, orchard, "own", v1alpha1.BackupSpec{})
	lab.AwaitPhase(t, orchard, "own", v1alpha1.BackupPhaseCompleted)
	wantContent(t, contentOf(t, ann, orchard, "own", "manifest?kind=Secret"), http.StatusOK, `"plain"`)
	wantContent(t, contentOf(t, ann, orchard, "own", "log"), http.StatusOK, "plain")
	wantContent(t, contentOf(t, bob, orchard, "own", "manifest"), http.StatusForbidden)
	own := lab.Kubectl(t, "get", "--raw", api+"/namespaces/"+orchard+"/backups/own/objects?kind=secret&namespace="+orchard+"&name=other")
	if !strings.Contains(own, `"name":"other"`) {
		t.Errorf("kubectl prints %s", own)
	}
}
