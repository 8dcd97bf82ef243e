// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// find returns the backup that a restore means, and field errors about the restore.
func (k *kind) find(ctx context.Context, restore *v1alpha1.Restore) (*v1alpha1.Backup, field.ErrorList, error) {
	ctx = genericapirequest.WithNamespace(ctx, restore.Spec.BackupNamespace)
	if restore.Spec.BackupName == "" {
		return k.newest(ctx, restore)
	}
	at, name := field.NewPath("spec", "backupName"), restore.Spec.BackupName
	found, err := k.backups.Get(ctx, name, &metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		notFound := field.NotFound(at, name)
		notFound.Detail = fmt.Sprintf("no such Backup in namespace %q%s", restore.Spec.BackupNamespace, k.untilPoll(restore))
		return nil, field.ErrorList{notFound}, nil
	case err != nil:
		return nil, nil, err
	}
	backup := found.(*v1alpha1.Backup)
	if why := k.whyNot(backup); why != "" {
		return nil, field.ErrorList{field.Invalid(at, name, why)}, nil
	}
	warnOfDoubts(ctx, at, backup)
	return backup, nil, nil
}

// untilPoll tells administrators how a backup of another maker gets listed.
func (k *kind) untilPoll(restore *v1alpha1.Restore) string {
	if restore.Namespace != k.systemNamespace {
		return ""
	}
	return ": if another cluster, or Velero, has just made it, it is listed after the next poll of its storage location, or at once by a SyncRequest of the location's name (see \"Sync now\" in docs/catalogue.md); if its location has the condition BackupsLeftOut, it may be one of those that have no room in the lists"
}

// warnOfDoubts adds a Warning for each doubt about a backup, as the restore's results do.
func warnOfDoubts(ctx context.Context, at *field.Path, backup *v1alpha1.Backup) {
	origin := backup.Status.Origin
	vouched := origin == nil || origin.Trust != v1alpha1.BackupTrustForeign
	for _, doubt := range format.Doubts(backup.Name, &backup.Status, vouched) {
		warning.AddWarning(ctx, "", at.String()+": "+doubt)
	}
}

func isDamaged(backup *v1alpha1.Backup) bool {
	return meta.IsStatusConditionTrue(backup.Status.Conditions, v1alpha1.ConditionVolumesDamaged)
}

// whyNot returns why a backup can't be restored, or "".
func (k *kind) whyNot(backup *v1alpha1.Backup) string {
	switch phase := backup.Status.Phase; {
	case phase == v1alpha1.BackupPhaseUnreadable:
		return "can't be read: " + backup.Status.FailureReason
	case phase == v1alpha1.BackupPhaseDeleting:
		return "is being deleted"
	case !phase.Ended():
		return fmt.Sprintf("is %s: wait for its end", phase)
	case !good(backup):
		return fmt.Sprintf("is %s, and holds nothing that could be restored", phase)
	}
	origin := backup.Status.Origin
	if origin == nil {
		return ""
	}
	switch {
	case origin.Trust == v1alpha1.BackupTrustForged:
		return "is forged: " + origin.Message
	case origin.Trust == v1alpha1.BackupTrustUnknownKey:
		return "is of nobody who is known: " + origin.Message
	case origin.Trust == v1alpha1.BackupTrustForeign && backup.Namespace != k.systemNamespace:
		return "is of an unknown origin: " + origin.Message
	}
	return ""
}

func good(backup *v1alpha1.Backup) bool {
	return backup.Status.Phase == v1alpha1.BackupPhaseCompleted || backup.Status.Phase == v1alpha1.BackupPhasePartiallyFailed
}

