// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginefactory "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/store/storetest"
)

const (
	system  = "holdfast"
	app     = "app"         // the namespace of the volumes
	keyName = "app.default" // of their repository
)

var instant = metav1.Unix(1_700_000_000, 0)

// world is a store in a folder, and the cluster whose records tell of it.
type world struct {
	*testing.T
	*enginetest.Cluster
	kube   *kubefake.Clientset
	events *events.FakeRecorder
	faulty *storetest.Faulty
	folder string

	mu sync.Mutex
	// checked are the locations whose condition was asked to be brought up to date.
	checked []string
	// checking, if set, does that.
	checking func()
}

// newWorld has one location, default, in a folder.
func newWorld(t *testing.T, folder string) *world {
	t.Helper()
	w := &world{
		T:       t,
		Cluster: enginetest.New(newLocation("default", folder)),
		kube:    kubefake.NewSimpleClientset(),
		events:  events.NewFakeRecorder(100),
		folder:  folder,
	}
	w.faulty = storetest.NewFaulty(storetest.Open(t, newLocation("default", folder).Spec, nil), clock.RealClock{})
	return w
}

func newLocation(name, folder string) *enginev1alpha1.StorageLocation {
	return &enginev1alpha1.StorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Spec: enginev1alpha1.StorageLocationSpec{
			Provider:   enginev1alpha1.StorageProviderFilesystem,
			Filesystem: &enginev1alpha1.FilesystemLocation{Path: folder},
		},
		Status: available(metav1.ConditionTrue),
	}
}

func available(status metav1.ConditionStatus) enginev1alpha1.StorageLocationStatus {
	return enginev1alpha1.StorageLocationStatus{Conditions: []metav1.Condition{{
		Type: enginev1alpha1.ConditionAvailable, Status: status, Reason: "Checked", Message: "as the check said",
	}}}
}

// setAvailable writes the condition of the location default.
func (w *world) setAvailable(status metav1.ConditionStatus) {
	w.Helper()
	locations := w.EngineV1alpha1().StorageLocations(system)
	record, err := locations.Get(context.WithoutCancel(w.Context()), "default", metav1.GetOptions{})
	must(w, err)
	record.Status = available(status)
	_, err = locations.UpdateStatus(context.WithoutCancel(w.Context()), record, metav1.UpdateOptions{})
	must(w, err)
}

// completed is a run of a stored backup whose deletion was asked for.
func completed(name string) *enginev1alpha1.BackupRun {
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: uidOf(name), CreationTimestamp: instant},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: system, Name: name},
			Backup:    v1alpha1.BackupSpec{StorageLocation: "default"},
			Deletion:  &enginev1alpha1.Deletion{},
		},
		Status: enginev1alpha1.BackupRunStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, Stored: true},
	}
}

func uidOf(name string) types.UID { return types.UID("uid-of-" + name) }

// closer is a store that tests open more than once.
type closer struct {
	*storetest.Faulty
	noRanges
}

func (closer) Close() error { return nil }

type noRanges struct{}

func (noRanges) GetRange(context.Context, string, int64, int64) (io.ReadCloser, error) {
	return nil, errors.New("a deletion reads no part of an object")
}

// start runs a controller until stop is called or the test ends.
func (w *world) start() (stop func()) {
	w.Helper()
	return w.startWith(closer{Faulty: w.faulty})
}

// startWith has another store than w.faulty in the location default.
func (w *world) startWith(target bucket) (stop func()) {
	w.Helper()
	records := enginefactory.NewSharedInformerFactory(w.Cluster, 0)
	engine := records.Engine().V1alpha1()
	controller, err := New(Config{
		Namespace:        system,
		Runs:             w.EngineV1alpha1(),
		Restores:         w.EngineV1alpha1(),
		Changes:          w.EngineV1alpha1(),
		Secrets:          w.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(system)),
		ClusterUID:       "this cluster",
		EnsureRepository: w.ensureRepository,
		CheckLocation:    w.checkLocation,
		Events:           w.events,
		Clock:            clock.RealClock{},
		RunInformer:      engine.BackupRuns(),
		LocationInformer: engine.StorageLocations(),

		RepositoryInformer: engine.VolumeRepositories(),
		ChangeInformer:     engine.BackupChanges(),
		FormerInformer:     engine.ExpirationChanges(),
	})
	must(w, err)
	controller.open = func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error) {
		if record.Name == "default" {
			return target, nil
		}
		return store.Open(ctx, &record.Spec, nil)
	}
	ctx, cancel := context.WithCancel(w.Context())
	before := w.Watches()
	records.StartWithContext(ctx)
	records.WaitForCacheSync(ctx.Done())
	// The fake forgets what happens before a watch.
	w.eventually("the watches", func() bool { return w.Watches() >= before+4 })
	// Else the controller polls for it, and begins only after some time.
	w.eventually("the handlers have seen what there is", controller.queue.Synced)
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		records.Shutdown()
	})
	w.Cleanup(stop)
	return stop
}

