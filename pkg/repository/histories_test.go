// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package repository_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/test/story"
)

const clusterUID = "this-cluster"

// history is a repository with the folders of its backups beside it.
type history struct {
	*world
	*mathrand.Rand
	store      *store.Bucket
	maintainer *maintenance.Maintainer
	stored     *enginev1alpha1.StorageLocation
	dir        string // the volume
	made       int
	// listed and running are the files of the backups that have ended well, and of those that
	// have not ended: both must be there. The keys are the names, which are the uids too.
	listed, running map[string]map[string]string
	ids             map[string]string // of the snapshots
	// deleting are those of the listed whose deletion has begun, and was interrupted.
	deleting map[string]bool
	times    map[string]time.Time // of the files of the store, as they were set
}

// movedClock shows the time of a world.
type movedClock struct {
	clock.RealClock
	*world
}

func (c movedClock) Now() time.Time                  { return c.world.Now() }
func (c movedClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func newHistory(t *testing.T, seed uint64) *history {
	w := newWorld(t)
	bucket, err := store.Open(t.Context(), &w.loc.Spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bucket.Close() })
	return &history{
		world: w, Rand: mathrand.New(mathrand.NewPCG(seed, 1)), store: bucket, dir: t.TempDir(),
		stored:     &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: w.loc.Spec},
		maintainer: &maintenance.Maintainer{ClusterUID: clusterUID, Clock: movedClock{world: w}},
		listed:     map[string]map[string]string{}, running: map[string]map[string]string{},
		ids: map[string]string{}, deleting: map[string]bool{}, times: map[string]time.Time{},
	}
}

func (h *history) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) put(key string, content []byte, err error) {
	h.t.Helper()
	h.must(err)
	h.must(h.store.Put(h.t.Context(), key, content))
}

// settle gives what was written outside of the repository the time that the clock shows.
func (h *history) settle() {
	h.t.Helper()
	root := h.loc.Spec.Filesystem.Path
	h.must(filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path == filepath.Join(root, "kopia"):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		info, err := d.Info()
		if err == nil && !info.ModTime().Equal(h.times[path]) {
			h.times[path] = h.Now().Truncate(time.Second)
			err = os.Chtimes(path, h.times[path], h.times[path])
		}
		return err
	}))
}

// change writes a file of the volume anew.
func (h *history) change() {
	h.t.Helper()
	data := make([]byte, h.IntN(1<<19))
	rand.Read(data)
	h.must(os.WriteFile(filepath.Join(h.dir, fmt.Sprint(h.IntN(6))), data, 0o600))
}

// begin makes a backup's folder, uploads the volume for it, and has it run. An agent that is
// killed meanwhile leaves a part of the upload.
func (h *history) begin(killed bool) (name string) {
	h.t.Helper()
	h.made++
	name = fmt.Sprintf("b%d", h.made)
	owner, err := format.EncodeOwner(format.Owner{UID: types.UID(name), ClusterUID: clusterUID})
	h.put(format.OwnerKey(name), owner, err)
	h.running[name] = nil
	ctx, cancel := h.t.Context(), context.CancelFunc(func() {})
	if killed {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(h.IntN(30))*time.Millisecond)
	}
	defer cancel()
	uploaded, err := datapath.Upload(ctx, h.open(), datapath.UploadRequest{
		Path: h.dir, Source: datapath.Source{Namespace: "app", Pod: "pod", Volume: "data"},
		Backup: types.UID(name), StoreName: name, ClusterUID: clusterUID,
	}, new(datapath.Progress))
	if !killed {
		h.must(err)
	}
	if err == nil {
		h.running[name], h.ids[name] = contents(h.t, h.dir), uploaded.SnapshotID
	}
	return name
}

