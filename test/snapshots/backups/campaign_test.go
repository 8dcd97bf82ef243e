// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backups

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/test/integration/history"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
	"github.com/holdfast-io/holdfast/test/snapshots/kubelet"
	"github.com/holdfast-io/holdfast/test/story"
)

var duration = flag.Duration("campaign.duration", 30*time.Second, "how long processes are killed and the storage fails, at least")

// The kinds of the campaign's backups, by the place of their data.
const (
	moved     = "moved"
	kept      = "kept"
	keptLocal = "local"
)

// slots is how many backups may read the cluster at once.
const slots = 2

// localSnapshots is how many snapshots of a claim stay beside moved data.
const localSnapshots = 2

// controlPlane are the processes of Holdfast's control plane in a campaign.
var controlPlane = []string{labtest.APIServer, labtest.Controller, labtest.AnotherController}

// storageProcesses are the driver and its sidecars.
var storageProcesses = []string{"csi", "csi-snapshotter", "csi-provisioner", "snapshot-controller"}

// storageFaults are what the driver does wrong for a while.
var storageFaults = []string{
	`{"fail":{"CreateSnapshot":{"code":"UNAVAILABLE"}}}`,
	`{"fail":{"CreateSnapshot":{"code":"INTERNAL","after":true,"times":2}}}`,
	`{"fail":{"DeleteSnapshot":{"code":"UNAVAILABLE"}}}`,
	`{"fail":{"DeleteSnapshot":{"code":"INTERNAL","after":true,"times":2}}}`,
	`{"fail":{"CreateVolume":{"code":"UNAVAILABLE"},"DeleteVolume":{"code":"UNAVAILABLE"}}}`,
	`{"hang":["CreateSnapshot"]}`,
	`{"readyAfter":"5s"}`,
	`{"perSecond":2}`,
}

// user is a namespace whose user backs it up, and deletes backups.
type user struct {
	namespace string
	random    *rand.Rand
	// claims has the uids by name. Each claim has the files.
	claims map[string]types.UID
	files  [2]string
	// write stores a content in each claim. It is nil if a pod writes.
	write func(content string) error

	// made has the kind of each backup that was asked for, by its name, which is the content of its claims.
	made    map[string]string
	deleted map[string]bool
}

// TestCampaign: users back up claims in each way, cancel and delete backups, while Holdfast's processes, the sidecars and the driver are
// killed and the storage fails. Afterwards each backup that is stored has the data that its claims had, the storage has the
// snapshots that are owed and no other, and no pod is frozen. `make soak` runs it for long.
func TestCampaign(t *testing.T) {
	seed := story.Seed(t)
	runMovers(t)
	lab.StartAnother(t, labtest.AnotherController)
	mark := lab.AuditMark(t)
	db := newDatabase(t)
	users := []*user{newUserOf(t, db.namespace, rand.New(rand.NewPCG(seed, 0)), databaseFiles, "data")}
	for i := range uint64(3) {
		users = append(users, newUser(t, rand.New(rand.NewPCG(seed, 1+i))))
	}

	bad, end := context.WithTimeout(t.Context(), *duration)
	defer end()
	var people, trouble sync.WaitGroup
	people.Go(func() { db.work(bad, t) })
	for _, u := range users {
		people.Go(func() { u.work(bad, t) })
	}
	h := &harm{counts: map[string]int{}}
	for i, strike := range []func(context.Context, *rand.Rand) error{h.controlPlane, h.agent, h.sidecars, h.storage} {
		random := rand.New(rand.NewPCG(seed, uint64(10+i)))
		trouble.Go(func() {
			if err := strike(bad, random); err != nil {
				t.Error(err)
			}
		})
	}
	trouble.Wait()
	people.Wait()
	must(t, mend(t.Context()))
	t.Logf("what was done: %v", h.counts)

	phases, stored := map[v1alpha1.BackupPhase]int{}, map[*user][]*v1alpha1.Backup{}
	for _, u := range users {
		stored[u] = u.settle(t)
		for _, backup := range stored[u] {
			phases[backup.Status.Phase]++
			if backup.Status.Phase == v1alpha1.BackupPhaseFailed || backup.Status.Phase == v1alpha1.BackupPhasePartiallyFailed {
				t.Logf("%s is %s: %s", backup.Name, backup.Status.Phase, backup.Status.Message)
			}
		}
	}
	t.Logf("backups that are stored: %v", phases)
	if phases[v1alpha1.BackupPhaseCompleted] == 0 {
		t.Error("none is Completed")
	}
	db.expectThawed(t)
	runs, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	past, err := history.Read(lab.WritesSince(t, mark), runs.Items)
	must(t, err)
	for _, err := range past.Check(slots) {
		t.Error(err)
	}
	var owed []snapshot
	for _, u := range users {
		owed = append(owed, u.check(t, stored[u])...)
	}
	await(t, fmt.Sprintf("the storage to have the %d snapshots that it owes", len(owed)), func() error { return left(t, owed) })
	for _, u := range users {
		u.restore(t, stored[u])
		for _, backup := range stored[u] {
			_, err := plugin(t, "backup", "delete", backup.Name, "-n", backup.Namespace, "--yes")
			must(t, err)
		}
	}
	await(t, "all snapshots to be deleted", func() error { return left(t, nil) })
}

