// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
)

// hangingMount mounts a FUSE file system that never answers, until release is called.
func hangingMount(t *testing.T, dir string) (release func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("it mounts a file system, which needs root")
	}
	// Not by package os, which would wait for answers of a file that it can poll.
	device, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("there is no FUSE here: ", err)
	}
	err = syscall.Mount("hangs", dir, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device))
	if err != nil {
		_ = syscall.Close(device)
		t.Skip("nothing can be mounted here: ", err)
	}
	released := false
	release = func() {
		if !released {
			released = true
			_ = syscall.Close(device) // whoever waits gets an error
			must(t, syscall.Unmount(dir, syscall.MNT_DETACH))
		}
	}
	t.Cleanup(release)
	return release
}

// completesAgain waits until a volume is no longer left alone, and is backed up.
func (h *harness) completesAgain(volume string) {
	h.t.Helper()
	attempt := 0
	h.eventually(func() bool {
		attempt++
		name := fmt.Sprintf("later-%d", attempt)
		h.create(h.backup(name, types.UID(name), volume))
		h.eventually(func() bool { return h.get(name).Status.Phase.Done() }, func() string { return "it is not done" })
		return h.get(name).Status.Phase == enginev1alpha1.VolumePhaseCompleted
	}, func() string { return "the volume is still left alone" })
}

// TestMountThatHangs: work on a volume whose mount never answers has failed after a while,
// whatever it is in the middle of. Its slot is free, the volume is left alone until it
// answers, and then is worked on again.
func TestMountThatHangs(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h := newHarness(t, fake)
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	dir := h.volume("data")
	must(t, os.WriteFile(filepath.Join(h.volume("other"), "file"), []byte("content"), 0o644))
	release := hangingMount(t, dir)
	h.startBackups()
	h.create(h.backup("hangs", "1", "data"))
	h.expect("hangs", enginev1alpha1.VolumePhaseInProgress)
	h.create(h.backup("waits", "2", "other"))
	for waited := time.Duration(0); waited < 4*time.Minute; waited += 30 * time.Second {
		if got := h.get("hangs").Status.Phase; got != enginev1alpha1.VolumePhaseInProgress {
			t.Errorf("it is %s after %s", got, waited)
		}
		fake.Step(30 * time.Second)
		time.Sleep(5 * time.Millisecond) // a tick that nobody has heard yet would be lost
	}
	h.eventually(func() bool {
		fake.Step(30 * time.Second) // as some were lost, perhaps
		return h.get("hangs").Status.Phase == enginev1alpha1.VolumePhaseFailed
	}, func() string { return "it has not failed" })
	if got := h.get("hangs").Status.Message; !strings.Contains(got, "the mount of the volume on node node-1 has not answered for 5m0s") {
		t.Errorf("the message is %q", got)
	}
	h.expect("waits", enginev1alpha1.VolumePhaseCompleted)
	h.create(h.backup("again", "3", "data"))
	if got := h.expect("again", enginev1alpha1.VolumePhaseFailed).Status.Message; !strings.Contains(got, "has not returned since 2030-01-01T") {
		t.Errorf("the message is %q", got)
	}
	release()
	h.completesAgain("data")
}

// server is that of a FUSE driver, and gets all of a file when it is closed, as those of object stores do.
type server struct {
	// closing is told of each file that is closed.
	closing chan string
	// moved is closed when the server has all of the files, and deaf when it no longer answers questions
	// about itself until then.
	moved, deaf chan struct{}
	// asked counts these questions.
	asked atomic.Int64
}

// served is a file or folder of a server.
type served struct {
	*fs.LoopbackNode
	server *server
}

func (s *served) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &served{child.(*fs.LoopbackNode), s.server}
}

func (s *served) Flush(context.Context, fs.FileHandle) syscall.Errno {
	select {
	case s.server.closing <- s.Path(nil):
		<-s.server.moved
	case <-s.server.moved:
	}
	return 0
}

func (s *served) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	s.server.asked.Add(1)
	select {
	case <-s.server.deaf:
		<-s.server.moved
	default:
	}
	return s.LoopbackNode.Statfs(ctx, out)
}

