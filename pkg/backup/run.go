// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/selection"
	"github.com/holdfast-io/holdfast/pkg/snapshots"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	defaultWorkers = 4
	// DefaultBlockWorkers exceeds Velero's one: a worker holds a block until its volumes are read, so
	// one would idle all nodes but one.
	DefaultBlockWorkers = 4
)

// defaultRetry bridges a server's restart: about 15 s.
var defaultRetry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 6}

// Request is one backup to execute.
type Request struct {
	// Backup has its uid, creation time, requester, defaulted spec and status.startTimestamp. An unset
	// status.expiration counts from the start. Run does not change it.
	Backup *v1alpha1.Backup
	// Cluster is recorded in the store; its system namespace decides the backup's name there.
	Cluster format.Cluster
	// Attempt counts the processes that have executed the backup, with this one; zero is one.
	Attempt int
	// Moving: an earlier attempt has noted by Dependencies.Moving that all is read.
	Moving bool
	// PostHooks is RunPostHooks' result, whose counts are in the Backup's status. Optional.
	PostHooks PostHooks
}

// StoreName returns the backup's name in the store.
func (r Request) StoreName() string {
	return format.StoreName(r.Backup.Namespace, r.Backup.Name, r.Cluster.SystemNamespace)
}

// Store is the needed part of a storage location.
type Store interface {
	store.Reader
	store.Writer
}

// Dependencies are the clients of a backup.
type Dependencies struct {
	Discovery Discovery
	// Client makes requests to the API server's root, as rest.UnversionedRESTClientFor. It should have
	// no rate limit and no timeout, which would cut off long lists.
	Client  rest.Interface
	Store   Store
	Volumes Volumes
	// SnapshotClasses lists the cluster's classes. nil: no snapshots.
	SnapshotClasses func(ctx context.Context) ([]snapshots.VolumeSnapshotClass, error)
	// KeepSnapshots leaves snapshots in their storage if spec.snapshotMoveData is unset.
	KeepSnapshots bool
	// MayChooseClass returns nil if the backup's requester may create VolumeSnapshots in a namespace,
	// and a NotAllowedError if not. SnapshotClasses need it.
	MayChooseClass func(ctx context.Context, namespace string) error
	// HostPathRoots are node folders whose hostPath volumes are handed over.
	HostPathRoots hostpath.Roots
	Hooks         Hooks
	// Frozen is told how long hooks froze a pod, while its data was read as ReadFiles, ReadSnapshots or
	// ReadNone. Optional.
	Frozen   func(took time.Duration, read string)
	Policies Policies
	Clock    clock.PassiveClock
	// Remover removes earlier attempts' objects. The first attempt needs none.
	Remover store.Remover
	// Encryption returns the recipients of the objects; nil for none. Optional.
	Encryption func(context.Context) (*encryption.Recipients, error)
	// PageSizes is shared by a process's backups. Optional.
	PageSizes *PageSizes
	Progress  *Progress
	// Log is the backup's log; Run closes it, and others may read it. Optional.
	Log *runlog.Log
	// Workers is the number of resources read at once. Default 4.
	Workers int
	// BlockWorkers is the number of blocks with hooks taken at once. Default DefaultBlockWorkers.
	BlockWorkers int
	// HookTime bounds one namespace's hooks. Default DefaultHookTime.
	HookTime time.Duration
	// Timeout is after the start; then no more hooks run. Zero is no limit.
	Timeout time.Duration
	// Ending is the context for storing the end once everything was read. It may outlive Run's.
	// Optional.
	Ending context.Context
	// Moving durably notes that all is read and stored, and that only snapshots' data is moved from
	// here on, without the cluster. It fails with ErrTakenOver if a later attempt makes the backup.
	// Optional.
	Moving func(ctx context.Context) error
	// Retry is the backoff after temporary failures of API server or store. Default: 6 tries in 15 s.
	Retry wait.Backoff
}

// Outcome is a backup's end.
type Outcome struct {
	Status v1alpha1.BackupStatus
	Stored bool
	// FailedPostHooks lists failed post hooks in one line, after which pods may be frozen. The stored
	// backup has them, too.
	FailedPostHooks string
}

