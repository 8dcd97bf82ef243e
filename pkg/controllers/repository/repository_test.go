// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

const (
	system = "holdfast"
	keys   = "holdfast-repositories"
	name   = "app.default"
)

// harness is a controller on fake clients, with a real store in a folder.
type harness struct {
	*Controller
	t       *testing.T
	engine  *enginefake.Clientset
	kube    *kubefake.Clientset
	events  *events.FakeRecorder
	folder  string
	factory engineinformers.SharedInformerFactory
}

func newHarness(t *testing.T, objects ...runtime.Object) *harness {
	t.Helper()
	folder := t.TempDir()
	location := &engine.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
		Spec: engine.StorageLocationSpec{
			Provider:   engine.StorageProviderFilesystem,
			Filesystem: &engine.FilesystemLocation{Path: folder},
		},
	}
	h := &harness{
		t:      t,
		engine: enginefake.NewSimpleClientset(append(objects, location)...),
		kube:   kubefake.NewSimpleClientset(),
		events: events.NewFakeRecorder(10),
		folder: folder,
	}
	h.factory = engineinformers.NewSharedInformerFactory(h.engine, 0)
	v1 := h.factory.Engine().V1alpha1()
	var err error
	h.Controller, err = New(Config{
		Namespace:          system,
		Repositories:       h.engine.EngineV1alpha1(),
		Secrets:            h.kube.CoreV1().Secrets(engine.CredentialsNamespace(system)),
		Keys:               h.kube.CoreV1().Secrets(keys),
		Events:             h.events,
		Clock:              clock.RealClock{},
		RepositoryInformer: v1.VolumeRepositories(),
		LocationInformer:   v1.StorageLocations(),
	})
	must(t, err)
	return h
}

// run starts the controller until the test ends.
func (h *harness) run() {
	ctx, cancel := context.WithCancel(h.t.Context())
	h.factory.StartWithContext(ctx)
	var running sync.WaitGroup
	running.Go(func() { h.Run(ctx) })
	h.t.Cleanup(func() {
		cancel()
		running.Wait()
		h.factory.Shutdown()
	})
}

func (h *harness) record() *engine.VolumeRepository {
	h.t.Helper()
	record, err := h.engine.EngineV1alpha1().VolumeRepositories(system).Get(h.t.Context(), name, metav1.GetOptions{})
	must(h.t, err)
	return record
}

// expect waits for the condition Ready.
func (h *harness) expect(status metav1.ConditionStatus, reason string) metav1.Condition {
	h.t.Helper()
	var last *metav1.Condition
	err := wait.PollUntilContextTimeout(h.t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = meta.FindStatusCondition(h.record().Status.Conditions, engine.ConditionReady)
		return last != nil && last.Status == status && last.Reason == reason, nil
	})
	if err != nil {
		h.t.Fatalf("the condition is %v, want %s with reason %s", last, status, reason)
	}
	return *last
}

func (h *harness) key() repository.Key {
	h.t.Helper()
	secret, err := h.kube.CoreV1().Secrets(keys).Get(h.t.Context(), name+".key", metav1.GetOptions{})
	must(h.t, err)
	return repository.Key(secret.Data["repository-password"])
}

// attempt prepares the repository once, and returns what the record says then.
func (h *harness) attempt() metav1.Condition {
	h.t.Helper()
	record := h.record()
	condition, _ := h.prepare(h.t.Context(), record)
	must(h.t, h.write(h.t.Context(), record, condition))
	written := meta.FindStatusCondition(h.record().Status.Conditions, engine.ConditionReady)
	if written == nil {
		return metav1.Condition{}
	}
	return *written
}

// fill puts the store's objects into the listers without running anything.
func (h *harness) fill() {
	h.t.Helper()
	list, err := h.engine.EngineV1alpha1().StorageLocations(system).List(h.t.Context(), metav1.ListOptions{})
	must(h.t, err)
	for i := range list.Items {
		must(h.t, h.factory.Engine().V1alpha1().StorageLocations().Informer().GetStore().Add(&list.Items[i]))
	}
}

