// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// served is what the API server lists, by resource and name.
func served(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	objects := map[string]*unstructured.Unstructured{}
	for _, resource := range resources {
		response := lab.Request(t, http.MethodGet, api+"/"+resource, "")
		if response.Code != http.StatusOK {
			t.Fatalf("listing %s: %s", resource, response.Body)
		}
		var list unstructured.UnstructuredList
		if err := json.Unmarshal(response.Body, &list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			objects[resource+" "+object.GetNamespace()+"/"+object.GetName()] = object
		}
	}
	return objects
}

// withoutVersions is what a restart of the API server must not change.
func withoutVersions(objects map[string]*unstructured.Unstructured) map[string]map[string]any {
	result := map[string]map[string]any{}
	for name, object := range objects {
		object = object.DeepCopy()
		object.SetResourceVersion("")
		result[name] = object.Object
	}
	return result
}

// agree waits until informers hold what the API server serves.
func (i *informers) agree(t *testing.T) {
	t.Helper()
	labtest.Eventually(t, "the "+i.name+" to hold what is served", func() error {
		want := contents{}
		for _, resource := range watched {
			want[resource] = map[string]string{}
		}
		for name, object := range served(t) {
			resource, key, _ := strings.Cut(name, " ")
			if held, ok := want[resource]; ok {
				held[key] = object.GetResourceVersion()
			}
		}
		for kind, held := range i.contents(t) {
			if diff := cmp.Diff(want, held); diff != "" {
				return fmt.Errorf("the %s ones differ (-served +held):\n%s", kind, diff)
			}
		}
		return nil
	})
}

// TestAPIServerKilled: it serves the same lists when it is back, and informers
// notice nothing but a pause.
func TestAPIServerKilled(t *testing.T) {
	stored := lab.Namespace(t, "stored")
	lab.PodWithClaim(t, stored, labtest.Node)
	finished := labtest.Name("finished")
	lab.Create(t, labtest.System, finished, v1alpha1.BackupSpec{IncludedNamespaces: []string{stored}, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitCompleted(t, finished)
	lab.AwaitRunGone(t, finished)
	held := lab.Hold(t, labtest.Name("held"))
	var waiting []string
	for range 3 {
		name := labtest.Name("waiting")
		lab.Backup(t, name, held.Namespace)
		waiting = append(waiting, name)
		lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseQueued)
	}
	awaitPosition(t, waiting[2], 3)
	labtest.Eventually(t, "the last progress that "+held.Name+" makes", func() error {
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), held.Name, metav1.GetOptions{})
		if err == nil && (backup.Status.Volumes == nil || backup.Status.Volumes.Total != 1) {
			err = fmt.Errorf("it shows %+v", backup.Status)
		}
		return err
	})

	processes := []*informers{startInformers(t, true), startInformers(t, false)}
	for _, process := range processes {
		process.agree(t)
	}
	before := served(t)
	for _, name := range []string{"backups holdfast/" + finished, "backupqueues holdfast/" + waiting[1], "backupvolumes " + stored + "/data"} {
		if before[name] == nil {
			t.Fatalf("%s is not served, but %v", name, maps.Keys(before))
		}
	}

	lab.Kill(t, labtest.APIServer)
	lab.Start(t, labtest.APIServer)
	labtest.Eventually(t, "the API server to be loaded", func() error {
		for _, resource := range resources {
			if response := lab.Request(t, http.MethodGet, api+"/"+resource, ""); response.Code != http.StatusOK {
				return fmt.Errorf("%s: %d %s", resource, response.Code, response.Body)
			}
		}
		return nil
	})
	after := served(t)
	if diff := cmp.Diff(withoutVersions(before), withoutVersions(after)); diff != "" {
		t.Errorf("what is served has changed (-before +after):\n%s", diff)
	}
	for _, process := range processes {
		process.agree(t)
	}

	// They follow what happens next.
	held.Release(t)
	for _, name := range waiting {
		lab.AwaitCompleted(t, name)
	}
	for _, process := range processes {
		process.agree(t)
	}
}

