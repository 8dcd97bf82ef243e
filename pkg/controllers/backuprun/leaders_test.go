// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// story is a random sequence of what happens to a cluster with several controllers,
// each of which believes that it leads: runs are created, end, are cancelled and
// deleted by hand; processes are paused for minutes and killed; answers get lost,
// stores go away, and the ledger is deleted.
type story struct {
	*testing.T
	*enginetest.Cluster
	seed      uint64
	random    *rand.Rand
	limit     int
	processes []*process
	named     int // processes so far
	created   int
	paused    *process
	release   func()
	// stopping is how long an execution takes to stop.
	stopping time.Duration

	mu sync.Mutex
	// namespaces are what the runs select, by name.
	namespaces map[string][]string
	// executing are the executions under way, by run.
	executing map[string]*underWay
	// executors are the processes that have executed each run.
	executors map[string][]string
	reachable bool
}

type underWay struct {
	by  *process
	end context.CancelFunc
}

func (s *story) create() {
	namespaces := []string{"a", "b", "c", "d", "e"}
	s.random.Shuffle(len(namespaces), func(i, j int) { namespaces[i], namespaces[j] = namespaces[j], namespaces[i] })
	s.created++
	run := newRun(fmt.Sprintf("run-%d", s.created), "")
	run.CreationTimestamp = metav1.Now()
	run.Spec.Backup.IncludedNamespaces = namespaces[:1+s.random.IntN(2)]
	run.Status.Ticket = 0
	s.mu.Lock()
	s.namespaces[run.Name] = run.Spec.Backup.IncludedNamespaces
	s.mu.Unlock()
	s.Create(run)
}

func (s *story) step() {
	switch s.random.IntN(14) {
	case 0, 1, 2:
		s.create()
	case 3, 4, 5:
		s.endOne()
	case 6:
		s.change(func(run *enginev1alpha1.BackupRun) error {
			return s.EngineV1alpha1().BackupRuns(system).Delete(s.Context(), run.Name, metav1.DeleteOptions{})
		})
	case 7:
		s.change(func(run *enginev1alpha1.BackupRun) error {
			run.Spec.Cancellation = &enginev1alpha1.Ask{Timestamp: metav1.Now()}
			_, err := s.EngineV1alpha1().BackupRuns(system).Update(s.Context(), run, metav1.UpdateOptions{})
			return err
		})
	case 8, 9:
		if s.paused == nil {
			s.pause(s.processes[s.random.IntN(len(s.processes))])
		} else {
			s.resume()
		}
	case 10:
		if dying := s.processes[s.random.IntN(len(s.processes))]; dying != s.paused {
			dying.kill()
		}
	case 11:
		s.mu.Lock()
		s.reachable = !s.reachable
		s.mu.Unlock()
		s.setAvailable()
	case 12:
		if s.random.IntN(3) == 0 {
			if err := s.Kube.CoreV1().ConfigMaps(system).Delete(s.Context(), records.SettingsName, metav1.DeleteOptions{}); err != nil {
				s.Log(err) // gone already
			}
		}
	case 13:
		time.Sleep([]time.Duration{time.Second, 12 * time.Second, 3 * time.Minute}[s.random.IntN(3)])
	}
}

// change does something to a run that has not ended.
func (s *story) change(do func(*enginev1alpha1.BackupRun) error) {
	s.Helper()
	var live []enginev1alpha1.BackupRun
	for _, run := range s.runs() {
		if !run.Status.Phase.Ended() {
			live = append(live, run)
		}
	}
	if len(live) > 0 {
		if err := do(&live[s.random.IntN(len(live))]); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *story) runs() []enginev1alpha1.BackupRun {
	s.Helper()
	list, err := s.EngineV1alpha1().BackupRuns(system).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return list.Items
}

func (s *story) endOne() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if names := slices.Sorted(maps.Keys(s.executing)); len(names) > 0 {
		s.executing[names[s.random.IntN(len(names))]].end()
	}
}

func (s *story) pause(p *process) {
	p.gate.close()
	s.paused, s.release = p, s.Hold(p.watches...)
}

func (s *story) resume() {
	s.release()
	s.paused.gate.open()
	s.paused = nil
}

