// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maintenance has each repository maintained when it is due, by a Job, and writes what
// came of it into its VolumeRepository.
//
// What it promises:
//
//   - A repository is maintained by one Job at a time, also when the controller restarts
//     in the middle: the Jobs are its only memory of what runs, and the name of a Job
//     follows from the maintenance before.
//
//   - A repository is due a period after its last maintenance began, whatever came of that: a
//     failure waits like a success. Up to a tenth of the period is added, another part for
//     each repository, and up to a whole one for a new one, so that they don't come all at
//     once. One that somebody asks to maintain is due at once, and goes first.
//
//   - Small repositories of one location share a Job, up to ten, for which one may come before
//     its time by a fifth of its period. Each has a result of its own. One that hangs is given up
//     after 5 minutes; and whoever has failed, for whatever reason, is maintained alone the
//     next time, so that it keeps nobody waiting twice.
//
//   - No more Jobs run at once than the limit says; those that are due for longest go first.
//
//   - Nothing is waited for: a Job that never ends takes one place of the limit until its
//     deadline, and one that can't begin for a few minutes: then it is given up, which the
//     record tells before the Job is deleted, so that it is told if we are killed between.
//
//   - A Job whose pod was killed, evicted or never scheduled, or that somebody has deleted, is
//     told as what it was. Only what a process says makes a success: one that is told to stop,
//     as that of a pod that is evicted, ends well too.
//
//   - A Job stays with its log as long as it is one of the last of any of its repositories.
//
// A maintenance costs five writes, of which those that share a Job share two: the Job is made,
// the record is written when it has ended, and the Job is deleted, with two for the Lease
// (pkg/maintenance). One that is late by a whole period costs one more, which says what it waits
// for.
package maintenance

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
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
	// leastPatience is how long a repository waits at least, if nobody has asked for it, until it
	// says so.
	leastPatience = 5 * time.Minute
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
	// began is when this process did.
	began time.Time
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
		began: config.Clock.Now(),
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
			if after != nil && (before == nil || before.Closed() != after.Closed()) {
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
	all, err := c.jobsOf(ctx, record)
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
	return c.wait(ctx, record) // what it waits for wakes it, as the end of another Job
}
