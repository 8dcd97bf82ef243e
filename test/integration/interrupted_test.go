// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	crand "crypto/rand"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/test/integration/labtest"
	"github.com/holdfast-io/holdfast/test/story"
)

var agentKills = flag.Int("integration.agent-kills", 6, "how often TestAgentKilledAgainAndAgain kills the agent at least, half of that in the middle of uploads")

// attemptsOfVolumes is how often an agent begins the same work at most.
const attemptsOfVolumes = 3

// TestAgentKilledAgainAndAgain kills an agent at random moments of uploads, their commits
// among them, and of restores: each volume ends Completed, with all that its files have, or
// Failed after the stated attempts, which it says; nothing seems to have failed in between,
// no snapshot is left that nobody knows of, and the next work begins at once.
func TestAgentKilledAgainAndAgain(t *testing.T) {
	seed := story.Seed(t)
	c := &agentCampaign{random: rand.New(rand.NewPCG(seed, seed)), dead: map[string]bool{}}
	for range 3 {
		namespace := lab.Namespace(t, "struck")
		pod, folder := lab.PodWithClaim(t, namespace, labtest.Node)
		fill(t, folder)
		c.volumes = append(c.volumes, &struckVolume{namespace: namespace, pod: pod, folder: folder})
	}
	kills := 0
	for kills < *agentKills/2 {
		kills += c.uploads(t, *agentKills/2-kills)
	}
	for kills = 0; kills < *agentKills/2; {
		kills += c.restores(t, *agentKills/2-kills)
	}
	// No slot is lost.
	labtest.Eventually(t, "the agent to have nothing to do", func() error {
		agent, err := lab.Holdfast.HoldfastV1alpha1().NodeAgents().Get(t.Context(), labtest.Node, metav1.GetOptions{})
		if none := (v1alpha1.VolumeCounts{}); err == nil && (agent.Status.Running != none || agent.Status.Waiting != none) {
			err = fmt.Errorf("%+v", agent.Status)
		}
		return err
	})
}

// struckVolume is one that an agent moves that is killed.
type struckVolume struct {
	namespace, folder string
	pod               *corev1.Pod
}

func (v *struckVolume) persistentVolume() string { return v.namespace + "-data" }

type agentCampaign struct {
	random  *rand.Rand
	volumes []*struckVolume
	// dead are the agents that were killed.
	dead map[string]bool
}

// change gives the volumes new contents.
func (c *agentCampaign) change(t *testing.T) {
	t.Helper()
	for _, v := range c.volumes {
		bulk(t, v.folder, 40<<20)
	}
}

// bulk puts so many bytes into a folder, in large and in small files, that no earlier upload
// has stored.
func bulk(t *testing.T, folder string, size int) {
	t.Helper()
	const large, small = 3, 300
	content := make([]byte, size/(large+1))
	for i := range large + small {
		part := content
		if i >= large {
			part = content[:1+len(content)*(i%7)/small/4]
		}
		_, _ = crand.Read(part) // it never fails
		folder := filepath.Join(folder, "bulk", fmt.Sprint(i%17))
		// Kopia takes a file of the same size and time for the same one.
		file, when := filepath.Join(folder, fmt.Sprint(i)), time.Now().AddDate(0, 0, -i)
		if err := errors.Join(os.MkdirAll(folder, 0o750), os.WriteFile(file, part, 0o640), os.Chtimes(file, when, when), os.Chtimes(folder, when, when)); err != nil {
			t.Fatal(err)
		}
	}
}