func (w *world) ensureRepository(ctx context.Context, namespace, location string) error {
	_, err := w.EngineV1alpha1().VolumeRepositories(system).Create(ctx, &enginev1alpha1.VolumeRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: enginev1alpha1.RepositoryName(namespace, location)},
		Spec:       enginev1alpha1.VolumeRepositorySpec{VolumeNamespace: namespace, BackupStorageLocation: location},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// maintain maintains the repository of the namespace app.
func (w *world) maintain() maintenance.Result {
	w.Helper()
	must(w, w.ensureRepository(w.Context(), app, "default"))
	maintainer := &maintenance.Maintainer{
		Namespace: system, Identity: "a-job",
		Engine:     w.EngineV1alpha1(),
		Secrets:    w.kube.CoreV1().Secrets(enginev1alpha1.CredentialsNamespace(system)),
		Keys:       w.kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(system)),
		Leases:     w.kube.CoordinationV1().Leases(enginev1alpha1.MaintenanceNamespace(system)),
		ClusterUID: "this cluster",
		Clock:      clock.RealClock{},
	}
	return maintainer.Maintain(w.Context(), app, "default")
}

func (w *world) checkLocation(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.checked = append(w.checked, name); w.checking != nil && len(w.checked) == 1 {
		w.checking()
	}
	return nil
}

func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	err := wait.PollUntilContextTimeout(w.Context(), 2*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
		return holds(), nil
	})
	if err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}

// run returns nil when the record is gone.
func (w *world) run(name string) *enginev1alpha1.BackupRun {
	w.Helper()
	run, err := w.EngineV1alpha1().BackupRuns(system).Get(context.WithoutCancel(w.Context()), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(w, err)
	return run
}

func (w *world) waitGone(name string) {
	w.Helper()
	w.eventually("the record goes", func() bool { return w.run(name) == nil })
}

// waitReason waits for the status to say what the deletion waits for.
func (w *world) waitReason(name string) string {
	w.Helper()
	reason := ""
	w.eventually("the status says why it waits", func() bool {
		if run := w.run(name); run != nil {
			reason = run.Status.FailureReason
		}
		return reason != ""
	})
	return reason
}

// writes counts the writes of runs' statuses that were tried.
func (w *world) writes() (n int) {
	for _, action := range w.Writes("backupruns") {
		if action.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

func (w *world) announced() []string { return enginetest.Told(w.events) }

// keys lists the backup's objects, as they lie on the disk.
func (w *world) keys(storeName string) (keys []string) {
	w.Helper()
	root := filepath.Join(w.folder, "backups", storeName)
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			relative, _ := filepath.Rel(w.folder, path)
			keys = append(keys, filepath.ToSlash(relative))
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	return keys
}

func (w *world) read(key string) []byte {
	w.Helper()
	content, err := os.ReadFile(filepath.Join(w.folder, key))
	must(w, err)
	return content
}

func (w *world) put(key, content string) {
	w.Helper()
	must(w, w.faulty.Put(w.Context(), key, []byte(content)))
}

// remove removes what lies at a path of the store, whatever it is.
func (w *world) remove(path string) {
	w.Helper()
	must(w, os.RemoveAll(filepath.Join(w.folder, path)))
}

// sideFiles of the backups that writeBackup writes, apart from the list of volumes, the
// copy of the metadata and the owner.
func sideFiles(storeName string) []string {
	return []string{
		format.ItemOperationsKey(storeName), format.LogKey(storeName), format.ResourceListKey(storeName), format.ResultsKey(storeName),
		format.VolumeInfoKey(storeName), format.VolumeSnapshotsKey(storeName), format.TarballKey(storeName),
	}
}

// writeBackup stores a backup as the executor does. snapshots are of volumes of the
// namespace app.
func writeBackup(t testing.TB, target store.Writer, storeName string, uid types.UID, snapshots ...string) {
	t.Helper()
	backup := &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: storeName, UID: uid, CreationTimestamp: instant},
		Spec:       v1alpha1.BackupSpec{StorageLocation: "default"},
		Status:     v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseCompleted, StartTimestamp: &instant, CompletionTimestamp: &instant},
	}
	writeOwner(t, target, storeName, uid)
	for _, key := range append(sideFiles(storeName), format.CopyKey(storeName)) {
		must(t, target.Put(t.Context(), key, []byte("content of "+uid)))
	}
	writeInfos(t, target, storeName)
	var volumes []format.PodVolumeBackup
	for _, id := range snapshots {
		volumes = append(volumes, format.NewPodVolumeBackup(backup, storeName, format.Volume{
			Pod:    enginev1alpha1.PodReference{Namespace: app, Name: "web-0", UID: "uid-of-web-0"},
			Name:   "data",
			Status: enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: id},
		}))
	}
	writeVolumes(t, target, storeName, volumes...)
	metadata, err := format.EncodeBackup(backup, nil, format.Cluster{SystemNamespace: system})
	must(t, err)
	must(t, target.Create(t.Context(), format.MetadataKey(storeName), metadata))
}

