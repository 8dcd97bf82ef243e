// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backuprun executes the runs that the queue has started, and ends runs that an earlier process
// left behind.
//
// Once its snapshots are cut and its cluster is stored, a run gives its slot back and moves the data. A
// later process continues there, and reads nothing of the cluster: docs/design/snapshots.md, "Two
// phases".
//
// Only the leader executes a run, after a compare-and-swap of the run and a later look at the ledger:
// docs/design/fences.md. If another process claimed a run in progress, and the cluster says, after the
// run was read, that this process leads, it was left behind.
//
// Each claim is a numbered attempt, and earlier attempts' results don't count. After MaxAttempts the
// run fails. A stopping process first stores completely read backups, and gives its runs back, which
// costs no attempt.
package backuprun

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	runs "github.com/holdfast-io/holdfast/pkg/controllers/run"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	// settleTimeout bounds a dead run's end and cleanup in its store.
	settleTimeout    = time.Minute
	snapshotsTimeout = time.Minute
	// cancelTimeout bounds the storing of a cancelled run's end. After it, the run ends all the same.
	cancelTimeout = 5 * time.Second
	recheck       = 5 * time.Second
	// lastTime is for storing a completely read run when the process is told to stop. It is shorter
	// than the pod's terminationGracePeriodSeconds, 30 s.
	lastTime = 20 * time.Second
	// MaxAttempts is how many processes may execute a run before it fails, as it probably ends them.
	// Given back attempts don't count.
	MaxAttempts = 3
	// DefaultVolumeTimeout is the default of Config.VolumeTimeout.
	DefaultVolumeTimeout = 4 * time.Hour
	// maxMoving bounds the runs that only move data. Each keeps a worker, and no place.
	maxMoving = 500
	// DefaultTimeout is the default of Config.Timeout.
	DefaultTimeout = 24 * time.Hour
)

// Config configures a Controller.
type Config struct {
	Namespace string
	// ClusterUID is the uid of package identity.
	ClusterUID string
	Workers    int
	// Identity names this process, and no other.
	Identity string
	// VolumeTimeout bounds a volume's upload from its start, and how long a node's agent may begin and
	// end nothing while volumes wait for it. With work in progress, an agent has twice that and
	// AgentTimeout.
	VolumeTimeout time.Duration
	// Timeout bounds a backup from its start. Then missing volumes are given up, and no more hooks run.
	// Zero is no limit.
	Timeout time.Duration
	// AgentTimeout bounds a node's time without an agent.
	AgentTimeout time.Duration
	Agents       agents

	// Mover is nil for no snapshots.
	Mover Mover

	// ResumeInProgress executes anew the runs that another process left behind. If false, they fail.
	ResumeInProgress bool

	// Leads returns nil if the cluster says that this process leads.
	Leads func(ctx context.Context) error
	Queue runs.Queue

	Engine engineclient.EngineV1alpha1Interface
	// ConfigMaps has the ledger.
	ConfigMaps corev1client.ConfigMapInterface
	Executor   executor
	// HoldLocation is as in package run.
	HoldLocation func(ctx context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error)
	Events       events.EventRecorder
	Clock        clock.WithTicker

	RunInformer      engineinformers.BackupRunInformer
	LocationInformer engineinformers.StorageLocationInformer
	VolumeInformer   engineinformers.VolumeUploadInformer
}

type agents interface {
	HasSynced() bool
	OnNodeRemoved(func())
	// Absence returns how long a node's agent has given no sign of life, from since at the earliest. An
	// agent absent for the limit has stopped.
	Absence(node string, since time.Time) time.Duration
	// NodeGone reports whether the node does not exist, given its last mention.
	NodeGone(node string, since time.Time) bool
	// Saw and Idle are as in lease.Activity.
	Saw(node string, record types.UID, inProgress, changed bool, now time.Time)
	Idle(node string, since, now time.Time) (idle time.Duration, busy bool)
}

// Controller executes runs.
type Controller struct {
	Config
	*runs.Runs[*enginev1alpha1.BackupRun]
	runs      engineclient.BackupRunInterface
	uploads   engineclient.VolumeUploadInterface
	runLister enginelisters.BackupRunNamespaceLister
	// queue has the runs to execute, leftBehind other processes' runs, and leftoverSnapshots ended runs
	// with snapshots to remove. A store that does not answer may block only the latter two.
	queue, leftBehind, leftoverSnapshots *loop.Loop[string]

	places chan struct{}

	mu      sync.Mutex
	volumes map[types.UID]*volumes
	// postHooks has results of post hooks that this process ran for an earlier one, by the run's uid,
	// until stored.
	postHooks map[types.UID]backup.PostHooks
}

type execution struct {
	*runs.Execution[*enginev1alpha1.BackupRun]
	// lasting continues for lastTime when the process is told to stop, unless its Lease is lost. So
	// does ending, which Stop ends.
	lasting, ending context.Context
	// leavePlace gives the place among Workers to another run.
	leavePlace func()
}

