// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leftovers removes daily what dead processes left in the stores: see docs/maintenance.md,
// "Leftovers in a store".
//
//   - A folder is removed by the usual steps (folder.Deletion), under its owner's uid. It must be this
//     cluster's, have no metadata or copy of it and no record, and be unchanged for MinAge.
//   - A restore's report is removed if it is this cluster's, in its own place, without a record. Two
//     passes a day apart must find its backup missing (folder.Needs), and other backups. Its metadata,
//     which says all that, is last.
//   - Unfinished writes are removed when older than MinAge and than every running backup of this cluster.
//   - Nothing is removed while the clock differs from the store's, or if too many folders would be.
package leftovers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/loop"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	engineinformers "github.com/holdfast-io/holdfast/pkg/generated/engine/informers/externalversions/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/maintenance"
	"github.com/holdfast-io/holdfast/pkg/store"
)

const (
	// MinAge exceeds an upload's duration, and so a backup's, by a day.
	MinAge = maintenance.MaxUpload + 24*time.Hour
	// A location is tidied first soon after the start, then daily.
	first          = 10 * time.Minute
	interval       = 24 * time.Hour
	firstRetry     = 10 * time.Minute
	lastRetry      = 6 * time.Hour
	requestTimeout = time.Minute
	// So many folders may be removed, or one of so many.
	few, oneOf = 10, 20
)

// unfinishedIn are Holdfast's folders: a bucket may have others.
var unfinishedIn = []string{format.BackupsPrefix, format.RestoresPrefix, format.RepositoriesPrefix, format.HoldfastPrefix}

// Config configures a Controller.
type Config struct {
	Namespace, ClusterUID string

	Runs     engineclient.BackupRunInterface
	Restores engineclient.RestoreRunInterface
	Secrets  location.Secrets
	Events   events.EventRecorder
	Clock    clock.WithTicker

	LocationInformer engineinformers.StorageLocationInformer
}

type bucket interface {
	store.Reader
	store.Remover
	io.Closer
	RemoveUnfinished(ctx context.Context, folder string, before time.Time, dryRun bool) (keys []string, err error)
	CheckClock(ctx context.Context, clock clock.PassiveClock) error
}

// Controller removes leftovers.
type Controller struct {
	Config
	locations enginelisters.StorageLocationNamespaceLister
	queue     *loop.Loop[string]
	open      func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error)
	of        map[string]map[string]restoredBackup
	// report, if set, receives what would be removed, and nothing is.
	report func(Leftover)
}

// Leftover is removed from a store, or would be.
type Leftover struct {
	// Key is an object's key, or a folder's with a final slash; empty if Reason is about all.
	Key string `json:"key,omitempty"`
	// Reason says why it is removed, or why nothing is.
	Reason string `json:"reason"`
}

// List reports what a Controller would now remove from a location, and removes nothing. A Controller
// removes restores' reports only when found again a day later. The Config needs no informer, clock or
// recorder.
func List(ctx context.Context, config Config, record *enginev1alpha1.StorageLocation, report func(Leftover)) error {
	if record.Spec.IsLonghorn() {
		return fmt.Errorf("the storage location %s is Longhorn's, so nothing in it is ever removed", record.Name)
	}
	if record.Spec.AsOf() != nil {
		return fmt.Errorf("the storage location %s shows the bucket as of an earlier time, so nothing in it is ever removed: name the location without spec.s3.asOf", record.Name)
	}
	config.Clock = clock.RealClock{}
	return with(config, report).tidy(ctx, record)
}

func with(config Config, report func(Leftover)) *Controller {
	return &Controller{
		Config: config, report: report,
		of: map[string]map[string]restoredBackup{},
		open: func(ctx context.Context, record *enginev1alpha1.StorageLocation) (bucket, error) {
			return location.Open(ctx, config.Secrets, record)
		},
	}
}

