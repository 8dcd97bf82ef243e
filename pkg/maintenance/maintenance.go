// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maintenance maintains the repository of a VolumeRepository: what a maintenance
// Job does for each of its repositories. It removes the snapshots of backups that are
// deleted, or were cancelled or have failed, and has Kopia reclaim the space.
//
// What it promises:
//   - One process at a time maintains a repository: it holds a Lease of the repository's
//     name, and stops when it loses it. Two that overlap all the same, since one was
//     paused, do no more harm than work twice: Kopia's maintenance keeps the intervals
//     below, whoever ran it, by what it records in the repository.
//   - What is listed stays, and so does what an upload or a restore that runs beside it
//     needs, as shown below.
//   - Whatever number of backups is deleted, a repository is opened once for all of them.
//   - A Result says what was done, or why not.
//
// Why no snapshot goes that a listed backup needs. Whoever deletes a backup, or ends one as
// Failed or Cancelled, leaves a format.Removal in the store for each of its repositories,
// before the backup goes. It may be early, or late, or for a deletion that was given up, and
// who can write to the store can put one there: it only says what to look at. Each time the
// folder of the backup itself is asked whether it needs its snapshots (folder.Needs), by
// reading its objects and not by a listing, and an answer that is no answer, as a denial, or
// metadata that can't be read, lets the snapshots stay. That a backup is gone, once true,
// stays true, since uids are given once: so it does not matter how long the process sleeps
// between looking and removing, nor how many do the same. Snapshots that were made for
// another backup stay, whatever a list of a deleted backup says; of those that bear no uid,
// as Velero's, go only those that the deleted backup listed. Removals of other clusters in
// the same store are not looked at. A removal is kept for MaxUpload, since an upload of a
// backup that was cancelled may end late.
//
// Of a backup that stays, the snapshots of volumes go that a change beside its folder names as
// deleted, which the backup's own cluster has signed (package volumedeletion): a
// format.VolumeRemoval only says at which backups to look. What a change says of that is said
// for good, so it does not matter either how long the process sleeps in between.
//
// Whoever deletes a backup and is then paused for longer than MaxUpload, or dies with its
// cluster, or removes a folder by hand, leaves snapshots that nobody asks for. Before a full
// maintenance therefore each backup of this cluster that has snapshots is asked for in the
// same way. Since there is nobody's word that it is gone but the store's, which may have been
// brought back in part, only snapshots go that are a day old and bear this cluster's uid, and
// if all backups were missing, or more than one and a twentieth, none do, and the Result says
// so, until somebody accepts it.
//
// Why no snapshot goes that a stored backup lists, though it ended without others. A controller
// that was paused may hand over a volume when another one has ended the backup, and the agent
// uploads it: a snapshot for a backup that is there, which nobody can restore, since nobody lists
// it. It goes like those of a missing backup, a day later and within the same bounds, if all of
// this holds:
//   - The backup has ended, restorable. Before that there is no metadata, and its owner's
//     snapshots stay, whatever lists there are.
//   - Its metadata, read after the snapshots were listed, is that of this uid and this folder,
//     signed by a key of this cluster, as this cluster's. A copy of another backup's, one that
//     was made up, another writer's in its place, or what can't be read proves nothing, and
//     everything stays.
//   - The list of its volumes is the one whose digest that metadata has. There is no other one
//     for this uid: the metadata that is published, and the copies of earlier attempts, are
//     created once, and who goes on with a backup revokes those before or carries them through
//     (package backup). So what it does not list it never will.
//   - Each snapshot that the list has in this repository is there. Else somebody has repaired,
//     moved or rewritten snapshots, whose ids change by that, and the list does not say which.
//   - The snapshot was saved after the backup's end. All that a backup lists was saved before,
//     so the list is not all that protects it; and a checkpoint of an upload that failed stays
//     for the next backup's.
//
// What a listed snapshot needs beside it, its extended attributes, stays with it, also if a copy
// of the snapshot goes, which says that it needs the same. If the snapshots of one backup name
// several folders, they all stay.
//
// Why it is safe beside uploads and restores. Nobody waits for anybody, and no Lease
// excludes the agents; it is safe by Kopia's intervals (SafetyFull), which stay as they
// are. Removing takes three steps: a full maintenance marks a content that no snapshot
// needs and that is older than 24 h; a later one drops it from the index, if it was
// marked 1 h before another full maintenance began, and that one ended 4 h before; and
// what no index names any more is removed once it is 24 h old. Each of them first unmarks
// what a snapshot needs again.
//   - What an upload has written itself, and no snapshot names yet, is younger than 24 h,
//     or was named by a checkpoint: Kopia makes one at least every 45 minutes, a
//     snapshot of what has been read so far.
//   - What an upload relies on without writing it, since an earlier snapshot has it, and
//     which is marked then because that is deleted: the upload may have read at its very
//     beginning that the earlier snapshot has it. From the mark it takes two further full
//     maintenances until it is dropped, and ours are 23 h apart, whatever the repository is
//     set to. So it is there for 46 h after the upload has begun, and the last one of those
//     unmarks what a snapshot or a checkpoint names by then. An upload takes MaxUpload at
//     most: then it is cancelled, and one whose agent has lost the cluster has stopped,
//     and saves nothing (package liveness).
//   - A restore reads what its snapshot names. If that is deleted meanwhile, its contents
//     are there for 46 h. What is only moved to another pack can be read where it was for
//     an hour, while a restore reads the index anew after 15 minutes.
//
// What remains: the times are those of the store and of the machines that maintain. Kopia
// refuses to maintain when they differ by more than 5 minutes, and the others don't enter
// but in the age of what they write, of which 24 h are asked. Who shares the repository,
// as a Velero or Kopia's command, maintains it without our Lease, and full ones at
// intervals of their own: with an interval of 12 h the 46 h above are 24, and with
// --safety=none they are none.
package maintenance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/liveness"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// MaxUpload is the longest that an upload may take while its repository is maintained.
const MaxUpload = 40 * time.Hour

