// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

type backup struct {
	types.NamespacedName
	uid        types.UID
	location   string
	expiration time.Time
	started    time.Time
	held       bool
	deleting   bool
	good       bool
	// second: it keeps snapshots, and is listed after another location's backup of its name. It may be a
	// copy without snapshots, and can't be deleted before the other one.
	second bool
	reach  reach
	scope  scope
}

type reach struct{ included, excluded string }

// scope is the included part of the namespaces.
type scope struct {
	filter string
	// volumes ranks volumes without a pod's annotation.
	volumes int
	// complete: nothing failed, and no volume was deleted or damaged since. Omitted claims don't count:
	// the deletion request protects each claim's newest data.
	complete bool
}

// These are for DefaultVolumesToFsBackup: false, unset, true.
const (
	volumesNone = iota
	volumesOfClaims
	volumesAll
)

func (s scope) covers(other scope) bool {
	return (s.filter == "" || s.filter == other.filter) && s.volumes >= other.volumes && (s.complete || !other.complete)
}

// own converts a Backup, and reports whether it is stored and this cluster's own. Others never expire
// here.
func own(object *v1alpha1.Backup) (backup, bool) {
	status := &object.Status
	phase := status.Phase
	deleting := phase == v1alpha1.BackupPhaseDeleting
	if status.Origin == nil || status.Origin.Trust != v1alpha1.BackupTrustOwn || status.FormatVersion == "" ||
		!deleting && (!phase.Ended() || phase == v1alpha1.BackupPhaseUnreadable) {
		return backup{}, false
	}
	keepsSnapshots := status.Volumes != nil && status.Volumes.InStorage > 0
	b := backup{
		NamespacedName: types.NamespacedName{Namespace: object.Namespace, Name: object.Name},
		uid:            object.UID,
		location:       object.Spec.StorageLocation,
		deleting:       deleting,
		held:           status.Hold != nil,
		started:        object.CreationTimestamp.Time,
		good: (phase == v1alpha1.BackupPhaseCompleted || phase == v1alpha1.BackupPhasePartiallyFailed) && !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionMetadataReplaced) &&
			!meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionVolumesListed),
		reach:  reach{words(object.Spec.IncludedNamespaces), words(object.Spec.ExcludedNamespaces)},
		scope:  scopeOf(&object.Spec, keepsSnapshots),
		second: keepsSnapshots && strings.Contains(object.Name, "@"),
	}
	b.scope.complete = phase == v1alpha1.BackupPhaseCompleted && (status.Volumes == nil || status.Volumes.Deleted == 0) &&
		!meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionVolumesDamaged)
	if status.StartTimestamp != nil {
		b.started = status.StartTimestamp.Time
	}
	if status.Expiration != nil {
		b.expiration = status.Expiration.Time
	}
	return b, true
}

func words(list []string) string { return strings.Join(list, ",") } // no name or pattern has a comma

// scopeOf returns a backup's scope. Snapshots kept in their storage are no second copies, so it does
// not replace a backup that has the data.
func scopeOf(spec *v1alpha1.BackupSpec, keepsSnapshots bool) scope {
	filters := spec.DeepCopy()
	volumes := filters.DefaultVolumesToFsBackup
	filters.IncludedNamespaces, filters.ExcludedNamespaces = nil, nil
	filters.TTL, filters.StorageLocation = v1alpha1.Duration{}, ""
	filters.CSISnapshotTimeout, filters.ItemOperationTimeout = v1alpha1.Duration{}, v1alpha1.Duration{} // they may differ in words only
	filters.OrderedResources = nil
	for i := range filters.Hooks.Resources {
		resource := &filters.Hooks.Resources[i]
		for _, hooks := range [][]v1alpha1.BackupResourceHook{resource.Pre, resource.Post} {
			for j := range hooks {
				if exec := hooks[j].Exec; exec != nil {
					exec.Timeout.Text = "" // 60s is 1m
				}
			}
		}
	}
	filters.SnapshotVolumes, filters.SnapshotMoveData, filters.DefaultVolumesToFsBackup, filters.IncludeClusterResources = nil, nil, nil, nil
	if keepsSnapshots {
		filters.SnapshotMoveData = new(false)
	}
	s := scope{volumes: volumesOfClaims}
	switch {
	case volumes != nil && *volumes:
		s.volumes = volumesAll
	case volumes != nil:
		s.volumes = volumesNone
	}
	if plain, err := json.Marshal(v1alpha1.BackupSpec{}); err == nil {
		if encoded, err := json.Marshal(filters); err == nil && string(encoded) != string(plain) {
			s.filter = string(encoded)
			if len(encoded) > sha256.Size {
				sum := sha256.Sum256(encoded)
				s.filter = string(sum[:])
			}
		}
	}
	return s
}

