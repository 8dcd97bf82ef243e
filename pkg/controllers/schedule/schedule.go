// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule makes schedules' backups when due, and deletes backups that no rule keeps: see
// docs/schedules.md.
//
// Each due time has one backup, or a reason for its absence. The backup is requested before the time is
// recorded. Its name follows from schedule and time, so a repetition finds it. Requests are made as the
// user that last changed the schedule.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

const (
	// maxWait bounds the wait for a schedule, since wall clocks may be corrected.
	maxWait = time.Minute
	// deletedAtOnce bounds a schedule's concurrent deletions: each has a record.
	deletedAtOnce = 10
	lasting       = time.Minute
	workers       = 4
)

// Schedules has the schedules, with their records and the backups that they made.
type Schedules interface {
	Names() []types.NamespacedName
	Schedule(types.NamespacedName) (*v1alpha1.Schedule, *enginev1alpha1.ScheduleEntry, []domain.Backup)
	Observe(*enginev1alpha1.ScheduleEntry)
	Forget(*enginev1alpha1.ScheduleEntry)
}

// Backups requests backups as a user.
type Backups interface {
	Create(ctx context.Context, as enginev1alpha1.Requester, of *v1alpha1.Schedule, backup *v1alpha1.Backup) error
	Delete(ctx context.Context, as enginev1alpha1.Requester, of *v1alpha1.Schedule, name string, uid types.UID) error
	// MadeBy returns the uid of the schedule that made a backup, or ""; or the error NotFound.
	MadeBy(ctx context.Context, namespace, name string) (types.UID, error)
}

// Config configures a Controller.
type Config struct {
	Schedules Schedules
	Backups   Backups
	Entries   engineclient.ScheduleEntryInterface
	// RestoreUser is the user of restores, as which nothing is requested.
	RestoreUser string
	// NamespaceUID returns a namespace's uid, LiveNamespaceUID without a cache.
	NamespaceUID, LiveNamespaceUID func(ctx context.Context, name string) (types.UID, error)
	Leads                          func() bool
	Ready                          func() bool
	Events                         events.EventRecorder
	Clock                          clock.WithTicker
}

// Controller has schedules make their backups.
type Controller struct {
	Config
	queue *loop.Loop[types.NamespacedName]
}

// New returns a Controller.
func New(config Config) *Controller {
	return &Controller{Config: config, queue: loop.New[types.NamespacedName](loop.Config{
		Controller: "schedule", Workers: workers, FirstRetry: 100 * time.Millisecond, LastRetry: 30 * time.Second, Clock: config.Clock,
	})}
}

var all types.NamespacedName

// Changed has a schedule brought up to date.
func (c *Controller) Changed(name types.NamespacedName) { c.queue.Add(name) }

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	registerMetrics(c)
	c.queue.Run(ctx, c.sync)
}

func (c *Controller) sync(ctx context.Context, name types.NamespacedName) error {
	if !c.Leads() || !c.Ready() {
		c.queue.AddAfter(all, time.Second) // once for all waiting schedules
		return nil
	}
	if name == all {
		for _, name := range c.Schedules.Names() {
			c.queue.Add(name)
		}
		return nil
	}
	s, entry, backups := c.Schedules.Schedule(name)
	if s == nil {
		return nil
	}
	if gone, err := c.namespaceGone(ctx, entry); gone || err != nil {
		return err
	}
	if s.DeletionTimestamp != nil {
		c.queue.AddAfter(name, maxWait) // a finalizer may outlive the namespace
		return nil
	}
	state, err := domain.StateOf(entry, s.UID, backups)
	if err != nil {
		return c.record(ctx, s, entry, domain.Decision{Reason: v1alpha1.ScheduleReasonInvalid, Message: err.Error()}, nil)
	}
	decision := domain.Decide(state, c.Clock.Now())
	switch {
	case decision.Reason == v1alpha1.ScheduleReasonChanged:
		switch by, err := c.Backups.MadeBy(ctx, s.Namespace, domain.BackupName(s.Name, decision.Due)); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("asking whether there is a backup of %s: %w", decision.Due, err)
		case by == s.UID:
			decision.Reason, decision.Message = "", ""
			decision.Missed--
		}
		decision.Next = c.Clock.Now() // then by the changed schedule
	case !decision.Due.IsZero() && decision.Reason == "":
		// Another process may have decided otherwise.
		if live, err := c.Entries.Get(ctx, entry.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("reading ScheduleEntry %s: %w", entry.Name, err)
		} else if live.ResourceVersion != entry.ResourceVersion {
			c.Schedules.Observe(live)
			c.queue.Add(name)
			return nil
		}
		if decision.Reason, decision.Message, err = c.ask(ctx, s, entry.Spec.Requester, decision.Due); err != nil {
			return errors.Join(err, c.notAnswered(ctx, s, entry, decision.Due, err))
		}
		if decision.Reason != "" {
			decision.Missed++
		}
	}
	if err := c.record(ctx, s, entry, decision, c.prune(ctx, s, entry.Spec.Requester, backups, state.Timing)); err != nil {
		return err
	}
	wait := maxWait
	if !decision.Next.IsZero() {
		wait = min(wait, max(0, decision.Next.Sub(c.Clock.Now())))
	}
	c.queue.AddAfter(name, wait)
	return nil
}

