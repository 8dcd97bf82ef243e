// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
)

func checked(status *enginev1alpha1.VolumeRepositoryStatus, found *maintenance.Check, at time.Time) {
	if found == nil {
		return
	}
	now := metav1.NewTime(at)
	status.LastCheckTime = &now
	if found.All {
		status.LastVerificationTime = &now
	}
	before := status.Damage
	// Damaged packs are checked again by name. Beyond the names, only a check of all packs proves them
	// whole.
	unnamed := before != nil && int(before.DamagedPacks) > len(before.Packs) && !found.All
	if !found.Lost() && !unnamed {
		status.Damage = nil
		return
	}
	if !found.Lost() {
		return
	}
	damage := &enginev1alpha1.RepositoryDamage{
		Since: now, MissingPacks: bounded(found.MissingPacks), DamagedPacks: bounded(found.DamagedPacks), Packs: found.Damaged,
		MissingIndexes: bounded(found.MissingIndexes), Contents: int64(found.Contents), AffectedSnapshots: bounded(found.AffectedSnapshots), Snapshots: found.Snapshots,
	}
	if found.AffectedUntil != nil {
		until := metav1.NewTime(found.AffectedUntil.Add(time.Second)) // it has a fraction of a second
		damage.AffectedUntil = &until
	}
	if before != nil {
		damage.Since = before.Since
		if unnamed {
			damage.DamagedPacks = max(damage.DamagedPacks, before.DamagedPacks)
		}
	}
	status.Damage = damage
}

func bounded(n int) int32 { return int32(min(n, math.MaxInt32)) }

func (c *Controller) damaged(record *enginev1alpha1.VolumeRepository) {
	status := &record.Status
	if status.LastCheckTime == nil {
		return
	}
	condition := metav1.Condition{
		Type: enginev1alpha1.ConditionDamaged, Status: metav1.ConditionFalse, Reason: enginev1alpha1.ReasonNothingLost, Message: "The store has all packs that the index names",
		ObservedGeneration: record.Generation, LastTransitionTime: metav1.NewTime(c.Clock.Now()),
	}
	if status.Damage != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, enginev1alpha1.ReasonDataLost, lossOf(status.Damage)
	}
	meta.SetStatusCondition(&status.Conditions, condition)
}

func lossOf(damage *enginev1alpha1.RepositoryDamage) string {
	var told []string
	if damage.MissingIndexes > 0 {
		told = append(told, fmt.Sprintf("The store has lost %d indexes, since %s at the latest, and what only they name is unknown, snapshots included. Bring them back from a copy: no maintenance removes anything until then",
			damage.MissingIndexes, damage.Since.UTC().Format(time.RFC3339)))
	}
	if damage.MissingPacks+damage.DamagedPacks == 0 {
		return strings.Join(told, ". ")
	}
	told = append(told, fmt.Sprintf("The store has lost data: %d packs are missing and %d damaged, by which %d contents of %d snapshots can't be read, since %s at the latest. Bring the packs back from a copy, or make new backups, which store what they held anew",
		damage.MissingPacks, damage.DamagedPacks, damage.Contents, damage.AffectedSnapshots, damage.Since.UTC().Format(time.RFC3339)))
	return strings.Join(told, ". ")
}

func (c *Controller) tellDamage(before, after *enginev1alpha1.VolumeRepository) {
	was, is := before.Status.Damage, after.Status.Damage
	switch {
	case is != nil && (was == nil || was.MissingPacks != is.MissingPacks || was.DamagedPacks != is.DamagedPacks || was.MissingIndexes != is.MissingIndexes):
		c.Events.Eventf(before, nil, corev1.EventTypeWarning, "DataLost", "Check", "%s", lossOf(is))
	case is == nil && was != nil:
		c.Events.Eventf(before, nil, corev1.EventTypeNormal, "NothingLost", "Check", "The store has all packs again that the index names")
	}
}
