// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"testing"

	"github.com/kopia/kopia/repo/blob"
)

// TestIndexNames: which indexes replace which, by their names.
func TestIndexNames(t *testing.T) {
	const (
		upload  = "xn3_0b88f8e80c2d295d526e770f7fddba6c-sca377399fe527fb6147-c1"
		another = "xn3_960ff628f504338b08e4952d6b1a1e14-s9b0cf780699ba071147-c1"
		later   = "xn4_960ff628f504338b08e4952d6b1a1e14-s9b0cf780699ba071147-c1"
		epoch   = "xs3_12345678901234567890123456789012-s00-c1"
		epochs4 = "xr0_4_0b88f8e80c2d295d526e770f7fddba6c-s00-c1"
		epochs9 = "xr0_9_0b88f8e80c2d295d526e770f7fddba6c-s00-c1"
		beyond  = "xr5_9_0b88f8e80c2d295d526e770f7fddba6c-s00-c1"
	)
	want := map[[2]blob.ID]bool{
		{epoch, upload}: true, {epoch, another}: true,
		{epochs4, upload}: true, {epochs4, another}: true, {epochs4, later}: true, {epochs4, epoch}: true,
		{epochs9, upload}: true, {epochs9, another}: true, {epochs9, later}: true, {epochs9, epoch}: true,
		{epochs9, epochs4}: true, {epochs9, beyond}: true,
	}
	all := []blob.ID{upload, another, later, epoch, epochs4, epochs9, beyond}
	for _, a := range all {
		for _, b := range all {
			one, ok := epochsOf(a)
			other, otherOK := epochsOf(b)
			if got := one.replaces(other); !ok || !otherOK || got != want[[2]blob.ID{a, b}] {
				t.Errorf("that %s (%v) replaces %s (%v) is %t", a, one, b, other, got)
			}
		}
	}
	for _, id := range []blob.ID{"xe4", "xw1764230400", "xn_", "xr3_0b88f8", "xn99999999999999999999_0", "p3_", "holdfast.indexes"} {
		if e, ok := epochsOf(id); ok {
			t.Errorf("%s is an index of the epochs %v", id, e)
		}
	}
}
