// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulation runs the controllers of the queue through a few bad days: 10,000
// backups and restores of random namespaces and lengths, by processes that are killed, paused and
// doubled, over a network that loses and delays what they send. Only the engine's
// work is a fake. A referee sees every write as it is made, and judges it by the
// true state:
//
//  1. What is in the ledger and has not ended never overlaps, and is never more than
//     the limits; nor is what is really being read and written. So no restore runs beside
//     a backup of its namespaces.
//  2. Nothing overtakes what it overlaps and what its process knows to wait, but restores
//     overtake backups, and all overtake runs whose storage location is unavailable.
//  3. Tickets are given once, in order of creation, and only grow.
//  4. The ledger is written by the process that it names, and names one after the
//     other.
//  5. A run is executed by the process that the ledger names, by one at a time, and ends
//     once; nobody ends what another process still reads; what is stored stands. It
//     leaves the ledger when it has ended, is not executed, or was removed and is not
//     read any more.
//  6. All end. The queue has made two writes for each, and those that faults, leaders,
//     cancellations, stores that were away and ledgers that were deleted have cost. However a
//     store answers, a start is taken back as often as runs can start at once, each time that
//     the pause of its location is over.
//
// The seed decides on the story, and not on how goroutines take turns: a failure may
// take some tries to come back.
package simulation

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/test/story"
)

var (
	backups = flag.Int("simulation.backups", 10_000, "how many backups and restores there are")
)

const (
	system = "holdfast"
	limit  = 8
	// kept is how long the records of ended runs stay.
	kept = 10 * time.Second
	// stable and flaky are the storage locations.
	stable, flaky = "stable", "flaky"
	// restoreAttempts is by how many processes a restore is executed at most.
	restoreAttempts = 10
	// stuck is how long nothing may end while runs are left.
	stuck = 30 * time.Minute
)

// world is the cluster, what runs in it, and what happens to it.
type world struct {
	*testing.T
	*enginetest.Cluster
	seed      uint64
	random    *rand.Rand // the test's own goroutine's
	referee   *referee
	processes []*process
	launched  int
	created   int
	// script is what happens next.
	script []scene

	mu     sync.Mutex
	stored map[types.UID]v1alpha1.BackupPhase
	down   bool // of the flaky store
	// deaf is set while that answers checks and no runs, and foreign while it keeps no backups.
	deaf, foreign bool
	faults        float64
}

// Pitfalls 6, 10 and 12: whoever believes to lead, and however old what it sees is, no two
// runs overlap, none is executed twice, and no write replaces what another one has written
// meanwhile.
func TestSimulation(t *testing.T) {
	seed := story.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		if w.live() {
			w.rest()
		}
		w.stop()
		w.judge()
	})
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		T: t, Cluster: enginetest.New(), seed: seed, random: rand.New(rand.NewPCG(seed, 0)),
		referee: newReferee(), stored: map[types.UID]v1alpha1.BackupPhase{}, faults: fewFaults,
	}
	w.Observe(w.referee.observe)
	for _, name := range []string{stable, flaky} {
		w.createLocation(name)
	}
	w.processes = []*process{w.launch()}
	return w
}

// live lets things happen until all backups have been created and have ended, and
// reports whether they have.
func (w *world) live() bool {
	begin := time.Now()
	nextCreation, nextScene, nextMeddling := begin, begin.Add(time.Minute), begin
	for {
		now := time.Now()
		left := w.left()
		switch {
		case w.referee.violated():
			return false
		case w.created == *backups && left == 0:
			return true
		case now.Sub(w.referee.last()) > stuck && now.Sub(begin) > stuck:
			w.Errorf("nothing has ended for %s, and %d are left", stuck, left)
			w.dump()
			return false
		}
		if !now.Before(nextCreation) && w.created < *backups {
			nextCreation = now.Add(w.create())
		}
		if !now.Before(nextMeddling) {
			w.meddle()
			w.tidy()
			nextMeddling = now.Add(w.upTo(15 * time.Second))
		}
		if !now.Before(nextScene) {
			w.play()
			if len(w.script) == 0 {
				w.script = w.weather()
			}
			nextScene = time.Now().Add(w.script[0].after)
		}
		w.revive()
		w.ClearActions()
		w.Kube.ClearActions()
		next := nextScene
		if nextMeddling.Before(next) {
			next = nextMeddling
		}
		if nextCreation.Before(next) && w.created < *backups {
			next = nextCreation
		}
		time.Sleep(max(time.Until(next), 0) + w.upTo(time.Millisecond))
	}
}

