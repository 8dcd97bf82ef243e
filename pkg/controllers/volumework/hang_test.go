// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
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

// TestMountThatHangs: work on a volume whose mount never answers has failed after a while,
// whatever it is in the middle of. Its slot is free, the volume is left alone until it
// answers, and then is worked on again.
func TestMountThatHangs(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h := newHarness(t, fake)
	h.ready(metav1.ConditionTrue, engine.ReasonOpened)
	dir := h.volume("data")
	must(t, os.WriteFile(filepath.Join(h.volume("other"), "file"), []byte("content"), 0o644))
	release := hangingMount(t, dir)
	h.startBackups()
	h.create(h.backup("hangs", "1", "data"))
	h.expect("hangs", engine.VolumePhaseInProgress)
	h.create(h.backup("waits", "2", "other"))
	for waited := time.Duration(0); waited < 4*time.Minute; waited += 30 * time.Second {
		if got := h.get("hangs").Status.Phase; got != engine.VolumePhaseInProgress {
			t.Errorf("it is %s after %s", got, waited)
		}
		fake.Step(30 * time.Second)
		time.Sleep(5 * time.Millisecond) // a tick that nobody has heard yet would be lost
	}
	h.eventually(func() bool {
		fake.Step(30 * time.Second) // as some were lost, perhaps
		return h.get("hangs").Status.Phase == engine.VolumePhaseFailed
	}, func() string { return "it has not failed" })
	if got := h.get("hangs").Status.Message; !strings.Contains(got, "the mount of the volume on node node-1 has not answered for 5m0s") {
		t.Errorf("the message is %q", got)
	}
	h.expect("waits", engine.VolumePhaseCompleted)
	h.create(h.backup("again", "3", "data"))
	if got := h.expect("again", engine.VolumePhaseFailed).Status.Message; !strings.Contains(got, "has not returned since 2030-01-01T") {
		t.Errorf("the message is %q", got)
	}
	release()
	for i := 0; ; i++ {
		name := fmt.Sprintf("later-%d", i)
		h.create(h.backup(name, types.UID(name), "data"))
		h.eventually(func() bool { return h.get(name).Status.Phase.Done() }, func() string { return "it is not done" })
		if h.get(name).Status.Phase == engine.VolumePhaseCompleted {
			break
		}
	}
}

// TestReadsThatHang: so does work whose reads never return, while the file system answers all
// else, as those of a disk do.
func TestReadsThatHang(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h := newHarness(t, fake)
	h.ready(metav1.ConditionTrue, engine.ReasonOpened)
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
		return h.get("hangs").Status.Phase == engine.VolumePhaseFailed
	}, func() string { return "it has not failed" })
	if got := h.get("hangs").Status.Message; !strings.Contains(got, "the mount of the volume on node node-1 has not answered for 5m0s") {
		t.Errorf("the message is %q", got)
	}
	h.expect("waits", engine.VolumePhaseCompleted)
	h.create(h.backup("again", "3", "data"))
	h.expect("again", engine.VolumePhaseFailed)
	close(answer)
}
