// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/loadconcurrency"
)

// TestAgentReport: the throughput is the mean of an interval, and nothing changes in
// between while nothing begins or ends.
func TestAgentReport(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := clocktesting.NewFakePassiveClock(begin)
	report := &agentReport{clock: clock}
	if text := report.text(); text != "" {
		t.Errorf("before it begins, it says %s", text)
	}
	load := datapath.Load{WaitingSince: begin}
	load.Running[datapath.ClassBackup], load.Waiting[datapath.ClassRestore] = 2, 1
	limit := loadconcurrency.Decision{Limit: 2, Source: "globalConfig"}
	report.begin(func() datapath.Load { return load }, func() loadconcurrency.Decision { return limit })
	for _, step := range []struct {
		after       time.Duration
		moved, rate int64
		problem     string
		since       time.Duration // the condition
	}{
		{0, 0, 0, "", 0},
		{5 * time.Second, 1000, 0, "", 0},
		{10 * time.Second, 1000, 100, "", 0},
		{19 * time.Second, 9000, 100, "a mistake", 19 * time.Second},
		{20 * time.Second, 9000, 800, "another", 19 * time.Second},
		{40 * time.Second, 9000, 0, "", 40 * time.Second},
	} {
		clock.SetTime(begin.Add(step.after))
		load.Moved, limit.Problem = step.moved, step.problem
		configured := metav1.Condition{Type: "Configured", Status: "True", Reason: "Valid", LastTransitionTime: metav1.NewTime(begin.Add(step.since))}
		if step.problem != "" {
			configured.Status, configured.Reason, configured.Message = "False", "InvalidConcurrency", step.problem
		}
		want := v1alpha1.NodeAgentStatus{
			Conditions: []metav1.Condition{configured}, Limit: 2, LimitSource: "globalConfig",
			Running: v1alpha1.VolumeCounts{Backups: 2}, Waiting: v1alpha1.VolumeCounts{Restores: 1},
			WaitingSince: &metav1.Time{Time: begin}, BytesPerSecond: step.rate, Version: version,
		}
		var got v1alpha1.NodeAgentStatus
		if err := json.Unmarshal([]byte(report.text()), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", step.after, diff)
		}
	}
}
