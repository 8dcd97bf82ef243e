// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
)

const system = "holdfast"

// newRun makes a run of a backup of the system namespace that includes some
// namespaces, created at a second of the test's time.
func newRun(name string, second int, namespaces ...string) *enginev1alpha1.BackupRun {
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         system,
			Name:              format.StoreName(system, name, system),
			CreationTimestamp: metav1.Unix(int64(second), 0),
		},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: system, Name: name},
			Backup:    v1alpha1.BackupSpec{IncludedNamespaces: namespaces, StorageLocation: "default"},
		},
	}
}

func inPhase(run *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, ticket int64) *enginev1alpha1.BackupRun {
	run.Status.Phase, run.Status.Ticket = phase, ticket
	return run
}

func location(name string, available metav1.ConditionStatus) *enginev1alpha1.BackupStorageLocation {
	return &enginev1alpha1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Status: enginev1alpha1.BackupStorageLocationStatus{Conditions: []metav1.Condition{
			{Type: enginev1alpha1.ConditionAvailable, Status: available},
		}},
	}
}

// harness runs controllers on a cluster, in a synctest bubble.
type harness struct {
	*testing.T
	*enginetest.Cluster
	kube *kubefake.Clientset
}

func newHarness(t *testing.T, objects ...runtime.Object) *harness {
	return &harness{T: t, Cluster: enginetest.New(objects...), kube: kubefake.NewClientset()}
}

// start runs a controller with informers of its own.
func (h *harness) start(limit int) {
	h.Helper()
	controller := h.prepare(limit)
	go controller.Run(h.Context())
	synctest.Wait()
}

// prepare makes a controller, whose informers have seen the cluster.
func (h *harness) prepare(limit int) *Controller {
	h.Helper()
	records := engineinformers.NewSharedInformerFactory(h.Cluster, 0)
	objects := informers.NewSharedInformerFactory(h.kube, 0)
	controller, err := New(Config{
		Namespace:         system,
		Limit:             limit,
		Runs:              h.EngineV1alpha1().BackupRuns(system),
		ConfigMaps:        h.kube.CoreV1().ConfigMaps(system),
		Clock:             clock.RealClock{},
		RunInformer:       records.Engine().V1alpha1().BackupRuns(),
		LocationInformer:  records.Engine().V1alpha1().BackupStorageLocations(),
		NamespaceInformer: objects.Core().V1().Namespaces(),
	})
	if err != nil {
		h.Fatal(err)
	}
	records.StartWithContext(h.Context())
	objects.StartWithContext(h.Context())
	h.Cleanup(records.Shutdown)
	h.Cleanup(objects.Shutdown)
	records.WaitForCacheSync(h.Context().Done())
	objects.WaitForCacheSync(h.Context().Done())
	synctest.Wait() // for the watches: the fake forgets a deletion before a watch
	return controller
}

func (h *harness) run(name string) *enginev1alpha1.BackupRun {
	h.Helper()
	run, err := h.EngineV1alpha1().BackupRuns(system).Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return run
}

// inPhases returns the names of the runs in each phase, in order of names.
func (h *harness) inPhases() map[v1alpha1.BackupPhase][]string {
	h.Helper()
	list, err := h.EngineV1alpha1().BackupRuns(system).List(h.Context(), metav1.ListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	phases := map[v1alpha1.BackupPhase][]string{}
	for _, run := range list.Items {
		phases[run.Status.Phase] = append(phases[run.Status.Phase], run.Name)
	}
	for _, names := range phases {
		slices.Sort(names)
	}
	return phases
}

// expect waits until the controllers have nothing to do, and compares a phase.
func (h *harness) expect(phase v1alpha1.BackupPhase, names ...string) {
	h.Helper()
	synctest.Wait()
	if got := h.inPhases()[phase]; !slices.Equal(got, names) {
		h.Fatalf("%s are %q, want %q", phase, got, names)
	}
}

// end lets a run end, as the process that executes it does.
func (h *harness) end(name string) {
	h.Helper()
	run := h.run(name)
	run.Status.Phase = v1alpha1.BackupPhaseCompleted
	if _, err := h.EngineV1alpha1().BackupRuns(system).UpdateStatus(h.Context(), run, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) setAvailable(name string, available metav1.ConditionStatus) {
	h.Helper()
	locations := h.EngineV1alpha1().BackupStorageLocations(system)
	current, err := locations.Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	current.Status = location(name, available).Status
	if _, err := locations.UpdateStatus(h.Context(), current, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) remove(name string) {
	h.Helper()
	if err := h.EngineV1alpha1().BackupRuns(system).Delete(h.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.Fatal(err)
	}
}

// atOnce reports an error when time had to pass for something.
func (h *harness) atOnce(since time.Time) {
	h.Helper()
	if waited := time.Since(since); waited != 0 {
		h.Errorf("it took %s, and not an event", waited)
	}
}

// writesTo counts the attempts to bring each run into a phase.
func (h *harness) writesTo(phase v1alpha1.BackupPhase) map[string]int {
	counts := map[string]int{}
	for _, action := range h.Writes("backupruns") {
		if run := written(action); run != nil && run.Status.Phase == phase {
			counts[run.Name]++
		}
	}
	return counts
}

// written is the run that an action writes, or nil.
func written(action clienttesting.Action) *enginev1alpha1.BackupRun {
	update, ok := action.(clienttesting.UpdateActionImpl)
	if !ok {
		return nil
	}
	run, _ := update.GetObject().(*enginev1alpha1.BackupRun)
	return run
}

func (h *harness) settings() *corev1.ConfigMap {
	h.Helper()
	settings, err := h.kube.CoreV1().ConfigMaps(system).Get(h.Context(), "holdfast-queue", metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return settings
}
