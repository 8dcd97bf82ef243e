// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage/names"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/location"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// kind defaults, checks and records new Restores.
type kind struct {
	runtime.ObjectTyper
	names.NameGenerator
	systemNamespace string
	backups         Backups
	ready           func() error
	heldClaims      func(namespace, name string) []types.NamespacedName
	namespaceUID    func(ctx context.Context, name string) (types.UID, error)
	mayUse          func(ctx context.Context, location, namespace string) error
	authorizer      authorizer.Authorizer
	quota           *recorded.Quota
	sameNamespace   func(name string, a, b types.UID) bool
}

var _ recorded.Kind[*v1alpha1.Restore, *enginev1alpha1.RestoreRun] = &kind{}

func (k *kind) NamespaceScoped() bool { return true }

// PrepareForCreate sets the defaults, which are recorded with the request.
func (k *kind) PrepareForCreate(_ context.Context, obj runtime.Object) {
	restore := obj.(*v1alpha1.Restore)
	restore.Status = v1alpha1.RestoreStatus{}
	spec := &restore.Spec
	if spec.BackupNamespace == "" {
		spec.BackupNamespace = restore.Namespace
	}
	if len(spec.Paths) > 0 && spec.ExistingVolumePolicy == "" {
		spec.VolumesOnly, spec.ExistingVolumePolicy = true, v1alpha1.ExistingVolumeOverwrite
	}
	if spec.ExistingResourcePolicy == "" {
		spec.ExistingResourcePolicy = v1alpha1.ExistingResourceNone
	}
	if spec.ExistingVolumePolicy == "" {
		spec.ExistingVolumePolicy = v1alpha1.ExistingVolumeNone
	}
	if spec.PreserveNodePorts == nil {
		spec.PreserveNodePorts = new(false)
	}
	if spec.RestorePVs == nil {
		spec.RestorePVs = new(true)
	}
}

// Validate implements rest.RESTCreateStrategy. It has the cheap checks; Check has the others.
func (k *kind) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateRestoreLimits(obj.(*v1alpha1.Restore))
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (k *kind) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	return validation.RestoreWarnings(&obj.(*v1alpha1.Restore).Spec, field.NewPath("spec"))
}

// Canonicalize implements rest.RESTCreateStrategy. It runs after the warnings, and drops fields without effect.
func (k *kind) Canonicalize(obj runtime.Object) {
	spec := &obj.(*v1alpha1.Restore).Spec
	spec.ItemOperationTimeout, spec.UploaderConfig = v1alpha1.Duration{}, nil
}

// Check implements recorded.Kind. It first finds the backup that the user may read, since the needed rights depend
// on it.
func (k *kind) Check(ctx context.Context, restore *v1alpha1.Restore, requester user.Info) (_ *enginev1alpha1.RestoreRun, scopes []recorded.Scope, err error) {
	errs := validation.ValidateRestore(restore)
	at := field.NewPath("spec")
	tenant := restore.Namespace != k.systemNamespace
	if tenant && restore.Spec.BackupNamespace != restore.Namespace {
		errs = append(errs, field.Forbidden(at.Child("backupNamespace"), fmt.Sprintf("only a Restore in the namespace %q may read another one's backups: create the Restore in %q, and map that to %q in spec.namespaceMapping", k.systemNamespace, restore.Spec.BackupNamespace, restore.Namespace)))
	}
	if len(errs) > 0 {
		return nil, nil, invalid(restore, errs)
	}
	authorize := func(verb string, resource schema.GroupVersionResource, of []recorded.Scope) error {
		right := recorded.Right{Verb: verb, Resource: resource, Of: Resource.GroupResource}
		asked, err := right.Authorize(ctx, k.authorizer, requester, restore.Name, of)
		scopes = append(scopes, asked...)
		return err
	}
	if tenant {
		if err := authorize("get", v1alpha1.SchemeGroupVersion.WithResource("backups"), []recorded.Scope{{Namespace: restore.Namespace, Field: "spec.backupName", Because: "a restore reads a backup"}}); err != nil {
			return nil, scopes, err
		}
	}
	backup, errs, err := k.find(ctx, restore)
	if err != nil {
		return nil, scopes, err
	}
	if len(errs) > 0 {
		return nil, scopes, invalid(restore, errs)
	}
	if err := k.mayUse(ctx, backup.Spec.StorageLocation, restore.Namespace); errors.Is(err, location.ErrNotAllowed) {
		return nil, scopes, invalid(restore, field.ErrorList{field.Forbidden(at.Child("backupName"), err.Error())})
	} else if err != nil {
		return nil, scopes, apierrors.NewInternalError(err)
	}
	reach, errs := reachOf(&restore.Spec, &backup.Spec, k.systemNamespace)
	if len(errs) > 0 {
		return nil, scopes, invalid(restore, errs)
	}
	if tenant {
		if err := authorize("create", v1alpha1.SchemeGroupVersion.WithResource("restores"), reach.scopes(restore)); err != nil {
			return nil, scopes, err
		}
		secrets := corev1.SchemeGroupVersion.WithResource("secrets")
		if err := authorize("get", secrets, reach.moved(restore)); err != nil {
			return nil, scopes, err
		}
		if errs := k.missing(ctx, restore, reach.targets); len(errs) > 0 {
			return nil, scopes, invalid(restore, errs)
		}
	}
	run, err := k.record(ctx, restore, requester, backup, reach)
	return run, scopes, err
}

