// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package maintenance maintains the repository of a VolumeRepository, in a Job: it removes the
// snapshots that no backup needs, and lets Kopia reclaim the space. docs/design/maintenance.md says
// why nothing needed is removed.
//
// One process at a time maintains a repository, by a Lease. An overlap after a pause is harmless. A
// repository is opened once, however many backups are deleted.
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
	"github.com/holdfast-io/holdfast/pkg/lease"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/repository"
	"github.com/holdfast-io/holdfast/pkg/repository/opener"
)

// MaxUpload bounds an upload while its repository is maintained.
const MaxUpload = 40 * time.Hour

// CacheBytes bounds a maintenance's cache on disk.
const CacheBytes = 512 << 20

// Maintainer maintains repositories.
type Maintainer struct {
	Namespace string
	Identity  string

	Engine        engineclient.EngineV1alpha1Interface
	Secrets, Keys location.Secrets
	Leases        coordinationclient.LeaseInterface
	// ClusterUID and PublicKeys are as in package identity.
	ClusterUID string
	PublicKeys []string
	Clock      clock.WithDelayedExecution
	// AcceptMissing removes the snapshots of missing backups, however many.
	AcceptMissing bool
	// DryRun only reports the snapshots to remove.
	DryRun bool
	// Verify reads every pack; OnlyVerify does nothing else.
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
		return fmt.Errorf("there is no VolumeRepository %s in %s: take --repo-name and --backup-storage-location from its spec", name, m.Namespace)
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
	err = lease.Exclusively(ctx, m.Leases, name, m.Identity, m.Clock, func(ctx context.Context) error {
		cache, remove := newCache(ctx)
		defer remove()
		opened, err := opener.OpenAt(ctx, m.Secrets, m.Keys, stored, record.Spec.VolumeNamespace, repository.Options{Cache: cache, Damaged: record.Status.Damage.KnownPacks()})
		if err != nil {
			return err
		}
		err = m.MaintainOpened(ctx, opened, stored, record.Spec.VolumeNamespace, result)
		return errors.Join(err, opened.Close(ctx))
	})
	if errors.Is(err, lease.ErrHeld) {
		err = fmt.Errorf("the repository is being maintained: %w", err)
	}
	return err
}

// newCache returns a cache for one maintenance. A full one reads each folder's listing, with a
// request each otherwise.
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

// MaintainOpened maintains an open repository, whose Lease the caller holds, and fills the result.
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
	if !done.LockedUntil.IsZero() {
		result.LockedUntil = &done.LockedUntil
	}
	err = errors.Join(err, failure)
	if ctx.Err() == nil && (m.Verify || done.Kind == repository.MaintenanceFull) {
		err = errors.Join(err, check(ctx, opened, repository.CheckOptions{All: m.Verify, Short: failure != nil}, result))
	}
	return err
}

func check(ctx context.Context, opened *repository.Repository, options repository.CheckOptions, result *Result) error {
	found, err := opened.Check(ctx, options)
	if err != nil {
		return fmt.Errorf("looking for what the store has lost: %w", err)
	}
	result.Check = newCheck(options.All, found)
	return nil
}

// sweep removes the snapshots that no backup needs. The maintenance continues after its errors.
func (m *Maintainer) sweep(ctx context.Context, opened *repository.Repository, stored *enginev1alpha1.StorageLocation, namespace string) (done swept, err error) {
	if m.ClusterUID == "" {
		return done, nil // there is no controller yet to request any
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
