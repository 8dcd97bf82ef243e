// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"cmp"
	"context"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/restorewait"
)

// NewRestores returns the Controller of a node's VolumeRestores. own and informer should have only the
// node's records; records writes.
func NewRestores(config Config, own, records engineclient.VolumeRestoresGetter, informer engineinformers.VolumeRestoreInformer) (*Controller[*enginev1alpha1.VolumeRestore], error) {
	return New(config, Kind[*enginev1alpha1.VolumeRestore]{
		Name:          "volumerestore",
		Resource:      "volumerestores",
		Class:         datapath.ClassRestore,
		Action:        "Restore",
		FailureReason: "VolumeRestoreFailed",
		Target:        restoreTarget,
		Status:        restoreStatus,
		Cancelled:     func(record *enginev1alpha1.VolumeRestore) bool { return record.Spec.Cancel },
		Move:          restore,
		Ended:         func(record *enginev1alpha1.VolumeRestore) error { return tell(config.PodsDir, record) },
	}, own.VolumeRestores(config.Namespace), records.VolumeRestores(config.Namespace), informer.Lister().VolumeRestores(config.Namespace), informer.Informer())
}

func restoreTarget(record *enginev1alpha1.VolumeRestore) Target {
	return Target{
		Node:             record.Spec.Node,
		Pod:              record.Spec.Pod.UID,
		Volume:           record.Spec.Volume,
		PersistentVolume: record.Spec.PersistentVolume,
		HostPath:         record.Spec.HostPath,
		Device:           record.Spec.Device,
		Repository:       record.Spec.Repository,
	}
}

func restoreStatus(record *enginev1alpha1.VolumeRestore) Status {
	return Status{
		Phase:      &record.Status.Phase,
		Message:    &record.Status.Message,
		Progress:   &record.Status.Progress,
		Attempts:   &record.Status.Attempts,
		GivenBack:  &record.Status.GivenBack,
		Agent:      &record.Status.Agent,
		Start:      &record.Status.StartTimestamp,
		Completion: &record.Status.CompletionTimestamp,
	}
}

func restore(ctx context.Context, r *repository.Repository, record *enginev1alpha1.VolumeRestore, folder datapath.Folder, p *datapath.Progress) (Result[*enginev1alpha1.VolumeRestore], error) {
	restored, err := datapath.Restore(ctx, r, datapath.RestoreRequest{
		SnapshotID: record.Spec.SnapshotID,
		Path:       folder.Path,
		Root:       folder.Root,
		IsMount:    folder.IsMount,
		Device:     folder.Device,
		Only:       record.Spec.Paths,
		Replace:    record.Spec.Replace,
	}, p)
	return Result[*enginev1alpha1.VolumeRestore]{Bytes: restored.TotalBytes, Files: restored.Files, Warnings: restored.Warnings}, err
}

func tell(podsDir string, record *enginev1alpha1.VolumeRestore) error {
	if record.Spec.WaitVolume == "" {
		return nil
	}
	failure := ""
	switch {
	case record.Status.Phase == enginev1alpha1.VolumePhaseCompleted:
	case record.Spec.Cancel:
		failure = restorewait.GivenUp
	default:
		failure = cmp.Or(record.Status.Message, "nobody knows why")
	}
	return restorewait.Tell(podsDir, record.Spec.Pod.UID, record.Spec.WaitVolume, record.Spec.Volume, failure)
}