// setAvailable brings the location's condition up to date.
func (s *story) setAvailable() {
	s.Helper()
	locations := s.EngineV1alpha1().StorageLocations(system)
	location, err := locations.Get(s.Context(), "default", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.mu.Lock()
	status := metav1.ConditionFalse
	if s.reachable {
		status = metav1.ConditionTrue
	}
	s.mu.Unlock()
	location.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: status}}
	if _, err := locations.UpdateStatus(s.Context(), location, metav1.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// check compares the cluster with what must hold at every moment.
func (s *story) check() {
	s.Helper()
	synctest.Wait()
	settings, err := s.Kube.CoreV1().ConfigMaps(system).Get(s.Context(), records.SettingsName, metav1.GetOptions{})
	if err != nil {
		settings = nil // deleted a moment ago
	}
	started := records.Started(settings)
	var active []string
	for _, run := range s.runs() {
		if phase := records.Phase(&run, started); phase == ready || phase == running {
			active = append(active, run.Name)
		}
	}
	s.checkTogether("by the records", active)

	s.mu.Lock()
	defer s.mu.Unlock()
	var executing []string
	for name, under := range s.executing {
		// One that wakes up too late reads on until it notices.
		if under.by != s.paused && !under.by.isGone() {
			executing = append(executing, name)
		}
	}
	s.checkTogetherLocked("really", executing)
	for name, processes := range s.executors {
		if len(processes) > 1 {
			s.Fatalf("%s was executed by %q", name, processes)
		}
	}
}

func (s *story) checkTogether(how string, names []string) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkTogetherLocked(how, names)
}

func (s *story) checkTogetherLocked(how string, names []string) {
	s.Helper()
	if len(names) > s.limit {
		s.Fatalf("%q run at once, %s", names, how)
	}
	for i, a := range names {
		for _, b := range names[:i] {
			for _, namespace := range s.namespaces[a] {
				if slices.Contains(s.namespaces[b], namespace) {
					s.Fatalf("%s and %s run at once, %s, and both include %s", a, b, how, namespace)
				}
			}
		}
	}
}

// finish lets the world be well again until all runs have ended.
func (s *story) finish() {
	s.Helper()
	s.Fault(nil)
	if s.paused != nil {
		s.resume()
	}
	s.mu.Lock()
	s.reachable = true
	s.mu.Unlock()
	s.setAvailable()
	for range 3*s.created + 10 {
		s.revive()
		s.check()
		left := 0
		for _, run := range s.runs() {
			if !run.Status.Phase.Ended() {
				left++
			}
		}
		if left == 0 {
			return
		}
		s.endOne()
		time.Sleep(time.Minute)
	}
	settings, _ := s.Kube.CoreV1().ConfigMaps(system).Get(s.Context(), records.SettingsName, metav1.GetOptions{})
	for _, run := range s.runs() {
		if !run.Status.Phase.Ended() {
			s.Errorf("%s is %q by %q: %+v", run.Name, run.Status.Phase, run.Status.Executor, run.Status)
		}
	}
	s.Fatalf("runs never ended; the settings are %v", settings)
}

// revive puts a new process in the place of each one that has ended.
func (s *story) revive() {
	for i, p := range s.processes {
		select {
		case <-p.stopped:
			s.processes[i] = s.launch()
		default:
		}
	}
}

func newStory(t *testing.T, limit int) *story {
	s := &story{
		T: t, Cluster: enginetest.New(), limit: limit,
		namespaces: map[string][]string{}, executing: map[string]*underWay{}, executors: map[string][]string{}, reachable: true,
	}
	s.Create(&enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}})
	s.setAvailable()
	return s
}

func tell(t *testing.T, seed uint64, processes int) {
	s := newStory(t, 2)
	s.seed, s.random = seed, rand.New(rand.NewPCG(seed, 1))
	s.stopping = time.Duration(s.random.IntN(8)) * time.Second
	for range processes {
		s.processes = append(s.processes, s.launch())
	}
	faults := rand.New(rand.NewPCG(seed, 2)) // used under the fake's lock
	s.Fault(func(action clienttesting.Action) enginetest.Fault {
		switch action.GetVerb() {
		case "list", "watch", "delete":
			return enginetest.Fault{}
		}
		if run := written(action); run != nil && action.GetSubresource() == "" || action.GetResource().Resource == "storagelocations" || faults.IntN(20) > 0 {
			return enginetest.Fault{} // what the test itself does
		}
		return enginetest.Fault{Err: errors.New("the connection broke"), Lost: action.GetVerb() != "get" && faults.IntN(2) == 0}
	})
	for range 80 {
		s.step()
		time.Sleep(time.Duration(s.random.IntN(2000)) * time.Millisecond)
		s.check()
		s.revive()
	}
	s.finish()
	s.checkWrites()
	for _, p := range s.processes {
		p.kill()
		<-p.stopped
	}
}

// Pitfalls 6 and 10: however many lead, no two runs overlap, none is executed twice,
// and no write replaces what another one has written meanwhile.
func TestControllersThatAllBelieveToLead(t *testing.T) {
	for _, processes := range []int{1, 2, 3} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%d processes, %d", processes, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { tell(t, seed, processes) })
			})
		}
	}
}

