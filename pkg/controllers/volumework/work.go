// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package volumework

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/datapath"
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/repository"
)

const (
	// progressFirst is the time until the first write of progress, and until the next. It doubles up to
	// progressMost: watchers see movement at once, and long work costs at most six writes a minute.
	progressFirst = time.Second
	progressMost  = 10 * time.Second
	// hungAfter bounds the time that work takes to stop. It exceeds undoTimeout.
	hungAfter = lease.HungAfter
	// mountTimeout bounds the time without an answer of the kernel about a volume's files: file servers
	// are restarted, too. It is checked every mountInterval.
	mountTimeout    = 5 * time.Minute
	mountInterval   = 30 * time.Second
	undoTimeout     = 30 * time.Second
	giveBackTimeout = 3 * time.Second
	// messageLength bounds messages, in bytes, as events do.
	messageLength = 1000
)

type work[T any] struct {
	uid    types.UID
	asked  time.Time
	record T
	// outcome is nil before the end. The controller's mu guards it.
	outcome func(T)
}

func (c *Controller[T]) key(w *work[T]) string { return c.kind.Name + "/" + string(w.uid) }

func (c *Controller[T]) workOf(name string) (w *work[T], ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w = c.works[name]
	return w, w != nil && w.outcome != nil
}

// forget drops work, unless its end differs from ended.
func (c *Controller[T]) forget(name string, w *work[T], ended bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.works[name] != w || ended != (w.outcome != nil) {
		return false
	}
	delete(c.works, name)
	return true
}

// leave abandons work that does not stop: no other work on its volume begins until it returns.
func (c *Controller[T]) leave(ctx context.Context, record T, done <-chan func(T)) {
	v := c.kind.Target(record).volume()
	returned := c.Hung.add(v, c.Clock.Now())
	klog.FromContext(ctx).Error(nil, "Work on a volume does not stop, and its slot is given to others: does its mount hang?", "volume", v.name, "pod", v.pod)
	go func() {
		<-done
		returned()
		klog.FromContext(ctx).Info("Work on a volume that did not stop has returned", "volume", v.name, "pod", v.pod)
	}()
}

func (c *Controller[T]) run(ctx context.Context, w *work[T]) {
	record := w.record
	name := record.GetName()
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("kind", c.kind.Name, "record", name))

	if _, hangs := c.Hung.since(c.kind.Target(record).volume()); hangs { // by now
		c.forget(name, w, false)
		c.queue.Add(name)
		return
	}
	// This write makes the record ours: of two processes, one has a conflict.
	record, err := c.update(ctx, record, c.begin)
	if err != nil {
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "Volume work can't begin; it will be tried again")
		}
		c.forget(name, w, false)
		c.queue.AddRateLimited(name)
		return
	}

	progress := c.Manager.Progress()
	done := make(chan func(T), 1)
	interval := progressFirst
	next := c.Clock.NewTimer(interval)
	defer next.Stop()
	working, stop := context.WithCancel(ctx)
	defer stop()
	go func(record T) { done <- c.move(working, w.asked, record, progress) }(record) // as it is now
	stopping, hung := ctx.Done(), (<-chan time.Time)(nil)
	mount := mount{calls: progress.Calls}
	look := c.Clock.NewTicker(mountInterval)
	defer look.Stop()
	for {
		select {
		case <-look.C():
			if !mount.hangs() {
				continue
			}
			stop()
			c.leave(ctx, record, done)
			c.end(name, w, record, c.failure(fmt.Errorf("the mount of the volume on node %s has not answered for %s: it hangs", c.Node, mountTimeout)))
			return
		case <-next.C():
			interval = min(2*interval, progressMost)
			next.Reset(interval)
			if ctx.Err() == nil {
				record = c.writeProgress(ctx, record, progress, stop)
			}
		case <-stopping:
			stopping = nil
			timer := c.Clock.NewTimer(hungAfter)
			defer timer.Stop()
			hung = timer.C()
		case <-hung:
			c.leave(ctx, record, done)
			c.end(name, w, record, c.failure(fmt.Errorf("the work did not stop within %s after it was told to: does the mount on node %s hang?", hungAfter, c.Node)))
			return
		case outcome := <-done:
			if toldToStop(ctx) {
				c.giveBack(ctx, record)
			}
			c.end(name, w, record, outcome)
			return
		}
	}
}

