// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/schedule"
)

const (
	maxScheduleLength = 256
	maxTimeZoneLength = 64
	maxKept           = 10_000
	maxDeadline       = int64(365 * 24 * time.Hour / time.Second)
)

// ValidateSchedule checks a Schedule, except what is checked of its backups.
func ValidateSchedule(s *v1alpha1.Schedule) field.ErrorList {
	metadata, at := field.NewPath("metadata"), field.NewPath("spec")
	if errs := validateMetadataLimits(&s.ObjectMeta); len(errs) > 0 {
		return errs
	}
	errs := apivalidation.ValidateObjectMeta(&s.ObjectMeta, true, apivalidation.NameIsDNSLabel, metadata)
	if len(s.Name) > schedule.MaxNameLength {
		tooLong := field.TooLong(metadata.Child("name"), "", schedule.MaxNameLength)
		tooLong.Detail += ", since its backups are named after it and their time"
		errs = append(errs, tooLong)
	}
	errs = append(errs, validateTiming(s, at)...)
	// The rest is checked as a backup, which lacks these fields.
	template := at.Child("template")
	more, size := validateVeleroLimits(&s.Spec.Template.BackupSpec, template)
	errs = append(append(errs, more...), atMostSize(size, template)...)
	errs = append(errs, metav1validation.ValidateLabels(s.Spec.Template.Metadata.Labels, template.Child("metadata", "labels"))...)
	if owned := s.Spec.UseOwnerReferencesInBackup; owned != nil && *owned {
		errs = append(errs, field.Invalid(at.Child("useOwnerReferencesInBackup"), true, "deleting a schedule deletes no backup: set false, and keep or template.ttl to say how long its backups stay"))
	}
	if seconds := s.Spec.StartingDeadlineSeconds; seconds != nil && (*seconds < 1 || *seconds > maxDeadline) {
		errs = append(errs, field.Invalid(at.Child("startingDeadlineSeconds"), *seconds, fmt.Sprintf("must be between 1 and %d", maxDeadline)))
	}
	return append(errs, validateKeep(s.Spec.Keep, at.Child("keep"))...)
}

func validateTiming(s *v1alpha1.Schedule, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Spec.Schedule) > maxScheduleLength {
		errs = append(errs, field.TooLong(at.Child("schedule"), "", maxScheduleLength))
	}
	if len(s.Spec.TimeZone) > maxTimeZoneLength {
		errs = append(errs, field.TooLong(at.Child("timeZone"), "", maxTimeZoneLength))
	}
	if len(errs) > 0 {
		return errs
	}
	if _, err := schedule.ParseZone(s.Spec.TimeZone); err != nil {
		return field.ErrorList{field.Invalid(at.Child("timeZone"), s.Spec.TimeZone, err.Error())}
	}
	timing, err := schedule.Parse(s.Spec.Schedule, s.Spec.TimeZone, s.UID)
	switch {
	case s.Spec.Schedule == "":
		return field.ErrorList{field.Required(at.Child("schedule"), err.Error())}
	case err != nil:
		return field.ErrorList{field.Invalid(at.Child("schedule"), s.Spec.Schedule, err.Error())}
	case timing.Next(leapYear).IsZero():
		return field.ErrorList{field.Invalid(at.Child("schedule"), s.Spec.Schedule, "no such time comes")}
	}
	return nil
}

// leapYear begins a year with every day.
var leapYear = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

func validateKeep(keep *v1alpha1.ScheduleKeep, at *field.Path) field.ErrorList {
	if keep == nil {
		return nil
	}
	var errs field.ErrorList
	for name, n := range map[string]int32{"last": keep.Last, "daily": keep.Daily, "weekly": keep.Weekly, "monthly": keep.Monthly, "yearly": keep.Yearly} {
		if n < 0 || n > maxKept {
			errs = append(errs, field.Invalid(at.Child(name), n, fmt.Sprintf("must be between 0 and %d", maxKept)))
		}
	}
	if *keep == (v1alpha1.ScheduleKeep{}) {
		errs = append(errs, field.Required(at, "say how many backups to keep, or leave keep out: then each stays for its ttl"))
	}
	return errs
}
