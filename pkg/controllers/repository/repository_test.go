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
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	enginefake "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/fake"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
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
	factory enginefactory.SharedInformerFactory
	// lost is a key that was lost, and failing that no credentials can be read.
	lost    repository.Key
	failing bool
}

func newHarness(t *testing.T, objects ...runtime.Object) *harness {
	t.Helper()
	folder := t.TempDir()
	location := &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider:   enginev1alpha1.StorageProviderFilesystem,
			Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder},
		},
	}
	h := &harness{
		t:      t,
		engine: enginefake.NewSimpleClientset(append(objects, location)...),
		kube:   kubefake.NewSimpleClientset(),
		events: events.NewFakeRecorder(10),
		folder: folder,
	}
	h.factory = enginefactory.NewSharedInformerFactory(h.engine, 0)
	v1 := h.factory.Engine().V1alpha1()
	var err error
	h.Controller, err = New(Config{
		Namespace:          system,
		Cluster:            testCluster(t),
		Repositories:       h.engine.EngineV1alpha1(),
		Secrets:            h.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(system)),
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

func (h *harness) record() *enginev1alpha1.VolumeRepository {
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
		last = meta.FindStatusCondition(h.record().Status.Conditions, enginev1alpha1.ConditionReady)
		return last != nil && last.Status == status && last.Reason == reason, nil
	})
	if err != nil {
		h.t.Fatalf("the condition is %v, want %s with reason %s", last, status, reason)
	}
	return *last
}

// key is what the Secret with the repository's key holds, if there is one.
func (h *harness) key() (repository.Key, bool) {
	h.t.Helper()
	secret, err := h.kube.CoreV1().Secrets(keys).Get(h.t.Context(), name+".key", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", false
	}
	must(h.t, err)
	return repository.Key(secret.Data["repository-password"]), true
}

// attempt prepares the repository once, and returns what the record says then.
func (h *harness) attempt() metav1.Condition {
	h.t.Helper()
	record := h.record()
	condition, _ := h.prepare(h.t.Context(), record)
	must(h.t, h.write(h.t.Context(), record, &condition, nil))
	written := meta.FindStatusCondition(h.record().Status.Conditions, enginev1alpha1.ConditionReady)
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

func record() *enginev1alpha1.VolumeRepository {
	return &enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: "app", BackupStorageLocation: "default"},
	}
}

func (h *harness) location() repository.Location {
	return repository.Location{Spec: enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderFilesystem, Filesystem: &enginev1alpha1.FilesystemLocation{Path: h.folder},
	}}
}

func TestCreates(t *testing.T) {
	h := newHarness(t)
	h.run()
	err := EnsureRecord(t.Context(), h.engine.EngineV1alpha1().VolumeRepositories(system), "app", "default")
	must(t, err)
	h.expect(metav1.ConditionTrue, "Ready")

	key, _ := h.key()
	r, err := repository.Open(t.Context(), h.location(), "app", key, repository.Options{})
	must(t, err)
	must(t, r.Close(t.Context()))
	secret, err := h.kube.CoreV1().Secrets(keys).Get(t.Context(), name+".key", metav1.GetOptions{})
	must(t, err)
	if secret.Type != corev1.SecretTypeOpaque || secret.Labels[LabelKey] == "" || secret.Labels["velero.io/exclude-from-backup"] != "true" || len(secret.OwnerReferences) > 0 {
		t.Errorf("the Secret is %+v", secret.ObjectMeta)
	}
	h.expectKey(metav1.ConditionFalse, enginev1alpha1.ReasonKeyNotExported)
	if got := h.statusWrites(); got != 1 {
		t.Errorf("%d writes of the status, want 1", got)
	}
}

func TestEnsureRecord(t *testing.T) {
	client := enginefake.NewSimpleClientset()
	records := client.EngineV1alpha1().VolumeRepositories(system)
	for range 2 {
		must(t, EnsureRecord(t.Context(), records, "app", "default"))
		got, err := records.Get(t.Context(), name, metav1.GetOptions{})
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

// setKey puts a key into the Secret that has the repository's; without one it has none.
func (h *harness) setKey(password repository.Key) {
	h.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + ".key", Namespace: keys}, Data: map[string][]byte{}}
	if password != "" {
		secret.Data["repository-password"] = []byte(password)
	}
	_, err := h.kube.CoreV1().Secrets(keys).Create(h.t.Context(), secret, metav1.CreateOptions{})
	must(h.t, err)
}

