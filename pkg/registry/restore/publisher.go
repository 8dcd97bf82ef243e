// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/clustercache"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/queue"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/projection"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// Publisher fills a log with the restores, with their places in the queue. A restore is shown in its namespace, or
// in the system namespace if a new namespace has that name and does not continue it. One without a record is shown
// as stored; see history.go.
type Publisher struct {
	Log             *logstore.Log[object]
	systemNamespace string
	synced          []cache.InformerSynced

	// mu is held from a change of the fields below to its commit.
	mu          sync.Mutex
	records     *recorded.Set[types.UID, *enginev1alpha1.RestoreRun]
	namespaces  map[string]types.UID
	successions identity.Successions
	places      map[types.UID]projection.Place // in the queue, as shown
	unheard     string                         // says that no controller is heard of, or ""
	stores      map[string]string              // the identities of the locations' stores
	// past are the stored restores, by location and store name. shownPast is where they are shown.
	past      map[string]map[string]*past
	shownPast map[string]map[types.NamespacedName]bool
	judge     Judge
}

// NewPublisher returns a Publisher of two informers. judge judges the signatures of restores without records,
// which are not shown without it. onRead is as in logstore.Options.
func NewPublisher(systemNamespace string, runs, namespaces cache.SharedIndexInformer, judge Judge, onRead func(context.Context)) (*Publisher, error) {
	p := &Publisher{
		Log: logstore.New(func() object { return &v1alpha1.Restore{} },
			logstore.Options{Resource: Resource.GroupResource, Namespaced: true, Loading: "the restores", OnRead: onRead}),
		systemNamespace: systemNamespace,
		records:         recorded.NewSet((*enginev1alpha1.RestoreRun).GetUID),
		namespaces:      map[string]types.UID{},
		past:            map[string]map[string]*past{},
		shownPast:       map[string]map[types.NamespacedName]bool{},
		judge:           judge,
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandlerFuncs{
		runs: recorded.Handler(p.Observe, p.forget),
		namespaces: clustercache.Handler(
			func(namespace *corev1.Namespace) { p.setNamespace(namespace, true) },
			func(namespace *corev1.Namespace) { p.setNamespace(namespace, false) }),
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, err
		}
		p.synced = append(p.synced, registration.HasSynced)
	}
	return p, nil
}

// Run lets clients in when the records are known.
func (p *Publisher) Run(ctx context.Context) {
	if cache.WaitForNamedCacheSyncWithContext(ctx, p.synced...) {
		p.Log.SetReady()
	}
}

// Observe notes a record.
func (p *Publisher) Observe(run *enginev1alpha1.RestoreRun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, kept := p.records.Observe(run); !kept {
		return
	}
	p.showLocked(run)
	p.showPastLocked(format.RestoreStoreName(run.Spec.RestoreRef.Namespace, run.Spec.RestoreRef.Name, p.systemNamespace, run.UID)) // now hidden
}

func (p *Publisher) forget(run *enginev1alpha1.RestoreRun) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records.Delete(run)
	delete(p.places, run.UID)
	p.hideLocked(p.placeOf(run), run.UID)
	p.rememberLocked(run)
}

// Queued sets the places of all restores in the queue, as shown. The caller keeps none of it.
func (p *Publisher) Queued(places map[types.UID]projection.Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.places
	p.places = places
	for uid, run := range p.records.All() {
		was, is := before[uid], places[uid]
		if was.State != is.State || was.Position != is.Position || was.Reason != is.Reason || was.Message != is.Message || was.OverMessage != is.OverMessage {
			p.showLocked(run)
		}
	}
}

// SetUnheard sets the message that no controller is heard of, or "".
func (p *Publisher) SetUnheard(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unheard == message {
		return
	}
	p.unheard = message
	for _, run := range p.records.All() {
		if !run.Status.Phase.Ended() {
			p.showLocked(run)
		}
	}
}

func (p *Publisher) setNamespace(namespace *corev1.Namespace, exists bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moveLocked(namespace.Name, func() {
		if exists {
			p.namespaces[namespace.Name] = namespace.UID
		} else {
			delete(p.namespaces, namespace.Name)
		}
	})
}

// SetSuccessions sets which namespaces continue others, and moves their restores.
func (p *Publisher) SetSuccessions(successions identity.Successions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moveLocked("", func() { p.successions = successions })
}

// moveLocked makes a change, and moves the restores of a namespace, or all if empty, to where they belong.
func (p *Publisher) moveLocked(namespace string, change func()) {
	moved := map[*enginev1alpha1.RestoreRun]types.NamespacedName{}
	for _, run := range p.records.All() {
		if namespace == "" || namespace == run.Spec.RestoreRef.Namespace {
			moved[run] = p.placeOf(run)
		}
	}
	change()
	for run, was := range moved {
		if p.placeOf(run) != was {
			p.hideLocked(was, run.UID)
		}
	}
	for run, was := range moved {
		if p.placeOf(run) != was {
			p.showLocked(run)
		}
	}
	p.judgeAgainLocked(namespace)
}