// uploads backs the volumes up while the agent is killed, and returns how often it was.
func (c *agentCampaign) uploads(t *testing.T, most int) (kills int) {
	t.Helper()
	c.change(t)
	var namespaces []string
	for _, v := range c.volumes {
		namespaces = append(namespaces, v.namespace)
	}
	uploads := lab.Engine.EngineV1alpha1().VolumeUploads(labtest.System)
	seen := watchWork(t, uploads.Watch, len(c.volumes), func(object runtime.Object) (string, sighting) {
		record := object.(*enginev1alpha1.VolumeUpload)
		return record.Spec.Pod.Namespace, sightingOfUpload(record)
	})
	backup := lab.Create(t, labtest.System, labtest.Name("struck"), v1alpha1.BackupSpec{IncludedNamespaces: namespaces, DefaultVolumesToFsBackup: new(true)})
	kills = c.kill(t, seen, most, func(namespace string) bool {
		// With such a file an upload is committed, and its record does not say so yet. While it
		// is written it has another name.
		written, _ := filepath.Glob(filepath.Join(lab.Dir, "store", "kopia", namespace, "x", "*", "*.f"))
		for _, file := range written {
			if info, err := os.Stat(file); err == nil && info.ModTime().After(seen.beganAt(namespace)) {
				return true
			}
		}
		return false
	})
	ended := lab.AwaitPhase(t, labtest.System, backup.Name, v1alpha1.BackupPhaseCompleted, v1alpha1.BackupPhasePartiallyFailed)
	failed := seen.check(t)
	if volumes := ended.Status.Volumes; volumes == nil || int(volumes.Completed) != len(c.volumes)-len(failed) || int(volumes.Failed) != len(failed) {
		t.Errorf("%s ended with volumes %+v, of which failed %v", backup.Name, volumes, failed)
	}
	for _, v := range c.volumes {
		// What the last attempt has stored of a failed one goes with the backup.
		if n := snapshots(t, v.namespace, backup.UID); !failed[v.namespace] && n != 1 || n > 1 {
			t.Errorf("of %s there are %d snapshots, and its upload is %+v", v.namespace, n, seen.last(v.namespace))
		}
	}
	lab.AwaitRunGone(t, backup.Name)
	if _, stderr, err := ask(t, labtest.System, backup.Name, "deletion", "BackupDeletion"); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	gone(t, backup.Name)
	for _, v := range c.volumes {
		sweep(t, v.namespace)
		if n := snapshots(t, v.namespace, backup.UID); n != 0 {
			t.Errorf("of %s there are %d snapshots after the backup's deletion", v.namespace, n)
		}
	}
	return kills
}

// restores brings the volumes back while the agent is killed, and returns how often it was.
func (c *agentCampaign) restores(t *testing.T, most int) (kills int) {
	t.Helper()
	var namespaces []string
	before := map[string]map[string]string{}
	c.change(t)
	for _, v := range c.volumes {
		namespaces = append(namespaces, v.namespace)
		before[v.namespace] = tree(t, v.folder)
	}
	backup := lab.Create(t, labtest.System, labtest.Name("whole"), v1alpha1.BackupSpec{IncludedNamespaces: namespaces, DefaultVolumesToFsBackup: new(true)})
	lab.AwaitCompleted(t, backup.Name)
	lab.AwaitRunGone(t, backup.Name)
	snapshotOf := map[string]string{}
	for _, v := range c.volumes {
		snapshotOf[v.namespace] = volumeHistory(t, v.namespace, backup.Name).Status.SnapshotID
		empty(t, v.folder)
	}

	restores := lab.Engine.EngineV1alpha1().VolumeRestores(labtest.System)
	seen := watchWork(t, restores.Watch, len(c.volumes), func(object runtime.Object) (string, sighting) {
		record := object.(*enginev1alpha1.VolumeRestore)
		return record.Spec.Pod.Namespace, sightingOfRestore(record)
	})
	folders := map[string]string{}
	for _, v := range c.volumes {
		folders[v.namespace] = v.folder
		createRestore(t, "default", v.pod, v.persistentVolume(), snapshotOf[v.namespace])
	}
	enough := c.random.IntN(300)
	kills = c.kill(t, seen, most, func(namespace string) bool {
		written, _ := filepath.Glob(filepath.Join(folders[namespace], "bulk", "*", "*"))
		return len(written) > enough
	})
	failed := seen.check(t)
	for _, v := range c.volumes {
		if failed[v.namespace] { // over what is there
			restore(t, v.pod, v.persistentVolume(), snapshotOf[v.namespace])
		}
		if diff := cmp.Diff(before[v.namespace], tree(t, v.folder)); diff != "" {
			t.Errorf("what came back to %s after %+v differs (-before +after):\n%s", v.namespace, seen.last(v.namespace), diff)
		}
	}
	return kills
}

// kill kills the agent while it works, so often at most, until all work has ended. Every
// other time it is at the moment that a step of the work is visible.
func (c *agentCampaign) kill(t *testing.T, seen *witness, most int, visible func(namespace string) bool) (kills int) {
	t.Helper()
	for {
		var working string
		labtest.Eventually(t, "the agent to work, or all to end", func() error {
			var err error
			working, err = seen.working(c.dead, kills < most)
			return err
		})
		if working == "" {
			return kills
		}
		if kills%2 == 0 {
			time.Sleep(time.Duration(c.random.IntN(700)) * time.Millisecond) // any moment
		} else {
			for seen.last(working).phase == enginev1alpha1.VolumePhaseInProgress && !visible(working) {
				time.Sleep(time.Millisecond)
			}
		}
		c.dead[seen.last(working).agent] = true
		lab.Kill(t, labtest.Agent)
		lab.Start(t, labtest.Agent)
		kills++
	}
}

