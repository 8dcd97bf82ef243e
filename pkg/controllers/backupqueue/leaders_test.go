// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupqueue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubetesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// story is a random sequence of what happens to a queue: runs come, end and are
// removed, a store goes and comes back, informers lag, answers get lost.
type story struct {
	*harness
	random  *rand.Rand
	limit   int
	created int
	ranks   map[string]int
	release func()
}

var rank = map[v1alpha1.BackupPhase]int{isNew: 0, queued: 1, ready: 2, running: 3, ended: 4}

func (s *story) create() {
	namespaces := []string{"a", "b", "c", "d", "e"}
	s.random.Shuffle(len(namespaces), func(i, j int) { namespaces[i], namespaces[j] = namespaces[j], namespaces[i] })
	s.created++
	// Some are created in the same second, in another order than their names.
	run := newRun(fmt.Sprintf("run-%d-%d", s.random.IntN(9), s.created), s.created/3, namespaces[:1+s.random.IntN(2)]...)
	if s.random.IntN(4) == 0 {
		run.Spec.Backup.StorageLocation = "flaky"
	}
	s.Create(run)
}

func (s *story) step(watches []int) {
	phases := s.inPhases()
	switch active := append(phases[ready], phases[running]...); s.random.IntN(7) {
	case 0, 1:
		s.create()
	case 2, 3:
		if len(active) > 0 {
			s.end(active[s.random.IntN(len(active))])
		}
	case 4:
		if waiting := phases[queued]; len(waiting) > 0 {
			s.remove(waiting[s.random.IntN(len(waiting))])
		}
	case 5:
		s.setAvailable("flaky", []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse}[s.random.IntN(2)])
	case 6:
		if s.release != nil {
			s.release()
			s.release = nil
		} else {
			s.release = s.Hold(watches...)
		}
	}
}

// check compares the cluster with what must hold at every moment.
func (s *story) check() {
	s.Helper()
	list, err := s.EngineV1alpha1().BackupRuns(system).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var active []enginev1alpha1.BackupRun
	started := records.Started(s.settings())
	for _, run := range list.Items {
		phase := records.Phase(&run, started)
		if rank[phase] < s.ranks[run.Name] {
			s.Fatalf("%s went back to %q", run.Name, phase)
		}
		s.ranks[run.Name] = rank[phase]
		if phase == ready || phase == running {
			active = append(active, run)
		}
	}
	if len(active) > s.limit {
		s.Fatalf("%d run, the limit is %d", len(active), s.limit)
	}
	for i, a := range active {
		for _, b := range active[:i] {
			for _, namespace := range a.Spec.Backup.IncludedNamespaces {
				if slices.Contains(b.Spec.Backup.IncludedNamespaces, namespace) {
					s.Fatalf("%s and %s run at once, and both include %s", a.Name, b.Name, namespace)
				}
			}
		}
	}
}

// finish lets the world be well again until all runs have ended.
func (s *story) finish() {
	s.Helper()
	s.Fault(nil)
	if s.release != nil {
		s.release()
	}
	s.setAvailable("flaky", metav1.ConditionTrue)
	for range s.created + 1 {
		time.Sleep(backstop)
		synctest.Wait()
		s.check()
		phases := s.inPhases()
		for _, name := range phases[ready] {
			s.end(name)
		}
		if len(phases[isNew])+len(phases[queued])+len(phases[ready]) == 0 {
			return
		}
	}
	s.Fatalf("runs never started: %v", s.inPhases())
}

func tell(t *testing.T, seed uint64, leaders int) {
	const limit = 2
	h := newHarness(t, location("default", metav1.ConditionTrue), location("flaky", metav1.ConditionTrue))
	s := &story{harness: h, limit: limit, random: rand.New(rand.NewPCG(seed, 1)), ranks: map[string]int{}}
	for range 4 {
		s.create()
	}
	var last []int
	for range leaders {
		before := h.Watches()
		h.start(limit)
		last = nil
		for n := before + 1; n <= h.Watches(); n++ {
			last = append(last, n)
		}
	}
	faults := rand.New(rand.NewPCG(seed, 2)) // used under the fake's lock
	h.Fault(func(action kubetesting.Action) enginetest.Fault {
		run := written(action)
		if run == nil && writtenLedger(action) == nil || run != nil && rank[run.Status.Phase] > rank[ready] || faults.IntN(6) > 0 {
			return enginetest.Fault{}
		}
		return enginetest.Fault{Err: errors.New("the connection broke"), Lost: faults.IntN(2) == 0}
	})
	for range 60 {
		s.step(last)
		time.Sleep(time.Duration(s.random.IntN(50)) * time.Millisecond)
		synctest.Wait()
		s.check()
	}
	s.finish()
}

// Pitfall 6: however many lead, there is one queue.
func TestLeadersNeverRunTooManyNorWhatOverlaps(t *testing.T) {
	for _, leaders := range []int{1, 2, 3} {
		for seed := range uint64(15) {
			t.Run(fmt.Sprintf("%d leaders, %d", leaders, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { tell(t, seed, leaders) })
			})
		}
	}
}
