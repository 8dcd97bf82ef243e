// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/format"
)

// RequestREST serves a subresource of backups with the verb create: a request
// about a backup, which is recorded on its run. Others carry it out.
type RequestREST struct {
	backups *REST
	clock   clock.PassiveClock
	empty   func() runtime.Object
	// record returns the run as it is to be written, or nil with what to tell the
	// caller when there is nothing to write. run is nil when the backup has none.
	record func(backup *v1alpha1.Backup, run *enginev1alpha1.BackupRun, ask enginev1alpha1.Ask) (changed *enginev1alpha1.BackupRun, message string, err error)
}

var _ rest.NamedCreater = &RequestREST{}

// NewCancelREST serves backups/cancel.
func NewCancelREST(backups *REST, clock clock.PassiveClock) *RequestREST {
	return &RequestREST{backups: backups, clock: clock, empty: func() runtime.Object { return &v1alpha1.BackupCancellation{} }, record: cancel}
}

// NewDeletionREST serves backups/deletion.
func NewDeletionREST(backups *REST, clock clock.PassiveClock) *RequestREST {
	r := &RequestREST{backups: backups, clock: clock, empty: func() runtime.Object { return &v1alpha1.BackupDeletion{} }}
	r.record = r.remove
	return r
}

// New implements rest.Storage.
func (r *RequestREST) New() runtime.Object { return r.empty() }

// Destroy implements rest.Storage.
func (r *RequestREST) Destroy() {}

