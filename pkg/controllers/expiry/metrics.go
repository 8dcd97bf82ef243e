// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	expiredTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      "holdfast",
		Name:           "backups_expired_total",
		Help:           "Backups whose deletion was asked for since they have expired.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location"})
	expiredBackups = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      "holdfast_expiry",
		Name:           "backups",
		Help:           "Backups that have expired and are not being deleted, by state: Due, Frozen, since more than may within an hour have, or the clock differs from the store's, Doubtful, since their store was not read lately, Refused by the API server, Held by somebody, or Kept, as the last good ones of a namespace.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"location", "state"})
	lastLook = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem:      "holdfast_expiry",
		Name:           "last_success_timestamp_seconds",
		Help:           "When the backups were last looked through for those that have expired.",
		StabilityLevel: metrics.ALPHA,
	})

	register sync.Once
)

func registerMetrics() {
	register.Do(func() { legacyregistry.MustRegister(expiredTotal, expiredBackups, lastLook) })
}

const (
	stateDue      = "Due"
	stateFrozen   = "Frozen"
	stateDoubtful = "Doubtful"
	stateRefused  = "Refused"
	stateKept     = "Kept"
	stateHeld     = "Held"
)