func (h *harness) statusWrites() (n int) {
	for _, action := range h.engine.Actions() {
		if action.GetVerb() == "update" && action.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func record() *engine.VolumeRepository {
	return &engine.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Spec:       engine.VolumeRepositorySpec{VolumeNamespace: "app", BackupStorageLocation: "default"},
	}
}

func (h *harness) location() repository.Location {
	return repository.Location{Spec: engine.StorageLocationSpec{
		Provider: engine.StorageProviderFilesystem, Filesystem: &engine.FilesystemLocation{Path: h.folder},
	}}
}

func TestCreates(t *testing.T) {
	h := newHarness(t)
	h.run()
	_, err := EnsureRecord(t.Context(), h.engine.EngineV1alpha1().VolumeRepositories(system), "app", "default")
	must(t, err)
	h.expect(metav1.ConditionTrue, "Opened")

	r, err := repository.Open(t.Context(), h.location(), "app", h.key(), repository.Options{})
	must(t, err)
	must(t, r.Close(t.Context()))
	secret, err := h.kube.CoreV1().Secrets(keys).Get(t.Context(), name+".key", metav1.GetOptions{})
	must(t, err)
	if secret.Type != corev1.SecretTypeOpaque || secret.Labels[LabelKey] == "" || secret.Labels["velero.io/exclude-from-backup"] != "true" || len(secret.OwnerReferences) > 0 {
		t.Errorf("the Secret is %+v", secret.ObjectMeta)
	}
	if got := h.statusWrites(); got != 1 {
		t.Errorf("%d writes of the status, want 1", got)
	}
}

func TestEnsureRecord(t *testing.T) {
	client := enginefake.NewSimpleClientset()
	records := client.EngineV1alpha1().VolumeRepositories(system)
	for range 2 {
		got, err := EnsureRecord(t.Context(), records, "app", "default")
		must(t, err)
		if got.Name != name || got.Spec != record().Spec {
			t.Errorf("the record is %+v", got)
		}
	}
	creations := 0
	for _, action := range client.Actions() {
		if action.GetVerb() == "create" {
			creations++
		}
	}
	if creations != 1 {
		t.Errorf("%d creations, want 1", creations)
	}
}

// TestKeyMissing: a key is never made for a repository that exists.
func TestKeyMissing(t *testing.T) {
	h := newHarness(t, record())
	h.fill()
	if got := h.attempt(); got.Status != metav1.ConditionTrue {
		t.Fatalf("the condition is %+v", got)
	}
	secret, err := h.kube.CoreV1().Secrets(keys).Get(t.Context(), name+".key", metav1.GetOptions{})
	must(t, err)
	must(t, h.kube.CoreV1().Secrets(keys).Delete(t.Context(), secret.Name, metav1.DeleteOptions{}))

	for range 2 {
		if got := h.attempt(); got.Reason != "KeyMissing" || !strings.Contains(got.Message, secret.Name) {
			t.Errorf("the condition is %+v, want KeyMissing", got)
		}
	}
	if _, err := h.kube.CoreV1().Secrets(keys).Get(t.Context(), secret.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a key was made: %v", err)
	}
	if got := h.statusWrites(); got != 2 {
		t.Errorf("%d writes of the status, want 2", got)
	}
	select {
	case event := <-h.events.Events:
		if !strings.Contains(event, "KeyMissing") {
			t.Errorf("the event is %q", event)
		}
	default:
		t.Error("there is no event")
	}

	secret.ResourceVersion = ""
	_, err = h.kube.CoreV1().Secrets(keys).Create(t.Context(), secret, metav1.CreateOptions{})
	must(t, err)
	if got := h.attempt(); got.Status != metav1.ConditionTrue {
		t.Errorf("with the Secret back the condition is %+v", got)
	}
}

func TestSecretGiven(t *testing.T) {
	for _, c := range []struct {
		name, password, want string
	}{
		{"another key", "another", "KeyMismatch"},
		{"its key, with a newline", "the password\n", "Opened"},
		{"no key", "", "KeyMissing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, record())
			h.fill()
			must(t, repository.Create(t.Context(), h.location(), "app", "the password"))
			given := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + ".key", Namespace: keys}, Data: map[string][]byte{}}
			if c.password != "" {
				given.Data["repository-password"] = []byte(c.password)
			}
			_, err := h.kube.CoreV1().Secrets(keys).Create(t.Context(), given, metav1.CreateOptions{})
			must(t, err)
			if got := h.attempt(); got.Reason != c.want {
				t.Errorf("the condition is %+v, want %s", got, c.want)
			}
			if got := h.key(); string(got) != c.password {
				t.Error("the given key was replaced")
			}
		})
	}
	t.Run("a Secret without the key, and no repository", func(t *testing.T) {
		h := newHarness(t, record())
		h.fill()
		_, err := h.kube.CoreV1().Secrets(keys).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + ".key", Namespace: keys}}, metav1.CreateOptions{})
		must(t, err)
		if got := h.attempt(); got.Reason != "KeyMissing" {
			t.Errorf("the condition is %+v, want KeyMissing", got)
		}
		if left, _ := os.ReadDir(filepath.Join(h.folder, "kopia")); len(left) != 0 {
			t.Errorf("a repository was made without a key: %v", left)
		}
	})
}

