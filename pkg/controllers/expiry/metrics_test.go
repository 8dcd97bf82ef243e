// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"strings"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
)

func TestMetrics(t *testing.T) {
	registerMetrics()
	expiredBackups.Reset()
	for _, state := range []string{stateFrozen, stateHeld} {
		expiredBackups.WithLabelValues("default", state).Inc()
	}
	want := `
# HELP holdfast_expiry_backups [ALPHA] Backups that have expired and are not being deleted, by state: Due, Frozen, since more than may within an hour have, or the clock differs from the store's, Doubtful, since their store was not read lately, Refused by the API server, Held by somebody, or Kept, as the last good ones of a namespace.
# TYPE holdfast_expiry_backups gauge
holdfast_expiry_backups{location="default",state="Frozen"} 1
holdfast_expiry_backups{location="default",state="Held"} 1
`
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "holdfast_expiry_backups"); err != nil {
		t.Error(err)
	}
}
