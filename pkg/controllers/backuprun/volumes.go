// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/repository"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
)

// volumes hands the volumes of one run to the agents, as PodVolumeBackups. It
// implements backup.Volumes.
type volumes struct {
	run        *enginev1alpha1.BackupRun
	client     engineclient.PodVolumeBackupInterface
	repository func(ctx context.Context, volumeNamespace string) error
	clock      clock.Clock
	// timeout is how long a volume may take, from its submission.
	timeout time.Duration

	mu       sync.Mutex
	records  map[string]*volumeRecord
	progress chan struct{} // closed at the next change
	// namespaces are those of all volumes that were submitted, also when no answer came.
	namespaces sets.Set[string]
}

type volumeRecord struct {
	request  backup.VolumeRequest
	deadline time.Time
	latest   enginev1alpha1.PodVolumeBackupStatus
}

var _ backup.Volumes = &volumes{}

func newVolumes(run *enginev1alpha1.BackupRun, client engineclient.PodVolumeBackupInterface,
	repository func(context.Context, string) error, clock clock.Clock, timeout time.Duration) *volumes {
	return &volumes{
		run: run, client: client, repository: repository, clock: clock, timeout: timeout,
		records:    map[string]*volumeRecord{},
		progress:   make(chan struct{}),
		namespaces: sets.New[string](),
	}
}

// Submit implements backup.Volumes.
func (v *volumes) Submit(ctx context.Context, request backup.VolumeRequest) error {
	if err := v.repository(ctx, request.Pod.Namespace); err != nil {
		return err
	}
	location := v.run.Spec.Backup.StorageLocation
	record := &enginev1alpha1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			Name: recordName(v.run, request),
			Labels: map[string]string{
				enginev1alpha1.LabelRun:  string(v.run.UID),
				enginev1alpha1.LabelNode: enginev1alpha1.NodeLabel(request.Node),
			},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(v.run, enginev1alpha1.SchemeGroupVersion.WithKind("BackupRun")),
			},
		},
		Spec: enginev1alpha1.PodVolumeBackupSpec{
			Node:                  request.Node,
			Pod:                   request.Pod,
			Volume:                request.Volume,
			ClaimName:             request.ClaimName,
			ClaimUID:              request.ClaimUID,
			PersistentVolume:      request.PersistentVolume,
			BackupStorageLocation: location,
			Repository:            enginev1alpha1.RepositoryName(request.Pod.Namespace, location),
		},
	}
	if !v.add(record.Name, request) {
		return nil
	}
	_, err := v.client.Create(ctx, record, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// An earlier answer was lost, and its events may have come before this call.
		var existing *enginev1alpha1.PodVolumeBackup
		if existing, err = v.client.Get(ctx, record.Name, metav1.GetOptions{}); err == nil {
			v.observe(existing)
		}
	}
	if err != nil {
		v.mu.Lock()
		delete(v.records, record.Name)
		v.mu.Unlock()
		return fmt.Errorf("handing volume %s of pod %s/%s to its node: %w", request.Volume, request.Pod.Namespace, request.Pod.Name, err)
	}
	return nil
}

// add takes note of a volume, unless that was done before.
func (v *volumes) add(name string, request backup.VolumeRequest) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.records[name] != nil {
		return false
	}
	v.namespaces.Insert(request.Pod.Namespace)
	v.records[name] = &volumeRecord{request: request, deadline: v.clock.Now().Add(v.timeout)}
	return true
}

// submitted are the namespaces of volumes that may have records, and snapshots.
func (v *volumes) submitted() sets.Set[string] {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.namespaces.Clone()
}

// recordName is the same for the same volume of the same run, so that a repeated
// submission makes no second record.
func recordName(run *enginev1alpha1.BackupRun, request backup.VolumeRequest) string {
	sum := sha256.Sum256([]byte(string(run.UID) + "/" + string(request.Pod.UID) + "/" + request.Volume))
	return run.Name + "-" + hex.EncodeToString(sum[:8])
}