// newest returns the newest good backup with all that a restore asks for, of the named schedule if any. It needs a
// trusted signature.
func (k *kind) newest(ctx context.Context, restore *v1alpha1.Restore) (*v1alpha1.Backup, field.ErrorList, error) {
	if err := k.ready(); err != nil {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the newest backup is not known yet: %v: try again in a moment, or set spec.backupName", err))
	}
	at, selector := field.NewPath("spec", "backupName"), labels.Everything()
	if name := restore.Spec.ScheduleName; name != "" {
		at, selector = field.NewPath("spec", "scheduleName"), labels.SelectorFromSet(labels.Set{v1alpha1.LabelScheduleName: name})
	}
	list, err := k.backups.List(ctx, &internalversion.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, nil, err
	}
	var newest, damaged *v1alpha1.Backup
	var candidates []*v1alpha1.Backup
	lacking, unknown := 0, 0
	items := list.(*v1alpha1.BackupList).Items
	for i := range items {
		backup := &items[i]
		switch {
		case good(backup) && backup.Status.Origin != nil && backup.Status.Origin.Trust == v1alpha1.BackupTrustUnknownKey:
			unknown++
		case !good(backup) || k.whyNot(backup) != "" || backup.Status.Origin == nil || backup.Status.Origin.Trust == v1alpha1.BackupTrustForeign:
		case !holdsAll(&backup.Spec, &backup.Status, &restore.Spec):
			lacking++
		case isDamaged(backup):
			if damaged == nil || takenAt(damaged).Before(takenAt(backup)) {
				damaged = backup
			}
		default:
			candidates = append(candidates, backup)
			if newest == nil || takenAt(newest).Before(takenAt(backup)) {
				newest = backup
			}
		}
	}
	if damaged != nil && newest != nil && takenAt(newest).Before(takenAt(damaged)) {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s: the backup %q is taken, since the newer %q is damaged: name that one in spec.backupName to restore what is left of it", at, newest.Name, damaged.Name))
	}
	if newest == nil && damaged != nil {
		newest = damaged
	}
	if newest == nil {
		why := fmt.Sprintf("there is no good backup in namespace %q", restore.Spec.BackupNamespace)
		if restore.Spec.ScheduleName != "" {
			why = fmt.Sprintf("there is no good backup of the schedule %q in namespace %q", restore.Spec.ScheduleName, restore.Spec.BackupNamespace)
		}
		if lacking > 0 {
			why += fmt.Sprintf(" that holds all that is asked for (%d hold less): name one in spec.backupName", lacking)
		}
		if unknown > 0 {
			why += fmt.Sprintf("; %d more are signed with keys that are not known here: status.origin.message of each says what to do", unknown)
		}
		value := restore.Spec.ScheduleName
		return nil, field.ErrorList{field.Invalid(at, value, why)}, nil
	}
	if why := k.holdsLess(newest, candidates, &restore.Spec); why != "" {
		return nil, field.ErrorList{field.Invalid(at, restore.Spec.ScheduleName, why)}, nil
	}
	warnOfDoubts(ctx, at, newest)
	return newest, nil, nil
}

func takenAt(backup *v1alpha1.Backup) *metav1.Time {
	if backup.Status.StartTimestamp != nil {
		return backup.Status.StartTimestamp
	}
	return &backup.CreationTimestamp
}

// holdsAll reports, by the specs alone, whether a backup has the restore's named namespaces, its resources, and no
// narrower label selection. So a restore that names no backup gets none of ConfigMaps alone.
func holdsAll(backup *v1alpha1.BackupSpec, status *v1alpha1.BackupStatus, restore *v1alpha1.RestoreSpec) bool {
	held, errs := selection.ParseNamespaces(backup.IncludedNamespaces, backup.ExcludedNamespaces, nil)
	if len(errs) > 0 {
		return false
	}
	resources, errs := selection.ParseResources(validation.ResourceLists(backup), held, nil)
	if len(errs) > 0 {
		return false
	}
	resources = resources.Bind(selection.WellKnown.Resolve)
	if backup.LabelSelector != nil || len(backup.OrLabelSelectors) > 0 {
		return false
	}
	if restore.VolumesOnly && (status.Volumes == nil || status.Volumes.Completed == 0) {
		return false
	}
	asked, _ := selection.ParseNamespaces(restore.IncludedNamespaces, restore.ExcludedNamespaces, nil)
	namespaces, words := slices.Clone(asked.Explicit()), restore.IncludedResources
	for _, object := range restore.Objects {
		if object.Namespace != "" {
			namespaces = append(namespaces, object.Namespace)
		}
		words = append(slices.Clone(words), object.Resource)
	}
	if slices.ContainsFunc(namespaces, func(namespace string) bool { return !held.Match(namespace) }) ||
		!selection.Overlaps(held, asked) {
		return false
	}
	if restore.VolumesOnly {
		return true
	}
	named := len(words) > 0
	for _, word := range words {
		if strings.ContainsAny(word, "*?[") {
			named = false
			continue
		}
		gr := groupResourceOf(word)
		if !resources.Included(gr, true) && !resources.Included(gr, false) {
			return false
		}
	}
	return named || everyResource(backup)
}

// everyResource reports whether a backup includes all resources. Excluded ones don't count.
func everyResource(backup *v1alpha1.BackupSpec) bool {
	all := func(words []string) bool { return len(words) == 0 || slices.Contains(words, "*") }
	return all(backup.IncludedResources) && all(backup.IncludedNamespaceScopedResources) && !slices.Contains(backup.ExcludedNamespaceScopedResources, "*")
}