// CacheBytes is how much of the disk a maintenance takes at most.
const CacheBytes = 512 << 20

// Maintainer maintains repositories.
type Maintainer struct {
	// Namespace is the system namespace.
	Namespace string
	// Identity is this process's.
	Identity string

	Engine engineclient.EngineV1alpha1Interface
	// Secrets with the credentials of the locations, and Keys of the repositories.
	Secrets, Keys location.Secrets
	// Leases of the repositories.
	Leases coordinationclient.LeaseInterface
	// ClusterUID is that of package identity, and PublicKeys are those that the cluster has
	// signed with.
	ClusterUID string
	PublicKeys []string
	Clock      clock.WithDelayedExecution
	// AcceptMissing has the snapshots go of backups that are missing from the store, however
	// many they are.
	AcceptMissing bool
	// DryRun only says which snapshots would go.
	DryRun bool
	// Verify has every pack read, and OnlyVerify does nothing else.
	Verify, OnlyVerify bool
}

// Maintain maintains the repository of a namespace at a location.
func (m *Maintainer) Maintain(ctx context.Context, volumeNamespace, location string) Result {
	result := Result{Repository: enginev1alpha1.RepositoryName(volumeNamespace, location), Started: m.Clock.Now()}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("volumeRepository", result.Repository))
	err := m.maintain(ctx, &result)
	result.Ended = m.Clock.Now()
	switch {
	case ctx.Err() != nil:
		result.Cancelled = true
		klog.FromContext(ctx).Info("The maintenance was told to stop")
	case err != nil:
		result.Error = err.Error()
		klog.FromContext(ctx).Error(err, "The maintenance failed")
	default:
		klog.FromContext(ctx).Info("Maintained", "kind", result.Kind, "reclaimedBytes", result.ReclaimedBytes, "rewrittenBytes", result.RewrittenBytes, "sweptSnapshots", result.SweptSnapshots, "clockSkewSeconds", result.ClockSkewSeconds, "took", result.Ended.Sub(result.Started))
	}
	return result
}

