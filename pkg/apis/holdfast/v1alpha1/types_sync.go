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

// SyncRequest requests a full listing of a store now, and a probe: an object that the controller
// writes, reads, lists and deletes there. It is not stored: the answer says what to wait for.
type SyncRequest struct {
	metav1.TypeMeta `json:",inline"`
	// The name is the StorageLocation's, and the namespace the system namespace.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The answer.
	// +optional
	Status SyncRequestStatus `json:"status,omitempty"`
}

// SyncRequestStatus says how to wait for the listing.
type SyncRequestStatus struct {
	// Generation of the StorageLocation. The listing is complete when the condition Synced is True
	// with at least this observedGeneration. The condition Probed then has the probe's result.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// The same for users.
	// +optional
	Message string `json:"message,omitempty"`
}
