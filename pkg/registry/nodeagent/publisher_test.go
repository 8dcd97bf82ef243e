// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/lease"
)

// TestPublisher: each node is shown, what its agent says follows at once, and an agent
// that falls silent is not Ready within a minute.
func TestPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		node := func(name string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Labels: map[string]string{"zone": "a"}}}
		}
		kube := kubefake.NewClientset(node("one"), node("without"))
		leases := kube.CoordinationV1().Leases("holdfast-agents")
		version := 0
		held := func(status v1alpha1.NodeAgentStatus) *coordinationv1.Lease {
			version++
			text, err := json.Marshal(status)
			if err != nil {
				t.Fatal(err)
			}
			return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Namespace: "holdfast-agents", Name: lease.AgentLease("one"), UID: "lease", ResourceVersion: fmt.Sprint(version),
				Annotations: map[string]string{lease.StatusAnnotation: string(text)}, CreationTimestamp: metav1.Now(),
			}}
		}
		if _, err := leases.Create(ctx, held(v1alpha1.NodeAgentStatus{Limit: 1, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAgentReady, Status: metav1.ConditionFalse}}}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		factory := informers.NewSharedInformerFactory(kube, 0)
		p, err := NewPublisher(factory.Coordination().V1().Leases().Informer(), factory.Core().V1().Nodes().Informer(), nil, clock.RealClock{})
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
		expect("at the start", "without", "False NoAgent", "True Valid")

		renew := func(status v1alpha1.NodeAgentStatus) {
			t.Helper()
			if _, err := leases.Update(ctx, held(status), metav1.UpdateOptions{}); err != nil {
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
		expect("after a minute of silence", "one", "False Silent", "True Valid") // no ConfigMap is named here
		if a, _ := p.Log.GetObject("", "one"); a.Status.Limit != 1 || a.Status.LimitSource != "default" || a.Status.Running.Backups != 2 {
			t.Errorf("in its silence it shows %+v", a)
		}
		renew(v1alpha1.NodeAgentStatus{Limit: 3, LimitSource: "globalConfig"})
		settle(time.Second)
		expect("when it is back", "one", "True Alive", "none")
		garbled := held(v1alpha1.NodeAgentStatus{})
		garbled.Annotations[lease.StatusAnnotation] = "{"
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

// TestLimits: where no agent says what is in force, it is shown with what an agent would start,
// by the ConfigMap and the labels as they are; and what is wrong with the ConfigMap. A Ready
// agent's own words count, and that words can't be read is seen as long as they can't.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		version := 0
		next := func() string {
			version++
			return fmt.Sprint(version)
		}
		node := func(name, size string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: next(), Labels: map[string]string{"size": size}}}
		}
		held := func(node, says string) *coordinationv1.Lease {
			return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Namespace: "holdfast-agents", Name: lease.AgentLease(node), ResourceVersion: next(),
				Annotations: map[string]string{lease.StatusAnnotation: says},
			}}
		}
		const says = `{"limit": 9, "limitSource": "memory", "conditions": [{"type": "Configured", "status": "True", "reason": "Valid"}]}`
		// What Ready agents say without a limit, by node.
		limitless := map[string]string{
			"garbled": "{", "old": `{"version": "v0"}`,
			"mistaken": `{"conditions": [{"type": "Configured", "status": "False", "reason": "InvalidConcurrency", "message": "its own"}]}`,
		}
		kube := kubefake.NewClientset(node("without", "small"), node("silent", "small"), node("new", "small"), node("live", "small"), node("lost", "small"),
			held("silent", says), held("new", ""), held("live", says), held("lost", "{"))
		do := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for name, says := range limitless {
			do(kube.CoreV1().Nodes().Create(ctx, node(name, "small"), metav1.CreateOptions{}))
			do(kube.CoordinationV1().Leases("holdfast-agents").Create(ctx, held(name, says), metav1.CreateOptions{}))
		}
		renew := func(node, says string) {
			t.Helper()
			do(kube.CoordinationV1().Leases("holdfast-agents").Update(ctx, held(node, says), metav1.UpdateOptions{}))
		}
		renewAll := func() {
			t.Helper()
			renew("new", "")
			renew("live", says)
			for name, says := range limitless {
				renew(name, says)
			}
		}
		configMaps := kube.CoreV1().ConfigMaps("holdfast")
		configure := func(text string) {
			t.Helper()
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "agents", ResourceVersion: next()}, Data: map[string]string{"config.json": text}}
			if _, err := configMaps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
				do(configMaps.Create(ctx, object, metav1.CreateOptions{}))
			}
		}
		factory, later := informers.NewSharedInformerFactory(kube, 0), informers.NewSharedInformerFactory(kube, 0)
		p, err := NewPublisher(factory.Coordination().V1().Leases().Informer(), factory.Core().V1().Nodes().Informer(),
			later.Core().V1().ConfigMaps().Informer(), clock.RealClock{})
		if err != nil {
			t.Fatal(err)
		}
		factory.Start(ctx.Done())
		var running sync.WaitGroup
		running.Go(func() { p.Run(ctx) })
		time.Sleep(configWait - time.Second)
		synctest.Wait()
		if p.Log.ReadinessCheck() == nil {
			t.Error("they are shown before it is known whether the ConfigMap can be read")
		}

		// look compares what is shown of each node: whether it is Ready, its limit, what set
		// it, and a part of what is wrong with the ConfigMap.
		look := func(when string, want map[string]string, wrong map[string]string) {
			t.Helper()
			for name, want := range want {
				a, ok := p.Log.GetObject("", name)
				if !ok {
					t.Errorf("%s: %s is not shown", when, name)
					continue
				}
				if got := fmt.Sprintf("%s %d %s", ready(a), a.Status.Limit, a.Status.LimitSource); got != want {
					t.Errorf("%s: %s is %q, want %q", when, name, got, want)
				}
				c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionAgentConfigured)
				if c == nil || len(a.Status.Conditions) != 2 || (c.Status == metav1.ConditionTrue) != (wrong[name] == "") || !strings.Contains(c.Message, wrong[name]) {
					t.Errorf("%s: the conditions of %s are %+v, want the problem %q", when, name, a.Status.Conditions, wrong[name])
				}
			}
		}
		const garbled = "what the agent says of itself can't be read"
		everywhere := func(what string) map[string]string {
			return map[string]string{"without": what, "silent": what, "new": what, "old": what, "garbled": garbled, "lost": garbled, "mistaken": "its own"}
		}
		show := func(when, without, silent, live string, wrong string) {
			t.Helper()
			renewAll()
			time.Sleep(lookInterval)
			synctest.Wait()
			look(when, map[string]string{
				"without": "False " + without, "silent": silent, "new": "True " + without, "live": live,
				"old": "True " + without, "garbled": "True " + without, "mistaken": "True " + without, "lost": "False " + without,
			}, everywhere(wrong))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		look("while the ConfigMap can't be read", map[string]string{
			"without": "False 1 default", "silent": "True 9 memory", "new": "True 1 default", "live": "True 9 memory",
			"old": "True 1 default", "garbled": "True 1 default", "mistaken": "True 1 default", "lost": "True 1 default",
		}, map[string]string{"without": unreadProblem, "new": unreadProblem, "old": unreadProblem, "garbled": garbled, "lost": garbled, "mistaken": "its own"})
		later.Start(ctx.Done())
		for range 6 {
			renewAll()
			time.Sleep(silence / 5)
		}
		show("without the ConfigMap", "1 default", "False 1 default", "True 9 memory", "")

		const rule = `{"nodeSelector": {"matchLabels": {"size": "large"}}, "number": 5}`
		configure(`{"loadConcurrency": {"globalConfig": 2, "perNodeConfig": [` + rule + `]}}`)
		show("with the ConfigMap", "2 globalConfig", "False 2 globalConfig", "True 9 memory", "")
		do(kube.CoreV1().Nodes().Update(ctx, node("silent", "large"), metav1.UpdateOptions{}))
		do(kube.CoreV1().Nodes().Update(ctx, node("live", "large"), metav1.UpdateOptions{}))
		show("with another label", "2 globalConfig", "False 5 perNodeConfig[0]", "True 9 memory", "")

		// An agent that starts now knows of no good value before.
		configure(`{"loadConcurrency": {"globalConfig": 3, "perNodeConfig": [` + rule + `, {"number": 4}]}}`)
		show("with a mistake", "3 globalConfig", "False 3 globalConfig", "True 9 memory", "perNodeConfig[1]: nodeSelector is missing")
		first, _ := p.Log.GetObject("", "without")
		changes := p.Log.Version()
		time.Sleep(2 * lookInterval)
		synctest.Wait()
		if again, _ := p.Log.GetObject("", "without"); again.ResourceVersion != first.ResourceVersion || p.Log.Version() != changes {
			t.Errorf("nothing has changed, and it shows %+v after %+v", again.Status, first.Status)
		}
		configure(`{"loadConcurrency": {"globalConfig": 0, "perNodeConfig": [` + rule + `]}}`)
		show("with another one", "1 default", "False 5 perNodeConfig[0]", "True 9 memory", "globalConfig: must be")
		if after, _ := p.Log.GetObject("", "without"); !configuredSince(after).Equal(configuredSince(first)) {
			t.Errorf("it has been wrong since %s, want since the first mistake at %s", configuredSince(after), configuredSince(first))
		}
		renew("silent", says)
		renew("new", `{"limit": 7, "limitSource": "globalConfig", "conditions": [{"type": "Configured", "status": "False", "reason": "InvalidConcurrency", "message": "another one"}]}`)
		time.Sleep(time.Second)
		synctest.Wait()
		look("when agents speak", map[string]string{
			"without": "False 1 default", "silent": "True 9 memory", "new": "True 7 globalConfig", "live": "True 9 memory",
		}, map[string]string{"without": "globalConfig: must be", "new": "another one"})
		do(nil, configMaps.Delete(ctx, "agents", metav1.DeleteOptions{}))
		show("when it is deleted", "1 default", "True 9 memory", "True 9 memory", "")
		cancel()
		running.Wait()
		factory.Shutdown()
		later.Shutdown()
	})
}

func configuredSince(a *v1alpha1.NodeAgent) *metav1.Time {
	return &meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionAgentConfigured).LastTransitionTime
}
