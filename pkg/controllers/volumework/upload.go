// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

// NewUploads returns the Controller of a node's VolumeUploads. own and informer should have only the
// node's records; records writes.
func NewUploads(config Config, own, records engineclient.VolumeUploadsGetter, informer engineinformers.VolumeUploadInformer) (*Controller[*enginev1alpha1.VolumeUpload], error) {
	return New(config, Kind[*enginev1alpha1.VolumeUpload]{
		Name:          "volumeupload",
		Resource:      "volumeuploads",
		Class:         datapath.ClassBackup,
		Action:        "Upload",
		FailureReason: "VolumeUploadFailed",
		Target:        uploadTarget,
		Status:        uploadStatus,
		Cancelled:     func(record *enginev1alpha1.VolumeUpload) bool { return record.Spec.Cancel },
		Move:          uploader{config.FullReadEvery}.upload,
	}, own.VolumeUploads(config.Namespace), records.VolumeUploads(config.Namespace), informer.Lister().VolumeUploads(config.Namespace), informer.Informer())
}

func uploadTarget(record *enginev1alpha1.VolumeUpload) Target {
	return Target{
		Node:             record.Spec.Node,
		Pod:              cmp.Or(record.Spec.Holder, record.Spec.Pod.UID),
		Volume:           cmp.Or(record.Spec.Volume, record.Spec.ClaimName),
		PersistentVolume: record.Spec.PersistentVolume,
		HostPath:         record.Spec.HostPath,
		Device:           record.Spec.Device,
		Repository:       record.Spec.Repository,
	}
}

func uploadStatus(record *enginev1alpha1.VolumeUpload) Status {
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

// cutOf returns the zero time without a snapshot.
func cutOf(record *enginev1alpha1.VolumeUpload) time.Time {
	var cut struct{ Time time.Time }
	_ = json.Unmarshal([]byte(record.Annotations[enginev1alpha1.AnnotationCut]), &cut) // older controllers write none
	return cut.Time
}

type uploader struct {
	fullReadEvery time.Duration // as in datapath.UploadRequest
}

func (u uploader) upload(ctx context.Context, r *repository.Repository, record *enginev1alpha1.VolumeUpload, folder datapath.Folder, p *datapath.Progress) (Result[*enginev1alpha1.VolumeUpload], error) {
	uploaded, err := datapath.Upload(ctx, r, datapath.UploadRequest{
		Path:    folder.Path,
		Root:    folder.Root,
		IsMount: folder.IsMount,
		Device:  folder.Device,
		Source: datapath.Source{
			Namespace: record.Spec.Pod.Namespace,
			Pod:       record.Spec.Pod.Name,
			Volume:    record.Spec.Volume,
			ClaimName: record.Spec.ClaimName,
			ClaimUID:  record.Spec.ClaimUID,
		},
		Backup:     types.UID(record.Labels[enginev1alpha1.LabelRun]),
		Record:     record.UID,
		StoreName:  record.Spec.StoreName,
		ClusterUID: record.Spec.ClusterUID,

		FullReadEvery: u.fullReadEvery,
		Cut:           cutOf(record),
	}, p)
	return Result[*enginev1alpha1.VolumeUpload]{
		Bytes:    uploaded.TotalBytes,
		Files:    uploaded.Files,
		Warnings: uploaded.Warnings,
		Apply: func(record *enginev1alpha1.VolumeUpload) {
			record.Status.SnapshotID = uploaded.SnapshotID
			record.Status.Path = folder.Path
			record.Status.IncrementalBytes = uploaded.IncrementalBytes
			record.Status.Warnings = int32(min(uploaded.Warnings.Count, 1<<31-1))
		},
		Undo: func(ctx context.Context) error {
			return datapath.DeleteSnapshots(ctx, r, []string{uploaded.SnapshotID})
		},
	}, err
}
