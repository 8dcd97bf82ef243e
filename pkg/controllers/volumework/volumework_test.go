// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/controllers/volumework"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

type result = volumework.Result[*enginev1alpha1.VolumeUpload]

// TestBackupAndRestore takes a volume through both controllers.
func TestBackupAndRestore(t *testing.T) {
	// It stands still: a second that passes within the upload would be one more write.
	h := newHarness(t, clocktesting.NewFakeClock(time.Now()))
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	from, to := h.volume("data"), h.volume("restored")
	must(t, os.WriteFile(filepath.Join(from, "file"), []byte("content"), 0o640))
	must(t, os.Symlink("file", filepath.Join(from, "link")))
	must(t, syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600))

	h.startBackups()
	h.create(h.backup("b", "1", "data"))
	done := h.expect("b", enginev1alpha1.VolumePhaseCompleted).Status
	if done.SnapshotID == "" || done.StartTimestamp == nil || done.CompletionTimestamp == nil {
		t.Errorf("the status is %+v", done)
	}
	done.SnapshotID, done.StartTimestamp, done.CompletionTimestamp = "", nil, nil
	want := enginev1alpha1.VolumeUploadStatus{
		Phase:            enginev1alpha1.VolumePhaseCompleted,
		Message:          `"pipe" is not a file, a folder or a link, and was left out`,
		Path:             from,
		Progress:         enginev1alpha1.VolumeProgress{TotalBytes: 7, BytesDone: 7, TotalFiles: 1, FilesDone: 1},
		IncrementalBytes: 7,
		Warnings:         1,
		Attempts:         1,
		Agent:            "this agent",
	}
	if diff := cmp.Diff(want, done); diff != "" {
		t.Errorf("the status differs (-want +got):\n%s", diff)
	}
	if got := h.written(); !slices.Equal(got, []string{"InProgress", "Completed"}) {
		t.Errorf("written were %v, want two writes", got)
	}

	h.startRestores()
	restores := h.engine.EngineV1alpha1().VolumeRestores(system)
	restore := &enginev1alpha1.VolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "r", UID: "2"},
		Spec: enginev1alpha1.VolumeRestoreSpec{
			Node: node, Pod: enginev1alpha1.PodReference{Namespace: "app", Name: "web", UID: podUID}, Volume: "restored",
			BackupStorageLocation: "default", Repository: repo, SnapshotID: h.get("b").Status.SnapshotID,
		},
	}
	_, err := restores.Create(t.Context(), restore, metav1.CreateOptions{})
	must(t, err)
	h.eventually(func() bool {
		restore, err = restores.Get(t.Context(), "r", metav1.GetOptions{})
		return err == nil && restore.Status.Phase.Done()
	}, func() string { return "the restore does not end" })
	if restore.Status.Phase != enginev1alpha1.VolumePhaseCompleted || restore.Status.Progress.BytesDone != 7 {
		t.Errorf("the restore is %+v", restore.Status)
	}
	data, err := os.ReadFile(filepath.Join(to, "file"))
	if err != nil || string(data) != "content" {
		t.Errorf("restored %q, %v", data, err)
	}
	if target, err := os.Readlink(filepath.Join(to, "link")); err != nil || target != "file" {
		t.Errorf("restored a link to %q, %v", target, err)
	}
	if info, err := os.Stat(filepath.Join(to, "file")); err != nil || info.Mode() != 0o640 {
		t.Errorf("restored %v, %v", info, err)
	}
}

// TestVolumeThatIsNotMounted: neither an upload nor a restore takes the folder for the volume that
// should be mounted there.
func TestVolumeThatIsNotMounted(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	folder := filepath.Join(h.podsDir, string(podUID), "volumes/kubernetes.io~nfs/data")
	must(t, os.MkdirAll(folder, 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "file"), []byte("of the node"), 0o600))

	h.startBackups()
	h.create(h.backup("b", "1", "data"))
	if failed := h.expect("b", enginev1alpha1.VolumePhaseFailed).Status; !strings.HasPrefix(failed.Message, "the volume is not mounted: "+folder) || failed.SnapshotID != "" {
		t.Errorf("the status is %+v", failed)
	}
	from := h.volume("from")
	must(t, os.WriteFile(filepath.Join(from, "new"), []byte("of the volume"), 0o600))
	h.create(h.backup("from", "2", "from"))
	stored := h.expect("from", enginev1alpha1.VolumePhaseCompleted).Status.SnapshotID

	h.startRestores()
	restores := h.engine.EngineV1alpha1().VolumeRestores(system)
	restore, err := restores.Create(t.Context(), &enginev1alpha1.VolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "r", UID: "3"},
		Spec: enginev1alpha1.VolumeRestoreSpec{
			Node: node, Pod: enginev1alpha1.PodReference{Namespace: "app", Name: "web", UID: podUID}, Volume: "data",
			BackupStorageLocation: "default", Repository: repo, SnapshotID: stored,
		},
	}, metav1.CreateOptions{})
	must(t, err)
	h.eventually(func() bool {
		restore, err = restores.Get(t.Context(), "r", metav1.GetOptions{})
		return err == nil && restore.Status.Phase.Done()
	}, func() string { return "the restore does not end" })
	if restore.Status.Phase != enginev1alpha1.VolumePhaseFailed || !strings.HasPrefix(restore.Status.Message, "the volume is not mounted: "+folder) {
		t.Errorf("the restore is %+v", restore.Status)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("in the folder of the node there is %v, %v", left, err)
	}
}