// TestControllerKilled costs no backup anything: the one that was InProgress goes on, with the
// volume that was handed over.
// Pitfalls 1 and 7: what was let start starts, and the others follow in their order.
func TestControllerKilled(t *testing.T) {
	ready, queue := lab.Namespace(t, "ready"), lab.Namespace(t, "queue")
	held := lab.Hold(t, labtest.Name("interrupted"))
	var queued []string
	for range 3 {
		name := labtest.Name("patient")
		lab.Backup(t, name, held.Namespace, queue)
		lab.AwaitPhase(t, labtest.System, name, v1alpha1.BackupPhaseQueued)
		queued = append(queued, name)
	}
	awaitPosition(t, queued[2], 3)
	tickets := map[string]int64{}
	for _, name := range queued {
		tickets[name] = run(t, name).Status.Ticket
	}
	folder := filepath.Join(lab.Dir, "store", "backups", held.Name)
	if len(files(t, folder)) == 0 {
		t.Fatalf("the backup in progress has nothing in %s", folder)
	}

	upload := uploads(t, held.Name)[0]

	lab.Kill(t, labtest.Controller)
	// One that the dead controller had let start, and not more.
	started := labtest.Name("started")
	lab.Backup(t, started, ready)
	record := run(t, started)
	now := metav1.Now()
	record.Status.Phase, record.Status.Ticket = v1alpha1.BackupPhaseQueued, tickets[queued[2]]+1
	record.Status.QueuedTimestamp = &now
	record, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	letStart(t, records.Start{UID: record.UID, Name: record.Name, At: now})
	lab.AwaitPhase(t, labtest.System, started, v1alpha1.BackupPhaseReadyToStart)
	// One that it has never seen.
	unseen := labtest.Name("unseen")
	lab.Backup(t, unseen, queue)
	lab.AwaitPhase(t, labtest.System, unseen, v1alpha1.BackupPhaseNew)

	starts := watchStarts(t)
	lab.Start(t, labtest.Controller)
	labtest.Eventually(t, "the backup in progress to be taken over", func() error {
		if status := run(t, held.Name).Status; status.Attempts != 2 || status.Phase != v1alpha1.BackupPhaseInProgress {
			return fmt.Errorf("it is %s, by the attempt %d", status.Phase, status.Attempts)
		}
		return nil
	})
	if volumes := uploads(t, held.Name); len(volumes) != 1 || volumes[0].UID != upload.UID {
		t.Errorf("it has the volumes %v, and had %s", volumes, upload.UID)
	}
	labtest.Eventually(t, "the backup in progress to end without its volume", func() error {
		held.LetGo(t) // also what the next attempt hands over after that
		backup, err := lab.Holdfast.HoldfastV1alpha1().Backups(labtest.System).Get(t.Context(), held.Name, metav1.GetOptions{})
		if err == nil && backup.Status.Phase != v1alpha1.BackupPhasePartiallyFailed {
			err = fmt.Errorf("it is %s", backup.Status.Phase)
		}
		return err
	})
	lab.AwaitCompleted(t, started)
	for _, name := range append(queued, unseen) {
		lab.AwaitCompleted(t, name)
	}
	var order []string
	for _, name := range starts.names() {
		if name != started {
			order = append(order, name)
		}
	}
	if diff := cmp.Diff(append(queued, unseen), order); diff != "" {
		t.Errorf("order of the queue (-want +got):\n%s", diff)
	}

	resumed := lab.AwaitPhase(t, labtest.System, held.Name, v1alpha1.BackupPhasePartiallyFailed) // without its volume
	lab.AwaitRunGone(t, held.Name)
	checkFolder(t, folder, held.Name)
	if volumes := uploads(t, held.Name); len(volumes) != 0 {
		t.Errorf("its VolumeUploads are still there: %v", volumes)
	}
	if resumed.Status.FailureReason != "" {
		t.Errorf("it failed for the reason %q", resumed.Status.FailureReason)
	}
	next := labtest.Name("next")
	lab.Backup(t, next, held.Namespace)
	lab.AwaitCompleted(t, next)
}

