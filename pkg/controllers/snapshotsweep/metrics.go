// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshotsweep

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	count = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem:      "holdfast",
		Name:           "snapshots",
		Help:           "Snapshots of volumes that the cluster has for backups, by state: kept, leaving, stuck, since it or a volume made from it has been leaving for more than an hour, or doubt, since the store of its backup was not read, has lacked it for less than a day, or lacks too many.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})

	register sync.Once
)

func registerMetrics() { register.Do(func() { legacyregistry.MustRegister(count) }) }
