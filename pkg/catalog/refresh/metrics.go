// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "holdfast_catalog"

var (
	catalogBackups = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "backups",
		Help:           "Backups that the catalogue knows.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location"})
	catalogReplaced = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "replaced_backups",
		Help:           "Backups whose metadata another writer, such as Velero, has replaced.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location"})
	catalogLeftOut = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "left_out_backups",
		Help:           "Backups that are not listed, since nobody vouches for them and there are too many of such.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location"})
	catalogUnfinished = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "unfinished_folders",
		Help:           "Folders of the store without a finished backup. Each takes memory.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location"})
	catalogSuspicious = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "suspicious",
		Help:           "Whether the location has the condition BackupsMissing: so many backups are missing in the store that none leaves the lists.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location"})
	catalogRequests = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "requests_total",
		Help:           "Requests to the store to refresh the catalogue: each page of a listing, and each attempt.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location", "operation"})
	catalogRefresh = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "refresh_duration_seconds",
		Help:           "How long refreshes took, failed ones included.",
		Buckets:        []float64{0.01, 0.05, 0.25, 1, 5, 30, 120, 600},
		StabilityLevel: metrics.ALPHA,
	}, []string{"location"})
	catalogSuccess = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "last_success_timestamp_seconds",
		Help:           "When the last refresh that succeeded began, in seconds since 1970.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location"})

	register sync.Once
)

func registerMetrics() {
	register.Do(func() {
		legacyregistry.MustRegister(catalogBackups, catalogReplaced, catalogLeftOut, catalogUnfinished, catalogSuspicious, catalogRequests, catalogRefresh, catalogSuccess)
	})
}

func countRequest(location, operation string) {
	catalogRequests.WithLabelValues(location, operation).Inc()
}

func observeRefresh(location string, took time.Duration, replaced, leftOut, unfinished int, state State) {
	catalogRefresh.WithLabelValues(location).Observe(took.Seconds())
	catalogBackups.WithLabelValues(location).Set(float64(state.Backups))
	catalogReplaced.WithLabelValues(location).Set(float64(replaced))
	catalogLeftOut.WithLabelValues(location).Set(float64(leftOut))
	catalogUnfinished.WithLabelValues(location).Set(float64(unfinished))
	suspicious := 0.0
	if state.Suspicion != "" {
		suspicious = 1
	}
	catalogSuspicious.WithLabelValues(location).Set(suspicious)
	if !state.LastSuccess.IsZero() {
		catalogSuccess.WithLabelValues(location).Set(float64(state.LastSuccess.Unix()))
	}
}

func forgetMetrics(location string) {
	labels := map[string]string{"location": location}
	catalogBackups.Delete(labels)
	catalogReplaced.Delete(labels)
	catalogLeftOut.Delete(labels)
	catalogUnfinished.Delete(labels)
	catalogSuspicious.Delete(labels)
	catalogRefresh.Delete(labels)
	catalogSuccess.Delete(labels)
	for _, operation := range []string{"list", "get"} {
		catalogRequests.Delete(map[string]string{"location": location, "operation": operation})
	}
}
