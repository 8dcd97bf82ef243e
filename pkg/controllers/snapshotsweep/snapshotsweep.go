// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package snapshotsweep forgets this cluster's snapshots that no backup needs: see
// docs/design/snapshots.md.
//
// A snapshot leaves if its backup's record says that the backup has no result. Without a record its
// store decides: it must be the one of the cut, have other backups, and lack this one for a day. If too
// many would leave, they stay, with the event SnapshotsInDoubt.
package snapshotsweep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	interval        = 10 * time.Minute
	waitingInterval = time.Minute
	requestTimeout  = time.Minute
	firstRetry      = 10 * time.Second
	lastRetry       = interval
	key             = "snapshots"
	reasonDoubt     = "SnapshotsInDoubt"
)

// Config configures a Controller.
type Config struct {
	Namespace, ClusterUID string

	Snapshots *snapshots.Client
	// Mover hides exposures for ended backups. It is a snapshots.Mover.
	Mover interface {
		Exposed(ctx context.Context) (map[string]types.UID, error)
		HideAll(ctx context.Context, names []string) (gone bool, err error)
		DisposeVolumes(ctx context.Context) error
	}
	Runs engineclient.BackupRunInterface
	// Restores says which offers of snapshots are still used.
	Restores engineclient.RestoreRunInterface
	Secrets  location.Secrets
	Events   events.EventRecorder
	Clock    clock.WithTicker

	RunInformer      engineinformers.BackupRunInformer
	LocationInformer engineinformers.StorageLocationInformer
}

type bucket interface {
	store.Reader
	io.Closer
}

// Controller sweeps at its start, every ten minutes, and when woken.
type Controller struct {
	Config
	locations enginelisters.StorageLocationNamespaceLister
	queue     *loop.Loop[string]
	open      func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error)
	since     map[types.UID]time.Time
	missing   map[types.UID]time.Time
	hiding    map[string]time.Time // the first deletion of each exposure
	disposed  time.Time
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	registerMetrics()
	c := &Controller{
		Config:    config,
		locations: config.LocationInformer.Lister().StorageLocations(config.Namespace),
		queue:     loop.New[string](loop.Config{Controller: "snapshotsweep", FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock}),
		open: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error) {
			return location.Open(ctx, config.Secrets, record)
		},
	}
	c.queue.Add(key)
	if err := c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(_, _ *enginev1alpha1.StorageLocation) {})); err != nil {
		return nil, err
	}
	return c, c.queue.Watch(config.RunInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.BackupRun) {
		deleted := after == nil && before.Spec.Deletion != nil
		if deleted || before != nil && !before.Status.Phase.Ended() && (after == nil || after.Status.Phase.Ended()) {
			c.Wake()
		}
	}))
}

// Wake starts a sweep now.
func (c *Controller) Wake() { c.queue.Soon(key) }

// Run works until ctx ends. Then it shows nothing.
func (c *Controller) Run(ctx context.Context) {
	defer count.Reset()
	c.queue.Run(ctx, c.sync)
}

func (c *Controller) sync(ctx context.Context, _ string) error {
	next, err := c.sweep(ctx)
	if err != nil {
		return fmt.Errorf("sweeping the snapshots of volumes: %w", err)
	}
	c.queue.AddAfter(key, next)
	return nil
}