func (p *Publisher) placeOf(run *enginev1alpha1.RestoreRun) types.NamespacedName {
	ref := run.Spec.RestoreRef
	present, exists := p.namespaces[ref.Namespace]
	if exists && !p.sameNamespaceLocked(ref.Namespace, run.Spec.NamespaceUID, present) {
		return types.NamespacedName{Namespace: p.systemNamespace, Name: run.Name}
	}
	return types.NamespacedName(ref)
}

// sameNamespace reports whether two uids are of one namespace, or one continues the other. An unknown uid equals
// any.
func (p *Publisher) sameNamespace(name string, a, b types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sameNamespaceLocked(name, a, b)
}

func (p *Publisher) sameNamespaceLocked(name string, a, b types.UID) bool {
	return a == "" || b == "" || p.successions.Same(name, a, b)
}

func (p *Publisher) showLocked(run *enginev1alpha1.RestoreRun) {
	at := p.placeOf(run)
	show := func(entry *queue.Entry) *v1alpha1.Restore {
		shown := restoreOf(run, entry)
		projection.Unheard(shown.Status.Conditions, p.unheard)
		shown.Namespace, shown.Name = at.Namespace, at.Name
		return shown
	}
	var within, over *queue.Entry
	if place, ok := p.places[run.UID]; ok {
		within, over = &place.Entry, place.Over()
	}
	if _, err := p.Log.Update([]*v1alpha1.Restore{show(within)}, nil, show(over)); err != nil {
		utilruntime.HandleError(err)
	}
}

func (p *Publisher) hideLocked(at types.NamespacedName, uid types.UID) {
	if shown, ok := p.Log.GetObject(at.Namespace, at.Name); ok && shown.UID == uid {
		p.Log.Remove(at.Namespace, at.Name)
	}
}

// load counts a namespace's restores, and the unfinished ones, always with the coming ones.
func (p *Publisher) load(namespace string, coming sets.Set[string]) (records, unfinished int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unseen := coming.Clone()
	for _, run := range p.records.All() {
		if run.Spec.RestoreRef.Namespace != namespace {
			continue
		}
		unseen.Delete(run.Name)
		records++
		if !run.Status.Phase.Ended() {
			unfinished++
		}
	}
	return records + unseen.Len(), unfinished + unseen.Len()
}

// restoreOf returns the Restore of a run. entry is its place in the queue as its namespace may see it, or nil.
func restoreOf(run *enginev1alpha1.RestoreRun, entry *queue.Entry) *v1alpha1.Restore {
	restore := run.AsRestore()
	status := &restore.Status
	if status.Phase.Ended() {
		status.Conditions = endConditions(restore)
		return restore
	}
	since := restore.CreationTimestamp
	complete := metav1.Condition{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionFalse,
		Reason: string(status.Phase), Message: status.Message, LastTransitionTime: since}
	queued := metav1.Condition{Type: v1alpha1.ConditionQueued, Status: metav1.ConditionTrue,
		Reason: string(status.Phase), LastTransitionTime: since}
	if status.QueuedTimestamp != nil {
		queued.LastTransitionTime = *status.QueuedTimestamp
	}
	switch {
	case status.Phase == v1alpha1.RestorePhaseNew:
	case status.Phase == v1alpha1.RestorePhaseCancelling:
		queued.Status = metav1.ConditionFalse
		queued.LastTransitionTime = run.Spec.Cancellation.Timestamp
		queued.Message = "asked to stop by " + run.Spec.Cancellation.Requester.Username
	case status.Phase != v1alpha1.RestorePhaseQueued:
		queued.Status = metav1.ConditionFalse
		if status.StartTimestamp != nil {
			queued.LastTransitionTime = *status.StartTimestamp
		}
	case entry != nil && entry.State == v1alpha1.QueueStateReady:
		// The start is in the queue's ledger.
		status.Phase = v1alpha1.RestorePhaseReadyToStart
		queued.Status, queued.Reason, complete.Reason = metav1.ConditionFalse, string(status.Phase), string(status.Phase)
	case entry != nil:
		status.QueuePosition = int32(entry.Position)
		queued.Reason, queued.Message = string(entry.Reason), fmt.Sprintf("position %d: %s", entry.Position, entry.Message)
	}
	status.Conditions = []metav1.Condition{queued, complete}
	return restore
}

func endConditions(restore *v1alpha1.Restore) []metav1.Condition {
	status, at := &restore.Status, restore.CreationTimestamp
	message := cmp.Or(status.FailureReason, strings.Join(status.ValidationErrors, "; "), status.Message, format.Unnamed(status.Errors, status.Warnings))
	for _, t := range []*metav1.Time{status.StartTimestamp, status.CompletionTimestamp} {
		if t != nil {
			at = *t
		}
	}
	succeeded := metav1.ConditionFalse
	if status.Phase == v1alpha1.RestorePhaseCompleted {
		succeeded = metav1.ConditionTrue
	}
	return []metav1.Condition{
		{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: string(status.Phase), Message: message, LastTransitionTime: at},
		{Type: v1alpha1.ConditionSucceeded, Status: succeeded, Reason: string(status.Phase), Message: message, LastTransitionTime: at},
	}
}
