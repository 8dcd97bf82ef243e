// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storagelocation

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/enginetest"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

const uid = "one-uid"

// claimed is the claim in a folder.
func claimed(t *testing.T, folder string) (claim format.Claim) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(format.ClaimKey(uid))))
	if err == nil {
		err = json.Unmarshal(data, &claim)
	}
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// write writes a claim into a folder.
func write(t *testing.T, folder string, claim format.Claim) {
	t.Helper()
	data, err := format.EncodeClaim(claim)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, filepath.FromSlash(format.ClaimKey(uid))), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// expectCloned compares the reason of the condition; "" stands for none, or one that has ended.
func (h *harness) expectCloned(reason string) *metav1.Condition {
	h.Helper()
	synctest.Wait()
	record := h.location("default")
	condition := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionClonedCluster)
	if record.Cloned() != (reason != "") || reason != "" && condition.Reason != reason || record.Closed() != (reason != "") {
		h.Fatalf("the condition is %+v, want the reason %q", condition, reason)
	}
	return condition
}

func (h *harness) annotate(name, key, value string) {
	h.Helper()
	changed := h.location(name)
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, key, value)
	if _, err := h.EngineV1alpha1().StorageLocations(system).Update(h.Context(), changed, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
}

// One process renews its claim seldom, writes nothing into the cluster, and hands it on to the
// next one, however it ends.
func TestOneClusterClaimsAStore(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		first := startAs(t, Config{ClusterUID: uid, Identity: "first"}, inFolder("default", folder))
		time.Sleep(time.Hour)
		synctest.Wait()
		claim := claimed(t, folder)
		if claim.Holder != "first" || claim.Renewals < 10 || claim.Renewals > 13 || len(first.Writes("storagelocations")) != 1 {
			t.Errorf("after an hour: %+v, and %d writes of the record", claim, len(first.Writes("storagelocations")))
		}
		first.expectCloned("")
		first.stop()
		synctest.Wait()

		// It was killed: the next one takes its Lease, and the claim.
		second := startAs(t, Config{ClusterUID: uid, Identity: "second", Before: lease.Predecessor{Identity: "first", Renewed: time.Now()}}, inFolder("default", folder))
		second.expectCloned("")
		if claim := claimed(t, folder); claim.Holder != "second" {
			t.Errorf("after a restart: %+v", claim)
		}
		second.stop()
		synctest.Wait()

		// It gave its Lease back, so the next one can't tell, and watches.
		third := startAs(t, Config{ClusterUID: uid, Identity: "third"}, inFolder("default", folder))
		for range 20 {
			third.expectCloned("")
			time.Sleep(time.Minute)
		}
		if claim := claimed(t, folder); claim.Holder != "third" || len(third.events.Events) > 0 {
			t.Errorf("after a regular end: %+v", claim)
		}
	})
}

// A process that was paused before its write, and wakes up when another one has its Lease, is no
// other cluster.
func TestAPausedProcessIsNoOtherCluster(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := startAs(t, Config{ClusterUID: uid, Identity: "this"}, inFolder("default", folder))
		for i := range 3 {
			time.Sleep(7 * time.Minute)
			synctest.Wait()
			write(t, folder, format.Claim{Nonce: fmt.Sprint("paused-", i), Holder: "paused", Renewals: 12, Written: time.Now()})
			for range 20 {
				time.Sleep(time.Minute)
				h.expectCloned("")
			}
			if claim := claimed(t, folder); claim.Holder != "this" {
				t.Fatalf("the claim is %+v", claim)
			}
		}
	})
}