// Run executes a backup and returns when it has ended. Unreadable objects are in the outcome's counts.
// A backup that can't be restored is Failed, and stored if the store allows it. If another call or
// process has ended the backup, Run returns that outcome.
//
// An error says that the outcome is not stored: the store refuses it, another uid has the name, a later
// attempt has taken over (ErrTakenOver), or ctx ended. Once everything was read, deps.Ending counts in
// place of ctx. Then the store shows only the backup's owner and perhaps side files.
func Run(ctx context.Context, request Request, deps Dependencies) (Outcome, error) {
	e := newExecution(ctx, request, deps)
	outcome, err := e.run(ctx)
	if outcome.Stored && (request.Attempt > 1 || e.readStored) {
		e.dropHandover(e.Ending)
	}
	return outcome, err
}

func (e *execution) run(ctx context.Context) (Outcome, error) {
	if outcome, err := e.begin(ctx); err != nil || outcome.Stored {
		return outcome, err
	}
	if outcome, err := e.takeOver(ctx); err != nil || outcome.Stored {
		return outcome, err
	}
	e.logger.V(2).Info("Backup started")
	e.log.write(slog.LevelInfo, "the backup has started", slog.String("backup", e.storeName))
	e.tellPostHooks()
	ending := e.Ending
	failure := e.contain(func() error {
		if e.request.Moving {
			return e.goOn(ctx)
		}
		return e.read(ctx)
	})
	if failure != nil {
		ending = ctx
	}
	waiting := waits.ForAnyone(ctx, "its storage location to take what was read")
	defer waiting.End()
	outcome, err := e.end(ending, failure)
	outcome.FailedPostHooks = e.hooks.failedPostHooks()
	e.logger.V(2).Info("Backup ended", "phase", outcome.Status.Phase, "errors", outcome.Status.Errors, "warnings", outcome.Status.Warnings, "stored", outcome.Stored)
	return outcome, err
}

type execution struct {
	Dependencies
	request   Request
	storeName string
	folder    *folder.Folder
	logger    klog.Logger
	log       *logbook
	findings  *findings
	contents  format.Contents

	hooks *hooks

	list       format.ResourceList
	manifest   manifest.Writer
	volumes    []*format.Volume
	skipped    []format.VolumeInfo
	leftOut    int32
	encryption *encryption.Recipients
	readStored bool
	// hookStatus and encryptionStatus are of the earlier attempt that read the cluster.
	hookStatus       *v1alpha1.HookStatus
	encryptionStatus *v1alpha1.BackupEncryption
}

func newExecution(ctx context.Context, request Request, deps Dependencies) *execution {
	if deps.Workers < 1 {
		deps.Workers = defaultWorkers
	}
	if deps.BlockWorkers < 1 {
		deps.BlockWorkers = DefaultBlockWorkers
	}
	if deps.HookTime <= 0 {
		deps.HookTime = DefaultHookTime
	}
	if deps.Retry.Steps == 0 {
		deps.Retry = defaultRetry
	}
	if deps.Progress == nil {
		deps.Progress = &Progress{}
	}
	if deps.Log == nil {
		deps.Log = runlog.New(deps.Clock)
	}
	if deps.Ending == nil {
		deps.Ending = ctx
	}
	e := &execution{
		Dependencies: deps,
		request:      request,
		storeName:    request.StoreName(),
		log:          &logbook{deps.Log},
		contents:     format.Contents{},
	}
	e.folder = &folder.Folder{
		Place: format.Place{StoreName: e.storeName, Location: request.Backup.Spec.StorageLocation, SystemNamespace: request.Cluster.SystemNamespace},
		Clock: deps.Clock,
		UID:   request.Backup.UID,
		Store: deps.Store,
		Try: func(ctx context.Context, request func(context.Context) error) error {
			return e.retry(ctx, func() error { return request(ctx) })
		},
	}
	e.logger = klog.LoggerWithValues(klog.FromContext(ctx), "backup", e.storeName)
	home, system := request.Backup.Namespace, request.Cluster.SystemNamespace
	e.findings = &findings{
		log: e.log, logger: e.logger, home: home,
		FoundSoFar: format.FoundSoFar{ToldErrors: format.NewTold(home, system), ToldWarnings: format.NewTold(home, system)},
	}
	e.log.Include(request.PostHooks.Log, runlog.MaxIncluded)
	return e
}

// contain turns a panic into an error: one backup's failure must not end others.
func (e *execution) contain(do func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("a bug in Holdfast: panic: %v: please report it with the stack in the controller's log", reason)
			e.logger.Error(err, "Reading for a backup panicked", "stack", string(debug.Stack()))
		}
	}()
	return do()
}