// Create implements rest.NamedCreater. It answers with a Status.
func (r *RequestREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if body, ok := obj.(metav1.Object); ok && body.GetName() != "" && body.GetName() != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, but the request is about the backup %q", body.GetName(), name))
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("the request has no user"))
	}
	ask := enginev1alpha1.Ask{
		Requester: requesterOf(requester),
		Timestamp: metav1.NewTime(r.clock.Now()),
	}
	var message string
	raced := func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonConflict }
	err := retry.OnError(retry.DefaultRetry, raced, func() (err error) {
		message, err = r.try(ctx, name, ask, options)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{
		Status:  metav1.StatusSuccess,
		Code:    http.StatusCreated,
		Message: message,
		Details: &metav1.StatusDetails{Name: name, Group: resource.Group, Kind: resource.Resource},
	}, nil
}

// try records the request on the run as it is now.
func (r *RequestREST) try(ctx context.Context, name string, ask enginev1alpha1.Ask, options *metav1.CreateOptions) (string, error) {
	obj, err := r.backups.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	backup := obj.(*v1alpha1.Backup)
	runs := r.backups.runs
	run, err := runs.Get(ctx, format.StoreName(backup.Namespace, name, r.backups.strategy.systemNamespace), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		run = nil
	case err != nil:
		return "", fmt.Errorf("reading the record of the backup: %w", err)
	case run.Spec.BackupRef != (v1alpha1.BackupReference{Namespace: backup.Namespace, Name: name}) && run.AsBackup().UID != backup.UID:
		// A stored backup of the system namespace may be called a.b, as the record of the
		// backup b of the namespace a is. So may that backup itself, see Projector.
		return "", conflict(name, "it has ended, and its name in the store is that of the backup %s in the namespace %s, which is live: wait until that one has gone from the queue and from `kubectl get backupruns`", run.Spec.BackupRef.Name, run.Spec.BackupRef.Namespace)
	}
	changed, message, err := r.record(backup, run, ask)
	if err != nil || changed == nil {
		return message, err
	}
	if run == nil {
		changed, err = runs.Create(ctx, changed, metav1.CreateOptions{DryRun: options.DryRun})
		if apierrors.IsAlreadyExists(err) {
			return "", apierrors.NewConflict(resource, name, err) // another request came first
		}
	} else {
		changed, err = runs.Update(ctx, changed, metav1.UpdateOptions{DryRun: options.DryRun})
	}
	if err != nil {
		return "", err
	}
	if len(options.DryRun) == 0 {
		r.backups.observe(changed)
	}
	return message, nil
}

// cancel asks for a backup to be stopped.
func cancel(backup *v1alpha1.Backup, run *enginev1alpha1.BackupRun, ask enginev1alpha1.Ask) (*enginev1alpha1.BackupRun, string, error) {
	switch {
	case run == nil:
		return nil, "", conflict(backup.Name, "it has ended already, as %s", backup.Status.Phase)
	case run.Status.Phase.Ended() || run.Deleting():
		return nil, "", conflict(backup.Name, "it has ended already, as %s", run.Status.Phase)
	case run.Spec.Cancellation != nil:
		return nil, asked("to stop", run.Spec.Cancellation), nil
	}
	changed := run.DeepCopy()
	changed.Spec.Cancellation = &ask
	return changed, "the backup is asked to stop", nil
}

// remove asks for a backup to be removed from its store.
func (r *RequestREST) remove(backup *v1alpha1.Backup, run *enginev1alpha1.BackupRun, ask enginev1alpha1.Ask) (*enginev1alpha1.BackupRun, string, error) {
	const message = "the backup is being deleted; it is listed until it is gone from its store"
	switch {
	case run != nil && run.Spec.Deletion != nil:
		return nil, asked("to be deleted", &run.Spec.Deletion.Ask), nil
	case run != nil && !run.Status.Phase.Ended():
		return nil, "", conflict(backup.Name, "it is %s: wait for its end, or POST to backups/%s/cancel first", run.Phase(), backup.Name)
	case run != nil:
		changed := run.DeepCopy()
		changed.Spec.Deletion = &enginev1alpha1.Deletion{Ask: ask}
		return changed, message, nil
	case backup.Status.Phase == v1alpha1.BackupPhaseUnreadable:
		return nil, "", conflict(backup.Name, "its metadata can't be read, so it is not certain what it is: look at its folder in the storage location %q, and remove that by hand", backup.Spec.StorageLocation)
	}
	storeName := format.StoreName(backup.Namespace, backup.Name, r.backups.strategy.systemNamespace)
	if err := format.ValidateStoreName(storeName); err != nil {
		return nil, "", conflict(backup.Name, "another storage location has a backup of the same name: delete that one first, or remove this one's folder in the storage location %q by hand", backup.Spec.StorageLocation)
	}
	stored := backup.DeepCopy()
	if len(validation.ValidateBackupLimits(stored)) > 0 {
		// Another maker's may be larger than a record. Its removal needs no more.
		stored.Labels, stored.Annotations = nil, nil
		stored.Spec = v1alpha1.BackupSpec{StorageLocation: stored.Spec.StorageLocation}
	}
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: storeName},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef:   v1alpha1.BackupReference{Namespace: backup.Namespace, Name: backup.Name},
			Labels:      stored.Labels,
			Annotations: stored.Annotations,
			// No requester: nobody has authenticated the one that the store names.
			Backup: stored.Spec,
			Deletion: &enginev1alpha1.Deletion{Ask: ask, Stored: &enginev1alpha1.StoredBackup{
				UID: stored.UID, CreationTimestamp: stored.CreationTimestamp,
			}},
		},
	}, message, nil
}

func asked(what string, ask *enginev1alpha1.Ask) string {
	return fmt.Sprintf("nothing to do: %s asked for the backup %s at %s", ask.Requester.Username, what, ask.Timestamp.UTC().Format("2006-01-02T15:04:05Z"))
}

// conflict refuses a request that does not fit the state of the backup. It is not
// the kind of conflict that goes away by trying again.
func conflict(name, format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusConflict,
		Reason:  "BackupState",
		Message: fmt.Sprintf("backup %q: ", name) + fmt.Sprintf(format, args...),
		Details: &metav1.StatusDetails{Name: name, Group: resource.Group, Kind: resource.Resource},
	}}
}
