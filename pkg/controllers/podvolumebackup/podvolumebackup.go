// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podvolumebackup uploads the volumes that the PodVolumeBackups of a node
// ask for. How a record is driven is the promise of package volumework.
package podvolumebackup

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/volumework"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

// Controller drives the PodVolumeBackups of a node.
type Controller = volumework.Controller[*engine.PodVolumeBackup]

// New returns a Controller. The informer should see the records of the node only:
// those with the label engine.LabelNode.
func New(config volumework.Config, records engineclient.PodVolumeBackupsGetter, informer engineinformers.PodVolumeBackupInformer) (*Controller, error) {
	return volumework.New(config, volumework.Kind[*engine.PodVolumeBackup]{
		Name:          "podvolumebackup",
		Class:         datapath.ClassBackup,
		Action:        "Upload",
		FailureReason: "VolumeUploadFailed",
		Target:        target,
		Status:        status,
		Cancelled:     func(record *engine.PodVolumeBackup) bool { return record.Spec.Cancel },
		Move:          upload,
	}, records.PodVolumeBackups(config.Namespace), informer.Lister().PodVolumeBackups(config.Namespace), informer.Informer())
}

func target(record *engine.PodVolumeBackup) volumework.Target {
	return volumework.Target{
		Node:             record.Spec.Node,
		Pod:              record.Spec.Pod.UID,
		Volume:           record.Spec.Volume,
		PersistentVolume: record.Spec.PersistentVolume,
		Repository:       record.Spec.Repository,
	}
}

func status(record *engine.PodVolumeBackup) volumework.Status {
	return volumework.Status{
		Phase:      &record.Status.Phase,
		Message:    &record.Status.Message,
		Progress:   &record.Status.Progress,
		Start:      &record.Status.StartTimestamp,
		Completion: &record.Status.CompletionTimestamp,
	}
}

func upload(ctx context.Context, r *repository.Repository, record *engine.PodVolumeBackup, folder string, p *datapath.Progress) (volumework.Result[*engine.PodVolumeBackup], error) {
	uploaded, err := datapath.Upload(ctx, r, datapath.UploadRequest{
		Path: folder,
		Source: datapath.Source{
			Namespace: record.Spec.Pod.Namespace,
			Pod:       record.Spec.Pod.Name,
			Volume:    record.Spec.Volume,
			ClaimName: record.Spec.ClaimName,
			ClaimUID:  record.Spec.ClaimUID,
		},
		Backup: types.UID(record.Labels[engine.LabelRun]),
	}, p)
	return volumework.Result[*engine.PodVolumeBackup]{
		Bytes:    uploaded.TotalBytes,
		Warnings: uploaded.Warnings,
		Apply: func(record *engine.PodVolumeBackup) {
			record.Status.SnapshotID = uploaded.SnapshotID
			record.Status.Path = folder
			record.Status.IncrementalBytes = uploaded.IncrementalBytes
			record.Status.Warnings = int32(min(uploaded.Warnings.Count, 1<<31-1))
		},
		Undo: func(ctx context.Context) error {
			return datapath.DeleteSnapshots(ctx, r, []string{uploaded.SnapshotID})
		},
	}, err
}
