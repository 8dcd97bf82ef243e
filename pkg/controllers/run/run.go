// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package run is common to the executors of backups and restores.
//
// The ledger says which runs may start, and which process leads; see pkg/controllers/backupqueue. An
// attempt counts unless its process was told to stop, and has given it back.
package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
)

const (
	// ProgressInterval bounds the writes of a run's progress.
	ProgressInterval = 5 * time.Second
	// MaxGiven bounds all attempts, counted or not: a run may be why its process is told to stop again
	// and again.
	MaxGiven        = 20
	giveBackTimeout = 3 * time.Second
)

// Run is a BackupRun or a RestoreRun.
type Run[R any] interface {
	enginev1alpha1.QueuedRun
	DeepCopy() R
}

// Client reads and writes runs of the system namespace.
type Client[R any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (R, error)
	UpdateStatus(ctx context.Context, run R, options metav1.UpdateOptions) (R, error)
}

// Lister reads runs from the informer.
type Lister[R any] interface {
	Get(name string) (R, error)
}

// Queue starts runs: a backupqueue.Controller, except in tests.
type Queue interface {
	// TakeBack removes from the ledger a run that is not acquired, as its location's store did not
	// answer.
	TakeBack(ctx context.Context, run types.UID, location *enginev1alpha1.StorageLocation) error
	// Changed says that work on a run without a record has ended.
	Changed(name string)
}

// Attempts are fields of a run's status.
type Attempts struct {
	Executor            *string
	Attempts, GivenBack *int32
}

// Config configures Runs.
type Config[R any] struct {
	// Kind is Backup or Restore.
	Kind     string
	Runs     Client[R]
	Lister   Lister[R]
	Attempts func(R) Attempts
	// Identity names this process, and no other.
	Identity string
	Queue    Queue
	// ConfigMaps has the ledger.
	ConfigMaps corev1client.ConfigMapInterface
	// HoldLocation makes a storage location unavailable for a while, as its store did not answer a
	// run's start. It returns the resulting record; nil if there is none.
	HoldLocation func(ctx context.Context, name string, reason error) (*enginev1alpha1.StorageLocation, error)
	Events       events.EventRecorder
}

// Execution is a run in work.
type Execution[R any] struct {
	// Working ends, by Stop, when the run is cancelled or its record is deleted.
	Working context.Context
	Stop    func()

	mu *sync.Mutex
	// run is as read and, once it is to be acquired, as written; nil before.
	run   R
	known bool
}

// Set sets the run in work.
func (e *Execution[R]) Set(run R) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.run, e.known = run, true
}

// Runs are the runs in this process's work, by name. It is safe for concurrent use.
type Runs[R Run[R]] struct {
	config Config[R]

	mu      sync.Mutex
	working map[string]*Execution[R]
}

// New returns Runs.
func New[R Run[R]](config Config[R]) *Runs[R] {
	return &Runs[R]{config: config, working: map[string]*Execution[R]{}}
}

// Begin notes work on a named run, until Leave. Stop also calls end.
func (r *Runs[R]) Begin(ctx context.Context, name string, end func()) *Execution[R] {
	working, stop := context.WithCancel(ctx)
	e := &Execution[R]{Working: working, Stop: func() { stop(); end() }, mu: &r.mu}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.working[name] = e
	return e
}

// Leave ends work on a run. If its record is deleted, the queue may have seen that before, and waits
// for this call.
func (r *Runs[R]) Leave(name string) {
	r.mu.Lock()
	e := r.working[name]
	delete(r.working, name)
	r.mu.Unlock()
	e.Stop()
	if present, err := r.config.Lister.Get(name); err != nil || e.known && e.run.GetUID() != present.GetUID() {
		r.config.Queue.Changed(name)
	}
}

// Executing returns the runs in work, by name. One is nil until read.
func (r *Runs[R]) Executing() map[string]R {
	r.mu.Lock()
	defer r.mu.Unlock()
	runs := map[string]R{}
	for name, e := range r.working {
		runs[name] = e.run
	}
	return runs
}

// Find returns the named run in work, if it has been read.
func (r *Runs[R]) Find(name string) (run R, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.working[name]; e != nil {
		return e.run, e.known
	}
	return run, false
}

// Stop stops a run's execution, if any, also while it is unknown which run of the name is in work.
func (r *Runs[R]) Stop(run R) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.working[run.GetName()]; e != nil && (!e.known || e.run.GetUID() == run.GetUID()) {
		e.Stop()
	}
}

