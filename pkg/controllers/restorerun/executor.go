// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restorerun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/backup/folder"
	"github.com/holdfast-io/holdfast/pkg/controllers/clusteridentity"
	"github.com/holdfast-io/holdfast/pkg/encryption"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/hooks"
	clusterid "github.com/holdfast-io/holdfast/pkg/identity"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/restore"
	"github.com/holdfast-io/holdfast/pkg/restore/source"
	"github.com/holdfast-io/holdfast/pkg/restore/volumes"
	"github.com/holdfast-io/holdfast/pkg/runlog"
	"github.com/holdfast-io/holdfast/pkg/store"
	"github.com/holdfast-io/holdfast/pkg/waits"
)

const (
	// reachTimeout bounds a store's answer. Then a run waits for the store.
	reachTimeout   = 10 * time.Second
	prepareTimeout = 30 * time.Minute
)

var errNoLocation = errors.New("does not exist any more")

// Executor executes runs with pkg/restore.
type Executor struct {
	// Config is the controller's, for impersonation. Its transport must send nothing once another
	// process may have the work; see lease.Fence.
	Config *rest.Config
	// Kube acts as the controller.
	Kube       kubernetes.Interface
	Client     rest.Interface
	Discovery  restore.Discovery
	Secrets    location.Secrets
	Decryption encryption.Source
	Locations  enginelisters.StorageLocationNamespaceLister
	Runs       engineclient.RestoreRunsGetter
	Namespace  string
	// Cluster is this cluster. Keys are its present and earlier public signing keys.
	Cluster format.Cluster
	Keys    []string
	Clock   clock.PassiveClock
	// HookTime bounds all hooks of a restore.
	HookTime time.Duration
	Workers  int
	// Volumes restores data; nil for none.
	Volumes *volumes.Volumes
	// Snapshots is as in restore.Dependencies.
	Snapshots restore.StoredSnapshots
	// Successions records which namespaces continue others; nil for none.
	Successions *clusteridentity.Successions
	// Logs is optional.
	Logs *runlog.Logs
}

var _ executor = &Executor{}

// Reach implements executor.
func (e *Executor) Reach(ctx context.Context, run *enginev1alpha1.RestoreRun) error {
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
func (e *Executor) Execute(ctx context.Context, run *enginev1alpha1.RestoreRun, progress *Progress) *restore.Ended {
	request := restore.Request{Run: run, SystemNamespace: e.Namespace}
	deps, closeBucket, err := e.prepareAtLast(ctx, run)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return restore.Fail(ctx, request, e.Clock, err)
	}
	defer closeBucket()
	log, end := e.Logs.Begin(run.UID, e.Clock)
	defer end()
	deps.Log, deps.Progress = log, &progress.Progress
	if deps.Volumes != nil {
		progress.Volumes(deps.Volumes.Counts)
	}
	return restore.Run(ctx, request, deps)
}

// Plan computes what a run would do, with its rights. The run has no record.
func (e *Executor) Plan(ctx context.Context, run *enginev1alpha1.RestoreRun) *v1alpha1.RestorePlan {
	deps, closeBucket, err := e.prepare(ctx, run)
	if err != nil {
		return restore.Unplanned(ctx, err)
	}
	defer closeBucket()
	return restore.Plan(ctx, restore.Request{Run: run, SystemNamespace: e.Namespace}, deps)
}

// Stop implements executor.
func (e *Executor) Stop(ctx context.Context, run *enginev1alpha1.RestoreRun) error {
	if e.Volumes == nil {
		return nil
	}
	acting, err := kubernetes.NewForConfig(e.actingFor(run))
	if err != nil {
		return err
	}
	data := e.Volumes.Restorer(run, acting.CoreV1())
	defer data.Close()
	return data.End(ctx)
}

// Forget implements executor.
func (e *Executor) Forget(ctx context.Context, run *enginev1alpha1.RestoreRun) error {
	if e.Volumes == nil {
		return nil
	}
	return e.Volumes.Forget(ctx, run)
}

