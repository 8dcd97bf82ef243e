// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
)

func (c *Controller) jobsOf(ctx context.Context, record *enginev1alpha1.VolumeRepository) ([]*batchv1.Job, error) {
	all, err := c.knownJobsOf(record)
	if err != nil {
		return nil, err
	}
	if err := c.lookForMade(ctx, record, all); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if made := c.made[record.UID]; made != nil {
		if slices.ContainsFunc(all, func(job *batchv1.Job) bool { return job.UID == made.UID }) || c.gone[record.Name] != nil && c.gone[record.Name].UID == made.UID {
			delete(c.made, record.UID)
		} else {
			all = append(all, made)
			newestFirst(all)
		}
	}
	return all, nil
}

func (c *Controller) knownJobsOf(record *enginev1alpha1.VolumeRepository) (all []*batchv1.Job, err error) {
	found, err := c.JobInformer.Informer().GetIndexer().ByIndex(byRepositoryIndex, record.Name)
	for _, obj := range found {
		if job := obj.(*batchv1.Job); isOf(job, record) {
			all = append(all, job)
		}
	}
	newestFirst(all)
	return all, err
}

func newestFirst(jobs []*batchv1.Job) {
	slices.SortFunc(jobs, func(a, b *batchv1.Job) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})
}

// lookForMade looks for a Job that the informer should know: it may have been deleted unseen.
func (c *Controller) lookForMade(ctx context.Context, record *enginev1alpha1.VolumeRepository, all []*batchv1.Job) error {
	c.mu.Lock()
	made := c.made[record.UID]
	c.mu.Unlock()
	if made == nil || c.Clock.Since(made.CreationTimestamp.Time) < lookInterval || slices.ContainsFunc(all, func(job *batchv1.Job) bool { return job.UID == made.UID }) {
		return nil
	}
	found, err := c.Jobs.Get(ctx, made.Name, metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("looking for Job %s: %w", made.Name, err)
	case err == nil && found.UID == made.UID:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range namesOf(made) {
		if c.gone[name] == nil {
			c.gone[name] = made
			c.queue.Add(name)
		}
	}
	return nil
}

// clear deletes Jobs that are not kept, with their pods. A shared Job stays until no repository keeps
// it.
func (c *Controller) clear(ctx context.Context, record *enginev1alpha1.VolumeRepository, all []*batchv1.Job) error {
	for _, job := range all[min(len(all), c.keep(record)):] {
		if c.isKept(job) {
			continue
		}
		if err := c.delete(ctx, job); err != nil {
			return err
		}
	}
	return nil
}

func (c *Controller) keep(record *enginev1alpha1.VolumeRepository) int {
	return ptr.Deref(c.setting(record).Keep, c.Keep)
}

func (c *Controller) isKept(job *batchv1.Job) bool {
	return slices.ContainsFunc(namesOf(job), func(name string) bool {
		record, err := c.lister.Get(name)
		if err != nil {
			return false
		}
		all, err := c.knownJobsOf(record)
		kept := all[:min(len(all), c.keep(record))]
		return err != nil || slices.ContainsFunc(kept, func(one *batchv1.Job) bool { return one.UID == job.UID })
	})
}

// delete deletes a Job once all its records have its result. The last of them calls it again.
func (c *Controller) delete(ctx context.Context, job *batchv1.Job) error {
	if !c.told(job) {
		return nil
	}
	err := c.Jobs.Delete(ctx, job.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &job.UID}, PropagationPolicy: new(metav1.DeletePropagationBackground),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting Job %s: %w", job.Name, err)
	}
	return nil
}

func (c *Controller) start(ctx context.Context, group []*enginev1alpha1.VolumeRepository) error {
	own, err := c.Own(ctx)
	if err != nil {
		return fmt.Errorf("looking for the controller's own pod, which Jobs are to be like: %w", err)
	}
	setting, resources := c.setting(group[0]), c.Resources
	if setting.parsed != nil {
		resources = *setting.parsed
	}
	wanted := job(group, c.Namespace, own, resources, c.Timeout, c.LogFlags)
	setting.apply(&wanted.Spec.Template)
	made, err := c.Jobs.Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = c.Jobs.Get(ctx, wanted.Name, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("making a Job that maintains VolumeRepository %s: %w", group[0].Name, err)
	}
	c.mu.Lock()
	for _, record := range group {
		if isOf(made, record) {
			c.made[record.UID] = made
		}
	}
	c.mu.Unlock()
	klog.FromContext(ctx).V(2).Info("Maintaining repositories", "volumeRepositories", namesOf(made), "job", made.Name)
	for _, record := range group {
		c.queue.AddAfter(record.Name, lookInterval)
	}
	return nil
}
