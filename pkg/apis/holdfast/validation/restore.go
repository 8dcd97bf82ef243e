// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// Limits of a restore's spec that a backup's lacks.
const (
	maxNamespaceMappings    = 1000
	maxStorageClassMappings = 100
	maxImageMappings        = 100
	maxPaths, maxPath       = 1000, 4096
	maxObjects              = 1000
)

// ValidateRestoreLimits checks a Restore's size, as ValidateBackupLimits does.
func ValidateRestoreLimits(restore *v1alpha1.Restore) field.ErrorList {
	spec, at := &restore.Spec, field.NewPath("spec")
	errs := validateMetadataLimits(&restore.ObjectMeta)
	size := len(spec.BackupName) + len(spec.BackupNamespace) + len(spec.ScheduleName) + len(spec.ExistingResourcePolicy) + len(spec.ExistingVolumePolicy)
	list := func(words []string, at *field.Path) {
		errs = append(errs, selection.CheckList(words, at)...)
		for _, word := range words {
			size += len(word)
		}
	}
	list(spec.IncludedNamespaces, at.Child("includedNamespaces"))
	list(spec.ExcludedNamespaces, at.Child("excludedNamespaces"))
	list(spec.IncludedResources, at.Child("includedResources"))
	list(spec.ExcludedResources, at.Child("excludedResources"))
	if status := spec.RestoreStatus; status != nil {
		list(status.IncludedResources, at.Child("restoreStatus", "includedResources"))
		list(status.ExcludedResources, at.Child("restoreStatus", "excludedResources"))
	}
	mapping := func(words map[string]string, limit int, at *field.Path) {
		errs = append(errs, atMost(len(words), limit, at)...)
		for from, to := range words {
			size += len(from) + len(to)
		}
	}
	mapping(spec.NamespaceMapping, maxNamespaceMappings, at.Child("namespaceMapping"))
	mapping(spec.StorageClassMapping, maxStorageClassMappings, at.Child("storageClassMapping"))
	mapping(spec.ImageMapping, maxImageMappings, at.Child("imageMapping"))
	errs = append(errs, atMost(len(spec.Paths), maxPaths, at.Child("paths"))...)
	for _, path := range spec.Paths {
		size += len(path)
	}
	errs = append(errs, atMost(len(spec.Objects), maxObjects, at.Child("objects"))...)
	for _, object := range spec.Objects {
		size += len(object.Resource) + len(object.Namespace) + len(object.Name)
	}
	if modifier := spec.ResourceModifier; modifier != nil {
		size += len(modifier.Kind) + len(modifier.Name)
		if modifier.APIGroup != nil {
			size += len(*modifier.APIGroup)
		}
	}
	more, n := validateRestoreHooksLimits(&spec.Hooks, at.Child("hooks"))
	errs, size = append(errs, more...), size+n
	more, n = validateSelectorsLimits(spec.LabelSelector, spec.OrLabelSelectors, at)
	return sorted(append(append(errs, more...), atMostSize(size+n, at)...))
}

// ValidateRestore checks a Restore before creation, but neither its backup nor its creator's
// rights. Beyond the limits, it returns only those errors.
func ValidateRestore(restore *v1alpha1.Restore) field.ErrorList {
	if errs := ValidateRestoreLimits(restore); len(errs) > 0 {
		return errs
	}
	errs := apivalidation.ValidateObjectMeta(&restore.ObjectMeta, true, apivalidation.NameIsDNSLabel, field.NewPath("metadata"))
	known := []string{v1alpha1.RestoreFromLocal, v1alpha1.RestoreFromMoved}
	if from, given := restore.Annotations[v1alpha1.AnnotationRestoreFrom]; given && !slices.Contains(known, from) {
		errs = append(errs, field.NotSupported(field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationRestoreFrom), from, known))
	}
	return append(errs, ValidateRestoreSpec(&restore.Spec, field.NewPath("spec"))...)
}