// newUser makes a namespace with two claims that no pod mounts.
func newUser(t *testing.T, random *rand.Rand) *user {
	namespace := lab.Namespace(t, "user")
	policy(t, namespace)
	folders := []string{claim(t, namespace, "one", ""), claim(t, namespace, "two", "")}
	u := newUserOf(t, namespace, random, [2]string{"file", "file"}, "one", "two")
	u.write = func(content string) (err error) {
		for _, folder := range folders {
			err = errors.Join(err, os.WriteFile(filepath.Join(folder, "file"), []byte(content), 0o640))
		}
		return err
	}
	return u
}

// newUserOf returns the user of a namespace with claims.
func newUserOf(t *testing.T, namespace string, random *rand.Rand, files [2]string, claims ...string) *user {
	u := &user{namespace: namespace, random: random, files: files, claims: map[string]types.UID{}, made: map[string]string{}, deleted: map[string]bool{}}
	for _, name := range claims {
		made, err := lab.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		u.claims[name] = made.UID
	}
	return u
}

// policy makes the volume policy by which snapshots stay beside moved data.
func policy(t *testing.T, namespace string) {
	_, err := lab.Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: keptLocal},
		Data:       map[string]string{"policies": fmt.Sprintf("version: v1\nvolumePolicies: [{conditions: {storageClass: [folder]}, action: {type: snapshot, parameters: {keepLocalSnapshots: %d}}}]", localSnapshots)},
	}, metav1.CreateOptions{})
	must(t, err)
}

func specOf(kind string) v1alpha1.BackupSpec {
	switch kind {
	case kept:
		return keptSpec()
	case keptLocal:
		return v1alpha1.BackupSpec{ResourcePolicy: &v1alpha1.ResourcePolicyReference{Kind: "configmap", Name: keptLocal}}
	default:
		return v1alpha1.BackupSpec{SnapshotVolumes: new(true)}
	}
}

// work backs the namespace up again and again until ctx ends. The next backup starts when the data of the one
// before is cut, so several are moved at once. Some are cancelled, and some deleted.
func (u *user) work(ctx context.Context, t *testing.T) {
	backups := lab.Holdfast.HoldfastV1alpha1().Backups(u.namespace)
	for number := 0; ctx.Err() == nil; number++ {
		name := fmt.Sprintf("%s-%d", u.namespace, number)
		kind := []string{moved, kept, keptLocal}[u.random.IntN(3)]
		if u.write != nil {
			if err := u.write(name); err != nil {
				t.Error(err)
				return
			}
		}
		err := untilAnswered(ctx, func() error {
			_, err := backups.Create(ctx, &v1alpha1.Backup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: specOf(kind)}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // the answer to an earlier request was lost
			}
			return err
		})
		u.made[name] = kind // also without an answer it may be there
		if err != nil {
			return
		}
		if u.random.IntN(6) == 0 {
			if sleep(ctx, between(u.random, 0, 4*time.Second)) {
				_ = untilAnswered(ctx, func() error { _, err := plugin(t, "backup", "cancel", name, "-n", u.namespace); return err })
			}
		}
		_ = untilAnswered(ctx, func() error {
			backup, err := backups.Get(ctx, name, metav1.GetOptions{})
			if err == nil && !backup.Status.Phase.Ended() && backup.Status.Phase != v1alpha1.BackupPhaseWaitingForPluginOperations {
				err = errors.New("it still reads")
			}
			return err
		})
		if known := slices.Sorted(maps.Keys(u.made)); u.random.IntN(4) == 0 {
			victim := known[u.random.IntN(len(known))]
			u.deleted[victim] = nil == untilAnswered(ctx, func() error {
				if _, err := backups.Get(ctx, victim, metav1.GetOptions{}); apierrors.IsNotFound(err) {
					return nil
				}
				_, err := plugin(t, "backup", "delete", victim, "-n", u.namespace, "--yes")
				return err
			})
		}
	}
}

