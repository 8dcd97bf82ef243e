// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package validation says what a valid object of the holdfast.io API group is.
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

// Limits of the parts of a request that a backup records, besides the limits of package
// selection. A tenant may let as many wait as the API server allows, in etcd and in
// the memory of each process; so one is to be small.
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

// ValidateBackup checks a Backup that is to be created. Whether its storage
// location exists, and whether its creator may include its namespaces, is not
// for this function to know. One beyond the limits is refused for that alone.
func ValidateBackup(backup *v1alpha1.Backup, options Options) field.ErrorList {
	if errs := ValidateBackupLimits(backup); len(errs) > 0 {
		return errs
	}
	errs := apivalidation.ValidateObjectMeta(&backup.ObjectMeta, true, apivalidation.NameIsDNSLabel, field.NewPath("metadata"))
	return append(errs, ValidateBackupSpec(&backup.Spec, options, field.NewPath("spec"))...)
}

// ValidateBackupLimits checks that a Backup is not larger than a request may be. It
// counts and measures, and reads no content, so that it costs no more than reading the
// request.
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

// validateVeleroLimits is about what has no effect in a Backup. It returns its size as well.
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

// atMostSize bounds the words of a spec together.
func atMostSize(size int, at *field.Path) field.ErrorList {
	if size <= maxSpecSize {
		return nil
	}
	tooLong := field.TooLong(at, "", maxSpecSize)
	tooLong.Detail += ", counting the words of its lists, selectors and hooks"
	return field.ErrorList{tooLong}
}

// validateSelectorsLimits returns the size of the selectors as well.
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

// validateSelectorLimits returns the size of the selector as well.
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
	// Snapshots says that backups may make snapshots of volumes.
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

// ValidateBackupSpec checks the spec of a Backup, which lies at the given path.
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

// validateResourcePolicy checks what can be seen without the ConfigMap.
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

// validateOrder checks the order of objects. Which resources have namespaces is not for
// this function to know.
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
