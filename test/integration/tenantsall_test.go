// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// TestTenantsAreToldNothingForeign follows what two tenants are sent of every resource and
// subresource that discovery has, byte by byte, while each has schedules, restores and volumes, and
// one of them a backup under way whose log they follow, and one whose store goes. TestTenantsSeeNothingForeign
// has the queue and a store that is away.
func TestTenantsAreToldNothingForeign(t *testing.T) {
	ann, bob := labtest.Name("ann"), labtest.Name("bob")
	barn, attic := lab.Namespace(t, "barn"), lab.Namespace(t, "attic")
	plum, quince := labtest.Name("plum"), labtest.Name("quince")
	stocktaking, drill := labtest.Name("stocktaking"), labtest.Name("drill")
	namespaces, names := map[string]string{ann: barn, bob: attic}, map[string]string{ann: plum, bob: quince}
	foreign := map[string][]string{
		ann: {bob, attic, quince, stocktaking, drill, "lab-admin"},
		bob: {ann, barn, plum, stocktaking, drill, "lab-admin"},
	}
	clean := func(user, what, text string) {
		t.Helper()
		mustNotContain(t, what+" as "+user, text, foreign[user])
	}

	var group metav1.APIResourceList
	if err := json.Unmarshal(lab.Request(t, http.MethodGet, api, "").Body, &group); err != nil || len(group.APIResources) == 0 {
		t.Fatalf("discovery: %v", err)
	}
	streams := map[string][]*labtest.Stream{}
	for user, namespace := range namespaces {
		lab.Grant(t, user, "edit", namespace)
		_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
		if err := os.WriteFile(filepath.Join(folder, "notes"), []byte("the notes of "+user), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, resource := range group.APIResources {
			if resource.Namespaced && slices.Contains(resource.Verbs, "watch") {
				for _, accept := range []string{"", asTable} {
					streams[user] = append(streams[user], lab.Watch(t, user, api+"/namespaces/"+namespace+"/"+resource.Name+"?watch=1", accept))
				}
			}
		}
		streams[user] = append(streams[user], lab.Watch(t, user, "/api/v1/namespaces/"+namespace+"/events?watch=1", ""))
	}

	// The administrator's, of both.
	both := v1alpha1.BackupSpec{IncludedNamespaces: []string{barn, attic}, DefaultVolumesToFsBackup: new(true)}
	lab.Create(t, labtest.System, stocktaking, both)
	lab.AwaitCompleted(t, stocktaking)
	schedule := func(user, namespace, name string, template v1alpha1.BackupSpec) {
		t.Helper()
		client := lab.Holdfast
		if user != "" {
			client = as(t, user)
		}
		if _, err := client.HoldfastV1alpha1().Schedules(namespace).Create(t.Context(), &v1alpha1.Schedule{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.ScheduleSpec{Schedule: "0 3 1 1 *", Template: v1alpha1.ScheduleTemplate{BackupSpec: template}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	schedule("", labtest.System, drill, both)
	t.Cleanup(func() {
		if err := lab.Holdfast.HoldfastV1alpha1().Schedules(labtest.System).Delete(context.Background(), drill, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	for user, namespace := range namespaces {
		schedule(user, namespace, names[user], v1alpha1.BackupSpec{})
		client := as(t, user).HoldfastV1alpha1()
		if _, err := client.Backups(namespace).Create(t.Context(), &v1alpha1.Backup{
			ObjectMeta: metav1.ObjectMeta{Name: names[user]}, Spec: v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		lab.AwaitPhase(t, namespace, names[user], v1alpha1.BackupPhaseCompleted)
		restored, err := client.Restores(namespace).Create(t.Context(), &v1alpha1.Restore{
			ObjectMeta: metav1.ObjectMeta{Name: names[user]}, Spec: v1alpha1.RestoreSpec{BackupName: names[user], PlanOnly: true}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		awaitRestored(t, namespace+"."+names[user])
		for other := range foreign {
			if other != user {
				foreign[other] = append(foreign[other], string(restored.UID))
			}
		}
	}

	// A backup of Ann's that goes on and on.
	loft, running := lab.Namespace(t, "loft"), labtest.Name("running")
	lab.Grant(t, ann, "edit", loft)
	lab.Pod(t, loft, labtest.Unattended)
	foreign[bob] = append(foreign[bob], loft, running)
	if _, err := as(t, ann).HoldfastV1alpha1().Backups(loft).Create(t.Context(), &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Name: running}, Spec: v1alpha1.BackupSpec{DefaultVolumesToFsBackup: new(true)}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.AwaitPhase(t, loft, running, v1alpha1.BackupPhaseInProgress)
	streams[ann] = append(streams[ann], lab.Watch(t, ann, requestPath(loft, running, "log?follow=true"), ""))
	followed := streams[ann][len(streams[ann])-1]
	labtest.Eventually(t, "the log of what runs", func() error {
		if text := followed.Text(); !strings.Contains(text, "all objects are read") {
			return fmt.Errorf("so far it is %s", text)
		}
		return nil
	})

	// One of Ann's whose store goes: where that is is the administrator's.
	ruin, spoilt := lab.Namespace(t, "ruin"), labtest.Name("spoilt")
	location, folder := lab.Location(t, "ruin")
	foreign[ann], foreign[bob] = append(foreign[ann], folder), append(foreign[bob], folder, ruin, spoilt)
	lab.Grant(t, ann, "edit", ruin)
	lab.Pod(t, ruin, labtest.Unattended)
	for _, path := range []string{api + "/namespaces/" + ruin + "/backups?watch=1", "/api/v1/namespaces/" + ruin + "/events?watch=1"} {
		streams[ann] = append(streams[ann], lab.Watch(t, ann, path, ""))
	}
	ofRuin, err := as(t, ann).HoldfastV1alpha1().Backups(ruin).Create(t.Context(), &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Name: spoilt}, Spec: v1alpha1.BackupSpec{StorageLocation: location, DefaultVolumesToFsBackup: new(true)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uploads, itsUploads := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System), metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRun + "=" + string(ofRuin.UID)}
	labtest.Eventually(t, "the volume of "+spoilt+" to wait for an agent", func() error {
		list, err := uploads.List(t.Context(), itsUploads)
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("it has %d VolumeUploads", len(list.Items))
		}
		return err
	})
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	if err := uploads.DeleteCollection(t.Context(), metav1.DeleteOptions{}, itsUploads); err != nil {
		t.Fatal(err)
	}
	failed := lab.AwaitPhase(t, ruin, spoilt, v1alpha1.BackupPhaseFailed)
	if !strings.Contains(failed.Status.FailureReason, "the folder of the storage location does not exist") {
		t.Errorf("it failed for the reason %q", failed.Status.FailureReason)
	}
	for _, path := range []string{api + "/namespaces/" + ruin + "/backups", requestPath(ruin, spoilt, "log"), requestPath(ruin, spoilt, "results"), requestPath(ruin, spoilt, "manifest")} {
		answer := lab.RequestAs(t, ann, http.MethodGet, path, "")
		clean(ann, "the answer to "+path, fmt.Sprintf("%v %s", answer.Header, answer.Body))
	}
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	lab.AwaitRunGone(t, ruin+"."+spoilt)

	filesOf := func(user, namespace string) {
		t.Helper()
		list, err := as(t, user).HoldfastV1alpha1().VolumeBackups(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 {
			t.Errorf("%s sees %d volume backups, %v", user, len(list.Items), err)
			return
		}
		for _, item := range list.Items {
			for path, code := range map[string]int{
				filePath(namespace, item.Name, "files", "/"):             http.StatusOK,
				filePath(namespace, item.Name, "files", "/absent"):       http.StatusNotFound,
				filePath(namespace, item.Name, "content", "/notes"):      http.StatusOK,
				filePath(namespace, item.Name, "content", "/"):           http.StatusBadRequest,
				filePath(labtest.System, item.Name, "content", "/notes"): http.StatusForbidden,
			} {
				answer := lab.RequestAs(t, user, http.MethodGet, path, "")
				if answer.Code != code {
					t.Errorf("%s as %s: %d: %s", path, user, answer.Code, answer.Body)
				}
				clean(user, "the answer to "+path, fmt.Sprintf("%v %s", answer.Header, answer.Body))
			}
			for other, of := range namespaces {
				if other == user {
					continue
				}
				for _, subresource := range []string{"files", "content"} {
					path := filePath(of, item.Name, subresource, "/notes")
					if answer := lab.RequestAs(t, user, http.MethodGet, path, ""); answer.Code != http.StatusForbidden {
						t.Errorf("%s as %s: %d: %s", path, user, answer.Code, answer.Body)
					}
				}
			}
		}
	}
	everything := func() {
		t.Helper()
		for user, namespace := range namespaces {
			filesOf(user, namespace)
			in := api + "/namespaces/" + namespace + "/"
			for _, resource := range group.APIResources {
				of, subresource, _ := strings.Cut(resource.Name, "/")
				var paths []string
				mustAnswer := in + of
				switch {
				case of == "backupobjects": // which need a kind
					for _, kind := range []string{"ConfigMap", "Secret", "Pod", "Namespace", "PersistentVolume"} {
						mustAnswer = in + of + "?fieldSelector=kind=" + kind
						paths = append(paths, mustAnswer, api+"/"+of+"?fieldSelector=kind="+kind)
					}
				case !resource.Namespaced && subresource == "":
					paths = []string{api + "/" + of, api + "/" + of + "/" + labtest.Node}
				case subresource == "" && slices.Contains(resource.Verbs, "list"):
					paths = []string{in + of, in + of + "?limit=1", in + of + "/of-nobody", api + "/" + of, in + of + "/" + names[user]}
				case subresource != "" && slices.Contains(resource.Verbs, "get"):
					paths = []string{in + of + "/" + names[user] + "/" + subresource, in + of + "/of-nobody/" + subresource}
				}
				for _, path := range paths {
					for _, accept := range []string{"application/json", asTable} {
						answer := lab.RequestAs(t, user, http.MethodGet, path, accept)
						if path == mustAnswer && answer.Code != http.StatusOK || answer.Code >= 500 {
							t.Errorf("%s as %s: %d: %s", path, user, answer.Code, answer.Body)
						}
						clean(user, "the answer to "+path, fmt.Sprintf("%v %s", answer.Header, answer.Body))
					}
				}
				if slices.Contains(resource.Verbs, "create") { // with nothing in it
					path := in + of
					if subresource != "" {
						path += "/of-nobody/" + subresource
					}
					for _, path := range []string{path, strings.Replace(path, "/"+namespace+"/", "/"+labtest.System+"/", 1)} {
						answer := lab.RequestAs(t, user, http.MethodPost, path, "application/json")
						if answer.Code < 400 || answer.Code >= 500 {
							t.Errorf("a POST to %s as %s: %d: %s", path, user, answer.Code, answer.Body)
						}
						clean(user, "the answer to a POST to "+path, fmt.Sprintf("%v %s", answer.Header, answer.Body))
					}
				}
			}
			for _, file := range []string{requestPath(namespace, names[user], "log"), requestPath(namespace, names[user], "results"), requestPath(namespace, names[user], "manifest"),
				restorePath(namespace, names[user], "log"), restorePath(namespace, names[user], "results"), restorePath(namespace, names[user], "plan")} {
				if answer := lab.RequestAs(t, user, http.MethodGet, file, ""); answer.Code != http.StatusOK || len(answer.Body) == 0 {
					t.Errorf("%s as %s: %d: %s", file, user, answer.Code, answer.Body)
				}
			}
		}
	}
	everything()

	if _, stderr, err := lab.TryKubectl(t, body("BackupCancellation"), "create", "--raw", requestPath(loft, running, "cancel"), "-f", "-", "--as="+ann); err != nil {
		t.Errorf("%v: %s", err, stderr)
	}
	lab.AwaitPhase(t, loft, running, v1alpha1.BackupPhaseCancelled)
	<-followed.Ended()
	everything()
	for user, of := range streams {
		labtest.Eventually(t, "the schedule in a watch", func() error {
			for _, stream := range of {
				if text := stream.Text(); strings.Contains(text, `"kind":"Schedule"`) && strings.Contains(text, names[user]) {
					return nil
				}
			}
			return fmt.Errorf("no stream of %s has it", user)
		})
		for i, stream := range of {
			stream.Close()
			clean(user, fmt.Sprintf("stream %d", i), stream.Text())
		}
	}
}
