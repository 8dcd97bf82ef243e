// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/backup"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

// Config is the configuration of a REST.
type Config struct {
	Scheme          *runtime.Scheme
	SystemNamespace string
	Publisher       *Publisher
	Entries         engineclient.ScheduleEntryInterface
	NamespaceUID    func(ctx context.Context, name string) (types.UID, error)
	Backups         *backup.REST
	Options         validation.Options // of the backups
	Authorizer      authorizer.Authorizer
	Clock           clock.PassiveClock
	Limit           int // except in the system namespace; zero is no limit
}

// REST serves schedules.
type REST struct {
	*genericregistry.Store
	config Config
}

var (
	_ rest.StandardStorage      = &REST{}
	_ rest.Patcher              = &REST{}
	_ rest.ShortNamesProvider   = &REST{}
	_ rest.CategoriesProvider   = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// NewREST returns the storage of the schedules resource.
func NewREST(config Config) (*REST, error) {
	r := &REST{config: config}
	store, err := Resource.Store(&written{
		Log: config.Publisher.Log, publisher: config.Publisher, entries: config.Entries,
		quota: newQuota(config), recordName: recordNames(config.SystemNamespace), namespaceUID: config.NamespaceUID, restoreUser: r.restoreUser(),
	}, strategy{ObjectTyper: config.Scheme, NameGenerator: names.SimpleNameGenerator, restoreUser: r.restoreUser(), options: config.Options})
	if err != nil {
		return nil, err
	}
	store.ResetFieldsStrategy = strategy{}
	// Dry runs copy by it.
	store.Storage.Codec = serializer.NewCodecFactory(config.Scheme).LegacyCodec(v1alpha1.SchemeGroupVersion)
	store.BeginCreate = func(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return finished, r.check(ctx, obj.(*v1alpha1.Schedule))
	}
	store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		is, was := obj.(*v1alpha1.Schedule), old.(*v1alpha1.Schedule)
		if !asksOtherwise(r.restoreUser(), was, is) {
			return finished, nil // the user of the backups stays
		}
		return finished, r.check(ctx, is)
	}
	r.Store = store
	return r, nil
}

// restoreUser returns the user of restores in the system namespace. Its schedules are paused until another user
// resumes them, and so takes them over.
func (r *REST) restoreUser() string { return enginev1alpha1.RestoreUser(r.config.SystemNamespace) }

func finished(context.Context, bool) {}

// ShortNames implements rest.ShortNamesProvider.
func (r *REST) ShortNames() []string { return Resource.ShortNames }

// Categories implements rest.CategoriesProvider.
func (r *REST) Categories() []string { return Resource.Categories }

// check returns why the requester may not request the schedule's backups: a refusal is better now than each night.
func (r *REST) check(ctx context.Context, s *v1alpha1.Schedule) error {
	if errs := validation.ValidateSchedule(s); len(errs) > 0 {
		return invalid(s.Name, errs)
	}
	requester, err := recorded.RequesterFrom(ctx)
	if err != nil {
		return err
	}
	if requester.GetName() == r.restoreUser() {
		return nil // it is paused, and a user that resumes it must have the rights
	}
	namespace := genericapirequest.NamespaceValue(ctx)
	right := recorded.Right{Verb: "create", Resource: v1alpha1.SchemeGroupVersion.WithResource("backups")}
	if _, err := right.Authorize(ctx, r.config.Authorizer, requester, s.Name, []recorded.Scope{
		{Namespace: namespace, Field: "metadata.namespace", Because: "a schedule makes them as whoever changed it last"}}); err != nil {
		return ofTemplate(err, s.Name)
	}
	backup := domain.NewBackup(s, r.config.Clock.Now())
	backup.Namespace = namespace
	kind := r.config.Backups.Kind
	kind.PrepareForCreate(ctx, backup)
	if errs := kind.Validate(ctx, backup); len(errs) > 0 {
		return ofTemplate(invalid(s.Name, errs), s.Name)
	}
	_, _, err = kind.Check(ctx, backup, requester)
	return ofTemplate(err, s.Name)
}

func invalid(name string, errs field.ErrorList) error {
	return apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("Schedule").GroupKind(), name, errs)
}

