// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	holdfastclientset "github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned"
	"github.com/holdfast-io/holdfast/pkg/generated/holdfast/clientset/versioned/scheme"
)

// Backups is the API of backups.
type Backups interface {
	List(ctx context.Context, options metav1.ListOptions) (*v1alpha1.BackupList, []string, error)
	Snapshots(ctx context.Context, uid types.UID) ([]string, error)
	Delete(ctx context.Context, namespace, name string, deletion *v1alpha1.BackupDeletion) error
}

// NewBackups returns the backups API of a cluster.
func NewBackups(config *rest.Config) (Backups, error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // the controller reads them
	clients, err := holdfastclientset.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return backups{clients.HoldfastV1alpha1().RESTClient()}, nil
}

type backups struct{ client rest.Interface }

func (b backups) List(ctx context.Context, options metav1.ListOptions) (*v1alpha1.BackupList, []string, error) {
	result := b.client.Get().Resource("backups").VersionedParams(&options, scheme.ParameterCodec).Do(ctx)
	list := &v1alpha1.BackupList{}
	if err := result.Into(list); err != nil {
		return nil, nil, err
	}
	var warnings []string
	for _, warning := range result.Warnings() {
		warnings = append(warnings, warning.Text)
	}
	return list, warnings, nil
}

func (b backups) Snapshots(ctx context.Context, uid types.UID) ([]string, error) {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.backupUID", string(uid)).String(), Limit: pageSize}
	var ids []string
	for {
		list := &v1alpha1.VolumeBackupList{}
		if err := b.client.Get().Resource("volumebackups").VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Into(list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			ids = append(ids, list.Items[i].Status.SnapshotID)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return ids, nil
		}
	}
}

func (b backups) Delete(ctx context.Context, namespace, name string, deletion *v1alpha1.BackupDeletion) error {
	return b.client.Post().Namespace(namespace).Resource("backups").Name(name).SubResource("deletion").Body(deletion).Do(ctx).Error()
}
