// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package standin says of backups that have no manifest yet, since they wait or run, whether
// they would overlap by object: the newest stored backup of its kind stands in for each. What it
// says is information, by which nothing is decided: a stored backup says what was there then.
package standin

import (
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/manifest"
)

// Kind is what a backup has in common with those that can stand in for it: where it is shown,
// where it is stored, and the words by which it selects objects.
type Kind struct{ Namespace, Location, Selection string }

// KindOf is that of a backup in a namespace. Each field counts that is not known to select nothing.
func KindOf(namespace string, spec *v1alpha1.BackupSpec) Kind {
	selection := *spec
	selection.Metadata, selection.TTL, selection.StorageLocation = v1alpha1.BackupSpecMetadata{}, metav1.Duration{}, ""
	selection.OrderedResources, selection.Hooks, selection.VeleroFields = nil, v1alpha1.BackupHooks{}, v1alpha1.VeleroFields{}
	// The data of volumes is no object.
	selection.SnapshotVolumes, selection.SnapshotMoveData, selection.DefaultVolumesToFsBackup, selection.ResourcePolicy = nil, nil, nil, nil
	text, err := json.Marshal(&selection)
	if err != nil {
		return Kind{} // of no stored backup
	}
	return Kind{namespace, spec.StorageLocation, string(text)}
}

// Newest are the stored backups that stand in for the kinds that are wanted. Only those can that
// hold all they selected, and were made by this cluster in the namespace where they are shown.
func Newest(wanted sets.Set[Kind], backups iter.Seq[*v1alpha1.Backup]) map[Kind]*v1alpha1.Backup {
	newest := map[Kind]*v1alpha1.Backup{}
	for backup := range backups {
		origin, started := backup.Status.Origin, backup.Status.StartTimestamp
		if backup.Status.Phase != v1alpha1.BackupPhaseCompleted || started == nil || origin == nil ||
			origin.Trust != v1alpha1.BackupTrustOwn || origin.Namespace != backup.Namespace {
			continue
		}
		kind := KindOf(backup.Namespace, &backup.Spec)
		if was := newest[kind]; wanted.Has(kind) && (was == nil || was.Status.StartTimestamp.Before(started)) {
			newest[kind] = backup
		}
	}
	return newest
}

// maxItems is how many items of a manifest are compared.
const maxItems = 1_000_000

var errTooMany = errors.New("the manifest has too many items to be compared")

// Disjoint reports whether two manifests share no object, Namespaces aside: two backups of one
// namespace share that always. Both are read in one pass, with memory for one item of each: up to
// the first that they share, or to their ends.
func Disjoint(a, b manifest.Sequence) (bool, error) {
	next, stop := iter.Pull2(manifest.Overlap(objects(a, maxItems), objects(b, maxItems)))
	defer stop()
	_, err, shared := next()
	return !shared, err
}

// objects are the items that count. It fails if there are more than limit of them, Namespaces
// and all.
func objects(items manifest.Sequence, limit int) manifest.Sequence {
	return func(yield func(*manifest.Item, error) bool) {
		count := 0
		for item, err := range items {
			if count++; count > limit && err == nil {
				err = errTooMany
			}
			if err == nil && item.APIGroup == "" && item.KindName == "Namespace" {
				continue
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// maxNames is how many backups a note names.
const maxNames = 3

// Note is what the message of an entry in a namespace goes on with, if what stands in for the
// backup and for those that it waits for has no object in common: two backups at least.
func Note(namespace string, by []types.NamespacedName) string {
	var names []string
	for _, backup := range by {
		name := backup.Name
		if backup.Namespace != namespace {
			name = backup.String()
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > maxNames {
		names = append(names[:maxNames], "others")
	}
	last := len(names) - 1
	return "; going by the stored backups " + strings.Join(names[:last], ", ") + " and " + names[last] + ", they would not overlap by object"
}