// TestServersThatTakeLong: a volume does not hang of which a single call takes as long as all of a file,
// while the server of the files answers. When it does not answer any more, the volume hangs.
func TestServersThatTakeLong(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it mounts a file system, which needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("there is no FUSE here: ", err)
	}
	fake := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h := newHarness(t, fake)
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	dir, files := h.volume("data"), t.TempDir()
	must(t, os.WriteFile(filepath.Join(files, "file"), []byte("content"), 0o644))
	server := &server{closing: make(chan string), moved: make(chan struct{}), deaf: make(chan struct{})}
	root, err := fs.NewLoopbackRoot(files)
	must(t, err)
	mounted, err := fs.Mount(dir, &served{root.(*fs.LoopbackNode), server}, &fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true}})
	if err != nil {
		t.Skip("nothing can be mounted here: ", err)
	}
	t.Cleanup(func() { must(t, mounted.Unmount()) })
	release := sync.OnceFunc(func() { close(server.moved) })
	defer release() // before the agent is waited for

	h.startBackups()
	h.create(h.backup("b", "1", "data"))
	if got := <-server.closing; got != "file" {
		t.Fatalf("%q is closed", got)
	}
	for range 20 { // 10 minutes
		before, stepped := server.asked.Load(), time.Time{}
		h.eventually(func() bool {
			if time.Since(stepped) > 5*time.Second { // nobody may have heard the last tick
				stepped = time.Now()
				fake.Step(30 * time.Second)
			}
			return server.asked.Load() > before
		}, func() string { return "the server is not asked" })
	}
	if got := h.get("b").Status; got.Phase != enginev1alpha1.VolumePhaseInProgress {
		t.Fatalf("while the server answers: %+v", got)
	}
	close(server.deaf)
	h.eventually(func() bool {
		fake.Step(30 * time.Second)
		return h.get("b").Status.Phase == enginev1alpha1.VolumePhaseFailed
	}, func() string { return "it has not failed" })
	if got := h.get("b").Status.Message; !strings.Contains(got, "the mount of the volume on node node-1 has not answered for 5m0s") {
		t.Errorf("the message is %q", got)
	}
	release()
	h.completesAgain("data")
}

// TestReadsThatHang: so does work whose reads never return, while the file system answers all
// else, as those of a disk do.
func TestReadsThatHang(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h := newHarness(t, fake)
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	h.volume("other")
	moving, answer := make(chan struct{}), make(chan struct{})
	var later atomic.Bool
	h.startMove(func(ctx context.Context, p *datapath.Progress) (result, error) {
		if !later.Swap(true) {
			close(moving)
			p.Call(func() { <-answer })
		}
		return result{}, ctx.Err()
	})
	h.create(h.backup("hangs", "1", "data"))
	<-moving
	h.create(h.backup("waits", "2", "other"))
	h.eventually(func() bool {
		fake.Step(30 * time.Second)
		return h.get("hangs").Status.Phase == enginev1alpha1.VolumePhaseFailed
	}, func() string { return "it has not failed" })
	if got := h.get("hangs").Status.Message; !strings.Contains(got, "the mount of the volume on node node-1 has not answered for 5m0s") {
		t.Errorf("the message is %q", got)
	}
	h.expect("waits", enginev1alpha1.VolumePhaseCompleted)
	h.create(h.backup("again", "3", "data"))
	h.expect("again", enginev1alpha1.VolumePhaseFailed)
	close(answer)
}

// TestHungVolumeIsLeftAlone: while an upload of a volume hangs, neither a restore nor another upload of
// it begins that has waited for a slot before anybody knew. Each has failed instead, and other volumes
// have their turn.
func TestHungVolumeIsLeftAlone(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h := newHarness(t, fake)
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	h.volume("other")
	moving, answer := make(chan struct{}), make(chan struct{})
	var moved atomic.Int32
	h.startMove(func(ctx context.Context, p *datapath.Progress) (result, error) {
		if moved.Add(1) == 1 {
			close(moving)
			p.Call(func() { <-answer })
		}
		return result{}, ctx.Err()
	})
	h.startRestores()
	h.create(h.backup("hangs", "1", "data"))
	<-moving
	h.create(h.backup("queued", "2", "data"))
	h.create(h.backup("waits", "3", "other"))
	restores := h.engine.EngineV1alpha1().VolumeRestores(system)
	restore := &enginev1alpha1.VolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "restore", UID: "4"},
		Spec: enginev1alpha1.VolumeRestoreSpec{
			Node: node, Pod: enginev1alpha1.PodReference{Namespace: "app", Name: "web", UID: podUID}, Volume: "data",
			BackupStorageLocation: "default", Repository: repo, SnapshotID: "none",
		},
	}
	_, err := restores.Create(t.Context(), restore, metav1.CreateOptions{})
	must(t, err)
	h.eventually(func() bool {
		waiting := h.manager.Load().Waiting
		return waiting[datapath.ClassRestore] == 1 && waiting[datapath.ClassBackup] == 2
	}, func() string { return "they do not wait" })
	h.eventually(func() bool {
		fake.Step(30 * time.Second)
		return h.get("hangs").Status.Phase == enginev1alpha1.VolumePhaseFailed
	}, func() string { return "it has not failed" })
	h.expect("waits", enginev1alpha1.VolumePhaseCompleted)
	queued := h.expect("queued", enginev1alpha1.VolumePhaseFailed)
	h.eventually(func() bool {
		restore, err = restores.Get(t.Context(), "restore", metav1.GetOptions{})
		return err == nil && restore.Status.Phase == enginev1alpha1.VolumePhaseFailed
	}, func() string { return "the restore has not failed" })
	for name, status := range map[string]struct {
		message  string
		attempts int32
	}{"upload": {queued.Status.Message, queued.Status.Attempts}, "restore": {restore.Status.Message, restore.Status.Attempts}} {
		if !strings.Contains(status.message, "has not returned since 2030-01-01T") || status.attempts != 0 {
			t.Errorf("the %s has begun %d times, and its message is %q", name, status.attempts, status.message)
		}
	}
	if got := moved.Load(); got != 2 {
		t.Errorf("%d uploads have begun, want that which hangs and that of the other volume", got)
	}
	close(answer)
}
