// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"sync"
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

// maxShown bounds the series to the first schedules by name.
const maxShown = 1000

var (
	scheduleCount = metrics.NewDesc("holdfast_schedules",
		"Schedules by state: Paused, or else OnTime or WhyNot by what became of the last time that a backup was due.", []string{"state"}, nil, metrics.ALPHA, "")
	scheduleSuccess = metrics.NewDesc("holdfast_schedule_last_success_timestamp_seconds",
		"When the last Completed backup ended of a schedule, NAMESPACE/NAME, that is not paused; when its times began, if that is later.", []string{"schedule"}, nil, metrics.ALPHA, "")
	scheduleLate = metrics.NewDesc("holdfast_schedule_late",
		"Schedules that are not paused and have had no good backup for one and a half of their intervals.", nil, nil, metrics.ALPHA, "")
	scheduleInterval = metrics.NewDesc("holdfast_schedule_interval_seconds",
		"The longest time between two of the next backups of a schedule that is not paused.", []string{"schedule"}, nil, metrics.ALPHA, "")
	scheduleMissed = metrics.NewDesc("holdfast_schedule_missed_total",
		"Backups of a schedule that were due and not made.", []string{"schedule"}, nil, metrics.ALPHA, "")

	register sync.Once
)

type collector struct {
	metrics.BaseStableCollector
	controller atomic.Pointer[Controller]
}

var schedules collector

func registerMetrics(c *Controller) {
	schedules.controller.Store(c)
	register.Do(func() { legacyregistry.CustomMustRegister(&schedules) })
}

func (*collector) DescribeWithStability(descs chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{scheduleCount, scheduleLate, scheduleSuccess, scheduleInterval, scheduleMissed} {
		descs <- desc
	}
}

// CollectWithStability implements metrics.StableCollector. Only the leader shows anything.
func (s *collector) CollectWithStability(values chan<- metrics.Metric) {
	c := s.controller.Load()
	if c == nil || !c.Leads() {
		return
	}
	count := map[string]float64{"Paused": 0, "OnTime": 0, "WhyNot": 0}
	shown, late := 0, 0
	now := c.Clock.Now()
	for _, name := range c.Schedules.Names() {
		one, entry, _ := c.Schedules.Schedule(name)
		if one == nil {
			continue
		}
		state := "OnTime"
		for _, condition := range one.Status.Conditions {
			if condition.Type == v1alpha1.ConditionScheduled && condition.Status == "False" {
				state = "WhyNot"
			}
		}
		if one.Spec.Paused {
			state = "Paused"
		}
		count[state]++
		shown++
		label := name.String()
		if shown <= maxShown {
			values <- metrics.NewLazyConstMetric(scheduleMissed, metrics.CounterValue, float64(one.Status.Missed), label)
		}
		timing, err := domain.Parse(one.Spec.Schedule, one.Spec.TimeZone, one.UID)
		if one.Spec.Paused || err != nil {
			continue
		}
		last := entry.Spec.Since.Time
		if good := one.Status.LastSuccessTimestamp; good != nil && good.After(last) {
			last = good.Time
		}
		interval := timing.Interval(now)
		if now.Sub(last) > interval+interval/2 {
			late++
		}
		if shown <= maxShown {
			values <- metrics.NewLazyConstMetric(scheduleSuccess, metrics.GaugeValue, float64(last.Unix()), label)
			values <- metrics.NewLazyConstMetric(scheduleInterval, metrics.GaugeValue, interval.Seconds(), label)
		}
	}
	values <- metrics.NewLazyConstMetric(scheduleLate, metrics.GaugeValue, float64(late))
	for state, n := range count {
		values <- metrics.NewLazyConstMetric(scheduleCount, metrics.GaugeValue, n, state)
	}
}
