// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package backup serves backups: created as a run's record, read from memory.
package backup

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	enginelisters "github.com/holdfast-io/holdfast/pkg/generated/engine/listers/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
	"github.com/holdfast-io/holdfast/pkg/selection"
)

var resource = Resource.GroupResource

// REST creates, gets, lists and watches backups.
type REST struct {
	*virtual.ReadOnly
	strategy     *strategy
	log          *logstore.Log[*v1alpha1.Backup]
	runs         engineclient.BackupRunInterface
	namespaceUID func(ctx context.Context, name string) (types.UID, error)
	authorizer   authorizer.Authorizer
	observe      func(*enginev1alpha1.BackupRun)
	limiter      limiter
}

var (
	_ rest.Creater              = &REST{}
	_ rest.Getter               = &REST{}
	_ rest.Lister               = &REST{}
	_ rest.Watcher              = &REST{}
	_ rest.ShortNamesProvider   = &REST{}
	_ rest.CategoriesProvider   = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// Config is what a REST needs.
type Config struct {
	Scheme *runtime.Scheme
	Log    *logstore.Log[*v1alpha1.Backup]
	// SystemNamespace is where the records live.
	SystemNamespace string
	Runs            engineclient.BackupRunInterface
	Locations       enginelisters.StorageLocationNamespaceLister
	// NamespaceUID finds out which namespace has a name.
	NamespaceUID func(ctx context.Context, name string) (types.UID, error)
	// Authorizer decides on every namespace that a request touches.
	Authorizer authorizer.Authorizer
	// Observe puts a run that was just written or read into the log.
	Observe func(*enginev1alpha1.BackupRun)
	// Load counts the records of a namespace's backups, as Observe was told of them.
	// Those named count in any case.
	Load func(namespace string, coming sets.Set[string]) records.Load
	// Limits are how many backups may wait.
	Limits Limits
}

// NewREST returns the storage of the backups resource.
func NewREST(config Config) (*REST, error) {
	readOnly, err := Resource.ReadOnly(config.Log)
	if err != nil {
		return nil, err
	}
	return &REST{
		ReadOnly: readOnly,
		strategy: &strategy{
			ObjectTyper:     config.Scheme,
			NameGenerator:   names.SimpleNameGenerator,
			systemNamespace: config.SystemNamespace,
			locations:       config.Locations,
		},
		log:          config.Log,
		runs:         config.Runs,
		namespaceUID: config.NamespaceUID,
		authorizer:   config.Authorizer,
		observe:      config.Observe,
		limiter: limiter{
			Limits:          config.Limits,
			systemNamespace: config.SystemNamespace,
			load:            config.Load,
			coming:          map[string][]string{},
		},
	}, nil
}

// nameAttempts is how many names are tried for a backup that wants one, as for other
// resources.
const nameAttempts = 8

// Create implements rest.Creater: it records the request, and who made it, as a
// BackupRun.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	// A name that is taken in a store that has not been read yet is found out before
	// the backup begins.
	if err := r.log.ReadinessCheck(); err != nil {
		return nil, err
	}
	backup, ok := obj.(*v1alpha1.Backup)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Backup: %T", obj))
	}
	rest.FillObjectMetaSystemFields(backup)
	if backup.Name != "" || backup.GenerateName == "" {
		return r.create(ctx, backup, validate, options)
	}
	for range nameAttempts {
		named := backup.DeepCopy()
		named.Name = r.strategy.GenerateName(backup.GenerateName)
		created, err := r.create(ctx, named, validate, options)
		if !apierrors.IsAlreadyExists(err) {
			return created, err
		}
	}
	return nil, apierrors.NewGenerateNameConflict(resource, backup.GenerateName, 1)
}

// create is Create, of one name. The order is that of the costs: first what follows
// from the size of the request, then the rights of the requester, and then all else.
func (r *REST) create(ctx context.Context, backup *v1alpha1.Backup, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := rest.BeforeCreate(r.strategy, ctx, backup); err != nil {
		return nil, err
	}
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the request has no user"))
	}
	namespaces, unreadable := selection.ParseNamespaces(backup.Spec.IncludedNamespaces, backup.Spec.ExcludedNamespaces, nil)
	resources, more := selection.ParseResources(validation.ResourceLists(&backup.Spec), namespaces, nil)
	unreadable = append(unreadable, more...)
	if len(unreadable) == 0 && backup.Namespace != r.strategy.systemNamespace {
		if err := authorize(ctx, r.authorizer, requester, backup.Name, scopes(backup, namespaces, resources)); err != nil {
			return nil, err
		}
	}
	// What can't be read has no scopes, so it is refused in any case.
	if errs := r.strategy.check(backup); len(errs)+len(unreadable) > 0 {
		return nil, apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("Backup").GroupKind(), backup.Name, errs)
	}
	if validate != nil {
		if err := validate(ctx, backup.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if _, exists := r.log.GetObject(backup.Namespace, backup.Name); exists {
		return nil, alreadyExists(backup.Name)
	}
	namespaceUID, err := r.namespaceUID(ctx, backup.Namespace)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("reading the namespace of the backup: %w", err))
	}
	run := &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: format.StoreName(backup.Namespace, backup.Name, r.strategy.systemNamespace)},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef:    v1alpha1.BackupReference{Namespace: backup.Namespace, Name: backup.Name},
			NamespaceUID: namespaceUID,
			Labels:       backup.Labels,
			Annotations:  backup.Annotations,
			Requester:    requesterOf(requester),
			Backup:       backup.Spec,
		},
	}
	done, err := r.limiter.admit(backup, run.Name)
	if err != nil {
		return nil, err
	}
	defer done()
	run, err = r.runs.Create(ctx, run, metav1.CreateOptions{DryRun: options.DryRun})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, alreadyExists(backup.Name)
	case apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err):
		return nil, err // the caller may try again
	case err != nil:
		return nil, apierrors.NewInternalError(fmt.Errorf("recording the backup: %w", err))
	}
	if len(options.DryRun) > 0 {
		return run.AsBackup(), nil
	}
	r.observe(run)
	created, ok := r.log.GetObject(backup.Namespace, backup.Name)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the backup was recorded as BackupRun %q, but can't be shown", run.Name))
	}
	return created, nil
}

// Get implements rest.Getter. A backup that this server has not heard of may
// have been created through another one a moment ago, so its record is looked
// up once.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.ReadOnly.Get(ctx, name, options)
	if !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err) {
		return obj, err
	}
	namespace := genericapirequest.NamespaceValue(ctx)
	run, lookup := r.runs.Get(ctx, format.StoreName(namespace, name, r.strategy.systemNamespace), metav1.GetOptions{})
	if lookup != nil || run.Spec.BackupRef != (v1alpha1.BackupReference{Namespace: namespace, Name: name}) {
		return nil, err
	}
	r.observe(run)
	return r.ReadOnly.Get(ctx, name, options)
}

func requesterOf(requester user.Info) enginev1alpha1.Requester {
	return enginev1alpha1.Requester{
		Username: requester.GetName(),
		UID:      requester.GetUID(),
		Groups:   requester.GetGroups(),
	}
}

func alreadyExists(name string) error {
	err := apierrors.NewAlreadyExists(resource, name)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeFieldValueDuplicate,
		Field:   field.NewPath("metadata", "name").String(),
		Message: "a backup of this name is stored, or waits, already",
	}}
	return err
}
