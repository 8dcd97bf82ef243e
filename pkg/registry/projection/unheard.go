// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const listenInterval = time.Second

func (p *Projector) listen(ctx context.Context) {
	if p.Leader == nil {
		return
	}
	for {
		_, message := p.Leader.Unheard()
		p.setUnheard(message)
		select {
		case <-ctx.Done():
			return
		case <-p.Clock.After(listenInterval):
		}
	}
}

func (p *Projector) setUnheard(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unheard == message {
		return
	}
	p.unheard = message
	for key, run := range p.runs.byBackup.All() {
		if !run.Phase().Ended() {
			p.projectLocked(key)
		}
	}
	p.queue.wake()
	for _, s := range p.subscribers {
		if s.Unheard != nil {
			s.Unheard(message)
		}
	}
}

// Unheard sets in conditions of unfinished work that no controller is heard of.
func Unheard(conditions []metav1.Condition, message string) {
	for i := range conditions {
		c := &conditions[i]
		switch {
		case message == "":
		case c.Type == v1alpha1.ConditionComplete && c.Status == metav1.ConditionFalse:
			c.Message = message
		case c.Type == v1alpha1.ConditionQueued && c.Status == metav1.ConditionTrue:
			c.Reason, c.Message = v1alpha1.ReasonNoController, message
		}
	}
}
