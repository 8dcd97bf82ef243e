// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumework drives the records that ask a node's agent to move a volume's data, from New to
// Completed or Failed. A Kind says what it moves, and which way: see NewUploads and NewRestores.
//
//   - One process at a time works on a record: work begins with a write that only one can make.
//   - An InProgress record without work in this process begins anew: the agent was restarted. It fails
//     after maxAttempts, or after maxGiven with the given back attempts.
//   - Deleting or cancelling a record ends its work, which takes back stored data. A cancelled record is
//     done when the work has stopped.
//   - Work on a volume without any answer for mountTimeout fails, and frees its slot. So does work that
//     does not stop within hungAfter. Until it returns, no other work on the volume begins.
package volumework

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// Record is a VolumeUpload or VolumeRestore.
type Record[T any] interface {
	metav1.Object
	runtime.Object
	DeepCopy() T
}

// Reader reads records.
type Reader[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
}

// Writer writes records.
type Writer[T any] interface {
	UpdateStatus(ctx context.Context, record T, opts metav1.UpdateOptions) (T, error)
}

// Lister lists records.
type Lister[T any] interface {
	Get(name string) (T, error)
	List(selector labels.Selector) ([]T, error)
}

// Kind has the differences between uploads and restores.
type Kind[T Record[T]] struct {
	Name     string
	Resource string
	Class    datapath.Class
	// Action and FailureReason are the failure event's.
	Action, FailureReason string
	// Target returns the place of work.
	Target    func(T) Target
	Status    func(T) Status
	Cancelled func(T) bool
	Move      func(ctx context.Context, r *repository.Repository, record T, folder datapath.Folder, p *datapath.Progress) (Result[T], error)
	// Ended is called for a Completed or Failed record: at its end, and for each when an agent starts.
	// It is retried after an error. Optional.
	Ended func(T) error
}

// Target is a place of work.
type Target struct {
	Node                     string
	Pod                      types.UID
	Volume, PersistentVolume string
	// HostPath is a hostPath persistent volume's path, or "".
	HostPath string
	// Device is the emptyDir with a block device's socket, or "".
	Device     string
	Repository string
}

// Status is the common part of both kinds' statuses.
type Status struct {
	Phase             *enginev1alpha1.VolumePhase
	Message           *string
	Progress          *enginev1alpha1.VolumeProgress
	Attempts          *int32
	GivenBack         *int32
	Agent             *string
	Start, Completion **metav1.Time
}

// Result is successful work's.
type Result[T any] struct {
	Bytes, Files int64
	Warnings     datapath.Warnings
	// Apply adds the rest to the record. Optional.
	Apply func(T)
	// Undo takes back stored data if the record is deleted. Optional.
	Undo func(ctx context.Context) error
}

// Config configures a Controller.
type Config struct {
	Node string
	// Identity names this process, and no other.
	Identity  string
	Namespace string
	// PodsDir is the kubelet's folder of pods, as seen here.
	PodsDir string
	// IsMount reports a mounted volume. Nil asks the kernel.
	IsMount datapath.MountProbe
	// FullReadEvery is as in datapath.UploadRequest.
	FullReadEvery time.Duration
	// HostPathRoots are the node's folders for hostPath persistent volumes, seen here, too.
	HostPathRoots hostpath.Roots
	// Manager is stopped by its owner.
	Manager *datapath.Manager
	Hung    *Hung
	Secrets func(ctx context.Context, resource, record string) ([]corev1.Secret, error)
	// Options are for repositories. Restores use no cache: they read everything once.
	Options repository.Options
	Events  events.EventRecorder
	Clock   clock.WithTicker

	RepositoryInformer engineinformers.VolumeRepositoryInformer
	LocationInformer   engineinformers.StorageLocationInformer
}

// Controller drives the records of one kind.
type Controller[T Record[T]] struct {
	Config
	kind   Kind[T]
	reader Reader[T]
	writer Writer[T]
	lister Lister[T]
	queue  *loop.Loop[string]
	// repositories are shared by all work of the kind, and not by backups and restores: Kopia locks a
	// repository's indexes while it writes them, so a restore would wait for a store that blocks an
	// upload. A failed listing would end the other's work, and a restore's memory limit would have to
	// suffice for both.
	repositories *opener.Shared
	// submitted: the manager knows all work that waited at the start.
	submitted atomic.Bool

	mu    sync.Mutex
	works map[string]*work[T]
}