// toldToStop reports that work ended because its agent is told to stop, not by a lost Lease or a
// cancellation.
func toldToStop(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return cause != nil && !errors.Is(cause, datapath.ErrCancelled) && !errors.Is(cause, lease.ErrLost)
}

func (c *Controller[T]) giveBack(ctx context.Context, record T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		latest, err := c.reader.Get(ctx, record.GetName(), metav1.GetOptions{})
		switch {
		case isGone(err):
			return nil
		case err != nil:
			return err
		}
		status := c.kind.Status(latest)
		if latest.GetUID() != record.GetUID() || *status.Phase != enginev1alpha1.VolumePhaseInProgress || *status.Agent != c.Identity {
			return nil
		}
		_, err = c.update(ctx, latest, func(record T) { *c.kind.Status(record).GivenBack++ })
		return err
	})
	if err != nil {
		klog.FromContext(ctx).Info("The attempt counts, though the agent was told to stop: writing that failed", "err", err)
	}
}

type mount struct {
	calls func() (waiting bool, answers int64) // of the work's progress
	// waiting and answers are the last seen. silent sums up checks without an answer, so that a
	// process's pause does not count.
	waiting bool
	answers int64
	silent  time.Duration
}

// hangs reports too long a wait for an answer. A hanging file on a working mount counts only once all
// reads of the volume hang.
func (m *mount) hangs() bool {
	waiting, answers := m.calls()
	if m.waiting && answers == m.answers { // that call has not returned
		m.silent += mountInterval
	} else {
		m.silent = 0
	}
	m.waiting, m.answers = waiting, answers
	return m.silent >= mountTimeout
}

// end leaves the outcome to sync, which repeats a failed write.
func (c *Controller[T]) end(name string, w *work[T], record T, outcome func(T)) {
	c.mu.Lock()
	w.record, w.outcome = record, outcome
	c.mu.Unlock()
	c.queue.Add(name)
}

func (c *Controller[T]) writeOutcome(ctx context.Context, latest T, w *work[T]) error {
	if ctx.Err() != nil {
		return nil // the next agent begins the record anew
	}
	err := c.write(ctx, w.record, w.outcome)
	if apierrors.IsConflict(err) {
		w.record = latest // another writer changed it, as its labels
	}
	if err == nil {
		c.forget(latest.GetName(), w, true)
	}
	return err
}

func (c *Controller[T]) move(ctx context.Context, asked time.Time, record T, p *datapath.Progress) func(T) {
	result, err := c.try(ctx, asked, record, p)
	if err != nil && ctx.Err() != nil {
		err = datapath.ErrCancelled // also if that broke something
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Volume work failed")
		return c.failure(err)
	}
	klog.FromContext(ctx).V(2).Info("Volume work completed", "bytes", result.Bytes, "warnings", result.Warnings.Count)
	return func(record T) {
		status := c.kind.Status(record)
		c.complete(status, enginev1alpha1.VolumePhaseCompleted)
		*status.Message = truncate(result.Warnings.String())
		*status.Progress = enginev1alpha1.VolumeProgress{TotalBytes: result.Bytes, BytesDone: result.Bytes, TotalFiles: result.Files, FilesDone: result.Files}
		if result.Apply != nil {
			result.Apply(record)
		}
	}
}

func (c *Controller[T]) try(ctx context.Context, asked time.Time, record T, p *datapath.Progress) (result Result[T], err error) {
	target := c.kind.Target(record)
	var folder datapath.Folder
	p.Call(func() { folder, err = c.folder(target) })
	if err != nil {
		return result, err
	}
	secrets := func(ctx context.Context) ([]corev1.Secret, error) {
		return c.Secrets(ctx, c.kind.Resource, record.GetName())
	}
	err = c.repositories.Use(ctx, target.Repository, secrets, asked, func(ctx context.Context, r *repository.Repository) (err error) {
		if result, err = c.kind.Move(ctx, r, record, folder, p); err == nil && result.Undo != nil {
			err = c.undoUnknown(ctx, record, result)
		}
		return err
	})
	return result, err
}

func (c *Controller[T]) folder(target Target) (folder datapath.Folder, err error) {
	if target.Device != "" {
		return datapath.DeviceFolder(c.PodsDir, target.Pod, target.Device)
	}
	if target.HostPath == "" {
		return datapath.VolumeFolder(c.PodsDir, target.Pod, target.Volume, target.PersistentVolume, c.IsMount)
	}
	// Once the pod is deleted, another pod's volume may have the folder.
	if _, _, err := datapath.PodFolder(c.PodsDir, target.Pod); err != nil {
		return folder, err
	}
	folder = datapath.Folder{Path: target.HostPath, Root: c.HostPathRoots.Over(target.HostPath)}
	if folder.Root == "" {
		return folder, fmt.Errorf("the persistent volume is of type hostPath, and not below the --host-path-roots of the agent of node %s", c.Node)
	}
	return folder, nil
}

