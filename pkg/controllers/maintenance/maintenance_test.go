// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
)

const system = "holdfast"

// harness is a controller on fake clients, and stands in for the cluster's Job controller.
type harness struct {
	t       *testing.T
	cluster *enginetest.Cluster
	config  Config
	stop    func()
}

func newHarness(t *testing.T) *harness {
	h := &harness{t: t, cluster: enginetest.New(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}})}
	h.config = Config{
		Namespace: system, Frequency: time.Hour, Keep: 3, Limit: 2, Timeout: 6 * time.Hour, StartTimeout: DefaultStartTimeout,
		Own:          func(context.Context) (*corev1.Pod, error) { return nil, nil },
		Repositories: h.cluster.EngineV1alpha1(),
		Jobs:         h.cluster.Kube.BatchV1().Jobs("holdfast-maintenance"),
		Pods:         h.cluster.Kube.CoreV1().Pods("holdfast-maintenance"),
		Events:       events.NewFakeRecorder(10_000),
		Clock:        clock.RealClock{},
	}
	return h
}

// repository makes a record that is Ready.
func (h *harness) repository(namespace string, ready metav1.ConditionStatus) {
	h.cluster.Create(&enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: namespace + ".default"},
		Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: namespace, BackupStorageLocation: "default"},
		Status: enginev1alpha1.VolumeRepositoryStatus{Conditions: []metav1.Condition{{
			Type: enginev1alpha1.ConditionReady, Status: ready, Reason: enginev1alpha1.ReasonReady, LastTransitionTime: metav1.Now(),
		}}},
	})
}

// run starts a controller, as after a restart of its process.
func (h *harness) run() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	records := enginefactory.NewSharedInformerFactory(h.cluster, 0)
	jobs := informers.NewSharedInformerFactoryWithOptions(h.cluster.Kube, 0, informers.WithNamespace("holdfast-maintenance"))
	config := h.config
	config.RepositoryInformer, config.LocationInformer = records.Engine().V1alpha1().VolumeRepositories(), records.Engine().V1alpha1().StorageLocations()
	config.JobInformer = jobs.Batch().V1().Jobs()
	c, err := New(config)
	if err != nil {
		h.t.Fatal(err)
	}
	records.StartWithContext(ctx)
	jobs.StartWithContext(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	h.stop = func() {
		cancel()
		<-ended
		records.Shutdown()
		jobs.Shutdown()
	}
	time.Sleep(time.Second)
}

func (h *harness) jobs() []batchv1.Job {
	h.t.Helper()
	synctest.Wait()
	list, err := h.config.Jobs.List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return list.Items
}

// next waits for the next Job.
func (h *harness) next() batchv1.Job {
	h.t.Helper()
	for begin := time.Now(); time.Since(begin) < 3*time.Hour; time.Sleep(10 * time.Second) {
		if active := h.active(); len(active) > 0 {
			return active[0]
		}
	}
	h.t.Fatal("there is no Job")
	return batchv1.Job{}
}

func (h *harness) active() []batchv1.Job {
	return slices.DeleteFunc(h.jobs(), func(job batchv1.Job) bool { ended, _, _ := finished(&job); return ended })
}

// pod makes the pod of a Job.
func (h *harness) pod(job batchv1.Job, status *corev1.PodStatus) *corev1.Pod {
	h.t.Helper()
	pod, err := h.config.Pods.Create(h.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: job.Name + "-x", Labels: map[string]string{batchv1.JobNameLabel: job.Name}}, Status: *status,
	}, metav1.CreateOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return pod
}

// end ends a Job with a pod of some status.
func (h *harness) end(job batchv1.Job, succeeded bool, status *corev1.PodStatus) {
	h.t.Helper()
	if status != nil {
		h.pod(job, status)
	}
	kind := batchv1.JobFailed
	if succeeded {
		kind = batchv1.JobComplete
	}
	job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, Message: "what the Job says", LastTransitionTime: metav1.Now()})
	if _, err := h.config.Jobs.Update(h.t.Context(), &job, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	synctest.Wait()
}

func runs() *corev1.PodStatus {
	return &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
}

func said(message string) *corev1.PodStatus { return terminated(0, "Completed", message) }

// maintained is the status of a pod that has maintained all repositories of its Job.
func maintained(job batchv1.Job) *corev1.PodStatus {
	var results []maintenance.Result
	for _, name := range namesOf(&job) {
		results = append(results, maintenance.Result{Repository: name, Kind: "quick"})
	}
	return said(maintenance.Message(results))
}

func terminated(code int32, reason, message string) *corev1.PodStatus {
	return &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: containerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}},
	}}}
}