// Pitfall 6: a process was about to claim a run when it was paused. Another one
// took the start over, put it back since the store did not answer, and let another
// run have the slot. Then the claim arrives.
func TestAClaimThatWasHeldBackForMinutesFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t, 1)
		location := &enginev1alpha1.StorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "up"}}
		location.Status.Conditions = []metav1.Condition{{Type: enginev1alpha1.ConditionAvailable, Status: metav1.ConditionTrue}}
		s.Create(location)
		paused := s.launch(func(p *process) { p.gate.claims = make(chan struct{}) })
		claims := paused.gate.claims
		first, second := newRun("first", ""), newRun("second", "")
		first.Status.Ticket, second.Status.Ticket = 0, 0
		first.Spec.Backup.IncludedNamespaces, second.Spec.Backup.IncludedNamespaces = []string{"a"}, []string{"b"}
		second.Spec.Backup.StorageLocation = "up"
		s.Create(first)
		synctest.Wait() // its claim is on its way
		s.pause(paused)
		s.mu.Lock()
		s.reachable = false
		s.mu.Unlock()
		other := s.launch()
		time.Sleep(time.Minute)
		s.Create(second)
		time.Sleep(time.Minute)
		s.mu.Lock()
		executing := s.executing["second"]
		s.mu.Unlock()
		if executing == nil || executing.by != other {
			t.Fatalf("the second run is not executed by %s: %+v", other.name, s.runs())
		}
		s.resume()
		close(claims)
		time.Sleep(time.Second)
		s.check()
		for _, run := range s.runs() {
			if run.Name == "first" && (run.Status.Phase != queued || run.Status.Returned == 0) {
				t.Errorf("the claim was let pass: %+v", run.Status)
			}
		}
		if processes := s.executors["first"]; len(processes) > 0 {
			t.Errorf("it was executed by %q", processes)
		}
		<-paused.stopped
		other.kill()
		<-other.stopped
	})
}

// A claim was held back while the ledger was lost and made anew without the run: it
// goes back to its place, and is not executed until it is let start again.
func TestAClaimThatTheLedgerDoesNotKnowGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, &work{}, newRun("a", ready))
		run := h.run("a")
		claims := 0
		h.Fault(func(action clienttesting.Action) enginetest.Fault {
			if written := written(action); written != nil && written.Status.Phase == running {
				if claims++; claims > 1 {
					return enginetest.Fault{}
				}
				settings, err := h.Kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), system, records.SettingsName)
				if err != nil {
					t.Error(err)
					return enginetest.Fault{}
				}
				anew, err := records.WithLedger(settings.(*corev1.ConfigMap), nil)
				if err != nil {
					t.Error(err)
				}
				anew.ResourceVersion = "1000"
				if err := h.Kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), anew, system); err != nil {
					t.Error(err)
				}
			}
			return enginetest.Fault{}
		})
		h.start(1)
		h.expect("a", queued, false)
		h.expectExecuted()
		if status := h.run("a").Status; status.Returned != 1 || status.Executor != "" || status.StartTimestamp != nil || status.Expiration != nil || status.Ticket != run.Status.Ticket {
			t.Errorf("it went back as %+v", status)
		}
		if told := h.announced(); len(told) > 0 {
			t.Errorf("people were told %q", told)
		}
		h.Kube.ClearActions()
		h.Fault(nil)
		h.writeLedger(records.Start{UID: run.UID, Name: "a", By: identity})
		h.expect("a", v1alpha1.BackupPhaseCompleted, true)
		h.expectExecuted("a")
	})
}

// Reach, Execute, Abandon and DiscardSnapshots make a process an executor.
func (p *process) Reach(_ context.Context, run *enginev1alpha1.BackupRun) error {
	p.story.mu.Lock()
	defer p.story.mu.Unlock()
	if !p.story.reachable && run.Spec.Backup.StorageLocation == "default" {
		return errBroken
	}
	return nil
}

func (p *process) Execute(ctx context.Context, run *enginev1alpha1.BackupRun, _ backup.Volumes, _ *backup.Progress) (backup.Outcome, error) {
	s := p.story
	if ctx.Err() != nil {
		return failed(ctx.Err()), ctx.Err()
	}
	over, end := context.WithCancel(context.Background())
	defer end()
	s.mu.Lock()
	s.executing[run.Name] = &underWay{by: p, end: end}
	if !slices.Contains(s.executors[run.Name], p.name) {
		s.executors[run.Name] = append(s.executors[run.Name], p.name)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.executing, run.Name)
	}()
	select {
	case <-over.Done():
		return stored(v1alpha1.BackupPhaseCompleted), nil
	case <-ctx.Done():
		time.Sleep(p.story.stopping) // it takes its time
		return failed(ctx.Err()), ctx.Err()
	}
}

func (p *process) Abandon(_ context.Context, _ *enginev1alpha1.BackupRun, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
	return abandoned(phase, reason), nil
}

func (p *process) DiscardSnapshots(context.Context, *enginev1alpha1.BackupRun, string) error {
	return nil
}
