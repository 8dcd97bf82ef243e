// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=create
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MaintenanceRequest requests a repository's maintenance now. It is not stored: the answer says
// what was started.
type MaintenanceRequest struct {
	metav1.TypeMeta `json:",inline"`
	// The name is the VolumeRepository's, NAMESPACE.LOCATION, and the namespace the system
	// namespace.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The options.
	// +optional
	Spec MaintenanceRequestSpec `json:"spec,omitempty"`
	// The answer.
	// +optional
	Status MaintenanceRequestStatus `json:"status,omitempty"`
}

// MaintenanceRequestSpec has the options of a maintenance.
type MaintenanceRequestSpec struct {
	// Whether to read every pack, and compare it with what was written. Otherwise a full
	// maintenance reads a share of them.
	// +optional
	Verify bool `json:"verify,omitempty"`
}

// MaintenanceRequestStatus has the started Job.
type MaintenanceRequestStatus struct {
	// Namespace of the Job.
	// +optional
	JobNamespace string `json:"jobNamespace,omitempty"`
	// Name of the Job. It is created when no other Job maintains the repository and one more may
	// run.
	// +optional
	Job string `json:"job,omitempty"`
	// The same for users.
	// +optional
	Message string `json:"message,omitempty"`
}