// sweep returns when to sweep again. It reads contents and exposures before the runs: a missing run has
// been deleted.
func (c *Controller) sweep(ctx context.Context) (next time.Duration, err error) {
	contents, taken, err := c.Snapshots.Look(ctx)
	if err != nil {
		return 0, err
	}
	exposed, err := c.Mover.Exposed(ctx)
	if err != nil {
		return 0, err
	}
	runs, err := c.Runs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	fates, locations, err := c.fates(ctx, contents, taken, runs.Items)
	if err != nil {
		return 0, err
	}
	maps.DeleteFunc(exposed, func(_ string, backup types.UID) bool { return fates[backup] == snapshots.Live })
	withdrawn, failure := c.withdraw(ctx)
	hidden, err := c.Mover.HideAll(ctx, slices.Sorted(maps.Keys(exposed)))
	failure = errors.Join(failure, err)
	if now := c.Clock.Now(); len(exposed) > 0 || now.Sub(c.disposed) >= interval {
		failure = errors.Join(failure, c.Mover.DisposeVolumes(ctx))
		c.disposed = now
	}
	decision := snapshots.Decide(snapshots.View{
		ClusterUID: c.ClusterUID, Now: c.Clock.Now(), Contents: contents, Snapshots: taken, Fates: fates, Since: c.since, Missing: c.missing,
	})
	c.since, c.missing = decision.Since, decision.Missing
	hanging := c.hanging(exposed)
	decision.States[snapshots.StateStuck] += len(hanging)
	for state, of := range decision.States {
		count.WithLabelValues(string(state)).Set(float64(of))
	}
	c.doubt(ctx, decision.Doubted, locations)
	logger := klog.FromContext(ctx)
	for _, content := range decision.Orphans {
		logger.Info("A snapshot has lost its VolumeSnapshot before it was labelled, and its class keeps it: set spec.deletionPolicy of its VolumeSnapshotContent to Delete if it is not wanted", "volumeSnapshotContent", content.Name, "handle", content.Status.Handle)
	}
	for _, name := range hanging {
		logger.Info("A volume that was made from a snapshot is not deleted yet: look at the pod, the claim and the VolumeSnapshot of its name in the namespace of the movers", "name", name)
	}
	waiting, err := c.Snapshots.Sweep(ctx, decision)
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		logger.Info("A snapshot that no backup needs is not deleted yet", "volumeSnapshotContent", name, "waitsFor", waiting[name])
	}
	next = interval
	switch {
	case decision.Soon || !hidden && len(hanging) == 0:
		next = snapshots.OrphanAge
	case len(waiting) > 0, !withdrawn, !hidden: // a claim that is never bound holds its source
		next = waitingInterval
	}
	return next, errors.Join(err, failure)
}

// hanging returns the exposures whose deletion takes longer than snapshots.StuckAge.
func (c *Controller) hanging(ended map[string]types.UID) (names []string) {
	now, since := c.Clock.Now(), map[string]time.Time{}
	for _, name := range slices.Sorted(maps.Keys(ended)) {
		if since[name] = c.hiding[name]; since[name].IsZero() {
			since[name] = now
		}
		if now.Sub(since[name]) > snapshots.StuckAge {
			names = append(names, name)
		}
	}
	c.hiding = since
	return names
}

// withdraw deletes the sources of claims whose restores have ended, and reports whether all are
// deleted. It lists the offers before the restores: a missing restore has been deleted.
func (c *Controller) withdraw(ctx context.Context) (gone bool, err error) {
	offers, err := c.Snapshots.Offers(ctx)
	if err != nil || len(offers) == 0 {
		return err == nil, err
	}
	restores, err := c.Restores.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	live := map[types.UID]bool{}
	for i := range restores.Items {
		live[restores.Items[i].UID] = !restores.Items[i].Status.Phase.Ended()
	}
	gone = true
	var failures []error
	for _, offer := range offers {
		if !live[offer.Restore] {
			is, err := c.Snapshots.WithdrawOffer(ctx, offer)
			gone, failures = gone && is, append(failures, err)
		}
	}
	return gone, errors.Join(failures...)
}

func (c *Controller) doubt(ctx context.Context, backups []types.UID, locations map[types.UID]*enginev1alpha1.StorageLocation) {
	lost := map[*enginev1alpha1.StorageLocation]int{}
	for _, uid := range backups {
		lost[locations[uid]]++
	}
	for record, number := range lost {
		const note = "The store lacks %d backups whose snapshots of volumes the cluster has, which is more than is believed at once, so the snapshots stay: look whether the right bucket is named, or set spec.deletionPolicy of their VolumeSnapshotContents to Delete"
		klog.FromContext(ctx).Info(fmt.Sprintf(note, number), "storageLocation", record.Name)
		c.Events.Eventf(record, nil, corev1.EventTypeWarning, reasonDoubt, "Sweep", note, number)
	}
}

// place is a backup's place when a snapshot of it was cut.
type place struct {
	snapshots.Place
	cut time.Time
}