// ask asks for the maintenance of a repository, and returns the name of its Job.
func (h *harness) ask(namespace string) string {
	h.t.Helper()
	records := h.config.Repositories.VolumeRepositories(system)
	record, err := records.Get(h.t.Context(), namespace+".default", metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	record.Spec.MaintenanceRequest = &enginev1alpha1.MaintenanceAsk{Ask: enginev1alpha1.Ask{Timestamp: metav1.NewTime(time.Now())}}
	record.Generation++
	if record, err = records.Update(h.t.Context(), record, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	name, waits := record.RequestedJob()
	if !waits {
		h.t.Fatal("the request does not wait")
	}
	return name
}

func (h *harness) status(namespace string) enginev1alpha1.VolumeRepositoryStatus {
	h.t.Helper()
	synctest.Wait()
	record, err := h.config.Repositories.VolumeRepositories(system).Get(h.t.Context(), namespace+".default", metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return record.Status
}

// Each way in which a Job may end is told as what it was, and the next period works. That
// costs three writes, with those of the Lease five.
func TestOutcomes(t *testing.T) {
	good := maintenance.Result{Repository: "shop.default", Kind: "full", ReclaimedBytes: 42}.String()
	stopped := maintenance.Result{Repository: "shop.default", Cancelled: true}.String()
	evicted := func(status *corev1.PodStatus) *corev1.PodStatus {
		status.Reason, status.Message = "Evicted", "low on memory"
		return status
	}
	drained := func(status *corev1.PodStatus) *corev1.PodStatus {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		})
		return status
	}
	for name, c := range map[string]struct {
		succeeded bool
		status    *corev1.PodStatus
		result    enginev1alpha1.MaintenanceResult
		message   string
		reclaimed int64
	}{
		"success":          {true, said(good), enginev1alpha1.MaintenanceSucceeded, "full", 42},
		"success, no pod":  {true, nil, enginev1alpha1.MaintenanceFailed, "its pod is gone: it is not known what it came to", 0},
		"told to stop":     {true, said(stopped), enginev1alpha1.MaintenanceFailed, "it was told to stop", 0},
		"stopped, evicted": {true, evicted(said(stopped)), enginev1alpha1.MaintenanceFailed, "Evicted: low on memory: it was told to stop", 0},
		"failed, drained":  {false, drained(terminated(137, "Error", "")), enginev1alpha1.MaintenanceFailed, "EvictionByEvictionAPI: Eviction API: evicting: the process ended with 137", 0},
		"failure":          {false, terminated(1, "Error", "the key does not open the repository"), enginev1alpha1.MaintenanceFailed, "the key does not open the repository", 0},
		"out of memory":    {false, terminated(137, "OOMKilled", ""), enginev1alpha1.MaintenanceFailed, "OOMKilled: the process ended with 137", 0},
		"evicted":          {false, &corev1.PodStatus{Reason: "Evicted", Message: "low on memory"}, enginev1alpha1.MaintenanceFailed, "Evicted: low on memory", 0},
		"deadline":         {false, nil, enginev1alpha1.MaintenanceFailed, "what the Job says", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, begin := newHarness(t), time.Now()
				h.repository("shop", metav1.ConditionTrue)
				h.run()
				defer h.stop()
				if made := h.jobs(); len(made) != 0 {
					t.Fatalf("it begins at once: %d Jobs", len(made))
				}
				for len(h.active()) == 0 && time.Since(begin) < 3*time.Hour {
					time.Sleep(time.Minute)
				}
				active := h.active()
				if len(active) != 1 {
					t.Fatalf("%d Jobs run", len(active))
				}
				h.end(active[0], c.succeeded, c.status)
				status := h.status("shop")
				if len(status.RecentMaintenance) != 1 {
					t.Fatalf("the record tells of %+v", status.RecentMaintenance)
				}
				run := status.RecentMaintenance[0]
				if run.Result != c.result || run.Message != c.message || run.ReclaimedBytes != c.reclaimed || run.Job != active[0].Name {
					t.Errorf("the record says %+v, want %s %q", run, c.result, c.message)
				}
				if failed := c.result == enginev1alpha1.MaintenanceFailed; failed != (status.LastMaintenanceTime == nil) || failed && status.Message != c.message || !failed && status.Message != "" {
					t.Errorf("the status is %+v", status)
				}
				condition := meta.FindStatusCondition(status.Conditions, enginev1alpha1.ConditionMaintained)
				if condition == nil || condition.Reason != string(c.result) || !strings.HasSuffix(condition.Message, c.message) || (condition.Status == metav1.ConditionTrue) != (c.result == enginev1alpha1.MaintenanceSucceeded) {
					t.Errorf("the condition is %+v", condition)
				}
				if writes := len(h.cluster.Writes("volumerepositories")); writes != 1 {
					t.Errorf("%d writes of the record", writes)
				}
				began := active[0].CreationTimestamp
				time.Sleep(time.Until(began.Add(59 * time.Minute)))
				if len(h.active()) != 0 {
					t.Error("it does not wait for the next period")
				}
				time.Sleep(8 * time.Minute)
				if len(h.active()) != 1 {
					t.Error("the next period has no Job")
				}
			})
		})
	}
}

