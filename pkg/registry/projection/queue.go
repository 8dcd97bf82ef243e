// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

const (
	publishInterval = 100 * time.Millisecond
	// MaxQueueEvents bounds the queue's average events per second to each watcher. A start moves all entries
	// behind it: with 10,000 waiting, watchers see that every 10 s.
	MaxQueueEvents = 1000
)

// pause returns the pause after a publication, so that publications take at most a fifth of the time.
func pause(events int, took time.Duration) time.Duration {
	return max(publishInterval, time.Duration(events)*time.Second/MaxQueueEvents, 4*took)
}

// Place is a place in the queue, as its namespace may see it.
type Place struct {
	queue.Entry
	// OverMessage is the message for requests over all namespaces. It names other namespaces.
	OverMessage string
}

// Over returns the place with OverMessage.
func (p Place) Over() *queue.Entry {
	p.Message = p.OverMessage
	return &p.Entry
}

func (p *Place) say(message string) { p.Message, p.OverMessage = message, message }

// publishedQueue is the queue as last published. Projector.mu guards it, except the log and stale.
type publishedQueue struct {
	log     *logstore.Log[*v1alpha1.BackupQueueEntry]
	planner *records.Planner
	places  map[types.UID]Place
	stale   chan struct{}
}

func newPublishedQueue(log *logstore.Log[*v1alpha1.BackupQueueEntry]) (publishedQueue, error) {
	planner, err := records.NewPlanner(records.DefaultLimits)
	return publishedQueue{
		log: log, planner: planner, places: map[types.UID]Place{},
		stale: make(chan struct{}, 1),
	}, err
}

func (q *publishedQueue) wake() {
	select {
	case q.stale <- struct{}{}:
	default:
	}
}

// publish computes the queue and commits its changes. events counts them; moved are the runs whose backups moved.
func (q *publishedQueue) publish(runs *runs, ledgerUnreadable bool, unheard string) (events int, moved []*enginev1alpha1.BackupRun, restores map[types.UID]Place, err error) {
	plan := q.planner.Plan()
	places := make(map[types.UID]Place, len(plan.Entries))
	restores = map[types.UID]Place{}
	shown := make([]*v1alpha1.BackupQueueEntry, 0, len(plan.Entries))
	var over []*v1alpha1.BackupQueueEntry
	for _, entry := range plan.Entries {
		run := q.planner.Run(entry.UID)
		key := runs.key(run)
		backup, isBackup := run.(*enginev1alpha1.BackupRun)
		if isBackup && runs.byBackup.Get(key) != backup || !isBackup && run.GetName() != recordOf(run, runs.systemNamespace) {
			continue // another record claims the same backup
		}
		place := Place{queue.Redact(entry, runs.systemNamespace), entry.Message}
		if ledgerUnreadable && entry.Reason == v1alpha1.QueueReasonNextToStart {
			place.say("starts when the ledger of what was let start can be read again; an event of the ConfigMap " + records.LedgerName + " says more")
		}
		if unheard != "" && entry.Reason == v1alpha1.QueueReasonNextToStart {
			place.say(unheard)
		}
		if isBackup {
			if was := q.places[entry.UID]; was.Position != place.Position || was.State != place.State || was.Message != place.Message || was.OverMessage != place.OverMessage {
				moved = append(moved, backup)
			}
			places[entry.UID] = place
		} else {
			restores[entry.UID] = place
		}
		shown = append(shown, entryOf(key, run, place.Entry, &plan))
		if place.Message != place.OverMessage || place.OtherBlockers.Sum() > 0 || !slices.Equal(place.ConflictNamespaces, entry.ConflictNamespaces) {
			entry.Message = place.OverMessage
			over = append(over, entryOf(key, run, entry, &plan))
		}
	}
	q.places = places
	events, err = q.log.Replace(shown, over...)
	return events, moved, restores, err
}

// recordOf returns the name of a run's record, unless a user made the record.
func recordOf(run enginev1alpha1.QueuedRun, systemNamespace string) string {
	ref := run.Asked().Ref
	return format.StoreName(ref.Namespace, ref.Name, systemNamespace)
}

