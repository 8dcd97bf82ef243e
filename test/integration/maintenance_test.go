// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

// maintain runs the command with the rights of its account, and returns what it ends with.
func maintain(t *testing.T, args ...string) (results []maintenance.Result, message string, err error) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	output, err := lab.Program(t, append([]string{"repo-maintenance", "--termination-log=" + log, "--kubeconfig=" + lab.KubeconfigOf("holdfast-repo-maintenance")}, args...)...)
	ended, readErr := os.ReadFile(log)
	if readErr != nil {
		t.Fatal(readErr)
	}
	t.Logf("it says:\n%s", output)
	return maintenance.Results(output), string(ended), err
}

// TestMaintenance: the command maintains repositories with the rights of its account and no
// others, whatever comes of their neighbours, and the backups are there after it.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	type volume struct {
		backup, namespace, folder string
		pod                       *corev1.Pod
		files                     map[string]string
	}
	var volumes []volume
	for range 2 {
		v := volume{backup: labtest.Name("maintained"), namespace: lab.Namespace(t, "maintained")}
		pod, folder := lab.PodWithClaim(t, v.namespace, labtest.Node)
		fill(t, folder)
		v.pod, v.folder, v.files = pod, folder, tree(t, folder)
		lab.Create(t, labtest.System, v.backup, v1alpha1.BackupSpec{IncludedNamespaces: []string{v.namespace}, DefaultVolumesToFsBackup: new(true)})
		volumes = append(volumes, v)
	}
	for _, v := range volumes {
		lab.AwaitCompleted(t, v.backup)
		lab.AwaitRunGone(t, v.backup)
	}
	first, second := volumes[0].namespace, volumes[1].namespace
	results, message, err := maintain(t, "--repo-name="+first, "--repo-name=nowhere", "--repo-name="+second, "--repo-type=kopia", "--backup-storage-location=default")
	if err == nil || len(results) != 3 || len(maintenance.Results(message)) != 3 {
		t.Fatalf("of three repositories, of which one does not exist, it says %v and %q, with the error %v", results, message, err)
	}
	for _, result := range results {
		if failed := result.Repository == "nowhere.default"; failed != (result.Error != "") || !failed && result.Kind != "full" {
			t.Errorf("it says %s", result)
		}
	}
	if results, message, err = maintain(t, "--repo-name="+first, "--backup-storage-location=default"); err != nil || len(results) != 1 || results[0].Kind != "quick" || !strings.Contains(message, results[0].String()) {
		t.Errorf("maintaining it again says %v and %q, with the error %v", results, message, err)
	}
	if _, message, err = maintain(t, "--repo-name=nowhere", "--backup-storage-location=default"); err == nil || !strings.HasPrefix(message, "there is no VolumeRepository nowhere.default") {
		t.Errorf("of one that does not exist it says %q, with the error %v", message, err)
	}
	for _, v := range volumes {
		empty(t, v.folder)
		restore(t, v.pod, v.namespace+"-data", volumeHistory(t, v.namespace, v.backup).Status.SnapshotID)
		if diff := cmp.Diff(v.files, tree(t, v.folder)); diff != "" {
			t.Errorf("what came back differs (-before +after):\n%s", diff)
		}
		_, err := lab.Kube.CoordinationV1().Leases(enginev1alpha1.MaintenanceNamespace(labtest.System)).Get(t.Context(), v.namespace+".default", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the Lease is still there: %v", err)
		}
	}
}

