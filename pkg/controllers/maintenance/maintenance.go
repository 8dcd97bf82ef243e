// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maintenance has each repository maintained when it is due, by a Job, and writes what
// came of it into its VolumeRepository.
//
// What it promises:
//   - A repository is maintained by one Job at a time, also when the controller restarts
//     in the middle: the Jobs are its only memory of what runs, and the name of a Job
//     follows from the maintenance before.
//   - A repository is due a period after its last maintenance began, whatever came of that: a
//     failure waits like a success. Up to a tenth of the period is added, another part for
//     each repository, and up to a whole one for a new one, so that they don't come all at
//     once. One that somebody asks to maintain is due at once, and goes first.
//   - Small repositories of one location share a Job, up to ten, for which one may come before
//     its time by a fifth of its period. Each has a result of its own. One that hangs is given up
//     after 5 minutes; and whoever has failed, for whatever reason, is maintained alone the
//     next time, so that it keeps nobody waiting twice.
//   - No more Jobs run at once than the limit says; those that are due for longest go first.
//   - Nothing is waited for: a Job that never ends takes one place of the limit until its
//     deadline, and one that can't begin for a few minutes: then it is given up, which the
//     record tells before the Job is deleted, so that it is told if we are killed between.
//   - A Job whose pod was killed, evicted or never scheduled, or that somebody has deleted, is
//     told as what it was.
//
// A maintenance costs five writes, of which those that share a Job share two: the Job is made,
// the record is written when it has ended, and the Job is deleted, with two for the Lease
// (pkg/maintenance).
package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
)

const (
	// DefaultFrequency is how often a repository is maintained unless it says so itself.
	DefaultFrequency = time.Hour
	// DefaultKeep is how many Jobs of a repository are kept.
	DefaultKeep = 3
	// DefaultLimit is how many Jobs run at once.
	DefaultLimit = 2
	// DefaultTimeout is how long a Job may take, from its creation.
	DefaultTimeout = 6 * time.Hour
	// DefaultStartTimeout is how long the pod of a Job may take until it begins.
	DefaultStartTimeout = 10 * time.Minute
	// lookInterval is how often the pod of a Job that has not begun is looked at.
	lookInterval = time.Minute
	// longestMessage is how much of a message is kept.
	longestMessage = 1024
	// together is how many repositories share a Job at most: the message of its container
	// has room for what it says of so many.
	together = 10
	// togetherTimeout is how long each of them may take.
	togetherTimeout = 5 * time.Minute
	// smallRepository is the size up to which a repository shares a Job.
	smallRepository = 1 << 30
	// early is the part of its period by which one that shares a Job may come before its
	// time: so they come to share one.
	early = 5
	// byRepositoryIndex is the index of the Jobs by the names of the repositories.
	byRepositoryIndex = "repository"
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Own returns the controller's own pod, or nil if it runs in none.
	Own func(context.Context) (*corev1.Pod, error)

	Frequency time.Duration
	Keep      int
	Limit     int
	Timeout   time.Duration
	// StartTimeout is how long the pod of a Job may take until it begins.
	StartTimeout time.Duration
	Resources    Resources
	// LogFlags are given to the command as they are.
	LogFlags []string

	Repositories engineclient.VolumeRepositoriesGetter
	// Jobs and Pods of the namespace that repositories are maintained in.
	Jobs   batchclient.JobInterface
	Pods   corev1client.PodInterface
	Events events.EventRecorder
	Clock  clock.WithTicker

	RepositoryInformer engineinformers.VolumeRepositoryInformer
	LocationInformer   engineinformers.StorageLocationInformer
	JobInformer        batchinformers.JobInformer
	// ConfigMaps is an informer of the administrator's ConfigMap alone; nil if there is to
	// be none.
	ConfigMaps cache.SharedIndexInformer
}

