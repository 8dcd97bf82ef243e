// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

// storeDelay bounds how long an ended backup may be invisible in its store to other machines, which cache missing
// folders.
const storeDelay = 2 * time.Minute

// Observe notes a run.
func (p *Projector) Observe(run *enginev1alpha1.BackupRun) {
	selected := p.selected(run)
	if run.Deleting() {
		// After a restart only this may hide the backup, if its record was deleted meanwhile.
		p.stores.refresher.Removed(run.Spec.Backup.StorageLocation, run.Name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known, kept := p.runs.observe(run)
	if !kept {
		return
	}
	if changed := p.queue.planner.UpdateRun(run, selected); changed || known == nil || !slices.Equal(known.Status.AbsentAgents, run.Status.AbsentAgents) {
		p.queue.wake() // not by progress, which the queue does not show
	}
	key := p.runs.key(run)
	wasStored := known != nil && known.Status.Stored
	if location, since := run.Spec.Backup.StorageLocation, p.heardFrom(run); run.Status.Stored && !wasStored && !p.stores.catalog.Knows(location, run.Name, run.UID, since) {
		p.runs.unread[key] = unread{run, since}
		p.stores.refresher.ReadSoon(location, run.Name)
	}
	p.projectLocked(key)
}

func (p *Projector) removed(run *enginev1alpha1.BackupRun) {
	if run.Deleting() && p.isKnown(run) {
		// The store has nothing left. The catalogue comes first, without the lock: no client sees the old backup
		// again.
		p.stores.catalog.Remove(run.Spec.Backup.StorageLocation, run.Name)
		p.stores.refresher.Removed(run.Spec.Backup.StorageLocation, run.Name)
		p.refreshed()
		if run.Status.FailureReason != "" {
			p.stores.refresher.Nudge(run.Spec.Backup.StorageLocation) // it may have been given up
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.planner.RemoveRun(run.UID) {
		p.queue.wake()
	}
	if p.runs.remove(run) {
		p.projectLocked(p.runs.key(run))
	}
}

func (p *Projector) isKnown(run *enginev1alpha1.BackupRun) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs.byBackup.Known(run) != nil
}

// heardFrom returns from when a store's answer about a stored run counts; see storeDelay.
func (p *Projector) heardFrom(run *enginev1alpha1.BackupRun) time.Time {
	now := p.Clock.Now()
	if ended := run.Status.CompletionTimestamp; ended != nil && now.Sub(ended.Time) < storeDelay {
		return ended.Add(storeDelay)
	}
	return now
}

func (p *Projector) asked(location string) {
	defer p.refreshed()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.askedLocked(location)
}

func (p *Projector) askedLocked(location string) {
	_, err := p.Locations.Lister().StorageLocations(p.SystemNamespace).Get(location)
	for key, u := range p.runs.unread {
		if u.run.Spec.Backup.StorageLocation != location {
			continue
		}
		if apierrors.IsNotFound(err) || p.stores.catalog.Knows(location, u.run.Name, u.run.UID, u.since) {
			delete(p.runs.unread, key)
			p.projectLocked(key)
		}
	}
}

// selected reads a run's selection unless it is known. It takes milliseconds, so it does not lock.
func (p *Projector) selected(run enginev1alpha1.QueuedRun) *records.Selection {
	p.mu.Lock()
	known := p.queue.planner.Knows(run)
	p.mu.Unlock()
	if known {
		return nil
	}
	return records.Select(run)
}

func (p *Projector) restoreChanged(run *enginev1alpha1.RestoreRun) {
	selected := p.selected(run)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.planner.UpdateRun(run, selected) {
		p.queue.wake()
	}
}

func (p *Projector) restoreRemoved(run *enginev1alpha1.RestoreRun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.planner.RemoveRun(run.UID) {
		p.queue.wake()
	}
}

// Load returns the planner's load of a namespace.
func (p *Projector) Load(namespace string, coming sets.Set[string]) records.Load {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.planner.Load(queue.Backup, namespace, coming)
}

// StoredIn counts the stored backups of a namespace.
func (p *Projector) StoredIn(namespace string) int { return p.stores.catalog.CountIn(namespace) }

// projectLocked updates one backup in its log, from its record or the catalogue. The backup does not vanish in
// between.
func (p *Projector) projectLocked(key backupKey) {
	run, stored, unread := p.runs.byBackup.Get(key), p.stores.catalog.Backup(key.Namespace, key.Name), p.runs.unread[key].run
	var backup, over *v1alpha1.Backup // over is nil if it equals backup
	switch {
	case run != nil && run.Deleting() && stored != nil:
		backup = deleting(stored, run)
	case run != nil && (run.Deleting() || !run.Status.Stored):
		show := func(entry *queue.Entry) *v1alpha1.Backup {
			backup := at(key, backupOf(run, entry))
			Unheard(backup.Status.Conditions, p.unheard)
			return backup
		}
		place, ok := p.queue.places[run.UID]
		if !ok {
			backup = show(nil)
			break
		}
		backup = show(&place.Entry)
		if place.Message != place.OverMessage {
			over = show(place.Over())
		}
	case unread != nil && (stored == nil || stored.UID != unread.UID && stored.Status.Phase != v1alpha1.BackupPhaseUnreadable):
		backup = at(key, backupOf(unread, nil))
	case stored != nil:
		delete(p.runs.unread, key)
		backup = stored
	}
	backup = p.changedLocked(backup)
	for _, s := range p.subscribers {
		if s.Backup != nil {
			s.Backup(key, backup)
		}
	}
	if backup == nil {
		p.Backups.Remove(key.Namespace, key.Name)
		return
	}
	if over == nil {
		replace(p.Backups, backup)
	} else {
		replace(p.Backups, backup, p.changedLocked(over))
	}
}

func at(key backupKey, backup *v1alpha1.Backup) *v1alpha1.Backup {
	if of := nameOf(backup); of != key {
		backup.Namespace, backup.Name = key.Namespace, key.Name
		backup.Status.Origin.Namespace, backup.Status.Origin.Name = of.Namespace, of.Name
		backup.Status.Origin.Message = fmt.Sprintf("it was asked for in another namespace %q than the present one, which was made anew since", of.Namespace)
	}
	return backup
}

func nameOf(backup *v1alpha1.Backup) backupKey {
	return backupKey{Namespace: backup.Namespace, Name: backup.Name}
}
