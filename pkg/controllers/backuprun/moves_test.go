// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
)

// instant is when all snapshots are cut.
var instant = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// mover is a Mover that answers at once, unless it is held.
type mover struct {
	cutFails, readyFails, exposeFails error
	// stuckOn does not run the pod of a first try.
	stuckOn string
	// cutHeld, readyHeld, placeHeld and exposeHeld, if set, hold the work until they are closed.
	cutHeld, readyHeld, placeHeld, exposeHeld chan struct{}

	// stuck can't hide.
	stuck bool

	mu                  sync.Mutex
	cut, exposed        []snapshots.Volume
	hidden, places, top int
	// unread are the places of volumes that are not read.
	unread int
	left   []string
	// nodes are where the cuts are exposed; none is node-7.
	nodes []string
}

func (m *mover) wait(ctx context.Context, held chan struct{}, report func(string)) error {
	if held == nil {
		return nil
	}
	report("the storage")
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *mover) Cut(ctx context.Context, v snapshots.Volume, report func(string)) (snapshots.Taken, error) {
	if err := m.wait(ctx, m.cutHeld, report); err != nil {
		return snapshots.Taken{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut = append(m.cut, v)
	return snapshots.Taken{Handle: "handle", Content: "content", Size: 7, Time: instant}, m.cutFails
}

func (m *mover) AwaitReady(ctx context.Context, v snapshots.Volume, taken snapshots.Taken, report func(string)) (snapshots.Taken, error) {
	if err := m.wait(ctx, m.readyHeld, report); err != nil {
		return taken, err
	}
	taken.Ready = true
	return taken, m.readyFails
}

func (m *mover) Place(ctx context.Context, v snapshots.Volume, _ snapshots.Taken, report func(string)) (snapshots.Spot, error) {
	if err := m.wait(ctx, m.placeHeld, func(string) { report("a place") }); err != nil {
		return snapshots.Spot{}, err
	}
	return m.Occupy(v), nil
}

func (m *mover) Occupy(snapshots.Volume) snapshots.Spot {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.places++
	m.unread++
	m.top = max(m.top, m.places)
	less := func(n *int) func() {
		return sync.OnceFunc(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			*n--
		})
	}
	return snapshots.Spot{Read: less(&m.unread), Leave: less(&m.places)}
}

func (m *mover) Expose(ctx context.Context, v snapshots.Volume, _ snapshots.Taken, report func(string)) (snapshots.Exposed, error) {
	if err := m.wait(ctx, m.exposeHeld, report); err != nil {
		return snapshots.Exposed{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exposed = append(m.exposed, v)
	if m.stuckOn != "" && v.Try < 2 {
		return snapshots.Exposed{}, snapshots.StuckError{Node: m.stuckOn, Err: errors.New("the mount fails")}
	}
	node := "node-7"
	if n := len(m.exposed); n <= len(m.nodes) {
		node = m.nodes[n-1]
	}
	return snapshots.Exposed{Node: node, Pod: "uid-of-holder", PersistentVolume: "pv-of-snapshot"}, m.exposeFails
}

// Hide needs two looks, or never ends.
func (m *mover) Hide(context.Context, snapshots.Volume) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hidden++
	return m.hidden > 1 && !m.stuck, nil
}

// Leave notes the content.
func (m *mover) Leave(_ context.Context, content string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = append(m.left, content)
	return nil
}

func (m *mover) taken() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.places
}

func snapshotOf(claim, pod string) *format.Volume {
	of := &format.Volume{
		Pod: enginev1alpha1.PodReference{Namespace: "shop"}, ClaimName: claim, ClaimUID: types.UID("uid-of-" + claim), PersistentVolume: "pv", Capacity: 5,
		Snapshot: &format.SnapshotSource{Driver: "d", Handle: "volume", Class: "fast", StorageClass: "slow"},
	}
	if pod != "" {
		of.Pod.Name, of.Pod.UID, of.Name = pod, types.UID("uid-of-"+pod), "v"
	}
	return of
}

// moving executes a run with one snapshot, and notes when it is cut.
type moving struct {
	volume *format.Volume
	isCut  chan struct{}
	ended  chan struct{}
}

func newMoving(volume *format.Volume) *moving {
	return &moving{volume: volume, isCut: make(chan struct{}), ended: make(chan struct{})}
}

func (m *moving) execute(ctx context.Context, _ *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
	defer close(m.ended)
	all := []*format.Volume{m.volume}
	if err := volumes.Submit(ctx, m.volume); err != nil {
		return stored(v1alpha1.BackupPhasePartiallyFailed), nil
	}
	if err := volumes.Cut(ctx, all); err != nil {
		return backup.Outcome{}, err
	}
	close(m.isCut)
	if err := volumes.Wait(ctx, all); err != nil {
		return backup.Outcome{}, err
	}
	return stored(done), nil
}

func closed(c chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestSnapshotIsMoved: hooks may go on from the cut. The agent of the node with the snapshot reads it for
// the claim, and then it is hidden.
func TestSnapshotIsMoved(t *testing.T) {
	for name, pod := range map[string]string{"of a pod": "web", "without a pod": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &mover{cutHeld: make(chan struct{}), readyHeld: make(chan struct{}), placeHeld: make(chan struct{}), exposeHeld: make(chan struct{})}
				e := newMoving(snapshotOf("data", pod))
				run := newRun("a", ready)
				run.Spec.Backup.CSISnapshotTimeout.Duration = time.Hour
				h := newHarness(t, &work{execute: e.execute}, run)
				h.mover = m
				h.start(1)
				if closed(e.isCut) {
					t.Error("it counts as cut before the driver has answered")
				}
				time.Sleep(time.Minute)
				if message := h.Run("a").Status.Message; !strings.Contains(message, "waits for the snapshot: the storage") {
					t.Errorf("meanwhile the backup says %q", message)
				}
				close(m.cutHeld)
				if !closed(e.isCut) || len(h.uploads()) > 0 {
					t.Errorf("after the cut: cut %t, uploads %v", closed(e.isCut), h.uploads())
				}
				if m.top != 0 {
					t.Error("a snapshot that is not ready takes a place")
				}
				close(m.readyHeld)
				time.Sleep(time.Minute)
				if message := h.Run("a").Status.Message; m.top != 0 || !strings.Contains(message, "waits for a place") {
					t.Errorf("%d places are taken, and the backup says %q", m.top, message)
				}
				close(m.placeHeld)
				if closed(m.placeHeld); m.top != 1 {
					t.Error("it does not wait for its exposure")
				}
				close(m.exposeHeld)
				synctest.Wait()
				record := h.uploads()[e.volume.Name]
				if record == nil {
					t.Fatal("there is no upload")
				}
				want := enginev1alpha1.VolumeUploadSpec{
					Node: "node-7", Pod: e.volume.Pod, Volume: e.volume.Name, ClaimName: "data", ClaimUID: "uid-of-data", PersistentVolume: "pv-of-snapshot", Holder: "uid-of-holder",
					BackupStorageLocation: "default", Repository: "shop.default", StoreName: "a", ClusterUID: "cluster",
				}
				if record.Spec != want {
					t.Errorf("the upload is %+v\nwant %+v", record.Spec, want)
				}
				if cut := cutOf(record); cut == nil || !cut.Time.Time.Equal(instant) {
					t.Errorf("the upload tells of the cut %+v, want one at %s", cut, instant)
				}
				h.report(e.volume.Name, enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"})
				if !closed(e.ended) || e.volume.Status.SnapshotID != "s" || e.volume.Node != "node-7" || !e.volume.Status.StartTimestamp.Time.Equal(instant) {
					t.Errorf("the volume is %+v", e.volume)
				}
				cut := m.cut[0]
				if cut.Backup != "uid-of-a" || cut.Claim != "data" || cut.Class != "fast" || !cut.Moved || cut.Size != 5 || cut.Attempt != 0 || cut.Timeout != time.Hour || cut.ReadyTimeout != 4*time.Hour {
					t.Errorf("cut is %+v", cut)
				}
			})
		})
	}
}

