// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

const (
	system        = "holdfast"
	volumeTimeout = time.Hour
	agentTimeout  = 5 * time.Minute
)

// agents are the nodes' agents, as the controller knows them.
type agents struct {
	lease.Activity
	mu   sync.Mutex
	left map[string]time.Time
	gone map[string]bool
}

func (a *agents) Absence(node string, since time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	left, ok := a.left[node]
	if !ok {
		return 0
	}
	if since.After(left) {
		left = since
	}
	return time.Since(left)
}

func (a *agents) NodeGone(node string, _ time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone[node]
}

func (a *agents) leave(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left[node] = time.Now()
}

func (a *agents) remove(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone[node] = true
}

// harness is a cluster with a kubelet on node-1, for one test in a bubble.
type harness struct {
	*testing.T
	*enginetest.Cluster
	agents     *agents
	run        *enginev1alpha1.RestoreRun
	repository error
	// node is where pods go.
	node string
	// pods are shown to the kubelet, which runs them unless it says no.
	kubelet func(*corev1.Pod) bool
	// agent is what an agent writes of a record that it sees. Nil does nothing.
	agent func(*enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{
		T: t, Cluster: enginetest.New(), node: "node-1",
		agents: &agents{left: map[string]time.Time{}, gone: map[string]bool{}},
		run: &enginev1alpha1.RestoreRun{
			ObjectMeta: metav1.ObjectMeta{Name: "shop.undo", Namespace: system, UID: "uid-of-run"},
		},
		kubelet: func(*corev1.Pod) bool { return true },
		agent: func(record *enginev1alpha1.VolumeRestore) enginev1alpha1.VolumeRestoreStatus {
			return enginev1alpha1.VolumeRestoreStatus{Phase: enginev1alpha1.VolumePhaseCompleted}
		},
	}
	h.run.Spec.Backup.StorageLocation = "default"
	_, err := h.Kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.node, Labels: map[string]string{corev1.LabelHostname: "host-1"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.serve()
	return h
}

// volumes is one process's view.
func (h *harness) volumes() *Volumes {
	h.Helper()
	factory := enginefactory.NewSharedInformerFactory(h.Clientset, 0)
	v, err := New(Config{
		Namespace:     system,
		Image:         func(context.Context) (string, error) { return "example.com/holdfast:v1", nil },
		VolumeTimeout: volumeTimeout, AgentTimeout: agentTimeout,
		Agents:         h.agents,
		Repository:     func(context.Context, string, string) error { return h.repository },
		Records:        h.EngineV1alpha1(),
		Runs:           h.EngineV1alpha1(),
		Removing:       h.Kube.CoreV1(),
		Kube:           h.Kube,
		Clock:          clock.RealClock{},
		RecordInformer: factory.Engine().V1alpha1().VolumeRestores(),
	})
	if err != nil {
		h.Fatal(err)
	}
	factory.StartWithContext(h.Context())
	h.Cleanup(factory.Shutdown)
	return v
}

func (h *harness) restorer() *Restorer {
	h.Helper()
	r := h.volumes().Restorer(h.run, h.Kube.CoreV1())
	h.Cleanup(r.Close)
	return r
}

// serve runs the kubelet and the agent.
func (h *harness) serve() {
	pods, err := h.Kube.CoreV1().Pods("").Watch(h.Context(), metav1.ListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	records, err := h.EngineV1alpha1().VolumeRestores(system).Watch(h.Context(), metav1.ListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	go func() {
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Added && h.kubelet(pod) {
				h.start(pod)
			}
		}
	}()
	go func() {
		for event := range records.ResultChan() {
			record, ok := event.Object.(*enginev1alpha1.VolumeRestore)
			if !ok || event.Type != watch.Added || h.agent == nil {
				continue
			}
			if status := h.agent(record); status.Phase != "" {
				h.report(record.Name, status)
			}
		}
	}()
	h.Cleanup(func() { pods.Stop(); records.Stop() })
}

// start runs a pod: its claims are bound, and the container that waits runs.
func (h *harness) start(pod *corev1.Pod) {
	ctx := context.Background()
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		// Behind the back of who breaks requests.
		found, err := h.Kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		if err != nil {
			h.Error(err)
			return
		}
		claim := found.(*corev1.PersistentVolumeClaim)
		claims := h.Kube.CoreV1().PersistentVolumeClaims(pod.Namespace)
		if claim.Spec.VolumeName == "" {
			claim.Spec.VolumeName, claim.Status.Phase = "pv-of-"+claim.Name, corev1.ClaimBound
			if _, err := claims.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
				h.Error(err)
			}
		}
	}
	pod = pod.DeepCopy()
	pod.Spec.NodeName = h.node
	running := []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	if len(pod.Spec.InitContainers) > 0 {
		running[0].Name = pod.Spec.InitContainers[0].Name
		pod.Status.InitContainerStatuses = running
	} else {
		pod.Status.ContainerStatuses = running
	}
	if _, err := h.Kube.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
		h.Error(err)
	}
}

// report writes a status as the agent does.
func (h *harness) report(name string, status enginev1alpha1.VolumeRestoreStatus) {
	ctx := context.Background()
	found, err := h.Tracker().Get(enginev1alpha1.SchemeGroupVersion.WithResource("volumerestores"), system, name)
	if err != nil {
		return // it is gone
	}
	record := found.(*enginev1alpha1.VolumeRestore)
	record.Status = status
	if _, err := h.EngineV1alpha1().VolumeRestores(system).UpdateStatus(ctx, record, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		h.Error(err)
	}
}

// claim creates a claim that is not bound, and returns what is to be restored into it.
func (h *harness) claim(name string) Claim {
	h.Helper()
	_, err := h.Kube.CoreV1().PersistentVolumeClaims("shop").Create(h.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID("uid-of-" + name)},
	}, metav1.CreateOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return Claim{
		Namespace: "shop", Name: name,
		Data: format.Volume{
			Pod: enginev1alpha1.PodReference{Namespace: "origin", Name: "web", UID: "uid-of-web"}, Name: "content", ClaimName: name,
			Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "k-" + name},
		},
	}
}

// records are those that agents see.
func (h *harness) records() []enginev1alpha1.VolumeRestore {
	h.Helper()
	list, err := h.EngineV1alpha1().VolumeRestores(system).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return list.Items
}

func (h *harness) livePods() []corev1.Pod {
	h.Helper()
	list, err := h.Kube.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return list.Items
}

// begin calls Claim, and returns where its result will be.
func begin(ctx context.Context, r *Restorer, claim Claim) <-chan error {
	result := make(chan error, 1)
	go func() { result <- r.Claim(ctx, claim) }()
	return result
}

// settle lets everybody do what there is to do.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func ended(result <-chan error) (error, bool) {
	settle()
	select {
	case err := <-result:
		return err, true
	default:
		return fmt.Errorf("it has not ended"), false
	}
}
