// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/table"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

var definition = virtual.Resource{
	GroupResource: resource,
	Singular:      "backup",
	ShortNames:    []string{"hfb"},
	Categories:    []string{"holdfast"},
	Namespaced:    true,
	New:           func() runtime.Object { return &v1alpha1.Backup{} },
	NewList:       func() runtime.Object { return &v1alpha1.BackupList{} },
	Attrs:         attrs,
	Table:         &table.Convertor[*v1alpha1.Backup]{Columns: columns, Cells: cells, Compare: compare},
}

func attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	backup, ok := obj.(*v1alpha1.Backup)
	if !ok {
		return nil, nil, fmt.Errorf("not a Backup: %T", obj)
	}
	return labels.Set(backup.Labels), fields.Set{
		"metadata.name":        backup.Name,
		"metadata.namespace":   backup.Namespace,
		"spec.storageLocation": backup.Spec.StorageLocation,
		"status.phase":         string(backup.Status.Phase),
		"status.requester":     backup.Status.Requester,
	}, nil
}