// TestSnapshotIsKept: a snapshot that stays in its storage needs neither a place nor a repository nor an agent.
// Its volume has ended when the storage has it ready, or with its failure.
func TestSnapshotIsKept(t *testing.T) {
	for name, failure := range map[string]error{"it is ready": nil, "it never is": errors.New("no space")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &mover{readyHeld: make(chan struct{}), readyFails: failure}
				e := newMoving(snapshotOf("data", "web"))
				e.volume.Snapshot.Kept = true
				h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
				h.mover = m
				h.start(1)
				if !closed(e.isCut) || closed(e.ended) {
					t.Error("it does not wait until the snapshot is ready, without its pod")
				}
				close(m.readyHeld)
				want := enginev1alpha1.VolumePhaseCompleted
				if failure != nil {
					want = enginev1alpha1.VolumePhaseFailed
				}
				if !closed(e.ended) || e.volume.Status.Phase != want || e.volume.InStorage() != (failure == nil) {
					t.Errorf("the volume is %+v", e.volume)
				}
				if (len(m.left) == 1) != (failure != nil) {
					t.Errorf("to leave are %v", m.left)
				}
				if failure == nil && (e.volume.Snapshot.Cut.Handle != "handle" || !e.volume.Status.StartTimestamp.Time.Equal(instant)) {
					t.Errorf("the cut is %+v of %s", e.volume.Snapshot.Cut, e.volume.Status.StartTimestamp)
				}
				if made := h.Writes("volumerepositories"); m.top != 0 || len(m.exposed) > 0 || m.hidden > 0 || len(h.uploads()) > 0 || len(made) > 0 || m.cut[0].Moved {
					t.Errorf("places %d, exposed %v, hidden %d, uploads %v, repositories %v, cut %+v", m.top, m.exposed, m.hidden, h.uploads(), made, m.cut)
				}
			})
		})
	}
}