// New returns a controller for the records of reader, lister and informer, which should be only the
// node's.
func New[T Record[T]](config Config, kind Kind[T], reader Reader[T], writer Writer[T], lister Lister[T], informer cache.SharedIndexInformer) (*Controller[T], error) {
	if kind.Class == datapath.ClassRestore {
		config.Options.Cache = nil
	}
	if config.IsMount == nil {
		config.IsMount = datapath.IsMount
	}
	c := &Controller[T]{
		Config: config,
		kind:   kind,
		reader: reader,
		writer: writer,
		lister: lister,
		repositories: &opener.Shared{
			Repositories: config.RepositoryInformer.Lister().VolumeRepositories(config.Namespace),
			Locations:    config.LocationInformer.Lister().StorageLocations(config.Namespace),
			Options:      config.Options,
			Indexes: func(ctx context.Context, bytes int64) (func(), error) {
				return datapath.MemoryOf(ctx).Indexes(ctx, bytes)
			},
			Clock: config.Clock,
		},
		// One worker suffices: it only decides and writes; the manager runs the work.
		queue: loop.New[string](loop.Config{Controller: kind.Name, Clock: config.Clock}),
		works: map[string]*work[T]{},
	}
	return c, errors.Join(
		c.queue.Watch(informer, cache.ResourceEventHandlerFuncs{
			AddFunc:    c.enqueue,
			UpdateFunc: func(_, obj any) { c.enqueue(obj) },
			DeleteFunc: c.enqueue,
		}),
		c.queue.Watch(config.RepositoryInformer.Informer(), loop.OnChange(c.repositoryChanged)),
		c.queue.Watch(config.LocationInformer.Informer(), cache.ResourceEventHandlerFuncs{}))
}

// Run works until ctx ends. The manager's owner ends running work.
func (c *Controller[T]) Run(ctx context.Context) {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.queue.Synced) {
		return
	}
	records, err := c.lister.List(labels.Everything())
	if err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Listing the volume work failed", "kind", c.kind.Name)
		return
	}
	// The run whose work came first has the first turn. Within a run, the manager orders alike.
	slices.SortFunc(records, func(a, b T) int {
		return cmp.Or(a.GetCreationTimestamp().Time.Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
	})
	for _, record := range records {
		if err := c.sync(ctx, record.GetName()); err != nil {
			c.queue.AddRateLimited(record.GetName())
		}
	}
	c.submitted.Store(true)
	var closing sync.WaitGroup
	closing.Go(func() { c.repositories.Run(ctx) })
	defer closing.Wait()
	c.queue.Run(ctx, c.sync)
}

// HasSynced reports whether the manager knows all work that waited at the start. It should begin none
// before, or a restart would change the order.
func (c *Controller[T]) HasSynced() bool { return c.submitted.Load() }

func (c *Controller[T]) enqueue(obj any) {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		utilruntime.HandleError(err)
		return
	}
	c.queue.Add(name.Name)
}

func (c *Controller[T]) repositoryChanged(before, after *enginev1alpha1.VolumeRepository) {
	repository := cmp.Or(after, before).Name
	loop.Wake(c.queue, c.lister, func(record T) bool {
		return c.kind.Target(record).Repository == repository && isNew(*c.kind.Status(record).Phase)
	})
}

func (c *Controller[T]) sync(ctx context.Context, name string) error {
	record, err := c.lister.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	here := err == nil && record.GetDeletionTimestamp() == nil && c.kind.Target(record).Node == c.Node
	wanted := here && !c.kind.Status(record).Phase.Done()
	cancelled := wanted && c.kind.Cancelled(record)
	if w, ended := c.workOf(name); w != nil {
		ours := wanted && record.GetUID() == w.uid
		switch {
		case ended && ours && *c.kind.Status(record).Agent != c.Identity:
			// The informer has not shown the beginning yet, or another agent began anew while this one
			// was paused, and writes the outcome.
			return nil
		case ended && ours:
			return c.writeOutcome(ctx, record, w)
		case ours && !ended && !cancelled:
			return nil // it waits or runs
		case !ended && c.Manager.Cancel(c.key(w)):
			return nil // its end brings the record here again; no other begins in the same folder before
		}
		// It had not begun, or its outcome is not needed.
		if !c.forget(name, w, ended) {
			return nil // it has just ended
		}
	}
	switch {
	case here && !wanted && c.kind.Ended != nil:
		return c.kind.Ended(record)
	case !wanted:
		return nil
	case cancelled:
		// The work has not begun here.
		return c.write(ctx, record, c.failure(datapath.ErrCancelled))
	case isNew(*c.kind.Status(record).Phase):
		return c.start(ctx, record)
	default:
		return c.interrupted(ctx, record)
	}
}