func (h *harness) loseKey() {
	h.t.Helper()
	h.lost, _ = h.key()
	must(h.t, h.kube.CoreV1().Secrets(keys).Delete(h.t.Context(), name+".key", metav1.DeleteOptions{}))
}

// makeRepository makes it as somebody else has, before this controller comes.
func (h *harness) makeRepository() {
	h.t.Helper()
	must(h.t, repository.Create(h.t.Context(), h.location(), "app", "the password"))
}

func (h *harness) damage() {
	h.t.Helper()
	must(h.t, os.Remove(filepath.Join(h.folder, "kopia/app/kopia.repository.f")))
}

// lose moves the repository out of the store, and find brings it back.
func (h *harness) lose() {
	must(h.t, os.Rename(filepath.Join(h.folder, "kopia/app"), filepath.Join(h.folder, "app.away")))
}
func (h *harness) find() {
	must(h.t, os.Rename(filepath.Join(h.folder, "app.away"), filepath.Join(h.folder, "kopia/app")))
}

func (h *harness) expectNoRepository() {
	h.t.Helper()
	if left, _ := os.ReadDir(filepath.Join(h.folder, "kopia")); len(left) != 0 {
		h.t.Errorf("a repository was made without a key: %v", left)
	}
}

func (h *harness) goAway()   { must(h.t, os.Rename(h.folder, h.folder+".away")) }
func (h *harness) comeBack() { must(h.t, os.Rename(h.folder+".away", h.folder)) }

// needCredentials makes the location one that has a Secret, which is not there.
func (h *harness) needCredentials() {
	h.t.Helper()
	store := h.factory.Engine().V1alpha1().StorageLocations().Informer().GetStore()
	location := store.List()[0].(*enginev1alpha1.StorageLocation).DeepCopy()
	location.Spec = enginev1alpha1.StorageLocationSpec{
		Provider: enginev1alpha1.StorageProviderS3,
		S3:       &enginev1alpha1.S3Location{Bucket: "backups", CredentialsSecret: "credentials"},
	}
	must(h.t, store.Update(location))
}