// TestStoreOnAFullDisk: an upload that the store has no room for fails, and says so. Its slot is
// another's then, and so is what it had written.
func TestStoreOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it mounts a small file system, which needs root")
	}
	h := newHarness(t, clock.RealClock{})
	store := h.location.Spec.Filesystem.Path
	must(t, syscall.Mount("tmpfs", store, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { must(t, syscall.Unmount(store, syscall.MNT_DETACH)) })
	must(t, os.CopyFS(store, os.DirFS(template.dir)))
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	content := make([]byte, 24<<20) // more than a pack
	rand.NewChaCha8([32]byte{1}).Read(content)
	must(t, os.WriteFile(filepath.Join(h.volume("large"), "file"), content, 0o600))
	must(t, os.WriteFile(filepath.Join(h.volume("small"), "file"), content[:6<<20], 0o600)) // there is room once

	h.startBackups()
	h.create(h.backup("l", "1", "large"))
	failed := h.expect("l", enginev1alpha1.VolumePhaseFailed).Status
	if !strings.Contains(failed.Message, syscall.ENOSPC.Error()) || failed.SnapshotID != "" || failed.CompletionTimestamp == nil {
		t.Errorf("the status is %+v", failed)
	}
	h.create(h.backup("s", "2", "small"))
	h.expect("s", enginev1alpha1.VolumePhaseCompleted)
}

// TestRepositoryToCome: a record waits for its repository, and says so if there
// is something to say.
func TestRepositoryToCome(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.volume("data")
	h.startBackups()
	h.create(h.backup("early", "1", "data"))
	other := h.backup("elsewhere", "3", "data")
	other.Spec.Node = "node-2"
	h.create(other)

	h.ready(metav1.ConditionFalse, enginev1alpha1.ReasonUnreachable)
	h.eventually(func() bool { return strings.Contains(h.get("early").Status.Message, "Unreachable") },
		func() string { return "the record does not say what it waits for" })
	if got := h.get("early").Status.Phase; got != "" {
		t.Errorf("while it waits, it is %s", got)
	}
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	if got := h.expect("early", enginev1alpha1.VolumePhaseCompleted); got.Status.Message != "" {
		t.Errorf("the message remains: %s", got.Status.Message)
	}

	if got := h.get("elsewhere").Status; got != (enginev1alpha1.VolumeUploadStatus{}) {
		t.Errorf("a record of another node became %+v", got)
	}
}

// TestUnusableRepository: what only a person can change is not waited for.
func TestUnusableRepository(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.volume("data")
	h.ready(metav1.ConditionFalse, enginev1alpha1.ReasonKeyMissing)
	h.create(h.backup("b", "1", "data"))
	h.startBackups()
	if got := h.expect("b", enginev1alpha1.VolumePhaseFailed); !strings.Contains(got.Status.Message, "KeyMissing: the message") {
		t.Errorf("the message is %q", got.Status.Message)
	}
	h.eventually(func() bool { return len(h.events.Events) > 0 }, func() string { return "there is no event" })
	if event := <-h.events.Events; !strings.Contains(event, "Warning VolumeUploadFailed") {
		t.Errorf("the event is %q", event)
	}
	if got := h.written(); !slices.Equal(got, []string{"Failed"}) {
		t.Errorf("written were %v", got)
	}
}

