// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

func volumeOf(volume string) *format.Volume {
	return &format.Volume{
		Pod:       enginev1alpha1.PodReference{Namespace: "shop", Name: "web", UID: types.UID("uid-of-web")},
		Node:      "node-1",
		Name:      volume,
		ClaimName: "claim-of-" + volume, ClaimUID: types.UID("uid-of-claim"), PersistentVolume: "pv-of-" + volume, HostPath: "/of/" + volume,
		Hooked: volume == "dump",
	}
}

// backupOf executes a run that hands over some volumes and waits for them.
type backupOf struct {
	volumes []string
	// results is set when the execution has ended.
	results []*format.Volume
	err     error
}

func (b *backupOf) execute(ctx context.Context, _ *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
	var submitted []*format.Volume
	for _, name := range b.volumes {
		volume := volumeOf(name)
		if b.err = volumes.Submit(ctx, volume); b.err != nil {
			return stored(v1alpha1.BackupPhasePartiallyFailed), nil
		}
		submitted = append(submitted, volume)
	}
	if b.err = volumes.Wait(ctx, submitted); b.err == nil {
		b.results = submitted
	}
	return stored(done), b.err
}

// uploads returns the records that agents see, by volume.
func (h *harness) uploads() map[string]*enginev1alpha1.VolumeUpload {
	h.Helper()
	synctest.Wait()
	list, err := h.EngineV1alpha1().VolumeUploads(system).List(h.Context(), metav1.ListOptions{})
	if err != nil {
		h.Fatal(err)
	}
	byVolume := map[string]*enginev1alpha1.VolumeUpload{}
	for i := range list.Items {
		byVolume[list.Items[i].Spec.Volume] = &list.Items[i]
	}
	return byVolume
}

// report writes a status as the agent does.
func (h *harness) report(volume string, status enginev1alpha1.VolumeUploadStatus) {
	h.Helper()
	record := h.uploads()[volume]
	record.Status = status
	if _, err := h.EngineV1alpha1().VolumeUploads(system).UpdateStatus(h.Context(), record, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) removeUpload(volume string) {
	h.Helper()
	if err := h.EngineV1alpha1().VolumeUploads(system).Delete(h.Context(), h.uploads()[volume].Name, metav1.DeleteOptions{}); err != nil {
		h.Fatal(err)
	}
}

func TestVolumesAreHandedToTheirNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: (&backupOf{volumes: []string{"data", "dump"}}).execute}, newRun("a", ready))
		h.start(1)
		record := h.uploads()["data"]
		if record == nil {
			t.Fatal("there is no record")
		}
		want := enginev1alpha1.VolumeUploadSpec{
			Node: "node-1", Pod: enginev1alpha1.PodReference{Namespace: "shop", Name: "web", UID: "uid-of-web"},
			Volume: "data", ClaimName: "claim-of-data", ClaimUID: "uid-of-claim", PersistentVolume: "pv-of-data", HostPath: "/of/data",
			BackupStorageLocation: "default", Repository: "shop.default", StoreName: "a", ClusterUID: "cluster",
		}
		if record.Spec != want {
			t.Errorf("spec: %+v\nwant  %+v", record.Spec, want)
		}
		if record.Labels[enginev1alpha1.LabelRun] != "uid-of-a" || record.Labels[enginev1alpha1.LabelNode] != "node-1" {
			t.Errorf("labels: %v", record.Labels)
		}
		for volume, record := range h.uploads() {
			if hooked := record.Labels[enginev1alpha1.LabelHooked] != ""; hooked != (volume == "dump") {
				t.Errorf("hooks are about %s: %t", volume, hooked)
			}
		}
		if owner := metav1.GetControllerOf(record); owner == nil || owner.UID != "uid-of-a" || owner.Kind != "BackupRun" {
			t.Errorf("owner: %v", owner)
		}
		asked := 0
		for _, action := range h.Actions() {
			if action.Matches("get", "volumerepositories") {
				asked++
			}
		}
		if asked != 1 {
			t.Errorf("%d looks for the record of the repository of both", asked)
		}
		if _, err := h.EngineV1alpha1().VolumeRepositories(system).Get(t.Context(), "shop.default", metav1.GetOptions{}); err != nil {
			t.Errorf("the repository was not asked for: %v", err)
		}
	})
}

