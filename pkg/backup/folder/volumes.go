// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// ErrNoList reports a missing or changed list of volumes.
var ErrNoList = errors.New("the list of its volumes is not the one that was stored with it")

// Volumes returns the snapshot ids of volumes, if the list's digest is in the given metadata.
func (f *Folder) Volumes(ctx context.Context, backup *v1alpha1.Backup) (map[format.VolumeID]string, error) {
	contents, err := format.TakeContents(backup.DeepCopy())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoList, err)
	}
	key := format.PodVolumeBackupsKey(f.StoreName)
	want, named := contents.Of(key)
	if !named {
		return nil, nil
	}
	var volumes map[format.VolumeID]string
	var bad error
	err = f.Read(ctx, key, func(r io.Reader) error {
		volumes, bad = map[format.VolumeID]string{}, nil
		repeats := map[format.VolumeID]int32{}
		sum, counted := sha256.New(), &counter{}
		seen := io.TeeReader(r, io.MultiWriter(sum, counted))
		bad = format.ReadPodVolumeBackups(seen, func(volume format.PodVolumeBackup) error {
			id := format.VolumeID{Namespace: volume.Spec.Pod.Namespace, Name: volume.VolumeName()}
			repeat := repeats[id]
			repeats[id]++
			id.Repeat = repeat
			volumes[id] = volume.Status.SnapshotID
			return nil
		})
		if bad != nil {
			return bad
		}
		if _, err := io.Copy(io.Discard, io.LimitReader(seen, want.Size+1)); err != nil {
			return err
		}
		if format.ContentOf(counted.n, sum) != want {
			bad = errors.New("its digest is another one")
		}
		return bad
	})
	switch {
	case err == nil:
		return volumes, nil
	case bad == nil && !errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrDenied), ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrNoList, key, err)
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// DeletedVolumes returns deleted volumes by the change that counts; none of a missing backup.
func (f *Folder) DeletedVolumes(ctx context.Context, clusterUID string, keys []string) ([]format.DeletedVolume, error) {
	backup, err := f.Find(ctx)
	if err != nil || backup == nil {
		return nil, err
	}
	newest, _, err := f.NewestExpiration(ctx, backup, clusterUID, keys)
	if err != nil || newest == nil {
		return nil, err
	}
	return newest.Deleted, nil
}