// A Job that can't begin is given up soon, with what was wrong, also if the controller is
// killed between; one that has begun is not, and one that somebody deletes is told at once.
func TestUnschedulableAndDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.repository("shop", metav1.ConditionTrue)
		h.run()
		job := h.next()
		pod := h.pod(job, &corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"}}})
		time.Sleep(time.Until(job.CreationTimestamp.Add(DefaultStartTimeout)))
		h.cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("delete", "jobs") {
				return enginetest.Fault{Err: errors.New("refused")}
			}
			return enginetest.Fault{}
		})
		time.Sleep(lookInterval)
		h.stop()
		h.cluster.Fault(nil)
		if got := h.status("shop").Message; got != "it had not begun after 10m0s: Unschedulable: 0/3 nodes" {
			t.Errorf("it says %q", got)
		}
		if len(h.active()) != 1 {
			t.Fatal("the Job is gone already")
		}
		h.run()
		if len(h.jobs()) != 0 {
			t.Fatal("a Job that was given up is still there")
		}
		_ = h.config.Pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{})
		last := job
		if job = h.next(); job.CreationTimestamp.Sub(last.CreationTimestamp.Time) < time.Hour {
			t.Error("it does not wait for the next period")
		}
		h.pod(job, runs())
		time.Sleep(time.Hour)
		if status := h.status("shop"); len(h.active()) != 1 || len(status.RecentMaintenance) != 1 {
			t.Fatalf("a Job that has begun was given up: %+v", status)
		}
		if err := h.config.Jobs.Delete(t.Context(), job.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if status := h.status("shop"); len(status.RecentMaintenance) != 2 || !strings.Contains(status.Message, "somebody deleted the Job") {
			t.Errorf("it says %+v", status)
		}
		time.Sleep(70 * time.Minute)
		if len(h.active()) != 1 {
			t.Error("the next period has no Job")
		}
		h.stop()
	})
}

// A pod that is evicted while it runs, and whose process ends well since it is told to stop,
// is no success, and the eviction is told though the pod is gone by then.
func TestEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.repository("shop", metav1.ConditionTrue)
		h.run()
		defer func() { h.stop() }()
		job := h.next()
		pod := h.pod(job, runs())
		h.stop() // what a controller begins with that takes over
		h.run()
		pod.DeletionTimestamp = new(metav1.Now())
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}}
		if _, err := h.config.Pods.Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		job.Status.Terminating = new(int32(1))
		stopping, err := h.config.Jobs.Update(t.Context(), &job, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := h.config.Pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		stopping.Status.Ready = new(int32(0)) // it is looked at once more
		if stopping, err = h.config.Jobs.Update(t.Context(), stopping, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		h.end(*stopping, true, nil)
		status := h.status("shop")
		if want := "EvictionByEvictionAPI: Eviction API: evicting: it is not known what it came to"; len(status.RecentMaintenance) != 1 || status.Message != want || status.LastMaintenanceTime != nil {
			t.Errorf("it says %+v, want %q", status, want)
		}
	})
}

// A controller that is killed in the middle finds its Jobs again, and what they have come to.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.repository("shop", metav1.ConditionTrue)
		h.run()
		job := h.next()
		h.pod(job, runs())
		for range 3 {
			h.stop()
			h.run()
			time.Sleep(2 * time.Hour)
			if active := h.active(); len(active) != 1 || active[0].Name != job.Name {
				t.Fatalf("%d Jobs run", len(active))
			}
		}
		h.stop()
		if err := h.config.Pods.Delete(t.Context(), job.Name+"-x", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		h.end(job, true, said(maintenance.Result{Repository: "shop.default", Kind: "quick"}.String()))
		for range 3 {
			h.run()
			if status := h.status("shop"); len(status.RecentMaintenance) != 1 || status.Message != "" {
				t.Errorf("it says %+v", status)
			}
			h.stop()
		}
	})
}