func TestVolumesEndOneWayOrTheOther(t *testing.T) {
	completed := enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted, SnapshotID: "k1"}
	cases := map[string]struct {
		agent   func(*harness)
		phase   enginev1alpha1.VolumePhase
		message string
		after   time.Duration
	}{
		"completed": {
			agent: func(h *harness) { h.report("data", completed) },
			phase: enginev1alpha1.VolumePhaseCompleted,
		},
		"failed": {
			agent: func(h *harness) {
				h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
				h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "no space"})
			},
			phase: enginev1alpha1.VolumePhaseFailed, message: "no space",
		},
		"deleted": {
			agent: func(h *harness) { h.removeUpload("data") },
			phase: enginev1alpha1.VolumePhaseFailed, message: "was deleted before its upload had ended",
		},
		"completed, and deleted at once": {
			agent: func(h *harness) {
				release := h.Hold()
				h.report("data", completed)
				h.removeUpload("data")
				release()
			},
			phase: enginev1alpha1.VolumePhaseCompleted,
		},
		"without an agent": {
			agent: func(h *harness) { h.agents.leave("node-1"); time.Sleep(agentTimeout) },
			phase: enginev1alpha1.VolumePhaseFailed, message: `node "node-1" has had no agent for 5m0s`, after: agentTimeout,
		},
		"its agent goes": {
			agent: func(h *harness) {
				h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
				h.agents.leave("node-1")
				time.Sleep(agentTimeout)
			},
			phase: enginev1alpha1.VolumePhaseFailed, message: `node "node-1" has had no agent for 5m0s`, after: agentTimeout,
		},
		"its node goes": {
			agent: func(h *harness) {
				h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
				h.agents.remove("node-1")
			},
			phase: enginev1alpha1.VolumePhaseFailed, message: `the node "node-1" does not exist any more`,
		},
		"too slow": { // from its start
			agent: func(h *harness) {
				for range 7 {
					time.Sleep(volumeTimeout / 6)
					synctest.Wait()
					if len(h.uploads()) > 0 {
						h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
					}
				}
			},
			phase: enginev1alpha1.VolumePhaseFailed, message: "was not uploaded within 1h0m0s", after: volumeTimeout + volumeTimeout/6,
		},
		"behind others, and then nothing happens": {
			agent: func(h *harness) {
				for i := range 5 {
					other := &enginev1alpha1.VolumeUpload{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: fmt.Sprint("other-", i)}}
					other.Spec.Node, other.Spec.Volume = "node-1", fmt.Sprint("other-", i)
					h.Create(other)
					h.report(other.Spec.Volume, enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
					time.Sleep(volumeTimeout - time.Minute)
					h.report(other.Spec.Volume, enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
					h.expect("a", running, false)
					h.removeUpload(other.Spec.Volume)
				}
				h.report("data", enginev1alpha1.VolumeUploadStatus{Message: "waits for VolumeRepository shop.default"})
				time.Sleep(volumeTimeout)
			},
			phase: enginev1alpha1.VolumePhaseFailed, after: 6*volumeTimeout - 5*time.Minute,
			message: `the agent of node "node-1" has begun and ended no other one for 1h0m0s: it waits for VolumeRepository shop.default`,
		},
		"behind restores, and then nothing happens": {
			agent: func(h *harness) {
				for range 3 {
					h.agents.Saw("node-1", "a restore", true, true, time.Now())
					time.Sleep(volumeTimeout + time.Minute)
					h.expect("a", running, false)
					h.agents.Saw("node-1", "a restore", false, true, time.Now())
				}
				time.Sleep(volumeTimeout)
			},
			phase: enginev1alpha1.VolumePhaseFailed, after: 4*volumeTimeout + 3*time.Minute,
			message: `the agent of node "node-1" has begun and ended no other one for 1h0m0s`,
		},
		"behind one that nobody ends": {
			agent: func(h *harness) {
				h.agents.Saw("node-1", "a restore", true, true, time.Now())
				time.Sleep(2*volumeTimeout + agentTimeout)
			},
			phase: enginev1alpha1.VolumePhaseFailed, after: 2*volumeTimeout + agentTimeout,
			message: `the agent of node "node-1" has begun and ended no other one for 2h5m0s`,
		},
		"as long as a backup may take": {
			agent: func(h *harness) {
				for range 9 {
					h.agents.Saw("node-1", "a restore", true, true, time.Now())
					time.Sleep(volumeTimeout + time.Minute)
					h.expect("a", running, false)
					h.agents.Saw("node-1", "a restore", false, true, time.Now())
				}
				time.Sleep(volumeTimeout - 9*time.Minute)
			},
			phase: enginev1alpha1.VolumePhaseFailed, after: 10 * volumeTimeout,
			message: "the backup has taken 10h0m0s, which is as long as one may",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backupOf{volumes: []string{"data"}}
				h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
				h.start(1)
				h.expect("a", running, false)
				begin := time.Now()
				c.agent(h)
				h.expect("a", done, true)
				if waited := time.Since(begin); waited != c.after {
					t.Errorf("it ended after %s, want %s", waited, c.after)
				}
				if len(b.results) != 1 {
					t.Fatalf("results: %+v", b.results)
				}
				if status := b.results[0].Status; status.Phase != c.phase || !strings.Contains(status.Message, c.message) {
					t.Errorf("it is %s with the message %q, want %s and %q", status.Phase, status.Message, c.phase, c.message)
				}
				if left := h.uploads(); len(left) != 0 {
					t.Errorf("records are left: %v", left)
				}
			})
		})
	}
}