// TestSnapshotBesideMovedData: its data is moved, and the volume has its cut, also if an earlier attempt made it. With a
// failed volume it leaves.
func TestSnapshotBesideMovedData(t *testing.T) {
	for name, test := range map[string]struct {
		earlier, fails bool
	}{"completed": {}, "failed": {fails: true}, "completed by an earlier attempt": {earlier: true}, "failed in an earlier attempt": {earlier: true, fails: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &mover{}
				e := newMoving(snapshotOf("data", "web"))
				e.volume.Snapshot.KeepLocal = 3
				run := newRun("a", ready)
				h := newHarness(t, &work{execute: e.execute}, run)
				h.mover = m
				h.start(1)
				synctest.Wait()
				cut, record := m.cut[0], h.uploads()["v"]
				if record == nil || !cut.Moved || cut.KeepLocal != 3 {
					t.Fatalf("the upload is %+v, cut is %+v", record, cut)
				}
				if test.earlier {
					h.stop()
					<-h.stopped
					again := newRun("a", running)
					again.Status.Attempts = 1
					e = newMoving(snapshotOf("data", "web"))
					e.volume.Snapshot.KeepLocal = 3
					h = newHarness(t, &work{execute: e.execute}, again, record)
					h.mover = m
					h.start(1)
				}
				status := enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"}
				if test.fails {
					status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "no space"}
				}
				for !closed(e.ended) { // a failure may be tried again
					h.report("v", status)
					time.Sleep(2 * hideInterval)
				}
				if got := e.volume.Snapshot.Cut; got == nil || got.Handle != "handle" || !got.Time.Time.Equal(instant) || len(m.cut) != 1 {
					t.Errorf("the volume has the cut %+v of %v", got, m.cut)
				}
				if left := fmt.Sprint(m.left); test.fails && left != "[content]" || !test.fails && left != "[]" {
					t.Errorf("to leave are %s", left)
				}
				if m.hidden == 0 {
					t.Error("it is not hidden")
				}
			})
		})
	}
}

// TestFailedCutIsLeft: the driver may still make a snapshot whose volume has failed, and no backup lists it.
func TestFailedCutIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newMoving(snapshotOf("data", "web"))
		e.volume.Snapshot.Kept = true
		h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
		m := &mover{cutFails: errors.New("not cut within 10m0s")}
		h.mover = m
		h.start(1)
		h.expect("a", done, true)
		if !slices.Equal(m.left, []string{"content"}) {
			t.Errorf("to leave are %v", m.left)
		}
	})
}

// TestKeptIsNotLeftByAStop: a process that is told to stop while the storage copies leaves the snapshot to the next
// one.
func TestKeptIsNotLeftByAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mover{readyHeld: make(chan struct{})}
		e := newMoving(snapshotOf("data", "web"))
		e.volume.Snapshot.Kept = true
		h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
		h.mover = m
		h.start(1)
		if !closed(e.isCut) {
			t.Error("it is not cut")
		}
		h.stop()
		<-h.stopped
		if status := h.Run("a").Status; len(m.left) > 0 || status.Phase != running || status.GivenBack != 1 {
			t.Errorf("to leave are %v, and the run is %+v", m.left, status)
		}
	})
}