// New returns a Controller.
func New(config Config) (*Controller, error) {
	c := with(config, nil)
	c.locations = config.LocationInformer.Lister().StorageLocations(config.Namespace)
	c.queue = loop.New[string](loop.Config{
		Controller: "leftovers", FirstRetry: firstRetry, LastRetry: lastRetry, Clock: config.Clock,
	})
	return c, c.queue.Watch(config.LocationInformer.Informer(), loop.OnChange(func(before, after *enginev1alpha1.StorageLocation) {
		if after != nil && (before == nil || before.UID != after.UID) {
			c.queue.AddAfter(after.Name, first+time.Duration(rand.Int64N(int64(first))))
		}
	}))
}

// Run works until ctx ends and all work has stopped.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, c.sync) }

func (c *Controller) sync(ctx context.Context, name string) error {
	record, err := c.locations.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case !record.Spec.IsWritten():
		return nil
	case !record.Closed():
		if err := c.tidy(ctx, record); err != nil {
			return fmt.Errorf("removing what was left in storage location %s: %w", name, err)
		}
	}
	c.queue.AddAfter(name, interval-time.Duration(rand.Int64N(int64(interval/10))))
	return nil
}

func (c *Controller) tidy(ctx context.Context, record *enginev1alpha1.StorageLocation) error {
	target, err := c.open(ctx, record)
	if err != nil {
		return err
	}
	defer target.Close()
	// All removals depend on age.
	if err := target.CheckClock(ctx, c.Clock); err != nil {
		return err
	}
	before, err := c.oldestWriter(ctx, record.Name)
	if err != nil {
		return err
	}
	var failures []error
	unfinished := 0
	for _, in := range unfinishedIn {
		keys, err := target.RemoveUnfinished(ctx, in, before, c.report != nil)
		if errors.Is(err, store.ErrDenied) {
			klog.FromContext(ctx).Info("The store does not let what is unfinished be removed: allow s3:ListBucketMultipartUploads and s3:AbortMultipartUpload", "storageLocation", record.Name, "err", err)
			break
		}
		if errors.Is(err, errors.ErrUnsupported) {
			klog.FromContext(ctx).Info("The store can't list what is unfinished: let a lifecycle rule of the bucket end incomplete uploads", "storageLocation", record.Name)
			break
		}
		failures = append(failures, err)
		for _, key := range keys {
			c.would(key, "its write has never ended")
		}
		unfinished += len(keys)
	}
	if unfinished > 0 && c.report == nil {
		c.tell(ctx, record, corev1.EventTypeNormal, "LeftoversRemoved", "What %d writes have left that never ended was removed from the store", unfinished)
	}
	found, finished, of, err := c.find(ctx, target)
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	if len(finished) > 0 {
		failures = append(failures, c.tidyRestores(ctx, record, target, finished))
	}
	abandoned := make([]*folder.Deletion, 0, len(found))
	for _, storeName := range found {
		deletion, err := c.judge(ctx, record, target, storeName)
		if err != nil {
			failures = append(failures, err)
		} else if deletion != nil {
			abandoned = append(abandoned, deletion)
		}
	}
	if len(abandoned) > few && len(abandoned)*oneOf > of {
		c.would("", fmt.Sprintf("%d of the %d folders of backups have lost their backup, so the store is doubted and they stay", len(abandoned), of))
		c.tell(ctx, record, corev1.EventTypeWarning, "LeftoversDoubted", "%d of the %d folders of backups in the store have lost their backup, so the store is doubted and they stay: look at %s, and remove by hand what is not needed", len(abandoned), of, format.BackupPrefix(abandoned[0].StoreName))
		return errors.Join(failures...)
	}
	for _, deletion := range abandoned {
		if c.would(format.BackupPrefix(deletion.StoreName), fmt.Sprintf("its backup, with the uid %s, has never ended, and has no record", deletion.UID)) {
			continue
		}
		if err := deletion.RemoveRest(ctx); err != nil {
			failures = append(failures, fmt.Errorf("the folder of %s: %w", deletion.StoreName, err))
			continue
		}
		c.tell(ctx, record, corev1.EventTypeNormal, "LeftoversRemoved", "The folder %s was removed from the store: its backup, with the uid %s, has never ended, and has no record", format.BackupPrefix(deletion.StoreName), deletion.UID)
	}
	return errors.Join(failures...)
}

