// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/liveness"
)

// TestPublisher: each node is shown, what its agent says follows at once, and an agent
// that falls silent is not Ready within a minute.
func TestPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		node := func(name string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Labels: map[string]string{"zone": "a"}}}
		}
		kube := fake.NewClientset(node("one"), node("without"))
		leases := kube.CoordinationV1().Leases("holdfast-agents")
		version := 0
		lease := func(status v1alpha1.NodeAgentStatus) *coordinationv1.Lease {
			version++
			text, err := json.Marshal(status)
			if err != nil {
				t.Fatal(err)
			}
			return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Namespace: "holdfast-agents", Name: liveness.AgentLease("one"), UID: "lease", ResourceVersion: fmt.Sprint(version),
				Annotations: map[string]string{liveness.StatusAnnotation: string(text)}, CreationTimestamp: metav1.Now(),
			}}
		}
		if _, err := leases.Create(ctx, lease(v1alpha1.NodeAgentStatus{Limit: 1, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAgentReady, Status: metav1.ConditionFalse}}}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		factory := informers.NewSharedInformerFactory(kube, 0)
		p, err := NewPublisher(factory.Coordination().V1().Leases().Informer(), factory.Core().V1().Nodes().Informer(), clock.RealClock{})
		if err != nil {
			t.Fatal(err)
		}
		factory.Start(ctx.Done())
		var running sync.WaitGroup
		running.Go(func() { p.Run(ctx) })
		settle := func(after time.Duration) {
			time.Sleep(after)
			synctest.Wait()
		}
		condition := func(name, kind string) string {
			a, ok := p.Log.GetObject("", name)
			if !ok {
				return "not shown"
			}
			c := meta.FindStatusCondition(a.Status.Conditions, kind)
			if c == nil {
				return "none"
			}
			return string(c.Status) + " " + c.Reason
		}
		expect := func(when, name, ready, configured string) {
			t.Helper()
			if got := condition(name, v1alpha1.ConditionAgentReady); got != ready {
				t.Errorf("%s: %s is Ready %s, want %s", when, name, got, ready)
			}
			if got := condition(name, v1alpha1.ConditionAgentConfigured); got != configured {
				t.Errorf("%s: %s is Configured %s, want %s", when, name, got, configured)
			}
		}
		settle(time.Second)
		expect("at the start", "one", "True Alive", "none")
		expect("at the start", "without", "False NoAgent", "none")

		renew := func(status v1alpha1.NodeAgentStatus) {
			t.Helper()
			if _, err := leases.Update(ctx, lease(status), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		mistaken := v1alpha1.NodeAgentStatus{
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAgentConfigured, Status: metav1.ConditionFalse, Reason: "InvalidConcurrency", Message: "a mistake"}},
			Limit:      3, LimitSource: "globalConfig", Running: v1alpha1.VolumeCounts{Backups: 2}, Waiting: v1alpha1.VolumeCounts{Restores: 4},
		}
		renew(mistaken)
		settle(time.Second)
		expect("after a mistake", "one", "True Alive", "False InvalidConcurrency")
		if a, _ := p.Log.GetObject("", "one"); a.Status.Limit != 3 || a.Status.LimitSource != "globalConfig" || a.Status.Running.Backups != 2 || a.Status.Waiting.Restores != 4 || a.Labels["zone"] != "a" || problem(a) != "a mistake" {
			t.Errorf("it shows %+v", a)
		}
		settle(40 * time.Second)
		expect("after 40 s", "one", "True Alive", "False InvalidConcurrency")
		settle(20 * time.Second)
		expect("after a minute of silence", "one", "False Silent", "False InvalidConcurrency")
		renew(v1alpha1.NodeAgentStatus{Limit: 3, LimitSource: "globalConfig"})
		settle(time.Second)
		expect("when it is back", "one", "True Alive", "none")
		garbled := lease(v1alpha1.NodeAgentStatus{})
		garbled.Annotations[liveness.StatusAnnotation] = "{"
		if _, err := leases.Update(ctx, garbled, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle(time.Second)
		expect("when it can't be read", "one", "True Alive", "Unknown Unreadable")

		if err := kube.CoreV1().Nodes().Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		settle(time.Second)
		expect("without its node", "one", "not shown", "not shown")
		cancel()
		running.Wait()
		factory.Shutdown()
	})
}
