// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package projection

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/catalog"
	"github.com/holdfast-io/holdfast/pkg/catalog/refresh"
)

const (
	// quiet is the least time between writes of numbers alone.
	quiet = time.Minute
	again = 5 * time.Second
)

// StatusRecords is the client of the locations.
type StatusRecords interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*enginev1alpha1.StorageLocation, error)
	UpdateStatus(ctx context.Context, record *enginev1alpha1.StorageLocation, options metav1.UpdateOptions) (*enginev1alpha1.StorageLocation, error)
}

// LocationLister lists the locations.
type LocationLister interface {
	List(selector labels.Selector) ([]*enginev1alpha1.StorageLocation, error)
}

// StatusConfig is the configuration of a StatusWriter.
type StatusConfig struct {
	Records StatusRecords
	Lister  LocationLister
	State   func(location string) (refresh.State, bool) // false: none
	Events  events.EventRecorder
	Clock   clock.WithTicker
}

// StatusWriter writes the catalogue's knowledge into the status of the locations: the number of backups, which the
// next process expects, and conditions. It writes changed conditions, and losses that the next process would
// doubt, at once. Other changes wait a minute.
type StatusWriter struct {
	StatusConfig
	changed chan struct{}

	mu      sync.Mutex
	written map[string]time.Time // by location
}

// NewStatusWriter returns a StatusWriter.
func NewStatusWriter(config StatusConfig) *StatusWriter {
	return &StatusWriter{StatusConfig: config, changed: make(chan struct{}, 1), written: map[string]time.Time{}}
}

// Changed notes a possible change.
func (w *StatusWriter) Changed() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends. Only one process at a time should.
func (w *StatusWriter) Run(ctx context.Context) {
	for {
		due := w.writeAll(ctx)
		var after <-chan time.Time
		if due > 0 {
			after = w.Clock.After(due)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-after:
		}
	}
}

// writeAll returns when to come again; zero is at the next change.
func (w *StatusWriter) writeAll(ctx context.Context) (due time.Duration) {
	records, err := w.Lister.List(labels.Everything())
	if err != nil {
		return again
	}
	soonest := func(pause time.Duration) {
		if due == 0 || pause < due {
			due = pause
		}
	}
	for _, record := range records {
		state, known := w.State(record.Name)
		if !known {
			continue
		}
		want := LocationStatus(record, &state, w.Clock.Now())
		if equality.Semantic.DeepEqual(want, &record.Status) {
			continue
		}
		w.mu.Lock()
		wait := w.written[record.Name].Add(quiet).Sub(w.Clock.Now())
		w.mu.Unlock()
		if wait > 0 && isNumbersOnly(want, &record.Status) && !isLoss(want, &record.Status) {
			soonest(wait)
			continue
		}
		if err := w.write(ctx, record.Name, &state); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The status of a storage location could not be written; it will be tried again", "location", record.Name)
			soonest(again)
		}
	}
	return due
}

func isNumbersOnly(a, b *enginev1alpha1.StorageLocationStatus) bool {
	return equality.Semantic.DeepEqual(a.Conditions, b.Conditions) && b.Catalogue != nil && a.Catalogue.SyncRequest == b.Catalogue.SyncRequest
}

func isLoss(want, written *enginev1alpha1.StorageLocationStatus) bool {
	return catalog.IsSuspicious(int(written.Catalogue.Backups), int(want.Catalogue.Backups))
}

func (w *StatusWriter) write(ctx context.Context, name string, state *refresh.State) error {
	record, err := w.Records.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading StorageLocation %s: %w", name, err)
	}
	want := LocationStatus(record, state, w.Clock.Now())
	before := record.Status.Conditions
	if !equality.Semantic.DeepEqual(want, &record.Status) {
		record.Status = *want
		if record, err = w.Records.UpdateStatus(ctx, record, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("writing the status of StorageLocation %s: %w", name, err)
		}
	}
	w.mu.Lock()
	w.written[name] = w.Clock.Now()
	w.mu.Unlock()
	record.SetGroupVersionKind(enginev1alpha1.SchemeGroupVersion.WithKind("StorageLocation")) // for events
	for _, what := range []string{enginev1alpha1.ConditionBackupsMissing, enginev1alpha1.ConditionMetadataReplaced, enginev1alpha1.ConditionBackupsLeftOut} {
		was := meta.IsStatusConditionTrue(before, what)
		condition := meta.FindStatusCondition(record.Status.Conditions, what)
		switch {
		case condition == nil:
		case condition.Status == metav1.ConditionTrue && !was:
			w.Events.Eventf(record, nil, corev1.EventTypeWarning, condition.Reason, "Sync", "%s", condition.Message)
		case condition.Status != metav1.ConditionTrue && was:
			w.Events.Eventf(record, nil, corev1.EventTypeNormal, condition.Reason, "Sync", "%s", condition.Message)
		}
	}
	return nil
}