// A volume over its time is stopped while its run goes on, so that those have their turn
// that wait for its slot: none of them is given up at the same moment.
func TestAVolumeOverItsTimeGivesItsSlotBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backupOf{volumes: []string{"slow", "next", "last"}}
		h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
		conflicts := 2 // the agent writes to the record, too
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("update", "volumeuploads") && action.GetSubresource() == "" && conflicts > 0 {
				conflicts--
				return enginetest.Fault{Err: apierrors.NewConflict(v1alpha1.Resource("volumeuploads"), "slow", errors.New("it was changed"))}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		h.report("slow", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
		time.Sleep(volumeTimeout + 2*volumeCheck)
		if slow := h.uploads()["slow"]; !slow.Spec.Cancel || slow.Status.Phase != enginev1alpha1.VolumePhaseFailed {
			t.Fatalf("after its time its agent was told nothing: %+v", slow)
		}
		for _, volume := range []string{"next", "last"} {
			h.report(volume, enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
			time.Sleep(volumeTimeout - time.Minute)
			h.report(volume, enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		}
		h.expect("a", done, true)
		var got []string
		for _, result := range b.results {
			got = append(got, result.Name+" "+string(result.Status.Phase)+" "+result.Status.Message)
		}
		want := []string{"slow Failed the volume was not uploaded within 1h0m0s after its upload had begun: let --pod-volume-timeout of the controller be longer", "next Completed ", "last Completed "}
		if !slices.Equal(got, want) {
			t.Errorf("results: %q, want %q", got, want)
		}
	})
}

// A volume whose agent went away in the middle of it is given up, and read no more when that
// is back: it finds it cancelled.
func TestAVolumeGivenUpIsCancelledForItsAgent(t *testing.T) {
	for name, goes := range map[string]func(h *harness){
		"the agent": func(h *harness) { h.agents.leave("node-1") },
		"the node":  func(h *harness) { h.agents.remove("node-1") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				data, end := backupOf{volumes: []string{"data"}}, make(chan struct{})
				h := newHarness(t, &work{execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
					outcome, err := data.execute(ctx, run, volumes)
					<-end // there are others
					return outcome, err
				}}, newRun("a", ready))
				h.start(1)
				h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
				goes(h)
				time.Sleep(agentTimeout + volumeCheck)
				if record := h.uploads()["data"]; record == nil || !record.Spec.Cancel || record.Status.Phase != enginev1alpha1.VolumePhaseInProgress {
					t.Errorf("its agent finds %+v", record)
				}
				close(end)
				synctest.Wait()
				if len(data.results) != 1 || data.results[0].Status.Phase != enginev1alpha1.VolumePhaseFailed {
					t.Errorf("the backup has %+v", data.results)
				}
			})
		})
	}
}

