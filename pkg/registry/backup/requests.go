// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/validation"
	"github.com/holdfast-io/holdfast/pkg/format"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

// NewCancelREST serves backups/cancel.
func NewCancelREST(backups *REST, clock clock.PassiveClock) *recorded.Subresource {
	return recorded.NewRequest(backups, clock, &v1alpha1.BackupCancellation{}, cancel)
}

// NewDeletionREST serves backups/deletion.
func NewDeletionREST(backups *REST, clock clock.PassiveClock) *recorded.Subresource {
	k := backups.Kind.(*kind)
	deletion := recorded.NewRequest(backups, clock, &v1alpha1.BackupDeletion{}, k.remove)
	record := deletion.Record
	deletion.Record = func(ctx context.Context, request *recorded.Request) (string, error) {
		if request.Body.(*v1alpha1.BackupDeletion).SnapshotsByHandle {
			right := recorded.Right{Verb: "delete", Resource: contentsResource, Of: resource}
			scopes := []recorded.Scope{{Field: "snapshotsByHandle", Because: "snapshotsByHandle has any snapshot deleted that the backup names"}}
			if _, err := right.Authorize(ctx, k.authorizer, request.Requester, request.Name, scopes); err != nil {
				return "", err
			}
		}
		return record(ctx, request)
	}
	return deletion
}

var contentsResource = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"}

func cancel(backup *v1alpha1.Backup, run *enginev1alpha1.BackupRun, ask enginev1alpha1.Ask, _ runtime.Object) (*enginev1alpha1.BackupRun, string, error) {
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

func (k *kind) remove(backup *v1alpha1.Backup, run *enginev1alpha1.BackupRun, ask enginev1alpha1.Ask, body runtime.Object) (*enginev1alpha1.BackupRun, string, error) {
	message := k.deleting(backup)
	preconditions, byHandle := body.(*v1alpha1.BackupDeletion).Preconditions, body.(*v1alpha1.BackupDeletion).SnapshotsByHandle
	if err := meets(backup, preconditions, ask.Timestamp.Time); err != nil {
		return nil, "", err
	}
	// The record is read after the backup: the process may have slept in between.
	if preconditions != nil && run != nil && k.Object(run).UID != backup.UID {
		return nil, "", conflict(backup.Name, "it was replaced by another one meanwhile, with the uid %s", k.Object(run).UID)
	}
	if err := k.refuseAsOf(backup); err != nil {
		return nil, "", err
	}
	if hold := backup.Status.Hold; hold != nil && backup.Status.Phase != v1alpha1.BackupPhaseDeleting {
		return nil, "", conflict(backup.Name, "%[1]s; release it first: kubectl holdfast backup release %[2]s -n %[3]s, or POST to backups/%[2]s/expiration", heldBy(hold), backup.Name, backup.Namespace)
	}
	expired := preconditions != nil && preconditions.Expired
	switch {
	case run != nil && run.Spec.Deletion != nil:
		return nil, asked("to be deleted", &run.Spec.Deletion.Ask), nil
	case run != nil && !run.Status.Phase.Ended():
		return nil, "", conflict(backup.Name, "it is %[1]s: wait for its end, or cancel it first: kubectl holdfast backup cancel %[2]s -n %[3]s, or POST to backups/%[2]s/cancel", run.Phase(), backup.Name, backup.Namespace)
	}
	if preconditions != nil && preconditions.Superseded {
		if err := k.superseded(backup); err != nil {
			return nil, "", err
		}
	}
	switch {
	case run != nil:
		changed := run.DeepCopy()
		changed.Spec.Deletion = &enginev1alpha1.Deletion{Ask: ask, Expired: expired, SnapshotsByHandle: byHandle}
		return changed, message, nil
	case backup.Status.Phase == v1alpha1.BackupPhaseUnreadable:
		return nil, "", conflict(backup.Name, "its metadata can't be read, so it is not certain what it is: look at its folder in the storage location %q, and remove that by hand", backup.Spec.StorageLocation)
	}
	storeName := k.RecordName(types.NamespacedName{Namespace: backup.Namespace, Name: backup.Name})
	if err := format.ValidateStoreName(storeName); err != nil {
		return nil, "", conflict(backup.Name, "another storage location has a backup of the same name: delete that one first, or remove this one's folder in the storage location %q by hand", backup.Spec.StorageLocation)
	}
	stored := backup.DeepCopy()
	if len(validation.ValidateBackupLimits(stored)) > 0 {
		// Another maker's may be larger than a record.
		stored.Labels, stored.Annotations = nil, nil
		stored.Spec = v1alpha1.BackupSpec{StorageLocation: stored.Spec.StorageLocation}
	}
	return &enginev1alpha1.BackupRun{
		ObjectMeta: metav1.ObjectMeta{Name: storeName},
		Spec: enginev1alpha1.BackupRunSpec{
			BackupRef:   v1alpha1.BackupReference{Namespace: backup.Namespace, Name: backup.Name},
			Labels:      stored.Labels,
			Annotations: stored.Annotations,
			// No requester: the store's is not authenticated.
			Backup: stored.Spec,
			Deletion: &enginev1alpha1.Deletion{Ask: ask, Expired: expired, SnapshotsByHandle: byHandle, Stored: &enginev1alpha1.StoredBackup{
				UID: stored.UID, CreationTimestamp: stored.CreationTimestamp,
			}},
		},
	}, message, nil
}

func (k *kind) whereOf(backup *v1alpha1.Backup) *enginev1alpha1.StorageLocation {
	if k.locations.Lister == nil {
		return nil
	}
	record, err := k.locations.Lister.Get(backup.Spec.StorageLocation)
	if err != nil {
		return nil
	}
	return record
}

// deleting says what a deletion does. A location is found by name: its state is no secret.
func (k *kind) deleting(backup *v1alpha1.Backup) string {
	message := "the backup is being deleted; it is listed until it is gone from its store"
	if where := k.whereOf(backup); where != nil && where.Spec.Lock != nil {
		message += "; " + where.KeptVersions()
	}
	return message
}

// refuseAsOf fails for a backup in a location that shows an earlier time.
func (k *kind) refuseAsOf(backup *v1alpha1.Backup) error {
	where := k.whereOf(backup)
	if where == nil || where.Spec.AsOf() == nil {
		return nil
	}
	return conflict(backup.Name, "its storage location %[1]q shows the bucket as of %[2]s, and nothing changes there: to no longer list it, delete the location: kubectl delete storagelocation %[1]s -n %[3]s",
		where.Name, where.Spec.AsOf().UTC().Format(time.RFC3339), k.systemNamespace)
}

const lookUpTimeout = 10 * time.Second

// superseded fails if a backup holds the newest data of an existing claim.
func (k *kind) superseded(backup *v1alpha1.Backup) error {
	if k.lastData == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookUpTimeout)
	defer cancel()
	claims, err := k.lastData(ctx, backup)
	switch {
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("finding out whether the backup %q holds the newest data of a claim: %w", backup.Name, err))
	case len(claims) == 0:
		return nil
	}
	text := claims[0].String()
	if more := len(claims) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	refusal := refuse(backup.Name, "it holds the newest data of %s: make a newer backup with these data, or delete it without preconditions", text)
	refusal.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: v1alpha1.CauseHoldsLastData, Field: claims[0].String(), Message: text}}
	return refusal
}