// TestSnapshotIsHandedOverPatiently: an API server that restarts after the cut costs no volume, also if
// its answer is lost.
func TestSnapshotIsHandedOverPatiently(t *testing.T) {
	for name, fault := range map[string]enginetest.Fault{
		"no answer":  {Err: errors.New("connection refused")},
		"a lost one": {Err: errors.New("connection reset"), Lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newMoving(snapshotOf("data", "web"))
				h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
				h.mover = &mover{}
				failures := 3
				h.Fault(func(action clienttesting.Action) enginetest.Fault {
					if action.Matches("create", "volumeuploads") && failures > 0 {
						failures--
						return fault
					}
					return enginetest.Fault{}
				})
				h.start(1)
				time.Sleep(time.Minute)
				h.report("v", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"})
				if !closed(e.ended) || e.volume.Status.SnapshotID != "s" {
					t.Errorf("the volume is %+v", e.volume.Status)
				}
			})
		})
	}
}

// TestSnapshotFails: a failure of the driver, or of the pod with the snapshot, is the volume's.
func TestSnapshotFails(t *testing.T) {
	for name, m := range map[string]*mover{
		"the cut":      {cutFails: errors.New("no space")},
		"the copy":     {readyFails: errors.New("no space")},
		"the exposure": {exposeFails: errors.New("no space")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newMoving(snapshotOf("data", "web"))
				h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
				h.mover = m
				h.start(1)
				if !closed(e.ended) || e.volume.Status.Phase != enginev1alpha1.VolumePhaseFailed || e.volume.Status.Message != "no space" || len(h.uploads()) > 0 {
					t.Errorf("the volume is %+v", e.volume.Status)
				}
			})
		})
	}
}

// TestSnapshotIsMovedAgain: an upload that fails, or whose node or agent is lost, is tried once more on another
// node. After that the volume has failed, and says why twice.
func TestSnapshotIsMovedAgain(t *testing.T) {
	for name, lose := range map[string]func(h *harness){
		"the upload": func(h *harness) {
			h.report("v", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "the pod is gone"})
		},
		"the node":  func(h *harness) { h.agents.remove("node-7") },
		"the agent": func(h *harness) { h.agents.leave("node-7"); time.Sleep(agentTimeout + volumeCheck) },
	} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, fails again: %t", name, fails), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := &mover{nodes: []string{"node-7", "node-8"}}
					e := newMoving(snapshotOf("data", "web"))
					h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
					h.mover = m
					h.start(1)
					first := h.uploads()["v"]
					lose(h)
					time.Sleep(2 * hideInterval)
					again := h.uploads()["v"]
					if m.hidden < 2 {
						t.Errorf("the first exposure is not hidden")
					}
					if again == nil || again.UID == first.UID || again.Spec.Node != "node-8" || len(m.exposed) != 2 || m.exposed[1].Try != 2 || m.exposed[1].Avoid != "node-7" || closed(e.ended) || m.taken() != 1 || m.unread != 1 {
						t.Fatalf("the upload is %+v, exposed were %+v, %d places are taken", again, m.exposed, m.taken())
					}
					if message := h.Run("a").Status.Message; strings.Contains(message, "hf-") {
						t.Errorf("the backup says %q", message)
					}
					status := enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"}
					if fails {
						status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "no space"}
					}
					h.report("v", status)
					if !closed(e.ended) || (e.volume.Status.Phase == enginev1alpha1.VolumePhaseFailed) != fails || e.volume.Node != "node-8" || len(m.cut) != 1 {
						t.Errorf("the volume is %+v, cut were %v", e.volume, m.cut)
					}
					if fails && !strings.Contains(e.volume.Status.Message, "no space; and before, on the node node-7: ") {
						t.Errorf("the volume says %q", e.volume.Status.Message)
					}
				})
			})
		}
	}
}

