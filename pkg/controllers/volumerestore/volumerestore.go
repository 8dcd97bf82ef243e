// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumerestore writes snapshots back into the volumes that the
// VolumeRestores of a node name. How a record is driven is the promise of
// package volumework.
package volumerestore

import (
	"cmp"
	"context"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/volumework"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// Controller drives the VolumeRestores of a node.
type Controller = volumework.Controller[*engine.VolumeRestore]

// New returns a Controller. It reads own, which should be the records of the node only, as
// the informer does, and writes records.
func New(config volumework.Config, own, records engineclient.VolumeRestoresGetter, informer engineinformers.VolumeRestoreInformer) (*Controller, error) {
	return volumework.New(config, volumework.Kind[*engine.VolumeRestore]{
		Name:          "volumerestore",
		Resource:      "volumerestores",
		Class:         datapath.ClassRestore,
		Action:        "Restore",
		FailureReason: "VolumeRestoreFailed",
		Target:        target,
		Status:        status,
		Cancelled:     func(record *engine.VolumeRestore) bool { return record.Spec.Cancel },
		Move:          restore,
		Ended:         func(record *engine.VolumeRestore) error { return tell(config.PodsDir, record) },
	}, own.VolumeRestores(config.Namespace), records.VolumeRestores(config.Namespace), informer.Lister().VolumeRestores(config.Namespace), informer.Informer())
}

func target(record *engine.VolumeRestore) volumework.Target {
	return volumework.Target{
		Node:             record.Spec.Node,
		Pod:              record.Spec.Pod.UID,
		Volume:           record.Spec.Volume,
		PersistentVolume: record.Spec.PersistentVolume,
		HostPath:         record.Spec.HostPath,
		Repository:       record.Spec.Repository,
	}
}

func status(record *engine.VolumeRestore) volumework.Status {
	return volumework.Status{
		Phase:      &record.Status.Phase,
		Message:    &record.Status.Message,
		Progress:   &record.Status.Progress,
		Attempts:   &record.Status.Attempts,
		Agent:      &record.Status.Agent,
		Start:      &record.Status.StartTimestamp,
		Completion: &record.Status.CompletionTimestamp,
	}
}

func restore(ctx context.Context, r *repository.Repository, record *engine.VolumeRestore, folder datapath.Folder, p *datapath.Progress) (volumework.Result[*engine.VolumeRestore], error) {
	restored, err := datapath.Restore(ctx, r, datapath.RestoreRequest{
		SnapshotID: record.Spec.SnapshotID,
		Path:       folder.Path,
		Root:       folder.Root,
		IsMount:    folder.IsMount,
		Only:       record.Spec.Paths,
		Replace:    record.Spec.Replace,
	}, p)
	return volumework.Result[*engine.VolumeRestore]{Bytes: restored.TotalBytes, Files: restored.Files, Warnings: restored.Warnings}, err
}

// tell says to a pod that waits for its volume what became of it.
func tell(podsDir string, record *engine.VolumeRestore) error {
	if record.Spec.WaitVolume == "" {
		return nil
	}
	failure := ""
	switch {
	case record.Status.Phase == engine.VolumePhaseCompleted:
	case record.Spec.Cancel:
		failure = restorewait.GivenUp
	default:
		failure = cmp.Or(record.Status.Message, "nobody knows why")
	}
	return restorewait.Tell(podsDir, record.Spec.Pod.UID, record.Spec.WaitVolume, record.Spec.Volume, failure)
}