// Controller has repositories maintained.
type Controller struct {
	Config
	lister    enginelisters.VolumeRepositoryNamespaceLister
	locations enginelisters.StorageLocationNamespaceLister
	jobs      batchlisters.JobNamespaceLister
	queue     *loop.Loop[string]

	mu sync.Mutex
	// made are Jobs that the informer may not know yet, by repository.
	made map[types.UID]*batchv1.Job
	// gone are Jobs that were deleted before they had ended, by the name of the record.
	gone map[string]*batchv1.Job
	// seen is what was last seen of the pods of Jobs that have not begun, by the Job's name.
	seen map[string]string
	// begun are the Jobs that run whose pods have begun.
	begun map[types.UID]bool
	// settings are what the administrator's ConfigMap says.
	settings settings
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:    config,
		lister:    config.RepositoryInformer.Lister().VolumeRepositories(config.Namespace),
		locations: config.LocationInformer.Lister().StorageLocations(config.Namespace),
		jobs:      config.JobInformer.Lister().Jobs(engine.MaintenanceNamespace(config.Namespace)),
		// One worker: it does nothing that takes long, and so the limit is exact.
		queue: loop.New[string](loop.Config{Controller: "maintenance", Workers: 1, FirstRetry: time.Second, LastRetry: 5 * time.Minute, Clock: config.Clock}),
		made:  map[types.UID]*batchv1.Job{},
		gone:  map[string]*batchv1.Job{},
		seen:  map[string]string{},
		begun: map[types.UID]bool{},
	}
	registerMetrics(c)
	var configMaps error
	if config.ConfigMaps != nil {
		configMaps = c.queue.Watch(config.ConfigMaps, loop.OnChange(func(_, after *corev1.ConfigMap) { c.configured(after) }))
	}
	return c, errors.Join(
		configMaps,
		config.JobInformer.Informer().AddIndexers(cache.Indexers{byRepositoryIndex: func(obj any) ([]string, error) {
			return namesOf(obj.(*batchv1.Job)), nil
		}}),
		c.queue.Watch(config.RepositoryInformer.Informer(), loop.OnChange(c.recordChanged)),
		c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *engine.StorageLocation) {
			if after != nil && (before == nil || before.Unavailable() != after.Unavailable()) {
				loop.Wake(c.queue, c.lister, func(record *engine.VolumeRepository) bool {
					return record.Spec.BackupStorageLocation == after.Name
				})
			}
		})),
		c.queue.Watch(config.JobInformer.Informer(), loop.OnChange(c.jobChanged)))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

func (c *Controller) recordChanged(before, after *engine.VolumeRepository) {
	switch {
	case after == nil:
		forget(before.Name)
	case before == nil || before.Generation != after.Generation || ready(before) != ready(after):
		c.queue.Soon(after.Name)
	case !equality.Semantic.DeepEqual(before.Status.RecentMaintenance, after.Status.RecentMaintenance):
		// A maintenance has ended, which makes room for another one.
		c.queue.Soon(after.Name)
		c.next()
	}
}

func (c *Controller) jobChanged(before, after *batchv1.Job) {
	job := cmp.Or(after, before)
	names := namesOf(job)
	if after == nil {
		ended, _, _ := finished(before)
		c.mu.Lock()
		delete(c.begun, before.UID)
		delete(c.seen, before.Name)
		if !ended {
			for _, name := range names {
				c.gone[name] = before
			}
		}
		c.mu.Unlock()
		if !ended {
			c.next() // which makes room for another one
		}
	}
	for _, name := range names {
		c.queue.Add(name)
	}
}

func ready(record *engine.VolumeRepository) bool {
	return meta.IsStatusConditionTrue(record.Status.Conditions, engine.ConditionReady)
}

// sync brings what is known of a repository's Jobs into its record, and makes the next Job
// when it is due.
func (c *Controller) sync(ctx context.Context, name string) error {
	record, err := c.lister.Get(name)
	if apierrors.IsNotFound(err) {
		c.next() // its Job may have ended
		return nil
	}
	if err != nil {
		return err
	}
	all, err := c.jobsOf(record)
	if err != nil {
		return err
	}
	recorded, running, err := c.record(ctx, record, all)
	if err != nil {
		return err
	}
	switch {
	case running != nil:
		c.queue.AddAfter(name, lookInterval)
		return nil
	case recorded:
		return nil // the record as it was written wakes it
	}
	if err := c.clear(ctx, record, all); err != nil {
		return err
	}
	if c.Limit == 0 || !c.canBeMaintained(record) {
		return nil // what it waits for wakes it
	}
	due := c.due(record)
	if wait := due.Sub(c.Clock.Now()); wait > 0 {
		c.queue.AddAfter(name, wait)
		return nil
	}
	for _, group := range c.first() {
		if slices.ContainsFunc(group, func(first *engine.VolumeRepository) bool { return first.UID == record.UID }) {
			return c.start(ctx, group)
		}
	}
	return nil // the end of another Job wakes it
}