// createRestore asks for a restore.
func createRestore(t *testing.T, location string, pod *corev1.Pod, persistentVolume, snapshot string) *enginev1alpha1.VolumeRestore {
	t.Helper()
	record, err := lab.Engine.EngineV1alpha1().VolumeRestores(labtest.System).Create(t.Context(), restoreOf(location, pod, persistentVolume, snapshot), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return record
}

// sighting is what a record of volume work said at some time.
type sighting struct {
	phase    enginev1alpha1.VolumePhase
	attempts int32
	agent    string
	message  string
	snapshot string
}

func sightingOfUpload(record *enginev1alpha1.VolumeUpload) sighting {
	s := record.Status
	return sighting{s.Phase, s.Attempts, s.Agent, s.Message, s.SnapshotID}
}

func sightingOfRestore(record *enginev1alpha1.VolumeRestore) sighting {
	s := record.Status
	return sighting{s.Phase, s.Attempts, s.Agent, s.Message, record.Spec.SnapshotID}
}

// witness sees every version of the records of volume work.
type witness struct {
	want int // so many records

	mu    sync.Mutex
	seen  map[string][]sighting // by the volume's namespace
	began map[string]time.Time  // the last time
}

// watchWork watches what records are created from now on.
func watchWork(t *testing.T, open func(context.Context, metav1.ListOptions) (watch.Interface, error), want int, describe func(runtime.Object) (namespace string, now sighting)) *witness {
	t.Helper()
	w := &witness{want: want, seen: map[string][]sighting{}, began: map[string]time.Time{}}
	since := time.Now().Truncate(time.Second)
	watching, err := open(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watching.ResultChan() {
			object, ok := event.Object.(metav1.Object)
			if !ok || event.Type == watch.Deleted || object.GetCreationTimestamp().Time.Before(since) {
				continue
			}
			w.see(describe(event.Object))
		}
	}()
	t.Cleanup(func() { watching.Stop(); <-done })
	return w
}

func (w *witness) see(namespace string, now sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.phase == enginev1alpha1.VolumePhaseInProgress && w.lastLocked(namespace).agent != now.agent {
		w.began[namespace] = time.Now()
	}
	w.seen[namespace] = append(w.seen[namespace], now)
}

func (w *witness) beganAt(namespace string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.began[namespace]
}

func (w *witness) last(namespace string) sighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lastLocked(namespace)
}

func (w *witness) lastLocked(namespace string) sighting {
	if versions := w.seen[namespace]; len(versions) > 0 {
		return versions[len(versions)-1]
	}
	return sighting{}
}

// working is the volume that an agent moves that was not killed, if that is wanted, and
// none if all have ended.
func (w *witness) working(dead map[string]bool, wanted bool) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended := 0
	for namespace := range w.seen {
		switch last := w.lastLocked(namespace); {
		case last.phase.Done():
			ended++
		case wanted && last.phase == enginev1alpha1.VolumePhaseInProgress && !dead[last.agent]:
			return namespace, nil
		}
	}
	if ended < w.want {
		return "", fmt.Errorf("of %d have ended %d", w.want, ended)
	}
	return "", nil
}

// check checks what became of each volume, and returns those that failed.
func (w *witness) check(t *testing.T) (failed map[string]bool) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	failed = map[string]bool{}
	for namespace, versions := range w.seen {
		var story strings.Builder
		right := true
		before := sighting{}
		for _, now := range versions {
			fmt.Fprintf(&story, "\n%+v", now)
			switch {
			case now.phase == before.phase:
				right = right && now.attempts == before.attempts && now.agent == before.agent
			case now.phase == enginev1alpha1.VolumePhaseInProgress:
				right = right && !before.phase.Done() && now.attempts == before.attempts+1 && now.agent != before.agent
			case now.phase == enginev1alpha1.VolumePhaseNew || now.phase == "":
				right = right && (before.phase == "" || before.phase == enginev1alpha1.VolumePhaseInProgress && before.attempts < attemptsOfVolumes)
			case now.phase == enginev1alpha1.VolumePhaseCompleted:
				right = right && before.phase == enginev1alpha1.VolumePhaseInProgress && now.agent == before.agent
			case now.phase == enginev1alpha1.VolumePhaseFailed:
				failed[namespace] = true
				right = right && before.phase == enginev1alpha1.VolumePhaseInProgress && before.attempts == attemptsOfVolumes &&
					strings.Contains(now.message, fmt.Sprintf("restarted in the middle of it, %d times", attemptsOfVolumes))
			}
			before = now
		}
		if !right || !before.phase.Done() {
			t.Errorf("the work on %s was%s", namespace, &story)
		}
		t.Logf("%s is %s after %d attempts", namespace, before.phase, before.attempts)
	}
	return failed
}
