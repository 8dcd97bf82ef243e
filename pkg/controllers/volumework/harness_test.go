// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/controllers/volumework"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

const (
	system = "holdfast"
	node   = "node-1"
	repo   = "app.default"
	podUID = types.UID("uid-of-web")
)

// harness is what an agent has, on fake clients and a real repository in a folder.
type harness struct {
	t        *testing.T
	engine   *enginetest.Cluster
	events   *events.FakeRecorder
	manager  *datapath.Manager
	config   volumework.Config
	factory  enginefactory.SharedInformerFactory
	podsDir  string
	location repository.Location
	key      repository.Key

	// stopMove stops what startMove has started.
	stopMove func()
	// watching is true once a controller watches by the factory.
	watching bool

	mu     sync.Mutex
	writes []string // the phases of VolumeUploads that were written
}

// An empty repository, made once: deriving its key takes most of a test's time.
var template struct {
	sync.Once
	dir string
	key repository.Key
}

func TestMain(m *testing.M) {
	code := m.Run()
	if template.dir != "" {
		os.RemoveAll(template.dir)
	}
	os.Exit(code)
}

func locationIn(dir string) repository.Location {
	return repository.Location{Spec: enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: dir},
	}}
}

func newHarness(t *testing.T, clock clock.WithTicker) *harness {
	t.Helper()
	template.Do(func() {
		dir, err := os.MkdirTemp("", "holdfast-template-")
		must(t, err)
		template.dir, template.key = dir, repository.NewKey()
		must(t, repository.Create(t.Context(), locationIn(dir), "app", template.key))
	})
	store := t.TempDir()
	must(t, os.CopyFS(store, os.DirFS(template.dir)))
	h := &harness{
		t:        t,
		podsDir:  t.TempDir(),
		events:   events.NewFakeRecorder(10_000),
		location: locationIn(store),
		key:      template.key,
	}
	h.engine = enginetest.New(
		&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}, Spec: h.location.Spec},
		&enginev1alpha1.VolumeRepository{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: repo},
			Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: "app", BackupStorageLocation: "default"},
		},
	)
	h.engine.Observe(func(action clienttesting.Action, obj runtime.Object) {
		if record, ok := obj.(*enginev1alpha1.VolumeUpload); ok && action.GetSubresource() == "status" {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.writes = append(h.writes, string(record.Status.Phase))
		}
	})
	kube := kubefake.NewSimpleClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: enginev1alpha1.KeysNamespace(system), Name: enginev1alpha1.KeySecretName(repo)},
		Data:       map[string][]byte{enginev1alpha1.KeySecretKey: []byte(h.key)},
	})
	h.config = volumework.Config{
		Node:      node,
		Namespace: system,
		PodsDir:   h.podsDir,
		Hung:      new(volumework.Hung),
		Secrets: func(ctx context.Context, _, _ string) ([]corev1.Secret, error) {
			list, err := kube.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			return list.Items, nil
		},
		Events: h.events,
		Clock:  clock,
	}
	h.process(t.Context(), "this agent")
	return h
}

// process lets the next controllers belong to another process, whose work ends with ctx.
func (h *harness) process(ctx context.Context, identity string) {
	h.manager, h.watching = datapath.NewManager(ctx, 1), false
	h.factory = enginefactory.NewSharedInformerFactory(h.engine, 0)
	h.config.Identity, h.config.Manager = identity, h.manager
	h.config.RepositoryInformer = h.factory.Engine().V1alpha1().VolumeRepositories()
	h.config.LocationInformer = h.factory.Engine().V1alpha1().StorageLocations()
}

// refuse has writes of statuses fail.
func (h *harness) refuse(err func(*enginev1alpha1.VolumeUpload) error) {
	h.engine.Fault(func(action clienttesting.Action) enginetest.Fault {
		update, ok := action.(clienttesting.UpdateActionImpl)
		if !ok || action.GetSubresource() != "status" {
			return enginetest.Fault{}
		}
		return enginetest.Fault{Err: err(update.GetObject().(*enginev1alpha1.VolumeUpload))}
	})
}

// written returns the phases that were written so far.
func (h *harness) written() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.writes)
}

// start runs a controller, with the manager, until the test ends, or it is told to stop.
func (h *harness) start(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(h.t.Context())
	watches := h.engine.Watches() + 3
	if h.watching {
		watches -= 2 // which are those of the controller before
	}
	h.watching = true
	h.factory.StartWithContext(ctx)
	// The fake forgets what happens before a watch.
	h.eventually(func() bool { return h.engine.Watches() >= watches }, func() string { return "there are no watches" })
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	manager, factory := h.manager, h.factory
	stop = func() {
		cancel()
		manager.Stop()
		running.Wait()
		factory.Shutdown()
	}
	h.t.Cleanup(stop)
	return stop
}

func (h *harness) startBackups() {
	c, err := volumework.NewUploads(h.config, h.engine.EngineV1alpha1(), h.engine.EngineV1alpha1(), h.factory.Engine().V1alpha1().VolumeUploads())
	must(h.t, err)
	h.start(c.Run)
}

func (h *harness) startRestores() {
	c, err := volumework.NewRestores(h.config, h.engine.EngineV1alpha1(), h.engine.EngineV1alpha1(), h.factory.Engine().V1alpha1().VolumeRestores())
	must(h.t, err)
	h.start(c.Run)
}