// ValidateRestoreSpec checks a Restore's spec at the given path.
func ValidateRestoreSpec(spec *v1alpha1.RestoreSpec, at *field.Path) field.ErrorList {
	namespaces, errs := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, at)
	_, more := selection.ParseResources(RestoreResourceLists(spec), namespaces, at)
	errs = append(append(errs, more...), validateSelectors(spec.LabelSelector, spec.OrLabelSelectors, at)...)
	forbid := func(given bool, name, because string) {
		if given {
			errs = append(errs, field.Forbidden(at.Child(name), because))
		}
	}
	forbid(spec.BackupName != "" && spec.ScheduleName != "", "scheduleName", "can't be combined with backupName: name the backup, or the schedule whose newest good one is meant")
	if spec.BackupNamespace != "" {
		errs = append(errs, isNamespace(spec.BackupNamespace, at.Child("backupNamespace"))...)
	}
	if len(spec.Objects) > 0 {
		const because = "can't be combined with objects, which says all that is restored"
		forbid(len(spec.IncludedResources) > 0, "includedResources", because)
		forbid(len(spec.ExcludedResources) > 0, "excludedResources", because)
		forbid(spec.LabelSelector != nil, "labelSelector", because)
		forbid(len(spec.OrLabelSelectors) > 0, "orLabelSelectors", because)
	}
	errs = append(errs, validateObjects(spec.Objects, at.Child("objects"))...)
	errs = append(errs, validateNamespaceMapping(spec.NamespaceMapping, at.Child("namespaceMapping"))...)
	for _, from := range slices.Sorted(maps.Keys(spec.StorageClassMapping)) {
		for _, name := range []string{from, spec.StorageClassMapping[from]} {
			for _, message := range apivalidation.NameIsDNSSubdomain(name, false) {
				errs = append(errs, field.Invalid(at.Child("storageClassMapping").Key(from), name, message))
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(spec.ImageMapping)) {
		for _, image := range []string{from, spec.ImageMapping[from]} {
			if image == "" || strings.ContainsFunc(image, unicode.IsSpace) || strings.HasSuffix(image, "/") {
				errs = append(errs, field.Invalid(at.Child("imageMapping").Key(from), image, "is no image, and nothing that one begins with, such as docker.io/library"))
			}
		}
	}
	errs = append(errs, validateRestoreHooks(&spec.Hooks, at.Child("hooks"))...)
	errs = append(errs, oneOf(spec.ExistingResourcePolicy, at.Child("existingResourcePolicy"),
		v1alpha1.ExistingResourceNone, v1alpha1.ExistingResourceUpdate, v1alpha1.ExistingResourceRecreate)...)
	errs = append(errs, oneOf(spec.ExistingVolumePolicy, at.Child("existingVolumePolicy"),
		v1alpha1.ExistingVolumeNone, v1alpha1.ExistingVolumeKeep, v1alpha1.ExistingVolumeOverwrite, v1alpha1.ExistingVolumeReplace)...)
	if spec.VolumesOnly && spec.ExistingVolumePolicy == v1alpha1.ExistingVolumeKeep {
		errs = append(errs, field.Invalid(at.Child("existingVolumePolicy"), spec.ExistingVolumePolicy, "volumesOnly writes into claims that exist, and nothing would be restored: set it to overwrite or replace"))
	}
	errs = append(errs, validatePaths(spec, at)...)
	forbid(spec.VolumesOnly && spec.RestorePVs != nil && !*spec.RestorePVs, "restorePVs", "is false, and volumesOnly true: nothing would be restored")
	if status := spec.RestoreStatus; status != nil {
		_, more := selection.ParseResources(selection.ResourceLists{
			IncludedResources: status.IncludedResources, ExcludedResources: status.ExcludedResources,
		}, nil, at.Child("restoreStatus"))
		errs = append(errs, more...)
	}
	if modifier := spec.ResourceModifier; modifier != nil {
		at := at.Child("resourceModifier")
		if group := modifier.APIGroup; group != nil && *group != "" {
			errs = append(errs, field.Invalid(at.Child("apiGroup"), *group, "a ConfigMap has no group: leave it out"))
		}
		if modifier.Kind != "" && !strings.EqualFold(modifier.Kind, "configmap") {
			errs = append(errs, field.NotSupported(at.Child("kind"), modifier.Kind, []string{"ConfigMap"}))
		}
		for _, message := range apivalidation.NameIsDNSSubdomain(modifier.Name, false) {
			errs = append(errs, field.Invalid(at.Child("name"), modifier.Name, message))
		}
	}
	return errs
}

// RestoreResourceLists returns the part of a restore's spec that selects resources.
func RestoreResourceLists(spec *v1alpha1.RestoreSpec) selection.ResourceLists {
	return selection.ResourceLists{
		IncludedResources:       spec.IncludedResources,
		ExcludedResources:       spec.ExcludedResources,
		IncludeClusterResources: spec.IncludeClusterResources,
	}
}

func validateObjects(objects []v1alpha1.RestoreObject, at *field.Path) (errs field.ErrorList) {
	for i, object := range objects {
		at := at.Index(i)
		if problems := utilvalidation.IsDNS1123Subdomain(strings.ToLower(object.Resource)); len(problems) > 0 {
			errs = append(errs, field.Invalid(at.Child("resource"), object.Resource, "is not a resource: use plural.group, such as deployments.apps, or the plural of the core group"))
		}
		if object.Namespace != "" {
			errs = append(errs, isNamespace(object.Namespace, at.Child("namespace"))...)
		}
		if object.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), "to restore all objects of a resource, use includedResources"))
		}
		for _, message := range content.IsPathSegmentName(object.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), object.Name, message))
		}
	}
	return errs
}

