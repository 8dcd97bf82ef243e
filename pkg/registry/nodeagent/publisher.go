// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/loadconcurrency"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

const (
	publishInterval = 500 * time.Millisecond
	lookInterval    = 5 * time.Second
	// silence is how long a Ready agent may show no sign of life. It renews its Lease every 20 s, and may fail
	// once.
	silence    = 50 * time.Second
	configWait = 10 * time.Second // for the ConfigMap, as of an agent
)

// unreadable is the reason of an agent with an unreadable status, whose report on the ConfigMap is unknown.
const unreadable = "Unreadable"

const unreadProblem = "the ConfigMap of the node agents can't be read, and has no effect here until it can: may the API server list and watch it?"

// Publisher fills a log with the agents of all nodes.
type Publisher struct {
	Log *logstore.Log[*v1alpha1.NodeAgent]

	leases, nodes cache.Store
	configMaps    cache.SharedIndexInformer // nil without a ConfigMap
	clock         clock.WithTicker
	synced        []cache.InformerSynced
	changed       chan struct{}
	alive         map[string]sign
}

// sign of life: a version of a Lease, and when it was first seen.
type sign struct {
	version string
	at      time.Time
}

// NewPublisher returns a Publisher of informers of the Leases with lease.AgentLabels, of the nodes, and of the
// ConfigMap with the agents' limits, if any.
func NewPublisher(leases, nodes, configMaps cache.SharedIndexInformer, clock clock.WithTicker) (*Publisher, error) {
	p := &Publisher{
		Log: logstore.New(func() *v1alpha1.NodeAgent { return &v1alpha1.NodeAgent{} },
			logstore.Options{Resource: Resource.GroupResource, Loading: "the nodes and the Leases of their agents"}),
		leases:     leases.GetStore(),
		nodes:      nodes.GetStore(),
		configMaps: configMaps,
		clock:      clock,
		changed:    make(chan struct{}, 1),
	}
	change := func(any) {
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
	for _, informer := range []cache.SharedIndexInformer{leases, nodes, configMaps} {
		if informer == nil {
			continue
		}
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: change, UpdateFunc: func(_, obj any) { change(obj) }, DeleteFunc: change,
		})
		if err != nil {
			return nil, err
		}
		if informer != configMaps {
			p.synced = append(p.synced, registration.HasSynced)
		}
	}
	return p, nil
}

// Run publishes until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, p.synced...) {
		return
	}
	if p.configMaps != nil {
		waiting, cancel := context.WithTimeout(ctx, configWait)
		cache.WaitForCacheSync(waiting.Done(), p.configMaps.HasSynced)
		cancel()
	}
	look := p.clock.NewTicker(lookInterval)
	defer look.Stop()
	for {
		if _, err := p.Log.Replace(p.nodeAgents()); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Publishing the node agents failed")
		}
		p.Log.SetReady()
		select {
		case <-ctx.Done():
			return
		case <-p.clock.After(publishInterval):
		}
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		case <-look.C():
		}
	}
}

func (p *Publisher) nodeAgents() []*v1alpha1.NodeAgent {
	now := p.clock.Now()
	leases := map[string]*coordinationv1.Lease{}
	for _, obj := range p.leases.List() {
		if held, ok := obj.(*coordinationv1.Lease); ok {
			leases[held.Name] = held
		}
	}
	limits, problem := p.limits()
	before := p.alive
	p.alive = map[string]sign{}
	var agents []*v1alpha1.NodeAgent
	for _, obj := range p.nodes.List() {
		node, err := meta.Accessor(obj)
		if err != nil {
			continue
		}
		name := node.GetName()
		held := leases[lease.AgentLease(name)]
		silent := false
		if held != nil {
			last := before[name]
			if last.version != held.ResourceVersion {
				last = sign{version: held.ResourceVersion, at: now}
			}
			p.alive[name] = last
			silent = now.Sub(last.at) >= silence
		}
		shown, ok := p.Log.GetObject("", name)
		if !ok {
			shown = &v1alpha1.NodeAgent{}
		}
		decided := loadconcurrency.Decision{Problem: problem}
		decided.Limit, decided.Source = limits.Limit(node.GetLabels())
		agents = append(agents, nodeAgent(shown, node, held, silent, decided, now))
	}
	return agents
}