func attemptsOf(run *enginev1alpha1.BackupRun) runs.Attempts {
	s := &run.Status
	return runs.Attempts{Executor: &s.Executor, Attempts: &s.Attempts, GivenBack: &s.GivenBack}
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	queue := func(name string, workers int, longestPause time.Duration, synced cache.InformerSynced) *loop.Loop[string] {
		return loop.New[string](loop.Config{
			Controller: name, Workers: workers, FirstRetry: 100 * time.Millisecond, LastRetry: longestPause, Clock: config.Clock, Synced: synced,
		})
	}
	workers := config.Workers
	if config.Mover != nil {
		workers += maxMoving
	}
	c := &Controller{
		Config:    config,
		runs:      config.Engine.BackupRuns(config.Namespace),
		uploads:   config.Engine.VolumeUploads(config.Namespace),
		runLister: config.RunInformer.Lister().BackupRuns(config.Namespace),
		queue:     queue("backuprun", workers, 10*time.Second, config.Agents.HasSynced),
		places:    make(chan struct{}, max(1, config.Workers)),
		volumes:   map[types.UID]*volumes{},
		postHooks: map[types.UID]backup.PostHooks{},
	}
	c.Runs = runs.New(runs.Config[*enginev1alpha1.BackupRun]{
		Kind: "Backup", Runs: c.runs, Lister: c.runLister, Attempts: attemptsOf, Identity: config.Identity, Queue: config.Queue,
		ConfigMaps: config.ConfigMaps, HoldLocation: config.HoldLocation, Events: config.Events,
	})
	c.leftBehind = queue("backuprun_left_behind", config.Workers, 10*time.Second, c.queue.Synced)
	c.leftoverSnapshots = queue("backuprun_leftover_snapshots", 1, time.Minute, c.queue.Synced)
	registerMetrics()
	config.Agents.OnNodeRemoved(c.nodeRemoved)
	return c, errors.Join(
		c.queue.Watch(config.RunInformer.Informer(), loop.OnChange(c.runChanged)),
		c.queue.Watch(config.VolumeInformer.Informer(), loop.OnChange(c.uploadChanged)),
		c.queue.Watch(config.LocationInformer.Informer(), cache.ResourceEventHandlerFuncs{}))
}

// Run works until ctx ends and the last execution has stopped.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { c.queue.Run(ctx, c.sync) })
	running.Go(func() { c.leftBehind.Run(ctx, c.syncLeftBehind) })
	running.Go(func() { c.leftoverSnapshots.Run(ctx, c.syncLeftoverSnapshots) })
	running.Wait()
}

// Start implements backupqueue.Executor.
func (c *Controller) Start(name string) {
	if run, err := c.runLister.Get(name); err == nil && c.isClaiming(run) {
		return
	}
	c.queue.Add(name)
}

func (c *Controller) runChanged(before, run *enginev1alpha1.BackupRun) {
	if before != nil && (run == nil || run.UID != before.UID) {
		c.Stop(before)
		c.forgetPostHooks(before)
	}
	if run == nil {
		return
	}
	if run.Spec.Cancellation != nil {
		c.Stop(run)
	}
	switch {
	case c.claimed(run):
		if !c.isClaiming(run) {
			c.queue.Add(run.Name)
		}
	case c.isLeftBehind(run):
		c.leftBehind.Add(run.Name)
	case hasLeftoverSnapshots(run):
		c.leftoverSnapshots.Add(run.Name)
	}
}

// isClaiming reports whether this process works on a run that it claims or has claimed, and so executes
// or retries it.
func (c *Controller) isClaiming(run *enginev1alpha1.BackupRun) bool {
	known, found := c.Find(run.Name)
	return found && known.UID == run.UID && c.claimed(known)
}

// claimed reports a claim of this process; the answer may have been lost.
func (c *Controller) claimed(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Phase.Executing() && run.Status.Executor == c.Identity
}

// isLeftBehind reports whether another process began a run, or its end is yet to be stored.
func (c *Controller) isLeftBehind(run *enginev1alpha1.BackupRun) bool {
	if run.Deleting() {
		return false // its deletion cleans up
	}
	switch run.Status.Phase {
	case v1alpha1.BackupPhaseInProgress, v1alpha1.BackupPhaseWaitingForPluginOperations:
		return run.Status.Executor != c.Identity
	case v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseCancelled:
		return !run.Status.Stored && !run.Status.NeverStored() && run.Status.StartTimestamp != nil
	}
	return false
}

// isMoving reports whether only data is moved, without a slot.
func isMoving(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Phase == v1alpha1.BackupPhaseWaitingForPluginOperations
}

func (c *Controller) sync(ctx context.Context, name string) error {
	known, err := c.runLister.Get(name)
	if err == nil && known.Status.Phase.Ended() {
		return nil // for good
	}
	leave := func() {}
	if err != nil || !isMoving(known) {
		select {
		case c.places <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		leave = sync.OnceFunc(func() { <-c.places })
		defer leave()
	}
	lasting, release := lease.Lasting(ctx, lastTime)
	defer release()
	ending, end := context.WithCancel(lasting)
	e := &execution{c.Begin(ctx, name, end), lasting, ending, leave}
	defer c.Leave(name)
	run, err := c.Get(ctx, name)
	if err != nil || run == nil {
		return err
	}
	e.Set(run)
	switch {
	case e.Working.Err() != nil:
		c.queue.Add(name) // it, or an earlier one, was finished during the read
		return nil
	case c.claimed(run):
		return c.executeClaimed(ctx, run, e)
	case c.isResumable(run):
		return c.resume(ctx, run, e)
	case !records.Unclaimed(run) || run.Spec.Cancellation != nil:
		return nil
	}
	if started, err := c.IsStarted(ctx, run); err != nil || !started {
		return err
	}
	return c.acquire(ctx, run, e)
}

func (c *Controller) syncLeftBehind(ctx context.Context, key string) error {
	run, err := c.Get(ctx, key)
	if err != nil || run == nil || !c.isLeftBehind(run) {
		return err
	}
	if err := c.Leads(ctx); err != nil { // asked after the run was read
		return err
	}
	return c.takeLeftBehind(ctx, run)
}
