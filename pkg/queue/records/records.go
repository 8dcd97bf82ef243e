// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package records turns the durable records into the queue's input, the same way
// for the controller, which acts on the queue, and for the API server, which
// shows it. The records are the runs, and the ledger of those that were let start.
package records

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	enginev1alpha1 "github.com/holdfast-io/holdfast/pkg/apis/engine/v1alpha1"
	"github.com/holdfast-io/holdfast/pkg/queue"
)

// locationState is what the queue needs to know of a storage location. A location
// that has not been probed yet is not available.
func locationState(location *enginev1alpha1.StorageLocation) queue.LocationState {
	condition := meta.FindStatusCondition(location.Status.Conditions, enginev1alpha1.ConditionAvailable)
	switch {
	case condition == nil:
		return queue.LocationState{Message: "it has not been checked yet"}
	case condition.Status == "True" && location.Closed():
		return queue.LocationState{Available: true, NoBackups: true, Message: location.WhyClosed()}
	case condition.Status == "True":
		return queue.LocationState{Available: true}
	}
	return queue.LocationState{Message: condition.Message}
}

// WaitingSince is when a run was queued. If it could not be queued for a while, for
// instance since there was no controller, it is when it was created: both are exact
// to a second.
func WaitingSince(run enginev1alpha1.QueuedRun) time.Time {
	created, queued := run.GetCreationTimestamp(), run.Standing().QueuedTimestamp
	if queued == nil || queued.Sub(created.Time) > time.Second {
		return created.Time
	}
	return queued.Time
}

// Refused reports whether an error is the answer of an API server that does not want
// this very object to be written, for instance because an admission webhook forbids
// it: others may be, and writing it again helps only when somebody has mended that.
// A conflict is none.
func Refused(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.Status().Code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return !apierrors.IsServerTimeout(err) // which is a 500
}
