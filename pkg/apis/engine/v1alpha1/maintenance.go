// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// MaintenanceJob returns the name of the repository's Job for a reason. The same maintenance has
// the same name.
func (r *VolumeRepository) MaintenanceJob(reason string) string {
	sum := sha256.Sum256([]byte(string(r.UID) + " " + reason))
	const most = 63 - 1 - 10
	name := strings.ReplaceAll(r.Name, ".", "-")
	return strings.TrimRight(name[:min(len(name), most)], "-") + "-" + hex.EncodeToString(sum[:5])
}

// RequestedJob returns the requested Job's name, and whether it has not ended yet.
func (r *VolumeRepository) RequestedJob() (name string, waits bool) {
	ask := r.Spec.MaintenanceRequest
	if ask == nil {
		return "", false
	}
	name = r.MaintenanceJob("requested " + ask.Timestamp.UTC().Format(time.RFC3339))
	recent := r.Status.RecentMaintenance
	if len(recent) == MaxRecentMaintenance && recent[len(recent)-1].StartTimestamp.After(ask.Timestamp.Time) {
		return name, false // it would be before these
	}
	return name, !slices.ContainsFunc(recent, func(run MaintenanceRun) bool { return run.Job == name })
}

// Affects reports whether a snapshot needs lost data, as of the last check. Later uploads store it
// anew. began is zero if unknown.
func (d *RepositoryDamage) Affects(snapshot string, began time.Time) bool {
	switch {
	case d == nil || snapshot == "":
		return false
	case d.AffectedUntil != nil:
		return !began.After(d.AffectedUntil.Time)
	}
	return slices.Contains(d.Snapshots, snapshot)
}

// KnownPacks returns the names of the damaged packs.
func (d *RepositoryDamage) KnownPacks() []string {
	if d == nil {
		return nil
	}
	return d.Packs
}