func (c *Controller) namespaceGone(ctx context.Context, entry *enginev1alpha1.ScheduleEntry) (bool, error) {
	for _, uidOf := range []func(context.Context, string) (types.UID, error){c.NamespaceUID, c.LiveNamespaceUID} {
		uid, err := uidOf(ctx, entry.Spec.ScheduleRef.Namespace)
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("reading the namespace of the schedule: %w", err)
		}
		if err == nil && uid == entry.Spec.NamespaceUID {
			return false, nil
		}
	}
	err := c.Entries.Delete(ctx, entry.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &entry.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return true, fmt.Errorf("removing ScheduleEntry %s of a namespace that is no more: %w", entry.Name, err)
	}
	c.Schedules.Forget(entry)
	return true, nil
}

// ask requests the backup due at an instant. It returns why there is none, or an error if undecided.
func (c *Controller) ask(ctx context.Context, s *v1alpha1.Schedule, as enginev1alpha1.Requester, due time.Time) (reason, message string, err error) {
	backup := domain.NewBackup(s, due)
	err = c.Backups.Create(ctx, as, s, backup)
	switch {
	case err == nil:
		klog.FromContext(ctx).V(2).Info("Asked for the backup of a schedule", "schedule", klog.KObj(s), "backup", backup.Name, "due", due, "as", as.Username)
		c.Events.Eventf(s, reference(s, backup.Name, ""), corev1.EventTypeNormal, "BackupAsked", "Ask", "%.1000s",
			fmt.Sprintf("the backup %s, due at %s, is asked for as %s", backup.Name, due.UTC().Format(time.RFC3339), as.Username))
		return "", "", nil
	case apierrors.IsAlreadyExists(err):
		switch by, err := c.Backups.MadeBy(ctx, s.Namespace, backup.Name); {
		case err != nil:
			return "", "", fmt.Errorf("asking who made the backup %s: %w", backup.Name, err)
		case by == s.UID:
			return "", "", nil
		}
		return v1alpha1.ScheduleReasonNameTaken, fmt.Sprintf("another backup has the name %s", backup.Name), nil
	case apierrors.IsForbidden(err) && beyondLimit(err):
		return v1alpha1.ScheduleReasonTooMany, err.Error(), nil
	case apierrors.IsForbidden(err):
		return v1alpha1.ScheduleReasonForbidden, err.Error(), nil
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err):
		return v1alpha1.ScheduleReasonInvalid, err.Error(), nil
	}
	return "", "", fmt.Errorf("asking for the backup %s: %w", backup.Name, err)
}

// notAnswered reports, once for each due time, that requests have failed for long. The time stays due.
func (c *Controller) notAnswered(ctx context.Context, s *v1alpha1.Schedule, entry *enginev1alpha1.ScheduleEntry, due time.Time, why error) error {
	if c.Clock.Since(due) < lasting || ctx.Err() != nil {
		return nil
	}
	begins := fmt.Sprintf("the backup of %s is asked for again and again: ", due.UTC().Format(time.RFC3339))
	was := meta.FindStatusCondition(entry.Status.Conditions, v1alpha1.ConditionScheduled)
	if was != nil && was.Reason == v1alpha1.ScheduleReasonNotAnswered && strings.HasPrefix(was.Message, begins) {
		return nil
	}
	return c.record(ctx, s, entry, domain.Decision{Reason: v1alpha1.ScheduleReasonNotAnswered, Message: fmt.Sprintf("%s%.500s", begins, why.Error())}, nil)
}

func reference(s *v1alpha1.Schedule, name string, uid types.UID) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Backup", Namespace: s.Namespace, Name: name, UID: uid}
}

func holdsLastData(err error) bool { return hasCause(err, v1alpha1.CauseHoldsLastData) }

const causeTooManyBackups metav1.CauseType = "TooManyBackups"

func beyondLimit(err error) bool { return hasCause(err, causeTooManyBackups) }

func hasCause(err error, cause metav1.CauseType) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, c := range status.Status().Details.Causes {
		if c.Type == cause {
			return true
		}
	}
	return false
}