// rest lets the world be well again, and one more backup run alone. What is left of
// the others is then cleaned up.
func (w *world) rest() {
	for len(w.script) > 0 {
		w.play()
	}
	w.setDown(false)
	w.setFaults(0)
	w.revive()
	// Until all know that the others have ended, and no write is on its way any more: a
	// start that is made before keeps the ones that it believes to run.
	time.Sleep(time.Minute)
	w.Create(w.newRun("last"))
	for begin := time.Now(); time.Since(begin) < stuck; {
		time.Sleep(time.Minute)
		w.revive()
	}
	if n := w.left(); n > 0 {
		w.Errorf("%d never ended", n)
		w.dump()
	}
}

// create creates a backup, or many at once, and returns when to do so again.
func (w *world) create() time.Duration {
	n, pause := 1, w.upTo(1500*time.Millisecond)
	if left := w.left(); left > 25 {
		return w.upTo(20 * time.Second)
	} else if left < 20 && w.random.IntN(100) == 0 {
		n, pause = 20+w.random.IntN(150), w.upTo(time.Minute)
	}
	for range min(n, *backups-w.created) {
		w.created++
		name := fmt.Sprintf("run-%05d-%d", w.random.IntN(100_000), w.created)
		if w.random.IntN(4) == 0 {
			w.Create(w.newRestore(name))
		} else {
			w.Create(w.newRun(name))
		}
	}
	return pause
}

// length is how long the work of a run takes.
func (w *world) length() string {
	length := time.Duration(w.random.ExpFloat64() * float64(5*time.Second))
	if w.random.IntN(200) == 0 {
		length = time.Minute + w.upTo(4*time.Minute)
	}
	return length.String()
}

func (w *world) newRestore(name string) *enginev1alpha1.RestoreRun {
	run := &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: format.StoreName(system, name, system)},
		Spec: enginev1alpha1.RestoreRunSpec{
			RestoreRef:    v1alpha1.BackupReference{Namespace: system, Name: name},
			Annotations:   map[string]string{lengthKey: w.length()},
			Backup:        enginev1alpha1.RestoreSource{RestoredBackup: v1alpha1.RestoredBackup{StorageLocation: stable}},
			ClusterScoped: w.random.IntN(40) == 0,
		},
	}
	if w.random.IntN(4) == 0 {
		run.Spec.Backup.StorageLocation = flaky
	}
	if w.random.IntN(500) > 0 { // else all
		for range 1 + w.random.IntN(3) {
			run.Spec.TargetNamespaces = append(run.Spec.TargetNamespaces, universe[w.random.IntN(len(universe))])
		}
	}
	return run
}

func (w *world) newRun(name string) *enginev1alpha1.BackupRun {
	run := &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: format.StoreName(system, name, system)},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef:   v1alpha1.BackupReference{Namespace: system, Name: name},
			Annotations: map[string]string{lengthKey: w.length()},
			Backup:      v1alpha1.BackupSpec{StorageLocation: stable},
		},
	}
	spec := &run.Spec.Backup
	if w.random.IntN(4) == 0 {
		spec.StorageLocation = flaky
	}
	if w.random.IntN(40) == 0 {
		yes := true
		spec.IncludeClusterResources = &yes
	}
	one := func() string { return universe[w.random.IntN(len(universe))] }
	switch kind := w.random.IntN(1000); {
	case kind < 2: // all
	case kind < 4:
		spec.IncludedNamespaces = []string{"*"}
	case kind < 8:
		spec.IncludedNamespaces, spec.ExcludedNamespaces = []string{"*"}, []string{"t[0-5]-*", one()}
	case kind < 12:
		spec.IncludedNamespaces = []string{"t[0"}
	case kind < 60:
		team := fmt.Sprintf("t%d-", w.random.IntN(8))
		spec.IncludedNamespaces, spec.ExcludedNamespaces = []string{team + "*"}, []string{team + "d*", one()}
	case kind < 90:
		spec.IncludedNamespaces = []string{[]string{"t?-ml", "t[0-3]-qa", "*-web"}[w.random.IntN(3)]}
	case kind < 110:
		spec.IncludedNamespaces = []string{"not-yet-*"}
	default:
		for range 1 + w.random.IntN(3) {
			spec.IncludedNamespaces = append(spec.IncludedNamespaces, one())
		}
	}
	return run
}

