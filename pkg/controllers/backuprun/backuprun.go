// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backuprun executes the runs that the queue has let start, and ends
// those that a process before this one left behind.
//
// No run is executed by two processes at once. It is executed by the process that leads,
// after a compare-and-swap of the run and a look at the ledger that came after it; see
// pkg/controllers/backupqueue for why that holds with two leaders. A run in progress
// that another process has claimed was left behind: this process claims it and executes it
// anew, since the cluster says, after the run was read, that it leads, so that the other
// one, which led when it claimed the run, has stopped. Each claim is an attempt with a
// number of its own; what one that was only asleep still does, no other one's result holds:
// see package backup. After MaxAttempts the run has failed. A process that is told to stop
// gives its runs back, and such an attempt does not count; what is all read by then it
// stores, before it gives its Lease back.
//
// The queue, in the same process, is the only one that writes the ledger. It asks which
// runs are worked on before it drops one whose record is gone.
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
	// settleTimeout is how long a store may take to be told of a dead run, and cleaned.
	settleTimeout = time.Minute
	// snapshotsTimeout is how long a store may take to be asked for the removal of
	// snapshots from one repository.
	snapshotsTimeout = time.Minute
	// cancelTimeout is how long a store may take to be told of a cancelled run before
	// the run ends all the same.
	cancelTimeout = 5 * time.Second
	// recheck is how often it is asked whether uploads have stopped.
	recheck = 5 * time.Second
	// lastTime is how long a run whose objects and volumes are all read may take to be stored
	// when the process is told to stop. It is shorter than the terminationGracePeriodSeconds
	// of the controller's pod, the default of 30 s.
	lastTime = 20 * time.Second
	// MaxAttempts is how many processes execute a run, one after the other, before it is
	// taken for what ends them. Those don't count that were told to stop, or put the run back.
	MaxAttempts = 3
	// DefaultVolumeTimeout is how long the upload of a volume may take unless it is set.
	DefaultVolumeTimeout = 4 * time.Hour
	// DefaultTimeout is how long a backup may take from its start unless it is set.
	DefaultTimeout = 24 * time.Hour
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// ClusterUID is that of package identity.
	ClusterUID string
	// Workers is how many runs are executed at once: the queue's limit.
	Workers int
	// Identity is this process, and no other, not even one of the same pod.
	Identity string
	// VolumeTimeout is how long the upload of a volume may take from its start, and how
	// long a node's agent may begin and end nothing while volumes wait for it: twice that and
	// AgentTimeout while it has something in progress.
	VolumeTimeout time.Duration
	// Timeout is how long a backup may take from its start: the volumes that are not uploaded
	// then are given up, and no more hooks run. Zero is no limit.
	Timeout time.Duration
	// AgentTimeout is how long a node may be without an agent.
	AgentTimeout time.Duration
	// Agents knows which nodes have one: lease.Agents, but in tests.
	Agents agents

	// ResumeInProgress has a run that another process has left behind executed anew. Else
	// it has failed.
	ResumeInProgress bool

	// Leads asks the cluster whether this process leads: nil if so.
	Leads func(ctx context.Context) error
	// Queue is the one of this process.
	Queue runs.Queue

	Engine engineclient.EngineV1alpha1Interface
	// ConfigMaps are those of the system namespace, to read the ledger.
	ConfigMaps corev1client.ConfigMapInterface
	// Executor does the work: an Executor, but in tests.
	Executor executor
	// HoldLocation makes a storage location unavailable for a while, since its store did not
	// answer a run that was to start, and returns its record as it is then; nil if there is none.
	HoldLocation func(ctx context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error)
	Events       events.EventRecorder
	Clock        clock.WithTicker

	RunInformer      engineinformers.BackupRunInformer
	LocationInformer engineinformers.StorageLocationInformer
	VolumeInformer   engineinformers.VolumeUploadInformer
}