// TestRestartedAgent: what another process was in the middle of begins anew, but not for
// ever, what is done is left alone, and what had not begun is done.
func TestRestartedAgent(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	for name, status := range map[string]enginev1alpha1.VolumeUploadStatus{
		"begun":           {Phase: enginev1alpha1.VolumePhaseInProgress, Attempts: 2, Agent: "another", Progress: enginev1alpha1.VolumeProgress{BytesDone: 1}},
		"too-often":       {Phase: enginev1alpha1.VolumePhaseInProgress, Attempts: 3, Agent: "another"},
		"given-back":      {Phase: enginev1alpha1.VolumePhaseInProgress, Attempts: 9, GivenBack: 7, Agent: "another"},
		"given-too-often": {Phase: enginev1alpha1.VolumePhaseInProgress, Attempts: 20, GivenBack: 19, Agent: "another"},
		"done":            {Phase: enginev1alpha1.VolumePhaseCompleted, Attempts: 1},
		"new":             {Phase: enginev1alpha1.VolumePhaseNew},
	} {
		record := h.backup(name, types.UID(name), "data")
		record.Status = status
		h.create(record)
	}
	h.startBackups()
	if got := h.expect("begun", enginev1alpha1.VolumePhaseCompleted).Status; got.Attempts != 3 || got.Agent != "this agent" || got.SnapshotID == "" || got.Message != "" {
		t.Errorf("the status is %+v", got)
	}
	if got := h.expect("too-often", enginev1alpha1.VolumePhaseFailed).Status; !strings.Contains(got.Message, "restarted in the middle of it, 3 times") || got.CompletionTimestamp == nil {
		t.Errorf("the status is %+v", got)
	}
	if got := h.expect("given-back", enginev1alpha1.VolumePhaseCompleted).Status; got.Attempts != 10 || got.GivenBack != 7 {
		t.Errorf("the status is %+v", got)
	}
	if got := h.expect("given-too-often", enginev1alpha1.VolumePhaseFailed).Status; !strings.Contains(got.Message, "restarted in the middle of it, 20 times, and 19 times it was told to stop") {
		t.Errorf("the status is %+v", got)
	}
	if got := h.expect("new", enginev1alpha1.VolumePhaseCompleted).Status; got.Attempts != 1 {
		t.Errorf("the status is %+v", got)
	}
	if got := h.get("done"); got.Status.CompletionTimestamp != nil {
		t.Errorf("what was done became %+v", got.Status)
	}
	count := map[string]int{}
	for _, phase := range h.written() {
		count[phase]++
	}
	if want := map[string]int{"New": 2, "InProgress": 3, "Completed": 3, "Failed": 2}; !maps.Equal(count, want) {
		t.Errorf("the phases that were written are %v, want %v", count, want)
	}
}

// TestAgentsThatAreToldToStop: an attempt that ends because its agent is told to stop does not
// count. One that ends because the agent has lost its Lease does.
func TestAgentsThatAreToldToStop(t *testing.T) {
	for name, test := range map[string]struct {
		cause     error
		givenBack int32
		phase     enginev1alpha1.VolumePhase
	}{
		"told to stop": {context.Canceled, 4, enginev1alpha1.VolumePhaseCompleted}, "the Lease is lost": {lease.ErrLost, 0, enginev1alpha1.VolumePhaseFailed},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, clock.RealClock{})
			h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
			h.volume("data")
			h.create(h.backup("b", "1", "data"))
			for i := range 4 {
				ctx, lose := context.WithCancelCause(t.Context())
				h.process(ctx, fmt.Sprint("agent ", i))
				moving := make(chan struct{}, 1)
				h.startMove(func(ctx context.Context, _ *datapath.Progress) (result, error) {
					moving <- struct{}{}
					<-ctx.Done()
					return result{}, ctx.Err()
				})
				select {
				case <-moving:
				case <-time.After(time.Minute):
					t.Fatalf("it does not begin: %+v", h.get("b").Status)
				}
				lose(test.cause)
				h.stopMove()
				if got := h.get("b").Status; got.GivenBack != min(int32(i+1), test.givenBack) {
					t.Fatalf("after agent %d it is %+v", i, got)
				}
				if test.givenBack == 0 && i == 2 {
					break
				}
			}
			h.process(t.Context(), "the last agent")
			h.startMove(func(context.Context, *datapath.Progress) (result, error) { return result{Bytes: 5}, nil })
			h.expect("b", test.phase)
		})
	}
}

