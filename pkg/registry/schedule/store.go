// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/logstore"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
	domain "github.com/holdfast-io/holdfast/pkg/schedule"
)

// written is a log whose clients' writes go into the records. Each write is decided on the cluster's record, and
// has its version, so it fails if there is a newer one.
type written struct {
	*logstore.Log[object]
	publisher    *Publisher
	entries      engineclient.ScheduleEntryInterface
	quota        *recorded.Quota
	recordName   func(types.NamespacedName) string
	restoreUser  string
	namespaceUID func(ctx context.Context, name string) (types.UID, error)
}

var _ storage.Interface = &written{}

func newQuota(config Config) *recorded.Quota {
	return &recorded.Quota{
		Resource: Resource.GroupResource,
		Limit: func(namespace string) (limit int, flag string) {
			if namespace == config.SystemNamespace {
				return 0, ""
			}
			return config.Limit, "--schedules-per-namespace"
		},
		Load:       config.Publisher.load,
		Unfinished: "namespace %[2]q has %[1]d schedules, and at most %[4]d may be there (%[5]s of the API server): delete one first",
	}
}

func nameIn(key string) types.NamespacedName {
	namespace, name, _ := strings.Cut(strings.TrimPrefix(key, logstore.Prefix(Resource.GroupResource)), "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// current observes the cluster's record of a schedule, and returns both, or nil.
func (w *written) current(ctx context.Context, key string) (*enginev1alpha1.ScheduleEntry, *v1alpha1.Schedule, error) {
	if err := w.ReadinessCheck(); err != nil {
		return nil, nil, err
	}
	name := nameIn(key)
	_, known, _ := w.publisher.Schedule(name)
	entry, err := w.entries.Get(ctx, w.recordName(name), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if known != nil { // deleted before the answer; a new one may exist
			w.publisher.Forget(known)
		}
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading the record of the schedule: %w", err)
	case nameOf(entry) != name:
		return nil, nil, fmt.Errorf("the record %s belongs to the schedule %s", entry.Name, nameOf(entry))
	}
	w.publisher.Observe(entry)
	// Another one may have been observed meanwhile: both must match.
	_, entry, _ = w.publisher.Schedule(name)
	s := &v1alpha1.Schedule{}
	if err := w.Log.Get(ctx, key, storage.GetOptions{}, s); entry == nil || storage.IsNotFound(err) {
		return nil, nil, apierrors.NewConflict(Resource.GroupResource, name.Name, fmt.Errorf("it is being deleted"))
	} else if err != nil {
		return nil, nil, err
	}
	return entry, s, nil
}

// Create implements storage.Interface.
func (w *written) Create(ctx context.Context, key string, obj, out runtime.Object, _ uint64) error {
	if err := w.ReadinessCheck(); err != nil {
		return err
	}
	return w.create(ctx, key, obj.(*v1alpha1.Schedule), out)
}

func (w *written) create(ctx context.Context, key string, s *v1alpha1.Schedule, out runtime.Object) error {
	name := nameIn(key)
	done, err := w.quota.Admit(name.Namespace, name.Name, name.Name)
	if err != nil {
		return err
	}
	defer done()
	uid, err := w.namespaceUID(ctx, name.Namespace)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("reading the namespace of the schedule: %w", err))
	}
	entry := &enginev1alpha1.ScheduleEntry{
		ObjectMeta: metav1.ObjectMeta{Name: w.recordName(name)},
		Spec:       enginev1alpha1.ScheduleEntrySpec{ScheduleRef: v1alpha1.BackupReference(name), NamespaceUID: uid, Since: s.CreationTimestamp},
	}
	if entry.Spec.Requester, err = requester(ctx); err != nil {
		return err
	}
	if err := keep(s, entry); err != nil {
		return err
	}
	created, err := w.entries.Create(ctx, entry, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// It is of an earlier namespace of this name.
		if other, err := w.entries.Get(ctx, entry.Name, metav1.GetOptions{}); err == nil && other.Spec.NamespaceUID != uid {
			return apierrors.NewConflict(Resource.GroupResource, name.Name, fmt.Errorf("the schedule of that name in a former namespace %q is about to be removed; try again in a moment", name.Namespace))
		}
		return storage.NewKeyExistsError(key, 0)
	}
	if err != nil {
		return recording(nameIn(key).Name, err)
	}
	w.publisher.Observe(created)
	return w.Log.Get(ctx, key, storage.GetOptions{}, out)
}

