// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

const reasonDataLost = "DataLost"

// SetDamage sets the lost data of a namespace's repository in a location, or nil. Volume backups that
// need it are Damaged until the store has it again.
func (c *Catalog) SetDamage(location, namespace string, damage *enginev1alpha1.RepositoryDamage) {
	name := enginev1alpha1.RepositoryName(namespace, location)
	if !c.setTrust(func(t *trust) bool {
		if equality.Semantic.DeepEqual(t.damage[name], damage) {
			return false
		}
		t.damage = maps.Clone(t.damage)
		switch {
		case damage == nil:
			delete(t.damage, name)
		case t.damage == nil:
			t.damage = map[string]*enginev1alpha1.RepositoryDamage{name: damage}
		default:
			t.damage[name] = damage
		}
		return true
	}) {
		return
	}
	c.replace(func(e *entry) bool {
		return e.location == location && slices.ContainsFunc(e.rows.namespaces(), func(of string) bool { return of == namespace })
	})
}

func (p *packedRows) namespaces() (all []string) {
	if p == nil {
		return nil
	}
	for _, of := range p.shapes {
		if namespace := of.Value().namespace; !slices.Contains(all, namespace) {
			all = append(all, namespace)
		}
	}
	return all
}

// damagedLocked sets the state Damaged of rows that need lost data, or Completed, and the backup's
// condition.
func (c *Catalog) damagedLocked(e *entry, placed *v1alpha1.Backup, rows *packedRows, deleted []bool) *packedRows {
	placed.Status.Conditions = slices.DeleteFunc(slices.Clone(placed.Status.Conditions), func(is metav1.Condition) bool {
		return is.Type == v1alpha1.ConditionVolumesDamaged
	})
	if rows.len() == 0 || len(c.trust.damage) == 0 && !slices.ContainsFunc(rows.cells, func(of cell) bool { return of.state == stateDamaged }) {
		return rows
	}
	var cells []cell
	count, since := 0, time.Time{}
	for i := range rows.cells {
		state := rows.cells[i].state
		if state != stateCompleted && state != stateDamaged {
			continue
		}
		r := rows.at(i)
		damage := c.trust.damage[enginev1alpha1.RepositoryName(r.shape.Value().namespace, e.location)]
		now := uint8(stateCompleted)
		if damage.Affects(hex.EncodeToString(r.snapshot[:]), r.began()) {
			now = stateDamaged
			if !isDeleted(deleted, i) {
				count++
				if since.IsZero() || damage.Since.Time.Before(since) {
					since = damage.Since.Time
				}
			}
		}
		if now == state {
			continue
		}
		if cells == nil {
			cells = slices.Clone(rows.cells)
		}
		cells[i].state = now
	}
	if count > 0 {
		placed.Status.Conditions = append(placed.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionVolumesDamaged, Status: metav1.ConditionTrue, Reason: reasonDataLost, LastTransitionTime: metav1.NewTime(since),
			Message: fmt.Sprintf("%d of its volumes can't be restored in full: the store has lost data of them since: see its VolumeBackups that are Damaged", count),
		})
	}
	if cells == nil {
		return rows
	}
	return &packedRows{cells: cells, shapes: rows.shapes, odd: rows.odd}
}

func (r row) began() time.Time {
	switch {
	case r.started != 0:
		return time.Unix(int64(r.started), 0)
	case r.odd != nil:
		return r.odd.started
	}
	return time.Time{}
}
