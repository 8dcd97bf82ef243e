// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
)

// createRun adds a run that selects a namespace.
func (s *story) createRun(name, namespace string) {
	run := newRun(name, "")
	run.Status.Ticket = 0
	run.Spec.Backup.IncludedNamespaces = []string{namespace}
	s.mu.Lock()
	s.namespaces[name] = run.Spec.Backup.IncludedNamespaces
	s.mu.Unlock()
	s.Create(run)
}

// isExecuting reports whether a run is being executed.
func (s *story) isExecuting(name string) bool {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.executing[name] != nil
}

// checkWrites finds the writes that would replace what somebody else has written
// meanwhile.
func (s *story) checkWrites() {
	s.Helper()
	for _, resource := range []string{"backupruns", "configmaps"} {
		for _, action := range s.Writes(resource) {
			switch action := action.(type) {
			case clienttesting.UpdateActionImpl:
				object, err := meta.Accessor(action.GetObject())
				if err != nil {
					s.Fatal(err)
				}
				if object.GetResourceVersion() == "" {
					s.Fatalf("an update of %s %s carries no resourceVersion", resource, object.GetName())
				}
			case clienttesting.PatchActionImpl:
				s.Fatalf("a patch of %s %s", resource, action.GetName())
			}
		}
	}
}

// Pitfall 4: the record of a run is deleted that was let start and is not claimed
// yet. Its slot, and what it selects, are free as soon as the claim has failed.
func TestARecordThatIsRemovedBeforeItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t, 1)
		p := s.launch(func(p *process) { p.gate.claims = make(chan struct{}) })
		s.createRun("gone", "a")
		s.createRun("next", "a")
		synctest.Wait() // its claim is on its way
		if err := s.EngineV1alpha1().BackupRuns(system).Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if s.isExecuting("next") {
			t.Error("the next one runs before it is certain that the one before does not")
		}
		begin := time.Now()
		close(p.gate.claims)
		if !s.isExecuting("next") {
			t.Errorf("the next one does not run: %+v", s.runs())
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("it took %s, and not an event", waited)
		}
		if s.isExecuting("gone") {
			t.Error("a run without a record is executed")
		}
		p.kill()
		<-p.stopped
	})
}

// Pitfall 15: an end and a start follow each other without any time between, in the
// queue and the executor together. An event that came too early would leave a gap.
func TestADrainTakesNoTimeOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 30
		s := newStory(t, 2)
		p := s.launch()
		s.random = rand.New(rand.NewPCG(1, 1)) // of the order of ends, and of no delays
		begin := time.Now()
		for i := range n {
			s.createRun(fmt.Sprintf("run-%02d", i), []string{"a", "b", "c"}[i%3])
		}
		for range n {
			s.check()
			s.endOne()
		}
		s.check()
		for _, run := range s.runs() {
			if run.Status.Phase != done {
				t.Errorf("%s is %q", run.Name, run.Status.Phase)
			}
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("%d runs took %s of their own", n, waited)
		}
		p.kill()
		<-p.stopped
	})
}

// slowEngine is an API server that does not answer to writes of progress.
type slowEngine struct {
	engineclient.EngineV1alpha1Interface
}

func (e slowEngine) BackupRuns(namespace string) engineclient.BackupRunInterface {
	return slowRuns{e.EngineV1alpha1Interface.BackupRuns(namespace)}
}

type slowRuns struct {
	engineclient.BackupRunInterface
}

func (r slowRuns) UpdateStatus(ctx context.Context, run *enginev1alpha1.BackupRun, options metav1.UpdateOptions) (*enginev1alpha1.BackupRun, error) {
	if run.Status.Phase == running && run.Status.Volumes != nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return r.BackupRunInterface.UpdateStatus(ctx, run, options)
}

// Pitfall 31: nobody who works for a backup waits for the write of its progress,
// nor does its end.
func TestProgressHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backupOf{volumes: []string{"one", "two"}}
		h := newHarness(t, &work{execute: b.execute}, newRun("a", ready))
		h.engine = func(engine engineclient.EngineV1alpha1Interface) engineclient.EngineV1alpha1Interface {
			return slowEngine{engine}
		}
		h.start(1)
		h.report("one", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		time.Sleep(10 * progressInterval)
		h.expect("a", running, false)
		if h.run("a").Status.Volumes != nil {
			t.Fatal("the progress was written")
		}
		begin := time.Now()
		h.report("two", enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseCompleted})
		h.expect("a", v1alpha1.BackupPhaseCompleted, true)
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("the end waited %s for the progress", waited)
		}
	})
}