// jobsOf are the Jobs of a repository, the newest first.
func (c *Controller) jobsOf(record *engine.VolumeRepository) ([]*batchv1.Job, error) {
	found, err := c.JobInformer.Informer().GetIndexer().ByIndex(byRepositoryIndex, record.Name)
	if err != nil {
		return nil, err
	}
	var all []*batchv1.Job
	for _, obj := range found {
		if job := obj.(*batchv1.Job); isOf(job, record) {
			all = append(all, job)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if made := c.made[record.UID]; made != nil {
		if slices.ContainsFunc(all, func(job *batchv1.Job) bool { return job.UID == made.UID }) || c.gone[record.Name] != nil && c.gone[record.Name].UID == made.UID {
			delete(c.made, record.UID)
		} else {
			all = append(all, made)
		}
	}
	slices.SortFunc(all, func(a, b *batchv1.Job) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})
	return all, nil
}

// record writes what Jobs have ended with that the record does not tell of yet, and returns
// one that still runs.
func (c *Controller) record(ctx context.Context, record *engine.VolumeRepository, all []*batchv1.Job) (recorded bool, running *batchv1.Job, err error) {
	known := func(job *batchv1.Job) bool { return tells(record, job) }
	changed := record.DeepCopy()
	var ended []engine.MaintenanceRun
	swept := map[string]int{} // snapshots, by the name of the Job
	add := func(run engine.MaintenanceRun) {
		ended = append(ended, run)
		status := &changed.Status
		status.RecentMaintenance = slices.Insert(status.RecentMaintenance, 0, run)
		status.RecentMaintenance = status.RecentMaintenance[:min(len(status.RecentMaintenance), engine.MaxRecentMaintenance)]
		if status.Message = ""; run.Result == engine.MaintenanceFailed {
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
		add(c.run(gone, engine.MaintenanceFailed, "somebody deleted the Job before it had ended"))
	}
	for _, job := range slices.Backward(all) {
		over, _, _ := finished(job)
		switch {
		case over && known(job):
		case known(job): // it was given up
			if err := c.delete(ctx, job); err != nil {
				return false, nil, err
			}
			running = job // until it is gone
		case over:
			run, said, err := c.outcome(ctx, record, job)
			if err != nil {
				return false, nil, err
			}
			swept[job.Name] = said.SweptSnapshots
			if said.SizeBytes > 0 {
				changed.Status.Size, changed.Status.Files = rounded(said.SizeBytes), said.Files
			}
			add(run)
		default:
			why, err := c.look(ctx, job)
			if err != nil {
				return false, nil, err
			}
			if why == "" {
				running = job
			} else {
				add(c.run(job, engine.MaintenanceFailed, why))
			}
		}
	}
	if len(ended) > 0 {
		_, err = c.Repositories.VolumeRepositories(c.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, nil, fmt.Errorf("writing what the maintenance of VolumeRepository %s has come to: %w", record.Name, err)
		}
	}
	for _, run := range ended {
		klog.FromContext(ctx).Info("Repository maintained", "volumeRepository", record.Name, "job", run.Job, "result", run.Result, "message", run.Message, "reclaimedBytes", run.ReclaimedBytes)
		observe(record, run, swept[run.Job])
		switch {
		case run.Result == engine.MaintenanceFailed:
			c.Events.Eventf(record, nil, corev1.EventTypeWarning, "MaintenanceFailed", "Maintain", "%s", run.Message)
		case record.Status.Message != "":
			c.Events.Eventf(record, nil, corev1.EventTypeNormal, "Maintained", "Maintain", "The Job %s has maintained it after a failure", run.Job)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone[record.Name] == gone {
		delete(c.gone, record.Name)
	}
	return len(ended) > 0, running, nil
}

// tells reports whether a record tells what came of a Job.
func tells(record *engine.VolumeRepository, job *batchv1.Job) bool {
	recent := record.Status.RecentMaintenance
	return slices.ContainsFunc(recent, func(run engine.MaintenanceRun) bool {
		return run.Job == job.Name && !run.StartTimestamp.Time.Before(job.CreationTimestamp.Time)
	}) || len(recent) > 0 && recent[0].StartTimestamp.After(job.CreationTimestamp.Time)
}

// told reports whether the records of all repositories of a Job tell what came of it.
func (c *Controller) told(job *batchv1.Job) bool {
	return !slices.ContainsFunc(namesOf(job), func(name string) bool {
		record, err := c.lister.Get(name)
		return err == nil && isOf(job, record) && !tells(record, job)
	})
}

// run is a maintenance that has ended now, unless the Job says when.
func (c *Controller) run(job *batchv1.Job, result engine.MaintenanceResult, message string) engine.MaintenanceRun {
	ended := metav1.NewTime(c.Clock.Now())
	if _, _, condition := finished(job); !condition.LastTransitionTime.IsZero() {
		ended = condition.LastTransitionTime
	}
	if len(message) > longestMessage {
		message = strings.ToValidUTF8(message[:longestMessage], "")
	}
	return engine.MaintenanceRun{Result: result, Job: job.Name, StartTimestamp: job.CreationTimestamp, CompleteTimestamp: ended, Message: message}
}

// outcome is what a Job that has ended came to for a repository, by what its pod says.
func (c *Controller) outcome(ctx context.Context, record *engine.VolumeRepository, job *batchv1.Job) (run engine.MaintenanceRun, said maintenance.Result, err error) {
	pod, err := c.podOf(ctx, job)
	if err != nil {
		return run, said, err
	}
	_, succeeded, condition := finished(job)
	c.mu.Lock()
	seen := c.seen[job.Name]
	c.mu.Unlock()
	result := engine.MaintenanceFailed
	if succeeded {
		result = engine.MaintenanceSucceeded
	}
	message := ""
	if pod != nil {
		message = endOf(pod)
	}
	run = c.run(job, result, message)
	for _, result := range resultsOf(pod) {
		if result.Repository != record.Name {
			continue
		}
		said = result
		run.ReclaimedBytes, run.Message, run.Result = said.ReclaimedBytes, said.Summary(), engine.MaintenanceSucceeded
		if said.Cancelled || said.Error != "" {
			run.Result = engine.MaintenanceFailed
		}
		if len(run.Message) > longestMessage {
			run.Message = strings.ToValidUTF8(run.Message[:longestMessage], "")
		}
	}
	if run.Result == engine.MaintenanceFailed && run.Message == "" {
		run.Message = strings.Join(slices.DeleteFunc([]string{condition.Message, seen}, func(s string) bool { return s == "" }), ": ")
	}
	return run, said, nil
}

// rounded is a number of bytes that people can read.
func rounded(bytes int64) *resource.Quantity {
	unit := int64(1)
	for bytes/unit >= 10<<10 {
		unit <<= 10
	}
	return resource.NewQuantity((bytes+unit-1)/unit*unit, resource.BinarySI)
}

// podOf is the pod of a Job, or nil if there is none any more.
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

// resultsOf are what the process of a pod has said of each repository.
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

// endOf is what a pod ended with, or what keeps it from beginning.
func endOf(pod *corev1.Pod) string {
	var told []string
	if pod.Status.Reason != "" || pod.Status.Message != "" { // as Evicted
		told = append(told, strings.TrimPrefix(pod.Status.Reason+": "+pod.Status.Message, ": "))
	}
	for _, container := range pod.Status.ContainerStatuses {
		switch state := container.State; {
		case state.Terminated != nil && state.Terminated.ExitCode == 0:
			return "" // it has said the rest
		case state.Terminated != nil:
			switch reason := state.Terminated.Reason; reason {
			case "", "Error", "Completed":
			default: // as OOMKilled
				told = append(told, reason)
			}
			message := strings.TrimSpace(state.Terminated.Message)
			if message == "" || len(maintenance.Results(message)) > 0 {
				message = fmt.Sprintf("the process ended with %d", state.Terminated.ExitCode)
			}
			told = append(told, message)
		case state.Waiting != nil && state.Waiting.Reason != "ContainerCreating":
			told = append(told, strings.TrimSuffix(state.Waiting.Reason+": "+state.Waiting.Message, ": "))
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			told = append(told, condition.Reason+": "+condition.Message)
		}
	}
	return strings.Join(told, ": ")
}

// look remembers what keeps the pod of a Job from beginning: at the Job's deadline it is gone.
// If it has not begun for so long that the Job is to be given up, it returns why.
func (c *Controller) look(ctx context.Context, job *batchv1.Job) (giveUp string, err error) {
	age := c.Clock.Since(job.CreationTimestamp.Time)
	c.mu.Lock()
	begun := c.begun[job.UID]
	c.mu.Unlock()
	if begun || age < lookInterval/2 {
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
	if begun {
		c.begun[job.UID] = true
		return "", nil
	}
	c.seen[job.Name] = why
	if age < c.StartTimeout {
		return "", nil
	}
	return strings.TrimSuffix(fmt.Sprintf("it had not begun after %s: %s", c.StartTimeout, why), ": "), nil
}

// clear deletes the Jobs that are not to be kept, with their pods.
func (c *Controller) clear(ctx context.Context, record *engine.VolumeRepository, all []*batchv1.Job) error {
	keep := c.Keep
	if own := c.setting(record).Keep; own != nil {
		keep = *own
	}
	for _, job := range all[min(len(all), keep):] {
		if err := c.delete(ctx, job); err != nil {
			return err
		}
	}
	return nil
}

// delete deletes a Job when nobody needs to look at it any more. Whose record is the last to
// tell of it comes here again.
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

// canBeMaintained reports whether a maintenance has a chance.
func (c *Controller) canBeMaintained(record *engine.VolumeRepository) bool {
	stored, err := c.locations.Get(record.Spec.BackupStorageLocation)
	return err == nil && !stored.Unavailable() && ready(record) && record.DeletionTimestamp == nil
}

// last is when the last maintenance began, or the record was made.
func last(record *engine.VolumeRepository) (at time.Time, maintained bool) {
	if recent := record.Status.RecentMaintenance; len(recent) > 0 {
		return recent[0].StartTimestamp.Time, true
	}
	return record.CreationTimestamp.Time, false
}

// frequency is how often a repository is to be maintained.
func (c *Controller) frequency(record *engine.VolumeRepository) time.Duration {
	if own := record.Spec.MaintenanceFrequency; own != nil && own.Duration > 0 {
		return own.Duration
	}
	return c.Frequency
}

// due is when a repository is to be maintained: before all others if somebody asks for it.
func (c *Controller) due(record *engine.VolumeRepository) time.Time {
	if _, waits := record.RequestedJob(); waits {
		return time.Time{}
	}
	frequency := c.frequency(record)
	since, maintained := last(record)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(record.UID)) // it never fails
	part := time.Duration(float64(frequency) * float64(hash.Sum32()) / (1 << 32))
	if !maintained {
		return since.Add(frequency + part)
	}
	return since.Add(frequency + part/10)
}

// running are the repositories with a Job that runs, by name, and how many Jobs those are.
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
		if !known[job.UID] && c.Clock.Since(job.CreationTimestamp.Time) < lookInterval { // then the informer knows it
			add(job)
		}
	}
	return repositories, count, nil
}

// first are the repositories that get the free places: those that are due for longest. Small
// ones of a location share a Job, also with those that are due soon.
func (c *Controller) first() (groups [][]*engine.VolumeRepository) {
	running, count, err := c.running()
	if err != nil || count >= c.Limit {
		return nil
	}
	all, err := c.lister.List(labels.Everything())
	if err != nil {
		return nil
	}
	now := c.Clock.Now()
	var waiting []*engine.VolumeRepository
	for _, record := range all {
		due := c.due(record)
		if c.shares(record) {
			due = due.Add(-c.frequency(record) / early)
		}
		if !running[record.Name] && !due.After(now) && c.canBeMaintained(record) {
			waiting = append(waiting, record)
		}
	}
	slices.SortFunc(waiting, func(a, b *engine.VolumeRepository) int {
		return cmp.Or(c.due(a).Compare(c.due(b)), cmp.Compare(a.Name, b.Name))
	})
	shared := map[string]int{} // by location, the group that has room
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
			groups = append(groups, []*engine.VolumeRepository{record})
		}
	}
	return groups[:min(len(groups), c.Limit-count)]
}

// shares reports whether a repository may share a Job: it is small, nobody waits for it or has
// said how it is to be maintained, and it has not failed the last time, when it may have kept
// others waiting.
func (c *Controller) shares(record *engine.VolumeRepository) bool {
	recent, size := record.Status.RecentMaintenance, record.Status.Size
	_, requested := record.RequestedJob()
	return !requested && size != nil && size.Value() <= smallRepository &&
		len(recent) > 0 && recent[0].Result == engine.MaintenanceSucceeded && !c.hasOwnSetting(record)
}

// next wakes those who get the free places.
func (c *Controller) next() {
	for _, group := range c.first() {
		c.queue.Add(group[0].Name)
	}
}

// start makes a Job.
func (c *Controller) start(ctx context.Context, group []*engine.VolumeRepository) error {
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