// end writes a backup's metadata.
func (h *history) end(name string, phase v1alpha1.BackupPhase) {
	h.t.Helper()
	instant := metav1.NewTime(h.Now().Truncate(time.Second))
	metadata, err := format.EncodeBackup(&v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: name, UID: types.UID(name), CreationTimestamp: instant},
		Status:     v1alpha1.BackupStatus{Phase: phase, StartTimestamp: &instant, CompletionTimestamp: &instant},
	}, nil, format.Cluster{SystemNamespace: "holdfast", UID: clusterUID})
	h.put(format.MetadataKey(name), metadata, err)
	if phase == v1alpha1.BackupPhaseCompleted && h.running[name] != nil {
		h.listed[name] = h.running[name]
	}
	delete(h.running, name)
}

// request asks for the removal of a backup's snapshots.
func (h *history) request(name string) {
	h.t.Helper()
	content, err := format.EncodeRemoval(format.Removal{UID: types.UID(name), StoreName: name, RequestedAt: h.Now().UTC()})
	h.put(format.RemovalKey(clusterUID, "app", types.UID(name)), content, err)
}

// fail ends a backup as whoever cancels it does, or takes over from who was killed.
func (h *history) fail(name string) {
	h.t.Helper()
	h.request(name)
	h.end(name, []v1alpha1.BackupPhase{v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseCancelled}[h.IntN(2)])
}

// delete deletes a backup, or is killed after some steps of that.
func (h *history) delete(name string, steps int) {
	h.t.Helper()
	h.deleting[name] = true
	h.request(name)
	deletion := &folder.Deletion{
		Folder: folder.Folder{
			Place: format.Place{StoreName: name, Location: "default"}, Clock: h.maintainer.Clock, UID: types.UID(name), Store: h.store,
			Try: func(ctx context.Context, request func(context.Context) error) error { return request(ctx) },
		},
		Remover: h.store, Present: func() error { return nil },
	}
	h.must(deletion.Look(h.t.Context()))
	if steps > 0 {
		h.must(deletion.RemoveMetadata(h.t.Context()))
		delete(h.listed, name)
	}
	if steps > 1 {
		h.must(deletion.RemoveRest(h.t.Context()))
		delete(h.deleting, name)
	}
}

// vanish removes a backup's folder as somebody does who knows nothing of Holdfast.
func (h *history) vanish(name string) {
	h.t.Helper()
	h.must(os.RemoveAll(filepath.Join(h.loc.Spec.Filesystem.Path, "backups", name)))
	delete(h.listed, name)
	delete(h.deleting, name)
}

// maintain sweeps and maintains, and checks that all is there that must be, with clients that
// have no cache.
func (h *history) maintain() maintenance.Result {
	h.t.Helper()
	var result maintenance.Result
	h.must(h.maintainer.MaintainOpened(h.t.Context(), h.open(), h.stored, "app", &result))
	wanted := map[string]map[string]string{}
	for _, backups := range []map[string]map[string]string{h.listed, h.running} {
		for name, files := range backups {
			if files != nil {
				wanted[h.ids[name]] = files
			}
		}
	}
	h.expectRestored(wanted)
	return result
}

// snapshots are how many there are.
func (h *history) snapshots() int {
	h.t.Helper()
	all, err := datapath.Snapshots(h.t.Context(), h.open())
	h.must(err)
	return len(all)
}

// kopia is Kopia's command; empty if there is none. hack/soak.sh builds it.
var kopia = os.Getenv("HOLDFAST_KOPIA")

