// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package validation checks objects of the holdfast.io API group.
package validation

import (
	"maps"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Limits of a recorded request, besides package selection's. Many of a tenant's requests may wait,
// in etcd and each process's memory, so each must be small.
const (
	maxLabels      = 64
	maxAnnotations = 64
	// maxAnnotationsSize leaves room for kubectl's copy of a spec of maxSpecSize.
	maxAnnotationsSize = 48 << 10
	maxSpecSize        = 32 << 10
	maxSelectors       = 32
	maxRequirements    = 32
	maxValues          = 100
	maxOrdered         = 100
	maxSnapshotPlaces  = 32
)

// ValidateBackup checks a Backup before creation, but neither its storage location's existence nor
// its creator's rights. Beyond the limits, it returns only those errors.
func ValidateBackup(backup *v1alpha1.Backup, options Options) field.ErrorList {
	if errs := ValidateBackupLimits(backup); len(errs) > 0 {
		return errs
	}
	errs := apivalidation.ValidateObjectMeta(&backup.ObjectMeta, true, apivalidation.NameIsDNSLabel, field.NewPath("metadata"))
	return append(errs, ValidateBackupSpec(&backup.Spec, options, field.NewPath("spec"))...)
}

// ValidateBackupLimits checks a Backup's size. It reads no content, so it costs no more than
// reading the request.
func ValidateBackupLimits(backup *v1alpha1.Backup) field.ErrorList {
	at := field.NewPath("spec")
	errs := validateMetadataLimits(&backup.ObjectMeta)
	spec := &backup.Spec
	size := len(spec.StorageLocation)
	for name, list := range map[string][]string{
		"includedNamespaces":               spec.IncludedNamespaces,
		"excludedNamespaces":               spec.ExcludedNamespaces,
		"includedResources":                spec.IncludedResources,
		"excludedResources":                spec.ExcludedResources,
		"includedClusterScopedResources":   spec.IncludedClusterScopedResources,
		"excludedClusterScopedResources":   spec.ExcludedClusterScopedResources,
		"includedNamespaceScopedResources": spec.IncludedNamespaceScopedResources,
		"excludedNamespaceScopedResources": spec.ExcludedNamespaceScopedResources,
	} {
		errs = append(errs, selection.CheckList(list, at.Child(name))...)
		for _, word := range list {
			size += len(word)
		}
	}
	more, n := validateSelectorsLimits(spec.LabelSelector, spec.OrLabelSelectors, at)
	errs, size = append(errs, more...), size+n
	for word, names := range spec.OrderedResources {
		size += len(word) + len(names)
	}
	if policy := spec.ResourcePolicy; policy != nil {
		size += len(policy.Kind) + len(policy.Name)
		if policy.APIGroup != nil {
			size += len(*policy.APIGroup)
		}
	}
	errs = append(errs, atMost(len(spec.OrderedResources), maxOrdered, at.Child("orderedResources"))...)
	more, n = validateVeleroLimits(spec, at)
	errs, size = append(errs, more...), size+n
	more, n = validateHooksLimits(&spec.Hooks, at.Child("hooks"))
	return sorted(append(append(errs, more...), atMostSize(size+n, at)...))
}

// validateVeleroLimits checks fields without effect in a Backup, and returns their size.
func validateVeleroLimits(spec *v1alpha1.BackupSpec, at *field.Path) (field.ErrorList, int) {
	errs := atMost(len(spec.Metadata.Labels), maxLabels-1, at.Child("metadata", "labels"))
	errs = append(errs, atMost(len(spec.VolumeSnapshotLocations), maxSnapshotPlaces, at.Child("volumeSnapshotLocations"))...)
	size := len(spec.VolumeGroupSnapshotLabelKey) + len(spec.DataMover)
	for _, name := range spec.VolumeSnapshotLocations {
		size += len(name)
	}
	for key, value := range spec.Metadata.Labels {
		size += len(key) + len(value)
	}
	return errs, size
}

func sorted(errs field.ErrorList) field.ErrorList {
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

func validateMetadataLimits(of *metav1.ObjectMeta) field.ErrorList {
	at := field.NewPath("metadata")
	errs := atMost(len(of.Labels), maxLabels, at.Child("labels"))
	errs = append(errs, atMost(len(of.Annotations), maxAnnotations, at.Child("annotations"))...)
	size := 0
	for key, value := range of.Annotations {
		size += len(key) + len(value)
	}
	if size > maxAnnotationsSize {
		errs = append(errs, field.TooLong(at.Child("annotations"), "", maxAnnotationsSize))
	}
	return errs
}

// atMostSize bounds a spec's words together.
func atMostSize(size int, at *field.Path) field.ErrorList {
	if size <= maxSpecSize {
		return nil
	}
	tooLong := field.TooLong(at, "", maxSpecSize)
	tooLong.Detail += ", counting the words of its lists, selectors and hooks"
	return field.ErrorList{tooLong}
}

// validateSelectorsLimits also returns the size.
func validateSelectorsLimits(one *metav1.LabelSelector, or []*metav1.LabelSelector, at *field.Path) (field.ErrorList, int) {
	errs, size := atMost(len(or), maxSelectors, at.Child("orLabelSelectors")), 0
	for i, selector := range append([]*metav1.LabelSelector{one}, or...) {
		if selector == nil {
			continue
		}
		path := at.Child("labelSelector")
		if i > 0 {
			path = at.Child("orLabelSelectors").Index(i - 1)
		}
		more, n := validateSelectorLimits(selector, path)
		errs, size = append(errs, more...), size+n
	}
	return errs, size
}

// validateSelectorLimits also returns the size.
func validateSelectorLimits(selector *metav1.LabelSelector, at *field.Path) (field.ErrorList, int) {
	errs := atMost(len(selector.MatchLabels), maxRequirements, at.Child("matchLabels"))
	errs = append(errs, atMost(len(selector.MatchExpressions), maxRequirements, at.Child("matchExpressions"))...)
	size := 0
	for key, value := range selector.MatchLabels {
		size += len(key) + len(value)
	}
	for i, requirement := range selector.MatchExpressions {
		errs = append(errs, atMost(len(requirement.Values), maxValues, at.Child("matchExpressions").Index(i).Child("values"))...)
		size += len(requirement.Key) + len(requirement.Operator)
		for _, value := range requirement.Values {
			size += len(value)
		}
	}
	return errs, size
}

func atMost(n, limit int, at *field.Path) field.ErrorList {
	if n <= limit {
		return nil
	}
	return field.ErrorList{field.TooMany(at, n, limit)}
}

// Options are what the server can do.
type Options struct {
	// Snapshots says that backups may make volume snapshots.
	Snapshots bool
}

func validateSnapshots(spec *v1alpha1.BackupSpec, options Options, at *field.Path) (errs field.ErrorList) {
	wanted, moved := ptr.Deref(spec.SnapshotVolumes, false), spec.SnapshotMoveData
	switch {
	case options.Snapshots:
	case wanted:
		errs = append(errs, field.Invalid(at.Child("snapshotVolumes"), true, "snapshots of volumes are off (docs/snapshots.md): set false, and defaultVolumesToFsBackup to back up their files"))
	}
	if !options.Snapshots && ptr.Deref(moved, false) {
		errs = append(errs, field.Invalid(at.Child("snapshotMoveData"), true, "snapshots of volumes are off (docs/snapshots.md): set false, and defaultVolumesToFsBackup to back up their files"))
	}
	return errs
}

// ValidateBackupSpec checks a Backup's spec at the given path.
func ValidateBackupSpec(spec *v1alpha1.BackupSpec, options Options, at *field.Path) field.ErrorList {
	namespaces, errs := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, at)
	_, more := selection.ParseResources(ResourceLists(spec), namespaces, at)
	errs = append(errs, more...)

	errs = append(errs, validateSelectors(spec.LabelSelector, spec.OrLabelSelectors, at)...)
	errs = append(errs, validateSnapshots(spec, options, at)...)
	if policy := spec.ResourcePolicy; policy != nil {
		errs = append(errs, validateResourcePolicy(policy, at.Child("resourcePolicy"))...)
	}
	errs = append(errs, validateOrder(spec.OrderedResources, at.Child("orderedResources"))...)
	errs = append(errs, validateHooks(&spec.Hooks, at.Child("hooks"))...)
	for _, limit := range []struct {
		name string
		is   v1alpha1.Duration
	}{{"ttl", spec.TTL}, {"csiSnapshotTimeout", spec.CSISnapshotTimeout}, {"itemOperationTimeout", spec.ItemOperationTimeout}} {
		if limit.is.Duration < 0 {
			errs = append(errs, field.Invalid(at.Child(limit.name), limit.is.Duration.String(), "must not be negative"))
		}
	}
	if spec.StorageLocation != "" {
		for _, message := range apivalidation.NameIsDNSSubdomain(spec.StorageLocation, false) {
			errs = append(errs, field.Invalid(at.Child("storageLocation"), spec.StorageLocation, message))
		}
	}
	return errs
}

// validateResourcePolicy checks what needs no ConfigMap.
func validateResourcePolicy(policy *v1alpha1.ResourcePolicyReference, at *field.Path) (errs field.ErrorList) {
	if policy.APIGroup != nil && *policy.APIGroup != "" {
		errs = append(errs, field.Invalid(at.Child("apiGroup"), *policy.APIGroup, "a ConfigMap has no group: leave it out"))
	}
	if !strings.EqualFold(policy.Kind, "configmap") {
		errs = append(errs, field.NotSupported(at.Child("kind"), policy.Kind, []string{"configmap"}))
	}
	for _, message := range apivalidation.NameIsDNSSubdomain(policy.Name, false) {
		errs = append(errs, field.Invalid(at.Child("name"), policy.Name, message))
	}
	return errs
}

// validateOrder does not know which resources have namespaces.
func validateOrder(order map[string]string, at *field.Path) (errs field.ErrorList) {
	for _, word := range slices.Sorted(maps.Keys(order)) {
		if word == "" || strings.ContainsAny(word, "*?[]/, ") {
			errs = append(errs, field.Invalid(at.Key(word), word, "must be a resource, as plural or plural.group"))
		}
		for name := range strings.SplitSeq(order[word], ",") {
			if name = strings.TrimSpace(name); strings.Count(name, "/") > 1 || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") || strings.ContainsAny(name, "*?[] \t\n") {
				errs = append(errs, field.Invalid(at.Key(word), name, "must be names, or namespace/name, separated by commas"))
			}
		}
	}
	return errs
}

// ResourceLists returns the part of a spec that selects resources.
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

func validateSelectors(one *metav1.LabelSelector, or []*metav1.LabelSelector, at *field.Path) (errs field.ErrorList) {
	if one != nil {
		errs = append(errs, validateSelector(one, at.Child("labelSelector"))...)
		if len(or) > 0 {
			errs = append(errs, field.Forbidden(at.Child("orLabelSelectors"), "can't be combined with labelSelector: move that selector into the list"))
		}
	}
	for i, selector := range or {
		path := at.Child("orLabelSelectors").Index(i)
		if selector == nil {
			errs = append(errs, field.Required(path, "an empty selector matches everything: leave the list out instead"))
			continue
		}
		errs = append(errs, validateSelector(selector, path)...)
	}
	return errs
}

func validateSelector(selector *metav1.LabelSelector, at *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, at)
}