// A repository that somebody asks to maintain is maintained at once, before those that are
// due; and once, also if it is remembered no more that it was.
func TestRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.config.Limit = 1
		for _, name := range []string{"a", "b", "shop"} {
			h.repository(name, metav1.ConditionTrue)
		}
		h.run()
		defer h.stop()
		ask := func() string { return h.ask("shop") }
		name := ask()
		active := h.active()
		if len(active) != 1 || active[0].Name != name {
			t.Fatalf("there runs %v, want %s", active, name)
		}
		h.end(active[0], true, maintained(active[0]))
		running := h.next() // of a or b, at their time
		time.Sleep(5 * time.Minute)
		name = ask()
		h.end(running, true, maintained(running))
		if active = h.active(); len(active) != 1 || active[0].Name != name {
			t.Fatalf("there runs %v, want %s", active, name)
		}
		h.end(active[0], false, terminated(1, "Error", "no"))
		if next := h.next(); next.Name == name {
			t.Fatalf("%s runs again", name)
		}
	})
	record := &enginev1alpha1.VolumeRepository{Spec: enginev1alpha1.VolumeRepositorySpec{MaintenanceRequest: &enginev1alpha1.MaintenanceAsk{Ask: enginev1alpha1.Ask{Timestamp: metav1.NewTime(time.Unix(100, 0))}}}}
	for i := range enginev1alpha1.MaxRecentMaintenance {
		if _, waits := record.RequestedJob(); !waits {
			t.Errorf("after %d other ones it does not wait", i)
		}
		record.Status.RecentMaintenance = append(record.Status.RecentMaintenance, enginev1alpha1.MaintenanceRun{StartTimestamp: metav1.NewTime(time.Unix(1000-int64(i), 0))})
	}
	if _, waits := record.RequestedJob(); waits {
		t.Error("one that was done long ago waits")
	}
}

// With a hundred repositories, of which two never end, one can't begin and one fails, all others are
// maintained within their period; never more Jobs run than the limit, and few are kept.
func TestManyRepositories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.config.Limit = 8
		const count = 100
		for i := range count {
			h.repository(fmt.Sprintf("n%d", i), metav1.ConditionTrue)
		}
		h.repository("broken", metav1.ConditionFalse)
		h.run()
		defer h.stop()
		stuck := func(job batchv1.Job) bool {
			return slices.Contains([]string{"n1.default", "n2.default", "n3.default"}, job.Annotations[annotationRepositories])
		}
		begin, begun := time.Now(), map[string]bool{}
		for time.Since(begin) < 6*time.Hour {
			time.Sleep(30 * time.Second)
			active := h.active()
			if len(active) > h.config.Limit {
				t.Fatalf("%d Jobs run at once", len(active))
			}
			for _, job := range active {
				if stuck(job) && job.Annotations[annotationRepositories] != "n3.default" && !begun[job.Name] {
					begun[job.Name] = true
					h.pod(job, runs())
				}
				if !stuck(job) && !strings.HasPrefix(job.Annotations[annotationRepositories], "broken") {
					if job.Annotations[annotationRepositories] == "n4.default" {
						h.end(job, false, terminated(1, "Error", "no"))
					} else {
						h.end(job, true, maintained(job))
					}
				}
			}
		}
		for i := range count {
			status := h.status(fmt.Sprintf("n%d", i))
			if got := len(status.RecentMaintenance); (i == 1 || i == 2) != (got == 0) || got != 0 && (got < 3 || got > 6) {
				t.Errorf("n%d was maintained %d times", i, got)
			}
		}
		perRepository := map[string]int{}
		for _, job := range h.jobs() {
			perRepository[job.Annotations[annotationRepositories]]++
		}
		for name, kept := range perRepository {
			if kept > h.config.Keep+1 || name == "broken.default" {
				t.Errorf("%s has %d Jobs", name, kept)
			}
		}
	})
}