// TestPausedAgent: an agent that was paused writes no end into a record that another one
// has begun anew meanwhile.
func TestPausedAgent(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	moving, end := make(chan struct{}, 1), make(chan struct{})
	h.startMove(func(context.Context, *datapath.Progress) (result, error) {
		moving <- struct{}{}
		<-end
		return result{Bytes: 5}, nil
	})
	h.create(h.backup("b", "1", "data"))
	<-moving
	record := h.get("b").DeepCopy()
	record.Status.Agent, record.Status.Attempts = "another agent", 2
	_, err := h.engine.EngineV1alpha1().VolumeUploads(system).UpdateStatus(t.Context(), record, metav1.UpdateOptions{})
	must(t, err)
	end <- struct{}{}
	close(end)
	h.create(h.backup("next", "2", "data")) // is looked at after the end of the other
	h.expect("next", enginev1alpha1.VolumePhaseCompleted)
	if got := h.get("b").Status; got.Phase != enginev1alpha1.VolumePhaseInProgress || got.Agent != "another agent" || got.Progress.BytesDone != 0 {
		t.Errorf("the status is %+v", got)
	}
	if got := h.written(); !slices.Equal(got, []string{"InProgress", "InProgress", "InProgress", "Completed"}) {
		t.Errorf("written were %v", got) // the second is the other agent's
	}
}

// TestOrderAfterARestart: an agent that starts knows of all that waits before any of it
// begins, so that the runs take turns, and each one's first is the first, also where an
// agent before it was in the middle of that.
func TestOrderAfterARestart(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.manager.SetLimit(0)
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	for i, name := range []string{"a4", "a3", "a2", "b1", "a1"} {
		record := h.backup(name, types.UID(fmt.Sprint("uid-", i)), "data")
		record.Labels[enginev1alpha1.LabelRun] = name[:1]
		record.CreationTimestamp = metav1.Unix(int64(100-i), 0)
		if name == "a4" || name == "a3" { // of one second: the name decides, not the uid
			record.CreationTimestamp = metav1.Unix(100, 0)
		}
		if name == "b1" || name == "a3" { // of a snapshot: it takes a slot of the node as any other
			record.Spec.PersistentVolume, record.Spec.Holder = "pv-of-snapshot", types.UID("uid-of-holder-"+name)
		}
		if name == "a1" { // in the middle of it
			record.Status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress, Attempts: 1, Agent: "another"}
		}
		h.create(record)
	}
	calls := make(chan struct{})
	c := h.startMove(func(context.Context, *datapath.Progress) (result, error) {
		calls <- struct{}{}
		return result{}, nil
	})
	h.eventually(c.HasSynced, func() string { return "it does not know of all" })
	h.manager.SetLimit(1)
	for _, name := range []string{"a1", "b1", "a2", "a3", "a4"} {
		h.expect(name, enginev1alpha1.VolumePhaseInProgress)
		<-calls
		h.expect(name, enginev1alpha1.VolumePhaseCompleted)
	}
}