// TestConditions: what the record says after each step, and what that costs. A key is
// never replaced, and none is made for a repository that exists, or may.
func TestConditions(t *testing.T) {
	const opened, missing, mismatch, unreachable = "Ready", "KeyMissing", "KeyMismatch", "Unreachable"
	type step struct {
		change func(*harness)
		want   string // what the condition says: its reason, or also some of its message
	}
	nothing := func(*harness) {}
	for title, c := range map[string]struct {
		steps  []step
		writes int
		event  string
	}{
		"the key is lost, and found": {[]step{
			{nothing, opened}, {(*harness).loseKey, missing + name + ".key"}, {nothing, missing},
			{func(h *harness) { h.setKey(h.lost) }, opened},
		}, 3, missing},
		"another key":              {[]step{{func(h *harness) { h.makeRepository(); h.setKey("another") }, mismatch}}, 1, mismatch},
		"its key, with a newline":  {[]step{{func(h *harness) { h.makeRepository(); h.setKey("the password\n") }, opened}}, 1, ""},
		"a Secret without its key": {[]step{{func(h *harness) { h.makeRepository(); h.setKey("") }, missing}}, 1, missing},
		"a Secret without a key": {[]step{
			{func(h *harness) { h.setKey("") }, missing},
			{(*harness).expectNoRepository, missing},
		}, 1, missing},
		"damage": {[]step{{nothing, opened}, {(*harness).damage, enginev1alpha1.ReasonDamaged}}, 2, enginev1alpha1.ReasonDamaged},
		// Nor is one made in the place of one that was there, and no key for it.
		"it is gone, and comes back": {[]step{
			{nothing, opened}, {(*harness).lose, enginev1alpha1.ReasonDamaged + "bring it back"}, {nothing, enginev1alpha1.ReasonDamaged},
			{(*harness).loseKey, enginev1alpha1.ReasonDamaged}, {func(h *harness) { h.setKey(h.lost) }, enginev1alpha1.ReasonDamaged},
			{(*harness).find, opened},
		}, 3, enginev1alpha1.ReasonDamaged},
		"it is gone when its location comes back": {[]step{
			{nothing, opened}, {(*harness).goAway, opened}, {func(h *harness) { h.comeBack(); h.lose() }, enginev1alpha1.ReasonDamaged},
		}, 2, enginev1alpha1.ReasonDamaged},
		"it is gone, and was maintained": {[]step{
			{func(h *harness) {
				record := h.record()
				record.Status.LastMaintenanceTime = &metav1.Time{Time: time.Now()}
				_, err := h.engine.EngineV1alpha1().VolumeRepositories(system).UpdateStatus(h.t.Context(), record, metav1.UpdateOptions{})
				must(h.t, err)
			}, enginev1alpha1.ReasonDamaged},
		}, 2, enginev1alpha1.ReasonDamaged},
		// An outage costs no write for what was ready, and one for what was not.
		"an outage, before and after": {[]step{
			{(*harness).goAway, unreachable}, {nothing, unreachable}, {nothing, unreachable},
			{(*harness).comeBack, opened}, {(*harness).goAway, opened}, {(*harness).comeBack, opened},
		}, 2, ""},
		// What the cluster does not answer says nothing about a repository. A Secret that is
		// not there does.
		"credentials that can't be read": {[]step{
			{nothing, opened},
			{func(h *harness) { h.needCredentials(); h.failing = true }, opened},
			{func(h *harness) { h.failing = false }, enginev1alpha1.ReasonInvalid + `"credentials"`},
		}, 2, enginev1alpha1.ReasonInvalid},
	} {
		t.Run(title, func(t *testing.T) {
			h := newHarness(t, record())
			h.kube.PrependReactor("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return h.failing && action.GetNamespace() != keys, nil, apierrors.NewInternalError(errors.New("etcd has no leader"))
			})
			h.fill()
			for i, s := range c.steps {
				s.change(h)
				before, had := h.key()
				got := h.attempt()
				message, matches := strings.CutPrefix(s.want, got.Reason)
				if !matches || !strings.Contains(got.Message, message) || (got.Status == metav1.ConditionTrue) != (got.Reason == opened) {
					t.Fatalf("after step %d the condition is %+v, want %s", i, got, s.want)
				}
				switch after, has := h.key(); {
				case had && after != before:
					t.Errorf("step %d replaced the key", i)
				case !had && has && got.Reason != opened:
					t.Errorf("step %d made a key", i)
				}
			}
			if got := h.statusWrites(); got != c.writes {
				t.Errorf("%d writes of the status, want %d", got, c.writes)
			}
			event := ""
			if len(h.events.Events) > 0 {
				event = <-h.events.Events
			}
			if (event == "") != (c.event == "") || !strings.Contains(event, c.event) {
				t.Errorf("the event is %q, want %q", event, c.event)
			}
		})
	}
}