// validatePaths checks that no path leads out of the volume.
func validatePaths(spec *v1alpha1.RestoreSpec, at *field.Path) (errs field.ErrorList) {
	if len(spec.Paths) == 0 {
		return nil
	}
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	if len(spec.Objects) != 1 || !selection.WellKnown.Means(spec.Objects[0].Resource, claims) {
		errs = append(errs, field.Invalid(at.Child("objects"), "", "paths are those in the volume of one claim: name it, as persistentvolumeclaims, and nothing else"))
	}
	if !spec.VolumesOnly {
		errs = append(errs, field.Invalid(at.Child("volumesOnly"), false, "paths are written into a claim that exists: set it to true, or leave it out"))
	}
	if spec.ExistingVolumePolicy != v1alpha1.ExistingVolumeOverwrite {
		errs = append(errs, field.Invalid(at.Child("existingVolumePolicy"), spec.ExistingVolumePolicy, "paths replace files of the same name: set it to overwrite, or leave it out"))
	}
	for i, asked := range spec.Paths {
		if cleaned := path.Clean(asked); asked == "" || cleaned == "." || !filepath.IsLocal(cleaned) || slices.Contains(strings.Split(asked, "/"), "..") || strings.Contains(asked, "\x00") || len(asked) > maxPath {
			errs = append(errs, field.Invalid(at.Child("paths").Index(i), asked, "is no path in a volume: give the paths of files and folders from its root on, such as db/users.dat"))
		}
	}
	return errs
}

// validateNamespaceMapping also refuses two namespaces for one target, which would get either of
// two same-named objects by chance.
func validateNamespaceMapping(mapping map[string]string, at *field.Path) (errs field.ErrorList) {
	by := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(mapping)) {
		to := mapping[from]
		errs = append(errs, isNamespace(from, at.Key(from))...)
		errs = append(errs, isNamespace(to, at.Key(from))...)
		if other, taken := by[to]; taken {
			errs = append(errs, field.Invalid(at.Key(from), to, fmt.Sprintf("is what %q is mapped to as well: restore them one after the other", other)))
		}
		by[to] = from
	}
	return errs
}

func isNamespace(name string, at *field.Path) (errs field.ErrorList) {
	for _, message := range apivalidation.ValidateNamespaceName(name, false) {
		errs = append(errs, field.Invalid(at, name, message))
	}
	return errs
}

func oneOf[T ~string](value T, at *field.Path, supported ...T) field.ErrorList {
	if value == "" || slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, value, supported)}
}
