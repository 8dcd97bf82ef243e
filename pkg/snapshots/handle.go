// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	confirmTime = 5 * time.Minute
	// denyTime bounds the driver's errors until the snapshot counts as missing. The sidecar asks again after a
	// second, then less often.
	denyTime = 20 * time.Second
)

// byHandle returns the snapshot that the backup names, with a class of the driver: some want its secret.
func (c *Client) byHandle(ctx context.Context, w Wanted) (Found, error) {
	found := Found{Driver: w.Driver, Handle: w.Handle, Size: w.Size, ByHandle: true}
	classes, err := c.Classes(ctx)
	if err != nil {
		return Found{}, fmt.Errorf("read the cluster's VolumeSnapshotClasses: %w", err)
	}
	if class, err := Class(w.Driver, Wishes{}, classes); err == nil {
		found.Class = class.Name
	}
	return found, nil
}

// Confirm waits until the driver knows the snapshot of an offer: without it no claim is bound. It returns the
// least size of a volume, or 0. A driver that can't look at snapshots confirms each.
func (c *Client) Confirm(ctx context.Context, w Wanted) (size int64, err error) {
	said, pause, begun, denied := "", time.Duration(0), time.Now(), time.Time{}
	for {
		content, err := get[VolumeSnapshotContent](ctx, c.objects.Resource(Contents), w.OfferName())
		switch {
		case err == nil && content == nil:
			return 0, fmt.Errorf("the VolumeSnapshotContent %s of the restore was deleted: restore again", w.OfferName())
		case err == nil && content.Status.Ready:
			return content.Status.Size, nil
		case err == nil:
			if said = content.message(); said == "" {
				denied = time.Time{}
			} else if denied.IsZero() {
				denied = time.Now()
			}
		case !passing(err):
			return 0, err
		default:
			said = err.Error()
		}
		if !denied.IsZero() && time.Since(denied) > denyTime {
			return 0, errors.New(said)
		}
		if time.Since(begun) > confirmTime {
			return 0, fmt.Errorf("it was not confirmed within %s: %s", confirmTime, cmp.Or(said, "the driver has not answered: is its csi-snapshotter running?"))
		}
		if !c.pause(ctx, &pause, c.lastPause) {
			return 0, context.Cause(ctx)
		}
	}
}
