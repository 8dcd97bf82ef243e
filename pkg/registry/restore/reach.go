// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// reach is what a restore of a backup touches, by the two specs.
type reach struct {
	// sources are the restored namespaces of the backup, and targets their new ones. any: the backup has patterns.
	sources, targets sets.Set[string]
	any              bool
	// clusterScoped objects are restored, apart from objects of a namespace, as its claims' volumes.
	clusterScoped bool
}

// reachOf returns the reach of a restore. All that it names must be in the backup.
func reachOf(spec *v1alpha1.RestoreSpec, backup *v1alpha1.BackupSpec, systemNamespace string) (reach, field.ErrorList) {
	at := field.NewPath("spec")
	asked, _ := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, nil)
	resources, _ := selection.ParseResources(validation.RestoreResourceLists(spec), asked, nil)
	held, _ := selection.ParseNamespaces(backup.IncludedNamespaces, backup.ExcludedNamespaces, nil) // nil is anything, as in unreadable backups
	holds := func(namespace string) bool { return held == nil || held.Match(namespace) }
	heldResources, unreadable := selection.ParseResources(validation.ResourceLists(backup), held, nil)

	r := reach{sources: sets.New[string]()}
	var errs field.ErrorList
	switch {
	case len(spec.Objects) > 0:
		for i, object := range spec.Objects {
			at := at.Child("objects").Index(i).Child("namespace")
			switch {
			case object.Namespace == "":
				r.clusterScoped = true
			case !asked.Match(object.Namespace):
				errs = append(errs, field.Invalid(at, object.Namespace, "is not among the namespaces of includedNamespaces and excludedNamespaces"))
			case !holds(object.Namespace):
				errs = append(errs, field.Invalid(at, object.Namespace, "is not in the backup"))
			default:
				r.sources.Insert(object.Namespace)
			}
		}
	case asked.Exact():
		for _, namespace := range asked.Explicit() {
			if !holds(namespace) {
				errs = append(errs, field.Invalid(at.Child("includedNamespaces"), namespace, "is not in the backup"))
			}
			r.sources.Insert(namespace)
		}
	case held.Exact():
		for _, namespace := range held.Explicit() {
			if asked.Match(namespace) {
				r.sources.Insert(namespace)
			}
		}
	default:
		r.any = true
	}
	if len(spec.Objects) == 0 && !spec.VolumesOnly {
		r.clusterScoped = resources.TouchesClusterScope() && (len(unreadable) > 0 || heldResources.TouchesClusterScope())
	}
	if !r.any && len(r.sources) == 0 && !r.clusterScoped && len(errs) == 0 {
		errs = append(errs, field.Invalid(at.Child("includedNamespaces"), spec.IncludedNamespaces, "selects nothing that the backup holds"))
	}
	errs = append(errs, r.retarget(spec.NamespaceMapping, func(namespace string) bool {
		return r.sources.Has(namespace) || r.any && asked.Match(namespace) && holds(namespace)
	}, at.Child("namespaceMapping"))...)
	for _, own := range enginev1alpha1.OwnNamespaces(systemNamespace) {
		if r.targets.Has(own) {
			errs = append(errs, field.Forbidden(at.Child("includedNamespaces"), fmt.Sprintf("nothing is restored into %s, which is Holdfast's own: install it, and set its storage locations anew", own)))
		}
	}
	if r.any {
		r.sources, r.targets = nil, nil
	}
	return r, errs
}

func (r *reach) retarget(mapping map[string]string, restored func(string) bool, at *field.Path) (errs field.ErrorList) {
	for _, from := range slices.Sorted(maps.Keys(mapping)) {
		to := mapping[from]
		if !restored(from) {
			errs = append(errs, field.Invalid(at.Key(from), from, "is not restored: it is not in the backup, or left out"))
		}
		if _, moved := mapping[to]; !moved && to != from && r.sources.Has(to) {
			errs = append(errs, field.Invalid(at.Key(from), to, "is restored into itself as well: leave that out, or map it too"))
		}
	}
	r.targets = sets.New[string]()
	for source := range r.sources {
		if to, moved := mapping[source]; moved {
			source = to
		}
		r.targets.Insert(source)
	}
	if r.any {
		r.targets.Insert(slices.Collect(maps.Values(mapping))...)
	}
	return errs
}

// scopes returns the reach of a tenant's restore outside its namespace. It takes the right to create restores
// there, to read and to write.
func (r *reach) scopes(restore *v1alpha1.Restore) (scopes []recorded.Scope) {
	add := func(namespace, field, because string) {
		scopes = append(scopes, recorded.Scope{Namespace: namespace, Field: field, Because: because})
	}
	switch {
	case r.any:
		add("", "spec.includedNamespaces", "neither the restore nor its backup names the namespaces: name them")
	case r.clusterScoped && len(restore.Spec.Objects) > 0:
		add("", "spec.objects", "spec.objects has one without a namespace, which is cluster-scoped")
	case r.clusterScoped:
		add("", "spec.includeClusterResources", "the backup holds cluster-scoped objects: name the namespaces to restore, or set spec.includeClusterResources to false")
	}
	for _, namespace := range sets.List(r.sources) {
		if namespace != restore.Namespace {
			add(namespace, "spec.includedNamespaces", "what the backup holds of it is to be restored")
		}
	}
	for _, namespace := range sets.List(r.targets.Difference(r.sources)) {
		if namespace != restore.Namespace {
			add(namespace, "spec.namespaceMapping", "spec.namespaceMapping restores into it")
		}
	}
	return scopes
}

// moved returns the namespaces that are restored into others, whose users then see their contents.
func (r *reach) moved(restore *v1alpha1.Restore) (scopes []recorded.Scope) {
	for _, from := range slices.Sorted(maps.Keys(restore.Spec.NamespaceMapping)) {
		if to := restore.Spec.NamespaceMapping[from]; to != from {
			scopes = append(scopes, recorded.Scope{Namespace: from, Field: "spec.namespaceMapping",
				Because: fmt.Sprintf("spec.namespaceMapping shows what was there to whoever may read %q", to)})
		}
	}
	return scopes
}