// TestRepositoryKey: what the command exports opens the repository; after a rotation it does no
// more, and the new key does. What was stored before comes back, and backups go on.
func TestRepositoryKey(t *testing.T) {
	t.Parallel()
	namespace, backup := lab.Namespace(t, "locked"), labtest.Name("before")
	pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	files := tree(t, folder)
	store := func(backup string) {
		t.Helper()
		lab.Create(t, labtest.System, backup, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
		lab.AwaitCompleted(t, backup)
		lab.AwaitRunGone(t, backup)
	}
	store(backup)
	location, err := lab.Engine.EngineV1alpha1().StorageLocations(labtest.System).Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	command := func(name string) string {
		t.Helper()
		output, err := lab.Program(t, "repo-key", name, "--repo-name="+namespace, "--backup-storage-location=default", "--kubeconfig="+lab.Kubeconfig())
		if err != nil {
			t.Fatalf("repo-key %s: %v", name, err)
		}
		return strings.TrimSpace(output)
	}
	open := func(key string) error {
		opened, err := repository.Open(t.Context(), repository.Location{Spec: location.Spec}, namespace, repository.Key(key), repository.Options{})
		if err == nil {
			err = opened.Close(t.Context())
		}
		return err
	}
	before := command("export")
	if err := open(before); err != nil {
		t.Errorf("with the key that was exported: %v", err)
	}
	if said := command("rotate"); !strings.Contains(said, enginev1alpha1.RepositoryName(namespace, "default")+" has a new key") {
		t.Errorf("rotating says %s", said)
	}
	if err := open(before); !errors.Is(err, repository.ErrWrongKey) {
		t.Errorf("with the former key: %v", err)
	}
	after := command("export")
	if err := open(after); err != nil || after == before {
		t.Errorf("with the new key: %v", err)
	}
	store(labtest.Name("after"))
	if _, message, err := maintain(t, "--repo-name="+namespace, "--backup-storage-location=default"); err != nil {
		t.Errorf("maintaining it: %v, %s", err, message)
	}
	empty(t, folder)
	restore(t, pod, namespace+"-data", volumeHistory(t, namespace, backup).Status.SnapshotID)
	if diff := cmp.Diff(files, tree(t, folder)); diff != "" {
		t.Errorf("what came back differs (-before +after):\n%s", diff)
	}
	if stdout, err := lab.Program(t, "repo-key", "export", "--repo-name=nowhere", "--backup-storage-location=default", "--kubeconfig="+lab.Kubeconfig()); err == nil || stdout != "" {
		t.Errorf("of a repository that does not exist it prints %q, with the error %v", stdout, err)
	}
}

// TestMaintenanceJobs: a repository that is due has a Job, whose pod's message comes into the
// record, and the next one follows; a failure is told.
func TestMaintenanceJobs(t *testing.T) {
	t.Parallel()
	namespace, backup := lab.Namespace(t, "due"), labtest.Name("due")
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	fill(t, folder)
	lab.Create(t, labtest.System, backup, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitCompleted(t, backup)
	lab.AwaitRunGone(t, backup)
	records := lab.Engine.EngineV1alpha1().VolumeRepositories(labtest.System)
	name := enginev1alpha1.RepositoryName(namespace, "default")
	every := func(frequency string) {
		t.Helper()
		if _, err := records.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"maintenanceFrequency":"`+frequency+`"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	mark := lab.AuditMark(t)
	every("3s")
	defer every("1000h")
	var status enginev1alpha1.VolumeRepositoryStatus
	labtest.Eventually(t, "two maintenances of "+name, func() error {
		record, err := records.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status = record.Status; len(status.RecentMaintenance) < 2 {
			return fmt.Errorf("it tells of %+v", status.RecentMaintenance)
		}
		return nil
	})
	every("1000h")
	request := &v1alpha1.MaintenanceRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
	answer, err := lab.Holdfast.HoldfastV1alpha1().MaintenanceRequests(labtest.System).Create(t.Context(), request, metav1.CreateOptions{})
	if err != nil || answer.Status.Job == "" {
		t.Fatalf("asking for it now says %+v, with the error %v", answer, err)
	}
	// The condition is True of the maintenances before, which are not those that are waited for.
	lab.Kubectl(t, "wait", "--for=condition=Maintained", "--timeout=2m", "-n", labtest.System, "hfrepo/"+name)
	record, err := records.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if status = record.Status; status.RecentMaintenance[0].Job != answer.Status.Job {
		t.Errorf("kubectl wait has not waited for %q: it tells of %+v", answer.Status.Message, status.RecentMaintenance)
	}
	request.Name = "nothing.default"
	if _, err := lab.Holdfast.HoldfastV1alpha1().MaintenanceRequests(labtest.System).Create(t.Context(), request, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("asking for one that does not exist: %v", err)
	}
	oldest := len(status.RecentMaintenance) - 1
	if first, second := status.RecentMaintenance[oldest], status.RecentMaintenance[oldest-1]; !strings.HasPrefix(first.Message, "full; nothing is missing; ") || second.Message != "quick" ||
		first.Result != enginev1alpha1.MaintenanceSucceeded || second.Result != enginev1alpha1.MaintenanceSucceeded || first.Job == second.Job {
		t.Errorf("the record tells of %+v", status.RecentMaintenance)
	}
	if status.LastMaintenanceTime == nil || status.Message != "" || status.Size.IsZero() || status.Files == 0 {
		t.Errorf("the status is %+v", status)
	}
	written := 0
	for _, write := range lab.WritesSince(t, mark) {
		if ref := write.ObjectRef; strings.HasSuffix(write.User.Username, ":holdfast-controller") && ref.Resource == "volumerepositories" && ref.Name == name {
			written++
		}
	}
	if ended := len(status.RecentMaintenance); written < ended || written > ended+1 { // another one may have ended meanwhile
		t.Errorf("%d maintenances cost %d writes of the record", ended, written)
	}
	t.Log(lab.Kubectl(t, "get", "hfrepo", "-o", "wide", "-n", labtest.System, name))
	if jobs := lab.Kubectl(t, "get", "jobs", "-o", "name", "-n", enginev1alpha1.MaintenanceNamespace(labtest.System), "-l", "repository.holdfast.io/"+namespace+"=default"); !strings.Contains(jobs, answer.Status.Job) {
		t.Errorf("by the label of the repository there are %s", jobs)
	}
}