const (
	// maxAttempts bounds attempts of work that may end the agent, as by taking all its memory.
	maxAttempts = 3
	// maxGiven bounds all attempts, including given back ones: this work may be why the agent is told
	// to stop.
	maxGiven = 20
)

// interrupted begins anew work of an earlier agent, or of this one, which lost the answer to its write.
// It never seems to have ended.
func (c *Controller[T]) interrupted(ctx context.Context, record T) error {
	attempts, given := *c.kind.Status(record).Attempts, *c.kind.Status(record).GivenBack
	switch {
	case attempts-given >= maxAttempts:
		return c.write(ctx, record, c.failure(fmt.Errorf("the agent of node %s was restarted in the middle of it, %d times", c.Node, attempts-given)))
	case attempts >= maxGiven:
		return c.write(ctx, record, c.failure(fmt.Errorf("the agent of node %s was restarted in the middle of it, %d times, and %d times it was told to stop: see in the events of its pods by whom", c.Node, attempts, given)))
	}
	klog.FromContext(ctx).Info("Volume work begins anew, in the middle of which an agent has stopped", "kind", c.kind.Name, "record", record.GetName(), "agent", *c.kind.Status(record).Agent)
	again, err := c.update(ctx, record, func(record T) {
		status := c.kind.Status(record)
		*status.Phase, *status.Progress = enginev1alpha1.VolumePhaseNew, enginev1alpha1.VolumeProgress{}
		*status.Message = "begins anew, since the agent of its node was restarted in the middle of it"
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("write that %s begins anew: %w", record.GetName(), err)
	}
	return c.start(ctx, again) // before work that was requested later
}

func (c *Controller[T]) start(ctx context.Context, record T) error {
	switch why, passing := c.whyNotReady(c.kind.Target(record).Repository); {
	case passing:
		message := truncate("waits for " + why)
		if why == "" || message == *c.kind.Status(record).Message {
			return nil // the repository's change wakes the record
		}
		return c.write(ctx, record, func(record T) { *c.kind.Status(record).Message = message })
	case why != "":
		return c.write(ctx, record, c.failure(errors.New(why)))
	}
	if since, hangs := c.Hung.since(c.kind.Target(record).volume()); hangs {
		return c.write(ctx, record, c.failure(fmt.Errorf("earlier work on this volume has not returned since %s: its mount on node %s hangs",
			since.UTC().Format(time.RFC3339), c.Node)))
	}
	w := &work[T]{uid: record.GetUID(), asked: c.Clock.Now(), record: record}
	c.mu.Lock()
	c.works[record.GetName()] = w
	c.mu.Unlock()
	if !c.Manager.Submit(datapath.Work{
		Key:   c.key(w),
		Class: c.kind.Class,
		Run:   cmp.Or(record.GetLabels()[enginev1alpha1.LabelRun], record.GetLabels()[enginev1alpha1.LabelRestore]),
		Asked: record.GetCreationTimestamp().Time,
		Name:  record.GetName(),
		Do:    func(ctx context.Context) { c.run(ctx, w) },
	}) {
		// An earlier attempt is ending, or the agent stops.
		c.forget(record.GetName(), w, false)
		c.queue.AddRateLimited(record.GetName())
	}
	return nil
}

// write changes a record's status. It fails with a conflict if the record has changed since it was
// read.
func (c *Controller[T]) write(ctx context.Context, record T, change func(T)) error {
	record = record.DeepCopy()
	change(record)
	_, err := c.writer.UpdateStatus(ctx, record, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of %s: %w", record.GetName(), err)
	}
	c.tell(record)
	return nil
}

func isNew(phase enginev1alpha1.VolumePhase) bool {
	return phase == "" || phase == enginev1alpha1.VolumePhaseNew
}