// uploads are the records of the volumes of a backup.
func uploads(t *testing.T, name string) []enginev1alpha1.VolumeUpload {
	t.Helper()
	all, err := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all.Items, func(record enginev1alpha1.VolumeUpload) bool { return record.Spec.StoreName != name })
}

// TestAgentKilled: no volume is lost with its agent, neither one that was being read, which
// the next agent reads anew, nor one that was handed over while there was none.
func TestAgentKilled(t *testing.T) {
	namespace := lab.Namespace(t, "large")
	pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	large := filepath.Join(folder, "large.img")
	// Reading its zeros takes longer than this test.
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 1<<40); err != nil {
		t.Fatal(err)
	}
	backup := func(prefix string) *v1alpha1.Backup {
		t.Helper()
		return lab.Create(t, labtest.System, labtest.Name(prefix), v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	}
	interrupted := backup("interrupted")
	reading := func(v *enginev1alpha1.VolumeUpload) bool {
		return v.Status.Phase == enginev1alpha1.VolumePhaseInProgress
	}
	volume := awaitVolume(t, interrupted, reading)
	if volume.Spec.Pod.UID != pod.UID || volume.Spec.ClaimName != "data" {
		t.Errorf("the VolumeUpload is of %+v", volume.Spec)
	}
	lab.Kill(t, labtest.Agent)
	lab.Start(t, labtest.Agent)
	again := awaitVolume(t, interrupted, func(v *enginev1alpha1.VolumeUpload) bool { return reading(v) && v.Status.Agent != volume.Status.Agent })
	if again.Status.Attempts != volume.Status.Attempts+1 {
		t.Errorf("attempt %d came after attempt %d", again.Status.Attempts, volume.Status.Attempts)
	}
	lab.Kill(t, labtest.Agent)
	if err := os.Truncate(large, 1<<20); err != nil {
		t.Fatal(err)
	}
	lab.Start(t, labtest.Agent)
	ended := lab.AwaitCompleted(t, interrupted.Name)
	if ended.Status.Volumes == nil || ended.Status.Volumes.Completed != 1 {
		t.Errorf("the interrupted backup ended with volumes %+v", ended.Status.Volumes)
	}

	if err := os.Remove(large); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(folder, "small"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	lab.Kill(t, labtest.Agent)
	handedOver := backup("handed-over")
	awaitVolume(t, handedOver, func(v *enginev1alpha1.VolumeUpload) bool { return !v.Status.Phase.Done() })
	lab.Start(t, labtest.Agent)
	ended = lab.AwaitCompleted(t, handedOver.Name)
	if ended.Status.Volumes == nil || ended.Status.Volumes.Completed != 1 {
		t.Errorf("the next backup ended with volumes %+v", ended.Status.Volumes)
	}
}

// awaitVolume waits until the only volume of a backup is as it should be.
func awaitVolume(t *testing.T, backup *v1alpha1.Backup, is func(*enginev1alpha1.VolumeUpload) bool) (found enginev1alpha1.VolumeUpload) {
	t.Helper()
	labtest.Eventually(t, "the volume of "+backup.Name, func() error {
		list, err := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System).List(t.Context(), metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRun + "=" + string(backup.UID)})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || !is(&list.Items[0]) {
			return fmt.Errorf("the VolumeUploads are %+v", list.Items)
		}
		found = list.Items[0]
		return nil
	})
	return found
}

// run is the record of a backup in the system namespace.
func run(t *testing.T, name string) *enginev1alpha1.BackupRun {
	t.Helper()
	record, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return record
}

// files are the names in a folder.
func files(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// letStart writes a start into the ledger, as a controller does.
func letStart(t *testing.T, start records.Start) {
	t.Helper()
	configMaps := lab.Kube.CoreV1().ConfigMaps(labtest.System)
	ledger, err := configMaps.Get(t.Context(), records.LedgerName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	starts, err := records.Ledger(ledger)
	if err != nil {
		t.Fatal(err)
	}
	ledger, err = records.WithLedger(ledger, append(starts, start))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := configMaps.Update(t.Context(), ledger, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
