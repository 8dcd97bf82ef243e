// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
)

func (c *Controller) record(ctx context.Context, record *enginev1alpha1.VolumeRepository, all []*batchv1.Job) (recorded bool, running *batchv1.Job, err error) {
	known := func(job *batchv1.Job) bool { return tells(record, job) }
	changed := record.DeepCopy()
	var ended []enginev1alpha1.MaintenanceRun
	results := map[string]maintenance.Result{}
	add := func(run enginev1alpha1.MaintenanceRun) {
		ended = append(ended, run)
		status := &changed.Status
		status.RecentMaintenance = slices.Insert(status.RecentMaintenance, 0, run)
		status.RecentMaintenance = status.RecentMaintenance[:min(len(status.RecentMaintenance), enginev1alpha1.MaxRecentMaintenance)]
		if status.Message = ""; run.Result == enginev1alpha1.MaintenanceFailed {
			status.Message = run.Message
		} else {
			status.LastMaintenanceTime = &run.CompleteTimestamp
		}
		var reclaimed int64
		for _, run := range status.RecentMaintenance {
			reclaimed += run.ReclaimedBytes
		}
		status.Reclaimed = rounded(reclaimed)
	}
	c.mu.Lock()
	gone := c.gone[record.Name]
	c.mu.Unlock()
	if gone != nil && isOf(gone, record) && !known(gone) {
		add(c.run(gone, enginev1alpha1.MaintenanceFailed, "somebody deleted the Job before it had ended"))
	}
	for _, job := range slices.Backward(all) {
		over, _, _ := finished(job)
		switch {
		case over && known(job):
		case known(job):
			if err := c.delete(ctx, job); err != nil {
				return false, nil, err
			}
			running = job // until deleted
		case over:
			run, said, err := c.outcome(ctx, record, job)
			if err != nil {
				return false, nil, err
			}
			results[job.Name] = said
			if said.MissingBackups > 0 || said.Full() && run.Result == enginev1alpha1.MaintenanceSucceeded {
				changed.Status.MissingBackups = int32(min(said.MissingBackups, math.MaxInt32))
			}
			if said.SizeBytes > 0 {
				changed.Status.Size, changed.Status.Files = rounded(said.SizeBytes), said.Files
			}
			if said.Full() && run.Result == enginev1alpha1.MaintenanceSucceeded {
				changed.Status.LockedUntil = nil
				if said.LockedUntil != nil {
					changed.Status.LockedUntil = &metav1.Time{Time: said.LockedUntil.Truncate(time.Second)}
				}
			}
			checked(&changed.Status, said.Check, said.Ended)
			add(run)
		default:
			why, err := c.look(ctx, job)
			if err != nil {
				return false, nil, err
			}
			if why == "" {
				running = job
			} else {
				add(c.run(job, enginev1alpha1.MaintenanceFailed, why))
			}
		}
	}
	if len(ended) > 0 {
		meta.SetStatusCondition(&changed.Status.Conditions, c.maintained(changed))
		c.damaged(changed)
		_, err = c.Repositories.VolumeRepositories(c.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, nil, fmt.Errorf("writing what the maintenance of VolumeRepository %s has come to: %w", record.Name, err)
		}
	}
	for _, run := range ended {
		klog.FromContext(ctx).Info("Repository maintained", "volumeRepository", record.Name, "job", run.Job, "result", run.Result, "message", run.Message, "reclaimedBytes", run.ReclaimedBytes)
		said := results[run.Job]
		observe(record, run, said.SweptSnapshots)
		if doubt := said.Doubt(); doubt != "" {
			c.Events.Eventf(record, nil, corev1.EventTypeWarning, "SnapshotsDoubted", "Maintain", "Nothing was removed: %s", doubt)
		}
		switch {
		case run.Result == enginev1alpha1.MaintenanceFailed:
			c.Events.Eventf(record, nil, corev1.EventTypeWarning, "MaintenanceFailed", "Maintain", "%s", run.Message)
		case record.Status.Message != "":
			c.Events.Eventf(record, nil, corev1.EventTypeNormal, "Maintained", "Maintain", "The Job %s has maintained it after a failure", run.Job)
		}
	}
	c.tellDamage(record, changed)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone[record.Name] == gone {
		delete(c.gone, record.Name)
	}
	return len(ended) > 0, running, nil
}

