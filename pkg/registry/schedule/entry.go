// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

func scheduleOf(entry *enginev1alpha1.ScheduleEntry) (*v1alpha1.Schedule, error) {
	s := &v1alpha1.Schedule{Spec: *entry.Spec.Schedule.DeepCopy()}
	if err := json.Unmarshal([]byte(entry.Spec.Metadata), &s.ObjectMeta); err != nil {
		return nil, fmt.Errorf("reading the metadata in ScheduleEntry %s: %w", entry.Name, err)
	}
	s.Namespace, s.Name, s.ResourceVersion = entry.Spec.ScheduleRef.Namespace, entry.Spec.ScheduleRef.Name, ""
	s.Status = v1alpha1.ScheduleStatus{
		LastDueTimestamp: entry.Status.LastDueTimestamp.DeepCopy(),
		Missed:           entry.Status.Missed,
		Requester:        entry.Spec.Requester.Username,
	}
	for _, condition := range entry.Status.Conditions {
		s.Status.Conditions = append(s.Status.Conditions, *condition.DeepCopy())
	}
	return s, nil
}

func keep(s *v1alpha1.Schedule, entry *enginev1alpha1.ScheduleEntry) error {
	own := *s.ObjectMeta.DeepCopy()
	own.ResourceVersion = ""
	metadata, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("writing the metadata of the schedule: %w", err)
	}
	entry.Spec.Metadata, entry.Spec.Schedule = string(metadata), *s.Spec.DeepCopy()
	return nil
}

// show sets the fields that follow from a Schedule's backups, and from the time.
func show(s *v1alpha1.Schedule, since metav1.Time, backups []domain.Backup, now time.Time) {
	for _, backup := range backups {
		last := s.Status.LastBackup
		if last == nil || last.CreationTimestamp.Time.Before(backup.Created) || last.CreationTimestamp.Time.Equal(backup.Created) && last.Name < backup.Name {
			s.Status.LastBackup = &v1alpha1.ScheduledBackup{Name: backup.Name, Phase: backup.Phase, CreationTimestamp: metav1.NewTime(backup.Created)}
		}
		if good := s.Status.LastSuccessTimestamp; backup.Phase == v1alpha1.BackupPhaseCompleted && (good == nil || good.Time.Before(backup.Ended)) {
			s.Status.LastSuccessTimestamp = &metav1.Time{Time: backup.Ended}
		}
	}
	if s.Spec.Paused {
		return
	}
	timing, err := domain.Parse(s.Spec.Schedule, s.Spec.TimeZone, s.UID)
	if err != nil {
		return
	}
	base := since.Time
	if dealt := s.Status.LastDueTimestamp; dealt != nil && dealt.Time.After(base) {
		base = dealt.Time
	}
	if base.After(now) {
		base = now
	}
	if next := timing.Next(base); !next.IsZero() {
		s.Status.NextDueTimestamp = &metav1.Time{Time: next}
	}
}

func summary(backup *v1alpha1.Backup) domain.Backup {
	_, byHand := backup.Annotations[domain.AnnotationTriggeredBy]            // no template can set it
	kept := backup.Status.Hold != nil || backup.Status.ExpirationChanges > 0 // a user has decided on it
	// A deleted volume lacks too, before the store says so. Omitted data does not: a namespace with an unused
	// claim always lacks some. The deletion request protects each claim's newest data.
	lacks := backup.Status.Volumes != nil && backup.Status.Volumes.Deleted > 0
	// A copy in another location, as a bucket as of a time, is none of the schedule's.
	copied := strings.Contains(backup.Name, "@")
	s := domain.Backup{Name: backup.Name, ByHand: byHand, Exempt: byHand || kept || lacks || copied || meta.IsStatusConditionTrue(backup.Status.Conditions, v1alpha1.ConditionMetadataReplaced) ||
		meta.IsStatusConditionFalse(backup.Status.Conditions, v1alpha1.ConditionVolumesListed) ||
		meta.IsStatusConditionTrue(backup.Status.Conditions, v1alpha1.ConditionVolumesDamaged),
		Due: domain.DueOf(backup.Labels[v1alpha1.LabelScheduleName], backup.Name), UID: backup.UID, Phase: backup.Status.Phase, Created: backup.CreationTimestamp.Time}
	if end := backup.Status.CompletionTimestamp; end != nil {
		s.Ended = end.Time
	}
	return s
}

// MadeBy returns the uid of a backup's schedule if it is certain: the backup is this cluster's own, and shown in
// its own namespace.
func MadeBy(backup *v1alpha1.Backup) types.UID {
	origin := backup.Status.Origin
	if origin == nil || origin.Trust != v1alpha1.BackupTrustOwn || origin.Message != "" {
		return ""
	}
	return origin.ScheduleUID
}
