// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

// Package records turns the records of runs and the ledger into the queue's input, for the controller
// and the API server.
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

// locationState returns the queue's view of a location: unavailable before its first check.
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

// WaitingSince returns when a run was queued, or its creation if queuing was delayed, as without a
// controller. Both are exact to a second.
func WaitingSince(run enginev1alpha1.QueuedRun) time.Time {
	created, queued := run.GetCreationTimestamp(), run.Standing().QueuedTimestamp
	if queued == nil || queued.Sub(created.Time) > time.Second {
		return created.Time
	}
	return queued.Time
}

// Refused reports whether the API server refuses this very object, as by an admission webhook: others
// may pass, and a retry helps only after a change. A conflict is no refusal.
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
	return !apierrors.IsServerTimeout(err)
}