func (m *Maintainer) maintain(ctx context.Context, result *Result) error {
	name := result.Repository
	record, err := m.Engine.VolumeRepositories(m.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no VolumeRepository %s in %s: --repo-name and --backup-storage-location are those of its spec", name, m.Namespace)
	}
	if err != nil {
		return fmt.Errorf("reading VolumeRepository %s: %w", name, err)
	}
	stored, err := m.Engine.StorageLocations(m.Namespace).Get(ctx, record.Spec.BackupStorageLocation, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the storage location %q does not exist in %s", record.Spec.BackupStorageLocation, m.Namespace)
	}
	if err != nil {
		return fmt.Errorf("reading the storage location %s: %w", record.Spec.BackupStorageLocation, err)
	}
	err = liveness.Exclusively(ctx, m.Leases, name, m.Identity, m.Clock, func(ctx context.Context) error {
		cache, remove := newCache(ctx)
		defer remove()
		opened, err := opener.OpenAt(ctx, m.Secrets, m.Keys, stored, record.Spec.VolumeNamespace, repository.Options{Cache: cache, Damaged: record.Status.Damage.KnownPacks()})
		if err != nil {
			return err
		}
		err = m.MaintainOpened(ctx, opened, stored, record.Spec.VolumeNamespace, result)
		return errors.Join(err, opened.Close(ctx))
	})
	if errors.Is(err, liveness.ErrHeld) {
		err = fmt.Errorf("the repository is being maintained: %w", err)
	}
	return err
}

// newCache makes a cache for one maintenance: a full one reads the listing of each folder of each
// snapshot, and from a bucket each would be a request.
func newCache(ctx context.Context) (cache *repository.Cache, remove func()) {
	dir, err := os.MkdirTemp("", "holdfast-maintenance-")
	if err == nil {
		cache, err = repository.NewCache(dir, CacheBytes)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "There is no cache, so the maintenance makes many requests")
	}
	return cache, func() { _ = os.RemoveAll(dir) }
}

// MaintainOpened maintains a repository that is open, of which the caller holds the Lease, and
// writes into the result what was done.
func (m *Maintainer) MaintainOpened(ctx context.Context, opened *repository.Repository, stored *enginev1alpha1.StorageLocation, namespace string, result *Result) error {
	if m.OnlyVerify {
		return check(ctx, opened, repository.CheckOptions{All: true}, result)
	}
	swept, err := m.sweep(ctx, opened, stored, namespace)
	result.SweptBackups, result.SweptSnapshots = swept.backups, swept.snapshots
	result.WaitingBackups, result.MissingBackups = swept.waiting, swept.missing
	if m.DryRun {
		return err
	}
	done, failure := opened.Maintain(ctx)
	result.Kind, result.ReclaimedBytes, result.RewrittenBytes = string(done.Kind), done.Reclaimed, done.Rewritten
	result.ClockSkewSeconds = int64(done.Skew.Seconds())
	result.SizeBytes, result.Files = done.Size, done.Files
	err = errors.Join(err, failure)
	if ctx.Err() == nil && (m.Verify || done.Kind == repository.MaintenanceFull) {
		err = errors.Join(err, check(ctx, opened, repository.CheckOptions{All: m.Verify, Short: failure != nil}, result))
	}
	return err
}

// check looks for what the store has lost.
func check(ctx context.Context, opened *repository.Repository, options repository.CheckOptions, result *Result) error {
	found, err := opened.Check(ctx, options)
	if err != nil {
		return fmt.Errorf("looking for what the store has lost: %w", err)
	}
	result.Check = newCheck(options.All, found)
	return nil
}

// sweep removes the snapshots of backups that are gone. What it can't do keeps nobody from
// maintaining the repository.
func (m *Maintainer) sweep(ctx context.Context, opened *repository.Repository, stored *enginev1alpha1.StorageLocation, namespace string) (done swept, err error) {
	if m.ClusterUID == "" {
		return done, nil // there is no controller yet, which could have asked for anything
	}
	bucket, err := location.Open(ctx, m.Secrets, stored)
	if err != nil {
		return done, err
	}
	defer bucket.Close()
	kind, err := opened.DueMaintenance(ctx)
	if err != nil {
		return done, err
	}
	s := &sweep{
		missing: kind == repository.MaintenanceFull || m.AcceptMissing || m.DryRun, accept: m.AcceptMissing,
		store: bucket, repository: opened, clock: m.Clock, dryRun: m.DryRun,
		cluster: m.ClusterUID, keys: m.PublicKeys, namespace: namespace, location: stored.Name,
	}
	if done, err = s.run(ctx); err != nil {
		err = fmt.Errorf("removing the snapshots of deleted backups: %w", err)
	}
	return done, err
}