func recording(name string, err error) error {
	return recorded.NotRecorded(Resource.GroupResource, Resource.Singular, name, err)
}

// GuaranteedUpdate implements storage.Interface.
func (w *written) GuaranteedUpdate(ctx context.Context, key string, dst runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object) error {
	for {
		entry, current, err := w.current(ctx, key)
		if err != nil {
			return err
		}
		if entry == nil && !ignoreNotFound {
			return storage.NewKeyNotFoundError(key, 0)
		}
		if current == nil {
			current = &v1alpha1.Schedule{}
		}
		before := current.DeepCopy()
		if err := preconditions.Check(key, current); err != nil {
			return err
		}
		version, err := w.Versioner().ObjectResourceVersion(current)
		if err != nil {
			return err
		}
		updated, _, err := tryUpdate(current, storage.ResponseMeta{ResourceVersion: version})
		if err != nil {
			return err
		}
		after, ok := updated.(*v1alpha1.Schedule)
		if !ok {
			return fmt.Errorf("can't store a %T among %s", updated, Resource.GroupResource)
		}
		if entry == nil {
			err := w.create(ctx, key, after, dst)
			if storage.IsExist(err) {
				continue
			}
			return err
		}
		if equality.Semantic.DeepEqual(before.ObjectMeta, after.ObjectMeta) && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
			return w.Log.Get(ctx, key, storage.GetOptions{}, dst)
		}
		changed := entry.DeepCopy()
		if asksOtherwise(w.restoreUser, before, after) {
			if changed.Spec.Requester, err = requester(ctx); err != nil {
				return err
			}
		}
		if moved(&before.Spec, &after.Spec) {
			domain.Move(changed, before.UID, w.publisher.clock.Now())
		}
		if err := keep(after, changed); err != nil {
			return err
		}
		changed, err = w.entries.Update(ctx, changed, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return recording(nameIn(key).Name, err)
		}
		w.publisher.Observe(changed)
		return w.Log.Get(ctx, key, storage.GetOptions{}, dst)
	}
}

// asksOtherwise reports whether a change concerns the requested backups. Pausing does not: a user that pauses and
// resumes all schedules must not take them over. But a user that resumes a restored schedule takes it over.
func asksOtherwise(restoreUser string, was, is *v1alpha1.Schedule) bool {
	before := was.Spec
	if was.Status.Requester == restoreUser && before.Paused && !is.Spec.Paused {
		return true
	}
	before.Paused = is.Spec.Paused
	return !recorded.ByMeaning.DeepEqual(before, is.Spec) ||
		!maps.Equal(domain.BackupAnnotations(was.Annotations), domain.BackupAnnotations(is.Annotations))
}

func moved(before, after *v1alpha1.ScheduleSpec) bool {
	return before.Schedule != after.Schedule || before.TimeZone != after.TimeZone || before.Paused != after.Paused
}

// Delete implements storage.Interface.
func (w *written) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions) error {
	for {
		entry, current, err := w.current(ctx, key)
		if err != nil {
			return err
		}
		if entry == nil {
			return storage.NewKeyNotFoundError(key, 0)
		}
		if err := preconditions.Check(key, current); err != nil {
			return err
		}
		if err := validate(ctx, current); err != nil {
			return err
		}
		err = w.entries.Delete(ctx, entry.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &entry.UID, ResourceVersion: &entry.ResourceVersion},
		})
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return recording(nameIn(key).Name, err)
		}
		w.publisher.Forget(entry)
		current.DeepCopyInto(out.(*v1alpha1.Schedule))
		return nil
	}
}

func requester(ctx context.Context) (enginev1alpha1.Requester, error) {
	user, err := recorded.RequesterFrom(ctx)
	if err != nil {
		return enginev1alpha1.Requester{}, err
	}
	by := recorded.Requester(user)
	// An authorizer may use it, as the scope of a token.
	if by.Extra = maps.Clone(user.GetExtra()); by.Extra != nil {
		delete(by.Extra, recorded.ExtraScheduleUID)
		delete(by.Extra, recorded.ExtraSchedule)
	}
	return by, nil
}

// recordNames returns the names of records, which follow the names of stored backups.
func recordNames(systemNamespace string) func(types.NamespacedName) string {
	return func(name types.NamespacedName) string {
		return format.StoreName(name.Namespace, name.Name, systemNamespace)
	}
}
