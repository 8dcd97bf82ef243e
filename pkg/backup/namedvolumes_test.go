// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"slices"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// TestVolumesOfPendingClaims shows that the persistent volume comes along which a claim names that
// is not bound yet, if the volume is kept for that claim. A claim that names the volume of
// another claim does not get it into its backup.
func TestVolumesOfPendingClaims(t *testing.T) {
	for name, test := range map[string]struct {
		claimRef string
		taken    bool
	}{
		"kept for the claim":                {`{"namespace":"shop","name":"data"}`, true},
		"kept for the claim with its uid":   {`{"namespace":"shop","name":"data","uid":"u"}`, true},
		"bound to one of its name before":   {`{"namespace":"shop","name":"data","uid":"earlier"}`, false},
		"bound to a claim of somebody else": {`{"namespace":"bank","name":"data","uid":"v"}`, false},
		"free":                              {`null`, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1alpha1.BackupSpec{IncludedNamespaces: []string{"shop"}})
			f.add("namespaces", namespace("shop", ""), namespace("bank", ""))
			f.add("persistentvolumes", `{"metadata":{"name":"pv"},"spec":{"claimRef":`+test.claimRef+`}}`)
			f.add("persistentvolumeclaims", `{"metadata":{"namespace":"shop","name":"data","uid":"u"},"spec":{"volumeName":"pv"},"status":{"phase":"Pending"}}`)
			f.run(t)
			if taken := slices.Contains(f.items(t), "persistentvolumes pv"); taken != test.taken {
				t.Errorf("the volume is in the backup: %t, want %t", taken, test.taken)
			}
		})
	}
}