// TestNodeThatDoesNotMount: a snapshot that a node does not mount is read on another one. If that fails too, the volume
// says both.
func TestNodeThatDoesNotMount(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails again: %t", fails), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &mover{nodes: []string{"", "node-8"}, stuckOn: "node-6"}
				volume := snapshotOf("data", "web")
				volume.Snapshot.Avoid = "node-5"
				e := newMoving(volume)
				h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
				h.mover = m
				h.start(1)
				time.Sleep(2 * hideInterval)
				upload := h.uploads()["v"]
				if upload == nil || upload.Spec.Node != "node-8" || len(m.exposed) != 2 || m.exposed[0].Avoid != "node-5" || m.exposed[1].Try != 2 || m.exposed[1].Avoid != "node-6" || m.hidden < 2 || m.taken() != 1 || len(m.cut) != 1 {
					t.Fatalf("the upload is %+v, exposed were %+v, %d places are taken", upload, m.exposed, m.taken())
				}
				status := enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"}
				if fails {
					status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "no space"}
				}
				h.report("v", status)
				if !closed(e.ended) || (e.volume.Status.Phase == enginev1alpha1.VolumePhaseFailed) != fails {
					t.Errorf("the volume is %+v", e.volume.Status)
				}
				if fails && !strings.Contains(e.volume.Status.Message, "no space; and before, on the node node-6: the mount fails") {
					t.Errorf("the volume says %q", e.volume.Status.Message)
				}
			})
		})
	}
}

// TestPendingPodKeepsNoPlace: a pod that no node takes gives its place to others, and keeps its driver's.
func TestPendingPodKeepsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mover{exposeHeld: make(chan struct{})}
		e := newMoving(snapshotOf("data", "web"))
		h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
		h.mover = m
		unread := func() int {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.unread
		}
		h.start(1)
		time.Sleep(pendingPatience - time.Second)
		if got := unread(); got != 1 || m.taken() != 1 {
			t.Errorf("%d places of nodes are taken before, of %d", got, m.taken())
		}
		time.Sleep(2 * time.Second)
		if got := unread(); got != 0 || m.taken() != 1 {
			t.Errorf("%d places of nodes are taken after, of %d", got, m.taken())
		}
		close(m.exposeHeld)
		time.Sleep(time.Second)
		h.report("v", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"})
		if !closed(e.ended) || e.volume.Status.SnapshotID != "s" {
			t.Errorf("the volume is %+v", e.volume.Status)
		}
	})
}

// TestCancelledUploadIsNotMovedAgain: a first try that was cancelled ends the volume.
func TestCancelledUploadIsNotMovedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mover{}
		e := newMoving(snapshotOf("data", "web"))
		h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
		h.mover = m
		h.start(1)
		h.Cancel("a")
		h.expectCancelled("a", true)
		if len(m.exposed) != 1 {
			t.Errorf("exposed were %+v", m.exposed)
		}
	})
}

// TestSnapshotThatCantBeHidden: the pod of a lost node gives its place to others while the backup goes on.
func TestSnapshotThatCantBeHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, goesOn := &mover{stuck: true}, make(chan struct{})
		e := newMoving(snapshotOf("data", "web"))
		h := newHarness(t, &work{execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
			outcome, err := e.execute(ctx, run, volumes)
			<-goesOn
			return outcome, err
		}}, newRun("a", ready))
		h.mover = m
		h.start(1)
		h.report("v", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"})
		if !closed(e.ended) || m.taken() != 1 || m.unread != 0 {
			t.Errorf("%d places are taken and %d unread, want one while it is hidden, and none", m.taken(), m.unread)
		}
		time.Sleep(hidePatience + 2*hideInterval)
		if m.taken() != 0 {
			t.Error("its place is still taken")
		}
		close(goesOn)
	})
}

// TestSnapshotIsCancelled: nothing is waited for, and no upload begins.
func TestSnapshotIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mover{cutHeld: make(chan struct{})}
		e := newMoving(snapshotOf("data", "web"))
		h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
		h.mover = m
		h.start(1)
		begin := time.Now()
		h.Cancel("a")
		h.expectCancelled("a", true)
		if waited := time.Since(begin); waited != 0 || len(h.uploads()) > 0 {
			t.Errorf("it took %s, with %v", waited, h.uploads())
		}
	})
}