// meddle does something to a run that has not ended, or to the ledger's ConfigMap.
func (w *world) meddle() {
	w.Helper()
	picked := w.referee.pick(w.random)
	if picked == nil {
		return
	}
	act := w.random.IntN(8)
	change := func(run enginev1alpha1.QueuedRun) {
		asked := &enginev1alpha1.Ask{Requester: enginev1alpha1.Requester{Username: "jane"}, Timestamp: metav1.Now()}
		switch run := run.(type) {
		case *enginev1alpha1.BackupRun:
			run.Spec.Cancellation = asked
		case *enginev1alpha1.RestoreRun:
			run.Spec.Cancellation = asked
		}
	}
	if act == 3 {
		change = func(run enginev1alpha1.QueuedRun) {
			run.SetAnnotations(map[string]string{"touched": time.Now().String()})
		}
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		switch {
		case act == 2:
			configMaps := w.Kube.CoreV1().ConfigMaps(system)
			if w.random.IntN(4) == 0 {
				return configMaps.Delete(w.Context(), records.LedgerName, metav1.DeleteOptions{})
			}
			ledger, err := configMaps.Get(w.Context(), records.LedgerName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			metav1.SetMetaDataAnnotation(&ledger.ObjectMeta, "touched", time.Now().String())
			_, err = configMaps.Update(w.Context(), ledger, metav1.UpdateOptions{})
			return err
		case picked.restore:
			return meddleWith(w.Context(), w.EngineV1alpha1().RestoreRuns(system), picked.name, act < 2, change)
		}
		return meddleWith(w.Context(), w.EngineV1alpha1().BackupRuns(system), picked.name, act < 2, change)
	})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	if err == nil {
		w.referee.count([]string{deletedByHand, deletedByHand, touched, touched, cancelledRuns, cancelledRuns, cancelledRuns, cancelledRuns}[act], 1)
	}
}

// meddleWith deletes or changes a record.
func meddleWith[R enginev1alpha1.QueuedRun](ctx context.Context, runs interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (R, error)
	Update(ctx context.Context, run R, options metav1.UpdateOptions) (R, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}, name string, remove bool, change func(enginev1alpha1.QueuedRun),
) error {
	if remove {
		return runs.Delete(ctx, name, metav1.DeleteOptions{})
	}
	run, err := runs.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	change(run)
	_, err = runs.Update(ctx, run, metav1.UpdateOptions{})
	return err
}

// tidy removes the records that are kept for long, since nothing else tells of their
// runs.
func (w *world) tidy() {
	for _, name := range w.referee.takeLitter() {
		err := w.EngineV1alpha1().BackupRuns(system).Delete(w.Context(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			w.Fatal(err)
		}
	}
}

func (w *world) createLocation(name string) {
	w.Create(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}})
}

// checkLocation stands for a look at the store of a location.
func (p *process) checkLocation(_ context.Context, location *enginev1alpha1.StorageLocation) (metav1.Condition, string, *metav1.Condition) {
	p.awake()
	status := metav1.ConditionTrue
	if !p.world.reachable(location.Name) {
		status = metav1.ConditionFalse
	}
	return metav1.Condition{Type: enginev1alpha1.ConditionAvailable, Status: status, Reason: "Simulated"}, "", nil
}

// upTo is a random time.
func (w *world) upTo(most time.Duration) time.Duration {
	return time.Duration(w.random.Int64N(int64(most)))
}

// left is how many runs have not ended.
func (w *world) left() int {
	w.referee.mu.Lock()
	defer w.referee.mu.Unlock()
	return len(w.referee.left)
}

// stop ends all processes.
func (w *world) stop() {
	for _, p := range w.processes {
		p.resume()
		p.stop()
		<-p.stopped
	}
	synctest.Wait()
}
