// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodelimit sets the limit of a node's data path manager by the administrator's ConfigMap and
// the node's labels (pkg/loadconcurrency). Mistakes of a ConfigMap version are reported once: in the
// log, an event and the Decision.
package nodelimit

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/pkg/loadconcurrency"
)

const syncTimeout = 10 * time.Second

const unreadProblem = "the ConfigMap of the node agents, or the node, can't be read, and has no effect until it can: may the agent get, list and watch both?"

// Config configures a Controller.
type Config struct {
	// ConfigMaps has only the administrator's ConfigMap; may be nil.
	ConfigMaps cache.SharedIndexInformer
	Nodes      cache.SharedIndexInformer
	// Most is what the agent's memory allows; 0 is no bound.
	Most     int
	SetLimit func(int)
	Events   events.EventRecorder
}

// Controller sets a limit.
type Controller struct {
	Config
	synced []cache.InformerSynced

	mu      sync.Mutex
	logger  klog.Logger
	running bool
	limits  loadconcurrency.Config
	version string
	// problem is the ConfigMap's mistake; unread: it or the node can't be read.
	problem string
	unread  bool
	state   loadconcurrency.Decision
}

// New returns a Controller that has not set a limit yet.
func New(config Config) (*Controller, error) {
	c := &Controller{Config: config}
	changed := func(any) { c.update() }
	for _, informer := range []cache.SharedIndexInformer{config.ConfigMaps, config.Nodes} {
		if informer == nil {
			continue
		}
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    changed,
			UpdateFunc: func(_, obj any) { changed(obj) },
			DeleteFunc: changed,
		})
		if err != nil {
			return nil, err
		}
		c.synced = append(c.synced, registration.HasSynced)
	}
	return c, nil
}

// Run sets the limit until ctx ends, first when the ConfigMap and the node are known, or after
// syncTimeout.
func (c *Controller) Run(ctx context.Context) {
	waiting, cancel := context.WithTimeout(ctx, syncTimeout)
	synced := cache.WaitForCacheSync(waiting.Done(), c.synced...)
	cancel()
	if ctx.Err() != nil {
		return
	}
	if !synced {
		klog.FromContext(ctx).Error(nil, "The node's limit is not what the administrator says", "problem", unreadProblem)
	}
	c.mu.Lock()
	c.logger, c.running, c.unread = klog.FromContext(ctx), true, !synced
	c.mu.Unlock()
	c.update()
	if !synced && cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		c.mu.Lock()
		c.unread = false
		c.mu.Unlock()
		c.update()
	}
	<-ctx.Done()
}

// State returns the current limit; 0 before the first.
func (c *Controller) State() loadconcurrency.Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *Controller) update() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return
	}
	c.readConfigMap()
	after := loadconcurrency.Decision{Problem: c.problem}
	if c.unread {
		after.Problem = unreadProblem
	}
	after.Limit, after.Source = c.limits.Limit(c.nodeLabels())
	if c.Most > 0 && after.Limit > c.Most {
		after.Limit, after.Source = c.Most, "memory"
	}
	if after == c.state {
		return
	}
	c.logger.Info("The node moves so many volumes at once from now on", "limit", after.Limit, "source", after.Source, "problem", after.Problem)
	c.state = after
	c.SetLimit(after.Limit)
}

func (c *Controller) readConfigMap() {
	if c.ConfigMaps == nil {
		return
	}
	var configMap *corev1.ConfigMap
	for _, obj := range c.ConfigMaps.GetStore().List() {
		configMap, _ = obj.(*corev1.ConfigMap)
	}
	if configMap == nil {
		c.limits, c.version, c.problem = loadconcurrency.Config{}, "", ""
		return
	}
	if configMap.ResourceVersion == c.version {
		return
	}
	c.version = configMap.ResourceVersion
	if c.limits, c.problem = c.limits.Update(configMap.Data, configMap.BinaryData); c.problem == "" {
		return
	}
	c.logger.Error(nil, "The ConfigMap of the node agents has mistakes, and its parts that have stay as they were before", "configMap", klog.KObj(configMap), "problem", c.problem)
	c.Events.Eventf(configMap, nil, corev1.EventTypeWarning, "InvalidConcurrency", "SetLimit",
		"What is wrong here has no effect: %s", c.problem)
}

func (c *Controller) nodeLabels() labels.Set {
	for _, obj := range c.Nodes.GetStore().List() {
		if node, err := meta.Accessor(obj); err == nil {
			return node.GetLabels()
		}
	}
	return nil
}