// TestSnapshotOfAnEarlierAttempt: an upload that another process has begun is not cut again.
func TestSnapshotOfAnEarlierAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mover{}
		e := newMoving(snapshotOf("data", "web"))
		run := newRun("a", running)
		run.Status.Attempts = 1
		record := (&volumes{c: &Controller{Config: Config{ClusterUID: "cluster"}}, run: run}).recordOf(e.volume, "node-7")
		record.Namespace, record.UID = system, "uid-of-upload"
		h := newHarness(t, &work{execute: e.execute}, run, record)
		h.mover = m
		h.start(1)
		h.report("v", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"})
		if !closed(e.ended) || len(m.cut)+len(m.exposed) > 0 || e.volume.Status.SnapshotID != "s" {
			t.Errorf("cut is %v, and the volume is %+v", m.cut, e.volume)
		}
	})
}

// TestSnapshotsAreOff: a controller without a mover hands no snapshot over.
func TestSnapshotsAreOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newMoving(snapshotOf("data", "web"))
		h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
		h.start(1)
		if !closed(e.ended) || closed(e.isCut) {
			t.Error("it was cut")
		}
	})
}

// TestMovingFreesTheSlot: a run that only moves data lets the next one of its namespaces start, in a process
// with one slot. Its hooks are not run again.
func TestMovingFreesTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moved := make(chan struct{})
		h := newQueueHarness(t, &work{notes: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes, notes Notes) (backup.Outcome, error) {
			if run.Name == "second" {
				return stored(done), nil
			}
			if err := errors.Join(notes.Pending(ctx, []enginev1alpha1.PodReference{{Name: "db"}}), notes.Moving(ctx)); err != nil {
				t.Error(err)
			}
			<-moved
			return stored(done), nil
		}})
		h.mover = &mover{}
		h.startWithQueue(1)
		h.createRun("first", "a")
		h.createRun("second", "a")
		h.expect("second", done, true)
		h.expect("first", v1alpha1.BackupPhaseWaitingForPluginOperations, false)
		if pods := h.Run("first").Status.PendingHooks; len(pods) > 0 {
			t.Errorf("post hooks are pending in %v", pods)
		}
		close(moved)
		h.expect("first", done, true)
	})
}

// TestMovingWithALostAnswer: the note that only data is moved counts also if its answer is lost.
func TestMovingWithALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moved := make(chan struct{})
		h := newHarness(t, &work{notes: func(ctx context.Context, _ *enginev1alpha1.BackupRun, _ backup.Volumes, notes Notes) (backup.Outcome, error) {
			if err := notes.Moving(ctx); err != nil {
				t.Error(err)
			}
			<-moved
			return stored(done), nil
		}}, newRun("a", ready))
		h.mover = &mover{}
		h.faultFirst(1, enginetest.Fault{Err: errors.New("connection reset"), Lost: true}, v1alpha1.BackupPhaseWaitingForPluginOperations)
		h.start(1)
		time.Sleep(time.Second)
		h.expect("a", v1alpha1.BackupPhaseWaitingForPluginOperations, false)
		if free := len(h.controller.places); free != 0 {
			t.Errorf("%d places are taken", free)
		}
		close(moved)
		h.expect("a", done, true)
	})
}

// TestKeptInPlaceOfMoved: an attempt that keeps a snapshot takes no upload of an earlier one that moved it.
func TestKeptInPlaceOfMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newMoving(snapshotOf("data", "web"))
		run := newRun("a", running)
		run.Status.Attempts = 1
		record := (&volumes{c: &Controller{Config: Config{ClusterUID: "cluster"}}, run: run}).recordOf(e.volume, "node-7")
		record.Namespace, record.UID = system, "uid-of-upload"
		e.volume.Snapshot.Kept = true
		m := &mover{}
		h := newHarness(t, &work{execute: e.execute}, run, record)
		h.mover = m
		h.start(1)
		if !closed(e.ended) || !e.volume.InStorage() || len(m.cut) != 1 {
			t.Errorf("cut are %v, and the volume is %+v", m.cut, e.volume)
		}
	})
}

