// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Claim names a volume claim, in a recreated namespace or not.
type Claim = types.NamespacedName

// HeldClaims returns the sorted claims with data in a backup, neither failed nor deleted.
func (c *Catalog) HeldClaims(namespace, name string) []Claim {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return claimsOf(c.entryAtLocked(namespace, name), func(Claim, int) bool { return true })
}

// LastData returns the sorted claims whose newest data a backup has, among this cluster's good backups.
// Only existing namespaces count; a recreated one continues the former. Backups that are being deleted,
// as going reports, don't count. A kept snapshot that this cluster has no record of, as unrecorded reports, replaces none
// with a record.
func (c *Catalog) LastData(namespace, name string, going func(v1alpha1.BackupReference) bool, unrecorded func(OwnVolume) bool) []Claim {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.entryAtLocked(namespace, name)
	return claimsOf(e, func(claim Claim, i int) bool {
		_, exists := c.trust.namespaces[claim.Namespace]
		return (exists || c.trust.namespaces == nil) && !c.supersededLocked(newMember(e.held, i), claim, going, unrecorded)
	})
}

// IsGood reports whether a listed backup is this cluster's own, seems restorable, and is in its store.
func (c *Catalog) IsGood(namespace, name string, uid types.UID) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.entryAtLocked(namespace, name)
	return e != nil && e.held.row.UID == uid && c.isGoodLocked(e.held)
}

func (c *Catalog) isGoodLocked(h *held) bool {
	return canBring(h) && !c.past[h.location] && h.row.Status.Origin.Trust == v1alpha1.BackupTrustOwn && !c.isLostLocked(h)
}

// Holders returns the uids of up to most good backups of this cluster with a claim's data, newest
// first, without a former namespace's.
func (c *Catalog) Holders(claim Claim, most int) []types.UID {
	c.mu.RLock()
	defer c.mu.RUnlock()
	v, ok := c.volumes.Get(&volume{name: claim})
	if !ok {
		return nil
	}
	var of []types.UID
	for _, m := range slices.Backward(v.members) {
		if len(of) == most {
			break
		}
		if r := m.row(); holds(m.held, r) && !inStorage(r) && r.shape.Value().claimName == claim.Name && c.isGoodLocked(m.held) && !slices.Contains(of, m.held.row.UID) {
			of = append(of, m.held.row.UID)
		}
	}
	return of
}

func (c *Catalog) supersededLocked(own member, claim Claim, going func(v1alpha1.BackupReference) bool, unrecorded func(OwnVolume) bool) bool {
	for _, name := range []types.NamespacedName{claim, {Namespace: c.systemNamespace, Name: claim.Name + "@" + claim.Namespace}} {
		v, ok := c.volumes.Get(&volume{name: name})
		if !ok {
			continue
		}
		for _, m := range slices.Backward(v.members) {
			if compareMembers(m, own) <= 0 {
				break
			}
			newer := m.row()
			if m.held != own.held && holds(m.held, newer) && (!inStorage(newer) || replacesKept(m, own, unrecorded)) && canBring(m.held) && !c.past[m.held.location] && !c.isLostLocked(m.held) && !going(m.held.reference(m.held.row.Namespace, false)) {
				return true
			}
		}
	}
	return false
}

// replacesKept reports whether a newer kept snapshot takes the place of an older one. A copy of the same
// backup has none of its own.
func replacesKept(newer, own member, unrecorded func(OwnVolume) bool) bool {
	return inStorage(own.row()) && newer.held.backup.UID != own.held.backup.UID && (hasRecord(newer, unrecorded) || !hasRecord(own, unrecorded))
}

func hasRecord(m member, unrecorded func(OwnVolume) bool) bool {
	v, ok := m.ownVolume()
	return ok && !unrecorded(v)
}

func (c *Catalog) isLostLocked(h *held) bool {
	e := c.locations[h.location][h.storeName]
	return e == nil || e.held != h || !e.missingSince.IsZero()
}

func (c *Catalog) entryAtLocked(namespace, name string) *entry {
	bare, _, _ := strings.Cut(name, "@") // backups' names have no @
	for _, e := range c.rows[group{storeName: format.StoreName(namespace, bare, c.systemNamespace)}] {
		if row := e.held.row; row != nil && row.Namespace == namespace && row.Name == name {
			return e
		}
	}
	return nil
}

func claimsOf(e *entry, wanted func(claim Claim, row int) bool) []Claim {
	if e == nil || !canBring(e.held) {
		return nil
	}
	var claims []Claim
	for i := range e.rows.len() {
		r := e.rows.at(i)
		if isDeleted(e.deleted, i) || !holds(e.held, r) {
			continue
		}
		s := r.shape.Value()
		if claim := (Claim{Namespace: s.namespace, Name: s.claimName}); wanted(claim, i) {
			claims = append(claims, claim)
		}
	}
	slices.SortFunc(claims, compareNames)
	return slices.Compact(claims)
}

// holds reports whether a row is restorable data of a claim. Snapshots in a volume's storage are only
// restored from this cluster's backups.
func holds(h *held, r row) bool {
	s := r.shape.Value()
	own := h.row != nil && h.row.Status.Origin != nil && h.row.Status.Origin.Trust == v1alpha1.BackupTrustOwn
	return r.state == stateCompleted && s.claimName != "" && s.method != format.UploaderRestic && (own || !inStorage(r))
}

// inStorage reports whether a row is no second copy of the data.
func inStorage(r row) bool { return r.shape.Value().method == MethodInStorage }

// canBring reports whether this cluster vouches for a restorable backup, apart from doubts about
// volumes.
func canBring(h *held) bool {
	if h.row == nil {
		return false
	}
	status := &h.row.Status
	return (status.Phase == v1alpha1.BackupPhaseCompleted || status.Phase == v1alpha1.BackupPhasePartiallyFailed) &&
		status.Origin != nil && (status.Origin.Trust == v1alpha1.BackupTrustOwn || status.Origin.Trust == v1alpha1.BackupTrustTrusted) &&
		!meta.IsStatusConditionTrue(status.Conditions, ConditionMetadataReplaced) &&
		!meta.IsStatusConditionFalse(status.Conditions, ConditionVolumesListed)
}