// Small repositories share Jobs, of which each record tells what came of its own repository.
// One that fails, or that a Job did not come to, is maintained alone the next time; large
// ones are always.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		const count = 100
		for i := range count {
			h.repository(fmt.Sprintf("n%d", i), metav1.ConditionTrue)
		}
		h.run()
		defer h.stop()
		begin, made, sizes := time.Now(), map[string]bool{}, map[string][]int{}
		for time.Since(begin) < 8*time.Hour {
			time.Sleep(30 * time.Second)
			active := h.active()
			running := map[string]bool{}
			for _, job := range active {
				var results []maintenance.Result
				failed, names := false, namesOf(&job)
				for _, name := range names {
					if running[name] {
						t.Fatalf("two Jobs maintain %s", name)
					}
					running[name] = true
					sizes[name] = append(sizes[name], len(names))
					result := maintenance.Result{Repository: name, Kind: "full", SizeBytes: 1000, Files: 3, ReclaimedBytes: 7}
					switch name {
					case "n1.default": // the process is killed in its middle
						if failed = len(names) > 1; failed {
							continue
						}
					case "n2.default":
						result.SizeBytes = 10 << 30
					case "n3.default":
						result.Error, failed = "it had not ended after 5m0s", true
					}
					results = append(results, result)
				}
				made[job.Name] = made[job.Name] || time.Since(begin) > 4*time.Hour
				if len(names) > 10 || !made[job.Name] && time.Since(begin) > 4*time.Hour {
					t.Fatalf("%s maintains %v", job.Name, names)
				}
				if failed {
					h.end(job, false, terminated(137, "OOMKilled", maintenance.Message(results)))
				} else {
					h.end(job, true, said(maintenance.Message(results)))
				}
			}
		}
		late := 0
		for _, isLate := range made {
			if isLate {
				late++
			}
		}
		// Of a hundred repositories in 4 hours, three are often alone.
		if late < 40 || late > 80 {
			t.Errorf("%d Jobs in 4 hours", late)
		}
		for i := range count {
			name := fmt.Sprintf("n%d", i)
			status := h.status(name)
			runs := status.RecentMaintenance
			if len(runs) < 5 || len(runs) > 9 {
				t.Errorf("%s was maintained %d times", name, len(runs))
			}
			for k, run := range runs {
				alone := sizes[name+".default"][len(runs)-1-k] == 1
				switch want := "full"; {
				case i == 1 && !alone:
					if want = "OOMKilled: the process ended with 137"; run.Message != want || run.Result != enginev1alpha1.MaintenanceFailed {
						t.Errorf("%s says %+v", name, run)
					}
				case i == 3:
					if !alone || !strings.HasSuffix(run.Message, "it had not ended after 5m0s") {
						t.Errorf("%s says %+v", name, run)
					}
				case i == 2 && !alone, run.Message != want, run.Result != enginev1alpha1.MaintenanceSucceeded, run.ReclaimedBytes != 7:
					t.Errorf("%s says %+v", name, run)
				}
			}
		}
		if one := sizes["n1.default"]; !slices.Contains(one, 10) && slices.Max(one) == 1 {
			t.Errorf("n1 was maintained with so many: %v", one)
		}
		for i := 1; i < len(sizes["n1.default"]); i++ {
			if one := sizes["n1.default"]; one[i] > 1 && one[i-1] > 1 {
				t.Errorf("after a failure it was not alone: %v", one)
			}
		}
	})
}

// What is late says what it waits for, with one write; a short wait, and a restart, cost none.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.config.Limit = 1
		h.repository("a", metav1.ConditionTrue)
		h.repository("b", metav1.ConditionTrue)
		h.run()
		defer func() { h.stop() }()
		running := h.next()
		h.pod(running, runs())
		other := "a"
		if slices.Contains(namesOf(&running), "a.default") {
			other = "b"
		}
		condition := func() metav1.Condition {
			t.Helper()
			found := meta.FindStatusCondition(h.status(other).Conditions, enginev1alpha1.ConditionMaintained)
			if found == nil {
				return metav1.Condition{}
			}
			return *found
		}
		// It is due an hour later at the latest, and late an hour after that.
		time.Sleep(55 * time.Minute)
		h.stop()
		h.run()
		time.Sleep(59 * time.Minute)
		if c := condition(); c.Reason != "" || len(h.cluster.Writes("volumerepositories")) != 0 {
			t.Fatalf("it is late too early: %+v", c)
		}
		time.Sleep(time.Hour)
		if c := condition(); c.Status != metav1.ConditionFalse || c.Reason != enginev1alpha1.ReasonWaiting || !strings.Contains(c.Message, "waits for the end of another maintenance") {
			t.Fatalf("the condition is %+v", c)
		}
		time.Sleep(time.Hour)
		if writes := len(h.cluster.Writes("volumerepositories")); writes != 1 {
			t.Errorf("it costs %d writes", writes)
		}
		h.end(running, false, nil)
		running = h.next()
		h.end(running, true, maintained(running))
		if c := condition(); c.Status != metav1.ConditionTrue || c.Reason != "Succeeded" {
			t.Errorf("in the end the condition is %+v", c)
		}

		// One that somebody has asked for says so soon.
		for running = h.next(); slices.Contains(namesOf(&running), other+".default"); running = h.next() {
			h.end(running, true, maintained(running))
		}
		h.ask(other)
		time.Sleep(lookInterval - time.Second)
		if c := condition(); c.Status != metav1.ConditionTrue || c.ObservedGeneration != 0 {
			t.Errorf("a moment after it was asked for, the condition is %+v", c)
		}
		time.Sleep(2 * time.Second)
		if c := condition(); c.Reason != enginev1alpha1.ReasonWaiting || c.ObservedGeneration != 1 {
			t.Errorf("a minute after it was asked for, the condition is %+v", c)
		}
	})
	for message, change := range map[string]func(*Controller, *enginev1alpha1.VolumeRepository){
		"--concurrent-maintenance-jobs of the controller is 0": func(c *Controller, _ *enginev1alpha1.VolumeRepository) { c.Limit = 0 },
		"until its storage location is available":              func(_ *Controller, r *enginev1alpha1.VolumeRepository) { r.Spec.BackupStorageLocation = "gone" },
		"see the condition Ready":                              func(_ *Controller, r *enginev1alpha1.VolumeRepository) { r.Status.Conditions = nil },
	} {
		h := newHarness(t)
		informers := enginefactory.NewSharedInformerFactory(h.cluster, 0).Engine().V1alpha1().StorageLocations()
		if err := informers.Informer().GetStore().Add(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}); err != nil {
			t.Fatal(err)
		}
		c := &Controller{Config: h.config, locations: informers.Lister().StorageLocations(system)}
		record := &enginev1alpha1.VolumeRepository{Spec: enginev1alpha1.VolumeRepositorySpec{BackupStorageLocation: "default"}}
		record.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
		if change(c, record); !strings.Contains(c.waitsFor(record), message) {
			t.Errorf("it waits for %q, want %q", c.waitsFor(record), message)
		}
	}
}