// Store implements executor.
func (e *Executor) Store(ctx context.Context, run *enginev1alpha1.RestoreRun, ended *restore.Ended) error {
	bucket, err := e.open(ctx, run)
	if err != nil {
		return err
	}
	defer bucket.Close()
	asked := run.AsRestore()
	asked.Status.Origin = &v1alpha1.BackupOrigin{NamespaceUID: run.Spec.NamespaceUID}
	return ended.Store(ctx, bucket, asked, e.Cluster, e.Keys)
}

func (e *Executor) prepareAtLast(ctx context.Context, run *enginev1alpha1.RestoreRun) (deps restore.Dependencies, closeBucket func(), err error) {
	waiting := waits.ForAnyone(ctx, "its storage location, and the cluster, to give what it begins with")
	defer waiting.End()
	backoff := time.Second
	for deadline := e.Clock.Now().Add(prepareTimeout); ; backoff = min(2*backoff, 30*time.Second) {
		deps, closeBucket, err = e.prepare(ctx, run)
		if err == nil || isFinal(err) || e.Clock.Now().After(deadline) {
			return deps, closeBucket, err
		}
		klog.FromContext(ctx).Info("The restore can't be begun, or gone on with; it will be tried again", "err", err)
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return deps, nil, ctx.Err()
		}
	}
}

func isFinal(err error) bool {
	var refused *restore.Refused
	return errors.As(err, &refused) || errors.Is(err, source.ErrRefused) || errors.Is(err, source.ErrNoBackup) || errors.Is(err, encryption.ErrNoKey) ||
		errors.Is(err, store.ErrNotFound) || errors.Is(err, errNoLocation) || location.IsFinal(err)
}

func (e *Executor) prepare(ctx context.Context, run *enginev1alpha1.RestoreRun) (deps restore.Dependencies, closeBucket func(), err error) {
	if err := e.mayUse(ctx, run); err != nil {
		return deps, nil, err
	}
	bucket, err := e.open(ctx, run)
	if err != nil {
		return deps, nil, err
	}
	defer func() {
		if err != nil {
			_ = bucket.Close()
		}
	}()
	from := &run.Spec.Backup
	place := format.Place{StoreName: from.StoreName, Location: from.StorageLocation, SystemNamespace: e.Namespace, Now: e.Clock.Now()}
	backup, err := source.Open(ctx, bucket, place, from.UID, e.Decryption)
	if err != nil {
		return deps, nil, err
	}
	if err := e.trust(run, backup.Metadata); err != nil {
		return deps, nil, err
	}
	doubts, err := e.doubts(run, backup.Metadata)
	if err != nil {
		return deps, nil, err
	}
	backup.Warnings = append(backup.Warnings, doubts...)
	if err := e.leaveOutDeleted(ctx, bucket, place, backup); err != nil {
		return deps, nil, err
	}
	config := e.actingFor(run)
	requests := rest.CopyConfig(config)
	requests.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	writer, err := rest.UnversionedRESTClientFor(requests)
	if err != nil {
		return deps, nil, err
	}
	acting, err := kubernetes.NewForConfig(config)
	if err != nil {
		return deps, nil, err
	}
	deps = restore.Dependencies{
		Backup:     backup,
		Writer:     writer,
		Reader:     e.Client,
		Discovery:  e.Discovery,
		Allowed:    func(ctx context.Context, right restore.Right) (bool, error) { return e.allowed(ctx, run, right) },
		ClusterUID: e.Cluster.UID,
		Look:       restore.DefaultLook,
		Clock:      e.Clock,
		HookTime:   e.HookTime,
		Workers:    e.Workers,
	}
	if run.Spec.RestoreRef.Namespace != e.Namespace {
		deps.Continues = func(ctx context.Context, namespace string, uid types.UID) (bool, error) {
			record, err := e.location(run)
			if err != nil {
				return false, err
			}
			return e.Continues(ctx, record, backup.Metadata.Status.Origin, namespace, uid)
		}
	}
	if deps.Snapshots, err = e.snapshotsOf(run, backup); err != nil {
		return deps, nil, err
	}
	if e.handsOver(run, backup.Metadata.Status.Origin) {
		deps.Succeed = e.Successions.Add
	}
	if modifier := run.Spec.Restore.ResourceModifier; modifier != nil {
		rules, err := acting.CoreV1().ConfigMaps(run.Spec.RestoreRef.Namespace).Get(ctx, modifier.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return deps, nil, fmt.Errorf("the resource modifier can't be read: %w", err)
		}
		if err != nil {
			return deps, nil, &restore.Refused{Reasons: []string{fmt.Sprintf("the resource modifier can't be read: %v", err)}}
		}
		deps.Modifiers = rules.Data
	}
	deps.Hooks = &runHooks{Client: hooks.Client{Kube: acting, Config: config}, runs: e.Runs.RestoreRuns(e.Namespace), run: run}
	if e.Volumes == nil {
		return deps, func() { _ = bucket.Close() }, nil
	}
	data := e.Volumes.Restorer(run, acting.CoreV1())
	deps.Volumes = data
	return deps, func() { data.Close(); _ = bucket.Close() }, nil
}