// undoUnknown takes back stored data if the record is deleted or cancelled. A record's deleter removes
// earlier data.
func (c *Controller[T]) undoUnknown(ctx context.Context, record T, result Result[T]) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	exists := false
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		latest, err := c.reader.Get(ctx, record.GetName(), metav1.GetOptions{})
		exists = err == nil && latest.GetUID() == record.GetUID() && !c.kind.Cancelled(latest)
		return err == nil || isGone(err), nil
	})
	switch {
	case err != nil:
		klog.FromContext(ctx).Info("It is not known whether the record still exists, and what was stored for it stays", "err", err)
		return nil
	case exists:
		return nil
	}
	klog.FromContext(ctx).V(2).Info("The record is gone or cancelled, so what was stored for it is removed")
	if err := result.Undo(ctx); err != nil {
		return fmt.Errorf("removing what was stored for a record that is gone or cancelled: %w", err)
	}
	return datapath.ErrCancelled
}

func (c *Controller[T]) begin(record T) {
	status := c.kind.Status(record)
	now := metav1.NewTime(c.Clock.Now())
	*status.Phase, *status.Message, *status.Start = enginev1alpha1.VolumePhaseInProgress, "", &now
	*status.Agent = c.Identity
	*status.Attempts++
}

func (c *Controller[T]) complete(status Status, phase enginev1alpha1.VolumePhase) {
	now := metav1.NewTime(c.Clock.Now())
	*status.Phase, *status.Completion = phase, &now
}

func (c *Controller[T]) failure(err error) func(T) {
	return func(record T) {
		status := c.kind.Status(record)
		c.complete(status, enginev1alpha1.VolumePhaseFailed)
		*status.Message = truncate(err.Error())
	}
}

func (c *Controller[T]) tell(record T) {
	if status := c.kind.Status(record); *status.Phase == enginev1alpha1.VolumePhaseFailed {
		c.Events.Eventf(record, nil, corev1.EventTypeWarning, c.kind.FailureReason, c.kind.Action, "%s", *status.Message)
	}
}

// writeProgress does not retry. A deleted record stops the work, even before the informer shows it.
func (c *Controller[T]) writeProgress(ctx context.Context, record T, p *datapath.Progress, stop func()) T {
	progress := enginev1alpha1.VolumeProgress{TotalBytes: p.Total(), BytesDone: p.Done()}
	progress.FilesDone, progress.TotalFiles = p.Files()
	if *c.kind.Status(record).Progress == progress {
		return record
	}
	written, err := c.update(ctx, record, func(record T) { *c.kind.Status(record).Progress = progress })
	if err == nil {
		return written
	}
	klog.FromContext(ctx).V(2).Info("The progress could not be written", "err", err)
	if isGone(err) {
		stop()
		return record
	}
	if fresh, err := c.reader.Get(ctx, record.GetName(), metav1.GetOptions{}); err == nil && fresh.GetUID() == record.GetUID() {
		return fresh
	}
	return record
}

func (c *Controller[T]) update(ctx context.Context, record T, change func(T)) (T, error) {
	record = record.DeepCopy()
	change(record)
	return c.writer.UpdateStatus(ctx, record, metav1.UpdateOptions{})
}

func truncate(message string) string {
	if len(message) <= messageLength {
		return message
	}
	const dots = " …"
	return strings.ToValidUTF8(message[:messageLength-len(dots)], "") + dots
}

// whyNotReady returns why a repository can't be used, "" if unknown, and whether that may pass.
func (c *Controller[T]) whyNotReady(name string) (why string, passing bool) {
	record, err := c.repositories.Repositories.Get(name)
	if err != nil {
		return "", true // no record yet
	}
	condition := meta.FindStatusCondition(record.Status.Conditions, enginev1alpha1.ConditionReady)
	switch {
	case condition == nil:
		return "", true
	case condition.Status == metav1.ConditionTrue:
		return "", false
	}
	return fmt.Sprintf("VolumeRepository %s: %s: %s", name, condition.Reason, condition.Message), condition.Reason == enginev1alpha1.ReasonUnreachable
}
