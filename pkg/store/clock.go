// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-io/holdfast/pkg/format"
)

// MostClockDifference is how far the clocks of a process and of a store may be apart for what
// goes by age. Kopia's maintenance allows as much.
const MostClockDifference = 5 * time.Minute

// ErrClock: the clock of the store and that of this process differ by more than
// MostClockDifference, so nobody can tell what is old.
var ErrClock = errors.New("the clock and the store's differ")

// CheckClock fails with ErrClock unless a clock agrees with the store's, in one request. Whoever
// removes by age asks before. A store that tells no time, as one in memory, is taken to agree.
func (b *Bucket) CheckClock(ctx context.Context, clock clock.PassiveClock) error {
	if err := b.checkFolder(ctx, ""); err != nil {
		return err
	}
	// How long the answer took is no difference, nor are parts of a second, which HTTP leaves out.
	asked := clock.Now().Truncate(time.Second)
	theirs, err := b.backend.now(ctx, b.prefix)
	if err != nil {
		return explain("ask the clock of", format.HoldfastPrefix, err)
	}
	answered := clock.Now()
	ahead := max(asked.Sub(theirs), 0) - max(theirs.Sub(answered), 0)
	if theirs.IsZero() || ahead.Abs() <= MostClockDifference {
		return nil
	}
	is := "ahead of"
	if ahead < 0 {
		is = "behind"
	}
	return fmt.Errorf("%w: this one is %s %s the store's, which says %s; %s are allowed",
		ErrClock, ahead.Abs().Round(time.Second), is, theirs.UTC().Format(time.RFC3339), MostClockDifference)
}
