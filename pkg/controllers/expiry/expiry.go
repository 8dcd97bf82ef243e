// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package expiry requests the deletion of expired backups, as a client of our own API with only the
// right to backups/deletion. The API server checks uid and expiration by its own clock. docs/using.md
// says which backups stay, and when expiry is frozen.
//
//   - None of this cluster's own backups expires before the last requested time. Others never expire here.
//   - Locations that the API server is unsure of are left alone.
//   - Clocks may be wrong. The hour for the bound on deletions is measured monotonically, and nothing is
//     deleted while the clock differs from the store's. A clock that is repeatedly a little wrong, with
//     restarts, remains undetected.
//
// A new process begins a new hour, and two processes request the same deletions.
package expiry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	DefaultInterval = 5 * time.Minute
	DefaultPercent  = 25

	soon     = time.Minute
	pageSize = 500
	// perLook bounds a look's requests, inFlight a location's deletions: each has a record.
	perLook  = 100
	inFlight = 500
	// mostWarnings is the length up to which an answer has all warnings.
	mostWarnings = 3 << 10
	// turn is a day with a margin, in which daily backups are made again.
	turn         = 25 * time.Hour
	refusalPause = time.Hour
)

// Config configures a Controller.
type Config struct {
	Namespace string
	// Interval is the time between looks; zero disables expiry.
	Interval time.Duration
	KeepLast bool
	// Percent of a location's backups, at least ten, may expire within an hour; 100 means no bound.
	Percent int

	CheckClock func(ctx context.Context, location *enginev1alpha1.StorageLocation) error

	Backups Backups
	Engine  engineclient.EngineV1alpha1Interface
	Events  events.EventRecorder
	Clock   clock.Clock

	NamespaceInformer coreinformers.NamespaceInformer
	LocationInformer  engineinformers.StorageLocationInformer
}