// TestMaintenanceWakes: a repository that was ready is looked at when its maintenance has
// failed, and shows that its key is lost, or the repository itself.
func TestMaintenanceWakes(t *testing.T) {
	h := newHarness(t, record())
	h.run()
	h.expect(metav1.ConditionTrue, "Ready")
	h.loseKey()
	tell := func(result enginev1alpha1.MaintenanceResult) {
		record := h.record()
		record.Status.RecentMaintenance = append([]enginev1alpha1.MaintenanceRun{{Result: result, StartTimestamp: metav1.Now()}}, record.Status.RecentMaintenance...)
		_, err := h.engine.EngineV1alpha1().VolumeRepositories(system).UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
		must(t, err)
	}
	tell(enginev1alpha1.MaintenanceSucceeded)
	tell(enginev1alpha1.MaintenanceFailed)
	ready := h.expect(metav1.ConditionFalse, "KeyMissing")
	for _, text := range []string{enginev1alpha1.KeySecretName(name), "holdfast-repositories", "repository-password", "static-passw0rd"} {
		if !strings.Contains(ready.Message, text) {
			t.Errorf("what to do about a lost key lacks %q: %s", text, ready.Message)
		}
	}
	want := `
# HELP holdfast_repositories_not_ready [ALPHA] Repositories that can't be used, by why: KeyMissing, KeyMismatch and Damaged need somebody to act.
# TYPE holdfast_repositories_not_ready gauge
holdfast_repositories_not_ready{reason="Damaged"} 0
holdfast_repositories_not_ready{reason="Invalid"} 0
holdfast_repositories_not_ready{reason="KeyMismatch"} 0
holdfast_repositories_not_ready{reason="KeyMissing"} 1
holdfast_repositories_not_ready{reason="Unreachable"} 0
`
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "holdfast_repositories_not_ready") == nil, nil
	})
	if err != nil {
		t.Error(testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "holdfast_repositories_not_ready"))
	}
	h.setKey(h.lost)
	h.expect(metav1.ConditionTrue, "Ready")

	h.lose()
	tell(enginev1alpha1.MaintenanceFailed)
	h.expect(metav1.ConditionFalse, "Damaged")
	// What the message says begins a new one.
	must(t, h.engine.EngineV1alpha1().VolumeRepositories(system).Delete(t.Context(), name, metav1.DeleteOptions{}))
	must(t, EnsureRecord(t.Context(), h.engine.EngineV1alpha1().VolumeRepositories(system), "app", "default"))
	h.expect(metav1.ConditionTrue, "Ready")
}

// TestLocationWakes: a repository waits for its location without trying it.
func TestLocationWakes(t *testing.T) {
	h := newHarness(t, record())
	locations := h.engine.EngineV1alpha1().StorageLocations(system)
	location, err := locations.Get(t.Context(), "default", metav1.GetOptions{})
	must(t, err)
	set := func(status metav1.ConditionStatus) {
		location = location.DeepCopy()
		meta.SetStatusCondition(&location.Status.Conditions, metav1.Condition{Type: enginev1alpha1.ConditionAvailable, Status: status, Reason: "Test"})
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
	h.expect(metav1.ConditionTrue, "Ready")
}

// TestWhatWasFineIsLeftAlone: a process that begins opens none that was ready, so that nobody's
// new repository waits for those of all others; and one that is not, it does.
func TestWhatWasFineIsLeftAlone(t *testing.T) {
	fine := record()
	meta.SetStatusCondition(&fine.Status.Conditions, metav1.Condition{Type: enginev1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"})
	failed := fine.DeepCopy()
	failed.Status.RecentMaintenance = []enginev1alpha1.MaintenanceRun{{Result: enginev1alpha1.MaintenanceFailed}}
	if !wasFine(fine) || wasFine(failed) || wasFine(record()) {
		t.Errorf("fine: %t, failed: %t, new: %t", wasFine(fine), wasFine(failed), wasFine(record()))
	}
	h := newHarness(t, fine)
	h.run()
	must(t, EnsureRecord(t.Context(), h.engine.EngineV1alpha1().VolumeRepositories(system), "other", "default"))
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		other, err := h.engine.EngineV1alpha1().VolumeRepositories(system).Get(ctx, enginev1alpha1.RepositoryName("other", "default"), metav1.GetOptions{})
		return err == nil && meta.IsStatusConditionTrue(other.Status.Conditions, enginev1alpha1.ConditionReady), err
	})
	must(t, err)
	// Whoever looks finds that it is gone from the store.
	if record := h.record(); !wasFine(record) {
		t.Errorf("the one that was fine was opened: %+v", record.Status.Conditions)
	}
}

func TestLocationMissing(t *testing.T) {
	h := newHarness(t, record())
	must(t, h.engine.EngineV1alpha1().StorageLocations(system).Delete(t.Context(), "default", metav1.DeleteOptions{}))
	h.run()
	if got := h.expect(metav1.ConditionFalse, "Invalid"); !strings.Contains(got.Message, `"default"`) {
		t.Errorf("the message is %q", got.Message)
	}
}