func (c *Controller) maintained(record *enginev1alpha1.VolumeRepository) metav1.Condition {
	last := record.Status.RecentMaintenance[0]
	condition := metav1.Condition{
		Type: enginev1alpha1.ConditionMaintained, Status: metav1.ConditionTrue, Reason: string(last.Result), Message: last.Message,
		ObservedGeneration: record.Generation, LastTransitionTime: metav1.NewTime(c.Clock.Now()),
	}
	if last.Result == enginev1alpha1.MaintenanceSucceeded {
		condition.Message = "the last maintenance was " + last.Message
	} else {
		condition.Status = metav1.ConditionFalse
	}
	if _, waits := record.RequestedJob(); waits {
		condition.ObservedGeneration-- // so that a waiting requester sees the change
	}
	return condition
}

func tells(record *enginev1alpha1.VolumeRepository, job *batchv1.Job) bool {
	recent := record.Status.RecentMaintenance
	return slices.ContainsFunc(recent, func(run enginev1alpha1.MaintenanceRun) bool {
		return run.Job == job.Name && !run.StartTimestamp.Time.Before(job.CreationTimestamp.Time)
	}) || len(recent) > 0 && recent[0].StartTimestamp.After(job.CreationTimestamp.Time)
}

func (c *Controller) told(job *batchv1.Job) bool {
	return !slices.ContainsFunc(namesOf(job), func(name string) bool {
		record, err := c.lister.Get(name)
		return err == nil && isOf(job, record) && !tells(record, job)
	})
}

// run returns an ended maintenance; it ends now, unless the Job says when.
func (c *Controller) run(job *batchv1.Job, result enginev1alpha1.MaintenanceResult, message string) enginev1alpha1.MaintenanceRun {
	ended := metav1.NewTime(c.Clock.Now())
	if _, _, condition := finished(job); !condition.LastTransitionTime.IsZero() {
		ended = condition.LastTransitionTime
	}
	return enginev1alpha1.MaintenanceRun{Result: result, Job: job.Name, StartTimestamp: job.CreationTimestamp, CompleteTimestamp: ended, Message: shortened(message)}
}

func shortened(message string) string {
	if len(message) > longestMessage {
		message = strings.ToValidUTF8(message[:longestMessage], "")
	}
	return message
}

// outcome returns a repository's result of an ended Job, by its pod's message. A successful Job alone
// is no success: an evicted process exits well, too.
func (c *Controller) outcome(ctx context.Context, record *enginev1alpha1.VolumeRepository, job *batchv1.Job) (run enginev1alpha1.MaintenanceRun, said maintenance.Result, err error) {
	pod, err := c.podOf(ctx, job)
	if err != nil {
		return run, said, err
	}
	_, succeeded, condition := finished(job)
	c.mu.Lock()
	seen := c.seen[job.Name]
	c.mu.Unlock()
	why := ""
	if pod != nil {
		why = endOf(pod)
	}
	run = c.run(job, enginev1alpha1.MaintenanceFailed, why)
	results := resultsOf(pod)
	switch i := slices.IndexFunc(results, func(result maintenance.Result) bool { return result.Repository == record.Name }); {
	case i >= 0:
		said = results[i]
		run.ReclaimedBytes = said.ReclaimedBytes
		if run.Message = shortened(said.Summary()); said.Cancelled {
			run.Message = shortened(joined(why, said.Summary()))
		} else if said.Error == "" {
			run.Result = enginev1alpha1.MaintenanceSucceeded
		}
	case run.Message != "":
	case succeeded && pod == nil:
		run.Message = joined(cmp.Or(seen, "its pod is gone"), "it is not known what it came to")
	case succeeded:
		run.Message = "its pod does not say what it came to"
	default:
		run.Message = joined(condition.Message, seen)
	}
	return run, said, nil
}