// Who waits for the condition Maintained after a request waits for what was asked for: until
// then its observedGeneration is behind.
func TestMaintainedIsOfTheRequest(t *testing.T) {
	c := &Controller{Config: Config{Clock: clock.RealClock{}}}
	record := &enginev1alpha1.VolumeRepository{ObjectMeta: metav1.ObjectMeta{Generation: 5}}
	record.Status.RecentMaintenance = []enginev1alpha1.MaintenanceRun{{Job: "another", Result: enginev1alpha1.MaintenanceSucceeded}}
	if got := c.maintained(record).ObservedGeneration; got != 5 {
		t.Errorf("nobody has asked, and it is of generation %d", got)
	}
	record.Spec.MaintenanceRequest = &enginev1alpha1.MaintenanceAsk{Ask: enginev1alpha1.Ask{Timestamp: metav1.NewTime(time.Unix(100, 0))}}
	if got := c.maintained(record).ObservedGeneration; got != 4 {
		t.Errorf("what was asked for waits, and it is of generation %d", got)
	}
	record.Status.RecentMaintenance[0].Job, _ = record.RequestedJob()
	if got := c.maintained(record).ObservedGeneration; got != 5 {
		t.Errorf("what was asked for has ended, and it is of generation %d", got)
	}
}

// A shared Job stays with its log as long as it is one of the last of any of its repositories,
// and is found by each.
func TestSharedJobsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.config.Keep = 2
		h.repository("a", metav1.ConditionTrue)
		h.repository("b", metav1.ConditionTrue)
		h.run()
		defer h.stop()
		shared := h.next()
		for len(namesOf(&shared)) == 1 {
			h.end(shared, true, said(maintenance.Result{Repository: namesOf(&shared)[0], Kind: "full", SizeBytes: 1000}.String()))
			shared = h.next()
		}
		h.end(shared, true, maintained(shared))
		stays := func() bool {
			t.Helper()
			return slices.ContainsFunc(h.jobs(), func(job batchv1.Job) bool { return job.UID == shared.UID && job.Name == shared.Name })
		}
		for _, namespace := range []string{"a", "b"} {
			found, err := h.config.Jobs.List(t.Context(), metav1.ListOptions{LabelSelector: labels.Set{LabelPrefix + namespace: "default"}.String()})
			if err != nil || !slices.ContainsFunc(found.Items, func(job batchv1.Job) bool { return job.Name == shared.Name }) {
				t.Errorf("of %s there are %d Jobs, %v", namespace, len(found.Items), err)
			}
		}
		for _, namespace := range []string{"a", "a", "a", "b", "b"} {
			if !stays() {
				t.Fatal("it has lost its log")
			}
			time.Sleep(2 * time.Second) // of which names are made
			name := h.ask(namespace)
			for _, job := range h.active() {
				if job.Name != name {
					t.Fatalf("there runs %s, want %s", job.Name, name)
				}
				h.end(job, true, maintained(job))
			}
		}
		if stays() {
			t.Error("it is none of the last of any, and stays")
		}
		if jobs := h.jobs(); len(jobs) != 4 {
			t.Errorf("%d Jobs are left", len(jobs))
		}
	})
}

