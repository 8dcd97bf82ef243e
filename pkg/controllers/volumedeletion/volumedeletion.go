// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumedeletion deletes volume backups: a volume's whole history, or one.
//
// A VolumeDeletion names the backups; the API server hides them at once. The package writes a
// signed change beside each backup's folder (folder.Change), then a removal of the snapshots into
// each store, which the repository's maintenance follows. The record is deleted some time later.
//
//   - Nothing is removed or rewritten. A backup stays, without the volume; later changes repeat the
//     deletion.
//   - It may be stopped anywhere, or run twice: changes are not repeated, and removals have the
//     record's name.
//   - Held backups, and those that this cluster has not signed, stay. A later hold protects the
//     rest.
//   - A missing location refuses its backups, and delays nothing.
//   - The removal follows the change, and waits for restores that may not have read the change.
package volumedeletion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// workers bounds the concurrent deletions, atOnce the backups of one that are changed at once.
	workers = 2
	atOnce  = 16
	step    = 200
	// mostChanges leaves changes of a backup for holds and expirations.
	mostChanges    = format.MaxExpirations - 100
	requestTimeout = time.Minute
	lookAgain      = 30 * time.Second
	// retention is how long a completed record stays, until all catalogues and their caches have
	// the change. An API server that was down longer lists the store.
	retention = 24 * time.Hour
)

// Config is what a Controller needs.
type Config struct {
	Namespace string
	Cluster   format.Cluster
	// Keys are all public keys of the cluster.
	Keys      []string
	Deletions engineclient.VolumeDeletionInterface
	Changes   engineclient.ExpirationChangeInterface
	Restores  engineclient.RestoreRunInterface
	Secrets   location.Secrets
	// EnsureRepository creates the record of a namespace's repository at a location, if missing.
	EnsureRepository func(ctx context.Context, namespace, location string) error
	Events           events.EventRecorder
	Clock            clock.WithTicker

	DeletionInformer engineinformers.VolumeDeletionInformer
	LocationInformer engineinformers.StorageLocationInformer
}

type bucket interface {
	store.Reader
	io.Closer
	folder.Creator
	Put(ctx context.Context, key string, content []byte) error
}

// Controller carries out deletions of volume backups.
type Controller struct {
	Config
	locations    enginelisters.StorageLocationNamespaceLister
	queue        *loop.Loop[string]
	open         func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error)
	openLonghorn func(ctx context.Context, record *enginev1alpha1.StorageLocation) (longhornStore, error)
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:    config,
		locations: config.LocationInformer.Lister().StorageLocations(config.Namespace),
		queue: loop.New[string](loop.Config{
			Controller: "volumedeletion", Workers: workers, FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock,
		}),
		open: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error) {
			return location.Open(ctx, config.Secrets, record)
		},
		openLonghorn: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (longhornStore, error) {
			return location.OpenAny(ctx, config.Secrets, record)
		},
	}
	deletions := config.DeletionInformer.Lister().VolumeDeletions(config.Namespace)
	return c, errors.Join(
		c.queue.Watch(config.DeletionInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.VolumeDeletion) {
			if after != nil && (before == nil || before.UID != after.UID) {
				c.queue.Soon(after.Name)
			}
		})),
		c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
			if after != nil && (before == nil || before.UID != after.UID || before.Closed() && !after.Closed()) {
				loop.Wake(c.queue, deletions, func(d *enginev1alpha1.VolumeDeletion) bool {
					return !d.Done() && slices.ContainsFunc(d.Spec.Targets, func(target enginev1alpha1.VolumeDeletionTarget) bool {
						return target.StorageLocation == after.Name
					})
				})
			}
		})))
}

// Run works until ctx ends, and returns when all work has stopped.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

