// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
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

	engine "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	holdfast "github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/archive"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/hostpath"
	"github.com/holdfast-io/holdfast/pkg/manifest"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/selection"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	defaultWorkers = 4
	// DefaultBlockWorkers is more than Velero's default of one: a worker here holds a block
	// until its volumes are read and its post hooks have run, and one at a time would leave
	// all nodes but one idle.
	DefaultBlockWorkers = 4
)

// defaultRetry bridges the restart of a server, not its absence: about 15 s.
var defaultRetry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 6}

// Request is one backup to execute.
type Request struct {
	// Backup is the Backup, with its uid, creation time and requester, its spec
	// with the defaults filled in, and its status.startTimestamp. Without a
	// status.expiration it is counted from the start. It is not changed.
	Backup *holdfast.Backup
	// Cluster is recorded in the store; its system namespace decides the backup's
	// name there.
	Cluster format.Cluster
	// Attempt counts the processes that have executed the backup, this one included; zero
	// is one. No two have the same number.
	Attempt int
	// PostHooks is what RunPostHooks gave in this process, whose counts are in the Backup's
	// status. Optional.
	PostHooks PostHooks
}

// StoreName is the backup's name in the store.
func (r Request) StoreName() string {
	return format.StoreName(r.Backup.Namespace, r.Backup.Name, r.Cluster.SystemNamespace)
}

// Store is what this package needs of the backup's storage location.
type Store interface {
	store.Reader
	store.Writer
}

// Dependencies are the clients that a backup works with.
type Dependencies struct {
	Discovery Discovery
	// Client makes requests to the root of the API server, as the one of
	// rest.UnversionedRESTClientFor does. It should have no limit of its own on
	// requests, nor a timeout, which would cut long lists off.
	Client  rest.Interface
	Store   Store
	Volumes Volumes
	// HostPathRoots are the folders of nodes below which persistent volumes of type hostPath
	// are handed over.
	HostPathRoots hostpath.Roots
	// Hooks runs commands in pods.
	Hooks Hooks
	// Policies reads the volume policies of a backup that names some.
	Policies Policies
	Clock    clock.PassiveClock
	// Remover removes what earlier attempts have left. The first needs none.
	Remover store.Remover
	// PageSizes is shared by the backups of a process. Optional.
	PageSizes *PageSizes
	// Progress is told of objects. Optional.
	Progress *Progress
	// Log is that of the backup, which is ended here; others may read it meanwhile. Optional.
	Log *runlog.Log
	// Workers is the number of resources that are read at once. Default 4.
	Workers int
	// BlockWorkers is the number of blocks of pods with hooks that are taken at once.
	// Default DefaultBlockWorkers.
	BlockWorkers int
	// HookTime is how long the hooks of one namespace may run in all. Default DefaultHookTime.
	HookTime time.Duration
	// Timeout is how long after its start a backup runs no more hooks. Zero is no limit.
	Timeout time.Duration
	// Ending is the context of what is left to do when everything was read: it may last a
	// little longer than that of Run, if that ends in between. Optional.
	Ending context.Context
	// Retry says how often, and after which delays, a request to the API server or
	// the store is tried again when it failed in passing. Default: 6 tries in 15 s.
	Retry wait.Backoff
}

// Outcome is how a backup ended.
type Outcome struct {
	// Status has what a run records: a final phase, counts, times and, for a
	// failure, its reason.
	Status holdfast.BackupStatus
	// Stored is true when velero-backup.json is in the store, so that the outcome
	// is durable.
	Stored bool
	// FailedPostHooks says in one line which post hooks failed, so that pods may still be
	// frozen; empty if none did. What is stored says it too.
	FailedPostHooks string
}

// Run executes a backup and returns when it has ended. What can't be read is in
// the outcome's counts; the outcome of a backup that can't be restored is Failed,
// and is stored as well if the store allows it.
//
// The error is for an outcome that is not stored: the store refuses it
// (the outcome is Failed), a backup of another uid has the name in the store
// (nothing of this one is visible), a later attempt has taken over (ErrTakenOver), or ctx ended, and once everything was
// read deps.Ending (nothing of this backup is visible in the store, apart from its owner,
// and side files if it was about to end). A backup that
// an earlier call, or another process, has ended is returned as it is.
func Run(ctx context.Context, request Request, deps Dependencies) (Outcome, error) {
	e := newExecution(ctx, request, deps)
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
	failure := e.contain(func() error { return e.read(ctx) })
	if failure != nil {
		ending = ctx // it may have failed since that has ended
	}
	waiting := waits.ForAnyone(ctx, "its storage location to take what was read")
	defer waiting.End()
	outcome, err := e.end(ending, failure)
	outcome.FailedPostHooks = e.hooks.failedPostHooks()
	e.logger.V(2).Info("Backup ended", "phase", outcome.Status.Phase, "errors", outcome.Status.Errors, "warnings", outcome.Status.Warnings, "stored", outcome.Stored)
	return outcome, err
}

