// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package backupdeletion

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue/records"
	"github.com/holdfast-io/holdfast/pkg/store"
)

type obstacle struct {
	// text is stable, as it is written once, and public: it names no more than the storage location.
	text string
	// detail is for administrators, and may vary. Optional.
	detail string
	// attempted: a retry may help. Otherwise an event brings the change.
	attempted bool
	cause     error
}

func (o *obstacle) Error() string {
	if o.detail == "" {
		return o.text
	}
	return o.text + ": " + o.detail
}

func (o *obstacle) Unwrap() error { return o.cause }

func refused(format string, args ...any) *obstacle {
	return &obstacle{text: "the deletion can't go on: " + fmt.Sprintf(format, args...), attempted: true}
}

func awaited(location, reason string) *obstacle {
	return &obstacle{
		text:   fmt.Sprintf("the deletion waits for the storage location %q, which is not available", location),
		detail: reason,
	}
}

func storeFailure(location string, err error) *obstacle {
	o, explained := errors.AsType[*obstacle](err)
	if explained {
		return o
	}
	switch {
	case errors.Is(err, store.ErrUnavailable):
		o = awaited(location, err.Error())
	case errors.Is(err, store.ErrDenied):
		o = refused("the store denies access: let the credentials of the storage location %q list, read and delete objects; if object lock or retention protects them, it goes on after that has ended", location)
		o.detail = err.Error()
	default:
		o = refused("the storage location %q failed", location)
		o.detail = err.Error()
	}
	o.attempted, o.cause = true, err
	return o
}

// report writes, if new, what a deletion waits for into the run's status and an event.
func (c *Controller) report(ctx context.Context, run *enginev1alpha1.BackupRun, o *obstacle) error {
	if strings.HasPrefix(run.Status.FailureReason, o.text) {
		return nil
	}
	said := o.text
	if run.Spec.BackupRef.Namespace == c.Namespace {
		said = o.Error()
	}
	changed := run.DeepCopy()
	changed.Status.FailureReason = said
	_, err := c.runs.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing what the deletion of BackupRun %s waits for: %w", run.Name, err)
	}
	klog.FromContext(ctx).Info("The deletion of a backup has to wait", "backupRun", klog.KObj(run), "reason", o.Error())
	c.Events.Eventf(backupReference(run), nil, corev1.EventTypeWarning, "DeletionWaiting", "Delete", "%s", said)
	return nil
}

func backupReference(run *enginev1alpha1.BackupRun) *corev1.ObjectReference {
	ref := records.Reference(run)
	ref.UID = backupUID(run)
	return ref
}