// Of two clusters with one uid, the copy stops: at once, since its etcd is older than the store,
// and for good when the other one lives, whatever restarts. Who goes on, an administrator says.
func TestACopyOfACluster(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		one := startAs(t, Config{ClusterUID: uid, Identity: "original"}, inFolder("default", folder))
		time.Sleep(time.Minute)
		taken := lease.Predecessor{Identity: "original", Renewed: time.Now()} // etcd is copied
		time.Sleep(time.Hour)
		copied := one.location("default").DeepCopy()
		copied.ResourceVersion = ""
		two := startAs(t, Config{ClusterUID: uid, Identity: "copy", Before: taken}, copied)
		condition := two.expectCloned(enginev1alpha1.ReasonStateIsOlder)
		if !strings.Contains(condition.Message, "The controller original has written") {
			t.Errorf("it says %s", condition.Message)
		}
		if event := <-two.events.Events; !strings.Contains(event, "Warning ClonedCluster ") {
			t.Errorf("the event is %q", event)
		}
		time.Sleep(20 * time.Minute)
		condition = two.expectCloned(enginev1alpha1.ReasonClaimedElsewhere)
		one.expectCloned("")
		writes := len(two.Writes("storagelocations"))
		time.Sleep(time.Hour)
		if got := len(two.Writes("storagelocations")); got != writes {
			t.Errorf("%d writes in an hour in which nothing changed", got-writes)
		}

		// The copy restarts, and the original is away for a while.
		two.stop()
		one.stop()
		time.Sleep(time.Hour)
		stopped := two.location("default").DeepCopy()
		stopped.ResourceVersion = ""
		two = startAs(t, Config{ClusterUID: uid, Identity: "copy-2", Before: lease.Predecessor{Identity: "copy", Renewed: time.Now()}}, stopped)
		time.Sleep(time.Hour)
		two.expectCloned(enginev1alpha1.ReasonClaimedElsewhere)
		if claim := claimed(t, folder); claim.Holder != "original" {
			t.Errorf("the copy has taken the store: %+v", claim)
		}

		// An instant before it was told accepts nothing, nor does one that is to come.
		for _, at := range []time.Time{condition.LastTransitionTime.Add(-time.Second), time.Now().Add(time.Hour)} {
			two.annotate("default", enginev1alpha1.AnnotationTakeOver, at.UTC().Format(time.RFC3339))
			two.expectCloned(enginev1alpha1.ReasonClaimedElsewhere)
		}
		two.annotate("default", enginev1alpha1.AnnotationTakeOver, time.Now().UTC().Format(time.RFC3339))
		two.expectCloned("")
		if claim := claimed(t, folder); claim.Holder != "copy-2" {
			t.Errorf("the claim is %+v", claim)
		}

		// The original comes back, and stops. Its administrator changes his mind.
		back := inFolder("default", folder)
		back.Status.StoreID = copied.Status.StoreID
		one = startAs(t, Config{ClusterUID: uid, Identity: "original-2", Before: lease.Predecessor{Identity: "original", Renewed: time.Now().Add(-time.Hour)}}, back)
		time.Sleep(20 * time.Minute)
		one.expectCloned(enginev1alpha1.ReasonClaimedElsewhere)
		two.expectCloned("")
		one.annotate("default", enginev1alpha1.AnnotationTakeOver, time.Now().UTC().Format(time.RFC3339))
		one.expectCloned("")
		time.Sleep(30 * time.Minute)
		one.expectCloned("")
		two.expectCloned(enginev1alpha1.ReasonClaimedElsewhere)
	})
}

// A cluster whose etcd was brought back from a copy waits until it is sure that nobody else
// writes, and goes on by itself.
func TestEtcdFromACopy(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := startAs(t, Config{ClusterUID: uid, Identity: "before"}, inFolder("default", folder))
		taken := lease.Predecessor{Identity: "before", Renewed: time.Now()}
		time.Sleep(time.Hour)
		h.stop()
		h = startAs(t, Config{ClusterUID: uid, Identity: "after", Before: taken}, inFolder("default", folder))
		h.expectCloned(enginev1alpha1.ReasonStateIsOlder)
		time.Sleep(claimPatience / 2)
		h.expectCloned(enginev1alpha1.ReasonStateIsOlder)
		time.Sleep(claimPatience/2 + claimInterval)
		condition := h.expectCloned("")
		if claim := claimed(t, folder); claim.Holder != "after" || condition.Reason != enginev1alpha1.ReasonClaimedHere {
			t.Errorf("the claim is %+v, the condition %+v", claim, condition)
		}
	})
}

// modelCluster is a cluster with one process that leads, or none.
type modelCluster struct {
	name    string
	terms   int
	process *modelProcess
	lease   lease.Predecessor
	reason  string
}

type modelProcess struct {
	claimant
	nonce  string
	before lease.Predecessor
}