// TestRestoresTakeTurns: a restore of many volumes does not hold up another one's.
func TestRestoresTakeTurns(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.manager.SetLimit(0)
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	for i, name := range []string{"a1", "a2", "a3", "b1", "b2"} {
		_, err := h.engine.EngineV1alpha1().VolumeRestores(system).Create(t.Context(), &enginev1alpha1.VolumeRestore{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: system, Name: name, UID: types.UID(name), CreationTimestamp: metav1.Unix(int64(100+i), 0),
				Labels: map[string]string{enginev1alpha1.LabelNode: node, enginev1alpha1.LabelRestore: name[:1]},
			},
			Spec: enginev1alpha1.VolumeRestoreSpec{
				Node: node, Pod: enginev1alpha1.PodReference{Namespace: "app", Name: "web", UID: podUID}, Volume: "missing",
				BackupStorageLocation: "default", Repository: repo,
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	begun := make(chan string, 10)
	h.engine.Observe(func(action clienttesting.Action, obj runtime.Object) {
		if record, ok := obj.(*enginev1alpha1.VolumeRestore); ok && action.GetSubresource() == "status" && record.Status.Phase == enginev1alpha1.VolumePhaseInProgress {
			begun <- record.Name
		}
	})
	c, err := volumework.NewRestores(h.config, h.engine.EngineV1alpha1(), h.engine.EngineV1alpha1(), h.factory.Engine().V1alpha1().VolumeRestores())
	must(t, err)
	h.start(c.Run)
	h.eventually(c.HasSynced, func() string { return "it does not know of all" })
	h.manager.SetLimit(1) // each fails at once: there is no such volume
	for _, want := range []string{"a1", "b1", "a2", "b2", "a3"} {
		if got := <-begun; got != want {
			t.Errorf("%s has its turn, want %s", got, want)
		}
	}
}

// TestDeletedRecord: its work ends, and a record of the same name begins anew.
func TestDeletedRecord(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	type call struct {
		ctx context.Context
		end chan error
	}
	calls := make(chan call)
	h.startMove(func(ctx context.Context, _ *datapath.Progress) (result, error) {
		c := call{ctx, make(chan error)}
		calls <- c
		return result{}, <-c.end
	})

	h.create(h.backup("running", "1", "data"))
	first := <-calls
	h.create(h.backup("waiting", "2", "data"))
	h.eventually(func() bool { return h.manager.Load().Waiting[datapath.ClassBackup] == 1 }, func() string { return "the second does not wait" })
	h.remove("waiting")
	h.eventually(func() bool { return h.manager.Load().Waiting[datapath.ClassBackup] == 0 }, func() string { return "deleted work waits" })

	h.remove("running")
	<-first.ctx.Done()
	// The same name, while the work of the old record has not ended yet.
	h.create(h.backup("running", "3", "data"))
	first.end <- context.Canceled
	second := <-calls
	second.end <- nil
	h.expect("running", enginev1alpha1.VolumePhaseCompleted)
	h.eventually(func() bool { return h.manager.Load().Running[datapath.ClassBackup] == 0 }, func() string { return "work remains" })
}

// TestStoredForARecordThatIsGone: what nobody knows of is taken back, and nothing else.
func TestStoredForARecordThatIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(h *harness)
		undone    bool
	}{
		"it is there": {func(*harness) {}, false},
		"it is gone":  {func(h *harness) { h.remove("a") }, true},
		"another one": {func(h *harness) { h.remove("a"); h.create(h.backup("a", "2", "data")) }, true},
		"it is not known at first": {func(h *harness) {
			failures := 1
			h.engine.PrependReactor("get", "volumeuploads", func(clienttesting.Action) (bool, runtime.Object, error) {
				failures--
				return failures >= 0, nil, errors.New("no answer")
			})
			h.remove("a")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, clock.RealClock{})
			h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
			h.volume("data")
			ended := make(chan bool)
			var undone atomic.Int32
			h.startMove(func(context.Context, *datapath.Progress) (result, error) {
				if <-ended {
					c.meanwhile(h)
				}
				return result{Undo: func(context.Context) error { undone.Add(1); return nil }}, nil
			})
			h.create(h.backup("a", "1", "data"))
			ended <- true
			close(ended) // for another one
			h.eventually(func() bool { return h.manager.Load().Running[datapath.ClassBackup] == 0 }, func() string { return "work remains" })
			if got := undone.Load() == 1; got != c.undone {
				t.Errorf("it was taken back %d times", undone.Load())
			}
		})
	}
}

// TestLongMessage: what is too long for an event is cut, and says so.
func TestLongMessage(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	h.startMove(func(context.Context, *datapath.Progress) (result, error) {
		return result{}, errors.New(strings.Repeat("ä", 1000))
	})
	h.create(h.backup("b", "1", "data"))
	got := h.expect("b", enginev1alpha1.VolumePhaseFailed).Status.Message
	if len(got) > 1000 || !utf8.ValidString(got) || !strings.HasSuffix(got, "ä …") {
		t.Errorf("got %d bytes: %q", len(got), got)
	}
}

// TestTwoProcesses: of two that begin, one does the work.
func TestTwoProcesses(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	stolen := false
	h.refuse(func(record *enginev1alpha1.VolumeUpload) error {
		if !stolen && record.Status.Phase == enginev1alpha1.VolumePhaseInProgress {
			stolen = true
			return apierrors.NewConflict(enginev1alpha1.Resource("volumeuploads"), "b", errors.New("another process was faster"))
		}
		return nil
	})
	moved := make(chan struct{}, 10)
	h.startMove(func(context.Context, *datapath.Progress) (result, error) {
		moved <- struct{}{}
		return result{}, nil
	})
	h.create(h.backup("b", "1", "data"))
	h.expect("b", enginev1alpha1.VolumePhaseCompleted)
	if len(moved) != 1 {
		t.Errorf("the work was done %d times", len(moved))
	}
}

// TestWriteFails: an outcome outlives an API server that is away, and keeps no
// slot meanwhile.
func TestWriteFails(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	h.refuse(func(record *enginev1alpha1.VolumeUpload) error {
		if record.Name == "b" && record.Status.Phase.Done() {
			return errors.New("the API server is away")
		}
		return nil
	})
	moved := make(chan struct{}, 10)
	h.startMove(func(context.Context, *datapath.Progress) (result, error) {
		moved <- struct{}{}
		return result{Bytes: 5}, nil
	})
	h.create(h.backup("b", "1", "data"))
	h.create(h.backup("next", "2", "data"))
	h.expect("next", enginev1alpha1.VolumePhaseCompleted)

	// Someone else changes the record meanwhile.
	record := h.get("b").DeepCopy()
	record.Labels["someone"] = "else"
	_, err := h.engine.EngineV1alpha1().VolumeUploads(system).Update(t.Context(), record, metav1.UpdateOptions{})
	must(t, err)
	h.engine.Fault(nil)
	if got := h.expect("b", enginev1alpha1.VolumePhaseCompleted); got.Status.Progress.BytesDone != 5 {
		t.Errorf("the status is %+v", got.Status)
	}
	if len(moved) != 2 {
		t.Errorf("the work was done %d times", len(moved))
	}
}

