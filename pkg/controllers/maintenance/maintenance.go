// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maintenance maintains due repositories by Jobs, and writes the results into
// VolumeRepositories: see docs/maintenance.md.
//
//   - One Job at a time maintains a repository, also across restarts: Jobs are the memory of what runs,
//     and a Job's name follows from the maintenance before.
//   - A requested maintenance is due at once, and first; else the longest due is first.
//   - A hanging Job holds its place until its deadline. One that can't start is recorded before its
//     deletion.
//   - A killed, evicted, unscheduled or deleted Job is recorded as such. Only the process's own result is
//     a success, as a process told to stop exits well, too.
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

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
)

const (
	DefaultFrequency = time.Hour
	DefaultKeep      = 3
	DefaultLimit     = 2
	// DefaultTimeout is a Job's time from its creation.
	DefaultTimeout      = 6 * time.Hour
	DefaultStartTimeout = 10 * time.Minute
	lookInterval        = time.Minute
	// leastPatience is the minimum wait before an unrequested repository records it.
	leastPatience  = 5 * time.Minute
	longestMessage = 1024
	// together bounds a Job's repositories: their results must fit the termination message.
	together        = 10
	togetherTimeout = 5 * time.Minute
	smallRepository = 1 << 30
	// early is the part of its period by which a repository may be early to share a Job.
	early             = 5
	byRepositoryIndex = "repository"
)

// Config configures a Controller.
type Config struct {
	Namespace string
	Own       func(context.Context) (*corev1.Pod, error)

	Frequency    time.Duration
	Keep         int
	Limit        int
	Timeout      time.Duration
	StartTimeout time.Duration
	Resources    Resources
	LogFlags     []string

	Repositories engineclient.VolumeRepositoriesGetter
	// Jobs and Pods are of the maintenance namespace.
	Jobs   batchclient.JobInterface
	Pods   corev1client.PodInterface
	Events events.EventRecorder
	Clock  clock.WithTicker

	RepositoryInformer engineinformers.VolumeRepositoryInformer
	LocationInformer   engineinformers.StorageLocationInformer
	JobInformer        batchinformers.JobInformer
	// ConfigMaps has only the administrator's ConfigMap; may be nil.
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
	// made has Jobs that the informer may not know yet, by repository.
	made map[types.UID]*batchv1.Job
	// gone has Jobs deleted before their end, by the record's name.
	gone map[string]*batchv1.Job
	// seen has the last state of unbegun pods, by Job.
	seen map[string]string
	// begun has running Jobs whose pods have begun.
	begun    map[types.UID]bool
	settings settings
	began    time.Time
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:    config,
		lister:    config.RepositoryInformer.Lister().VolumeRepositories(config.Namespace),
		locations: config.LocationInformer.Lister().StorageLocations(config.Namespace),
		jobs:      config.JobInformer.Lister().Jobs(enginev1alpha1.MaintenanceNamespace(config.Namespace)),
		// One worker makes the limit exact; its work is short.
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
		c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
			if after != nil && (before == nil || before.Closed() != after.Closed()) {
				loop.Wake(c.queue, c.lister, func(record *enginev1alpha1.VolumeRepository) bool {
					return record.Spec.BackupStorageLocation == after.Name
				})
			}
		})),
		c.queue.Watch(config.JobInformer.Informer(), loop.OnChange(c.jobChanged)))
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

func (c *Controller) recordChanged(before, after *enginev1alpha1.VolumeRepository) {
	switch {
	case after == nil:
		forget(before.Name)
	case before == nil || before.Generation != after.Generation || ready(before) != ready(after):
		c.queue.Soon(after.Name)
	case !equality.Semantic.DeepEqual(before.Status.RecentMaintenance, after.Status.RecentMaintenance):
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
			c.next()
		}
	}
	for _, name := range names {
		c.queue.Add(name)
	}
}

func ready(record *enginev1alpha1.VolumeRepository) bool {
	return meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionReady)
}

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
		return nil // the write wakes it again
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
		if slices.ContainsFunc(group, func(first *enginev1alpha1.VolumeRepository) bool { return first.UID == record.UID }) {
			return c.start(ctx, group)
		}
	}
	return c.wait(ctx, record) // the end of another Job wakes it
}
