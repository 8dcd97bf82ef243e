// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package validation says what a valid object of the holdfast.io API group is.
package validation

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// ValidateBackup checks a Backup that is to be created. Whether its storage
// location exists, and whether its creator may include its namespaces, is not
// for this function to know.
func ValidateBackup(backup *v1alpha1.Backup) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&backup.ObjectMeta, true, apivalidation.NameIsDNSLabel, field.NewPath("metadata"))
	return append(errs, ValidateBackupSpec(&backup.Spec, field.NewPath("spec"))...)
}

// ValidateBackupSpec checks the spec of a Backup, which lies at the given path.
func ValidateBackupSpec(spec *v1alpha1.BackupSpec, at *field.Path) field.ErrorList {
	namespaces, errs := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, at)
	_, more := selection.ParseResources(ResourceLists(spec), namespaces, at)
	errs = append(errs, more...)

	if spec.LabelSelector != nil {
		errs = append(errs, validateSelector(spec.LabelSelector, at.Child("labelSelector"))...)
		if len(spec.OrLabelSelectors) > 0 {
			errs = append(errs, field.Forbidden(at.Child("orLabelSelectors"), "can't be combined with labelSelector: move that selector into the list"))
		}
	}
	for i, selector := range spec.OrLabelSelectors {
		path := at.Child("orLabelSelectors").Index(i)
		if selector == nil {
			errs = append(errs, field.Required(path, "an empty selector matches everything: leave the list out instead"))
			continue
		}
		errs = append(errs, validateSelector(selector, path)...)
	}
	if spec.SnapshotVolumes != nil && *spec.SnapshotVolumes {
		errs = append(errs, field.Invalid(at.Child("snapshotVolumes"), true, "Holdfast takes no cloud snapshots of volumes: set false, and defaultVolumesToFsBackup to back up their files"))
	}
	if spec.TTL.Duration < 0 {
		errs = append(errs, field.Invalid(at.Child("ttl"), spec.TTL.Duration.String(), "must not be negative"))
	}
	if spec.StorageLocation != "" {
		for _, message := range apivalidation.NameIsDNSSubdomain(spec.StorageLocation, false) {
			errs = append(errs, field.Invalid(at.Child("storageLocation"), spec.StorageLocation, message))
		}
	}
	return errs
}

// ResourceLists is the part of a spec that selects resources.
func ResourceLists(spec *v1alpha1.BackupSpec) selection.ResourceLists {
	return selection.ResourceLists{
		IncludedResources:                spec.IncludedResources,
		ExcludedResources:                spec.ExcludedResources,
		IncludeClusterResources:          spec.IncludeClusterResources,
		IncludedClusterScopedResources:   spec.IncludedClusterScopedResources,
		ExcludedClusterScopedResources:   spec.ExcludedClusterScopedResources,
		IncludedNamespaceScopedResources: spec.IncludedNamespaceScopedResources,
		ExcludedNamespaceScopedResources: spec.ExcludedNamespaceScopedResources,
	}
}

func validateSelector(selector *metav1.LabelSelector, at *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, at)
}