// TestCancel: the record says that the work has stopped when it has, and not before.
func TestCancel(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	moving, told, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h.startMove(func(ctx context.Context, _ *datapath.Progress) (result, error) {
		close(moving)
		<-ctx.Done()
		close(told)
		<-stop
		return result{}, ctx.Err()
	})
	h.create(h.backup("runs", "1", "data"))
	<-moving
	h.create(h.backup("waits", "2", "data"))
	h.cancel("waits")
	h.expect("waits", enginev1alpha1.VolumePhaseFailed)
	h.cancel("runs")
	<-told
	if got := h.get("runs").Status.Phase; got != enginev1alpha1.VolumePhaseInProgress {
		t.Errorf("it is %s while it still works", got)
	}
	close(stop)
	if got := h.expect("runs", enginev1alpha1.VolumePhaseFailed).Status.Message; got != "it was cancelled" {
		t.Errorf("the message is %q", got)
	}
}

// TestHungMount: work that does not stop keeps no slot, and the volume is left alone
// until it has returned.
func TestHungMount(t *testing.T) {
	for name, tell := range map[string]func(*harness){
		"cancelled": func(h *harness) { h.cancel("hangs") }, "deleted": func(h *harness) { h.remove("hangs") },
	} {
		t.Run(name, func(t *testing.T) {
			fake := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
			h := newHarness(t, fake)
			h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
			h.volume("data")
			h.volume("other")
			moving, told, answer := make(chan struct{}), make(chan struct{}), make(chan struct{})
			var later atomic.Bool
			h.startMove(func(ctx context.Context, _ *datapath.Progress) (result, error) {
				if later.Swap(true) {
					return result{Bytes: 1}, nil
				}
				close(moving)
				<-ctx.Done()
				close(told)
				<-answer // as a read in uninterruptible sleep
				return result{}, ctx.Err()
			})
			h.create(h.backup("hangs", "1", "data"))
			<-moving
			h.create(h.backup("waits", "2", "other"))
			tell(h)
			<-told
			h.eventually(func() bool {
				fake.Step(10 * time.Second)
				return h.get("waits").Status.Phase == enginev1alpha1.VolumePhaseCompleted
			}, func() string { return "the slot was not given back" })
			if name == "cancelled" {
				h.eventually(func() bool { // a write that is repeated waits by this clock
					fake.Step(10 * time.Second)
					return h.get("hangs").Status.Phase.Done()
				}, func() string { return "it is not done" })
				if got := h.expect("hangs", enginev1alpha1.VolumePhaseFailed).Status.Message; !strings.Contains(got, "does the mount on node node-1 hang?") {
					t.Errorf("the message is %q", got)
				}
			}
			h.create(h.backup("again", "3", "data"))
			if got := h.expect("again", enginev1alpha1.VolumePhaseFailed).Status.Message; !strings.Contains(got, "has not returned since 2030-01-01T") {
				t.Errorf("the message is %q", got)
			}
			close(answer)
			for i := 0; ; i++ {
				name := fmt.Sprintf("later-%d", i)
				h.create(h.backup(name, types.UID(name), "data"))
				h.eventually(func() bool { return h.get(name).Status.Phase.Done() }, func() string { return "it is not done" })
				if h.get(name).Status.Phase == enginev1alpha1.VolumePhaseCompleted {
					break
				}
			}
		})
	}
}