func (p *Projector) runQueue(ctx context.Context) {
	publish := func() time.Duration {
		begin := p.Clock.Now()
		events, err := p.publish()
		if err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Publishing the queue failed")
		}
		return pause(events, p.Clock.Since(begin))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.queue.stale:
		}
		select {
		case <-ctx.Done():
			return
		case <-p.Clock.After(publish()):
		}
	}
}

// publish returns the number of changes in the queue.
func (p *Projector) publish() (int, error) {
	locations, err := p.Locations.Lister().StorageLocations(p.SystemNamespace).List(labels.Everything())
	if err != nil {
		return 0, err
	}
	namespaces, err := p.Namespaces.Lister().List(labels.Everything())
	if err != nil {
		return 0, err
	}
	ledger := p.ledger()
	_, err = records.Ledger(ledger)
	unreadable := errors.Is(err, records.ErrLedger)

	p.mu.Lock()
	defer p.mu.Unlock()
	planner := p.queue.planner
	if err := planner.SetLimits(records.Limits(ledger)); err != nil {
		return 0, err
	}
	planner.SetStarted(records.Started(ledger))
	planner.SetStorageLocations(locations)
	planner.SetExistingNamespaces(namespaces)
	events, moved, restores, err := p.queue.publish(p.runs, unreadable, p.unheard)
	for _, run := range moved {
		p.projectLocked(p.runs.key(run))
	}
	for _, s := range p.subscribers {
		if s.Restores != nil {
			s.Restores(restores)
		}
	}
	return events, err
}

func (p *Projector) ledger() *corev1.ConfigMap {
	for _, obj := range p.Ledger.GetStore().List() {
		return obj.(*corev1.ConfigMap)
	}
	return nil
}

// restorePrefix begins the name of a restore's entry. No name of a backup has a colon.
const restorePrefix = "restore:"

func kindOf(class queue.Class) string {
	if class == queue.Restore {
		return "Restore"
	}
	return "Backup"
}

func entryOf(at backupKey, run enginev1alpha1.QueuedRun, entry queue.Entry, plan *queue.Plan) *v1alpha1.BackupQueueEntry {
	asked := run.Asked()
	result := &v1alpha1.BackupQueueEntry{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         at.Namespace,
			Name:              at.Name,
			UID:               entry.UID,
			CreationTimestamp: run.GetCreationTimestamp(),
			Labels:            asked.Labels,
		},
		Spec: v1alpha1.BackupQueueEntrySpec{Kind: asked.Kind, StorageLocation: asked.Location, Requester: asked.Requester},
		Status: v1alpha1.BackupQueueEntryStatus{
			State:              entry.State,
			Position:           int32(entry.Position),
			Reason:             entry.Reason,
			Message:            entry.Message,
			OtherBlockers:      int32(entry.OtherBlockers.Sum()),
			ConflictNamespaces: entry.ConflictNamespaces,
		},
	}
	if entry.State != v1alpha1.QueueStateQueued {
		// Only here: each start would change all waiting entries.
		result.Status.SlotsInUse, result.Status.SlotLimit = int32(plan.InUse[entry.Class]), int32(plan.Limits[entry.Class])
	}
	for _, blocker := range entry.Blockers {
		result.Status.Blockers = append(result.Status.Blockers, v1alpha1.QueueBlocker{Kind: kindOf(blocker.Class), Namespace: blocker.Namespace, Name: blocker.Name})
	}
	switch run := run.(type) {
	case *enginev1alpha1.RestoreRun:
		result.Name = restorePrefix + at.Name
		result.Spec.IncludedNamespaces = run.Spec.TargetNamespaces
	case *enginev1alpha1.BackupRun:
		result.Spec.IncludedNamespaces, result.Spec.ExcludedNamespaces = run.Spec.Backup.IncludedNamespaces, run.Spec.Backup.ExcludedNamespaces
		if absent := run.Status.AbsentAgents; len(absent) > 0 && entry.State == v1alpha1.QueueStateRunning {
			result.Status.AbsentAgents = absent
			result.Status.Reason = v1alpha1.QueueReasonAgentAbsent
			result.Status.Message = "its volumes wait for the agents of nodes of which nothing was seen for a while: " + strings.Join(absent, ", ")
		}
	}
	if started := run.Standing().StartTimestamp; !entry.WaitingSince.IsZero() {
		result.Status.Since = &metav1.Time{Time: entry.WaitingSince}
	} else if started != nil {
		result.Status.Since = started
	}
	return result
}