func (r *Runs[R]) key() string { return strings.ToLower(r.config.Kind) + "Run" }

// Get reads a run from the cluster, since each step is taken once; nil if missing.
func (r *Runs[R]) Get(ctx context.Context, name string) (run R, err error) {
	read, err := r.config.Runs.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return run, nil
	case err != nil:
		return run, fmt.Errorf("reading %sRun %s: %w", r.config.Kind, name, err)
	}
	return read, nil
}

// IsStarted reads in the ledger whether this process may execute a run.
func (r *Runs[R]) IsStarted(ctx context.Context, run R) (bool, error) {
	ledger, err := r.config.ConfigMaps.Get(ctx, records.LedgerName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the ledger of what was let start: %w", err)
	}
	return records.Leader(ledger) == r.config.Identity && records.Started(ledger).Has(run.GetUID()), nil
}

// TakeBack returns a run that is not acquired to its place in the queue, as its store does not answer.
// Its location's condition comes first, so that the queue holds the run.
func (r *Runs[R]) TakeBack(ctx context.Context, run R, unreachable error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	held, err := r.config.HoldLocation(ctx, run.Asked().Location, unreachable)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info(r.config.Kind+" goes back to its place in the queue, since its store does not answer", r.key(), klog.KObj(run), "reason", unreachable.Error())
	return r.config.Queue.TakeBack(ctx, run.GetUID(), held)
}

// TellRefused emits an event if a record may not be written, as by an admission webhook: the run keeps
// its slot until then.
func (r *Runs[R]) TellRefused(run R, err error) {
	if records.Refused(err) {
		r.config.Events.Eventf(records.Reference(run), nil, corev1.EventTypeWarning, "RecordRefused", r.config.Kind,
			"The record of the %s may not be written, and it keeps its slot until it may: %v", strings.ToLower(r.config.Kind), err)
	}
}

// Acquire writes that this process executes a run, as a new attempt, and change's changes. It is a
// compare-and-swap: no two processes execute the run.
func (r *Runs[R]) Acquire(ctx context.Context, e *Execution[R], run R, change func(R)) (R, error) {
	acquired := run.DeepCopy()
	of := r.config.Attempts(acquired)
	*of.Executor = r.config.Identity
	*of.Attempts++ // also after an attempt that did nothing: no two share a number
	change(acquired)
	e.Set(acquired)
	acquired, err := r.config.Runs.UpdateStatus(ctx, acquired, metav1.UpdateOptions{})
	if err != nil {
		r.TellRefused(run, err)
		return acquired, fmt.Errorf("acquiring %sRun %s: %w", r.config.Kind, run.GetName(), err)
	}
	return acquired, nil
}

// GiveBack writes that the attempt has ended, as the process is told to stop, and change's changes, if
// any. It does nothing after a lost Lease, or if the run has ended or was taken over.
func (r *Runs[R]) GiveBack(ctx context.Context, run R, change func(R)) {
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), lease.ErrLost) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	live, err := r.config.Runs.Get(ctx, run.GetName(), metav1.GetOptions{})
	if err == nil {
		of := r.config.Attempts(live)
		if live.GetUID() != run.GetUID() || *of.Executor != r.config.Identity || !live.Standing().Phase.Executing() {
			return
		}
		*of.GivenBack++
		if change != nil {
			change(live)
		}
		_, err = r.config.Runs.UpdateStatus(ctx, live, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Info("The attempt counts, though the controller was told to stop: writing that failed", r.key(), klog.KObj(run), "err", err)
	}
}

// RetryUntilDone tries until done, failed, or ctx ends.
func RetryUntilDone(ctx context.Context, try wait.ConditionWithContextFunc) error {
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 10 * time.Second}
	return backoff.DelayFunc().Until(ctx, true, true, try)
}

// GetWithRetry reads a run, however long that takes; nil if missing.
func (r *Runs[R]) GetWithRetry(ctx context.Context, run R) (live R, err error) {
	err = RetryUntilDone(ctx, func(ctx context.Context) (bool, error) {
		read, err := r.config.Runs.Get(ctx, run.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return true, nil
		case err != nil:
			klog.FromContext(ctx).Info("Finding out why the run is to stop failed; it will be tried again", r.key(), klog.KObj(run), "err", err)
			return false, nil
		case read.GetUID() == run.GetUID():
			live = read
		}
		return true, nil
	})
	return live, err
}