// TestProgress: one write for each interval in which there was progress, and the intervals
// grow from a second to ten.
func TestProgress(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h := newHarness(t, fake)
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	dir := h.volume("data")
	must(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1000), 0o644))
	step, end := make(chan struct{}), make(chan struct{})
	h.startMove(func(ctx context.Context, p *datapath.Progress) (result, error) {
		for {
			select {
			case <-step:
				p.SetTotal(1000, 10)
				p.Add(100)
				p.AddFile()
				step <- struct{}{} // it counts
			case <-end:
				return result{Bytes: 1000}, nil
			case <-ctx.Done():
				return result{}, ctx.Err()
			}
		}
	})
	h.create(h.backup("b", "1", "data"))
	h.expect("b", enginev1alpha1.VolumePhaseInProgress)

	// The work begins after its timer.
	move := func() { step <- struct{}{}; <-step }
	written := []string{"InProgress"}
	for i, interval := range []time.Duration{1, 2, 4, 8, 10, 10} {
		move()
		if i > 0 {
			move() // it is still one write
		}
		fake.Step(interval*time.Second - time.Millisecond)
		time.Sleep(10 * time.Millisecond) // what comes too early would be written by now
		if got := h.written(); !slices.Equal(got, written) {
			t.Errorf("written were %v before %d s", got, interval)
		}
		fake.Step(time.Millisecond)
		done := int64(2*i + 1)
		want := enginev1alpha1.VolumeProgress{TotalBytes: max(1000, 100*done), BytesDone: 100 * done, TotalFiles: max(10, done), FilesDone: done}
		h.eventually(func() bool { return h.get("b").Status.Progress == want }, func() string {
			return fmt.Sprintf("the progress is %+v, want %+v", h.get("b").Status.Progress, want)
		})
		written = append(written, "InProgress")
	}
	for range 3 { // nothing changes any more, whenever these are heard
		fake.Step(10 * time.Second)
	}
	close(end)
	h.expect("b", enginev1alpha1.VolumePhaseCompleted)
	if got := h.written(); !slices.Equal(got, append(written, "Completed")) {
		t.Errorf("written were %v", got)
	}
}

// TestHolder: the files of a snapshot are read where another pod mounts it, and stored for the pod's own
// volume, or for a claim that no pod uses. The pod's own files are never taken for them.
func TestHolder(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	must(t, os.WriteFile(filepath.Join(h.volume("data"), "live"), []byte("changed since"), 0o640))
	snapshot := filepath.Join(h.podsDir, "uid-of-holder/volumes/example.com~folder/pv-of-snapshot")
	must(t, os.MkdirAll(snapshot, 0o755))
	must(t, os.WriteFile(filepath.Join(snapshot, "file"), []byte("cut"), 0o640))
	h.startBackups()
	of := func(name string, change func(*enginev1alpha1.VolumeUploadSpec)) *enginev1alpha1.VolumeUpload {
		record := h.backup(name, types.UID(name), "data")
		record.Spec.ClaimName, record.Spec.PersistentVolume, record.Spec.Holder = "claim", "pv-of-snapshot", "uid-of-holder"
		change(&record.Spec)
		h.create(record)
		return record
	}
	of("in-a-pod", func(*enginev1alpha1.VolumeUploadSpec) {})
	of("without-a-pod", func(spec *enginev1alpha1.VolumeUploadSpec) {
		spec.Pod.Name, spec.Pod.UID, spec.Volume = "", "", ""
	})
	for _, name := range []string{"in-a-pod", "without-a-pod"} {
		if got := h.expect(name, enginev1alpha1.VolumePhaseCompleted).Status; got.Path != snapshot || got.Progress.BytesDone != 3 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// An agent that does not know the field reads the pod's own volume, which it does not find.
	of("older", func(spec *enginev1alpha1.VolumeUploadSpec) { spec.Holder = "" })
	if got := h.expect("older", enginev1alpha1.VolumePhaseFailed).Status; !strings.Contains(got.Message, "pv-of-snapshot") {
		t.Errorf("older: %+v", got)
	}
}

// TestHostPath: a persistent volume that is a folder of the node goes there and back below a
// root, and nowhere else.
func TestHostPath(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	root, outside := t.TempDir(), t.TempDir()
	h.config.HostPathRoots = []string{root}
	h.volume("of-the-pod")
	for _, dir := range []string{filepath.Join(root, "from"), filepath.Join(root, "to"), filepath.Join(outside, "from")} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(root, "from/file"), []byte("content"), 0o640))
	must(t, os.Symlink(outside, filepath.Join(root, "link")))
	h.startBackups()
	h.startRestores()
	upload := func(name, path string) *enginev1alpha1.VolumeUpload {
		record := h.backup(name, types.UID(name), "data")
		record.Spec.PersistentVolume, record.Spec.HostPath = "pv", path
		h.create(record)
		return record
	}
	restore := func(name, path string) enginev1alpha1.VolumeRestoreStatus {
		records := h.engine.EngineV1alpha1().VolumeRestores(system)
		_, err := records.Create(t.Context(), &enginev1alpha1.VolumeRestore{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: types.UID(name)},
			Spec: enginev1alpha1.VolumeRestoreSpec{
				Node: node, Pod: enginev1alpha1.PodReference{Namespace: "app", Name: "web", UID: podUID}, Volume: "data", PersistentVolume: "pv", HostPath: path,
				BackupStorageLocation: "default", Repository: repo, SnapshotID: h.get("good").Status.SnapshotID,
			},
		}, metav1.CreateOptions{})
		must(t, err)
		var status enginev1alpha1.VolumeRestoreStatus
		h.eventually(func() bool {
			record, err := records.Get(t.Context(), name, metav1.GetOptions{})
			must(t, err)
			status = record.Status
			return status.Phase.Done()
		}, func() string { return fmt.Sprintf("%s is %+v", name, status) })
		return status
	}
	upload("good", root+"//from/")
	if got := h.expect("good", enginev1alpha1.VolumePhaseCompleted).Status; got.Progress.BytesDone != 7 {
		t.Errorf("the status is %+v", got)
	}
	if got := restore("back", filepath.Join(root, "to")); got.Phase != enginev1alpha1.VolumePhaseCompleted {
		t.Errorf("the restore is %+v", got)
	}
	if content, err := os.ReadFile(filepath.Join(root, "to/file")); err != nil || string(content) != "content" {
		t.Errorf("restored is %q, %v", content, err)
	}
	for name, test := range map[string]struct{ path, problem string }{
		"uncovered": {filepath.Join(outside, "from"), "not below the --host-path-roots of the agent of node node-1"},
		"above":     {filepath.Dir(root), "not below the --host-path-roots"},
		"back-out":  {root + "/../" + filepath.Base(outside), "not below the --host-path-roots"},
		"linked":    {filepath.Join(root, "link/from"), "symbolic link"},
	} {
		upload(name, test.path)
		if got := h.expect(name, enginev1alpha1.VolumePhaseFailed).Status.Message; !strings.Contains(got, test.problem) {
			t.Errorf("%s: the message is %q, want %q in it", name, got, test.problem)
		}
		if got := restore(name, test.path); got.Phase != enginev1alpha1.VolumePhaseFailed || !strings.Contains(got.Message, test.problem) {
			t.Errorf("%s: the restore is %+v, want %q in it", name, got, test.problem)
		}
	}
	left := h.backup("left", "left", "data")
	left.Spec.PersistentVolume, left.Spec.HostPath, left.Spec.Pod.UID = "pv", filepath.Join(root, "from"), "of-a-pod-that-has-left"
	h.create(left)
	if got := h.expect("left", enginev1alpha1.VolumePhaseFailed).Status.Message; !strings.Contains(got, "is it still running here?") {
		t.Errorf("of a pod that has left the message is %q", got)
	}
	if entries, err := os.ReadDir(filepath.Join(outside, "from")); err != nil || len(entries) != 0 {
		t.Errorf("outside there are %v, %v", entries, err)
	}
}