func joined(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), ": ")
}

func rounded(bytes int64) *resource.Quantity {
	unit := int64(1)
	for bytes/unit >= 10<<10 {
		unit <<= 10
	}
	return resource.NewQuantity((bytes+unit-1)/unit*unit, resource.BinarySI)
}

func (c *Controller) podOf(ctx context.Context, job *batchv1.Job) (*corev1.Pod, error) {
	pods, err := c.Pods.List(ctx, metav1.ListOptions{LabelSelector: labels.Set{batchv1.JobNameLabel: job.Name}.String()})
	if err != nil {
		return nil, fmt.Errorf("looking for the pod of Job %s: %w", job.Name, err)
	}
	if len(pods.Items) == 0 {
		return nil, nil
	}
	return &pods.Items[0], nil
}

func resultsOf(pod *corev1.Pod) (results []maintenance.Result) {
	if pod == nil {
		return nil
	}
	for _, container := range pod.Status.ContainerStatuses {
		if ended := container.State.Terminated; ended != nil {
			results = append(results, maintenance.Results(ended.Message)...)
		}
	}
	return results
}

func endOf(pod *corev1.Pod) string {
	var told []string
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		told = append(told, joined(pod.Status.Reason, pod.Status.Message))
	} else {
		told = append(told, disruptionOf(pod))
	}
	for _, container := range pod.Status.ContainerStatuses {
		switch state := container.State; {
		case state.Terminated != nil && state.Terminated.ExitCode == 0:
			return joined(told...)
		case state.Terminated != nil:
			switch reason := state.Terminated.Reason; reason {
			case "", "Error", "Completed":
			default:
				told = append(told, reason)
			}
			message := strings.TrimSpace(state.Terminated.Message)
			if message == "" || len(maintenance.Results(message)) > 0 {
				message = fmt.Sprintf("the process ended with %d", state.Terminated.ExitCode)
			}
			told = append(told, message)
		case state.Waiting != nil && state.Waiting.Reason != "ContainerCreating":
			told = append(told, joined(state.Waiting.Reason, state.Waiting.Message))
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			told = append(told, condition.Reason+": "+condition.Message)
		}
	}
	return joined(told...)
}

func disruptionOf(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			return joined(condition.Reason, condition.Message)
		}
	}
	return ""
}

// look remembers what prevents or removes a Job's pod, which is missing at the Job's end. It returns
// why to give up a Job whose pod has not begun for too long.
func (c *Controller) look(ctx context.Context, job *batchv1.Job) (giveUp string, err error) {
	age := c.Clock.Since(job.CreationTimestamp.Time)
	c.mu.Lock()
	begun := c.begun[job.UID]
	c.mu.Unlock()
	removed := ptr.Deref(job.Status.Terminating, 0) > 0
	if !removed && (begun || age < lookInterval/2) {
		return "", nil
	}
	pod, err := c.podOf(ctx, job)
	if err != nil {
		return "", err
	}
	why := "it has no pod"
	if pod != nil {
		why = endOf(pod)
		begun = slices.ContainsFunc(pod.Status.ContainerStatuses, func(container corev1.ContainerStatus) bool {
			return container.State.Running != nil || container.State.Terminated != nil
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case pod == nil:
		c.seen[job.Name] = cmp.Or(c.seen[job.Name], why)
	case pod.DeletionTimestamp != nil:
		c.seen[job.Name] = cmp.Or(disruptionOf(pod), "somebody deleted its pod")
	case !begun:
		c.seen[job.Name] = why
	}
	switch {
	case begun:
		c.begun[job.UID] = true
		return "", nil
	case age < c.StartTimeout, removed && pod == nil:
		return "", nil
	}
	return joined(fmt.Sprintf("it had not begun after %s", c.StartTimeout), why), nil
}
