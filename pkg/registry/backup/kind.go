// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/warning"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

// DefaultTTL is how long a backup is kept by default.
const DefaultTTL = 30 * 24 * time.Hour

// kind defaults, checks and records new Backups.
type kind struct {
	runtime.ObjectTyper
	names.NameGenerator
	systemNamespace string
	locations       location.Known
	namespaceUID    func(ctx context.Context, name string) (types.UID, error)
	mayUse          func(ctx context.Context, location, namespace string) error
	authorizer      authorizer.Authorizer
	quota           *recorded.Quota
	stored          func(namespace string) int // of a namespace; maxStored bounds them
	maxStored       int
	defaultTTL      time.Duration
	maxTTL          time.Duration
	options         validation.Options
	lastData        func(ctx context.Context, backup *v1alpha1.Backup) ([]types.NamespacedName, error)
}

var _ recorded.Kind[*v1alpha1.Backup, *enginev1alpha1.BackupRun] = &kind{}

func (k *kind) NamespaceScoped() bool { return true }

// PrepareForCreate sets the defaults, which are recorded: a later default location moves no waiting backup.
func (k *kind) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	backup := obj.(*v1alpha1.Backup)
	backup.Status = v1alpha1.BackupStatus{}
	spec := &backup.Spec
	if asked := spec.DefaultVolumesToRestic; asked != nil && *asked {
		spec.DefaultVolumesToFsBackup = new(true)
	}
	if len(spec.IncludedNamespaces) == 0 && backup.Namespace != k.systemNamespace {
		spec.IncludedNamespaces = []string{backup.Namespace}
	}
	if spec.TTL.Duration == 0 {
		spec.TTL = v1alpha1.Duration{Duration: k.defaultTTL}
	}
	if spec.StorageLocation == "" {
		// If it can't be read, faults finds none and says so.
		spec.StorageLocation = k.defaultLocation(ctx)
	}
}

// Validate implements rest.RESTCreateStrategy. It has the cheap checks; Check has the others.
func (k *kind) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateBackupLimits(obj.(*v1alpha1.Backup))
}

// Check implements recorded.Kind. An unreadable selection has no scopes, so it is refused in any case.
func (k *kind) Check(ctx context.Context, backup *v1alpha1.Backup, requester user.Info) (_ *enginev1alpha1.BackupRun, scopes []recorded.Scope, err error) {
	namespaces, unreadable := selection.ParseNamespaces(backup.Spec.IncludedNamespaces, backup.Spec.ExcludedNamespaces, nil)
	resources, more := selection.ParseResources(validation.ResourceLists(&backup.Spec), namespaces, nil)
	unreadable = append(unreadable, more...)
	if len(unreadable) == 0 && backup.Namespace != k.systemNamespace {
		right := recorded.Right{Verb: "create", Resource: v1alpha1.SchemeGroupVersion.WithResource(resource.Resource)}
		if scopes, err = right.Authorize(ctx, k.authorizer, requester, backup.Name, scopesOf(backup, namespaces, resources)); err != nil {
			return nil, scopes, err
		}
	}
	if policy := backup.Spec.ResourcePolicy; len(unreadable) == 0 && policy != nil {
		right := recorded.Right{Verb: "get", Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Of: resource}
		asked, err := right.Authorize(ctx, k.authorizer, requester, backup.Name, []recorded.Scope{
			{Namespace: backup.Namespace, Name: policy.Name, Field: "spec.resourcePolicy", Because: "spec.resourcePolicy names one of them, which is read with their rights"}})
		if scopes = append(scopes, asked...); err != nil {
			return nil, scopes, err
		}
	}
	errs, err := k.faults(ctx, backup)
	if err != nil {
		return nil, scopes, apierrors.NewInternalError(err)
	}
	if len(errs)+len(unreadable) == 0 {
		if err := k.mayUse(ctx, backup.Spec.StorageLocation, backup.Namespace); errors.Is(err, location.ErrNotAllowed) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "storageLocation"), err.Error()))
		} else if err != nil {
			return nil, scopes, apierrors.NewInternalError(err)
		}
	}
	if len(errs)+len(unreadable) > 0 {
		return nil, scopes, apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("Backup").GroupKind(), backup.Name, errs)
	}
	run, err := k.record(ctx, backup, requester)
	return run, scopes, err
}

// scopesOf returns what a tenant's backup reaches outside its namespace. A pattern reaches everywhere, as future
// namespaces.
func scopesOf(backup *v1alpha1.Backup, namespaces *selection.Namespaces, resources *selection.Resources) []recorded.Scope {
	var scopes []recorded.Scope
	reach := func(namespace, because string) []recorded.Scope {
		return append(scopes, recorded.Scope{Namespace: namespace, Field: "spec.includedNamespaces", Because: because})
	}
	for _, name := range namespaces.Explicit() {
		if name != backup.Namespace {
			scopes = reach(name, "spec.includedNamespaces names it")
		}
	}
	if patterns := namespaces.Patterns(); len(patterns) > 0 {
		return reach("", fmt.Sprintf("spec.includedNamespaces has the pattern %q", patterns[0]))
	}
	if resources.TouchesClusterScope() {
		return reach("", "spec asks for cluster-scoped resources")
	}
	return scopes
}

