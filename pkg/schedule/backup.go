// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// AnnotationTriggeredBy marks a backup triggered by a user, with the user's name.
const AnnotationTriggeredBy = "schedule.holdfast.io/triggered-by"

// BackupAnnotations returns the annotations of a schedule that its backups get. Others mean nothing on a backup,
// or are the server's own.
func BackupAnnotations(of map[string]string) map[string]string {
	kept := maps.Clone(of)
	maps.DeleteFunc(kept, func(key, _ string) bool { return !strings.HasPrefix(key, v1alpha1.AnnotationSnapshotClassOf) })
	return kept
}

// NewBackup returns the backup that a schedule makes at an instant.
func NewBackup(of *v1alpha1.Schedule, due time.Time) *v1alpha1.Backup {
	labels := maps.Clone(of.Spec.Template.Metadata.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.LabelScheduleName] = of.Name
	spec := of.Spec.Template.BackupSpec.DeepCopy()
	spec.Metadata = v1alpha1.BackupSpecMetadata{}
	return &v1alpha1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: BackupName(of.Name, due), Labels: labels, Annotations: BackupAnnotations(of.Annotations)},
		Spec:       *spec,
	}
}
