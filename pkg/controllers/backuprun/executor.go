// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backuprun

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/recovery"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
)

// reachTimeout bounds a store's answer. Then a run waits for the store.
const reachTimeout = 10 * time.Second

type executor interface {
	// Reach returns why a run's store does not answer, or nil.
	Reach(ctx context.Context, run *enginev1alpha1.BackupRun) error
	// Execute works on a run until it has ended, ctx ends, or ending does once everything is read. An
	// error means that the outcome is not stored. Here and below, postHooks is RunPostHooks' last
	// result in this process.
	Execute(ctx, ending context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks, volumes backup.Volumes, notes Notes, progress *backup.Progress) (backup.Outcome, error)
	// RunPostHooks runs the post hooks left by an execution; see backup.RunPostHooks.
	RunPostHooks(ctx context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks) backup.PostHooks
	// Abandon ends a run without an executor in the store, unless it had ended there; see backup.Abandon.
	Abandon(ctx context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error)
	// DiscardSnapshots has a repository's next maintenance remove a run's snapshots, unless the stored
	// backup lists them. The run must have ended in the store, or its name must be taken there.
	DiscardSnapshots(ctx context.Context, run *enginev1alpha1.BackupRun, namespace string) error
}

// Executor executes runs with pkg/backup.
type Executor struct {
	Discovery backup.Discovery
	// Client makes requests to the API server's root, without a rate limit.
	Client    rest.Interface
	Secrets   location.Secrets
	Locations enginelisters.StorageLocationNamespaceLister
	Cluster   format.Cluster
	Clock     clock.Clock
	Pods      Pods
	// Kube reads volume policies and the backup encryption key, and reviews access.
	Kube kubernetes.Interface
	// Leads is as in Config.
	Leads func(ctx context.Context) error
	// The following fields are as in backup.Dependencies.
	BlockWorkers      int
	HookTime, Timeout time.Duration
	HostPathRoots     hostpath.Roots
	KeepSnapshots     bool
	SnapshotClasses   func(ctx context.Context) ([]snapshots.VolumeSnapshotClass, error)
	// Logs is optional.
	Logs *runlog.Logs

	pageSizes backup.PageSizes
}

var _ executor = &Executor{}

// Cluster returns this cluster's identity.
func Cluster(ctx context.Context, kube kubernetes.Interface, systemNamespace string) (format.Cluster, error) {
	version, err := kube.Discovery().ServerVersion()
	if err != nil {
		return format.Cluster{}, fmt.Errorf("asking the cluster for its version: %w", err)
	}
	system, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return format.Cluster{}, fmt.Errorf("reading the uid of the cluster: %w", err)
	}
	return format.Cluster{
		SystemNamespace: systemNamespace,
		UID:             string(system.UID),
		GitVersion:      version.GitVersion,
		Major:           version.Major,
		Minor:           version.Minor,
	}, nil
}

// Reach implements executor.
func (e *Executor) Reach(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	bucket, err := e.open(ctx, run)
	if err != nil {
		return err
	}
	defer bucket.Close()
	return bucket.Check(ctx)
}

// Execute implements executor.
func (e *Executor) Execute(ctx, ending context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks, volumes backup.Volumes, notes Notes, progress *backup.Progress) (backup.Outcome, error) {
	if err := e.mayUse(ending, run); err != nil {
		return failed(err), err
	}
	bucket, err := e.open(ending, run)
	if err != nil {
		return failed(err), err
	}
	defer bucket.Close()
	log, end := e.Logs.Begin(run.UID, e.Clock)
	defer end()
	outcome, err := backup.Run(ctx, e.request(run, postHooks), backup.Dependencies{
		Discovery:       e.Discovery,
		Client:          e.Client,
		Store:           bucket,
		Volumes:         volumes,
		SnapshotClasses: e.SnapshotClasses,
		KeepSnapshots:   e.KeepSnapshots,
		MayChooseClass:  reviewed{e.Kube, run.Spec.Requester}.MayChooseClass,
		Hooks:           runHooks{e.Pods, run, notes, e.Leads},
		Frozen:          observeFrozen,
		Policies:        reviewed{e.Kube, run.Spec.Requester},
		Clock:           e.Clock,
		Remover:         bucket,
		PageSizes:       &e.pageSizes,
		Progress:        progress,
		Log:             log,
		BlockWorkers:    e.BlockWorkers,
		HookTime:        e.HookTime,
		Timeout:         e.Timeout,
		HostPathRoots:   e.HostPathRoots,
		Ending:          ending,
		Moving:          notes.Moving,
		Encryption:      e.encryption(run, bucket),
	})
	if errors.Is(err, backup.ErrNameTaken) {
		if failure := backup.Release(ctx, e.request(run, backup.PostHooks{}), backup.Dependencies{Store: bucket, Clock: e.Clock}, bucket); failure != nil {
			klog.FromContext(ctx).Info("The owner of the backup stays in the store", "backupRun", klog.KObj(run), "err", failure)
		}
	}
	return outcome, err
}

// RunPostHooks implements executor.
func (e *Executor) RunPostHooks(ctx context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks) backup.PostHooks {
	return backup.RunPostHooks(ctx, e.request(run, postHooks), backup.Dependencies{
		Client: e.Client, Hooks: runHooks{e.Pods, run, nil, e.Leads}, Clock: e.Clock,
	}, run.Status.PendingHooks)
}

// Abandon implements executor.
func (e *Executor) Abandon(ctx context.Context, run *enginev1alpha1.BackupRun, postHooks backup.PostHooks, phase v1alpha1.BackupPhase, reason string) (backup.Outcome, error) {
	bucket, err := e.open(ctx, run)
	if err != nil {
		return failed(err), err
	}
	defer bucket.Close()
	return backup.Abandon(ctx, e.request(run, postHooks), backup.Dependencies{Store: bucket, Clock: e.Clock}, bucket, phase, reason)
}