func expired(backups []backup, now time.Time) []backup {
	var due []backup
	for _, b := range backups {
		if !b.deleting && !b.expiration.IsZero() && !now.Before(b.expiration) {
			due = append(due, b)
		}
	}
	slices.SortFunc(due, func(a, b backup) int {
		return cmp.Or(a.expiration.Compare(b.expiration), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return due
}

// maxFiltered bounds the protected backups of parts of a namespace, by the newest selections: a tenant
// with many selectors does not keep all.
const maxFiltered = 100

// lastGood returns the backups that a namespace needs, each with the namespace. A good backup may be
// deleted if a newer good one includes the same namespaces and covers its scope. For selections by
// resources or labels, that holds for the newest maxFiltered. A second one replaces none.
func lastGood(backups []backup, namespaces []string) map[types.UID]string {
	// Of equal reach and scope only the newest counts.
	type kind struct {
		reach reach
		scope scope
	}
	newest := map[kind]backup{}
	for _, b := range backups {
		if !b.good || b.second {
			continue
		}
		k := kind{b.reach, b.scope}
		if other, ok := newest[k]; !ok || newer(b, other) {
			newest[k] = b
		}
	}
	candidates := make([]backup, 0, len(newest))
	for _, b := range newest {
		candidates = append(candidates, b)
	}
	slices.SortFunc(candidates, func(a, b backup) int {
		if newer(a, b) {
			return -1
		}
		return 1
	})
	last := map[types.UID]string{}
	covered, filtered := map[string][]scope{}, map[string]int{}
	reached := map[reach][]string{}
	for _, b := range candidates {
		of, ok := reached[b.reach]
		if !ok {
			of = b.reach.among(namespaces)
			reached[b.reach] = of
		}
		for _, namespace := range of {
			if b.scope.filter != "" && filtered[namespace] >= maxFiltered {
				continue
			}
			if !slices.ContainsFunc(covered[namespace], func(s scope) bool { return s.covers(b.scope) }) {
				if b.scope.filter != "" {
					filtered[namespace]++
				}
				covered[namespace] = append(covered[namespace], b.scope)
				if last[b.uid] == "" {
					last[b.uid] = namespace
				}
			}
		}
	}
	return last
}

func newer(a, b backup) bool {
	return cmp.Or(a.started.Compare(b.started), cmp.Compare(a.uid, b.uid)) > 0
}

// among returns the included namespaces; all if the lists are invalid.
func (r reach) among(namespaces []string) []string {
	split := func(list string) []string {
		if list == "" {
			return nil
		}
		return strings.Split(list, ",")
	}
	selected, errs := selection.ParseNamespaces(split(r.included), split(r.excluded), nil)
	if len(errs) > 0 {
		return namespaces
	}
	var of []string
	for _, namespace := range namespaces {
		if selected.Match(namespace) {
			of = append(of, namespace)
		}
	}
	return of
}

const (
	// floor backups of a location may always expire within an hour.
	floor = 10
	// few: a store with more is not emptied at once.
	few = 2
)

// tooMany reports whether n of total backups may not expire within an hour.
func tooMany(n, total, percent int) bool {
	return n > mostOf(total, percent) || percent < 100 && n == total && n > few
}

func mostOf(total, percent int) int {
	if percent >= 100 {
		return total
	}
	return max(floor, total*percent/100)
}
