// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

const node = "node-1"

func holdNode(t *testing.T, leases coordinationclient.LeaseInterface, identity string) *process {
	t.Helper()
	return holdNodeSaying(t, leases, identity, func() string { return "" })
}

func holdNodeSaying(t *testing.T, leases coordinationclient.LeaseInterface, identity string, status func() string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{began: make(chan struct{}), end: cancel, ended: make(chan error, 1)}
	go func() {
		p.ended <- lease.HoldNode(ctx, leases, node, identity, clock.RealClock{}, status, func(ctx context.Context) error {
			p.working = ctx
			close(p.began)
			<-ctx.Done()
			return nil
		})
	}()
	<-p.began
	return p
}

// watchAgents is what a controller knows of the nodes.
func watchAgents(t *testing.T, cluster *enginetest.Cluster) *lease.Agents {
	t.Helper()
	// What has not changed is shown again and again, and never when something else happens.
	factory := informers.NewSharedInformerFactory(cluster.Kube, 61*time.Second)
	agents, err := lease.NewAgents(factory.Coordination().V1().Leases().Informer(), factory.Core().V1().Nodes().Informer(), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	if agents.HasSynced() {
		t.Fatal("it has synced before it began")
	}
	factory.StartWithContext(t.Context())
	t.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(t.Context().Done())
	synctest.Wait()
	if !agents.HasSynced() {
		t.Fatal("it has not synced")
	}
	return agents
}

func TestAnAgentIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		agents := watchAgents(t, cluster)
		begin := time.Now()
		p := holdNode(t, leases, "first")
		for range 30 {
			time.Sleep(time.Minute)
			synctest.Wait()
			if absence := agents.Absence(node, begin); absence > time.Minute {
				t.Fatalf("it works, and was not seen for %s", absence)
			}
		}
		if absence := agents.Absence("another", begin); absence != 30*time.Minute {
			t.Errorf("an agent that never was is absent for %s", absence)
		}
		if absence := agents.Absence("another", time.Now()); absence != 0 {
			t.Errorf("what was just handed over has waited for %s", absence)
		}
		p.end()
		if err := <-p.ended; err != nil {
			t.Error(err)
		}
		if _, err := leases.Get(t.Context(), lease.AgentLease(node), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("its Lease is still there: %v", err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if absence := agents.Absence(node, begin); absence < 10*time.Minute || absence > 11*time.Minute {
			t.Errorf("it is absent for %s", absence)
		}
		if absence := watchAgents(t, cluster).Absence(node, begin); absence != 0 {
			t.Errorf("to a process that has just begun it is absent for %s", absence)
		}
	})
}

// An agent has stopped before a controller may take it for absent.
func TestAnAgentStopsBeforeItIsAbsent(t *testing.T) {
	for name, fault := range map[string]enginetest.Fault{
		"refused": {Err: errors.New("the connection broke")}, "answers are lost": {Err: errors.New("the connection broke"), Lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, leases := setUp()
				agents := watchAgents(t, cluster)
				p := holdNode(t, leases, "first")
				time.Sleep(time.Minute)
				cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
					if action.Matches("update", "leases") {
						return fault
					}
					return enginetest.Fault{}
				})
				begin := time.Now()
				for p.working.Err() == nil {
					if absence := agents.Absence(node, begin); absence >= lease.MinAgentTimeout {
						t.Fatalf("it works, and was not seen for %s", absence)
					}
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
				}
				if err := <-p.ended; !errors.Is(err, lease.ErrLost) {
					t.Errorf("it ended with %v", err)
				}
			})
		})
	}
}