// meets fails if a backup does not meet a deletion's preconditions, on the state that the deletion is recorded on.
func meets(backup *v1alpha1.Backup, preconditions *v1alpha1.BackupDeletionPreconditions, now time.Time) error {
	if preconditions == nil {
		return nil
	}
	if want := preconditions.UID; want != "" && want != backup.UID {
		return conflict(backup.Name, "its uid is %s, and the one that is to be deleted has %s", backup.UID, want)
	}
	if !preconditions.Expired {
		return nil
	}
	expiration := backup.Status.Expiration
	switch {
	case backup.Status.Origin == nil || backup.Status.Origin.Trust != v1alpha1.BackupTrustOwn:
		return conflict(backup.Name, "it is not one of this cluster's own, which alone expire")
	case expiration == nil:
		return conflict(backup.Name, "it does not expire")
	case now.Before(expiration.Time):
		return conflict(backup.Name, "it expires at %s, and here it is %s", expiration.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

func heldBy(hold *v1alpha1.BackupHold) string {
	text := fmt.Sprintf("%s holds it since %s", hold.Requester, hold.Timestamp.UTC().Format(time.RFC3339))
	if hold.Reason != "" {
		text += " (" + hold.Reason + ")"
	}
	return text
}

func asked(what string, ask *enginev1alpha1.Ask) string {
	return fmt.Sprintf("nothing to do: %s asked for the backup %s at %s", ask.Requester.Username, what, ask.Timestamp.UTC().Format("2006-01-02T15:04:05Z"))
}

// conflict refuses a request because of the backup's state. A retry does not help.
func conflict(name, format string, args ...any) error { return refuse(name, format, args...) }

func refuse(name, format string, args ...any) *apierrors.StatusError {
	return recorded.Conflict(resource, name, v1alpha1.StatusReasonBackupState, fmt.Sprintf("backup %q: ", name)+fmt.Sprintf(format, args...))
}