// untilAnswered repeats a request until it succeeds or ctx ends.
func untilAnswered(ctx context.Context, request func() error) error {
	for {
		err := request()
		if err == nil || !sleep(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

// sleep waits, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func between(random *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(random.Int64N(int64(to-from)))
}

// settle waits until all backups of the user have ended and all deletions are done, and returns the stored ones.
func (u *user) settle(t *testing.T) (stored []*v1alpha1.Backup) {
	await(t, "the backups of "+u.namespace+" to end", func() error {
		stored = nil
		backups, err := lab.Holdfast.HoldfastV1alpha1().Backups(u.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range backups.Items {
			backup := &backups.Items[i]
			if !backup.Status.Phase.Ended() || backup.DeletionTimestamp != nil || backup.Status.Phase == v1alpha1.BackupPhaseDeleting {
				return fmt.Errorf("%s is %s: %s", backup.Name, backup.Status.Phase, backup.Status.Message)
			}
			stored = append(stored, backup)
		}
		runs, err := lab.Engine.EngineV1alpha1().BackupRuns(labtest.System).List(t.Context(), metav1.ListOptions{})
		for i := range runs.Items {
			if run := &runs.Items[i]; run.Spec.Deletion != nil {
				return fmt.Errorf("%s is being deleted: %s", run.Name, run.Status.Message)
			}
		}
		return err
	})
	return stored
}

// volumes returns the volumes that are stored in each backup of the user, by claim.
func (u *user) volumes(t *testing.T) map[string]map[string]*v1alpha1.VolumeBackup {
	t.Helper()
	list, err := lab.Holdfast.HoldfastV1alpha1().VolumeBackups(u.namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	volumes := map[string]map[string]*v1alpha1.VolumeBackup{}
	for i := range list.Items {
		volume := &list.Items[i]
		if volume.Status.Phase != v1alpha1.VolumeBackupCompleted {
			continue
		}
		of := volumes[volume.Spec.Backup.Name]
		if of == nil {
			of = map[string]*v1alpha1.VolumeBackup{}
			volumes[volume.Spec.Backup.Name] = of
		}
		of[volume.Spec.VolumeName] = volume
	}
	return volumes
}

// snapshot is what the storage owes: the cut of a claim for a backup.
type snapshot struct{ backup, claim types.UID }

// check compares each stored backup with what its claims had, and returns the snapshots that the storage owes the user.
func (u *user) check(t *testing.T, stored []*v1alpha1.Backup) (owed []snapshot) {
	t.Helper()
	volumes, local := u.volumes(t), map[string][]*v1alpha1.VolumeBackup{}
	for _, backup := range stored {
		kind, ok := u.made[backup.Name]
		if !ok || u.deleted[backup.Name] {
			t.Errorf("%s is stored; its user made it: %t, and deleted it: %t", backup.Name, ok, u.deleted[backup.Name])
		}
		if backup.Status.Phase == v1alpha1.BackupPhaseCompleted && len(volumes[backup.Name]) != len(u.claims) {
			t.Errorf("%s is Completed with %d volumes of %d", backup.Name, len(volumes[backup.Name]), len(u.claims))
		}
		if backup.Status.Phase == v1alpha1.BackupPhasePartiallyFailed && backup.Status.Errors == 0 {
			t.Errorf("%s is PartiallyFailed without an error", backup.Name)
		}
		for name, volume := range volumes[backup.Name] {
			want := catalog.MethodMoved
			switch kind {
			case kept:
				want = catalog.MethodInStorage
				owed = append(owed, snapshot{backup.UID, u.claims[name]})
			case keptLocal:
				local[name] = append(local[name], volume)
			}
			if volume.Status.Method != want {
				t.Errorf("the method of %s is %q, want %q", volume.Name, volume.Status.Method, want)
			} else if want == catalog.MethodMoved {
				u.expectMoved(t, volume)
			}
		}
	}
	for name, volumes := range local {
		slices.SortFunc(volumes, func(a, b *v1alpha1.VolumeBackup) int {
			return b.Status.SnapshotTimestamp.Compare(a.Status.SnapshotTimestamp.Time)
		})
		for _, volume := range volumes[:min(len(volumes), localSnapshots)] {
			owed = append(owed, snapshot{volume.Spec.BackupUID, u.claims[name]})
		}
	}
	return owed
}

// expectMoved compares the moved data of a volume.
func (u *user) expectMoved(t *testing.T, volume *v1alpha1.VolumeBackup) {
	t.Helper()
	var files [2]string
	labtest.Eventually(t, "the files of "+volume.Name+" to be read", func() (err error) {
		for i, name := range u.files {
			if err == nil {
				files[i], err = plugin(t, "files", "cat", volume.Name+":/"+name, "-n", u.namespace)
			}
		}
		return err
	})
	u.expectFiles(t, volume.Name, volume.Spec.Backup.Name, files)
}

// expectFiles compares the files of a claim with what it had when a backup was made.
func (u *user) expectFiles(t *testing.T, of, backup string, files [2]string) {
	t.Helper()
	if files[0] == "" || files[0] != files[1] || u.write != nil && files[0] != backup {
		t.Errorf("%s of %s has the files %q, want equal ones, and %q if no pod writes", of, backup, files, backup)
	}
}

// restore restores some backups whose snapshots are kept, in place, and compares the claims.
func (u *user) restore(t *testing.T, stored []*v1alpha1.Backup) {
	t.Helper()
	must(t, lab.Kube.CoreV1().Pods(u.namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}))
	restored := 0
	for _, backup := range stored {
		if u.made[backup.Name] != kept || backup.Status.Phase != v1alpha1.BackupPhaseCompleted || restored == 3 {
			continue
		}
		restored++
		lab.Kubectl(t, "delete", "pvc", "--all", "-n", u.namespace)
		restoreTo(t, u.namespace, v1alpha1.RestoreSpec{BackupName: backup.Name, IncludedResources: []string{"persistentvolumeclaims"}}, v1alpha1.RestorePhaseCompleted)
		for name := range u.claims {
			folder := folderOf(t, u.namespace, name)
			var files [2]string
			for i, file := range u.files {
				content, err := os.ReadFile(filepath.Join(folder, file))
				must(t, err)
				files[i] = string(content)
			}
			u.expectFiles(t, name, backup.Name, files)
		}
	}
	t.Logf("%s: %d backups restored from their snapshots", u.namespace, restored)
}

// left compares the snapshots of the storage and the objects of the cluster with the snapshots that are owed.
func left(t testing.TB, owed []snapshot) error {
	t.Helper()
	contents, err := objects.Resource(snapshots.Contents).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var have []snapshot
	for i := range contents.Items {
		labels := contents.Items[i].GetLabels()
		have = append(have, snapshot{types.UID(labels[snapshots.LabelBackup]), types.UID(labels[snapshots.LabelClaim])})
		handle, _, _ := unstructured.NestedString(contents.Items[i].Object, "status", "snapshotHandle")
		if _, err := os.Stat(filepath.Join(storage("snapshots"), handle)); handle == "" || err != nil {
			return fmt.Errorf("the content %s has the handle %q: %w", contents.Items[i].GetName(), handle, err)
		}
	}
	byText := func(a, b snapshot) int { return cmp.Compare(a.backup+a.claim, b.backup+b.claim) }
	slices.SortFunc(have, byText)
	slices.SortFunc(owed, byText)
	if stored := entries(t, storage("snapshots")); !slices.Equal(have, owed) || stored != len(owed) {
		return fmt.Errorf("the storage has %d snapshots, and the cluster contents of %v; owed are %v", stored, have, owed)
	}
	return nothingExposed(t)
}

// database is a pod whose application writes a number into two files of its claim, again and again, but not
// while hooks have it frozen.
type database struct {
	namespace, folder string

	mu      sync.Mutex
	frozen  bool
	freezes int
}

var databaseFiles = [2]string{"file", "twin"}

// newDatabase makes the pod, and carries out its hooks.
func newDatabase(t *testing.T) *database {
	d := &database{namespace: lab.Namespace(t, "database")}
	policy(t, d.namespace)
	d.folder = claim(t, d.namespace, "data", "0")
	certificate, err := tls.LoadX509KeyPair(filepath.Join(lab.Dir, "pki", "local.crt"), filepath.Join(lab.Dir, "pki", "local.key"))
	must(t, err)
	kubelet.Exec(t, lab.Kube, labtest.Node, certificate, func(namespace, _ string, command []string) {
		if namespace != d.namespace {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.frozen = command[0] == "freeze"
		d.freezes++
	})
	hookedPod(t, d.namespace, "database", "data")
	return d
}

// work writes until ctx ends.
func (d *database) work(ctx context.Context, t *testing.T) {
	for number := 1; sleep(ctx, time.Millisecond); number++ {
		if err := d.write(strconv.Itoa(number)); err != nil {
			t.Error(err)
			return
		}
	}
}

func (d *database) write(content string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.frozen {
		return nil
	}
	return errors.Join(os.WriteFile(filepath.Join(d.folder, "file"), []byte(content), 0o640), os.WriteFile(filepath.Join(d.folder, "twin"), []byte(content), 0o640))
}

func (d *database) expectThawed(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	t.Logf("the database had %d hooks", d.freezes)
	if d.frozen {
		t.Error("the database is frozen")
	}
}

// harm counts what was done to processes and the storage.
type harm struct {
	mu     sync.Mutex
	counts map[string]int
}

func (h *harm) count(of string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[of]++
}

// controlPlane kills and pauses the API server and the controllers until ctx ends.
func (h *harm) controlPlane(ctx context.Context, random *rand.Rand) error {
	for sleep(ctx, between(random, time.Second, 15*time.Second)) {
		process := controlPlane[random.IntN(len(controlPlane))]
		if random.IntN(4) > 0 || !lab.Running(process) {
			if err := h.kill(ctx, process); err != nil {
				return err
			}
			continue
		}
		h.count("pause " + process)
		if err := alive(lab.Signal(process, syscall.SIGSTOP)); err != nil {
			return err
		}
		sleep(ctx, between(random, 0, 25*time.Second))
		if err := alive(lab.Signal(process, syscall.SIGCONT)); err != nil {
			return err
		}
	}
	return nil
}

// agent kills the node agent until ctx ends.
func (h *harm) agent(ctx context.Context, random *rand.Rand) error {
	for sleep(ctx, between(random, time.Second, 12*time.Second)) {
		if err := h.kill(ctx, labtest.Agent); err != nil {
			return err
		}
	}
	return nil
}

// kill kills a process of Holdfast and starts it again. No other controller has to wait for its Lease.
func (h *harm) kill(ctx context.Context, process string) error {
	h.count("kill " + process)
	ctx = context.WithoutCancel(ctx) // it runs afterwards
	if err := alive(lab.Signal(process, syscall.SIGKILL)); err != nil {
		return err
	}
	if err := lab.DeleteLeaseOf(ctx, process); err != nil {
		return err
	}
	return lab.Restart(ctx, process)
}

// alive is the error of a signal, unless the process has ended.
func alive(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// sidecars kills the driver or a sidecar until ctx ends. All are started anew.
func (h *harm) sidecars(ctx context.Context, random *rand.Rand) error {
	for sleep(ctx, between(random, 2*time.Second, 15*time.Second)) {
		name := storageProcesses[random.IntN(len(storageProcesses))]
		h.count("kill " + name)
		var process struct{ PID int }
		content, err := os.ReadFile(filepath.Join(lab.Dir, "run", name+".json"))
		if err == nil {
			err = json.Unmarshal(content, &process)
		}
		if err == nil {
			err = alive(syscall.Kill(process.PID, syscall.SIGKILL))
		}
		if err != nil {
			return err
		}
		sleep(ctx, between(random, 0, 3*time.Second))
		if err := startSidecars(50); err != nil {
			return err
		}
	}
	return nil
}

// storage has the driver fail now and then until ctx ends.
func (h *harm) storage(ctx context.Context, random *rand.Rand) error {
	file := filepath.Join(lab.Dir, "csi", "faults.json")
	for sleep(ctx, between(random, 0, 5*time.Second)) {
		fault := storageFaults[random.IntN(len(storageFaults))]
		h.count(fault)
		if err := errors.Join(os.WriteFile(file+".part", []byte(fault), 0o644), os.Rename(file+".part", file)); err != nil {
			return err
		}
		sleep(ctx, between(random, time.Second, 8*time.Second))
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}

// mend has all processes run.
func mend(ctx context.Context) error {
	for _, process := range append([]string{labtest.Agent}, controlPlane...) {
		if !lab.Running(process) {
			if err := lab.Restart(ctx, process); err != nil {
				return err
			}
		}
	}
	return startSidecars(50)
}