// Pitfall 21: a run that is cancelled holds its slot and its namespaces until its
// uploads have stopped, which their agents say; what has not begun never will.
func TestASlotIsFreeWhenTheUploadsHaveStopped(t *testing.T) {
	for name, stop := range map[string]func(*harness){
		"the agent says so": func(h *harness) { h.tellStopped(h.uploads()["data"]) },
		"the agent is gone": func(h *harness) { h.agents.leave("node-1"); time.Sleep(agentTimeout + recheck) },
		"the node is gone":  func(h *harness) { h.agents.remove("node-1"); time.Sleep(recheck) },
	} {
		for who, prepare := range map[string]func(t *testing.T) *harness{
			"this process": func(t *testing.T) *harness {
				h := newHarness(t, &work{execute: func(ctx context.Context, run *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
					_, err := (&backupOf{volumes: []string{"data", "waits"}}).execute(ctx, run, volumes)
					return failed(err), err
				}}, newRun("a", ready))
				h.stubborn = true
				h.start(1)
				h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
				h.Cancel("a")
				return h
			},
			"one before": func(t *testing.T) *harness {
				run := newRun("a", running)
				run.Spec.Cancellation = &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}}
				h := newHarness(t, &work{}, run)
				for volume, phase := range map[string]enginev1alpha1.VolumePhase{"data": enginev1alpha1.VolumePhaseInProgress, "waits": ""} {
					record := newUpload(volume, run, "shop")
					record.Status.Phase = phase
					h.Create(record)
				}
				h.stubborn = true
				h.start(1)
				return h
			},
		} {
			t.Run(name+", by "+who, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := prepare(t)
					time.Sleep(time.Hour)
					h.expect("a", running, false)
					left := h.uploads()
					if len(left) != 1 || !left["data"].Spec.Cancel {
						t.Fatalf("left are %v", left)
					}
					stop(h)
					time.Sleep(recheck)
					h.expectCancelled("a", true)
					if left := h.uploads(); len(left) != 0 {
						t.Errorf("left are %v", left)
					}
				})
			})
		}
	}
}

// Nor is it free when somebody removes the record of an upload, or of the run, which takes
// those of its uploads along: no record says any more when the agents have stopped.
func TestASlotIsFreeWhenUploadsWithoutRecordsHaveStopped(t *testing.T) {
	removeRun := func(h *harness) {
		if err := h.EngineV1alpha1().BackupRuns(system).Delete(h.Context(), "a", metav1.DeleteOptions{}); err != nil {
			h.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		remove func(*harness)
		begun  bool
		after  time.Duration
	}{
		"the upload":                   {func(h *harness) { h.removeUpload("data") }, true, lease.HungAfter},
		"the upload, and then the run": {func(h *harness) { h.removeUpload("data"); removeRun(h) }, true, lease.HungAfter},
		"the run, and then the upload": {func(h *harness) {
			release := h.Hold() // nobody hears of it at once
			removeRun(h)
			h.removeUpload("data")
			release()
		}, true, lease.HungAfter},
		"after it was given up":         {func(h *harness) { time.Sleep(volumeTimeout); synctest.Wait(); h.removeUpload("data") }, true, lease.HungAfter},
		"the upload, and its node goes": {func(h *harness) { h.removeUpload("data"); h.agents.remove("node-1") }, true, 0},
		"one that has not begun":        {func(h *harness) { h.removeUpload("data") }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, &work{execute: (&backupOf{volumes: []string{"data"}}).execute}, newRun("a", ready))
				h.stubborn = true
				h.start(1)
				if c.begun {
					h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
				}
				c.remove(h)
				if c.after > 0 {
					time.Sleep(c.after - time.Second)
					synctest.Wait()
					if h.controller.Executing()["a"] == nil {
						t.Fatal("it has ended, and its agent may read")
					}
				}
				time.Sleep(time.Second + recheck)
				synctest.Wait()
				if h.controller.Executing()["a"] != nil {
					t.Errorf("it has not ended %s after the record was removed", c.after+recheck)
				}
			})
		})
	}
}