// Controller lets backups expire.
type Controller struct {
	Config
	synced []cache.InformerSynced
	wake   chan struct{}

	// gone has the last hour's unaccepted deletions, by location.
	gone    map[string][]departure
	refused map[types.UID]time.Time
	last    map[types.UID]time.Time
	told    map[types.UID]bool
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	registerMetrics()
	c := &Controller{
		Config:  config,
		synced:  []cache.InformerSynced{config.NamespaceInformer.Informer().HasSynced},
		wake:    make(chan struct{}, 1),
		gone:    map[string][]departure{},
		refused: map[types.UID]time.Time{},
		last:    map[types.UID]time.Time{},
		told:    map[types.UID]bool{},
	}
	registration, err := config.LocationInformer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			was, is := before.(*enginev1alpha1.StorageLocation), after.(*enginev1alpha1.StorageLocation)
			if was.Annotations[enginev1alpha1.AnnotationAcceptExpiry] != is.Annotations[enginev1alpha1.AnnotationAcceptExpiry] {
				select {
				case c.wake <- struct{}{}:
				default:
				}
			}
		},
	})
	if err != nil {
		return nil, err
	}
	c.synced = append(c.synced, registration.HasSynced)
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	if c.Interval <= 0 || !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return
	}
	for {
		pause, err := c.look(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			klog.FromContext(ctx).Error(err, "Looking for backups that have expired failed; it will be tried again")
			pause = min(soon, c.Interval)
		}
		timer := c.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-c.wake:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

func (c *Controller) look(ctx context.Context) (time.Duration, error) {
	listed, warnings, err := c.list(ctx)
	if err != nil {
		return 0, fmt.Errorf("listing backups: %w", err)
	}
	now := c.Clock.Now()
	locations, err := c.LocationInformer.Lister().StorageLocations(c.Namespace).List(labels.Everything())
	if err != nil {
		return 0, err
	}
	doubtful := inDoubt(warnings, locations)
	known := map[string]*enginev1alpha1.StorageLocation{}
	for _, location := range locations {
		if location.Spec.AsOf() == nil { // nothing is deleted there, and its backups are no copies
			known[location.Name] = location
		}
	}
	listed = slices.DeleteFunc(listed, func(b backup) bool { return isAsOf(locations, b.location) })
	certain := slices.DeleteFunc(slices.Clone(listed), func(b backup) bool { return known[b.location] == nil || doubtful(b.location) })
	last := map[types.UID]string{}
	if c.KeepLast {
		namespaces, err := c.namespaces()
		if err != nil {
			return 0, err
		}
		last = lastGood(certain, namespaces)
	}

	expiredBackups.Reset()
	sorted := c.sort(expired(listed, now), func(location string) bool { return known[location] == nil || doubtful(location) }, last, now)
	var going []backup
	left := false
	for name, location := range known {
		all, in, deleting := tally(listed, name, now)
		free, unaccepted := c.bound(ctx, location, sorted.due[name], all, in, now)
		if doubtful(name) {
			continue
		}
		anew := sorted.again[name]
		if len(unaccepted) > 0 {
			anew = nil
		}
		frozen := frozenBy(location, unaccepted, all.present)
		if len(free)+len(anew) > 0 {
			err := c.CheckClock(ctx, location)
			switch {
			case errors.Is(err, store.ErrClock):
				frozen = &metav1.Condition{Reason: enginev1alpha1.ReasonClockDiffers, Message: "no backup expires, since it is not certain what time it is: " + err.Error() + ". Set the clocks of the nodes and of the store right"}
				unaccepted, free, anew = append(unaccepted, free...), nil, nil
			case err != nil:
				klog.FromContext(ctx).Info("The clock of a store was not told, so no backup in it expires now", "storageLocation", name, "err", err)
				for _, b := range free {
					count(b, stateDoubtful)
				}
				left = true
				continue
			}
		}
		if err := c.saySo(ctx, location, frozen); err != nil {
			return 0, err
		}
		for _, b := range unaccepted {
			count(b, stateFrozen)
		}
		for _, b := range free {
			count(b, stateDue)
		}
		for _, b := range append(free, anew...) {
			if deleting++; deleting > inFlight {
				left = true
				continue
			}
			going = append(going, b)
		}
	}
	c.told = sorted.told
	slices.SortFunc(going, func(a, b backup) int { return a.expiration.Compare(b.expiration) })
	if len(going) > perLook {
		going, left = going[:perLook], true
	}
	read, err := c.expireAll(ctx, going, known)
	if err != nil {
		return 0, err
	}
	lastLook.Set(float64(now.Unix()))
	if left || read {
		return min(soon, c.Interval), nil
	}
	return c.Interval, nil
}

// expiries are expired backups by what happens to them now, by location.
type expiries struct {
	due   map[string][]backup
	again map[string][]backup // held the newest data of a claim; don't count as due
	told  map[types.UID]bool  // stay, with an event
}

func count(b backup, state string) { expiredBackups.WithLabelValues(b.location, state).Inc() }

// sort decides which expired backups are due. last has the namespaces whose last good backups stay.
func (c *Controller) sort(all []backup, doubtful func(location string) bool, last map[types.UID]string, now time.Time) expiries {
	to := expiries{due: map[string][]backup{}, again: map[string][]backup{}, told: map[types.UID]bool{}}
	asked := 0
	isLast := c.last
	c.last = map[types.UID]time.Time{}
	for _, b := range all {
		switch namespace := last[b.uid]; {
		case doubtful(b.location):
			count(b, stateDoubtful)
		case b.held:
			count(b, stateHeld)
		case namespace != "":
			count(b, stateKept)
			if to.told[b.uid] = true; !c.told[b.uid] {
				c.Events.Eventf(b.reference(), nil, corev1.EventTypeNormal, "ExpiryKept", "Expire", "The backup expired at %s, and stays, since it is the last good one of the namespace %q", stamp(b.expiration), namespace)
			}
		case c.KeepLast && !isLast[b.uid].IsZero():
			count(b, stateKept)
			since := isLast[b.uid]
			c.last[b.uid] = since
			if pause := now.Sub(since); (pause < 0 || pause >= refusalPause) && asked < floor {
				to.again[b.location] = append(to.again[b.location], b)
				asked++
			}
		case c.isRefused(b, now):
			count(b, stateRefused)
		default:
			to.due[b.location] = append(to.due[b.location], b)
		}
	}
	return to
}

func (c *Controller) expireAll(ctx context.Context, going []backup, locations map[string]*enginev1alpha1.StorageLocation) (read bool, err error) {
	reading, err := c.reading(ctx, len(going) > 0)
	if err != nil {
		return false, err
	}
	for _, b := range going {
		if len(reading) > 0 {
			ids, err := c.Backups.Snapshots(ctx, b.uid)
			if err != nil {
				return false, fmt.Errorf("listing the volumes of the backup %s: %w", b.NamespacedName, err)
			}
			if slices.ContainsFunc(ids, reading.Has) {
				read = true
				continue
			}
		}
		if err := c.expire(ctx, b, locations[b.location]); err != nil {
			return false, err
		}
	}
	return read, nil
}

func (c *Controller) list(ctx context.Context) (listed []backup, warnings []string, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, said, err := c.Backups.List(ctx, options)
		if err != nil {
			return nil, nil, err
		}
		warnings = append(warnings, said...)
		if cut(said) {
			warnings = append(warnings, "there may be more warnings than an answer has room for")
		}
		for i := range page.Items {
			if b, ok := own(&page.Items[i]); ok {
				listed = append(listed, b)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return listed, warnings, nil
		}
	}
}

// cut reports whether the API server may have truncated the warnings, as beyond 4,096 characters.
func cut(warnings []string) bool {
	length := 0
	for _, warning := range warnings {
		length += utf8.RuneCountInString(warning)
	}
	return length > mostWarnings
}

// inDoubt reports whether the API server is unsure of a location's backups: named by a warning, or all
// if it names none. Replaced metadata and omitted foreign backups are no doubt.
func inDoubt(warnings []string, locations []*enginev1alpha1.StorageLocation) func(location string) bool {
	named := map[string]bool{}
	all := false
	for _, warning := range warnings {
		if strings.Contains(warning, v1alpha1.ConditionMetadataReplaced) || strings.Contains(warning, enginev1alpha1.ConditionBackupsLeftOut) {
			continue
		}
		found := false
		for _, location := range locations {
			if strings.Contains(warning, fmt.Sprintf("storage location %q", location.Name)) {
				named[location.Name], found = true, true
			}
		}
		all = all || !found
	}
	for _, location := range locations {
		if location.Closed() {
			named[location.Name] = true
		}
	}
	return func(location string) bool { return all || named[location] }
}

func (c *Controller) namespaces() ([]string, error) {
	listed, err := c.NamespaceInformer.Lister().List(labels.Everything())
	names := make([]string, 0, len(listed))
	for _, namespace := range listed {
		names = append(names, namespace.Name)
	}
	slices.Sort(names)
	return names, err
}

func (c *Controller) reading(ctx context.Context, wanted bool) (sets.Set[string], error) {
	if !wanted {
		return nil, nil
	}
	listed, err := c.Engine.VolumeRestores(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing VolumeRestores: %w", err)
	}
	ids := sets.New[string]()
	for i := range listed.Items {
		if restore := &listed.Items[i]; !restore.Status.Phase.Done() {
			ids.Insert(restore.Spec.SnapshotID)
		}
	}
	return ids, nil
}

func tally(listed []backup, location string, now time.Time) (all *counts, in map[string]*counts, deleting int) {
	all, in = &counts{}, map[string]*counts{}
	for _, b := range listed {
		switch {
		case b.location != location:
		case b.deleting:
			deleting++
		case b.isShortLived():
		default:
			of := in[b.Namespace]
			if of == nil {
				of = &counts{}
				in[b.Namespace] = of
			}
			age := now.Sub(b.started)
			isNew := b.good && age >= 0 && age < turn && now.Before(b.expiration)
			for _, of := range []*counts{of, all} {
				of.present++
				if isNew {
					of.made++
				}
			}
		}
	}
	return all, in, deleting
}

// counts has the present backups of a namespace or location, and good ones made within about a day.
// going are accepted deletions, gone the others within an hour.
type counts struct{ present, made, going, gone int }

type departure struct {
	namespace string
	at        time.Time
}

// isShortLived reports a backup kept for less than a day. A wrong clock ends it little earlier, so it
// does not count for the bound.
func (b *backup) isShortLived() bool {
	lives := b.expiration.Sub(b.started)
	return !b.expiration.IsZero() && lives >= 0 && lives < 24*time.Hour
}

// bound splits due backups into free ones and those that must be accepted. It counts each namespace, so
// that none delays the others, and then the rest. As many may be deleted as were made within a day: a
// clock that is ahead has seen none made.
func (c *Controller) bound(ctx context.Context, location *enginev1alpha1.StorageLocation, due []backup, all *counts, in map[string]*counts, now time.Time) (free, unaccepted []backup) {
	until := accepted(ctx, location)
	byNamespace := map[string][]backup{}
	for _, b := range due {
		switch {
		case b.isShortLived():
			free = append(free, b)
		case b.expiration.After(until):
			byNamespace[b.Namespace] = append(byNamespace[b.Namespace], b)
		default:
			free = append(free, b)
			all.going++
			in[b.Namespace].going++
		}
	}
	c.gone[location.Name] = slices.DeleteFunc(c.gone[location.Name], func(d departure) bool { return now.Sub(d.at) >= time.Hour })
	for _, d := range c.gone[location.Name] {
		all.gone++
		if of := in[d.namespace]; of != nil {
			of.gone++
		}
	}
	var rest []backup
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		of, here := in[namespace], byNamespace[namespace]
		if n := of.gone + of.going + len(here); n > mostOf(of.gone+of.present, c.Percent) && !of.replaced(here, now) {
			unaccepted = append(unaccepted, here...)
		} else {
			rest = append(rest, here...)
		}
	}
	if len(rest) > 0 && tooMany(all.gone+all.going+len(rest), all.gone+all.present, c.Percent) && !all.replaced(rest, now) {
		return free, append(unaccepted, rest...)
	}
	return append(free, rest...), unaccepted
}

