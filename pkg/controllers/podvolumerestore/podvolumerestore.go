// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podvolumerestore writes snapshots back into the volumes that the
// PodVolumeRestores of a node name. How a record is driven is the promise of
// package volumework.
package podvolumerestore

import (
	"context"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/volumework"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

// Controller drives the PodVolumeRestores of a node.
type Controller = volumework.Controller[*engine.PodVolumeRestore]

// New returns a Controller. The informer should see the records of the node only:
// those with the label engine.LabelNode.
func New(config volumework.Config, records engineclient.PodVolumeRestoresGetter, informer engineinformers.PodVolumeRestoreInformer) (*Controller, error) {
	return volumework.New(config, volumework.Kind[*engine.PodVolumeRestore]{
		Name:          "podvolumerestore",
		Class:         datapath.ClassRestore,
		Action:        "Restore",
		FailureReason: "VolumeRestoreFailed",
		Target:        target,
		Status:        status,
		Move:          restore,
	}, records.PodVolumeRestores(config.Namespace), informer.Lister().PodVolumeRestores(config.Namespace), informer.Informer())
}

func target(record *engine.PodVolumeRestore) volumework.Target {
	return volumework.Target{
		Node:             record.Spec.Node,
		Pod:              record.Spec.Pod.UID,
		Volume:           record.Spec.Volume,
		PersistentVolume: record.Spec.PersistentVolume,
		Repository:       record.Spec.Repository,
	}
}

func status(record *engine.PodVolumeRestore) volumework.Status {
	return volumework.Status{
		Phase:      &record.Status.Phase,
		Message:    &record.Status.Message,
		Progress:   &record.Status.Progress,
		Start:      &record.Status.StartTimestamp,
		Completion: &record.Status.CompletionTimestamp,
	}
}

func restore(ctx context.Context, r *repository.Repository, record *engine.PodVolumeRestore, folder string, p *datapath.Progress) (volumework.Result[*engine.PodVolumeRestore], error) {
	restored, err := datapath.Restore(ctx, r, datapath.RestoreRequest{SnapshotID: record.Spec.SnapshotID, Path: folder}, p)
	return volumework.Result[*engine.PodVolumeRestore]{Bytes: restored.TotalBytes, Warnings: restored.Warnings}, err
}
