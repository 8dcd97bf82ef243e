// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package recorded

import (
	"context"
	"maps"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
)

var _ rest.Patcher = &REST[logstore.Object, logstore.Object]{}

// ByMeaning compares specs. Durations with different texts may be equal.
var ByMeaning = func() conversion.Equalities {
	e := equality.Semantic.Copy()
	if err := e.AddFunc(func(a, b v1alpha1.Duration) bool { return a.Duration == b.Duration }); err != nil {
		panic(err) // the function's signature is wrong
	}
	return e
}()

// Update implements rest.Updater, for clients that apply manifests. Server-side apply creates a missing object as
// Create does. A request without a change returns the object. Others are refused with a hint; a dry run shows the
// change, and warns of the refusal.
func (r *REST[T, R]) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	found, err := r.Get(ctx, name, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) && forceAllowCreate {
		asked, err := objInfo.UpdatedObject(ctx, r.New())
		if err != nil {
			return nil, false, err
		}
		created, err := r.Create(ctx, asked, createValidation, &metav1.CreateOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation})
		if !apierrors.IsAlreadyExists(err) {
			return created, err == nil, err
		}
		if found, err = r.Get(ctx, name, &metav1.GetOptions{}); err != nil { // another request came first
			return nil, false, err
		}
	} else if err != nil {
		return nil, false, err
	}
	was := found.(T)
	if preconditions := objInfo.Preconditions(); preconditions != nil && preconditions.UID != nil && *preconditions.UID != was.GetUID() {
		return nil, false, apierrors.NewConflict(r.Resource.GroupResource, name, errPrecondition(*preconditions.UID, was.GetUID()))
	}
	base := was.DeepCopyObject().(T)
	// No manager has any field. Otherwise server-side apply answers with conflicts, which advise to force a
	// change.
	base.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "holdfast-apiserver", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: v1alpha1.SchemeGroupVersion.String(),
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`),
	}})
	updated, err := objInfo.UpdatedObject(ctx, base)
	if err != nil {
		return nil, false, err
	}
	is, ok := updated.(T)
	if !ok {
		return nil, false, apierrors.NewBadRequest("not a " + r.Resource.Singular)
	}
	if updateValidation != nil {
		if err := updateValidation(ctx, is.DeepCopyObject(), was.DeepCopyObject()); err != nil {
			return nil, false, err
		}
	}
	refused := r.changes(ctx, was, is)
	if len(refused) == 0 {
		return was, false, nil
	}
	kinds, _, err := r.Kind.ObjectKinds(was)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	refusal := apierrors.NewInvalid(kinds[0].GroupKind(), name, refused)
	if len(options.DryRun) == 0 {
		return nil, false, refusal
	}
	warning.AddWarning(ctx, "", "without dry run this is refused: "+refusal.ErrStatus.Message)
	is.SetManagedFields(nil)
	return is, false, nil
}

func errPrecondition[T ~string](want, is T) error {
	return field.Invalid(field.NewPath("metadata", "uid"), want, "its uid is "+string(is))
}

// changes names each part of an object that would change, and why it can't.
func (r *REST[T, R]) changes(ctx context.Context, was, is T) (refused field.ErrorList) {
	was, is = was.DeepCopyObject().(T), is.DeepCopyObject().(T)
	// Defaults and unrecorded fields are no change. An earlier option may have recorded more.
	r.Kind.PrepareForCreate(ctx, is)
	r.Kind.Canonicalize(is)
	r.Kind.Canonicalize(was)
	refuse := func(path *field.Path) {
		refused = append(refused, field.Forbidden(path, r.Kind.Unchangeable(was, path.String())))
	}
	metadata := field.NewPath("metadata")
	for _, part := range []struct {
		name    string
		was, is any
	}{
		{"labels", was.GetLabels(), merged(was.GetLabels(), is.GetLabels())},
		{"annotations", was.GetAnnotations(), merged(was.GetAnnotations(), is.GetAnnotations())},
		{"finalizers", was.GetFinalizers(), is.GetFinalizers()},
		{"ownerReferences", was.GetOwnerReferences(), is.GetOwnerReferences()},
	} {
		if !ByMeaning.DeepEqual(part.was, part.is) {
			refuse(metadata.Child(part.name))
		}
	}
	for _, name := range changed(reflect.ValueOf(was).Elem().FieldByName("Spec"), reflect.ValueOf(is).Elem().FieldByName("Spec")) {
		refuse(field.NewPath("spec", name))
	}
	return refused
}

// merged adds labels or annotations that a client need not repeat, such as the server's. The annotation of kubectl
// apply stays as it was.
func merged(was, is map[string]string) map[string]string {
	result := maps.Clone(is)
	delete(result, corev1.LastAppliedConfigAnnotation)
	for key, value := range was {
		_, mentioned := result[key]
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + domain
		ours := strings.HasSuffix(domain, ".holdfast.io") || strings.HasSuffix(domain, ".velero.io")
		if key == corev1.LastAppliedConfigAnnotation || !mentioned && ours {
			if result == nil {
				result = map[string]string{}
			}
			result[key] = value
		}
	}
	return result
}

// changed lists the JSON names of the fields that differ in two structs of one type.
func changed(was, is reflect.Value) (names []string) {
	for i := range was.NumField() {
		name, options, _ := strings.Cut(was.Type().Field(i).Tag.Get("json"), ",")
		switch {
		case name == "" && strings.Contains(options, "inline"):
			names = append(names, changed(was.Field(i), is.Field(i))...)
		case !ByMeaning.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()):
			names = append(names, name)
		}
	}
	return names
}