// replaced reports whether as many were made as are deleted, and no deleted one is as new.
func (of *counts) replaced(due []backup, now time.Time) bool {
	return of.gone+of.going+len(due) <= of.made && !slices.ContainsFunc(due, func(b backup) bool { return now.Sub(b.started) < turn })
}

func accepted(ctx context.Context, location *enginev1alpha1.StorageLocation) time.Time {
	text, ok := location.Annotations[enginev1alpha1.AnnotationAcceptExpiry]
	if !ok {
		return time.Time{}
	}
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		klog.FromContext(ctx).Error(err, "An annotation can't be read", "storageLocation", location.Name, "annotation", enginev1alpha1.AnnotationAcceptExpiry)
	}
	return until
}

func frozenBy(location *enginev1alpha1.StorageLocation, unaccepted []backup, present int) *metav1.Condition {
	if len(unaccepted) == 0 {
		return nil
	}
	latest := slices.MaxFunc(unaccepted, func(a, b backup) int { return a.expiration.Compare(b.expiration) }).expiration
	return &metav1.Condition{
		Reason: enginev1alpha1.ReasonTooManyExpired,
		Message: fmt.Sprintf("%d of %d backups have expired, by the clock of the controller, of %s. That is more than may go within an hour, so they stay. If so many expire regularly, raise --max-expired-percent of the controller. If the clock is right and they are to go: kubectl annotate hfl %s -n %s --overwrite %s=%s",
			len(unaccepted), present, namespacesOf(unaccepted), location.Name, location.Namespace, enginev1alpha1.AnnotationAcceptExpiry, stamp(latest)),
	}
}

