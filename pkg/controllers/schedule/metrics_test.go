// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// hack/alerts reads from here what the API server serves.
const exposition = `# HELP holdfast_schedule_interval_seconds [ALPHA] The longest time between two of the next backups of a schedule that is not paused.
# TYPE holdfast_schedule_interval_seconds gauge
holdfast_schedule_interval_seconds{schedule="shop/nightly"} 86400
# HELP holdfast_schedule_last_success_timestamp_seconds [ALPHA] When the last Completed backup ended of a schedule, NAMESPACE/NAME, that is not paused; when its times began, if that is later.
# TYPE holdfast_schedule_last_success_timestamp_seconds gauge
holdfast_schedule_last_success_timestamp_seconds{schedule="shop/nightly"} 1777982400
# HELP holdfast_schedule_late [ALPHA] Schedules that are not paused and have had no good backup for one and a half of their intervals.
# TYPE holdfast_schedule_late gauge
holdfast_schedule_late 0
# HELP holdfast_schedule_missed_total [ALPHA] Backups of a schedule that were due and not made.
# TYPE holdfast_schedule_missed_total counter
holdfast_schedule_missed_total{schedule="shop/nightly"} 0
# HELP holdfast_schedules [ALPHA] Schedules by state: Paused, or else OnTime or WhyNot by what became of the last time that a backup was due.
# TYPE holdfast_schedules gauge
holdfast_schedules{state="OnTime"} 1
holdfast_schedules{state="Paused"} 0
holdfast_schedules{state="WhyNot"} 0
`

func TestMetrics(t *testing.T) {
	w := newWorld(v1alpha1.ScheduleSpec{Schedule: "@daily"}, noon)
	c, v := w.controller()
	registerMetrics(c)
	shown := func(want string) {
		t.Helper()
		if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want),
			"holdfast_schedules", "holdfast_schedule_late", "holdfast_schedule_last_success_timestamp_seconds", "holdfast_schedule_interval_seconds", "holdfast_schedule_missed_total"); err != nil {
			t.Error(err)
		}
	}
	shown(exposition)
	w.clock.Step(36 * time.Hour)
	shown(exposition)
	w.clock.Step(time.Second)
	shown(strings.Replace(exposition, "holdfast_schedule_late 0", "holdfast_schedule_late 1", 1))
	w.edit(func(spec *enginev1alpha1.ScheduleEntrySpec) { spec.Schedule.Paused = true })
	v.known = w.entry
	shown(`# HELP holdfast_schedule_late [ALPHA] Schedules that are not paused and have had no good backup for one and a half of their intervals.
# TYPE holdfast_schedule_late gauge
holdfast_schedule_late 0
# HELP holdfast_schedule_missed_total [ALPHA] Backups of a schedule that were due and not made.
# TYPE holdfast_schedule_missed_total counter
holdfast_schedule_missed_total{schedule="shop/nightly"} 0
# HELP holdfast_schedules [ALPHA] Schedules by state: Paused, or else OnTime or WhyNot by what became of the last time that a backup was due.
# TYPE holdfast_schedules gauge
holdfast_schedules{state="OnTime"} 0
holdfast_schedules{state="Paused"} 1
holdfast_schedules{state="WhyNot"} 0
`)
	c.Leads = func() bool { return false }
	shown("")
}
