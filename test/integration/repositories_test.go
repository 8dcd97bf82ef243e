// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
)

var (
	repositories = flag.Int("repositories", 30, "how many repositories TestManyRepositories has maintained; three of them are broken")
	period       = flag.Duration("repositories.period", 30*time.Second, "how often each")
	rounds       = flag.Int("repositories.rounds", 1, "how many times")
)

// brokenOnes is how many of the repositories are, each in another way.
const brokenOnes = 3

// TestManyRepositories: of many repositories some are broken. All others are maintained within
// their period, each time, and the first backup of a new namespace does not wait for them. What
// is broken is tried once a period at most.
func TestManyRepositories(t *testing.T) {
	template, _ := firstBackup(t)
	if results, _, err := maintain(t, "--repo-name="+template, "--backup-storage-location=default"); err != nil || len(results) != 1 {
		t.Fatalf("maintaining the first one: %v, %v", results, err)
	}
	_, alone := firstBackup(t)
	names, namespaces := copies(t, template, *repositories)
	records := lab.Engine.EngineV1alpha1().VolumeRepositories(labtest.System)

	begun := time.Now()
	// As if each had been maintained in the last period.
	for i, name := range names {
		record, err := records.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		at := metav1.NewTime(begun.Add(-*period * time.Duration(i) / time.Duration(len(names))))
		record.Status.RecentMaintenance = []enginev1alpha1.MaintenanceRun{{Result: enginev1alpha1.MaintenanceSucceeded, Job: "earlier", StartTimestamp: at, CompleteTimestamp: at}}
		record.Status.LastMaintenanceTime, record.Status.Size = &at, resource.NewQuantity(1<<20, resource.BinarySI)
		if _, err := records.UpdateStatus(t.Context(), record, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	breakThem(t, names, namespaces)
	mark, memory := lab.AuditMark(t), lab.Memory(t, labtest.Controller)
	for _, name := range names {
		record, err := records.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		record.Spec.MaintenanceFrequency = &metav1.Duration{Duration: *period}
		if _, err := records.Update(t.Context(), record, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, beside := firstBackup(t)
	t.Logf("the first backup of a new namespace took %s, and %s while they were maintained", alone.Round(10*time.Millisecond), beside.Round(10*time.Millisecond))
	if beside > 30*time.Second+5*alone {
		t.Errorf("the first backup of a new namespace waited: it took %s, and %s before", beside, alone)
	}

	// The last round may begin a tenth of a period late.
	var status map[string]enginev1alpha1.VolumeRepositoryStatus
	deadline := begun.Add(time.Duration(*rounds)**period*11/10 + *period + time.Minute)
	for {
		list, err := records.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status = map[string]enginev1alpha1.VolumeRepositoryStatus{}
		waiting := 0
		for _, record := range list.Items {
			status[record.Name] = record.Status
			want := 1 + *rounds
			ready := meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionReady)
			switch i := slices.Index(names, record.Name); {
			case i < 0:
			case i < brokenOnes && len(record.Status.RecentMaintenance) < 2, i < brokenOnes-1 && ready:
				waiting++ // not ready, it has no more maintenances; the last one is tried each period
			case i >= brokenOnes && len(record.Status.RecentMaintenance) < want:
				waiting++
			}
		}
		if waiting == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d were not maintained %d times", waiting, len(names), *rounds)
		}
		select {
		case <-time.After(time.Second):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	took, grown := time.Since(begun), lab.Memory(t, labtest.Controller)-memory
	maintained, failed := 0, 0
	var longest time.Duration
	jobs := map[string]bool{}
	for i, name := range names {
		recent := status[name].RecentMaintenance
		for j, run := range recent[:len(recent)-1] {
			jobs[run.Job] = true
			if run.Result == enginev1alpha1.MaintenanceSucceeded {
				maintained++
			} else {
				failed++
			}
			between := run.StartTimestamp.Sub(recent[j+1].StartTimestamp.Time)
			if longest = max(longest, between); i < brokenOnes && between < *period*3/4 {
				t.Errorf("%s is broken, and was tried again after %s", name, between)
			}
			if i >= brokenOnes && run.Result != enginev1alpha1.MaintenanceSucceeded {
				t.Errorf("%s: %+v", name, run)
			}
		}
	}
	// A tenth of the period spreads them, and a busy machine delays them.
	if limit := *period*11/10 + *period*3/4 + 30*time.Second; longest > limit {
		t.Errorf("one waited for %s, and the period is %s", longest, *period)
	}
	writes := map[string]int{}
	sum := 0
	for _, write := range lab.WritesSince(t, mark) {
		ref := write.ObjectRef
		if user := write.User.Username; !strings.HasSuffix(user, ":holdfast-controller") && !strings.HasSuffix(user, ":holdfast-repo-maintenance") {
			continue
		}
		if ref.Resource == "jobs" || (ref.Resource == "volumerepositories" || ref.Resource == "events") && strings.HasPrefix(ref.Name, template+"-") {
			writes[write.Verb+" "+ref.Resource]++
			sum++
		}
	}
	all := maintained + failed
	t.Logf("%d repositories: %d maintenances and %d failures by %d Jobs in %s, the longest from one to the next %s of a period of %s; %.2f writes for each, of which two are of its Lease, and two for each Job; the controller had %d MiB before, and %d more after it",
		len(names), maintained, failed, len(jobs), took.Round(time.Second), longest.Round(time.Second), *period, 2+float64(sum+2*len(jobs))/float64(all), memory>>20, grown>>20)
	if grown > 64<<20 {
		t.Errorf("the controller has grown from %d by %d bytes", memory, grown)
	}
	if sum > 2*all {
		t.Errorf("%d maintenances cost %d writes besides those of their Leases and Jobs: %v", all, sum, writes)
	}
}

// firstBackup backs up a new namespace with a small volume, and says how long that took.
func firstBackup(t *testing.T) (namespace string, took time.Duration) {
	t.Helper()
	namespace = lab.Namespace(t, "many")
	_, folder := lab.PodWithClaim(t, namespace, labtest.Node)
	if err := os.WriteFile(filepath.Join(folder, "file"), []byte("content of "+namespace), 0o600); err != nil {
		t.Fatal(err)
	}
	name := labtest.Name("many")
	begun := time.Now()
	lab.Create(t, labtest.System, name, v1alpha1.BackupSpec{IncludedNamespaces: []string{namespace}, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitCompleted(t, name)
	return namespace, time.Since(begun)
}

// copies makes repositories that are like one, with its key, and waits until they are ready.
func copies(t *testing.T, template string, count int) (names, namespaces []string) {
	t.Helper()
	records := lab.Engine.EngineV1alpha1().VolumeRepositories(labtest.System)
	keys := lab.Kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(labtest.System))
	key, err := keys.Get(t.Context(), enginev1alpha1.KeySecretName(enginev1alpha1.RepositoryName(template, "default")), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		namespace := fmt.Sprintf("%s-%03d", template, i)
		name := enginev1alpha1.RepositoryName(namespace, "default")
		names, namespaces = append(names, name), append(namespaces, namespace)
		if err := os.CopyFS(repositoryFolder(namespace), os.DirFS(repositoryFolder(template))); err != nil {
			t.Fatal(err)
		}
		if _, err := keys.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: enginev1alpha1.KeySecretName(name)}, Data: key.Data}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := records.Create(t.Context(), &enginev1alpha1.VolumeRepository{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: enginev1alpha1.VolumeRepositorySpec{
				VolumeNamespace: namespace, BackupStorageLocation: "default",
				MaintenanceFrequency: &metav1.Duration{Duration: 1000 * time.Hour},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, name := range names {
			if err := records.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if err := keys.Delete(context.Background(), enginev1alpha1.KeySecretName(name), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
		for _, namespace := range namespaces {
			if err := os.RemoveAll(repositoryFolder(namespace)); err != nil {
				t.Error(err)
			}
		}
	})
	for _, name := range names { // each of them has a time of its own, since there may be many
		labtest.Eventually(t, name+" to be ready", func() error {
			record, err := records.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && !meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionReady) {
				err = fmt.Errorf("it says %+v", record.Status.Conditions)
			}
			return err
		})
	}
	return names, namespaces
}

func repositoryFolder(namespace string) string {
	return filepath.Join(lab.Dir, "store", "kopia", namespace)
}

// breakThem breaks the first repositories: another key, none in the store, and one that is no
// repository any more.
func breakThem(t *testing.T, names, namespaces []string) {
	t.Helper()
	keys := lab.Kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(labtest.System))
	key, err := keys.Get(t.Context(), enginev1alpha1.KeySecretName(names[0]), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key.Data = map[string][]byte{enginev1alpha1.KeySecretKey: []byte("another key than that of the repository")}
	if _, err := keys.Update(t.Context(), key, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(repositoryFolder(namespaces[1])); err != nil {
		t.Fatal(err)
	}
	damaged, err := filepath.Glob(filepath.Join(repositoryFolder(namespaces[2]), "kopia.repository*"))
	if err != nil || len(damaged) != 1 {
		t.Fatalf("the format of a repository lies in %v, %v", damaged, err)
	}
	if err := os.WriteFile(damaged[0], []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
}