// execution is one backup under way.
type execution struct {
	Dependencies
	request   Request
	storeName string
	folder    *folder.Folder
	logger    klog.Logger
	log       *logbook
	findings  *findings
	// contents are those of the objects that are stored.
	contents format.Contents

	hooks *hooks

	// What was read, for the side files.
	list     format.ResourceList
	manifest manifest.Writer
	volumes  []*format.Volume
	skipped  []format.VolumeInfo
	leftOut  int32
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
		toldErrors: format.NewTold(home, system), toldWarnings: format.NewTold(home, system),
	}
	e.log.Include(request.PostHooks.Log)
	return e
}

// contain turns a panic into an error: what goes wrong in one backup must not end
// the process, and with it all others that run.
func (e *execution) contain(do func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("a bug in Holdfast: panic: %v: please report it with the stack in the controller's log", reason)
			e.logger.Error(err, "Reading for a backup panicked", "stack", string(debug.Stack()))
		}
	}()
	return do()
}

// read makes the tarball, and waits for the volumes. An error means that there
// is no tarball.
func (e *execution) read(ctx context.Context) error {
	collector, err := e.newCollector(ctx)
	if err != nil {
		return err
	}
	tarball, err := e.Store.NewWriter(e.Ending, format.TarballKey(e.storeName))
	if err != nil {
		return err
	}
	defer tarball.Abort()
	sum := sha256.New()
	content := &countingWriter{w: io.MultiWriter(tarball, sum)}
	archived, err := archive.NewWriter(content, e.request.Backup.Status.StartTimestamp.Time, string(e.mark()))
	if err != nil {
		return err
	}
	e.manifest.Comment = string(e.mark())
	collector.sink = newSink(archived, &e.manifest, e.log, e.Progress)
	if len(collector.selectors) > 0 && ptr.Deref(collector.spec.IncludeReferenced, true) {
		collector.sink.along = newAlong()
	}
	volumes, err := collector.collect(ctx)
	if err != nil {
		return err
	}
	collector.warnOfNothing()
	e.log.write(slog.LevelInfo, "all objects are read", slog.Int64("objects", e.Progress.Objects().ItemsBackedUp), slog.Int("volumes", len(volumes.submitted)))
	if err := collector.sink.close(); err != nil {
		return err
	}
	// The tarball stays invisible until the volumes have ended too, so that a
	// backup that is cancelled meanwhile leaves none.
	err = volumes.await(ctx, slices.Clone(volumes.submitted))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		e.findings.fail(subject{}, fmt.Sprintf("wait for the volumes: %v", err))
	}
	// Everything is read.
	ctx = e.Ending
	e.list, e.volumes, e.skipped = collector.sink.list, volumes.conclude(), volumes.notTaken()
	e.leftOut = volumes.leftOut()
	if err := e.removeEarlier(ctx, false); err != nil { // once more: an attempt before may have woken up
		return err
	}
	return e.created(ctx, format.TarballKey(e.storeName), format.ContentOf(content.size, sum), tarball.Commit())
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
	e.Progress.found.Add(int64(after - before)) // what is asked for, and is not there
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

// parseSelectors gives the label selectors of which an object must match one.
// None means that every object matches.
func parseSelectors(spec *holdfast.BackupSpec) ([]labels.Selector, error) {
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

// status is the backup's status at its end.
func (e *execution) status(failure error) holdfast.BackupStatus {
	status := *e.request.Backup.Status.DeepCopy()
	status.Phase = holdfast.BackupPhaseCompleted
	status.FormatVersion = format.FormatVersion
	status.Errors, status.Warnings = e.findings.counts()
	status.Message = e.findings.message()
	objects := e.Progress.Objects()
	status.Progress = &objects
	status.Volumes = volumesProgress(e.volumes, e.leftOut)
	if counts := e.hooks.counts(); counts != nil {
		status.HookStatus = counts
	}
	status.CompletionTimestamp = &metav1.Time{Time: e.Clock.Now()}
	if ttl := e.request.Backup.Spec.TTL.Duration; status.Expiration == nil && status.StartTimestamp != nil && ttl > 0 {
		status.Expiration = &metav1.Time{Time: status.StartTimestamp.Add(ttl)}
	}
	switch {
	case failure != nil:
		status.Phase, status.FailureReason = holdfast.BackupPhaseFailed, failure.Error()
	case status.Errors > 0:
		status.Phase = holdfast.BackupPhasePartiallyFailed
	}
	status.Conditions = format.EndConditions(&status)
	if message := e.findings.leftOut(); message != "" {
		status.Conditions = append(status.Conditions, format.SecretsLeftOut(&status, message))
	}
	return status
}

// volumesProgress is nil for a backup without volumes.
func volumesProgress(volumes []*format.Volume, leftOut int32) *holdfast.BackupVolumesProgress {
	if len(volumes) == 0 && leftOut == 0 {
		return nil
	}
	progress := &holdfast.BackupVolumesProgress{Total: int32(len(volumes)), LeftOut: leftOut}
	for _, volume := range volumes {
		status := &volume.Status
		progress.TotalBytes += status.Progress.TotalBytes
		progress.BytesDone += status.Progress.BytesDone
		if status.Phase == engine.VolumePhaseCompleted {
			progress.Completed++
		} else {
			progress.Failed++
		}
	}
	return progress
}
