// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package noderestriction reports, in an event, the log and a metric, that kube-apiserver lacks its
// admission plugin NodeRestriction, by which agents keep to their nodes. Nothing waits for it.
package noderestriction

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/noderestriction"
)

const (
	interval              = 24 * time.Hour
	firstRetry, lastRetry = time.Minute, time.Hour
	key                   = "NodeRestriction"
	reason                = "NodeRestrictionOff"
)

var (
	state = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      "holdfast",
		Name:           "node_restriction",
		Help:           "Whether kube-apiserver has the admission plugin NodeRestriction, by state: On, Off, or Unknown, since the controller may not act as a node, or the answer does not tell.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
	register sync.Once
)

// Config configures a Controller.
type Config struct {
	Namespace string
	Check     func(context.Context) (noderestriction.State, error)
	Events    events.EventRecorder
	Clock     clock.WithTicker
}

// Controller checks at its start, and then daily.
type Controller struct {
	Config
	queue *loop.Loop[string]
	last  noderestriction.State
}

// New returns a Controller.
func New(config Config) *Controller {
	register.Do(func() { legacyregistry.MustRegister(state) })
	c := &Controller{Config: config, queue: loop.New[string](loop.Config{Controller: "noderestriction", FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock})}
	c.queue.Add(key)
	return c
}

// Run works until ctx ends. Then it shows nothing.
func (c *Controller) Run(ctx context.Context) {
	defer state.Reset()
	c.queue.Run(ctx, c.sync)
}

// sync returns only errors that may pass.
func (c *Controller) sync(ctx context.Context, _ string) error {
	found, err := c.Check(ctx)
	if ctx.Err() != nil {
		return nil
	}
	state.Reset()
	state.WithLabelValues(string(found)).Set(1)
	logger, changed := klog.FromContext(ctx), found != c.last
	c.last = found
	if found == noderestriction.Off {
		const text = "kube-apiserver lacks the admission plugin NodeRestriction: a node can create pods in any namespace, and so read volumes of other nodes. Add it to --enable-admission-plugins (docs/security.md)"
		logger.Error(nil, text)
		if changed {
			c.Events.Eventf(&corev1.ObjectReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: c.Namespace, Name: lease.LeaderLease},
				nil, corev1.EventTypeWarning, reason, "Check", "%s", text)
		}
	} else if changed {
		logger.Info("The admission plugin NodeRestriction was checked", "state", found, "err", err)
	}
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	c.queue.AddAfter(key, interval)
	return nil
}