// The agent that comes last has the node. The one before notices.
func TestAnAgentTakesItsNodeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		first := holdNode(t, leases, "first")
		second := holdNode(t, leases, "second")
		time.Sleep(time.Minute)
		first.expectStopped(t, true)
		if err := <-first.ended; !errors.Is(err, lease.ErrLost) {
			t.Errorf("it ended with %v", err)
		}
		second.expectStopped(t, false)
		held, err := leases.Get(t.Context(), lease.AgentLease(node), metav1.GetOptions{})
		if err != nil || *held.Spec.HolderIdentity != "second" {
			t.Errorf("the Lease is %v, %v", held, err)
		}
		// Somebody removes the Lease: the agent is there all the same.
		if err := leases.Delete(t.Context(), lease.AgentLease(node), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		second.expectStopped(t, false)
		if _, err := leases.Get(t.Context(), lease.AgentLease(node), metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// What an agent says of itself costs no write while it stays the same, and at most one in
// 10 s whatever happens.
func TestAnAgentSaysWhatItDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		var writes atomic.Int32
		var broken atomic.Bool
		cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
			if !action.Matches("update", "leases") {
				return enginetest.Fault{}
			}
			writes.Add(1)
			if broken.Load() {
				return enginetest.Fault{Err: errors.New("the connection broke")}
			}
			return enginetest.Fault{}
		})
		var status atomic.Value
		status.Store("idle")
		first := holdNodeSaying(t, leases, "first", func() string {
			if status.Load() == "changing" {
				return time.Now().String()
			}
			return status.Load().(string)
		})
		said := func() string {
			t.Helper()
			held, err := leases.Get(t.Context(), lease.AgentLease(node), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return held.Annotations[lease.StatusAnnotation]
		}
		if got := said(); got != "idle" {
			t.Errorf("at the start it says %q", got)
		}
		for _, step := range []struct {
			status        string
			broken        bool
			during        time.Duration
			atLeast, most int32
		}{
			{"idle", false, 10 * time.Minute, 29, 30}, // the renewals
			{"busy", false, 11 * time.Second, 1, 1},
			{"changing", false, 10 * time.Minute, 59, 60},
			{"changing", true, time.Minute, 5, 6},
			{"back", false, 11 * time.Second, 1, 1},
			{"back", false, 10 * time.Minute, 29, 30},
		} {
			broken.Store(step.broken)
			status.Store(step.status)
			before := writes.Load()
			time.Sleep(step.during)
			synctest.Wait()
			if cost := writes.Load() - before; cost < step.atLeast || cost > step.most {
				t.Errorf("%s, broken %t, cost %d writes in %s, not %d to %d", step.status, step.broken, cost, step.during, step.atLeast, step.most)
			}
			if got := said(); step.status != "changing" && got != step.status {
				t.Errorf("it says %q, not %q", got, step.status)
			}
		}
		holdNode(t, leases, "second") // which has nothing to say yet
		if got := said(); got != "" {
			t.Errorf("after another one has taken over, the Lease says %q", got)
		}
		time.Sleep(time.Minute)
		first.expectStopped(t, true)
	})
}

// TestLimitsOfAgents: a controller sees the limit of each agent that lives, also when it changes.
func TestLimitsOfAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		agents := watchAgents(t, cluster)
		expect := func(when string, want ...int) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := agents.Limits(); !slices.Equal(got, want) {
				t.Errorf("%s the limits are %v, want %v", when, got, want)
			}
		}
		expect("without an agent")
		var status atomic.Value
		status.Store("")
		p := holdNodeSaying(t, leases, "first", func() string { return status.Load().(string) })
		expect("before the agent tells", 0)
		status.Store(`{"limit":3,"limitSource":"globalConfig"}`)
		expect("then", 3)
		status.Store(`{"limit":"many"}`)
		expect("when it can't be read", 0)
		status.Store(`{"limit":5}`)
		expect("after a change", 5)
		p.end()
		<-p.ended
		time.Sleep(2 * time.Minute)
		expect("after its end")
	})
}

func TestNodesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		nodes := cluster.Kube.CoreV1().Nodes()
		agents := watchAgents(t, cluster)
		removed := 0
		agents.OnNodeRemoved(func() { removed++ })
		begin := time.Now()
		if agents.NodeGone(node, begin) {
			t.Error("a node may take a moment until it is known")
		}
		if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p := holdNode(t, leases, "first")
		time.Sleep(time.Minute)
		synctest.Wait()
		if agents.NodeGone(node, begin) || !agents.NodeGone("another", begin) {
			t.Error("it takes one node for another")
		}
		if with, without := agents.Nodes(); with != 1 || without != 0 {
			t.Errorf("%d nodes have an agent, and %d have none", with, without)
		}
		p.end()
		<-p.ended
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if with, without := agents.Nodes(); with != 0 || without != 1 {
			t.Errorf("after its end %d nodes have an agent, and %d have none", with, without)
		}
		if err := nodes.Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !agents.NodeGone(node, begin) || removed != 1 {
			t.Errorf("its end was told %d times", removed)
		}
	})
}

