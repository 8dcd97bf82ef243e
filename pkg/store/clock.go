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

// MostClockDifference is the maximum between the clocks of process and store for work that depends on
// ages.
const MostClockDifference = 5 * time.Minute

// ErrClock: the clocks differ by more than MostClockDifference.
var ErrClock = errors.New("the clock and the store's differ")

// CheckClock fails with ErrClock unless a clock agrees with the store's, in one request. Check before
// removing by age. A store without a clock agrees.
func (b *Bucket) CheckClock(ctx context.Context, clock clock.PassiveClock) error {
	_, err := b.CompareClock(ctx, clock)
	return err
}

// CompareClock is CheckClock, and describes the difference.
func (b *Bucket) CompareClock(ctx context.Context, clock clock.PassiveClock) (said string, err error) {
	if err := b.checkFolder(ctx, ""); err != nil {
		return "", err
	}
	// The request takes time; HTTP truncates to seconds.
	asked := clock.Now().Truncate(time.Second)
	theirs, err := b.backend.now(ctx, b.prefix)
	if err != nil {
		return "", explain("ask the clock of", format.HoldfastPrefix, err)
	}
	answered := clock.Now()
	ahead := max(asked.Sub(theirs), 0) - max(theirs.Sub(answered), 0)
	is := "ahead of"
	if ahead < 0 {
		is = "behind"
	}
	switch rounded := ahead.Abs().Round(time.Second); {
	case theirs.IsZero():
		return "the store tells no time", nil
	case ahead.Abs() > MostClockDifference:
		return "", fmt.Errorf("%w: this one is %s %s the store's, which says %s; %s are allowed",
			ErrClock, rounded, is, theirs.UTC().Format(time.RFC3339), MostClockDifference)
	case rounded == 0:
		return "it agrees with the store's to the second", nil
	default:
		return fmt.Sprintf("it is %s %s the store's, and %s are allowed", rounded, is, MostClockDifference), nil
	}
}