func (c *Controller) saySo(ctx context.Context, location *enginev1alpha1.StorageLocation, frozen *metav1.Condition) error {
	was, is := meta.FindStatusCondition(location.Status.Conditions, enginev1alpha1.ConditionExpiryFrozen), frozen != nil
	if before := was != nil && was.Status == metav1.ConditionTrue; before == is && (!is || was.Reason == frozen.Reason) {
		return nil
	}
	condition := metav1.Condition{Status: metav1.ConditionFalse, Reason: enginev1alpha1.ReasonWithinBound, Message: "backups that have expired are deleted"}
	if is {
		condition = *frozen
		condition.Status = metav1.ConditionTrue
	}
	condition.Type, condition.ObservedGeneration, condition.LastTransitionTime = enginev1alpha1.ConditionExpiryFrozen, location.Generation, metav1.NewTime(c.Clock.Now())
	changed := location.DeepCopy()
	meta.SetStatusCondition(&changed.Status.Conditions, condition)
	_, err := c.Engine.StorageLocations(c.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil // the next look sees the change
	case err != nil:
		return fmt.Errorf("writing the condition of StorageLocation %s: %w", location.Name, err)
	}
	klog.FromContext(ctx).Info("Whether backups expire has changed", "storageLocation", location.Name, "frozen", is, "message", condition.Message)
	if is {
		c.Events.Eventf(changed, nil, corev1.EventTypeWarning, "ExpiryFrozen", "Expire", "%s", condition.Message)
	}
	return nil
}