func TestBadInput(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	h.startBackups()
	escaping := h.backup("escaping", "1", "../../../etc")
	gone := h.backup("gone", "2", "data")
	gone.Spec.Pod.UID = "another pod"
	hostPath := h.backup("hostpath", "3", "host")
	for _, record := range []*enginev1alpha1.VolumeUpload{escaping, gone, hostPath} {
		h.create(record)
	}
	for name, want := range map[string]string{"escaping": "can't be the name of a folder", "gone": "no folder on this node", "hostpath": "hostPath"} {
		if got := h.expect(name, enginev1alpha1.VolumePhaseFailed); !strings.Contains(got.Status.Message, want) {
			t.Errorf("%s: the message is %q, want %q in it", name, got.Status.Message, want)
		}
	}
}

// TestProgressOfWhatIsGone: work stops when its record is gone by the answer to its progress,
// though the informer shows it still.
func TestProgressOfWhatIsGone(t *testing.T) {
	h := newHarness(t, clock.RealClock{})
	h.ready(metav1.ConditionTrue, enginev1alpha1.ReasonReady)
	h.volume("data")
	stopped := make(chan struct{})
	h.engine.Fault(func(action clienttesting.Action) enginetest.Fault {
		if update, ok := action.(clienttesting.UpdateActionImpl); ok {
			if record, ok := update.GetObject().(*enginev1alpha1.VolumeUpload); ok && record.Status.Progress.BytesDone > 0 {
				return enginetest.Fault{Err: apierrors.NewNotFound(enginev1alpha1.Resource("volumeuploads"), record.Name)}
			}
		}
		return enginetest.Fault{}
	})
	h.startMove(func(ctx context.Context, p *datapath.Progress) (result, error) {
		p.Add(1)
		<-ctx.Done()
		close(stopped)
		return result{}, ctx.Err()
	})
	h.create(h.backup("gone", "1", "data"))
	<-stopped
}