// A sweep that doubts the store says so by an event and in the record, until a full maintenance
// has nothing to doubt; quick ones don't look.
func TestDoubted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		recorder := events.NewFakeRecorder(100)
		h.config.Events = recorder
		h.repository("shop", metav1.ConditionTrue)
		h.run()
		defer h.stop()
		for i, c := range []struct {
			result maintenance.Result
			want   int32
			event  bool
		}{
			{maintenance.Result{Kind: "full", MissingBackups: 7}, 7, true},
			{maintenance.Result{Kind: "quick"}, 7, false},
			{maintenance.Result{Kind: "full", Error: "the store is gone"}, 7, false},
			{maintenance.Result{Kind: "full", MissingBackups: 8, Error: "the store is gone"}, 8, true},
			{maintenance.Result{Kind: "full"}, 0, false},
		} {
			c.result.Repository = "shop.default"
			h.end(h.next(), c.result.Error == "", said(c.result.String()))
			if got := h.status("shop").MissingBackups; got != c.want {
				t.Errorf("%d: %d backups are missing, want %d", i, got, c.want)
			}
			told := false
			for len(recorder.Events) > 0 {
				told = strings.HasPrefix(<-recorder.Events, "Warning SnapshotsDoubted Nothing was removed: ") || told
			}
			if told != c.event {
				t.Errorf("%d: an event was made: %t", i, told)
			}
		}
	})
}

// What a check has found is a condition, an event and what the record lists, until a later
// check finds nothing; of more damaged packs than the record names, until one of all packs.
func TestDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		recorder := events.NewFakeRecorder(100)
		h.config.Events = recorder
		h.repository("shop", metav1.ConditionTrue)
		h.run()
		defer h.stop()
		names := make([]string, enginev1alpha1.MaxDamagedPacks)
		for i := range names {
			names[i] = fmt.Sprintf("p%032d", i)
		}
		for i, c := range []struct {
			found   *maintenance.Check
			failure string
			damaged metav1.ConditionStatus
			event   string
		}{
			{nil, "", "", ""},
			{&maintenance.Check{Packs: 3, ReadPacks: 1}, "", metav1.ConditionFalse, ""},
			{&maintenance.Check{Packs: 3, MissingPacks: 2, Contents: 4, AffectedSnapshots: 1, Snapshots: []string{"s"}}, "", metav1.ConditionTrue, "Warning DataLost The store has lost data: 2 packs are missing"},
			{nil, "", metav1.ConditionTrue, ""}, // a quick one
			{&maintenance.Check{Packs: 3, MissingPacks: 2, Contents: 4, AffectedSnapshots: 1, Snapshots: []string{"s"}}, "the clocks differ", metav1.ConditionTrue, ""},
			{&maintenance.Check{Packs: 3}, "", metav1.ConditionFalse, "Normal NothingLost"},
			{&maintenance.Check{Packs: 99, DamagedPacks: 21, Damaged: names}, "", metav1.ConditionTrue, "Warning DataLost"},
			{&maintenance.Check{Packs: 99}, "", metav1.ConditionTrue, ""},
			{&maintenance.Check{Packs: 99, ReadPacks: 99, All: true}, "", metav1.ConditionFalse, "Normal NothingLost"},
			{&maintenance.Check{Packs: 3, MissingIndexes: 2}, "they are lost", metav1.ConditionTrue, "Warning DataLost The store has lost 2 indexes"},
			{&maintenance.Check{Packs: 3}, "", metav1.ConditionFalse, "Normal NothingLost"},
		} {
			result := maintenance.Result{Repository: "shop.default", Kind: "full", Check: c.found, Error: c.failure}
			h.end(h.next(), c.failure == "", said(maintenance.Message([]maintenance.Result{result})))
			status := h.status("shop")
			var got metav1.ConditionStatus
			if condition := meta.FindStatusCondition(status.Conditions, enginev1alpha1.ConditionDamaged); condition != nil {
				got = condition.Status
			}
			if got != c.damaged || (status.Damage != nil) != (got == metav1.ConditionTrue) {
				t.Errorf("%d: the condition is %q, want %q, of %+v", i, got, c.damaged, status.Damage)
			}
			told := ""
			for len(recorder.Events) > 0 {
				if event := <-recorder.Events; strings.Contains(event, "Lost ") {
					told = event
				}
			}
			if !strings.HasPrefix(told, c.event) || c.event == "" && told != "" {
				t.Errorf("%d: the event is %q, want %q", i, told, c.event)
			}
		}
	})
}