// The Lease of an agent that was killed does not stay for ever, though it may take more than one
// try; and is removed once.
func TestLeasesOfLostAgentsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		agents := watchAgents(t, cluster)
		broken := &pausing{LeaseInterface: leases, hold: make(chan struct{})}
		begin := time.Now()
		holdNode(t, broken, "first")
		defer close(broken.hold)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		tries := 0
		go agents.Run(ctx, &meddling{LeaseInterface: leases, remove: func() error {
			if tries++; tries == 1 {
				return errors.New("the connection broke")
			}
			return nil
		}})
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if absence := agents.Absence(node, begin); absence < 49*time.Minute {
			t.Errorf("it is absent for %s", absence)
		}
		if _, err := leases.Get(t.Context(), lease.AgentLease(node), metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Hour)
		synctest.Wait()
		if _, err := leases.Get(t.Context(), lease.AgentLease(node), metav1.GetOptions{}); !apierrors.IsNotFound(err) || tries != 2 {
			t.Errorf("its Lease is still there, after %d tries: %v", tries, err)
		}
	})
}

// An agent that comes back when its Lease is about to go keeps it, and is seen.
func TestTheLeaseOfAnAgentThatComesBackStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, leases := setUp()
		agents := watchAgents(t, cluster)
		begin := time.Now()
		lost := &pausing{LeaseInterface: leases, hold: make(chan struct{})}
		holdNode(t, lost, "first")
		defer close(lost.hold)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var back *process
		go agents.Run(ctx, &meddling{LeaseInterface: leases, remove: func() error {
			if back == nil {
				back = holdNode(t, leases, "second")
				time.Sleep(time.Second)
			}
			return nil
		}})
		time.Sleep(80 * time.Minute)
		synctest.Wait()
		if back == nil {
			t.Fatal("it was not to be removed")
		}
		back.expectStopped(t, false)
		held, err := leases.Get(t.Context(), lease.AgentLease(node), metav1.GetOptions{})
		if err != nil || *held.Spec.HolderIdentity != "second" || time.Since(held.Spec.AcquireTime.Time) < time.Minute {
			t.Errorf("its Lease is %v, %v", held, err)
		}
		if absence := agents.Absence(node, begin); absence > time.Minute {
			t.Errorf("it is absent for %s", absence)
		}
	})
}

// The controllers find the Lease of a node by its labels.
func TestTheLeaseOfAnAgentIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leases := setUp()
		p := holdNode(t, leases, "first")
		list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: lease.AgentLabels + "," + enginev1alpha1.LabelNode + "=" + node})
		if err != nil || len(list.Items) != 1 || *list.Items[0].Spec.LeaseDurationSeconds != 120 {
			t.Errorf("%v, %v", list, err)
		}
		p.end()
		<-p.ended
	})
}

// An agent takes its node from whoever writes at the same moment, and gives up when it is refused.
func TestAnAgentWhoseLeaseCannotBeTaken(t *testing.T) {
	leaseOf := lease.AgentLease(node)
	resource := coordinationv1.Resource("leases")
	denied := errors.New("it is denied")
	for name, c := range map[string]struct {
		verb string
		err  error
		want error
	}{
		"another one makes it":    {"create", apierrors.NewAlreadyExists(resource, leaseOf), nil},
		"another one has written": {"update", apierrors.NewConflict(resource, leaseOf, errors.New("changed")), nil},
		"another one removes it":  {"update", apierrors.NewNotFound(resource, leaseOf), nil},
		"it can't be made":        {"create", denied, denied},
		"it can't be taken":       {"update", denied, denied},
		"it can't be read":        {"get", denied, denied},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, leases := setUp()
				if c.verb == "update" {
					if _, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseOf}}, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				failures := 3
				cluster.Fault(func(action clienttesting.Action) enginetest.Fault {
					if !action.Matches(c.verb, "leases") || failures == 0 {
						return enginetest.Fault{}
					}
					failures--
					return enginetest.Fault{Err: c.err}
				})
				worked := false
				err := lease.HoldNode(t.Context(), leases, node, "first", clock.RealClock{}, func() string { return "" }, func(context.Context) error {
					worked = true
					return nil
				})
				if !errors.Is(err, c.want) || worked != (c.want == nil) {
					t.Errorf("it worked: %t, %v", worked, err)
				}
			})
		})
	}
}