func (c *Controller) sync(ctx context.Context, name string) error {
	deletion, err := c.Deletions.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading VolumeDeletion %s: %w", name, err)
	case deletion.Done():
		return c.retire(ctx, deletion)
	}
	work := &work{Controller: c, deletion: deletion, opened: map[string]bucket{}}
	defer work.close()
	if err := work.changeBackups(ctx); err != nil {
		return errors.Join(err, work.say(ctx, "it counts, and waits to be written into the store", err))
	}
	waits, err := work.isRead(ctx)
	switch {
	case err != nil:
		return err
	case waits:
		c.queue.AddAfter(name, lookAgain)
		return work.say(ctx, "the data stays until restores that may need it have ended", nil)
	}
	if err := work.askForRemoval(ctx); err != nil {
		return errors.Join(err, work.say(ctx, "it is in the store, and the removal of the data could not be asked for yet", err))
	}
	// Last: each attempt repeats it under Longhorn's lock, and only its own failure causes one.
	if err := work.deleteLonghorns(ctx); err != nil {
		return errors.Join(err, work.say(ctx, "it counts, and waits until Longhorn's store lets it be carried out", err))
	}
	work.deletion.Status.CompletionTimestamp, work.deletion.Status.Message = &metav1.Time{Time: c.Clock.Now()}, ""
	if err := work.update(ctx); err != nil {
		return err
	}
	c.tell(work.deletion)
	c.queue.AddAfter(name, retention)
	return nil
}

func (c *Controller) retire(ctx context.Context, deletion *enginev1alpha1.VolumeDeletion) error {
	if wait := deletion.Status.CompletionTimestamp.Add(retention).Sub(c.Clock.Now()); wait > 0 {
		c.queue.AddAfter(deletion.Name, min(wait, retention))
		return nil
	}
	err := c.Deletions.Delete(ctx, deletion.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &deletion.UID, ResourceVersion: &deletion.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing VolumeDeletion %s, which is done: %w", deletion.Name, err)
	}
	return nil
}

type work struct {
	*Controller
	deletion *enginev1alpha1.VolumeDeletion

	mu     sync.Mutex
	opened map[string]bucket // by location; guarded by mu
}

func (w *work) close() {
	for _, target := range w.opened {
		_ = target.Close()
	}
}

