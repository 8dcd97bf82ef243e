// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/store"
)

func stillMoving(volumes []*format.Volume) (moving, ended []*format.Volume) {
	for _, volume := range volumes {
		if volume.Snapshot != nil && !volume.Status.Phase.Done() {
			moving = append(moving, volume)
		} else {
			ended = append(ended, volume)
		}
	}
	return moving, ended
}

// handOver stores all that is read: docs/design/snapshots.md, "Two phases". Slot and namespaces are
// free then, unless that can't be noted.
func (e *execution) handOver(ctx context.Context) error {
	if err := e.storeRead(ctx); err != nil {
		return err
	}
	e.list, e.manifest, e.readStored = nil, manifest.Writer{}, true
	handover := &format.Handover{
		Contents: e.contents, Volumes: e.volumes, Skipped: e.skipped, LeftOut: e.leftOut,
		Findings: e.findings.soFar(), HookStatus: e.hooks.counts(), Encryption: e.encryption.Status(), Progress: e.Progress.Objects(),
	}
	var log bytes.Buffer
	if err := e.log.Copy(ctx, &log, false); err != nil {
		return fmt.Errorf("read the backup's log: %w", err)
	}
	handover.Log = log.Bytes()
	key := format.HandoverKey(e.storeName)
	if err := e.put(ctx, key, func(w io.Writer) error { return format.WriteHandover(w, handover) }); err != nil {
		return err
	}
	e.contents.Drop(key)
	if e.Moving == nil {
		return nil
	}
	err := e.Moving(ctx)
	switch {
	case errors.Is(err, ErrTakenOver) || ctx.Err() != nil:
		return err
	case err != nil:
		e.log.write(slog.LevelInfo, "the backup keeps its slot and its namespaces until its data is moved: "+err.Error())
	default:
		e.log.write(slog.LevelInfo, "all snapshots are cut and all objects stored: the slot and the namespaces are free, and the data is moved")
	}
	return nil
}

func (e *execution) move(ctx context.Context, moving []*format.Volume) error {
	err := e.Volumes.Wait(ctx, moving)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		e.findings.fail(subject{}, fmt.Sprintf("wait for the volumes: %v", err))
	}
	e.findings.conclude(moving)
	return nil
}

func (e *execution) goOn(ctx context.Context) error {
	handover, err := e.readHandover(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("the backup was read by an earlier process, and what it has stored for this one can't be read: %w", err)
	}
	e.contents, e.readStored = handover.Contents, true
	e.volumes, e.skipped, e.leftOut = handover.Volumes, handover.Skipped, handover.LeftOut
	e.findings.adopt(handover.Findings)
	e.Progress.found.Store(handover.Progress.TotalItems)
	e.Progress.written.Store(handover.Progress.ItemsBackedUp)
	e.hookStatus, e.encryptionStatus = handover.HookStatus, handover.Encryption
	e.log.Include(handover.Log, runlog.MaxBytes/2)
	e.log.write(slog.LevelInfo, "the process that has read the cluster is gone, and the data of the snapshots is moved by the next", slog.Int("attempt", e.request.Attempt))
	for _, volume := range e.volumes {
		err := retried(ctx, e.Retry, func() error { return e.Volumes.Submit(ctx, volume) })
		if err != nil && ctx.Err() == nil && !volume.Status.Phase.Done() {
			now := metav1.NewTime(e.Clock.Now())
			volume.Status = enginev1alpha1.VolumeUploadStatus{Phase: enginev1alpha1.VolumePhaseFailed, Message: "it could not be handed over: " + err.Error(), CompletionTimestamp: &now}
			e.findings.conclude([]*format.Volume{volume})
		}
	}
	moving, _ := stillMoving(e.volumes)
	return e.move(ctx, moving)
}

// readHandover waits while the store does not answer: hours of work are in it.
func (e *execution) readHandover(ctx context.Context) (handover *format.Handover, err error) {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt32}
	for {
		err = e.folder.Read(ctx, format.HandoverKey(e.storeName), func(r io.Reader) (err error) {
			handover, err = format.ReadHandover(r)
			return err
		})
		if !errors.Is(err, store.ErrUnavailable) || sleep(ctx, &backoff) != nil {
			return handover, err
		}
	}
}

// dropHandover removes an ended backup's handover, or leaves it until the backup is deleted.
func (e *execution) dropHandover(ctx context.Context) {
	key := format.HandoverKey(e.storeName)
	object, err := e.Store.Attributes(ctx, key)
	if err == nil {
		err = e.owns(ctx)
	}
	if err == nil {
		err = e.folder.Remove(ctx, e.Remover, object)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		e.logger.Info("What one attempt has left for the next stays beside the backup", "key", key, "err", err)
	}
}
