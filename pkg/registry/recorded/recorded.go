// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package recorded serves resources by records of engine.holdfast.io: a POST writes an object's record, or a
// request into it, for the controllers. Objects are read from memory.
//
// A record is written only with its requester's right, after admission, and under a name of no other object. It is
// shown before the request is answered.
package recorded

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/virtual"
)

// Records is the client of one kind of record.
type Records[R logstore.Object] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (R, error)
	Create(ctx context.Context, record R, options metav1.CreateOptions) (R, error)
	Update(ctx context.Context, record R, options metav1.UpdateOptions) (R, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// Kind has the properties of objects of type T with records of type R.
type Kind[T, R logstore.Object] interface {
	// Validate has only cheap checks.
	rest.RESTCreateStrategy
	names.NameGenerator
	// Check refuses objects that are wrong or that the requester may not create. It returns the record, and the
	// scopes that it asked rights for.
	Check(ctx context.Context, obj T, requester user.Info) (record R, scopes []Scope, err error)
	// Admit lets a record be created, unless there are too many. The caller calls done when the record is
	// observed, or never will be.
	Admit(obj T, record R) (done func(), err error)
	// RecordName returns the name of an object's record.
	RecordName(object types.NamespacedName) string
	// ObjectName names the object of a record.
	ObjectName(record R) types.NamespacedName
	// Object returns the object of a record.
	Object(record R) T
	// Yields reports whether a new record of its name replaces a record: its object has left the namespace, and is
	// kept elsewhere.
	Yields(record, to R) bool
	// Unchangeable says why an object's part at this path does not change, and which request helps.
	Unchangeable(obj T, path string) string
	// NameTaken returns the refusal of a request if the record with the object's name is another object's.
	NameTaken(obj T, record R) error
}

// Config is the configuration of a REST.
type Config[T, R logstore.Object] struct {
	Resource *virtual.Resource[T]
	Kind     Kind[T, R]
	Log      *logstore.Log[T]
	Records  Records[R]
	Observe  func(R)                                               // puts a written or read record into the log
	Planned  func(ctx context.Context, obj T, record R) (T, error) // completes the answer to the dry run of a creation; optional
}

// REST creates, gets, lists and watches objects, and compares them with those that clients apply.
type REST[T, R logstore.Object] struct {
	*virtual.ReadOnly
	Config[T, R]
}

var (
	_ rest.Creater              = &REST[logstore.Object, logstore.Object]{}
	_ rest.Getter               = &REST[logstore.Object, logstore.Object]{}
	_ rest.Lister               = &REST[logstore.Object, logstore.Object]{}
	_ rest.Watcher              = &REST[logstore.Object, logstore.Object]{}
	_ rest.ShortNamesProvider   = &REST[logstore.Object, logstore.Object]{}
	_ rest.CategoriesProvider   = &REST[logstore.Object, logstore.Object]{}
	_ rest.SingularNameProvider = &REST[logstore.Object, logstore.Object]{}
)

// NewREST returns the storage of a resource.
func NewREST[T, R logstore.Object](config Config[T, R]) (*REST[T, R], error) {
	readOnly, err := config.Resource.ReadOnly(config.Log)
	if err != nil {
		return nil, err
	}
	return &REST[T, R]{ReadOnly: readOnly, Config: config}, nil
}

const nameAttempts = 8 // as for other resources

// Create implements rest.Creater: it records the request and its requester.
func (r *REST[T, R]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	// Fail before the work begins if names in a store are not known yet.
	if err := r.Log.ReadinessCheck(); err != nil {
		return nil, err
	}
	asked, ok := obj.(T)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", r.Resource.Singular, obj))
	}
	rest.FillObjectMetaSystemFields(asked)
	if asked.GetName() != "" || asked.GetGenerateName() == "" {
		return r.create(ctx, asked, validate, options)
	}
	for range nameAttempts {
		named := asked.DeepCopyObject().(T)
		named.SetName(r.Kind.GenerateName(asked.GetGenerateName()))
		created, err := r.create(ctx, named, validate, options)
		if !apierrors.IsAlreadyExists(err) {
			return created, err
		}
	}
	return nil, apierrors.NewGenerateNameConflict(r.Resource.GroupResource, asked.GetGenerateName(), 1)
}

// create creates an object with a given name. Cheap checks come first: the size, then the rights, then others.
func (r *REST[T, R]) create(ctx context.Context, obj T, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := rest.BeforeCreate(r.Kind, ctx, obj); err != nil {
		return nil, err
	}
	requester, err := RequesterFrom(ctx)
	if err != nil {
		return nil, err
	}
	scheduleOf(ctx, requester)
	record, scopes, err := r.Kind.Check(ctx, obj, requester)
	if err != nil {
		return nil, err
	}
	if len(scopes) > 0 {
		audit.AddAuditAnnotation(ctx, authorizedAnnotation, strings.Join(places(scopes), ", "))
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if _, exists := r.Log.GetObject(obj.GetNamespace(), obj.GetName()); exists {
		return nil, r.alreadyExists(obj.GetName(), "is stored, or waits, already")
	}
	done, err := r.Kind.Admit(obj, record)
	if err != nil {
		return nil, err
	}
	done = sync.OnceFunc(done)
	defer done()
	asking := record
	record, err = r.Records.Create(ctx, asking, metav1.CreateOptions{DryRun: options.DryRun})
	if apierrors.IsAlreadyExists(err) {
		record, err = r.replace(ctx, asking, options, err)
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, r.alreadyExists(obj.GetName(), "was created a moment ago, or has a record still that is of a lost namespace of this name: choose another name")
	case err != nil:
		return nil, NotRecorded(r.Resource.GroupResource, r.Resource.Singular, obj.GetName(), err)
	}
	if len(options.DryRun) > 0 {
		done()
		return r.dry(ctx, record)
	}
	r.Observe(record)
	created, ok := r.Log.GetObject(obj.GetNamespace(), obj.GetName())
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the %s was recorded as %T %q, but can't be shown", r.Resource.Singular, record, record.GetName()))
	}
	return created, nil
}

