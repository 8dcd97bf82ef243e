// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// Claim names a volume claim in a namespace, whichever namespace had that name.
type Claim = types.NamespacedName

// HeldClaims are the claims whose data the backup that is listed under a name holds, sorted. A
// volume that failed or was deleted from the backup does not count.
func (c *Catalog) HeldClaims(namespace, name string) []Claim {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return claimsOf(c.entryAtLocked(namespace, name), func(Claim, int) bool { return true })
}

// LastData returns the claims, sorted, whose newest data the named backup holds: no other good
// backup of this cluster holds newer data of them. Only claims of existing namespaces count. A
// namespace that was made anew continues the former one of its name here. going reports of
// another backup whether it is being deleted, and so does not count.
func (c *Catalog) LastData(namespace, name string, going func(holdfast.BackupReference) bool) []Claim {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.entryAtLocked(namespace, name)
	return claimsOf(e, func(claim Claim, i int) bool {
		_, exists := c.trust.namespaces[claim.Namespace]
		return (exists || c.trust.namespaces == nil) && !c.supersededLocked(newMember(e.held, i), claim, going)
	})
}

// supersededLocked reports whether another good backup holds newer data of a claim than a row.
func (c *Catalog) supersededLocked(own member, claim Claim, going func(holdfast.BackupReference) bool) bool {
	for _, name := range []types.NamespacedName{claim, {Namespace: c.systemNamespace, Name: claim.Name + "@" + claim.Namespace}} {
		v, ok := c.volumes.Get(&volume{name: name})
		if !ok {
			continue
		}
		for _, m := range slices.Backward(v.members) {
			if compareMembers(m, own) <= 0 {
				break
			}
			if m.held != own.held && holds(m.row()) && canBring(m.held) && !c.isLostLocked(m.held) && !going(m.held.reference(m.held.row.Namespace, false)) {
				return true
			}
		}
	}
	return false
}

// isLostLocked reports whether the store lacked a backup when it was listed last.
func (c *Catalog) isLostLocked(h *held) bool {
	e := c.locations[h.location][h.storeName]
	return e == nil || e.held != h || !e.missingSince.IsZero()
}

// entryAtLocked is the entry that is listed as a backup of a name, or nil.
func (c *Catalog) entryAtLocked(namespace, name string) *entry {
	bare, _, _ := strings.Cut(name, "@") // no name of a backup has one
	for _, e := range c.rows[group{storeName: format.StoreName(namespace, bare, c.systemNamespace)}] {
		if row := e.held.row; row != nil && row.Namespace == namespace && row.Name == name {
			return e
		}
	}
	return nil
}

// claimsOf are the claims whose data an entry holds, by those of its rows that are wanted.
func claimsOf(e *entry, wanted func(claim Claim, row int) bool) []Claim {
	if e == nil || !canBring(e.held) {
		return nil
	}
	var claims []Claim
	for i := range e.rows.len() {
		r := e.rows.at(i)
		if isDeleted(e.deleted, i) || !holds(r) {
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

// holds reports whether a row holds the data of a claim.
func holds(r row) bool {
	s := r.shape.Value()
	return r.state == stateCompleted && s.claimName != "" && s.method != format.UploaderRestic
}

// canBring reports whether data can be restored from a backup that this cluster vouches for, as
// far as is known. A reason to doubt all data of a backup belongs here. What concerns one volume,
// such as lost data, is the state of its row.
func canBring(h *held) bool {
	if h.row == nil {
		return false
	}
	status := &h.row.Status
	return (status.Phase == holdfast.BackupPhaseCompleted || status.Phase == holdfast.BackupPhasePartiallyFailed) &&
		status.Origin != nil && (status.Origin.Trust == holdfast.BackupTrustOwn || status.Origin.Trust == holdfast.BackupTrustTrusted) &&
		!meta.IsStatusConditionTrue(status.Conditions, ConditionMetadataReplaced) &&
		!meta.IsStatusConditionFalse(status.Conditions, ConditionVolumesListed)
}
