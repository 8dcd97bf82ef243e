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

// MaintenanceRequest asks for a repository to be maintained now. It is no object that is
// kept: the answer to its creation says what was started.
type MaintenanceRequest struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata. It has the name of the VolumeRepository,
	// NAMESPACE.LOCATION, and the namespace that of the system.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Wishes beside the maintenance itself.
	// +optional
	Spec MaintenanceRequestSpec `json:"spec,omitempty"`
	// The answer.
	// +optional
	Status MaintenanceRequestStatus `json:"status,omitempty"`
}

// MaintenanceRequestSpec says what is asked for.
type MaintenanceRequestSpec struct {
	// That every pack of the repository is to be read, and compared with what was written.
	// Without it a full maintenance reads a share of them.
	// +optional
	Verify bool `json:"verify,omitempty"`
}

// MaintenanceRequestStatus says what was started.
type MaintenanceRequestStatus struct {
	// Namespace of the Job.
	// +optional
	JobNamespace string `json:"jobNamespace,omitempty"`
	// Name of the Job that maintains the repository. It is made as soon as no other Job
	// maintains this repository and one more may run.
	// +optional
	Job string `json:"job,omitempty"`
	// The same for people.
	// +optional
	Message string `json:"message,omitempty"`
}
