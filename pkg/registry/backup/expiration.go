// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/format"
	engineclient "github.com/holdfast-io/holdfast/pkg/generated/engine/clientset/versioned/typed/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/registry/recorded"
)

const maxReason = 1024 // bytes

// ExpirationConfig is the configuration of NewExpirationREST.
type ExpirationConfig struct {
	Backups         *REST
	Changes         engineclient.BackupChangeInterface
	Former          engineclient.ExpirationChangeInterface // the previous version's records
	Observe         func(*enginev1alpha1.BackupChange)     // puts a recorded change into the log
	Clock           clock.PassiveClock
	SystemNamespace string // as in Config
	MaxTTL          time.Duration
}

// NewExpirationREST serves backups/expiration: the POST is recorded as a BackupChange, and counts at once. The
// controller writes it into the store.
//
// Concurrent requests for a hold and a deletion are recorded before their requester, or the deleting controller,
// looks for the other. So either the deletion sees the hold in time, or the answer to the hold names the deletion.
func NewExpirationREST(config ExpirationConfig) *recorded.Subresource {
	return &recorded.Subresource{
		Resource: resource, Singular: Resource.Singular, Body: &v1alpha1.BackupExpiration{}, Clock: config.Clock, Record: config.record,
	}
}

func faultsOf(body *v1alpha1.BackupExpiration) error {
	switch {
	case body.Expiration == nil && body.Hold == nil:
		return apierrors.NewBadRequest("set expiration, or hold to true or false: the request changes nothing")
	case body.Expiration != nil && (body.Expiration.IsZero() || body.Expiration.UTC().Year() > 9999):
		return apierrors.NewBadRequest("expiration must be an instant in a year up to 9999")
	case len(body.Reason) > maxReason:
		return apierrors.NewBadRequest(fmt.Sprintf("reason has more than %d bytes", maxReason))
	}
	return nil
}

func (r *ExpirationConfig) record(ctx context.Context, request *recorded.Request) (string, error) {
	name, body := request.Name, request.Body.(*v1alpha1.BackupExpiration)
	if err := faultsOf(body); err != nil {
		return "", err
	}
	found, err := r.Backups.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	backup := found.(*v1alpha1.Backup)
	if err := changeable(backup, body); err != nil {
		return "", err
	}
	if kind, ok := r.Backups.Kind.(*kind); ok {
		if err := kind.refuseAsOf(backup); err != nil {
			return "", err
		}
	}
	if latest := backup.CreationTimestamp.Add(r.MaxTTL); r.MaxTTL > 0 && backup.Namespace != r.SystemNamespace && body.Expiration != nil && body.Expiration.After(latest) {
		return "", apierrors.NewBadRequest(fmt.Sprintf("expiration is %s, but a backup of this namespace may be kept for %s at most (--max-backup-ttl of the API server), which is until %s",
			body.Expiration.UTC().Format(time.RFC3339), r.MaxTTL, latest.UTC().Format(time.RFC3339)))
	}
	storeName := r.Backups.Kind.RecordName(types.NamespacedName{Namespace: backup.Namespace, Name: backup.Name})
	if err := format.ValidateStoreName(storeName); err != nil {
		return "", conflict(backup.Name, "another storage location has a backup of the same name")
	}
	wanted := &enginev1alpha1.BackupChange{
		ObjectMeta: metav1.ObjectMeta{Name: storeName},
		Spec: enginev1alpha1.BackupChangeSpec{
			BackupRef: v1alpha1.BackupReference{Namespace: backup.Namespace, Name: backup.Name}, UID: backup.UID,
			StorageLocation: backup.Spec.StorageLocation, Ask: request.Ask, Reason: body.Reason, Expiration: body.Expiration, Hold: body.Hold,
		},
	}
	// No replica's clock makes this request the earlier one: see InOrder.
	former, err := r.Former.Get(ctx, storeName, metav1.GetOptions{})
	switch {
	case err == nil && former.Spec.Ask.Timestamp.After(wanted.Spec.Ask.Timestamp.Time):
		wanted.Spec.Ask.Timestamp = former.Spec.Ask.Timestamp
	case err != nil && !apierrors.IsNotFound(err):
		return "", err
	}
	record, err := r.Changes.Get(ctx, storeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		record, err = r.Changes.Create(ctx, wanted, metav1.CreateOptions{DryRun: request.DryRun})
		if apierrors.IsAlreadyExists(err) {
			return "", apierrors.NewConflict(resource, name, err) // another request came first
		}
	case err == nil && record.Deletes():
		return "", conflict(backup.Name, "a deletion of volumes has the record %s", storeName)
	case err == nil:
		changed := record.DeepCopy()
		changed.Spec = wanted.Spec
		if earlier := &record.Spec; !record.Done() && earlier.UID == backup.UID {
			// The earlier request is not in the store yet, and is written with this one.
			if changed.Spec.Expiration == nil {
				changed.Spec.Expiration = earlier.Expiration
			}
			if changed.Spec.Hold == nil {
				changed.Spec.Hold, changed.Spec.Reason = earlier.Hold, earlier.Reason
			}
		}
		record, err = r.Changes.Update(ctx, changed, metav1.UpdateOptions{DryRun: request.DryRun})
	}
	if err != nil {
		return "", err
	}
	if len(request.DryRun) > 0 {
		return "the backup's expiration would be changed", nil
	}
	r.Observe(record)
	if body.Expiration == nil && !*body.Hold {
		return "the backup is released", nil
	}
	// The deletion may have been requested without knowledge of this.
	run, err := r.Backups.Records.Get(ctx, storeName, metav1.GetOptions{})
	switch {
	case err == nil && run.Spec.Deletion != nil && r.Backups.Kind.Object(run).UID == backup.UID:
		return "", conflict(backup.Name, "its deletion was asked for at %s: this is recorded, and holds the deletion if nothing of the backup has been removed yet", run.Spec.Deletion.Timestamp.UTC().Format(time.RFC3339))
	case err != nil && !apierrors.IsNotFound(err):
		return "", fmt.Errorf("the change is recorded, but whether the deletion of the backup was asked for before is not known: %w", err)
	}
	if body.Hold != nil && *body.Hold {
		return "the backup is held: it neither expires nor can be deleted until it is released", nil
	}
	return "the backup expires at " + body.Expiration.UTC().Format(time.RFC3339), nil
}

func changeable(backup *v1alpha1.Backup, body *v1alpha1.BackupExpiration) error {
	status := &backup.Status
	switch {
	case body.UID != "" && body.UID != backup.UID:
		return conflict(backup.Name, "its uid is %s, and the one that is meant has %s", backup.UID, body.UID)
	case status.Phase == v1alpha1.BackupPhaseDeleting && body.Hold != nil && !*body.Hold && body.Expiration == nil:
		return nil // so that its waiting deletion continues
	case status.Phase == v1alpha1.BackupPhaseDeleting:
		return conflict(backup.Name, "it is being deleted")
	case !status.Phase.Ended() || status.FormatVersion == "":
		return conflict(backup.Name, "it is %s, and not in its store: wait for its end", status.Phase)
	case status.Phase == v1alpha1.BackupPhaseUnreadable:
		return conflict(backup.Name, "its metadata can't be read")
	case status.Origin == nil || status.Origin.Trust != v1alpha1.BackupTrustOwn:
		return conflict(backup.Name, "it is not one of this cluster's own, whose expiration alone can be changed here")
	}
	return nil
}