func (k *kind) faults(ctx context.Context, backup *v1alpha1.Backup) (field.ErrorList, error) {
	errs := validation.ValidateBackup(backup, k.options)
	if ttl := backup.Spec.TTL.Duration; k.maxTTL > 0 && ttl > k.maxTTL && backup.Namespace != k.systemNamespace {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ttl"), ttl.String(), fmt.Sprintf("a backup of this namespace may be kept for %s at most (--max-backup-ttl of the API server)", k.maxTTL)))
	}
	at := field.NewPath("spec", "storageLocation")
	name := backup.Spec.StorageLocation
	if name == "" {
		return append(errs, field.Required(at, "no storage location is marked as default: name one, or set spec.default on a StorageLocation")), nil
	}
	location, err := k.locations.Get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		notFound := field.NotFound(at, name)
		notFound.Detail = fmt.Sprintf("no such StorageLocation in namespace %q", k.systemNamespace)
		errs = append(errs, notFound)
	case err != nil:
		return nil, fmt.Errorf("find the storage location %q: %w", name, err)
	case location.Spec.IsLonghorn():
		errs = append(errs, field.Invalid(at, name, "Longhorn writes this store, and Holdfast makes no backups there: name a storage location of the format holdfast"))
	case location.Spec.AsOf() != nil:
		errs = append(errs, field.Invalid(at, name, fmt.Sprintf("it shows its bucket as of %s, and nothing is written there: name a storage location without spec.s3.asOf", location.Spec.AsOf().UTC().Format(time.RFC3339))))
	}
	return errs, nil
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (k *kind) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	backup := obj.(*v1alpha1.Backup)
	warnings := validation.BackupWarnings(&backup.Spec, k.options, field.NewPath("spec"))
	record, err := k.locations.Lister.Get(backup.Spec.StorageLocation) // otherwise its state is unknown
	if err != nil {
		return warnings
	}
	if record.Closed() {
		warnings = append(warnings, fmt.Sprintf("spec.storageLocation: %q is unavailable; the backup waits until it is back", record.Name))
	}
	return warnings
}

// Canonicalize implements rest.RESTCreateStrategy. It runs after the warnings, and drops fields without effect.
func (k *kind) Canonicalize(obj runtime.Object) {
	spec := &obj.(*v1alpha1.Backup).Spec
	spec.Metadata, spec.VeleroFields = v1alpha1.BackupSpecMetadata{}, v1alpha1.VeleroFields{}
	if !k.options.Snapshots {
		spec.CSISnapshotTimeout, spec.ItemOperationTimeout = v1alpha1.Duration{}, v1alpha1.Duration{}
	}
	spec.DropDefaultTimeouts()
}

// defaultLocation returns the first default location by name. Several cause a warning.
func (k *kind) defaultLocation(ctx context.Context) string {
	defaults, err := k.locations.Defaults(ctx)
	if err != nil || len(defaults) == 0 {
		return ""
	}
	if len(defaults) > 1 {
		warning.AddWarning(ctx, "", fmt.Sprintf("spec.storageLocation: the storage locations %s are all marked as default, and %q is taken: name one, or mark one only", strings.Join(defaults, ", "), defaults[0]))
	}
	return defaults[0]
}

func (k *kind) record(ctx context.Context, backup *v1alpha1.Backup, requester user.Info) (*enginev1alpha1.BackupRun, error) {
	uid, err := k.namespaceUID(ctx, backup.Namespace)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("reading the namespace of the backup: %w", err))
	}
	by := recorded.Requester(requester)
	by.Extra = requester.GetExtra() // an authorizer may need it for the right to run hooks
	run := &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: format.StoreName(backup.Namespace, backup.Name, k.systemNamespace)},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef:    v1alpha1.BackupReference{Namespace: backup.Namespace, Name: backup.Name},
			NamespaceUID: uid,
			Labels:       backup.Labels,
			Annotations:  backup.Annotations,
			Requester:    by,
			Backup:       backup.Spec,
		},
	}
	if by := requester.GetExtra()[recorded.ExtraScheduleUID]; len(by) == 1 {
		run.Spec.ScheduleUID = types.UID(by[0])
	}
	return run, nil
}

// RecordName implements recorded.Kind.
func (k *kind) RecordName(backup types.NamespacedName) string {
	return format.StoreName(backup.Namespace, backup.Name, k.systemNamespace)
}

// ObjectName implements recorded.Kind.
func (k *kind) ObjectName(run *enginev1alpha1.BackupRun) types.NamespacedName {
	return types.NamespacedName(run.Spec.BackupRef)
}

// Object implements recorded.Kind.
func (k *kind) Object(run *enginev1alpha1.BackupRun) *v1alpha1.Backup { return run.AsBackup() }

// Unchangeable implements recorded.Kind.
func (k *kind) Unchangeable(backup *v1alpha1.Backup, path string) string {
	if path == "spec.ttl" {
		return fmt.Sprintf("a backup stays as it was asked for; to keep it for longer or shorter: kubectl holdfast backup extend %[1]s -n %[2]s, or POST a BackupExpiration to backups/%[1]s/expiration", backup.Name, backup.Namespace)
	}
	return "a backup stays as it was asked for: create another one, with another name"
}

// Yields implements recorded.Kind. A record has the name of the folder in the store.
func (k *kind) Yields(_, _ *enginev1alpha1.BackupRun) bool { return false }

// NameTaken implements recorded.Kind. A stored backup a.b of the system namespace may have the record's name of
// the backup b of the namespace a. It may be that backup itself, see Projector.
func (k *kind) NameTaken(backup *v1alpha1.Backup, run *enginev1alpha1.BackupRun) error {
	return conflict(backup.Name, "it has ended, and its name in the store belongs to the backup %s in the namespace %s, which is live: wait until that one has gone from the queue and from `kubectl get backupruns`", run.Spec.BackupRef.Name, run.Spec.BackupRef.Namespace)
}