// limits returns the limits of an agent that starts now, and the ConfigMap's problem.
func (p *Publisher) limits() (config loadconcurrency.Config, problem string) {
	if p.configMaps == nil {
		return config, ""
	}
	if !p.configMaps.HasSynced() {
		return config, unreadProblem
	}
	for _, obj := range p.configMaps.GetStore().List() {
		if configMap, ok := obj.(*corev1.ConfigMap); ok {
			return config.Update(configMap.Data, configMap.BinaryData)
		}
	}
	return config, ""
}

// nodeAgent returns a node's agent. shown is its present state. decided counts if it reports no limits. A Ready
// agent's report on the ConfigMap, and an unreadable status, are always shown.
func nodeAgent(shown *v1alpha1.NodeAgent, node metav1.Object, held *coordinationv1.Lease, silent bool, decided loadconcurrency.Decision, now time.Time) *v1alpha1.NodeAgent {
	agent := &v1alpha1.NodeAgent{ObjectMeta: metav1.ObjectMeta{
		Name: node.GetName(), UID: node.GetUID(), Labels: node.GetLabels(), CreationTimestamp: node.GetCreationTimestamp(),
	}}
	ready := metav1.Condition{Type: v1alpha1.ConditionAgentReady, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now)}
	switch {
	case held == nil:
		ready.Reason, ready.Message = "NoAgent", "no agent runs on this node: its volumes are neither backed up nor restored"
	case silent:
		ready.Reason, ready.Message = "Silent", "the agent of this node gives no sign of life"
	default:
		ready.Status, ready.Reason = metav1.ConditionTrue, "Alive"
	}
	if held != nil {
		agent.CreationTimestamp = held.CreationTimestamp
		agent.Status = said(held)
	}
	if was := meta.FindStatusCondition(shown.Status.Conditions, ready.Type); was != nil && was.Status == ready.Status {
		ready.LastTransitionTime = was.LastTransitionTime
	}
	if ready.Status == metav1.ConditionFalse || agent.Status.Limit == 0 {
		own := meta.FindStatusCondition(agent.Status.Conditions, v1alpha1.ConditionAgentConfigured)
		meta.RemoveStatusCondition(&agent.Status.Conditions, v1alpha1.ConditionAgentConfigured)
		if was := meta.FindStatusCondition(shown.Status.Conditions, v1alpha1.ConditionAgentConfigured); was != nil {
			agent.Status.Conditions = append(agent.Status.Conditions, *was)
		}
		decided.Show(&agent.Status, now)
		if own != nil && (ready.Status == metav1.ConditionTrue || own.Reason == unreadable) {
			meta.RemoveStatusCondition(&agent.Status.Conditions, own.Type)
			agent.Status.Conditions = append(agent.Status.Conditions, *own)
		}
	}
	meta.RemoveStatusCondition(&agent.Status.Conditions, ready.Type) // this server decides it
	agent.Status.Conditions = append([]metav1.Condition{ready}, agent.Status.Conditions...)
	return agent
}

func said(held *coordinationv1.Lease) (status v1alpha1.NodeAgentStatus) {
	text := held.Annotations[lease.StatusAnnotation]
	if text == "" {
		return status
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return v1alpha1.NodeAgentStatus{Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionAgentConfigured, Status: metav1.ConditionUnknown, Reason: unreadable,
			Message:            "what the agent says of itself can't be read: " + err.Error(),
			LastTransitionTime: held.CreationTimestamp,
		}}}
	}
	return status
}