func (r *REST[T, R]) dry(ctx context.Context, record R) (runtime.Object, error) {
	obj := r.Kind.Object(record)
	if r.Planned == nil {
		return obj, nil
	}
	planned, err := r.Planned(ctx, obj, record)
	if err != nil {
		return nil, err
	}
	return planned, nil
}

// replace creates a record in the place of one that yields, or returns taken.
func (r *REST[T, R]) replace(ctx context.Context, record R, options *metav1.CreateOptions, taken error) (R, error) {
	var none R
	other, err := r.Records.Get(ctx, record.GetName(), metav1.GetOptions{})
	if err != nil || !r.Kind.Yields(other, record) {
		return none, taken
	}
	if len(options.DryRun) > 0 {
		return record, nil
	}
	err = r.Records.Delete(ctx, other.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: new(other.GetUID()), ResourceVersion: new(other.GetResourceVersion())},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return none, fmt.Errorf("removing the record of a %s that has ended, in another namespace of this name: %w", r.Resource.Singular, err)
	}
	return r.Records.Create(ctx, record, metav1.CreateOptions{})
}

// Get implements rest.Getter. It looks up the record of an unknown object: another server may have just created
// it.
func (r *REST[T, R]) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.ReadOnly.Get(ctx, name, options)
	if !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err) {
		return obj, err
	}
	object := types.NamespacedName{Namespace: genericapirequest.NamespaceValue(ctx), Name: name}
	record, lookup := r.Records.Get(ctx, r.Kind.RecordName(object), metav1.GetOptions{})
	if lookup != nil || r.Kind.ObjectName(record) != object {
		return nil, err
	}
	r.Observe(record)
	return r.ReadOnly.Get(ctx, name, options)
}

func (r *REST[T, R]) alreadyExists(name, why string) error {
	err := apierrors.NewAlreadyExists(r.Resource.GroupResource, name)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeFieldValueDuplicate,
		Field:   field.NewPath("metadata", "name").String(),
		Message: fmt.Sprintf("a %s of this name %s", r.Resource.Singular, why),
	}}
	return err
}

// RequesterFrom returns the user of a request.
func RequesterFrom(ctx context.Context) (user.Info, error) {
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the request has no user"))
	}
	return requester, nil
}

// ExtraScheduleUID is the extra with a schedule's uid in this server's requests for backups as the schedule's
// author. Only authenticators, and users who may impersonate with this extra, can set it too.
const ExtraScheduleUID = "holdfast.io/schedule-uid"

// ExtraSchedule is the schedule as NAMESPACE/NAME. It is set beside ExtraScheduleUID, and for deletions of backups
// that the schedule does not keep.
const ExtraSchedule = "holdfast.io/schedule"

// scheduleAnnotation names in the audit log the schedule that caused a request.
const scheduleAnnotation = "cause.holdfast.io/schedule"

// scheduleOf returns the schedule that caused a request, or "", and notes it in the audit log.
func scheduleOf(ctx context.Context, requester user.Info) string {
	by := requester.GetExtra()[ExtraSchedule]
	if len(by) != 1 {
		return ""
	}
	audit.AddAuditAnnotation(ctx, scheduleAnnotation, by[0])
	return by[0]
}

// Requester returns the user for a record that others read, without the extras, which may tell the credential.
// Callers add these where the user's rights are needed later.
func Requester(requester user.Info) enginev1alpha1.Requester {
	return enginev1alpha1.Requester{
		Username: requester.GetName(),
		UID:      requester.GetUID(),
		Groups:   requester.GetGroups(),
	}
}

// NotRecorded returns the answer to a request whose record could not be written: that it may be tried again, or
// the refusal of a quota, a policy or a webhook, with its code. Other errors are internal, also a missing right of
// this server, which passes.
func NotRecorded(resource schema.GroupResource, kind, name string, err error) error {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || lacksRight(err) {
		return apierrors.NewInternalError(fmt.Errorf("recording the %s: %w", kind, err))
	}
	switch status := answer.Status(); status.Code {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return err // the caller may try again
	case http.StatusForbidden, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		status.Message = fmt.Sprintf("%s %q can't be recorded: %s", resource, name, status.Message)
		if status.Details != nil {
			status.Details = status.Details.DeepCopy()
			status.Details.Group, status.Details.Kind, status.Details.Name = resource.Group, resource.Resource, name
		}
		return &apierrors.StatusError{ErrStatus: status}
	}
	return apierrors.NewInternalError(fmt.Errorf("recording the %s: %w", kind, err))
}

// lacksRight reports whether an authorizer, not a quota or a policy, has refused a request. Only its words tell.
func lacksRight(err error) bool {
	text := err.Error()
	return apierrors.IsForbidden(err) && strings.Contains(text, `User "`) && strings.Contains(text, `" cannot `) && strings.Contains(text, ` resource "`)
}