// WriteEnd writes a run's end until that succeeds: an ended run must not look as if it continued. The
// function end changes a copy's status. After an error the run is read. Then over reports whether
// nothing is left to write, given the same executor; a deleted run needs nothing. The run is returned
// as last read. If another process has taken it over, others is true.
func (r *Runs[R]) WriteEnd(ctx context.Context, run R, end func(R), over func(live R) bool) (last R, others bool, err error) {
	err = RetryUntilDone(ctx, func(ctx context.Context) (bool, error) {
		ended := run.DeepCopy()
		end(ended)
		_, err := r.config.Runs.UpdateStatus(ctx, ended, metav1.UpdateOptions{})
		if err == nil {
			return true, nil
		}
		if !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Info("Writing the end of the run failed; it will be tried again", r.key(), klog.KObj(run), "err", err)
			r.TellRefused(run, err)
		}
		live, err := r.config.Runs.Get(ctx, run.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && live.GetUID() != run.GetUID():
			return true, nil // removed by hand
		case err != nil:
			return false, nil
		case *r.config.Attempts(live).Executor != *r.config.Attempts(run).Executor:
			run, others = live, true
			return true, nil
		case over(live):
			return true, nil
		}
		run = live
		return false, nil
	})
	return run, others, err
}

// ErrTakenOver says that another process executes a run.
var ErrTakenOver = errors.New("another controller has taken over")

// Record is an executed run, as last written. It is safe for concurrent use.
type Record[R Run[R]] struct {
	runs *Runs[R]

	mu  sync.Mutex
	run R
}

// Record returns the Record of a run.
func (r *Runs[R]) Record(run R) *Record[R] { return &Record[R]{runs: r, run: run} }

// Latest returns the run as last written, or read after an error.
func (r *Record[R]) Latest() R {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.run
}

// Write writes the run if change reports a change. After an error it reads the run, for the next time.
// It fails with ErrTakenOver if another process executes the run.
func (r *Record[R]) Write(ctx context.Context, change func(R) bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, config := r.run.DeepCopy(), &r.runs.config
	if *config.Attempts(changed).Executor != config.Identity {
		return ErrTakenOver
	}
	if !change(changed) {
		return nil
	}
	updated, err := config.Runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err == nil {
		r.run = updated
		return nil
	}
	if live, err := config.Runs.Get(ctx, r.run.GetName(), metav1.GetOptions{}); err == nil && live.GetUID() == r.run.GetUID() {
		r.run = live
	}
	return err
}

// ReportProgress calls write now and then, until ctx ends.
func ReportProgress(ctx context.Context, write func(context.Context) error) {
	ticker := time.NewTicker(ProgressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := write(ctx); err != nil {
			klog.FromContext(ctx).V(2).Info("Writing the progress failed", "err", err)
		}
	}
}

// End is a run's end.
type End struct {
	Phase            v1alpha1.BackupPhase
	Message          string
	FailureReason    string
	ValidationErrors []string
	Errors, Warnings int32
	Stored           bool
}

// RecordEnd emits an event of a run's end.
func (r *Runs[R]) RecordEnd(ctx context.Context, run R, end End) {
	kind, name := corev1.EventTypeWarning, strings.ToLower(r.config.Kind)
	note := "The " + name + " has ended with " + cmp.Or(end.Message, "neither errors nor warnings")
	switch {
	case end.Phase == v1alpha1.BackupPhaseCompleted:
		kind = corev1.EventTypeNormal
	case end.Phase == v1alpha1.BackupPhaseCancelled:
		kind, note = corev1.EventTypeNormal, "The "+name+" was "+end.FailureReason
	case len(end.ValidationErrors) > 0:
		note = "The " + name + " was refused, and has written nothing: " + strings.Join(end.ValidationErrors, "; ")
	case end.FailureReason != "":
		note = "The " + name + " has failed: " + end.FailureReason
	}
	r.config.Events.Eventf(records.Reference(run), nil, kind, string(end.Phase), r.config.Kind, "%s", format.Note(note))
	klog.FromContext(ctx).Info(r.config.Kind+" ended", r.key(), klog.KObj(run), "phase", end.Phase, "errors", end.Errors, "warnings", end.Warnings, "failureReason", end.FailureReason, "stored", end.Stored)
}