// A record that is gone although no watch has said so holds a slot no longer than one whose
// removal was heard of.
func TestAnUploadOfWhichNobodyHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{})
		h.start(1)
		v := &volumes{c: h.controller, uploads: map[string]*upload{"data": {volume: &format.Volume{Node: "node-1"}}}}
		if v.leftAlone() {
			t.Error("nobody has said that its agent does not read")
		}
		time.Sleep(lease.HungAfter)
		if !v.leftAlone() {
			t.Errorf("the slot is held %s later", lease.HungAfter)
		}
	})
}

// If somebody does not let the uploads be stopped, the run ends all the same, and they
// with it: their records go.
func TestUploadsThatMayNotBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: uploading(t, backup.Outcome{}, nil, "shop")}, newRun("a", ready))
		h.start(1)
		h.report("data", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress})
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("update", "volumeuploads") {
				return enginetest.Fault{Err: apierrors.NewForbidden(v1alpha1.Resource("volumeuploads"), "data", errors.New("a policy denies it"))}
			}
			return enginetest.Fault{}
		})
		h.Cancel("a")
		h.expectCancelled("a", true)
		if left := h.uploads(); len(left) != 0 {
			t.Errorf("uploads go on: %v", left)
		}
		h.expectSnapshotsRemoved("a shop")
	})
}

// People are told before the volumes are given up.
func TestAnAbsentAgentIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backupOf{volumes: []string{"data", "logs"}}
		h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
		h.start(1)
		h.Told()
		h.agents.leave("node-1")
		time.Sleep(agentTimeout / 2)
		synctest.Wait()
		if told := h.Told(); len(told) != 1 || !strings.Contains(told[0], "Warning AgentAbsent The volumes on node node-1 wait for its agent, of which nothing was seen for 1m40s; they are given up after 5m0s") {
			t.Errorf("people were told %q", told)
		}
		if absent := h.Run("a").Status.AbsentAgents; !slices.Equal(absent, []string{"node-1"}) {
			t.Errorf("the run says %q", absent)
		}
		time.Sleep(agentTimeout)
		synctest.Wait()
		h.expect("a", done, true)
		if absent := h.Run("a").Status.AbsentAgents; len(absent) != 0 {
			t.Errorf("after its end, the run says %q", absent)
		}
	})
}

// Pitfall 21: a run is in progress, and holds its namespaces, until its last volume is
// read.
func TestEachVolumeIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backupOf{volumes: []string{"one", "two", "three"}}
		h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
		h.start(1)
		h.report("three", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		h.report("one", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed})
		h.expect("a", running, false)
		h.report("two", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		h.expect("a", done, true)
		var got []string
		for _, result := range b.results {
			got = append(got, result.Name+" "+string(result.Status.Phase))
		}
		if want := []string{"one Failed", "two Completed", "three Completed"}; !slices.Equal(got, want) {
			t.Errorf("results: %q, want %q", got, want)
		}
	})
}