// look does what a process does at a check.
func (c *modelCluster) look(now time.Time, stored **format.Claim) {
	if c.process == nil {
		return
	}
	p := c.process
	c.lease = lease.Predecessor{Identity: p.nonce, Renewed: now}
	if now.Before(p.next) {
		return
	}
	write, reason := p.judge(now, p.nonce, *stored, p.before, c.reason, false)
	c.reason = reason
	if write {
		p.renewals++
		*stored = &format.Claim{Nonce: p.nonce, Holder: p.nonce, Renewals: p.renewals, Written: now}
	}
	p.next = now.Add(claimInterval)
}

// restart ends the process, as by a kill or in the regular way, and begins another one.
func (c *modelCluster) restart(regular bool) {
	if c.process != nil && regular {
		c.lease = lease.Predecessor{}
	}
	c.terms++
	c.process = &modelProcess{nonce: fmt.Sprint(c.name, "-", c.terms), before: c.lease}
}

// Whatever restarts: the processes of one cluster take nobody for a copy, though those that were
// paused write late, once each. Of a cluster and its copy, one goes on in the end, and never both stop.
func TestClaimsOfModels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var stored *format.Claim
		clusters := []*modelCluster{{name: "original"}}
		clusters[0].restart(true)
		copies := rapid.Bool().Draw(t, "is copied")
		var paused []format.Claim
		pass := func(minutes int) {
			for range minutes {
				now = now.Add(time.Minute)
				for _, c := range clusters {
					c.look(now, &stored)
				}
				if len(clusters) == 2 && clusters[0].reason == enginev1alpha1.ReasonClaimedElsewhere && clusters[1].reason == enginev1alpha1.ReasonClaimedElsewhere {
					t.Fatal("both have stopped")
				}
				if len(clusters) == 1 && clusters[0].reason != "" {
					t.Fatalf("a cluster without a copy stops: %s", clusters[0].reason)
				}
			}
		}
		pass(rapid.IntRange(1, 30).Draw(t, "at first"))
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			c := rapid.SampledFrom(clusters).Draw(t, "cluster")
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				if p := c.process; rapid.Bool().Draw(t, "is paused") {
					paused = append(paused, format.Claim{Nonce: p.nonce, Holder: p.nonce, Renewals: p.renewals + 1, Written: now})
				}
				c.restart(rapid.Bool().Draw(t, "regular"))
			case 1:
				if len(paused) > 0 {
					stray := paused[0]
					stored, paused = &stray, paused[1:]
				}
			case 2:
				if copies && len(clusters) == 1 {
					twin := &modelCluster{name: "copy", lease: c.lease, terms: c.terms}
					pass(rapid.IntRange(0, 60).Draw(t, "age of the copy"))
					twin.restart(false)
					clusters = append(clusters, twin)
				}
			}
			pass(rapid.IntRange(0, 25).Draw(t, "meanwhile"))
		}
		if len(clusters) == 2 {
			pass(60)
			stopped := 0
			for _, c := range clusters {
				if c.reason == enginev1alpha1.ReasonClaimedElsewhere {
					stopped++
				}
			}
			if stopped != 1 {
				t.Fatalf("%d of two have stopped: %q, %q", stopped, clusters[0].reason, clusters[1].reason)
			}
		}
	})
}

// A condition that could not be written is told all the same.
func TestTheConditionOfACopyIsWrittenInTheEnd(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := startAs(t, Config{ClusterUID: uid, Identity: "original"}, inFolder("default", folder))
		taken := lease.Predecessor{Identity: "original", Renewed: time.Now()}
		time.Sleep(time.Hour)
		h.stop()
		copied := h.location("default").DeepCopy()
		copied.ResourceVersion = ""
		two := startAs(t, Config{ClusterUID: uid, Identity: "copy", Before: taken})
		refusals := 3
		two.Fault(func(action clienttesting.Action) enginetest.Fault {
			if action.GetVerb() != "update" || refusals == 0 {
				return enginetest.Fault{}
			}
			refusals--
			return enginetest.Fault{Err: errors.New("the connection broke")}
		})
		two.Create(copied)
		time.Sleep(time.Second)
		two.expectCloned(enginev1alpha1.ReasonStateIsOlder)
	})
}