// TestMovingIsTakenOver: the next process needs no slot, and leaves uploads alone that began between hooks.
// The cluster was read, so the ledger has no start of the run.
func TestMovingIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newMoving(snapshotOf("data", "web"))
		run := newRun("a", running)
		run.Status.Phase, run.Status.Attempts = v1alpha1.BackupPhaseWaitingForPluginOperations, 1
		e.volume.Hooked, e.volume.Snapshot.Cut = true, &format.SnapshotCut{Handle: "stored", Attempt: 1}
		record := (&volumes{c: &Controller{Config: Config{ClusterUID: "cluster"}}, run: run}).recordOf(e.volume, "node-7")
		record.Namespace, record.UID = system, "uid-of-upload"
		h := newHarness(t, &work{execute: e.execute}, run, record, newRun("b", running))
		m := &mover{}
		h.mover = m
		h.work.notes = func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes, _ Notes) (backup.Outcome, error) {
			if run.Name == "b" { // has the only slot
				<-ctx.Done()
				return backup.Outcome{}, ctx.Err()
			}
			return e.execute(ctx, run, volumes)
		}
		h.start(1)
		h.expect("a", v1alpha1.BackupPhaseWaitingForPluginOperations, false)
		if status := h.Run("a").Status; status.Executor != identity || status.Attempts != 2 {
			t.Errorf("taken over: %+v", status)
		}
		if record := h.uploads()["v"]; record == nil || record.Spec.Cancel {
			t.Errorf("the upload is %+v", record)
		}
		if m.taken() != 1 {
			t.Error("the volume that the first process has exposed takes no place")
		}
		h.report("v", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"})
		h.expect("a", done, true)
		if len(m.cut) > 0 || m.taken() != 0 {
			t.Errorf("cut again: %v; %d places are taken", m.cut, m.taken())
		}
	})
}

// TestMovingIsGivenBack: attempts of a process that is told to stop don't count.
func TestMovingIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("a", running)
		run.Status.Phase, run.Status.Attempts = v1alpha1.BackupPhaseWaitingForPluginOperations, 1
		h := newHarness(t, &work{execute: untilStopped}, run)
		h.mover = &mover{}
		h.start(1)
		synctest.Wait()
		h.stop()
		<-h.stopped
		if status := h.Run("a").Status; status.Phase != v1alpha1.BackupPhaseWaitingForPluginOperations || status.Attempts != 2 || status.GivenBack != 1 {
			t.Errorf("%+v", status)
		}
	})
}

// TestMovingIsCancelled: a run that only moves data ends as any other.
func TestMovingIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := newRun("a", running)
		run.Status.Phase, run.Status.Attempts = v1alpha1.BackupPhaseWaitingForPluginOperations, 1
		h := newHarness(t, &work{execute: untilStopped}, run)
		h.mover = &mover{}
		h.start(1)
		h.Cancel("a")
		h.expectCancelled("a", true)
	})
}

// TestCutIsRecorded: what an attempt has cut is moved by the next, though the claim may be gone. The names of
// a cut between hooks are of the attempt that made it.
func TestCutIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mover{readyHeld: make(chan struct{})}
		e := newMoving(snapshotOf("data", "web"))
		e.volume.Hooked = true
		h := newHarness(t, &work{execute: e.execute}, newRun("a", ready))
		h.mover = m
		h.start(1)
		if want := (format.SnapshotCut{Handle: "handle", Content: "content", Size: 7, Time: metav1.NewTime(instant), Attempt: 1}); !closed(e.isCut) || *e.volume.Snapshot.Cut != want {
			t.Fatalf("the cut is %+v", e.volume.Snapshot.Cut)
		}
		cut := e.volume.Snapshot.Cut
		h.stop()
		<-h.stopped

		next := newMoving(snapshotOf("data", "web"))
		next.volume.Hooked, next.volume.Snapshot.Cut = true, cut
		ended := snapshotOf("other", "web")
		ended.Status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "before"}
		run := newRun("a", running)
		run.Status.Phase, run.Status.Attempts = v1alpha1.BackupPhaseWaitingForPluginOperations, 2
		h = newHarness(t, &work{execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
			if err := volumes.Submit(ctx, ended); err != nil {
				t.Error(err)
			}
			return next.execute(ctx, run, volumes)
		}}, run)
		m = &mover{}
		h.mover = m
		h.start(1)
		time.Sleep(time.Minute)
		if len(m.cut) > 0 || len(m.exposed) != 1 || m.exposed[0].Attempt != 1 {
			t.Errorf("cut were %+v, and exposed %+v", m.cut, m.exposed)
		}
		if volumes := h.Run("a").Status.Volumes; volumes == nil || volumes.Total != 2 || volumes.Completed != 1 {
			t.Errorf("the counts are %+v", volumes)
		}
		h.report("v", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "s"})
		h.expect("a", done, true)
	})
}