// read makes the tarball, and waits for the volumes. An error means that there is no tarball.
func (e *execution) read(ctx context.Context) error {
	collector, err := e.newCollector(ctx)
	if err != nil {
		return err
	}
	if e.Encryption != nil {
		if err := retried(ctx, e.Retry, func() error {
			return e.retry(ctx, func() (err error) {
				e.encryption, err = e.Encryption(ctx)
				return err
			})
		}); err != nil {
			return fmt.Errorf("prepare the encryption of the objects: %w", err)
		}
	}
	key := e.encryption.Key(e.storeName)
	tarball, err := e.Store.NewWriter(e.Ending, key)
	if err != nil {
		return err
	}
	defer tarball.Abort()
	sum := sha256.New()
	content := &countingWriter{w: io.MultiWriter(tarball, sum)}
	encrypted, err := e.encryption.Encrypt(content)
	if err != nil {
		return err
	}
	archived, err := archive.NewWriter(encrypted, e.request.Backup.Status.StartTimestamp.Time, string(e.mark()))
	if err != nil {
		return err
	}
	e.manifest.Comment = string(e.mark())
	collector.writeTo(archived, &e.manifest)
	collector.sink.digest = e.encryption.Digest
	volumes, err := collector.collect(ctx)
	if err != nil {
		return err
	}
	collector.warnOfNothing()
	e.log.write(slog.LevelInfo, "all objects are read", slog.Int64("objects", e.Progress.Objects().ItemsBackedUp), slog.Int("volumes", len(volumes.submitted)))
	if err := collector.sink.close(); err != nil {
		return err
	}
	if err := encrypted.Close(); err != nil {
		return fmt.Errorf("end the tarball: %w", err)
	}
	// The tarball stays invisible until the volumes have ended or are cut: a cancelled backup leaves
	// none.
	err = volumes.awaitCut(ctx, slices.Clone(volumes.submitted))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		e.findings.fail(subject{}, fmt.Sprintf("wait for the volumes: %v", err))
	}
	// From here on only Ending stops the storing.
	e.list, e.volumes, e.skipped = collector.sink.list, volumes.inOrder(), volumes.notTaken()
	e.leftOut = volumes.leftOut()
	moving, ended := stillMoving(e.volumes)
	e.findings.conclude(ended)
	if err := e.removeEarlier(e.Ending, false); err != nil {
		return err
	}
	if err := e.created(e.Ending, key, format.ContentOf(content.size, sum), tarball.Commit()); err != nil || len(moving) == 0 {
		return err
	}
	if err := e.handOver(e.Ending); err != nil {
		return err
	}
	return e.move(ctx, moving)
}

type countingWriter struct {
	w    io.Writer
	size int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.size += int64(n)
	return n, err
}

func (e *execution) newCollector(ctx context.Context) (*collector, error) {
	spec := &e.request.Backup.Spec
	namespaces, problems := selection.ParseNamespaces(spec.IncludedNamespaces, spec.ExcludedNamespaces, nil)
	wanted, more := selection.ParseResources(selection.ResourceLists{
		IncludedResources:                spec.IncludedResources,
		ExcludedResources:                spec.ExcludedResources,
		IncludeClusterResources:          spec.IncludeClusterResources,
		IncludedNamespaceScopedResources: spec.IncludedNamespaceScopedResources,
		ExcludedNamespaceScopedResources: spec.ExcludedNamespaceScopedResources,
		IncludedClusterScopedResources:   spec.IncludedClusterScopedResources,
		ExcludedClusterScopedResources:   spec.ExcludedClusterScopedResources,
	}, namespaces, nil)
	selectors, err := parseSelectors(spec)
	if err := errors.Join(append(problems, more...).ToAggregate(), err); err != nil {
		return nil, fmt.Errorf("the backup's spec can't be used: %w", err)
	}
	rules, idle, err := parseHooks(&spec.Hooks)
	if err != nil {
		return nil, fmt.Errorf("the backup's spec can't be used: %w", err)
	}
	for _, text := range idle {
		e.findings.warn(subject{}, text)
	}
	e.hooks = e.newHooks(rules)
	policies, err := e.readPolicies(ctx)
	if err != nil {
		return nil, err
	}
	for _, text := range policies.idle() {
		e.findings.warn(subject{}, text)
	}
	classes, err := e.readSnapshotClasses(ctx)
	if err != nil {
		return nil, fmt.Errorf("the backup's spec can't be used: %w", err)
	}
	var found *discovered
	if err := retried(ctx, e.Retry, func() (err error) {
		found, err = discover(ctx, e.Discovery)
		return err
	}); err != nil {
		return nil, err
	}
	before, _ := e.findings.counts()
	found.report(spec, e.findings)
	after, _ := e.findings.counts()
	e.Progress.found.Add(int64(after - before))
	return &collector{
		spec:          spec,
		namespaces:    namespaces,
		wanted:        wanted.Bind(found.resolve),
		selectors:     selectors,
		discovered:    found,
		policies:      policies,
		order:         found.orderOf(spec, e.findings),
		lister:        &lister{client: e.Client, retry: e.Retry, sizes: e.PageSizes},
		mover:         e.Volumes,
		snapshots:     classes,
		workers:       e.Workers,
		hooks:         e.hooks,
		blockWorkers:  e.BlockWorkers,
		hostPathRoots: e.HostPathRoots,
		findings:      e.findings,
		log:           e.log,
		progress:      e.Progress,
		contain:       e.contain,
		own:           ownNamespaces(e.request.Cluster.SystemNamespace),
	}, nil
}

