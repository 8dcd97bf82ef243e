// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// SelectableFields lists, by kind, the fields that a field selector may name
// beside metadata.name and metadata.namespace.
var SelectableFields = map[string][]string{
	"Backup":           {"spec.storageLocation", "status.phase", "status.requester"},
	"BackupQueueEntry": {"spec.storageLocation", "spec.requester", "status.state", "status.reason"},
	"BackupVolume":     {"spec.claimName", "spec.podName"},
	"VolumeBackup": {"spec.volumeName", "spec.backup.name", "spec.backup.namespace", "spec.backupUID",
		"spec.podName", "spec.storageLocation", "status.phase", "status.node"},
}

// addFieldLabels makes the API server refuse a selector on any other field.
func addFieldLabels(scheme *runtime.Scheme) error {
	for kind, selectable := range SelectableFields {
		known := map[string]bool{"metadata.name": true, "metadata.namespace": true}
		for _, field := range selectable {
			known[field] = true
		}
		err := scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind(kind),
			func(label, value string) (string, string, error) {
				if !known[label] {
					return "", "", fmt.Errorf("field %q can't be selected on %s: use one of metadata.name, metadata.namespace, %v", label, kind, selectable)
				}
				return label, value, nil
			})
		if err != nil {
			return err
		}
	}
	return nil
}