func writeOwner(t testing.TB, target store.Writer, storeName string, uid types.UID) {
	t.Helper()
	owner, err := format.EncodeOwner(format.Owner{UID: uid})
	must(t, err)
	must(t, target.Create(t.Context(), format.OwnerKey(storeName), owner))
}

func writeVolumes(t testing.TB, target store.Writer, storeName string, volumes ...format.PodVolumeBackup) {
	t.Helper()
	var content bytes.Buffer
	must(t, format.WritePodVolumeBackups(&content, volumes))
	must(t, target.Put(t.Context(), format.PodVolumeBackupsKey(storeName), content.Bytes()))
}

func writeInfos(t testing.TB, target store.Writer, storeName string, infos ...format.VolumeInfo) {
	t.Helper()
	var content bytes.Buffer
	must(t, format.WriteVolumeInfo(&content, infos))
	must(t, target.Put(t.Context(), format.VolumeInfoKey(storeName), content.Bytes()))
}

// template is a store with the backups going and staying, whose snapshots lie in
// one repository, made once: deriving keys takes most of a test's time.
var template struct {
	sync.Once
	dir            string
	key            repository.Key
	going, staying string // the ids of the snapshots
	unlisted       string // of one that was made for the backup "failed"
}

func TestMain(m *testing.M) {
	code := m.Run()
	if template.dir != "" {
		os.RemoveAll(template.dir)
	}
	os.Exit(code)
}

func where(folder string) repository.Location {
	return repository.Location{Spec: newLocation("default", folder).Spec}
}

const volumeContent = "the content of a volume"

// newVolumeWorld is a world with a copy of the template's store.
func newVolumeWorld(t *testing.T) *world {
	t.Helper()
	template.Do(func() {
		dir, err := os.MkdirTemp("", "holdfast-template-")
		must(t, err)
		template.dir, template.key = dir, repository.NewKey()
		must(t, repository.Create(t.Context(), where(dir), app, template.key))
		volume := t.TempDir()
		must(t, os.WriteFile(filepath.Join(volume, "file"), []byte(volumeContent), 0o600))
		opened, err := repository.Open(t.Context(), where(dir), app, template.key, repository.Options{})
		must(t, err)
		defer func() { must(t, opened.Close(t.Context())) }()
		target := storetest.Open(t, newLocation("default", dir).Spec, nil)
		for name, id := range map[string]*string{"going": &template.going, "staying": &template.staying, "failed": &template.unlisted} {
			uploaded, err := datapath.Upload(t.Context(), opened, datapath.UploadRequest{
				Path: volume, Source: datapath.Source{Namespace: app, Pod: "web-0", Volume: "data"}, Backup: uidOf(name),
			}, new(datapath.Progress))
			must(t, err)
			*id = uploaded.SnapshotID
			if name != "failed" {
				writeBackup(t, target, name, uidOf(name), uploaded.SnapshotID)
			}
		}
	})
	folder := t.TempDir()
	must(t, os.CopyFS(folder, os.DirFS(template.dir)))
	w := newWorld(t, folder)
	w.addKey(template.key)
	return w
}

func (w *world) addKey(key repository.Key) {
	w.Helper()
	_, err := w.kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(system)).Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: enginev1alpha1.KeysNamespace(system), Name: enginev1alpha1.KeySecretName(keyName)},
		Data:       map[string][]byte{enginev1alpha1.KeySecretKey: []byte(key)},
	}, metav1.CreateOptions{})
	must(w, err)
}

func (w *world) removeKey() {
	w.Helper()
	must(w, w.kube.CoreV1().Secrets(enginev1alpha1.KeysNamespace(system)).Delete(w.Context(), enginev1alpha1.KeySecretName(keyName), metav1.DeleteOptions{}))
}

// expectSnapshots tells which snapshots can be restored, with their content, after the
// repository was maintained.
func (w *world) expectSnapshots(want map[string]bool) {
	w.Helper()
	if result := w.maintain(); result.Error != "" {
		w.Errorf("the maintenance says %s", result)
	}
	opened, err := repository.Open(w.Context(), where(w.folder), app, template.key, repository.Options{})
	must(w, err)
	defer func() { must(w, opened.Close(w.Context())) }()
	for id, there := range want {
		target := w.TempDir()
		_, err := datapath.Restore(w.Context(), opened, datapath.RestoreRequest{SnapshotID: id, Path: target}, new(datapath.Progress))
		if !there {
			if !errors.Is(err, datapath.ErrSnapshotNotFound) {
				w.Errorf("restoring the deleted snapshot %s: %v", id, err)
			}
			continue
		}
		must(w, err)
		if content, err := os.ReadFile(filepath.Join(target, "file")); err != nil || string(content) != volumeContent {
			w.Errorf("snapshot %s has %q, %v", id, content, err)
		}
	}
}

// expectWhole checks that nothing of a backup was removed.
func (w *world) expectWhole(storeName string) {
	w.Helper()
	if got, want := len(w.keys(storeName)), len(sideFiles(storeName))+4; got != want {
		w.Errorf("%s has %d objects, want %d: %q", storeName, got, want, w.keys(storeName))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
