// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumedeletion carries out deletions of volume backups: of a volume's whole history,
// or of one.
//
// A VolumeDeletion names the backups, and from when it is recorded the API server shows nothing
// of the volume in them. Here that becomes a change beside the folder of each backup, signed by
// this cluster (folder.Change), which everybody honours who reads the backup: the catalogues,
// restores, the maintenance. Then the removal of the snapshots is asked for in the store, once
// for each location, and the next maintenance of the repository follows it (package
// maintenance). The record goes some time after that.
//
// What it promises:
//   - It removes and rewrites nothing. A backup stays, without the volume. What is deleted is
//     said for good: each later change of the backup repeats it.
//   - It may be stopped anywhere, and two may do the same: what the changes in the store say is
//     not said again, and the removal is asked for under the name of the record.
//   - Nothing is deleted from a backup that is held, in the store or by what is recorded, nor
//     from one that is not this cluster's own by its signature. A hold that comes later counts
//     from then on, for what is left.
//   - A location that is gone lets nothing wait: what lies there is refused.
//   - No snapshot is asked for before the change is in the store, and while a restore that may
//     not have read the change is under way.
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
	// workers is how many deletions are carried out at once, and atOnce how many backups of
	// one are changed.
	workers = 2
	atOnce  = 16
	// step is after how many backups it is written down how far a deletion is.
	step = 200
	// mostChanges is after how many changes of a backup nothing is deleted from it any more: what
	// is left is for holds, and for until when it is kept.
	mostChanges = format.MaxExpirations - 100
	// requestTimeout is how long a store may take for one request.
	requestTimeout = time.Minute
	// lookAgain is how often it is looked whether restores have ended.
	lookAgain = 30 * time.Second
	// retention is how long a record stays that is done: until the catalogues have read the
	// changes in the store, and what they keep on disk is of after that. An API server that
	// was down meanwhile begins with what it has there, and lists the store when that answers.
	retention = 24 * time.Hour
)

// Config is what a Controller needs.
type Config struct {
	// Namespace is the system namespace.
	Namespace string
	// Cluster signs the changes.
	Cluster format.Cluster
	// Keys are all public keys that the cluster has signed with.
	Keys      []string
	Deletions engineclient.VolumeDeletionInterface
	Changes   engineclient.ExpirationChangeInterface
	Restores  engineclient.RestoreRunInterface
	// Secrets with the credentials of the locations.
	Secrets location.Secrets
	// EnsureRepository makes a record of the repository of a namespace at a location, if
	// there is none.
	EnsureRepository func(ctx context.Context, namespace, location string) error
	Events           events.EventRecorder
	Clock            clock.WithTicker

	DeletionInformer engineinformers.VolumeDeletionInformer
	LocationInformer engineinformers.StorageLocationInformer
}

// bucket is what is needed of a storage location.
type bucket interface {
	store.Reader
	io.Closer
	folder.Creator
	Put(ctx context.Context, key string, content []byte) error
}

// Controller carries out deletions of volume backups.
type Controller struct {
	Config
	locations enginelisters.StorageLocationNamespaceLister
	queue     *loop.Loop[string]
	open      func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error)
	// openLonghorn opens a store that Longhorn writes.
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
	// Last, since each turn does it anew, under Longhorn's lock: only its own failure repeats it.
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

// retire removes a record that has been done for long enough, in the version that is.
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

// work is one attempt to carry out a deletion.
type work struct {
	*Controller
	// deletion is the record as it was written last.
	deletion *enginev1alpha1.VolumeDeletion

	mu     sync.Mutex
	opened map[string]bucket // by location; guarded by mu
}

func (w *work) close() {
	for _, target := range w.opened {
		_ = target.Close()
	}
}

// changeBackups writes the deletion beside each backup that it has not been written beside, or
// finds that it can't be.
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

// recordedHolds are the holds that were asked for and may not be in the store, or their
// releases, by the uid of the backup.
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

// refusal says why nothing is deleted from a backup.
type refusal string

func (r refusal) Error() string { return string(r) }

func noLocation(name string) refusal {
	return refusal(fmt.Sprintf("there is no storage location %q", name))
}

// change writes the deletion beside one backup, or says why that can't be done, ever. hold is
// what was asked for and may not be in the store.
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
		return "", nil // nothing is left of it
	case isRefusal:
		return string(refused), nil
	case errors.Is(err, folder.ErrUnreadable):
		return "the backup's metadata can't be read", nil
	case errors.Is(err, folder.ErrNoList), errors.Is(err, folder.ErrTooMany):
		return err.Error(), nil
	}
	return "", err
}

// keepShared takes the snapshots from those that go that a volume of the backup needs which
// stays, and gives them to those that go when none does.
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

// isRead reports whether a restore that has not ended reads one of the backups. One that is
// asked for later reads what is in the store by now. Of Longhorn's backups none is made here.
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

// deleted are the indexes of the targets that were not refused.
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

// askForRemoval leaves in the store of each location that the snapshots are to go.
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

// bucket is the store of a location, opened once. A location that is gone is a refusal.
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

// say writes down, once, what a deletion waits for.
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

// tell tells people what came of a deletion, by an event of the volume.
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

// reference is the BackupVolume, for events.
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
