// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// QueuedRun is a record in the queue: a BackupRun or a RestoreRun.
type QueuedRun interface {
	metav1.Object
	runtime.Object
	// Asked returns the request.
	Asked() Asked
	// Standing returns the state, and WithStanding a copy with another.
	Standing() Standing
	WithStanding(standing Standing) QueuedRun
	// Deleting reports whether the run is no longer work.
	Deleting() bool
}

// Asked is the part of a run's spec that the queue needs.
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Asked struct {
	// Kind and Ref name the Backup or Restore.
	Kind         string
	Ref          v1alpha1.BackupReference
	NamespaceUID types.UID
	Labels       map[string]string
	Requester    string
	Location     string
	Cancellation *Ask
}

// Standing is the part of a run's status that the queue reads and writes. Both kinds share phase
// names.
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Standing struct {
	Phase               v1alpha1.BackupPhase
	Ticket              int64
	QueuedTimestamp     *metav1.Time
	StartTimestamp      *metav1.Time
	CompletionTimestamp *metav1.Time
	FailureReason       string
	ValidationErrors    []string
}

// Asked implements QueuedRun.
func (r *BackupRun) Asked() Asked {
	s := &r.Spec
	return Asked{"Backup", s.BackupRef, s.NamespaceUID, s.Labels, s.Requester.Username, s.Backup.StorageLocation, s.Cancellation}
}

// Standing implements QueuedRun.
func (r *BackupRun) Standing() Standing {
	s := &r.Status
	return Standing{s.Phase, s.Ticket, s.QueuedTimestamp, s.StartTimestamp, s.CompletionTimestamp, s.FailureReason, s.ValidationErrors}
}

// WithStanding implements QueuedRun.
func (r *BackupRun) WithStanding(standing Standing) QueuedRun {
	r = r.DeepCopy()
	s := &r.Status
	s.Phase, s.Ticket, s.FailureReason, s.ValidationErrors = standing.Phase, standing.Ticket, standing.FailureReason, standing.ValidationErrors
	s.QueuedTimestamp, s.StartTimestamp, s.CompletionTimestamp = standing.QueuedTimestamp, standing.StartTimestamp, standing.CompletionTimestamp
	return r
}

// Asked implements QueuedRun.
func (r *RestoreRun) Asked() Asked {
	s := &r.Spec
	return Asked{"Restore", s.RestoreRef, s.NamespaceUID, s.Labels, s.Requester.Username, s.Backup.StorageLocation, s.Cancellation}
}

// Standing implements QueuedRun.
func (r *RestoreRun) Standing() Standing {
	s := &r.Status
	return Standing{v1alpha1.BackupPhase(s.Phase), s.Ticket, s.QueuedTimestamp, s.StartTimestamp, s.CompletionTimestamp, s.FailureReason, s.ValidationErrors}
}

// WithStanding implements QueuedRun.
func (r *RestoreRun) WithStanding(standing Standing) QueuedRun {
	r = r.DeepCopy()
	s := &r.Status
	s.Phase, s.Ticket, s.FailureReason, s.ValidationErrors = v1alpha1.RestorePhase(standing.Phase), standing.Ticket, standing.FailureReason, standing.ValidationErrors
	s.QueuedTimestamp, s.StartTimestamp, s.CompletionTimestamp = standing.QueuedTimestamp, standing.StartTimestamp, standing.CompletionTimestamp
	return r
}

// Deleting implements QueuedRun: an ended restore has no requests.
func (*RestoreRun) Deleting() bool { return false }