// DiscardSnapshots implements executor.
func (e *Executor) DiscardSnapshots(ctx context.Context, run *enginev1alpha1.BackupRun, namespace string) error {
	record, err := e.location(run)
	if err != nil {
		return err
	}
	bucket, err := location.Open(ctx, e.Secrets, record)
	if err != nil {
		return err
	}
	defer bucket.Close()
	found, err := backup.Find(ctx, e.request(run, backup.PostHooks{}), backup.Dependencies{Store: bucket, Clock: e.Clock})
	switch {
	case err != nil:
		return err
	case listsVolumes(found):
		klog.FromContext(ctx).Info("The backup is stored after all, so its snapshots stay", "backupRun", klog.KObj(run), "phase", found.Status.Phase)
		return nil
	}
	content, err := format.EncodeRemoval(format.Removal{UID: run.UID, StoreName: run.Name, RequestedAt: e.Clock.Now().UTC()})
	if err != nil {
		return err
	}
	return bucket.Put(ctx, format.RemovalKey(e.Cluster.UID, namespace, run.UID), content)
}

// open opens the run's storage location. The caller closes it.
func (e *Executor) open(ctx context.Context, run *enginev1alpha1.BackupRun) (*store.Bucket, error) {
	record, err := e.location(run)
	if err != nil {
		return nil, err
	}
	return location.Open(ctx, e.Secrets, record)
}

// mayUse checks the location again: the run has waited since the last check.
func (e *Executor) mayUse(ctx context.Context, run *enginev1alpha1.BackupRun) error {
	record, err := e.location(run)
	if err != nil {
		return err
	}
	return location.Allowed(ctx, record, run.Spec.BackupRef.Namespace, location.LabelsOf(e.Kube.CoreV1()))
}

func (e *Executor) location(run *enginev1alpha1.BackupRun) (*enginev1alpha1.StorageLocation, error) {
	name := run.Spec.Backup.StorageLocation
	record, err := e.Locations.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the storage location %q does not exist any more", name)
	}
	return record, err
}

// encryption returns a run's encryption; nil if its location does not ask for it. Before a backup is
// encrypted for this cluster's key, the store has that key for the recovery keys.
func (e *Executor) encryption(run *enginev1alpha1.BackupRun, bucket *store.Bucket) func(context.Context) (*encryption.Recipients, error) {
	record, err := e.location(run)
	if err == nil && !record.Spec.EncryptsObjects() {
		return nil
	}
	return func(ctx context.Context) (*encryption.Recipients, error) {
		if err != nil {
			return nil, err
		}
		if len(record.Spec.RecoveryKeys) == 0 {
			return nil, fmt.Errorf("the storage location %q asks for encryption and names no recoveryKeys: name one, as docs/install.md describes", record.Name)
		}
		keys, err := encryption.Own(ctx, e.Kube.CoreV1().Secrets(e.Cluster.SystemNamespace))
		if err != nil {
			return nil, err
		}
		if err := recovery.KeepEncryptionKeys(ctx, bucket, e.Cluster, record.Name, keys, record.Spec.RecoveryKeys); err != nil {
			return nil, err
		}
		return keys.For(record.Spec.RecoveryKeys), nil
	}
}

func (e *Executor) request(run *enginev1alpha1.BackupRun, postHooks backup.PostHooks) backup.Request {
	return backup.Request{Backup: run.AsBackup(), Cluster: e.Cluster, Attempt: int(run.Status.Attempts), Moving: isMoving(run), PostHooks: postHooks}
}

func failed(err error) backup.Outcome {
	return backup.Outcome{Status: v1alpha1.BackupStatus{Phase: v1alpha1.BackupPhaseFailed, FailureReason: err.Error()}}
}

func recordOutcome(status *enginev1alpha1.BackupRunStatus, outcome backup.Outcome, now metav1.Time) {
	ended := &outcome.Status
	status.Phase = ended.Phase
	status.Stored = outcome.Stored
	status.AbsentAgents = nil
	status.Errors, status.Warnings = ended.Errors, ended.Warnings
	status.FailureReason, status.Message = ended.FailureReason, ended.Message
	status.ValidationErrors = ended.ValidationErrors
	status.CompletionTimestamp = ended.CompletionTimestamp.DeepCopy()
	if status.CompletionTimestamp == nil {
		status.CompletionTimestamp = &now
	}
	if ended.Expiration != nil {
		status.Expiration = ended.Expiration.DeepCopy()
	}
	if ended.Progress != nil {
		status.Progress = ended.Progress.DeepCopy()
	}
	status.PendingHooks = nil
	if ended.HookStatus != nil {
		status.HookStatus = ended.HookStatus.DeepCopy()
	}
	if ended.Encryption != nil {
		status.Encryption = ended.Encryption.DeepCopy()
	}
	if ended.Volumes != nil {
		status.Volumes = ended.Volumes.DeepCopy()
	}
}

func setProgress(status *enginev1alpha1.BackupRunStatus, progress *backup.Progress, volumes *volumes, waitsFor string) bool {
	before := status.DeepCopy()
	status.Message = waitsFor
	if objects := progress.Objects(); objects != (v1alpha1.BackupProgress{}) {
		status.Progress = &objects
	}
	if counts := volumes.counts(); counts != nil {
		status.Volumes = counts
	}
	status.AbsentAgents = volumes.absent()
	return !equality.Semantic.DeepEqual(before, status)
}