// oldestWriter returns the time before which no current write began: MinAge ago, or the start of the
// location's oldest running backup.
func (c *Controller) oldestWriter(ctx context.Context, location string) (time.Time, error) {
	runs, err := c.Runs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("list the backups that run, whose unfinished writes are spared: %w", err)
	}
	before := c.Clock.Now().Add(-MinAge)
	for i := range runs.Items {
		run := &runs.Items[i]
		started := run.Status.StartTimestamp
		if run.Spec.Backup.StorageLocation == location && run.Status.Phase.Executing() && started != nil && started.Time.Before(before) {
			before = started.Time
		}
	}
	return before, nil
}

func (c *Controller) find(ctx context.Context, target bucket) (abandoned []string, finished sets.Set[string], of int, err error) {
	finished = sets.Set[string]{}
	var name string
	var young, owned bool
	end := func() {
		if name != "" {
			of++
		}
		if name != "" && owned && !finished.Has(name) && !young {
			abandoned = append(abandoned, name)
		}
	}
	for object, err := range target.List(ctx, format.BackupsPrefix, store.ListOptions{Recursive: true, Unfinished: true}) {
		if err != nil {
			return nil, nil, 0, err
		}
		inner, _, isFolder := strings.Cut(strings.TrimPrefix(object.Key, format.BackupsPrefix), "/")
		if !isFolder || format.ValidateStoreName(inner) != nil {
			continue
		}
		if inner != name {
			end()
			name, young, owned = inner, false, false
		}
		if object.Key == format.MetadataKey(name) || object.Key == format.CopyKey(name) {
			finished.Insert(name)
		}
		owned = owned || object.Key == format.OwnerKey(name)
		young = young || c.Clock.Since(object.ModTime) < MinAge
	}
	end()
	return abandoned, finished, of, nil
}

func (c *Controller) judge(ctx context.Context, record *enginev1alpha1.StorageLocation, target bucket, storeName string) (*folder.Deletion, error) {
	of := c.folder(record, target, storeName)
	logger := klog.FromContext(ctx).WithValues("storageLocation", record.Name, "folder", storeName)
	owner, err := of.Owner(ctx)
	switch {
	case errors.Is(err, folder.ErrUnreadable) || errors.Is(err, store.ErrDenied):
		logger.Info("It is not certain whose the folder of a backup is that never ended, so it stays", "err", err)
		return nil, nil
	case err != nil:
		return nil, err
	case owner == nil || owner.ClusterUID != c.ClusterUID:
		return nil, nil
	}
	of.UID = owner.UID
	deletion := &folder.Deletion{Folder: of, Remover: target, Present: func() error { return c.unknown(ctx, storeName) }}
	if err := deletion.Present(); errors.Is(err, errKnown) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	err = deletion.Look(ctx)
	if refusal := (*folder.Refusal)(nil); errors.As(err, &refusal) || err == nil && deletion.Stored != nil {
		logger.Info("The folder of a backup has changed, so it stays", "err", err)
		return nil, nil
	}
	return deletion, err
}

func (c *Controller) folder(record *enginev1alpha1.StorageLocation, target bucket, storeName string) folder.Folder {
	return folder.Folder{
		Place: format.Place{StoreName: storeName, Location: record.Name},
		Clock: c.Clock,
		Store: target,
		Try:   try,
	}
}

func try(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}

var errKnown = errors.New("it has a record")

func (c *Controller) unknown(ctx context.Context, storeName string) error {
	_, err := c.Runs.Get(ctx, storeName, metav1.GetOptions{})
	if err == nil {
		return errKnown
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *Controller) would(key, reason string) bool {
	if c.report != nil {
		c.report(Leftover{Key: key, Reason: reason})
	}
	return c.report != nil
}

func (c *Controller) tell(ctx context.Context, record *enginev1alpha1.StorageLocation, kind, reason, note string, args ...any) {
	if c.report != nil {
		return
	}
	klog.FromContext(ctx).Info(fmt.Sprintf(note, args...), "storageLocation", record.Name)
	c.Events.Eventf(record, nil, kind, reason, "Tidy", note, args...)
}
