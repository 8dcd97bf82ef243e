// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backupqueue serves the queue: one entry for each backup that waits, is
// about to start, or runs.
package backupqueue

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/table"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

// NewREST returns the storage of the backupqueues resource, with the verbs get,
// list and watch.
func NewREST(log storage.Interface) (*virtual.ReadOnly, error) {
	return virtual.NewReadOnly(virtual.Resource{
		GroupResource: v1alpha1.Resource("backupqueues"),
		Singular:      "backupqueue",
		ShortNames:    []string{"hfq", "bq"},
		Categories:    []string{"holdfast"},
		Namespaced:    true,
		New:           func() runtime.Object { return &v1alpha1.BackupQueueEntry{} },
		NewList:       func() runtime.Object { return &v1alpha1.BackupQueueEntryList{} },
		Attrs:         attrs,
		Table:         &table.Convertor[*v1alpha1.BackupQueueEntry]{Columns: columns, Cells: cells, Compare: compare},
	}, log)
}

func attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	entry, ok := obj.(*v1alpha1.BackupQueueEntry)
	if !ok {
		return nil, nil, fmt.Errorf("not a BackupQueueEntry: %T", obj)
	}
	return labels.Set(entry.Labels), fields.Set{
		"metadata.name":        entry.Name,
		"metadata.namespace":   entry.Namespace,
		"spec.storageLocation": entry.Spec.StorageLocation,
		"spec.requester":       entry.Spec.Requester,
		"status.state":         string(entry.Status.State),
		"status.reason":        string(entry.Status.Reason),
	}, nil
}