// missing returns errors for missing namespaces of a tenant's restore, which creates none.
func (k *kind) missing(ctx context.Context, restore *v1alpha1.Restore, targets sets.Set[string]) (errs field.ErrorList) {
	for _, namespace := range sets.List(targets) {
		_, err := k.namespaceUID(ctx, namespace)
		if err == nil {
			continue
		}
		at := field.NewPath("spec", "includedNamespaces")
		for from, to := range restore.Spec.NamespaceMapping {
			if to == namespace {
				at = field.NewPath("spec", "namespaceMapping").Key(from)
			}
		}
		if apierrors.IsNotFound(err) {
			errs = append(errs, field.Invalid(at, namespace, fmt.Sprintf("there is no such namespace, and only a Restore in the namespace %q makes one: create it first", k.systemNamespace)))
		} else {
			errs = append(errs, field.InternalError(at, err))
		}
	}
	return errs
}

func invalid(restore *v1alpha1.Restore, errs field.ErrorList) error {
	return apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("Restore").GroupKind(), restore.Name, errs)
}

func (k *kind) record(ctx context.Context, restore *v1alpha1.Restore, requester user.Info, backup *v1alpha1.Backup, reach reach) (*enginev1alpha1.RestoreRun, error) {
	uid, err := k.namespaceUID(ctx, restore.Namespace)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("reading the namespace of the restore: %w", err))
	}
	by := recorded.Requester(requester)
	if restore.Namespace != k.systemNamespace {
		// For the rights of its writes, and for an authorizer.
		by.Extra = requester.GetExtra()
	}
	// One of several backups of a name has "@" and its location appended.
	bare, _, _ := strings.Cut(backup.Name, "@")
	publicKey := ""
	if origin := backup.Status.Origin; origin != nil && (origin.Trust == v1alpha1.BackupTrustOwn || origin.Trust == v1alpha1.BackupTrustTrusted) {
		publicKey = origin.PublicKey
	}
	return &enginev1alpha1.RestoreRun{
		ObjectMeta: metav1.ObjectMeta{Name: k.RecordName(types.NamespacedName{Namespace: restore.Namespace, Name: restore.Name})},
		Spec: enginev1alpha1.RestoreRunSpec{
			RestoreRef:   v1alpha1.BackupReference{Namespace: restore.Namespace, Name: restore.Name},
			NamespaceUID: uid,
			Labels:       restore.Labels,
			Annotations:  restore.Annotations,
			Requester:    by,
			Backup: enginev1alpha1.RestoreSource{
				RestoredBackup: v1alpha1.RestoredBackup{
					Namespace: backup.Namespace, Name: backup.Name, UID: backup.UID, StorageLocation: backup.Spec.StorageLocation,
				},
				StoreName: format.StoreName(backup.Namespace, bare, k.systemNamespace),
				PublicKey: publicKey,
			},
			Restore:          restore.Spec,
			TargetNamespaces: sets.List(reach.targets),
			ClusterScoped:    reach.clusterScoped,
		},
	}, nil
}

// Admit implements recorded.Kind.
func (k *kind) Admit(restore *v1alpha1.Restore, run *enginev1alpha1.RestoreRun) (func(), error) {
	return k.quota.Admit(restore.Namespace, restore.Name, run.Name)
}

// RecordName implements recorded.Kind.
func (k *kind) RecordName(restore types.NamespacedName) string {
	return format.StoreName(restore.Namespace, restore.Name, k.systemNamespace)
}

// ObjectName implements recorded.Kind.
func (k *kind) ObjectName(run *enginev1alpha1.RestoreRun) types.NamespacedName {
	return types.NamespacedName(run.Spec.RestoreRef)
}

// Object implements recorded.Kind.
func (k *kind) Object(run *enginev1alpha1.RestoreRun) *v1alpha1.Restore { return run.AsRestore() }

// Unchangeable implements recorded.Kind.
func (k *kind) Unchangeable(restore *v1alpha1.Restore, _ string) string {
	return fmt.Sprintf("a restore stays as it was asked for: create another one, with another name; POST a RestoreCancellation to restores/%s/cancel to stop this one", restore.Name)
}

// Yields implements recorded.Kind. A restore of a deleted namespace is not shown in a new one. Its name is free
// there once its end is stored, or if it never began.
func (k *kind) Yields(run, to *enginev1alpha1.RestoreRun) bool {
	return run.Spec.RestoreRef == to.Spec.RestoreRef && run.Status.Phase.Ended() && (run.Status.Stored || run.Status.StartTimestamp == nil) &&
		!k.sameNamespace(run.Spec.RestoreRef.Namespace, run.Spec.NamespaceUID, to.Spec.NamespaceUID)
}

// NameTaken implements recorded.Kind. It is never called: a Restore's name has no dots.
func (k *kind) NameTaken(restore *v1alpha1.Restore, run *enginev1alpha1.RestoreRun) error {
	return conflict(restore.Name, "its record belongs to the restore %s in the namespace %s", run.Spec.RestoreRef.Name, run.Spec.RestoreRef.Namespace)
}
