// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// maxLabelBytes bounds all claims' labels in the list of volumes, which must stay below
// format.MaxVolumesBytes.
const maxLabelBytes = 16 << 20

// end stores the side files, and velero-backup.json last. failure says why there is no tarball.
func (e *execution) end(ctx context.Context, failure error) (Outcome, error) {
	if ctx.Err() != nil {
		// The canceller may be cleaning up: write nothing more.
		return Outcome{Status: e.status(ctx.Err())}, ctx.Err()
	}
	if failure == nil {
		failure = e.storeContents(ctx)
	}
	if failure == nil {
		failure = e.verify(ctx)
	}
	if errors.Is(failure, ErrTakenOver) {
		return Outcome{Status: e.status(failure)}, cmp.Or(ctx.Err(), failure)
	}
	if failure != nil {
		e.findings.fail(subject{}, failure.Error())
		e.contents = format.Contents{}
	}
	if err := e.storeReport(ctx, e.status(failure).Phase); err != nil {
		// The objects can be restored without it.
		e.findings.fail(subject{}, err.Error())
	}
	// After a pause, another process may have ended the backup, and a user deleted it.
	if err := e.owns(ctx); err != nil {
		return Outcome{Status: e.status(err)}, cmp.Or(ctx.Err(), err)
	}
	status, err := e.commit(ctx, e.status(failure))
	switch {
	case err != nil && ctx.Err() != nil:
		return Outcome{Status: e.status(ctx.Err())}, ctx.Err()
	case err != nil:
		return Outcome{Status: e.status(errors.Join(failure, err))}, err
	}
	return Outcome{Status: status, Stored: true}, nil
}

func (e *execution) storeRead(ctx context.Context) error {
	if e.readStored {
		return nil
	}
	if err := e.put(ctx, format.ResourceListKey(e.storeName), func(w io.Writer) error { return format.WriteResourceList(w, e.list) }); err != nil {
		return err
	}
	var graph bytes.Buffer
	graph.Grow(e.manifest.Size())
	if _, err := e.manifest.WriteTo(&graph); err != nil {
		return fmt.Errorf("encode the manifest: %w", err)
	}
	return e.create(ctx, format.ManifestKey(e.storeName), graph.Bytes())
}

func (e *execution) storeContents(ctx context.Context) error {
	if err := e.storeRead(ctx); err != nil {
		return err
	}
	uploads, infos := e.uploads(), e.skipped
	for _, volume := range e.volumes {
		infos = append(infos, format.NewVolumeInfo(*volume))
	}
	for _, file := range []struct {
		key   string
		write func(io.Writer) error
	}{
		{format.PodVolumeBackupsKey(e.storeName), func(w io.Writer) error { return format.WritePodVolumeBackups(w, uploads) }},
		{format.VolumeInfoKey(e.storeName), func(w io.Writer) error { return format.WriteVolumeInfo(w, infos) }},
		{format.VolumeSnapshotsKey(e.storeName), format.WriteEmptyList},
		{format.ItemOperationsKey(e.storeName), format.WriteEmptyList},
	} {
		if err := e.put(ctx, file.key, file.write); err != nil {
			return err
		}
	}
	return nil
}

func (e *execution) uploads() []format.PodVolumeBackup {
	uploads := make([]format.PodVolumeBackup, 0, len(e.volumes))
	labels := 0
	for _, volume := range e.volumes {
		listed := *volume
		for key, value := range listed.ClaimLabels {
			labels += len(`\"\":\"\",`) + len(key) + len(value)
		}
		if labels > maxLabelBytes {
			listed.ClaimLabels = nil
		}
		uploads = append(uploads, format.NewPodVolumeBackup(e.request.Backup, e.storeName, listed))
	}
	return uploads
}

func (e *execution) storeReport(ctx context.Context, phase v1alpha1.BackupPhase) error {
	errorCount, warnings := e.findings.counts()
	e.log.write(slog.LevelInfo, "the backup ends", slog.String("phase", string(phase)), slog.Int("errors", int(errorCount)), slog.Int("warnings", int(warnings)))
	err := e.put(ctx, format.ResultsKey(e.storeName), func(w io.Writer) error { return format.WriteResults(w, e.findings.Results) })
	if err != nil {
		return err
	}
	return e.put(ctx, format.LogKey(e.storeName), func(w io.Writer) error {
		_, err := w.Write(e.log.close())
		return err
	})
}

func (e *execution) put(ctx context.Context, key string, write func(io.Writer) error) error {
	content, err := e.marked(write)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	return e.create(ctx, key, content)
}

func (e *execution) retry(ctx context.Context, try func() error) error {
	backoff := e.Retry
	for {
		err := try()
		if !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil || backoff.Steps <= 1 {
			return err
		}
		if err := sleep(ctx, &backoff); err != nil {
			return err
		}
	}
}