// agents knows which nodes have an agent.
type agents interface {
	HasSynced() bool
	// OnNodeRemoved has a function called whenever a node is gone.
	OnNodeRemoved(func())
	// Absence is how long there has been no sign of life of a node's agent, counted
	// from a time at the earliest. An agent that is absent for the limit works no more.
	Absence(node string, since time.Time) time.Duration
	// NodeGone reports whether there is no such node, given since when it was heard of.
	NodeGone(node string, since time.Time) bool
	// Saw and Idle are those of lease.Activity.
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
	// queue has the runs to execute, leftBehind those that another process did not end and that
	// are to be prepared or ended, and leftoverSnapshots those that have ended and whose snapshots are to be
	// removed. A store that does not answer can make each of the latter two take long,
	// and must not keep the others from their slots.
	queue, leftBehind, leftoverSnapshots *loop.Loop[string]

	// mu guards what follows.
	mu sync.Mutex
	// volumes has the volumes of each run that this process executes, by the uid of the run.
	volumes map[types.UID]*volumes
	// postHooks is what became of those that this process has run since another one was gone,
	// by the uid of their run, until that is stored.
	postHooks map[types.UID]backup.PostHooks
}

// execution is a run that this process works on.
type execution struct {
	*runs.Execution[*enginev1alpha1.BackupRun]
	// lasting goes on for lastTime when the process is told to stop, unless its Lease is lost,
	// and ending does so too, but ends with Working by Stop.
	lasting, ending context.Context
}

// attemptsOf points into the status of a run.
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
	c := &Controller{
		Config:    config,
		runs:      config.Engine.BackupRuns(config.Namespace),
		uploads:   config.Engine.VolumeUploads(config.Namespace),
		runLister: config.RunInformer.Lister().BackupRuns(config.Namespace),
		queue:     queue("backuprun", config.Workers, 10*time.Second, config.Agents.HasSynced),
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

// Run works until ctx ends, and returns when the last execution has stopped.
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

// runChanged puts a run into the queue where it belongs, and stops its execution if it
// is cancelled or its record is gone.
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

// isClaiming reports whether this process works on a run, and claims it or has done so. It needs
// not be told of it again: it executes the run, or tries again by itself.
func (c *Controller) isClaiming(run *enginev1alpha1.BackupRun) bool {
	known, found := c.Find(run.Name)
	return found && known.UID == run.UID && c.claimed(known)
}

// claimed reports whether this process has claimed a run; it may not have got the
// answer.
func (c *Controller) claimed(run *enginev1alpha1.BackupRun) bool {
	return run.Status.Phase == v1alpha1.BackupPhaseInProgress && run.Status.Executor == c.Identity
}

// isLeftBehind reports whether a run was begun by another process, or has ended and
// its end is still to be stored.
func (c *Controller) isLeftBehind(run *enginev1alpha1.BackupRun) bool {
	if run.Deleting() {
		return false // whoever deletes the backup cleans up
	}
	switch run.Status.Phase {
	case v1alpha1.BackupPhaseInProgress:
		return run.Status.Executor != c.Identity
	case v1alpha1.BackupPhaseFailed, v1alpha1.BackupPhaseCancelled:
		return !run.Status.Stored && run.Status.StartTimestamp != nil
	}
	return false
}

func (c *Controller) sync(ctx context.Context, name string) error {
	lasting, release := lease.Lasting(ctx, lastTime)
	defer release()
	ending, end := context.WithCancel(lasting)
	e := &execution{c.Begin(ctx, name, end), lasting, ending}
	defer c.Leave(name)
	if run, err := c.runLister.Get(name); err == nil && run.Status.Phase.Ended() {
		return nil // for good
	}
	run, err := c.Get(ctx, name)
	if err != nil || run == nil {
		return err
	}
	e.Set(run)
	switch {
	case e.Working.Err() != nil:
		c.queue.Add(name) // something became of it, or of one before it, while it was read
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