// verify has Kopia's command read all that is in the repository, with a client of its own.
func (h *history) verify() {
	h.t.Helper()
	if kopia == "" {
		return
	}
	dir := h.t.TempDir()
	for _, args := range [][]string{
		{"repository", "connect", "filesystem", "--path=" + filepath.Join(h.loc.Spec.Filesystem.Path, "kopia", "app"), "--readonly", "--cache-directory=" + filepath.Join(dir, "cache")},
		{"snapshot", "verify", "--verify-files-percent=100"},
		{"content", "verify", "--full"},
	} {
		command := exec.CommandContext(h.t.Context(), kopia, append(args, "--config-file="+filepath.Join(dir, "config"), "--log-dir="+filepath.Join(dir, "logs"))...)
		command.Env = append(os.Environ(), "KOPIA_PASSWORD="+string(h.key), "KOPIA_CHECK_FOR_UPDATES=false")
		if out, err := command.CombinedOutput(); err != nil {
			h.t.Errorf("kopia %s: %v\n%s", strings.Join(args, " "), err, out)
		} else {
			h.t.Logf("kopia %s:\n%s", args[0]+" "+args[1], out)
		}
	}
}

// one is one of some backups, or empty.
func (h *history) one(of map[string]map[string]string) string {
	names := slices.Sorted(maps.Keys(of))
	if len(names) == 0 {
		return ""
	}
	return names[h.IntN(len(names))]
}

// Random histories of backups, cancels, kills, deletions and expiries: after each maintenance
// every backup that is listed, or still runs, is there, byte for byte; and when all are gone
// the space is back after seven full ones. Kopia's command, where there is one, finds all of it
// healthy.
func TestMaintenanceHistories(t *testing.T) {
	steps := 40
	if kopia != "" {
		steps = 150
	}
	h := newHistory(t, story.Seed(t))
	h.change()
	counts := map[string]int{}
	for range steps {
		what := []string{
			"backup", "backup", "backup", "running", "killed", "fail", "complete", "delete", "delete", "expire", "interrupted", "vanish",
			"time", "time", "time", "maintain", "maintain", "maintain",
		}[h.IntN(18)]
		name := h.one(h.listed)
		switch what {
		case "backup":
			h.change()
			h.end(h.begin(false), v1alpha1.BackupPhaseCompleted)
		case "running":
			h.change()
			h.begin(false)
		case "killed":
			h.change()
			h.begin(true)
		case "fail", "complete":
			if name = h.one(h.running); name == "" {
				continue
			}
			if h.running[name] != nil && what == "complete" {
				h.end(name, v1alpha1.BackupPhaseCompleted)
			} else {
				h.fail(name)
			}
		case "delete", "interrupted", "expire", "vanish":
			if name == "" {
				continue
			}
			switch what {
			case "delete":
				h.delete(name, 2)
			case "interrupted":
				h.delete(name, h.IntN(2))
			case "expire": // the oldest
				h.delete(slices.MinFunc(slices.Collect(maps.Keys(h.listed)), func(a, b string) int {
					return len(a) - len(b) + strings.Compare(a, b)/2
				}), 2)
			default:
				h.vanish(name)
			}
		case "time":
			h.Advance(time.Duration(h.IntN(40)) * time.Hour)
		case "maintain":
			result := h.maintain()
			counts["swept"] += result.SweptSnapshots
			counts["missing"] += result.MissingBackups
		}
		counts[what]++
		h.settle()
	}
	t.Logf("%v; %d snapshots", counts, h.snapshots())
	h.verify()
	for name := range h.running {
		h.fail(name)
	}
	for name := range h.listed {
		h.delete(name, 2)
	}
	for name := range h.deleting {
		h.delete(name, 2)
	}
	h.settle()
	// Of those that have vanished too many may be missing to be believed.
	h.maintainer.AcceptMissing = true
	for run := 1; run <= 7; run++ {
		h.Advance(25 * time.Hour)
		h.settle()
		result := h.maintain()
		if result.Kind != "full" {
			t.Errorf("the maintenance of the next day was %+v", result)
		}
		if left := h.snapshots(); run > 1 && left != 0 {
			t.Errorf("%d snapshots are left after %d days", left, run)
		}
	}
	h.verify()
	if left := h.size(); left > 200<<10 {
		t.Errorf("nothing is listed, and %d bytes are left after seven full maintenances", left)
	}
}