func TestJob(t *testing.T) {
	record := &enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("n", 63) + ".a.location", UID: "u"},
		Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: "shop", BackupStorageLocation: "a.location"},
	}
	own := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{
			Image: "registry/holdfast:v1", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}, Args: []string{"controller"},
			VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}, {Name: "kube-api-access-abc", MountPath: "/var/run"}},
		}},
		Volumes:            []corev1.Volume{{Name: "tmp"}, {Name: "kube-api-access-abc"}},
		ServiceAccountName: "holdfast-controller", NodeName: "node-1", PriorityClassName: "high",
		NodeSelector: map[string]string{"a": "b"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
	}}
	name := jobName(record)
	later := record.DeepCopy()
	later.CreationTimestamp = metav1.NewTime(time.Unix(2, 0))
	asked := record.DeepCopy()
	asked.Spec.MaintenanceRequest = &enginev1alpha1.MaintenanceAsk{Ask: enginev1alpha1.Ask{Timestamp: metav1.NewTime(time.Unix(3, 0))}}
	if len(name) > 63 || name == jobName(later) || name == jobName(asked) || name != jobName(record) {
		t.Errorf("the name is %q", name)
	}
	made := job([]*enginev1alpha1.VolumeRepository{record}, system, own, Resources{MemoryLimit: resource.MustParse("1Gi")}, time.Hour, []string{"--v=4"})
	spec := made.Spec.Template.Spec
	container := spec.Containers[0]
	if *made.Spec.BackoffLimit != 0 || *made.Spec.Completions != 1 || *made.Spec.Parallelism != 1 || *made.Spec.TTLSecondsAfterFinished != 86400 || spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("the Job is %+v", made.Spec)
	}
	if container.Image != "registry/holdfast:v1" || len(container.Env) != 1 || len(container.VolumeMounts) != 1 || len(spec.Volumes) != 1 ||
		spec.ServiceAccountName != "holdfast-repo-maintenance" || spec.NodeName != "" || spec.PriorityClassName != "high" || spec.NodeSelector["a"] != "b" || len(spec.ImagePullSecrets) != 1 {
		t.Errorf("the pod is %+v", spec)
	}
	if want := []string{"repo-maintenance", "--namespace=holdfast", "--repo-name=shop", "--repo-type=kopia", "--backup-storage-location=a.location", "--v=4"}; !slices.Equal(container.Args, want) {
		t.Errorf("the arguments are %v", container.Args)
	}
	other := record.DeepCopy()
	other.Name, other.Spec.VolumeNamespace, other.UID = "b.default", "b", "v"
	both := job([]*enginev1alpha1.VolumeRepository{record, other}, system, own, Resources{}, time.Hour, nil)
	if args := both.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--repo-name=shop") || !slices.Contains(args, "--repo-name=b") || !slices.Contains(args, "--repo-timeout=5m0s") ||
		both.Labels[LabelRepository] != "" || !strings.HasPrefix(both.Name, "several-") || !slices.Equal(namesOf(both), []string{record.Name, "b.default"}) {
		t.Errorf("the Job of two is %+v", both)
	}
	if container.Resources.Limits.Memory().String() != "1Gi" || container.Resources.Requests != nil {
		t.Errorf("the resources are %+v", container.Resources)
	}
}

// TestJobHasItsOwnIdentity: the webhooks of clouds find a Job as they find any pod. They would leave
// the controller's role in it, which a token of the Job's account can't take.
func TestJobHasItsOwnIdentity(t *testing.T) {
	record := &enginev1alpha1.VolumeRepository{Spec: enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: "shop", BackupStorageLocation: "default"}}
	for volume, variables := range injected {
		own := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelAzureIdentity: "true", "app.kubernetes.io/component": "controller"}},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{
					Env:          []corev1.EnvVar{{Name: "AWS_REGION", Value: "eu-central-1"}, {Name: "HTTPS_PROXY", Value: "http://proxy"}},
					VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}, {Name: volume, MountPath: "/var/run/secrets/token"}},
				}},
				Volumes: []corev1.Volume{{Name: "tmp"}, {Name: volume}},
			},
		}
		for _, name := range variables {
			own.Spec.Containers[0].Env = append(own.Spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: "of the controller"})
		}
		pod := job([]*enginev1alpha1.VolumeRepository{record}, system, own, Resources{}, time.Hour, nil).Spec.Template
		container := pod.Spec.Containers[0]
		if len(container.Env) != 2 || len(container.VolumeMounts) != 1 || len(pod.Spec.Volumes) != 1 {
			t.Errorf("%s: the pod has the variables %v, mounts %v and volumes %v", volume, container.Env, container.VolumeMounts, pod.Spec.Volumes)
		}
		if pod.Labels[labelAzureIdentity] != "true" || pod.Labels["app.kubernetes.io/component"] != "maintenance" {
			t.Errorf("%s: the pod has the labels %v", volume, pod.Labels)
		}
		// Variables that a person has set are all that there is.
		own.Spec.Volumes, own.Spec.Containers[0].VolumeMounts, own.Labels = nil, nil, nil
		pod = job([]*enginev1alpha1.VolumeRepository{record}, system, own, Resources{}, time.Hour, nil).Spec.Template
		if got := len(pod.Spec.Containers[0].Env); got != 2+len(variables) {
			t.Errorf("%s: %d variables, want %d", volume, got, 2+len(variables))
		}
		if _, has := pod.Labels[labelAzureIdentity]; has {
			t.Errorf("%s: the pod has the label of another cloud", volume)
		}
	}
}
