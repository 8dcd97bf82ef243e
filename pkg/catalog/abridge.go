// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/footprint"
	"github.com/holdfast-io/holdfast/pkg/format"
)

const (
	// maxForeign bounds metadata without a trusted signature, in bytes.
	maxForeign  = 16 << 10
	maxAbridged = 4 << 10
	maxText     = 1 << 10
	maxName     = 253
)

// Abridge shortens large metadata without a trusted signature, and sets the condition Abridged. It
// keeps the end, expiration and namespaces. A long selection becomes everything, never less.
func Abridge(backup *v1alpha1.Backup) {
	size := footprint.Of(backup)
	if size <= maxForeign {
		return
	}
	labels := map[string]string{}
	if schedule, ok := backup.Labels[v1alpha1.LabelScheduleName]; ok {
		labels[v1alpha1.LabelScheduleName] = bounded(schedule, maxName)
	}
	backup.Labels = labels
	contents, ok := backup.Annotations[format.AnnotationContents]
	if backup.Annotations = nil; ok && len(contents) <= maxAbridged {
		backup.Annotations = map[string]string{format.AnnotationContents: strings.Clone(contents)}
	}
	spec := &backup.Spec
	short := v1alpha1.BackupSpec{TTL: spec.TTL, StorageLocation: spec.StorageLocation, IncludedNamespaces: []string{"*"}}
	if footprint.Of(spec.IncludedNamespaces) <= maxAbridged && footprint.Of(spec.ExcludedNamespaces) <= maxAbridged {
		short.IncludedNamespaces, short.ExcludedNamespaces = spec.IncludedNamespaces, spec.ExcludedNamespaces
	}
	backup.Spec = short
	if len(backup.UID) > maxName {
		backup.UID = format.DerivedUID("backup", spec.StorageLocation, backup.Name, string(backup.UID))
	}
	status := &backup.Status
	status.FormatVersion = bounded(status.FormatVersion, maxName)
	status.FailureReason, status.Message = bounded(status.FailureReason, maxText), bounded(status.Message, maxText)
	if origin := status.Origin; origin != nil {
		origin.Message = bounded(origin.Message, maxText)
		for _, text := range []*string{&origin.ClusterUID, &origin.PublicKey, &origin.Namespace, (*string)(&origin.NamespaceUID),
			&origin.Name, (*string)(&origin.ScheduleUID), &origin.ClaimedRequester} {
			*text = bounded(*text, maxName)
		}
	}
	status.Conditions = format.EndConditions(status)
	status.Conditions = append(status.Conditions, metav1.Condition{
		Type:   v1alpha1.ConditionAbridged,
		Status: metav1.ConditionTrue,
		Reason: "TooLarge",
		Message: fmt.Sprintf("its metadata takes %d bytes, of which lists show the ends and the namespaces alone: nobody whom the storage location trusts has signed it, and of such backups %d bytes are kept; velero-backup.json has all",
			size, maxForeign),
		LastTransitionTime: lastInstant(backup, backup.CreationTimestamp.Time),
	})
}

// IsAbridged reports whether Abridge has shortened a backup.
func IsAbridged(backup *v1alpha1.Backup) bool {
	return meta.IsStatusConditionTrue(backup.Status.Conditions, v1alpha1.ConditionAbridged)
}

func bounded(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:most]), "")
}