// changeBackups writes the deletion beside each remaining backup, or records its refusal.
func (w *work) changeBackups(ctx context.Context) error {
	for {
		targets, first := w.deletion.Spec.Targets, int(w.deletion.Status.Processed)
		if first >= len(targets) {
			return nil
		}
		held, err := w.recordedHolds(ctx)
		if err != nil {
			return err
		}
		end := min(first+step, len(targets))
		whys := make([]string, end-first)
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(atOnce)
		for i := first; i < end; i++ {
			group.Go(func() (err error) {
				whys[i-first], err = w.change(groupCtx, &targets[i], held[targets[i].UID])
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for i, why := range whys {
			if why != "" {
				w.deletion.Status.Refused = append(w.deletion.Status.Refused, enginev1alpha1.VolumeDeletionRefusal{Target: int32(first + i), Message: why})
			}
		}
		w.deletion.Status.Processed, w.deletion.Status.Message = int32(end), ""
		if err := w.update(ctx); err != nil {
			return err
		}
	}
}

// recordedHolds returns the requested holds and releases that may not be in the store, by the
// backup's uid.
func (w *work) recordedHolds(ctx context.Context) (map[types.UID]*bool, error) {
	list, err := w.Changes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("finding out which backups are held: %w", err)
	}
	held := map[types.UID]*bool{}
	for i := range list.Items {
		if change := &list.Items[i]; !change.Done() && change.Spec.Hold != nil {
			held[change.Spec.UID] = change.Spec.Hold
		}
	}
	return held, nil
}

type refusal string

func (r refusal) Error() string { return string(r) }

func noLocation(name string) refusal {
	return refusal(fmt.Sprintf("there is no storage location %q", name))
}

// change writes the deletion beside one backup, or returns why that is impossible. hold is a
// request that may not be in the store.
func (w *work) change(ctx context.Context, target *enginev1alpha1.VolumeDeletionTarget, hold *bool) (why string, err error) {
	spec := &w.deletion.Spec
	if target.BackupName != "" {
		return w.refuseLonghorn(target)
	}
	opened, err := w.bucket(ctx, target.StorageLocation)
	if gone, isGone := errors.AsType[refusal](err); isGone {
		return string(gone), nil
	}
	if err != nil {
		return "", err
	}
	of := w.folder(opened, target)
	volume := format.VolumeID{Namespace: spec.Namespace, Name: spec.Volume, Repeat: target.Repeat}
	_, err = of.Change(ctx, opened, w.Cluster, w.Keys, func(backup *v1alpha1.Backup, stands *format.Expiration) (bool, error) {
		if slices.ContainsFunc(stands.Deleted, func(d format.DeletedVolume) bool { return d.VolumeID == volume }) {
			return false, nil
		}
		origin := backup.Status.Origin
		switch held := stands.Hold != nil; {
		case origin == nil || origin.Trust != "" || origin.ClusterUID != w.Cluster.UID || !slices.Contains(w.Keys, origin.PublicKey):
			return false, refusal("the backup is not one of this cluster's own")
		case hold == nil && held, hold != nil && *hold:
			return false, refusal("the backup is held")
		case stands.Number >= mostChanges:
			return false, refusal("the backup has had too many changes: delete the whole backup")
		}
		volumes, err := of.Volumes(ctx, backup)
		if err != nil {
			return false, err
		}
		snapshot, listed := volumes[volume]
		if !listed {
			return false, refusal("the backup has no such volume")
		}
		deleted := format.DeletedVolume{VolumeID: volume, SnapshotID: snapshot, Requester: spec.Ask.Requester.Username, Timestamp: spec.Ask.Timestamp}
		stands.Deleted = append(slices.Clone(stands.Deleted), deleted)
		keepShared(stands.Deleted, volumes)
		stands.Requester, stands.Timestamp, stands.Request = spec.Ask.Requester.Username, spec.Ask.Timestamp, string(w.deletion.UID)
		return true, nil
	})
	refused, isRefusal := errors.AsType[refusal](err)
	switch {
	case err == nil, errors.Is(err, folder.ErrGone):
		return "", nil
	case isRefusal:
		return string(refused), nil
	case errors.Is(err, folder.ErrUnreadable):
		return "the backup's metadata can't be read", nil
	case errors.Is(err, folder.ErrNoList), errors.Is(err, folder.ErrTooMany):
		return err.Error(), nil
	}
	return "", err
}

// keepShared keeps the snapshots that a remaining volume of the backup needs, and frees them when
// none does.
func keepShared(deleted []format.DeletedVolume, volumes map[format.VolumeID]string) {
	goes, needed := map[format.VolumeID]bool{}, map[string]bool{}
	for _, d := range deleted {
		goes[d.VolumeID] = true
	}
	for volume, snapshot := range volumes {
		if !goes[volume] {
			needed[snapshot] = true
		}
	}
	for i := range deleted {
		if d := &deleted[i]; needed[volumes[d.VolumeID]] {
			d.SnapshotID = ""
		} else {
			d.SnapshotID = volumes[d.VolumeID]
		}
	}
}

// isRead reports whether an active restore reads one of the backups. Later restores read the
// change. Longhorn's backups are not restored here.
func (w *work) isRead(ctx context.Context) (bool, error) {
	of := map[types.UID]bool{}
	for i := range w.deleted() {
		if target := &w.deletion.Spec.Targets[i]; target.BackupName == "" {
			of[target.UID] = true
		}
	}
	if len(of) == 0 {
		return false, nil
	}
	list, err := w.Restores.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("finding out whether the backups are being restored: %w", err)
	}
	for i := range list.Items {
		restore := &list.Items[i]
		if from := &restore.Spec.Backup; !restore.Status.Phase.Ended() && (of[from.UID] || from.UID == "") {
			return true, nil
		}
	}
	return false, nil
}

func (w *work) deleted() map[int]bool {
	deleted := map[int]bool{}
	for i := range w.deletion.Spec.Targets {
		deleted[i] = true
	}
	for _, r := range w.deletion.Status.Refused {
		delete(deleted, int(r.Target))
	}
	return deleted
}

// askForRemoval writes a removal of the snapshots into each location's store.
func (w *work) askForRemoval(ctx context.Context) error {
	namespace := w.deletion.Spec.Namespace
	deleted, removals := w.deleted(), map[string]*format.VolumeRemoval{}
	for i, target := range w.deletion.Spec.Targets {
		if !deleted[i] || target.BackupName != "" {
			continue
		}
		removal := removals[target.StorageLocation]
		if removal == nil {
			removal = &format.VolumeRemoval{Request: w.deletion.UID}
			removals[target.StorageLocation] = removal
		}
		removal.Backups = append(removal.Backups, format.RemovalOf{UID: target.UID, StoreName: target.StoreName})
	}
	for name, removal := range removals {
		opened, err := w.bucket(ctx, name)
		if gone, isGone := errors.AsType[refusal](err); isGone {
			klog.FromContext(ctx).Info("The data of deleted volumes stays until the backups go", "namespace", namespace, "reason", string(gone))
			continue
		}
		if err != nil {
			return err
		}
		there := false
		err = try(ctx, func(ctx context.Context) error {
			for _, err := range opened.List(ctx, format.RepositoryPrefix(namespace), store.ListOptions{Recursive: true}) {
				there = err == nil
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !there {
			klog.FromContext(ctx).Info("The repository of a deleted volume is gone already", "namespace", namespace, "storageLocation", name)
			continue
		}
		if err := w.EnsureRepository(ctx, namespace, name); err != nil {
			return fmt.Errorf("having the repository of the namespace %s maintained: %w", namespace, err)
		}
		content, err := format.EncodeVolumeRemoval(*removal)
		if err != nil {
			return err
		}
		err = try(ctx, func(ctx context.Context) error {
			return opened.Put(ctx, format.VolumeRemovalKey(w.Cluster.UID, namespace, removal.Request), content)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *work) folder(opened bucket, target *enginev1alpha1.VolumeDeletionTarget) *folder.Folder {
	return &folder.Folder{
		Place: format.Place{StoreName: target.StoreName, Location: target.StorageLocation, SystemNamespace: w.Namespace},
		Clock: w.Clock, UID: target.UID, Store: opened, Try: try,
	}
}

// bucket opens a location's store once. A missing location is a refusal.
func (w *work) bucket(ctx context.Context, name string) (bucket, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if opened := w.opened[name]; opened != nil {
		return opened, nil
	}
	record, err := w.locations.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, noLocation(name)
	case err != nil:
		return nil, err
	case record.Closed():
		return nil, fmt.Errorf("the storage location %q is not available: %s", name, record.WhyClosed())
	}
	opened, err := w.open(ctx, record)
	if err != nil {
		return nil, err
	}
	w.opened[name] = opened
	return opened, nil
}

func (w *work) update(ctx context.Context) error {
	updated, err := w.Deletions.UpdateStatus(ctx, w.deletion, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("writing how far VolumeDeletion %s is: %w", w.deletion.Name, err)
	}
	w.deletion = updated
	return nil
}

func (w *work) say(ctx context.Context, message string, why error) error {
	if ctx.Err() != nil || w.deletion.Status.Message == message {
		return nil
	}
	w.deletion.Status.Message = message
	if err := w.update(ctx); err != nil {
		return err
	}
	reason := ""
	if why != nil {
		reason = why.Error()
	}
	klog.FromContext(ctx).Info("A deletion of volume backups waits", "volumeDeletion", klog.KObj(w.deletion), "message", message, "reason", reason)
	w.Events.Eventf(reference(w.deletion), nil, corev1.EventTypeWarning, "DeletionWaiting", "Delete", "The deletion of volume backups waits: %s", message)
	return nil
}

func (c *Controller) tell(deletion *enginev1alpha1.VolumeDeletion) {
	refused := len(deletion.Status.Refused)
	if deleted := len(deletion.Spec.Targets) - refused; deleted > 0 {
		c.Events.Eventf(reference(deletion), nil, corev1.EventTypeNormal, "Deleted", "Delete",
			"%s has deleted %d volume backups; their data goes with the next maintenance of the repository, and the space comes back with later ones", deletion.Spec.Ask.Requester.Username, deleted)
	}
	if refused > 0 {
		c.Events.Eventf(reference(deletion), nil, corev1.EventTypeWarning, "NotDeleted", "Delete",
			"%d volume backups were not deleted, and are listed again; the first: %.500s", refused, deletion.Status.Refused[0].Message)
	}
}

func reference(deletion *enginev1alpha1.VolumeDeletion) *corev1.ObjectReference {
	name := deletion.Spec.Volume
	if namespace := deletion.Spec.Namespace; namespace != "" && namespace != deletion.Spec.ListedIn {
		name += "@" + deletion.Spec.Namespace
	}
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "BackupVolume", Namespace: deletion.Spec.ListedIn, Name: name,
	}
}

func try(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}
