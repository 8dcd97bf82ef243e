// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

func (c *Controller) canBeMaintained(record *enginev1alpha1.VolumeRepository) bool {
	stored, err := c.locations.Get(record.Spec.BackupStorageLocation)
	return err == nil && stored.Spec.AsOf() == nil && !stored.Closed() && ready(record) && record.DeletionTimestamp == nil
}

// wait records what a due repository waits for, after another period, or a minute on request. Short
// waits and restarts cause no writes.
func (c *Controller) wait(ctx context.Context, record *enginev1alpha1.VolumeRepository) error {
	stored, err := c.locations.Get(record.Spec.BackupStorageLocation)
	asOf := err == nil && stored.Spec.AsOf() != nil
	_, requested := record.RequestedJob()
	if record.DeletionTimestamp != nil || asOf && !requested {
		return nil
	}
	since, patience := c.due(record), max(c.frequency(record), leastPatience)
	if requested {
		since, patience = record.Spec.MaintenanceRequest.Timestamp.Time, lookInterval
	}
	if since.Before(c.began) {
		since = c.began
	}
	now := c.Clock.Now()
	if left := since.Add(patience).Sub(now); left > 0 {
		c.queue.AddAfter(record.Name, left)
		return nil
	}
	changed := record.DeepCopy()
	if !meta.SetStatusCondition(&changed.Status.Conditions, metav1.Condition{
		Type: enginev1alpha1.ConditionMaintained, Status: metav1.ConditionFalse, Reason: enginev1alpha1.ReasonWaiting, Message: c.waitsFor(record),
		ObservedGeneration: record.Generation, LastTransitionTime: metav1.NewTime(now),
	}) {
		return nil
	}
	_, err = c.Repositories.VolumeRepositories(c.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing what the maintenance of VolumeRepository %s waits for: %w", record.Name, err)
	}
	return nil
}

func (c *Controller) waitsFor(record *enginev1alpha1.VolumeRepository) string {
	stored, err := c.locations.Get(record.Spec.BackupStorageLocation)
	switch {
	case c.Limit == 0:
		return "It is due, but --concurrent-maintenance-jobs of the controller is 0, so that none is maintained"
	case err == nil && stored.Spec.AsOf() != nil:
		return "It is never maintained: its storage location shows the bucket as of an earlier time, and nothing is written to it"
	case err != nil || stored.Closed():
		return "It is due, and waits until its storage location is available"
	case !ready(record):
		return "It is due, and waits until it can be opened: see the condition Ready"
	}
	return "It is due, and waits for the end of another maintenance: --concurrent-maintenance-jobs of the controller says how many run at once"
}

func last(record *enginev1alpha1.VolumeRepository) (at time.Time, maintained bool) {
	if recent := record.Status.RecentMaintenance; len(recent) > 0 {
		return recent[0].StartTimestamp.Time, true
	}
	return record.CreationTimestamp.Time, false
}

// frequency returns the interval of a repository's maintenance. With a lock it is at most a quarter of
// the lock's days: a full maintenance extends the locks of its blobs. That is due after a day, so even
// a lock of two days is extended in time.
func (c *Controller) frequency(record *enginev1alpha1.VolumeRepository) time.Duration {
	frequency := c.Frequency
	if own := record.Spec.MaintenanceFrequency; own != nil && own.Duration > 0 {
		frequency = own.Duration
	}
	if stored, err := c.locations.Get(record.Spec.BackupStorageLocation); err == nil && stored.Spec.Lock != nil {
		frequency = min(frequency, stored.Spec.Lock.Period()/4)
	}
	return frequency
}

// due returns when a repository is to be maintained; zero on request.
func (c *Controller) due(record *enginev1alpha1.VolumeRepository) time.Time {
	if _, waits := record.RequestedJob(); waits {
		return time.Time{}
	}
	frequency := c.frequency(record)
	since, maintained := last(record)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(record.UID))
	part := time.Duration(float64(frequency) * float64(hash.Sum32()) / (1 << 32))
	if !maintained {
		return since.Add(frequency + part)
	}
	return since.Add(frequency + part/10)
}

func (c *Controller) running() (repositories map[string]bool, count int, err error) {
	all, err := c.jobs.List(labels.Everything())
	if err != nil {
		return nil, 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	repositories, known := map[string]bool{}, map[types.UID]bool{}
	add := func(job *batchv1.Job) {
		known[job.UID] = true
		if ended, _, _ := finished(job); ended {
			return
		}
		count++
		for _, name := range namesOf(job) {
			repositories[name] = true
		}
	}
	for _, job := range all {
		add(job)
	}
	for _, job := range c.made {
		if !known[job.UID] && c.Clock.Since(job.CreationTimestamp.Time) < lookInterval {
			add(job)
		}
	}
	return repositories, count, nil
}

// first returns the longest due repositories for the free places. Small ones of a location share a Job,
// also with those due soon.
func (c *Controller) first() (groups [][]*enginev1alpha1.VolumeRepository) {
	running, count, err := c.running()
	if err != nil || count >= c.Limit { // the limit may be 0
		return nil
	}
	all, err := c.lister.List(labels.Everything())
	if err != nil {
		return nil
	}
	now := c.Clock.Now()
	var waiting []*enginev1alpha1.VolumeRepository
	for _, record := range all {
		due := c.due(record)
		if c.shares(record) {
			due = due.Add(-c.frequency(record) / early)
		}
		if !running[record.Name] && !due.After(now) && c.canBeMaintained(record) {
			waiting = append(waiting, record)
		}
	}
	slices.SortFunc(waiting, func(a, b *enginev1alpha1.VolumeRepository) int {
		return cmp.Or(c.due(a).Compare(c.due(b)), cmp.Compare(a.Name, b.Name))
	})
	shared := map[string]int{}
	for _, record := range waiting {
		location, shares := record.Spec.BackupStorageLocation, c.shares(record)
		group, found := shared[location]
		switch {
		case shares && found && len(groups[group]) < together:
			groups[group] = append(groups[group], record)
		case !c.due(record).After(now):
			if shares {
				shared[location] = len(groups)
			}
			groups = append(groups, []*enginev1alpha1.VolumeRepository{record})
		}
	}
	return groups[:min(len(groups), c.Limit-count)]
}

// shares reports that a repository may share a Job: small, not requested, without own settings,
// undamaged, last maintained with success.
func (c *Controller) shares(record *enginev1alpha1.VolumeRepository) bool {
	recent, size := record.Status.RecentMaintenance, record.Status.Size
	_, requested := record.RequestedJob()
	return !requested && record.Status.Damage == nil && size != nil && size.Value() <= smallRepository &&
		len(recent) > 0 && recent[0].Result == enginev1alpha1.MaintenanceSucceeded && !c.hasOwnSetting(record)
}

func (c *Controller) next() {
	for _, group := range c.first() {
		c.queue.Add(group[0].Name)
	}
}