// fates returns the state of each backup with snapshots, and the location of each that was looked for.
func (c *Controller) fates(ctx context.Context, contents []snapshots.VolumeSnapshotContent, taken []snapshots.VolumeSnapshot, runs []enginev1alpha1.BackupRun) (map[types.UID]snapshots.Fate, map[types.UID]*enginev1alpha1.StorageLocation, error) {
	backups := map[types.UID]place{}
	see := func(object *metav1.ObjectMeta) {
		if object.Labels[snapshots.LabelCluster] == c.ClusterUID {
			backups[types.UID(object.Labels[snapshots.LabelBackup])] = place{snapshots.PlaceOf(object.Labels), object.CreationTimestamp.Time}
		}
	}
	for i := range taken {
		see(&taken[i].ObjectMeta)
	}
	for i := range contents { // no tenant can change these
		see(&contents[i].ObjectMeta)
	}
	fates, locations := map[types.UID]snapshots.Fate{}, map[types.UID]*enginev1alpha1.StorageLocation{}
	var open []types.UID // it is not known yet what their stores have
	for i := range runs {
		run := &runs[i]
		switch phase := run.Status.Phase; {
		case run.Deleting():
		case !phase.Ended():
			fates[run.UID] = snapshots.Live
		case phase == v1alpha1.BackupPhaseFailed, phase == v1alpha1.BackupPhaseCancelled, phase == v1alpha1.BackupPhaseFailedValidation:
			// A failure that is not stored may become Completed: the store may have it so, and an answer was lost.
			if run.Status.Stored || run.Status.NeverStored() || run.Status.StartTimestamp == nil {
				fates[run.UID] = snapshots.Failed
			} else {
				open = append(open, run.UID)
			}
		}
	}
	all, err := c.locations.List(labels.Everything())
	if err != nil {
		return nil, nil, err
	}
	in := map[*enginev1alpha1.StorageLocation][]types.UID{}
	for uid, at := range backups {
		if fates[uid] != snapshots.Unknown {
			continue
		}
		if record := at.In(all); record != nil && at.believes(record) {
			in[record] = append(in[record], uid)
		}
	}
	for record, uids := range in {
		if err := c.read(ctx, record, uids, backups, fates); err != nil {
			klog.FromContext(ctx).Info("A storage location was not read, so the snapshots of its backups stay", "storageLocation", record.Name, "err", err)
		}
		for _, uid := range uids {
			locations[uid] = record
		}
	}
	for _, uid := range open {
		if fates[uid] == snapshots.Stored {
			fates[uid] = snapshots.Unknown
		}
	}
	return fates, locations, nil
}

// believes reports whether a location's store decides. If it is not known to be the one of the cut, the location must
// be older than the cut: a new one may have the name.
func (p place) believes(record *enginev1alpha1.StorageLocation) bool {
	known := p.StoreID != "" && p.StoreID == record.Status.StoreID
	return record.Spec.IsWritten() && !record.Closed() && (known || !record.CreationTimestamp.After(p.cut)) &&
		!meta.IsStatusConditionTrue(record.Status.Conditions, enginev1alpha1.ConditionBackupsMissing)
}

// read looks for backups in a store. A store without any is not believed.
func (c *Controller) read(ctx context.Context, record *enginev1alpha1.StorageLocation, uids []types.UID, backups map[types.UID]place, fates map[types.UID]snapshots.Fate) error {
	target, err := c.open(ctx, record)
	if err != nil {
		return err
	}
	defer target.Close()
	if has, err := hasBackup(ctx, target); err != nil || !has {
		return errors.Join(err, errors.New("it has no backup"))
	}
	for _, uid := range uids {
		storeName := backups[uid].StoreName
		if format.ValidateStoreName(storeName) != nil {
			continue
		}
		of := folder.Folder{
			Place: format.Place{StoreName: storeName, Location: record.Name, SystemNamespace: c.Namespace},
			Clock: c.Clock, UID: uid, Store: target, Try: try,
		}
		needed, err := of.Needs(ctx)
		switch {
		case err != nil:
			klog.FromContext(ctx).Info("A backup was not read, so its snapshots stay", "storageLocation", record.Name, "folder", storeName, "err", err)
		case needed:
			fates[uid] = snapshots.Stored
		default:
			fates[uid] = snapshots.Missing
		}
	}
	return nil
}

func hasBackup(ctx context.Context, target bucket) (bool, error) {
	for object, err := range target.List(ctx, format.BackupsPrefix, store.ListOptions{Recursive: true}) {
		if err != nil {
			return false, err
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(object.Key, format.BackupsPrefix), "/")
		if object.Key == format.MetadataKey(name) {
			return true, nil
		}
	}
	return false, nil
}

func try(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}