// startMove runs a controller of VolumeUploads that does something else than
// uploading.
func (h *harness) startMove(move func(context.Context, *datapath.Progress) (volumework.Result[*enginev1alpha1.VolumeUpload], error)) *volumework.Controller[*enginev1alpha1.VolumeUpload] {
	informer := h.factory.Engine().V1alpha1().VolumeUploads()
	c, err := volumework.New(h.config, volumework.Kind[*enginev1alpha1.VolumeUpload]{
		Name: "test", Class: datapath.ClassBackup, Action: "Test", FailureReason: "TestFailed",
		Target: func(r *enginev1alpha1.VolumeUpload) volumework.Target {
			return volumework.Target{Node: r.Spec.Node, Pod: r.Spec.Pod.UID, Volume: r.Spec.Volume, Repository: r.Spec.Repository}
		},
		Status: func(r *enginev1alpha1.VolumeUpload) volumework.Status {
			s := &r.Status
			return volumework.Status{Phase: &s.Phase, Message: &s.Message, Progress: &s.Progress, Start: &s.StartTimestamp, Completion: &s.CompletionTimestamp, Attempts: &s.Attempts, GivenBack: &s.GivenBack, Agent: &s.Agent}
		},
		Cancelled: func(r *enginev1alpha1.VolumeUpload) bool { return r.Spec.Cancel },
		Move: func(ctx context.Context, _ *repository.Repository, _ *enginev1alpha1.VolumeUpload, _ datapath.Folder, p *datapath.Progress) (volumework.Result[*enginev1alpha1.VolumeUpload], error) {
			return move(ctx, p)
		},
	}, h.engine.EngineV1alpha1().VolumeUploads(system), h.engine.EngineV1alpha1().VolumeUploads(system), informer.Lister().VolumeUploads(system), informer.Informer())
	must(h.t, err)
	h.stopMove = h.start(c.Run)
	return c
}

// volume makes the folder of an emptyDir of the pod.
func (h *harness) volume(name string) string {
	h.t.Helper()
	dir := filepath.Join(h.podsDir, string(podUID), "volumes/kubernetes.io~empty-dir", name)
	must(h.t, os.MkdirAll(dir, 0o755))
	return dir
}

// ready sets the condition of the repository.
func (h *harness) ready(status metav1.ConditionStatus, reason string) {
	h.t.Helper()
	records := h.engine.EngineV1alpha1().VolumeRepositories(system)
	record, err := records.Get(h.t.Context(), repo, metav1.GetOptions{})
	must(h.t, err)
	meta.SetStatusCondition(&record.Status.Conditions, metav1.Condition{Type: enginev1alpha1.ConditionReady, Status: status, Reason: reason, Message: "the message"})
	_, err = records.UpdateStatus(h.t.Context(), record, metav1.UpdateOptions{})
	must(h.t, err)
}

func (h *harness) backup(name string, uid types.UID, volume string) *enginev1alpha1.VolumeUpload {
	return &enginev1alpha1.VolumeUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: uid, Labels: map[string]string{enginev1alpha1.LabelNode: node}},
		Spec: enginev1alpha1.VolumeUploadSpec{
			Node: node, Pod: enginev1alpha1.PodReference{Namespace: "app", Name: "web", UID: podUID},
			Volume: volume, BackupStorageLocation: "default", Repository: repo,
		},
	}
}

func (h *harness) create(record *enginev1alpha1.VolumeUpload) {
	h.t.Helper()
	_, err := h.engine.EngineV1alpha1().VolumeUploads(system).Create(h.t.Context(), record, metav1.CreateOptions{})
	must(h.t, err)
}

func (h *harness) cancel(name string) {
	h.t.Helper()
	record := h.get(name)
	record.Spec.Cancel = true
	_, err := h.engine.EngineV1alpha1().VolumeUploads(system).Update(h.t.Context(), record, metav1.UpdateOptions{})
	must(h.t, err)
}

func (h *harness) remove(name string) {
	h.t.Helper()
	must(h.t, h.engine.EngineV1alpha1().VolumeUploads(system).Delete(h.t.Context(), name, metav1.DeleteOptions{}))
}

func (h *harness) get(name string) *enginev1alpha1.VolumeUpload {
	h.t.Helper()
	record, err := h.engine.EngineV1alpha1().VolumeUploads(system).Get(h.t.Context(), name, metav1.GetOptions{})
	must(h.t, err)
	return record
}

// expect waits until a record has a phase.
func (h *harness) expect(name string, phase enginev1alpha1.VolumePhase) *enginev1alpha1.VolumeUpload {
	h.t.Helper()
	var last *enginev1alpha1.VolumeUpload
	h.eventually(func() bool {
		last = h.get(name)
		return last.Status.Phase == phase
	}, func() string { return fmt.Sprintf("%s is %+v, want %s", name, last.Status, phase) })
	return last
}

func (h *harness) eventually(done func() bool, problem func() string) {
	h.t.Helper()
	err := wait.PollUntilContextTimeout(h.t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return done(), nil
	})
	if err != nil {
		h.t.Fatal(problem())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