func (c *Controller) prune(ctx context.Context, s *v1alpha1.Schedule, as enginev1alpha1.Requester, backups []domain.Backup, timing *domain.Timing) *metav1.Condition {
	if s.Spec.Keep == nil || as.Username == c.RestoreUser {
		return nil
	}
	condition := &metav1.Condition{Type: v1alpha1.ConditionPruned, Status: metav1.ConditionTrue, Reason: "Pruned"}
	going := 0
	for _, backup := range backups {
		if backup.Phase == v1alpha1.BackupPhaseDeleting {
			going++
		}
	}
	refused := 0
	for _, backup := range domain.Surplus(backups, s.Spec.Keep, timing.Location()) {
		if going >= deletedAtOnce || refused >= deletedAtOnce {
			break
		}
		err := c.Backups.Delete(ctx, as, s, backup.Name, backup.UID)
		if err == nil {
			klog.FromContext(ctx).Info("Asked for the deletion of a backup that no rule of its schedule keeps", "schedule", klog.KObj(s), "backup", backup.Name, "uid", backup.UID, "as", as.Username)
			c.Events.Eventf(s, reference(s, backup.Name, backup.UID), corev1.EventTypeNormal, "DeletionAsked", "Prune", "%.1000s",
				fmt.Sprintf("the deletion of the backup %s is asked for as %s: no rule of spec.keep keeps it", backup.Name, as.Username))
		}
		if err == nil || apierrors.IsNotFound(err) {
			going++
			continue
		}
		if holdsLastData(err) {
			continue // until a newer backup has these data
		}
		refused++
		condition.Status, condition.Reason = metav1.ConditionFalse, "NotDeleted"
		if apierrors.IsForbidden(err) {
			condition.Reason = v1alpha1.ScheduleReasonForbidden
		}
		condition.Message = fmt.Sprintf("no rule of spec.keep keeps the backup %s, and it can't be deleted: %v", backup.Name, err)
		if apierrors.IsForbidden(err) {
			break
		}
	}
	return condition
}

func (c *Controller) record(ctx context.Context, s *v1alpha1.Schedule, entry *enginev1alpha1.ScheduleEntry, decision domain.Decision, pruned *metav1.Condition) error {
	changed := entry.DeepCopy()
	status := &changed.Status
	scheduled := metav1.Condition{Type: v1alpha1.ConditionScheduled, Status: metav1.ConditionTrue, Reason: v1alpha1.ScheduleReasonOnTime,
		ObservedGeneration: s.Generation, LastTransitionTime: metav1.NewTime(c.Clock.Now())}
	was := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionScheduled)
	switch {
	case s.Spec.Paused && entry.Spec.Requester.Username == c.RestoreUser:
		scheduled.Status, scheduled.Reason, scheduled.Message = metav1.ConditionFalse, v1alpha1.ScheduleReasonPaused,
			"it was restored: whoever may create its backups resumes it with spec.paused: false, and they are asked for as them"
	case s.Spec.Paused:
		scheduled.Status, scheduled.Reason, scheduled.Message = metav1.ConditionFalse, v1alpha1.ScheduleReasonPaused, "spec.paused is set"
	case decision.Reason != "":
		scheduled.Status, scheduled.Reason, scheduled.Message = metav1.ConditionFalse, decision.Reason, decision.Message
	case decision.Due.IsZero() && was != nil && was.Reason != v1alpha1.ScheduleReasonPaused && was.Reason != v1alpha1.ScheduleReasonNotAnswered:
		scheduled = *was // it is about the last time
	}
	meta.SetStatusCondition(&status.Conditions, scheduled)
	if pruned != nil {
		pruned.ObservedGeneration, pruned.LastTransitionTime = s.Generation, metav1.NewTime(c.Clock.Now())
		meta.SetStatusCondition(&status.Conditions, *pruned)
	} else if s.Spec.Keep == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionPruned)
	}
	if !decision.Dealt.IsZero() {
		status.LastDueTimestamp = &metav1.Time{Time: decision.Dealt.Truncate(time.Second)}
	}
	if !decision.Due.IsZero() {
		status.LastDueTimestamp = &metav1.Time{Time: decision.Due}
		status.Missed += decision.Missed
	}
	if equality.Semantic.DeepEqual(entry.Status, changed.Status) {
		return nil
	}
	updated, err := c.Entries.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("recording what came of the schedule: %w", err)
	}
	if decision.Reason != "" {
		c.Events.Eventf(s, nil, corev1.EventTypeWarning, decision.Reason, "Ask", "%.1000s", "no backup: "+decision.Message)
	}
	if pruned != nil && pruned.Status == metav1.ConditionFalse && !meta.IsStatusConditionFalse(entry.Status.Conditions, v1alpha1.ConditionPruned) {
		c.Events.Eventf(s, nil, corev1.EventTypeWarning, pruned.Reason, "Prune", "%.1000s", pruned.Message)
	}
	c.Schedules.Observe(updated)
	return nil
}
