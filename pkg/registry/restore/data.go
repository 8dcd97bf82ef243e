// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

const mostClaims = 3

// withVolumes are the resources whose restore includes volumes.
var withVolumes = sets.New("persistentvolumeclaims", "persistentvolumes", "pods", "statefulsets", "deployments", "replicasets", "daemonsets", "jobs", "cronjobs", "replicationcontrollers")

// holdsLess returns which data the newest candidate lacks that an older one holds, and that backup, or "". A user
// decides: a claim may have been deleted on purpose.
func (k *kind) holdsLess(newest *v1alpha1.Backup, candidates []*v1alpha1.Backup, restore *v1alpha1.RestoreSpec) string {
	if k.heldClaims == nil || !asksForVolumes(restore) {
		return ""
	}
	asked, _ := selection.ParseNamespaces(restore.IncludedNamespaces, restore.ExcludedNamespaces, nil)
	held := make(map[*v1alpha1.Backup]sets.Set[types.NamespacedName], len(candidates))
	for _, backup := range candidates {
		held[backup] = sets.New(k.heldClaims(backup.Namespace, backup.Name)...)
	}
	all := sets.New[types.NamespacedName]()
	newestFirst := slices.SortedFunc(slices.Values(candidates), func(a, b *v1alpha1.Backup) int {
		return cmp.Or(takenAt(b).Compare(takenAt(a).Time), strings.Compare(a.Name, b.Name))
	})
	// For each claim that the newest lacks, the newest backup with it.
	holders := map[types.NamespacedName]*v1alpha1.Backup{}
	for _, backup := range newestFirst {
		for claim := range held[backup] {
			if !asksFor(restore, asked, claim) {
				continue
			}
			all.Insert(claim)
			if !held[newest].Has(claim) && holders[claim] == nil {
				holders[claim] = backup
			}
		}
	}
	if len(holders) == 0 {
		return ""
	}
	whole := ""
	for _, backup := range newestFirst {
		if held[backup].IsSuperset(all) {
			whole = fmt.Sprintf(", and %q of %s holds the data of all", backup.Name, stamp(backup))
			break
		}
	}
	var lacks []string
	claims := slices.SortedFunc(maps.Keys(holders), func(a, b types.NamespacedName) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for i, claim := range claims {
		if i == mostClaims {
			lacks = append(lacks, fmt.Sprintf("%d more", len(claims)-i))
			break
		}
		lacks = append(lacks, fmt.Sprintf("%s (held by %q of %s)", claim, holders[claim].Name, stamp(holders[claim])))
	}
	return fmt.Sprintf("the newest backup, %q of %s, lacks the data of %s%s: set spec.backupName to the one that you want", newest.Name, stamp(newest), strings.Join(lacks, ", "), whole)
}

func stamp(backup *v1alpha1.Backup) string {
	return takenAt(backup).UTC().Format("2006-01-02T15:04:05Z")
}

func asksFor(restore *v1alpha1.RestoreSpec, asked *selection.Namespaces, claim types.NamespacedName) bool {
	if len(restore.Objects) == 0 {
		return asked.Match(claim.Namespace)
	}
	return slices.ContainsFunc(restore.Objects, func(object v1alpha1.RestoreObject) bool {
		resource := resourceOf(object.Resource)
		switch {
		case !withVolumes.Has(resource):
			return false
		case resource == "persistentvolumes":
			return true
		case object.Namespace != claim.Namespace:
			return false
		}
		return resource != "persistentvolumeclaims" || object.Name == "" || object.Name == claim.Name
	})
}

func asksForVolumes(restore *v1alpha1.RestoreSpec) bool {
	switch {
	case restore.VolumesOnly || len(restore.Objects) > 0:
		return true
	case restore.RestorePVs != nil && !*restore.RestorePVs:
		return false
	case len(restore.IncludedResources) == 0:
		return true
	}
	return slices.ContainsFunc(restore.IncludedResources, func(word string) bool {
		return strings.ContainsAny(word, "*?[") || withVolumes.Has(resourceOf(word))
	})
}

func resourceOf(word string) string { return groupResourceOf(word).Resource }

func groupResourceOf(word string) schema.GroupResource {
	if gr, ok := selection.WellKnown.Resolve(word); ok {
		return gr
	}
	return schema.ParseGroupResource(strings.ToLower(word))
}