// leaveOutDeleted marks volumes deleted from a backup. Neither their data nor an empty claim is
// restored.
func (e *Executor) leaveOutDeleted(ctx context.Context, bucket store.Reader, place format.Place, backup *source.Backup) error {
	of := folder.Folder{Place: place, Clock: e.Clock, UID: backup.Metadata.UID, Store: bucket,
		Try: func(ctx context.Context, request func(context.Context) error) error { return request(ctx) }}
	newest, _, err := of.NewestExpiration(ctx, backup.Metadata, e.Cluster.UID, e.Keys)
	if err != nil {
		return fmt.Errorf("find out which volumes were deleted from the backup %s: %w", place.StoreName, err)
	}
	if newest != nil {
		backup.Delete(newest.Deleted)
	}
	return nil
}

func (e *Executor) actingFor(run *enginev1alpha1.RestoreRun) *rest.Config {
	config := rest.CopyConfig(e.Config)
	config.WarningHandler = rest.NoWarnings{} // the restore reads them from the answers; here they would be logged
	if run.Spec.RestoreRef.Namespace == e.Namespace {
		config.Impersonate = rest.ImpersonationConfig{UserName: enginev1alpha1.RestoreUser(e.Namespace)}
		return config
	}
	requester := run.Spec.Requester
	config.Impersonate = rest.ImpersonationConfig{UserName: requester.Username, UID: requester.UID, Groups: requester.Groups, Extra: requester.Extra}
	return config
}