// Pitfall 31: one write every 5 seconds, and none while nothing changes. Others may change
// the run meanwhile.
func TestTheProgressOfVolumesIsWrittenNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{execute: (&backupOf{volumes: []string{"data", "logs"}}).execute}, newRun("a", ready))
		h.start(1)
		theirs := h.Run("a")
		theirs.Annotations = map[string]string{"note": "mine"}
		h.Update(theirs)
		for i := range int64(150) { // an agent that reports every 100 ms
			h.report("data", enginev1alpha1.VolumeUploadStatus{
				Phase:    enginev1alpha1.VolumePhaseInProgress,
				Progress: enginev1alpha1.VolumeProgress{TotalBytes: 1500, BytesDone: 10 * (i + 1)},
			})
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Hour / 2) // nothing changes
		synctest.Wait()
		want := v1alpha1.BackupVolumesProgress{Total: 2, TotalBytes: 1500, BytesDone: 1500}
		if got := h.Run("a"); got.Status.Volumes == nil || *got.Status.Volumes != want || got.Annotations["note"] != "mine" {
			t.Errorf("progress: %+v, want %+v; annotations %v", got.Status.Volumes, want, got.Annotations)
		}
		if writes := h.writes("a"); writes < 5 || writes > 6 { // the claim, theirs, and one every 5 s of 15, of which one meets theirs
			t.Errorf("%d writes", writes)
		}
	})
}

// A volume that is read through another pod, since one has failed, counts once.
func TestAVolumeThatIsReadThroughAnotherPodCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		execute := func(ctx context.Context, _ *enginev1alpha1.BackupRun, volumes backup.Volumes) (backup.Outcome, error) {
			first, second := volumeOf("first"), volumeOf("second")
			err := volumes.Submit(ctx, first)
			if err == nil {
				err = volumes.Wait(ctx, []*format.Volume{first})
			}
			if second.Instead = first; err == nil {
				err = volumes.Submit(ctx, second)
			}
			if err == nil {
				err = volumes.Wait(ctx, []*format.Volume{second})
			}
			return stored(done), err
		}
		h := newHarness(t, &work{execute: execute}, newRun("a", ready))
		h.start(1)
		h.report("first", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Progress: enginev1alpha1.VolumeProgress{TotalBytes: 9, BytesDone: 3}})
		h.report("second", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseInProgress, Progress: enginev1alpha1.VolumeProgress{TotalBytes: 9, BytesDone: 4}})
		time.Sleep(time.Minute)
		synctest.Wait()
		want := v1alpha1.BackupVolumesProgress{Total: 1, TotalBytes: 9, BytesDone: 4}
		if got := h.Run("a").Status.Volumes; got == nil || *got != want {
			t.Errorf("progress: %+v, want %+v", got, want)
		}
		h.report("second", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		h.expect("a", done, true)
	})
}

func TestAVolumeThatCannotBeHandedOver(t *testing.T) {
	type how struct {
		resource string
		lost     bool
	}
	enginetest.Each(t, map[string]how{
		"refused":                             {resource: "volumeuploads"},
		"handed over, but the answer is lost": {resource: "volumeuploads", lost: true},
		"without a repository":                {resource: "volumerepositories"},
	}, func(t *testing.T, c how) {
		b := &backupOf{volumes: []string{"data"}}
		h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.Matches("create", c.resource) {
				return enginetest.Fault{Err: errBroken, Lost: c.lost}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		h.expect("a", v1alpha1.BackupPhasePartiallyFailed, true)
		if !errors.Is(b.err, errBroken) || c.resource == "volumeuploads" && !strings.Contains(b.err.Error(), "volume data of pod shop/web") {
			t.Errorf("Submit: %v", b.err)
		}
		if left := h.uploads(); len(left) != 0 {
			t.Errorf("an upload goes on after the end of its backup: %v", left)
		}
	})
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backupOf{volumes: []string{"data"}}
		h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
		h.start(1)
		h.expect("a", running, false)
		h.stop()
		<-h.stopped
		if !errors.Is(b.err, context.Canceled) {
			t.Errorf("Wait: %v", b.err)
		}
		if len(h.uploads()) != 1 { // the next process stops them
			t.Error("the upload was stopped")
		}
	})
}