// manyFolders take some 60 MiB. A message names a multiple of it, to change seldom.
const manyFolders = 100_000

// LocationStatus returns the new status of a location.
func LocationStatus(record *enginev1alpha1.StorageLocation, state *refresh.State, now time.Time) *enginev1alpha1.StorageLocationStatus {
	status := record.Status.DeepCopy()
	set := func(condition metav1.Condition) {
		condition.ObservedGeneration = state.Synced.Generation
		condition.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	synced := metav1.Condition{Type: enginev1alpha1.ConditionSynced, Status: metav1.ConditionFalse}
	switch {
	case !state.Loaded:
		if meta.FindStatusCondition(status.Conditions, enginev1alpha1.ConditionSynced) == nil {
			synced.Reason, synced.Message = enginev1alpha1.ReasonLoading, "the store is being read for the first time; the lists have what was read by now"
			set(synced)
		}
		return status
	case state.LastError != "" && state.LastSuccess.IsZero():
		synced.Reason, synced.Message = enginev1alpha1.ReasonUnreadable, fmt.Sprintf("the store could not be read since this server began: %s", state.LastError)
	case state.LastError != "":
		synced.Reason = enginev1alpha1.ReasonUnreadable
		synced.Message = fmt.Sprintf("the lists show what it held at %s, since it could not be read: %s", state.LastSuccess.UTC().Format(time.RFC3339), state.LastError)
	default:
		synced.Status, synced.Reason, synced.Message = metav1.ConditionTrue, enginev1alpha1.ReasonListed, "the lists show what the store holds, as of the last poll"
	}
	set(synced)
	if state.LastFull.IsZero() {
		return status
	}
	catalogue := &enginev1alpha1.CatalogueStatus{LastListTimestamp: &metav1.Time{Time: state.LastFull.Truncate(time.Second)}, SyncRequest: state.Synced.Request, Backups: int32(state.Backups)}
	missing := metav1.Condition{Type: enginev1alpha1.ConditionBackupsMissing, Status: metav1.ConditionFalse,
		Reason: enginev1alpha1.ReasonBackupsFound, Message: "the store has the backups that are known"}
	before := status.Catalogue
	if state.Suspicion != "" {
		missing.Status, missing.Reason, missing.Message = metav1.ConditionTrue, enginev1alpha1.ReasonBackupsMissing, state.Suspicion
		if before != nil {
			catalogue.Backups = max(catalogue.Backups, before.Backups)
		}
	}
	set(missing)
	meta.RemoveStatusCondition(&status.Conditions, "Suspicious") // the name in earlier versions
	switch {
	case state.Replaced > 0:
		set(metav1.Condition{Type: enginev1alpha1.ConditionMetadataReplaced, Status: metav1.ConditionTrue,
			Reason: enginev1alpha1.ReasonReplacedInStore, Message: refresh.Replacement(state.Replaced)})
	case meta.FindStatusCondition(status.Conditions, enginev1alpha1.ConditionMetadataReplaced) != nil:
		set(metav1.Condition{Type: enginev1alpha1.ConditionMetadataReplaced, Status: metav1.ConditionFalse,
			Reason: enginev1alpha1.ReasonNoneReplaced, Message: "no backup's metadata is another writer's"})
	}
	switch {
	case state.LeftOut > 0:
		set(metav1.Condition{Type: enginev1alpha1.ConditionBackupsLeftOut, Status: metav1.ConditionTrue,
			Reason: enginev1alpha1.ReasonTooManyForeign, Message: refresh.LeftOut(state.LeftOut, state.NewestLeftOut)})
	case state.Unfinished > manyFolders:
		set(metav1.Condition{Type: enginev1alpha1.ConditionBackupsLeftOut, Status: metav1.ConditionTrue, Reason: enginev1alpha1.ReasonTooManyFolders,
			Message: fmt.Sprintf("more than %d folders below backups hold no finished backup; all backups are listed, but each folder takes half a KiB of memory of the API server: remove those that nobody writes to, and see who may write to the store", state.Unfinished/manyFolders*manyFolders)})
	case meta.FindStatusCondition(status.Conditions, enginev1alpha1.ConditionBackupsLeftOut) != nil:
		set(metav1.Condition{Type: enginev1alpha1.ConditionBackupsLeftOut, Status: metav1.ConditionFalse,
			Reason: enginev1alpha1.ReasonAllListed, Message: "all backups of the store are listed"})
	}
	// Another time alone is no change.
	if before == nil || before.Backups != catalogue.Backups || before.SyncRequest != catalogue.SyncRequest {
		status.Catalogue = catalogue
	}
	return status
}