func (e *Executor) allowed(ctx context.Context, run *enginev1alpha1.RestoreRun, right restore.Right) (bool, error) {
	requester := run.Spec.Requester
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range requester.Extra {
		extra[key] = values
	}
	review, err := e.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: requester.Username, UID: requester.UID, Groups: requester.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: right.Verb, Group: right.Group, Resource: right.Resource, Subresource: right.Subresource,
				Namespace: right.Namespace, Name: right.Name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// trust refuses a backup that is not what it says. A wrong signature is never restored. Only
// administrators restore a backup signed neither by this cluster nor by one that the location trusts.
func (e *Executor) trust(run *enginev1alpha1.RestoreRun, backup *v1alpha1.Backup) error {
	origin := backup.Status.Origin
	switch {
	case origin == nil || origin.Trust == v1alpha1.BackupTrustForged:
		message := "it has no origin"
		if origin != nil {
			message = origin.Message
		}
		return &restore.Refused{Reasons: []string{fmt.Sprintf("the backup %s is not as it was made: %s", run.Spec.Backup.StoreName, message)}}
	case run.Spec.Backup.PublicKey != "" && (origin.Trust != "" || origin.PublicKey != run.Spec.Backup.PublicKey):
		return &restore.Refused{Reasons: []string{fmt.Sprintf("the backup %s is not signed as it was when the restore was asked for: look at it, and ask again", run.Spec.Backup.StoreName)}}
	case run.Spec.RestoreRef.Namespace == e.Namespace:
		return nil
	case run.Spec.Requester.Username == "":
		return &restore.Refused{Reasons: []string{"nobody knows who asked for the restore, with whose rights it would write"}}
	}
	if vouched, err := e.vouched(run, origin); vouched || err != nil {
		return err
	}
	return &restore.Refused{Reasons: []string{fmt.Sprintf("the backup %s was not made by this cluster, nor by one that its storage location trusts: only a restore in the namespace %s takes it", run.Spec.Backup.StoreName, e.Namespace)}}
}

// doubts returns a backup's doubts, for the results: the request's answer told them only once.
func (e *Executor) doubts(run *enginev1alpha1.RestoreRun, backup *v1alpha1.Backup) ([]string, error) {
	vouched, err := e.vouched(run, backup.Status.Origin)
	if err != nil {
		return nil, err
	}
	return format.Doubts(run.Spec.Backup.Name, &backup.Status, vouched), nil
}

// vouched reports whether a backup is signed by this cluster, or by one that its location trusts with
// the restore's namespace. For an administrator's restore, trust with any suffices.
func (e *Executor) vouched(run *enginev1alpha1.RestoreRun, origin *v1alpha1.BackupOrigin) (bool, error) {
	switch {
	case origin.Trust != "":
		return false, nil
	case e.own(origin):
		return true, nil
	}
	record, err := e.location(run)
	if err != nil {
		return false, err
	}
	namespace := run.Spec.RestoreRef.Namespace
	return grants(record, origin, namespace, namespace == e.Namespace), nil
}

// Continues reports whether a backup's namespace has the history of the present one of its name. That
// is so if they are the same, if this one continues it, or if the location trusts the backup's cluster
// with it.
func (e *Executor) Continues(ctx context.Context, record *enginev1alpha1.StorageLocation, origin *v1alpha1.BackupOrigin, namespace string, uid types.UID) (bool, error) {
	if grants(record, origin, namespace, false) {
		return true, nil
	}
	if !e.own(origin) || uid == "" {
		return false, nil
	}
	live, err := e.Kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil // no user has rights in it
	case err != nil:
		return false, err
	case live.UID == uid:
		return true, nil
	}
	published, err := e.Kube.CoreV1().ConfigMaps(e.Namespace).Get(ctx, clusterid.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	return clusterid.SuccessionsOf(published).Same(namespace, uid, live.UID), nil
}

// grants reports whether a location trusts a backup's signer with a namespace, or with any.
func grants(location *enginev1alpha1.StorageLocation, origin *v1alpha1.BackupOrigin, namespace string, orAny bool) bool {
	return slices.ContainsFunc(location.Spec.TrustedClusters, func(trusted enginev1alpha1.TrustedCluster) bool {
		return trusted.PublicKey == origin.PublicKey && trusted.UID == origin.ClusterUID && (orAny || len(trusted.Namespaces) == 0 || slices.Contains(trusted.Namespaces, namespace))
	})
}

func (e *Executor) own(origin *v1alpha1.BackupOrigin) bool {
	return origin.Trust == "" && origin.ClusterUID == e.Cluster.UID && slices.Contains(e.Keys, origin.PublicKey)
}

// handsOver reports whether a new namespace gets the backup namespace's history. That takes an
// administrator's restore, and this cluster's signature.
func (e *Executor) handsOver(run *enginev1alpha1.RestoreRun, origin *v1alpha1.BackupOrigin) bool {
	return e.Successions != nil && run.Spec.RestoreRef.Namespace == e.Namespace && e.own(origin)
}

// open opens the run's storage location. The caller closes it.
func (e *Executor) open(ctx context.Context, run *enginev1alpha1.RestoreRun) (*store.Bucket, error) {
	record, err := e.location(run)
	if err != nil {
		return nil, err
	}
	return location.Open(ctx, e.Secrets, record)
}

// mayUse checks the location again: the run has waited since the last check.
func (e *Executor) mayUse(ctx context.Context, run *enginev1alpha1.RestoreRun) error {
	record, err := e.location(run)
	if err != nil {
		return err
	}
	return location.Allowed(ctx, record, run.Spec.RestoreRef.Namespace, location.LabelsOf(e.Kube.CoreV1()))
}

func (e *Executor) location(run *enginev1alpha1.RestoreRun) (*enginev1alpha1.StorageLocation, error) {
	name := run.Spec.Backup.StorageLocation
	record, err := e.Locations.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the storage location %q %w", name, errNoLocation)
	}
	return record, err
}