// Wait implements backup.Volumes.
func (v *volumes) Wait(ctx context.Context) ([]backup.VolumeResult, error) {
	for {
		v.mu.Lock()
		changed := v.progress
		var results []backup.VolumeResult
		var next time.Time
		now := v.clock.Now()
		for _, record := range v.records {
			if !record.latest.Phase.Done() && !now.Before(record.deadline) {
				record.latest = v.failed(record.latest, fmt.Sprintf("the volume was not uploaded within %s: is the agent of node %q running?", v.timeout, record.request.Node))
			}
			if record.latest.Phase.Done() {
				results = append(results, backup.VolumeResult{Request: record.request, Status: record.latest})
			} else if next.IsZero() || record.deadline.Before(next) {
				next = record.deadline
			}
		}
		done := len(results) == len(v.records)
		v.mu.Unlock()
		if done {
			return results, nil
		}
		timer := v.clock.NewTimer(next.Sub(now))
		select {
		case <-changed:
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

// observe takes note of a record's state.
func (v *volumes) observe(record *enginev1alpha1.PodVolumeBackup) {
	v.update(record.Name, func(enginev1alpha1.PodVolumeBackupStatus) enginev1alpha1.PodVolumeBackupStatus {
		return *record.Status.DeepCopy()
	})
}

// gone takes note that a record was deleted.
func (v *volumes) gone(name string) {
	v.update(name, func(latest enginev1alpha1.PodVolumeBackupStatus) enginev1alpha1.PodVolumeBackupStatus {
		return v.failed(latest, "the PodVolumeBackup was deleted before its upload had ended")
	})
}

func (v *volumes) update(name string, change func(enginev1alpha1.PodVolumeBackupStatus) enginev1alpha1.PodVolumeBackupStatus) {
	v.mu.Lock()
	defer v.mu.Unlock()
	record, ok := v.records[name]
	if !ok || record.latest.Phase.Done() {
		return
	}
	record.latest = change(record.latest)
	close(v.progress)
	v.progress = make(chan struct{})
}

func (v *volumes) failed(status enginev1alpha1.PodVolumeBackupStatus, message string) enginev1alpha1.PodVolumeBackupStatus {
	now := metav1.NewTime(v.clock.Now())
	status.Phase = enginev1alpha1.VolumePhaseFailed
	status.Message = message
	status.CompletionTimestamp = &now
	return status
}

// counts sums up the volumes so far; nil while there are none.
func (v *volumes) counts() *v1alpha1.BackupVolumesProgress {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.records) == 0 {
		return nil
	}
	sum := &v1alpha1.BackupVolumesProgress{Total: int32(len(v.records))}
	for _, record := range v.records {
		switch record.latest.Phase {
		case enginev1alpha1.VolumePhaseCompleted:
			sum.Completed++
		case enginev1alpha1.VolumePhaseFailed:
			sum.Failed++
		}
		sum.TotalBytes += record.latest.Progress.TotalBytes
		sum.BytesDone += record.latest.Progress.BytesDone
	}
	return sum
}

// stop deletes the records of a run, which ends the uploads that still go on.
func stop(ctx context.Context, client engineclient.PodVolumeBackupInterface, run types.UID) error {
	err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, volumesOf(run))
	if err != nil {
		return fmt.Errorf("stopping the uploads of the backup's volumes: %w", err)
	}
	return nil
}

// volumesOf selects the records of a run.
func volumesOf(run types.UID) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: enginev1alpha1.LabelRun + "=" + string(run)}
}

// ensureRepository makes sure that the repository of a namespace is asked for.
func (c *Controller) ensureRepository(ctx context.Context, volumeNamespace, location string) error {
	_, err := repository.EnsureRecord(ctx, c.Engine.BackupRepositories(c.Namespace), volumeNamespace, location)
	return err
}

// volumeHandler passes the changes of records to the runs that they belong to.
func (c *Controller) volumeHandler() cache.ResourceEventHandler {
	observe := func(obj any) {
		if record, ok := obj.(*enginev1alpha1.PodVolumeBackup); ok {
			if v := c.volumesOf(record); v != nil {
				v.observe(record)
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, obj any) { observe(obj) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if record, ok := obj.(*enginev1alpha1.PodVolumeBackup); ok {
				if v := c.volumesOf(record); v != nil {
					v.gone(record.Name)
				}
			}
		},
	}
}

func (c *Controller) volumesOf(record *enginev1alpha1.PodVolumeBackup) *volumes {
	c.mu.Lock()
	defer c.mu.Unlock()
	if execution := c.active[types.UID(record.Labels[enginev1alpha1.LabelRun])]; execution != nil {
		return execution.volumes
	}
	return nil
}