func namespacesOf(backups []backup) string {
	names := sets.New[string]()
	for _, b := range backups {
		names.Insert(b.Namespace)
	}
	sorted := sets.List(names)
	switch n := len(sorted); {
	case n == 1:
		return "the namespace " + sorted[0]
	case n > 3:
		return fmt.Sprintf("the namespaces %s and %d more", strings.Join(sorted[:3], ", "), n-3)
	}
	return "the namespaces " + strings.Join(sorted, ", ")
}

// expire requests a backup's deletion. An error is not about this backup alone.
func (c *Controller) expire(ctx context.Context, b backup, location *enginev1alpha1.StorageLocation) error {
	err := c.Backups.Delete(ctx, b.Namespace, b.Name, &v1alpha1.BackupDeletion{
		Preconditions: &v1alpha1.BackupDeletionPreconditions{UID: b.uid, Expired: true, Superseded: c.KeepLast},
	})
	logger := klog.FromContext(ctx).WithValues("backup", klog.KRef(b.Namespace, b.Name), "uid", b.uid, "expiration", b.expiration)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case lastData(err) != "":
		_, known := c.last[b.uid]
		c.last[b.uid] = c.Clock.Now()
		if !known {
			logger.Info("A backup that has expired stays", "reason", err.Error())
			c.Events.Eventf(b.reference(), nil, corev1.EventTypeNormal, "ExpiryKept", "Expire", "The backup expired at %s, and stays, since it holds the newest data of %s", stamp(b.expiration), lastData(err))
		}
		return nil
	case isRefusal(err):
		c.refused[b.uid] = c.Clock.Now()
		logger.Info("A backup that has expired is not deleted", "reason", err.Error())
		c.Events.Eventf(b.reference(), nil, corev1.EventTypeWarning, "ExpiryRefused", "Expire", "The backup expired at %s, and is not deleted: %v", stamp(b.expiration), err)
		return nil
	case err != nil:
		return fmt.Errorf("asking for the deletion of the backup %s, which has expired: %w", b.NamespacedName, err)
	}
	delete(c.refused, b.uid)
	delete(c.last, b.uid)
	if b.expiration.After(accepted(ctx, location)) && !b.isShortLived() {
		c.gone[b.location] = append(c.gone[b.location], departure{b.Namespace, c.Clock.Now()})
	}
	expiredTotal.WithLabelValues(b.location).Inc()
	logger.Info("A backup has expired and is being deleted")
	c.Events.Eventf(b.reference(), nil, corev1.EventTypeNormal, "Expired", "Expire", "The backup expired at %s, and is being deleted", stamp(b.expiration))
	return nil
}

func (c *Controller) isRefused(b backup, now time.Time) bool {
	since, ok := c.refused[b.uid]
	elapsed := now.Sub(since)
	if ok && (elapsed < 0 || elapsed >= refusalPause) {
		delete(c.refused, b.uid)
		ok = false
	}
	return ok
}

func isRefusal(err error) bool {
	return apierrors.ReasonForError(err) == v1alpha1.StatusReasonBackupState || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) // of a webhook without a reason
}

func lastData(err error) string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Details == nil {
		return ""
	}
	for _, cause := range status.ErrStatus.Details.Causes {
		if cause.Type == v1alpha1.CauseHoldsLastData {
			return cause.Message
		}
	}
	return ""
}

func (b *backup) reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Backup",
		Namespace: b.Namespace, Name: b.Name, UID: b.uid,
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func isAsOf(locations []*enginev1alpha1.StorageLocation, name string) bool {
	return slices.ContainsFunc(locations, func(location *enginev1alpha1.StorageLocation) bool {
		return location.Name == name && location.Spec.AsOf() != nil
	})
}
