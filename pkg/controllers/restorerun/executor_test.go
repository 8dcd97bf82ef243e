// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// TestIsFinal: a store that is away for a while ends no restore.
func TestIsFinal(t *testing.T) {
	for err, want := range map[error]bool{
		errors.New("connection refused"):                false,
		&restore.Refused{Reasons: []string{"not that"}}: true,
		fmt.Errorf("read: %w", source.ErrRefused):       true,
		fmt.Errorf("read: %w", source.ErrNoBackup):      true,
		fmt.Errorf("read: %w", store.ErrNotFound):       true,
		fmt.Errorf("location: %w", errNoLocation):       true,
	} {
		if isFinal(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}