func TestDamaged(t *testing.T) {
	h := newHarness(t, record())
	h.fill()
	h.attempt()
	must(t, os.Remove(filepath.Join(h.folder, "kopia/app/kopia.repository.f")))
	if got := h.attempt(); got.Reason != engine.ReasonDamaged {
		t.Errorf("the condition is %+v, want %s", got, engine.ReasonDamaged)
	}
}

// TestUnreachable: an outage costs no write for what was ready, and one for what
// was not.
func TestUnreachable(t *testing.T) {
	h := newHarness(t, record())
	h.fill()
	must(t, os.Rename(h.folder, h.folder+".away"))
	for range 3 {
		if got := h.attempt(); got.Reason != "Unreachable" || got.Status != metav1.ConditionFalse {
			t.Errorf("the condition is %+v, want Unreachable", got)
		}
	}
	if got := h.statusWrites(); got != 1 {
		t.Errorf("%d writes of the status, want 1", got)
	}
	if secrets, _ := h.kube.CoreV1().Secrets(keys).List(t.Context(), metav1.ListOptions{}); len(secrets.Items) != 0 {
		t.Error("a key was made before it is known whether there is a repository")
	}

	must(t, os.Rename(h.folder+".away", h.folder))
	if got := h.attempt(); got.Status != metav1.ConditionTrue {
		t.Fatalf("the condition is %+v", got)
	}
	must(t, os.Rename(h.folder, h.folder+".away"))
	if got := h.attempt(); got.Status != metav1.ConditionTrue {
		t.Errorf("in an outage the condition becomes %+v", got)
	}
	must(t, os.Rename(h.folder+".away", h.folder))
}

// TestFailedReadOfASecret: what the cluster does not answer says nothing about a
// repository. A Secret that is not there does.
func TestFailedReadOfASecret(t *testing.T) {
	h := newHarness(t, record())
	h.fill()
	if got := h.attempt(); got.Status != metav1.ConditionTrue {
		t.Fatalf("the condition is %+v", got)
	}
	store := h.factory.Engine().V1alpha1().StorageLocations().Informer().GetStore()
	location := store.List()[0].(*engine.StorageLocation).DeepCopy()
	location.Spec = engine.StorageLocationSpec{
		Provider: engine.StorageProviderS3,
		S3:       &engine.S3Location{Bucket: "backups", CredentialsSecret: "credentials"},
	}
	must(t, store.Update(location))
	failing := true
	h.kube.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return failing, nil, apierrors.NewInternalError(errors.New("etcd has no leader"))
	})
	if got := h.attempt(); got.Status != metav1.ConditionTrue {
		t.Errorf("after one failed read of a Secret the condition is %+v", got)
	}
	failing = false
	if got := h.attempt(); got.Reason != engine.ReasonInvalid || !strings.Contains(got.Message, `"credentials"`) {
		t.Errorf("without the Secret the condition is %+v", got)
	}
}

// TestLocationWakes: a repository waits for its location without trying it.
func TestLocationWakes(t *testing.T) {
	h := newHarness(t, record())
	locations := h.engine.EngineV1alpha1().StorageLocations(system)
	location, err := locations.Get(t.Context(), "default", metav1.GetOptions{})
	must(t, err)
	set := func(status metav1.ConditionStatus) {
		location = location.DeepCopy()
		meta.SetStatusCondition(&location.Status.Conditions, metav1.Condition{Type: engine.ConditionAvailable, Status: status, Reason: "Test"})
		_, err := locations.UpdateStatus(t.Context(), location, metav1.UpdateOptions{})
		must(t, err)
	}
	set(metav1.ConditionFalse)
	h.run()
	h.expect(metav1.ConditionFalse, "Unreachable")
	if left, _ := os.ReadDir(h.folder); len(left) != 0 {
		t.Errorf("the store was used: %v", left)
	}
	set(metav1.ConditionTrue)
	h.expect(metav1.ConditionTrue, "Opened")
}

func TestLocationMissing(t *testing.T) {
	h := newHarness(t, record())
	must(t, h.engine.EngineV1alpha1().StorageLocations(system).Delete(t.Context(), "default", metav1.DeleteOptions{}))
	h.run()
	if got := h.expect(metav1.ConditionFalse, "Invalid"); !strings.Contains(got.Message, `"default"`) {
		t.Errorf("the message is %q", got.Message)
	}
}
