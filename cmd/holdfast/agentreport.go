// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/loadconcurrency"
)

const throughputInterval = 10 * time.Second

type agentReport struct {
	clock clock.PassiveClock

	mu          sync.Mutex
	load        func() datapath.Load
	limit       func() loadconcurrency.Decision
	conditions  []metav1.Condition
	sampled     time.Time // when moved was read for the rate
	moved, rate int64
}

func (r *agentReport) begin(load func() datapath.Load, limit func() loadconcurrency.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load, r.limit, r.sampled = load, limit, r.clock.Now()
}

// text returns "" before the limit is known.
func (r *agentReport) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limit == nil || r.limit().Limit == 0 {
		return ""
	}
	text, err := json.Marshal(r.statusLocked())
	utilruntime.Must(err)
	return string(text)
}

func (r *agentReport) statusLocked() v1alpha1.NodeAgentStatus {
	load, limit, now := r.load(), r.limit(), r.clock.Now()
	if took := now.Sub(r.sampled); took >= throughputInterval {
		r.rate = int64(float64(load.Moved-r.moved) / took.Seconds())
		r.sampled, r.moved = now, load.Moved
	}
	status := v1alpha1.NodeAgentStatus{
		Conditions:     r.conditions,
		Running:        counts(load.Running[datapath.ClassRestore], load.Running[datapath.ClassBackup]),
		Waiting:        counts(load.Waiting[datapath.ClassRestore], load.Waiting[datapath.ClassBackup]),
		BytesPerSecond: r.rate,
		Version:        version,
	}
	limit.Show(&status, now)
	r.conditions = status.Conditions
	if !load.WaitingSince.IsZero() {
		status.WaitingSince = &metav1.Time{Time: load.WaitingSince}
	}
	return status
}

func counts(restores, backups int) v1alpha1.VolumeCounts {
	return v1alpha1.VolumeCounts{Restores: int32(restores), Backups: int32(backups)}
}