func (c *collector) writeTo(archive tarball, items graph) {
	c.sink = newSink(archive, items, c.log, c.progress)
	if len(c.selectors) > 0 && ptr.Deref(c.spec.IncludeReferenced, true) {
		c.sink.along = newAlong()
	}
}

// parseSelectors returns the selectors. If there are any, an object must match one.
func parseSelectors(spec *v1alpha1.BackupSpec) ([]labels.Selector, error) {
	from := spec.OrLabelSelectors
	if spec.LabelSelector != nil {
		from = []*metav1.LabelSelector{spec.LabelSelector}
	}
	var selectors []labels.Selector
	for _, selector := range from {
		if selector == nil {
			return nil, errors.New("a label selector is null: remove it")
		}
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return nil, fmt.Errorf("a label selector: %w", err)
		}
		if parsed.Empty() {
			return nil, nil
		}
		selectors = append(selectors, parsed)
	}
	return selectors, nil
}

func (e *execution) status(failure error) v1alpha1.BackupStatus {
	status := *e.request.Backup.Status.DeepCopy()
	status.Phase = v1alpha1.BackupPhaseCompleted
	status.FormatVersion = format.FormatVersion
	status.Errors, status.Warnings = e.findings.counts()
	status.Message = e.findings.message()
	objects := e.Progress.Objects()
	status.Progress = &objects
	status.Volumes = volumesProgress(e.volumes, e.leftOut)
	status.Encryption = cmp.Or(e.encryption.Status(), e.encryptionStatus)
	if counts := cmp.Or(e.hooks.counts(), e.hookStatus); counts != nil {
		status.HookStatus = counts
	}
	status.CompletionTimestamp = &metav1.Time{Time: e.Clock.Now()}
	if ttl := e.request.Backup.Spec.TTL.Duration; status.Expiration == nil && status.StartTimestamp != nil && ttl > 0 {
		status.Expiration = &metav1.Time{Time: status.StartTimestamp.Add(ttl)}
	}
	switch {
	case failure != nil:
		status.Phase, status.FailureReason, status.Encryption = v1alpha1.BackupPhaseFailed, failure.Error(), nil
	case status.Errors > 0:
		status.Phase = v1alpha1.BackupPhasePartiallyFailed
	}
	status.Conditions = format.EndConditions(&status)
	if message := e.findings.leftOut(); message != "" {
		status.Conditions = append(status.Conditions, format.SecretsLeftOut(&status, message))
	}
	return status
}

func volumesProgress(volumes []*format.Volume, leftOut int32) *v1alpha1.BackupVolumesProgress {
	if len(volumes) == 0 && leftOut == 0 {
		return nil
	}
	progress := &v1alpha1.BackupVolumesProgress{Total: int32(len(volumes)), LeftOut: leftOut}
	for _, volume := range volumes {
		status := &volume.Status
		progress.TotalBytes += status.Progress.TotalBytes
		progress.BytesDone += status.Progress.BytesDone
		if status.Phase == enginev1alpha1.VolumePhaseCompleted {
			progress.Completed++
			if volume.InStorage() {
				progress.InStorage++
			}
		} else {
			progress.Failed++
		}
	}
	return progress
}