func ofTemplate(err error, name string) error {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return err
	}
	about := status.ErrStatus.DeepCopy()
	if about.Details == nil {
		return err
	}
	about.Details.Group, about.Details.Kind, about.Details.Name = v1alpha1.GroupName, "schedules", name
	var errs field.ErrorList
	for i := range about.Details.Causes {
		cause := &about.Details.Causes[i]
		was := cause.Field
		if rest, ok := strings.CutPrefix(cause.Field, "spec"); ok && (rest == "" || rest[0] == '.') {
			cause.Field = "spec.template" + rest
		}
		if strings.Contains(was, ".") && was != cause.Field {
			about.Message = strings.ReplaceAll(about.Message, was, cause.Field)
			cause.Message = strings.ReplaceAll(cause.Message, was, cause.Field)
		}
		errs = append(errs, &field.Error{Type: field.ErrorType(cause.Type), Field: cause.Field, Detail: cause.Message})
	}
	if len(errs) == 0 {
		return err
	}
	return &apierrors.StatusError{ErrStatus: *about}
}

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	restoreUser string
	options     validation.Options
}

func (strategy) NamespaceScoped() bool { return true }

func (s strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	made := obj.(*v1alpha1.Schedule)
	made.Status, made.Generation = v1alpha1.ScheduleStatus{}, 1
	if s.isRestore(ctx) {
		made.Spec.Paused = true
	}
}

func (s strategy) isRestore(ctx context.Context) bool {
	requester, ok := genericapirequest.UserFrom(ctx)
	return ok && requester.GetName() == s.restoreUser
}

func (s strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	is, was := obj.(*v1alpha1.Schedule), old.(*v1alpha1.Schedule)
	if s.isRestore(ctx) && asksOtherwise(s.restoreUser, was, is) {
		is.Spec.Paused = true
	}
	is.Status, is.Generation = was.Status, was.Generation
	if !equality.Semantic.DeepEqual(is.Spec, was.Spec) {
		is.Generation++
	}
}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateSchedule(obj.(*v1alpha1.Schedule))
}

// ValidateUpdate accepts changed metadata of schedules that break newer rules: otherwise they could not be
// deleted.
func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	is, was := obj.(*v1alpha1.Schedule), old.(*v1alpha1.Schedule)
	if equality.Semantic.DeepEqual(is.Spec, was.Spec) {
		return nil
	}
	return validation.ValidateSchedule(is)
}

func (s strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	return validation.BackupWarnings(&obj.(*v1alpha1.Schedule).Spec.Template.BackupSpec, s.options, field.NewPath("spec", "template"))
}

func (s strategy) WarningsOnUpdate(ctx context.Context, obj, _ runtime.Object) []string {
	return s.WarningsOnCreate(ctx, obj)
}

func (strategy) Canonicalize(runtime.Object)                   {}
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// GetResetFields implements rest.ResetFieldsStrategy: the status has no manager.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// NewTriggerREST returns schedules/trigger with the verb create: a backup now. make requests the backup as the
// schedule's last user, and returns its name.
func NewTriggerREST(schedules *REST, make func(ctx context.Context, schedule *v1alpha1.Schedule, due metav1.Time, triggeredBy string) (string, error)) *recorded.Subresource {
	return &recorded.Subresource{
		Resource: Resource.GroupResource, Singular: Resource.Singular, Body: &v1alpha1.ScheduleTrigger{}, Clock: schedules.config.Clock,
		Record: func(ctx context.Context, request *recorded.Request) (string, error) {
			found, err := schedules.Get(ctx, request.Name, &metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			s := found.(*v1alpha1.Schedule)
			if err := schedules.mayTrigger(s); err != nil {
				return "", err
			}
			due := request.Ask.Timestamp
			made := domain.BackupName(s.Name, due.Time)
			if len(request.DryRun) == 0 {
				if made, err = make(ctx, s, due, request.Requester.GetName()); err != nil {
					return "", err
				}
			}
			request.About.Name, request.About.Kind = made, "backups"
			return fmt.Sprintf("the backup %s is asked for, as %s", made, s.Status.Requester), nil
		},
	}
}

func (r *REST) mayTrigger(s *v1alpha1.Schedule) error {
	if s.Status.Requester == r.restoreUser() {
		return refused(s.Name, "it was restored, and has no user for its backups until a user resumes it: set spec.paused to false first")
	}
	_, _, backups := r.config.Publisher.Schedule(types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	for _, backup := range backups {
		if backup.Waits() {
			return refused(s.Name, fmt.Sprintf("its backup %s waits already, and will hold what there is when it begins", backup.Name))
		}
	}
	if s.DeletionTimestamp != nil {
		return refused(s.Name, "it is being deleted")
	}
	return nil
}

// refused refuses a request because of the schedule's state. A retry does not help.
func refused(name, message string) error {
	return recorded.Conflict(Resource.GroupResource, name, "ScheduleState", fmt.Sprintf("schedule %q: %s", name, message))
}
